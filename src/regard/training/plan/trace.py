"""One training step of a model, computed on tensors without data: what it stores, and what it computes.

The model runs forward and backward on `FakeTensor`s, which have shapes and types but no
memory, so that a model of any size is traced in seconds on any machine. A dispatch mode sees every
operation of PyTorch, below autograd and autocast:

    storage     each new block of memory, until the last tensor that refers to it is gone; the blocks that
                are left after the forward pass are what autograd keeps: the activations
    operations  the floating-point operations of products and attention, and the bytes that each one reads and writes

For a GPU, normalization and dropout are replaced by functions that keep what its kernels keep:
on a CPU, PyTorch computes them by several operations, each of which keeps something. Recurrent layers are
replaced by one with the same products for all positions at once.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), for blocks that are computed again. https://arxiv.org/abs/1604.06174
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from regard.errors import ConfigError
from regard.models.family import ModelConfig, find_family
from regard.nn.attention import MultiHeadAttention
from regard.nn.blocks import Block
from regard.nn.dropout import Dropout
from regard.nn.feedforward import FeedForward
from regard.nn.norms import RMSNorm
from regard.nn.recurrent import KERNEL_WEIGHTS, RecurrentLayer
from regard.training.optimizers import hidden_matrices
from regard.training.plan.accelerators import Product

Work = Literal["product", "attention", "other"]

_READ = ("tokens", "pixels")
"""Kinds of input that a step can be traced on."""
_FREE = ("empty", "new_empty", "empty_like", "empty_strided", "detach", "lift_fresh", "device")
"""Operations that read and write nothing."""
_LOOKUPS = ("embedding", "index", "gather", "index_select")
"""Operations that read as much as they write, whatever the size of their table."""


@dataclass(frozen=True)
class Operation:
    """An operation of the step."""

    work: Work
    flops: float
    num_bytes: int
    is_backward: bool
    is_wide: bool
    """Whether it is in a layer that tensor parallelism divides."""


@dataclass(frozen=True)
class Weights:
    """The numbers of weights of a model."""

    total: int
    trainable: int
    matrices: int
    """Those of matrices between the embeddings and the output."""
    matrix_shapes: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    """Those of each block."""
    wide: int
    """Those of attention and of feed-forward networks, which tensor parallelism divides."""
    output: int
    """Those of the output projection, which may be the embedding."""
    in_bfloat16: int = 0
    """Those of which autocast keeps a copy until they are used in the backward pass."""

    @property
    def outside(self) -> int:
        """Those of no block: embeddings, the output and the last norm."""
        return self.total - sum(self.blocks)


@dataclass(frozen=True)
class StepTrace:
    """What a step on one device stores and computes; the loss is not part of it."""

    weights: Weights
    rows: int
    length: int
    """Positions of a sequence."""
    positions: int
    """Positions of a row; of the source and the target together."""
    targets: int
    """Predictions of a vocabulary that a batch has; 0 without a decoder."""
    vocab_size: int
    model_dim: int
    activations: int
    """Bytes that autograd keeps after the forward pass, without copies of weights."""
    wide_activations: int
    """Those of them that are computed within attention and feed-forward networks."""
    weight_copies: int
    peak: int
    """The most bytes at a time of activations, copies of weights, gradients and intermediate results."""
    operations: tuple[Operation, ...]

    @property
    def tokens(self) -> int:
        """Positions of a batch; of pairs those of the targets."""
        return self.targets or self.rows * self.positions


def trace_step(
    config: ModelConfig,
    *,
    vocab_size: int,
    rows: int,
    length: int,
    precision: Product = "float32",
    is_gpu: bool = True,
    is_checkpointed: bool = False,
) -> StepTrace:
    """Trace one step on `rows` rows of `length` positions; of images, the length follows from their size."""
    shape = _shape_of(config)
    with _without_data():
        model = find_family(config.family).build(config, vocab_size=vocab_size, shape=shape).train()
        weights = count_weights(model)
        _compute_as_kernels(model, is_gpu=is_gpu)
        if is_checkpointed:
            _checkpoint(model)
        meter = _Meter(model)
        run = _forward_of(model, config, shape, rows, length, vocab_size)
        with meter, _products_in(precision):
            hidden_states = run()
            kept, wide, copies = meter.live, meter.wide_live, meter.copies
            meter.is_backward = True
            hidden_states.backward(torch.empty_like(hidden_states))
    is_decoder = config.decoder_depth > 0
    has_pairs = is_decoder and config.encoder_depth > 0
    positions = length if shape is None else shape.num_positions
    return StepTrace(
        weights=weights,
        rows=rows,
        length=positions,
        positions=2 * positions if has_pairs else positions,
        targets=rows * length if is_decoder else 0,
        vocab_size=vocab_size if is_decoder else 0,
        model_dim=config.model_dim,
        activations=kept - copies,
        wide_activations=wide,
        weight_copies=copies,
        peak=meter.peak,
        operations=tuple(meter.operations),
    )


def count_weights(model: nn.Module) -> Weights:
    """Count the weights of a model, which may be on the device `meta`; tied ones count once."""
    parameters = list(model.parameters())
    matrices = hidden_matrices(model)
    wide = {p for module in _wide_modules(model) for p in module.parameters()}
    output = getattr(model, "output", None)
    return Weights(
        total=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        matrices=sum(p.numel() for p in matrices),
        matrix_shapes=tuple((p.size(0), p.size(1)) for p in matrices),
        blocks=tuple(sum(p.numel() for p in block.parameters()) for block in blocks_of(model)),
        wide=sum(p.numel() for p in wide),
        output=output.weight.numel() if isinstance(output, nn.Linear) else 0,
    )


def blocks_of(model: nn.Module) -> list[Block]:
    """The blocks of a Transformer, which sharding gathers and activation checkpointing computes again, one by one."""
    return [module for module in model.modules() if isinstance(module, Block)]


def has_blocks(config: ModelConfig) -> bool:
    """Whether a model with these settings has the blocks of a Transformer."""
    with _without_data():
        return bool(blocks_of(find_family(config.family).build(config, vocab_size=2, shape=_shape_of(config))))


def kv_cache_bytes(config: ModelConfig, length: int, *, precision: Product) -> int | None:
    """Bytes of the state from which a text of `length` tokens is continued; None without a decoder.

    Of an encoder-decoder, the source has as many tokens.
    """
    if not config.decoder_depth or config.input_kind != "tokens":
        return None
    with _without_data():
        model: Any = find_family(config.family).build(config, vocab_size=2)
        state = model.static_state(1, length, source_length=length if config.encoder_depth else 0)
        width = getattr(torch, precision).itemsize
        return sum(part.numel() * (width if part.is_floating_point() else part.itemsize) for part in _tensors_in(state))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a state, which is made of dataclasses and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors_in(part)
    elif hasattr(value, "__dict__"):
        yield from _tensors_in(list(vars(value).values()))


def _shape_of(config: ModelConfig) -> Any:
    if config.input_kind not in _READ:
        raise ConfigError(
            "a plan is made for models of tokens or of images, "
            f"and the family {config.family} reads {config.input_kind}"
        )
    return find_family(config.family).default_shape


def _forward_of(
    model: Any, config: ModelConfig, shape: Any, rows: int, length: int, vocab_size: int
) -> Callable[[], Tensor]:
    """What computes the hidden states of a batch."""
    if config.input_kind == "pixels":
        images = torch.empty(rows, shape.channels, shape.size, shape.size)
        return lambda: model.encode(images).hidden_states
    tokens = torch.zeros(rows, length, dtype=torch.long)
    if not config.decoder_depth:
        return lambda: model.encode(tokens).hidden_states
    if not config.encoder_depth:
        return lambda: model.hidden_states(tokens)
    return lambda: model.hidden_states(tokens, model.encode(tokens))


@contextmanager
def _without_data() -> Iterator[None]:
    """Tensors have no data inside the context, and weights are those of training: float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _products_in(precision: Product) -> Iterator[None]:
    if precision == "float32":
        yield
    else:
        # As in training: without the cache, each use of a weight has a copy of its own.
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            yield


def _wide_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention | FeedForward)]


def _checkpoint(model: nn.Module) -> None:
    """Keep only the inputs of blocks, and compute the rest again in the backward pass."""
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


def _compute_as_kernels(model: nn.Module, *, is_gpu: bool) -> None:
    for module in model.modules():
        if isinstance(module, RecurrentLayer):
            module.forward = partial(_recur, module)
        elif is_gpu and isinstance(module, RMSNorm):
            module.forward = partial(_normalize, module)
        elif is_gpu and isinstance(module, Dropout) and module.probability:
            module.forward = partial(_drop, module)


def _recur(
    layer: RecurrentLayer, x: Tensor, state: tuple[Tensor, ...], lengths: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A recurrent layer by its size: the gates of all positions are kept, and the states, but none depends on another.

    PyTorch's kernels compute position by position on a GPU, and without one by many small operations.
    """
    width, outputs = layer.hidden_dim, []
    with torch.autocast("cpu", enabled=False):
        for direction in range(layer.num_directions):
            end = "_reverse" if direction else ""
            inner, outer, *biases = (getattr(layer.kernel, f"{name}_l0{end}") for name in KERNEL_WEIGHTS)
            gates = F.linear(x.to(inner.dtype), inner, biases[0])
            gates = (gates + F.linear(gates[..., :width], outer, biases[1])).tanh()
            outputs.append(gates[..., :width] * gates[..., -width:])
        states = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        last = tuple(part + states[None, :, -1, :width] for part in state)
    return states, last


def _normalize(norm: RMSNorm, x: Tensor) -> Tensor:
    return _FusedNorm.apply(x, norm.weight.to(x.dtype))  # pyright: ignore[reportReturnType]  apply is untyped


def _drop(dropout: Dropout, x: Tensor) -> Tensor:
    return torch.native_dropout(x, dropout.probability, dropout.training)[0]


class _FusedNorm(torch.autograd.Function):
    """Reads and writes what the kernel of root mean square normalization does; the numbers are not computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(*x.shape[:-1], 1, dtype=torch.float32))
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return gradients[0] * x, torch.empty_like(weight)


class _Meter(TorchDispatchMode):
    """Measures the operations inside it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.is_backward = False
        self.live = self.wide_live = self.copies = self.peak = 0
        self._weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._depth = 0
        for module in _wide_modules(model):
            # First in, last out: a block that is computed again enters its layers as in the forward pass.
            module.register_forward_pre_hook(self._enter, prepend=True)
            module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _leave(self, *_: Any) -> None:
        self._depth -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        name = func._schema.name.removeprefix("aten::")
        given = {each.untyped_storage()._cdata for each in inputs}
        for output in outputs:
            if output.untyped_storage()._cdata not in given:
                self._allocate(output, is_copy=name == "_to_copy" and given <= self._weights)
        self.peak = max(self.peak, self.live)
        is_view = func.is_view or (given and all(o.untyped_storage()._cdata in given for o in outputs))
        if outputs and name not in _FREE and (func._schema.is_mutable or not is_view):
            self._note(name, func, args, kwargs, result, inputs, outputs)
        return result

    def _allocate(self, tensor: Tensor, *, is_copy: bool) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        is_wide = self._depth > 0 and not is_copy and not self.is_backward
        self._count(storage.nbytes(), is_wide=is_wide, is_copy=is_copy)
        weakref.finalize(storage, self._count, -storage.nbytes(), is_wide=is_wide, is_copy=is_copy)

    def _count(self, num_bytes: int, *, is_wide: bool, is_copy: bool) -> None:
        self.live += num_bytes
        self.wide_live += num_bytes if is_wide else 0
        self.copies += num_bytes if is_copy else 0

    def _note(
        self, name: str, func: Any, args: Any, kwargs: Any, result: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        work, flops = "other", 0.0
        if name.startswith("_scaled_dot_product"):
            work, flops = "attention", _attention_flops(name, args, kwargs)
        elif func._overloadpacket in flop_registry:
            work, flops = "product", float(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result))
        written = sum(_bytes_of(each) for each in outputs)
        read = written if name in _LOOKUPS else sum(_bytes_of(each) for each in inputs)
        self.operations.append(Operation(work, flops, read + written, self.is_backward, self._depth > 0))


def _bytes_of(tensor: Tensor) -> int:
    """What is read of a tensor; one that is expanded is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _attention_flops(name: str, args: Sequence[Any], kwargs: Any) -> float:
    """Two products forward and five backward, which computes the weights again; half of them under a causal mask.

    Dao et al., "FlashAttention" (2022), section 3. https://arxiv.org/abs/2205.14135
    """
    is_backward = name.endswith("_backward")
    query, key, value = args[1:4] if is_backward else args[:3]
    flags = [each for each in args if isinstance(each, bool)] + [kwargs.get("is_causal", False)]
    batch, heads, queries, width = query.shape
    one = 2.0 * batch * heads * queries * key.size(2)
    products = 3 * width + 2 * value.size(3) if is_backward else width + value.size(3)
    return one * products * (0.5 if any(flags) else 1.0)
