"""Tensor parallelism: consecutive processes share the matrices of each attention layer and feed-forward network.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019),
section 3. https://arxiv.org/abs/1909.08053

Of the first matrices of a layer (queries, keys and values; input and gate) a process has some of the outputs, which are
whole heads, or a part of the hidden layer. What follows up to the last matrix is computed for them alone. Of the last
matrix it has the columns that read them, and the products are summed over the processes, and in the backward pass the
gradients of the input. Everything else, the residual stream with it, is computed by each process alike, with the same
random numbers: where attention weights are dropped, the heads of one process have the masks of those of another.

The matrices are divided by torch's `parallelize_module`, as DTensors.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from regard.errors import ConfigError
from regard.nn.attention import MultiHeadAttention
from regard.nn.blocks import blocks_of
from regard.nn.feedforward import FeedForward
from regard.nn.positions import PositionEncoding

_FIRST, _LAST = ("query", "key", "value", "input", "gate"), "output"
_HEADS = 1
"""The dimension of heads in queries and keys."""


def divide_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the layers of each block over the processes of a mesh of one dimension."""
    for layer in require_divisible(model, mesh.size()):
        plan: dict[str, ParallelStyle] = {"": PrepareModuleInput(input_layouts=Replicate(),
                                                                 desired_input_layouts=Replicate())}  # fmt: skip
        for name, _ in layer.named_children():
            if name in _FIRST:
                plan[name] = ColwiseParallel()
            elif name == _LAST:
                plan[name] = RowwiseParallel()
            elif name in ("query_norm", "key_norm"):
                plan[name] = SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
        parallelize_module(layer, mesh, plan, src_data_rank=None)  # every process has the same weights
        if isinstance(layer, MultiHeadAttention):
            layer.own_positions = _own_positions(mesh)


def require_divisible(model: nn.Module, number: int) -> list[MultiHeadAttention | FeedForward]:
    """The layers that are divided; an error where one of them cannot be divided by `number`."""
    layers = [each for block in blocks_of(model) for each in block.children()
              if isinstance(each, MultiHeadAttention | FeedForward)]  # fmt: skip
    if not layers:
        raise ConfigError("train.tensor_parallel is for models with the blocks of a Transformer, which this has not")
    for layer in layers:
        named = {name: each for name, each in layer.named_children() if name in (*_FIRST, _LAST)}
        if any(type(each) is not nn.Linear for each in named.values()):
            what = "without projections of values or outputs" if _has_identity(layer) else "with adapters or quantized"
            raise ConfigError(f"train.tensor_parallel divides plain matrices, and this model has layers {what}")
        if isinstance(layer, FeedForward):
            _require_multiple("model.feedforward_dim", layer.input.out_features, number)
            continue
        _require_multiple("model.num_heads", layer.query.out_features // layer.head_dim, number)
        _require_multiple("model.num_key_value_heads", layer.key.out_features // layer.head_dim, number)
        if isinstance(layer.lookup, nn.Module) and any(True for _ in layer.lookup.parameters()):
            raise ConfigError(
                "train.tensor_parallel divides the projections of attention, and this model's has other weights, such "
                "as those of a learned similarity or of low-rank attention"
            )
    return layers


def _has_identity(layer: nn.Module) -> bool:
    return any(isinstance(each, nn.Identity) for each in layer.children())


def _require_multiple(name: str, size: int, number: int) -> None:
    if size % number:
        fitting = ", ".join(str(each) for each in range(2, size + 1) if size % each == 0 and each <= 64)
        advice = f"; {fitting} would divide it" if fitting else ""
        raise ConfigError(f"train.tensor_parallel must divide {name}, got {number} and {size}{advice}")


def _own_positions(mesh: DeviceMesh) -> Callable[[PositionEncoding], PositionEncoding]:
    """What a position encoding adds to the scores of the heads of this process; gradients are summed over all."""

    def share(tensor: Tensor | None, *, by_head: bool) -> Tensor | None:
        if tensor is None:
            return None
        whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
        if by_head and tensor.size(-3) > 1:
            return whole.redistribute(placements=[Shard(tensor.dim() - 3)]).to_local()
        return whole.to_local(grad_placements=[Partial()])

    def own(positions: PositionEncoding) -> PositionEncoding:
        bias, keys = share(positions.bias, by_head=True), share(positions.relative_keys, by_head=False)
        return positions._replace(bias=bias, relative_keys=keys)

    return own
