"""Models of which each process keeps a part: sharding, tensor parallelism, and both.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), stage 3.
https://arxiv.org/abs/1910.02054
Zhao et al., "PyTorch FSDP" (2023). https://arxiv.org/abs/2304.11277
Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), for activations. https://arxiv.org/abs/1604.06174

    sharding            each process keeps a part of every weight, gradient and optimizer state. The blocks of a
                        Transformer are gathered one by one when they are computed, forward and backward, by torch's
                        `fully_shard`; all other weights are gathered once for a step. Gradients are summed and
                        scattered.
    tensor parallelism  consecutive processes share the layers of a block, and do not gather them:
                        `regard.training.tensor_parallel`. With sharding, each keeps a part of its part.

All parts are DTensors, whose mesh and placements determine which part a process has.
"""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from regard.errors import ConfigError
from regard.nn.blocks import blocks_of, has_dropout
from regard.training.checkpoints import Place, Shard, resize_buffers, weights_of
from regard.training.distributed import REPLICAS, SHARED, Processes, own_part, whole_tensor
from regard.training.muon import Muon
from regard.training.optimizers import AnyOptimizer, CombinedOptimizer
from regard.training.precision import Hardware
from regard.training.tensor_parallel import divide_layers

_METHODS = ("project_memory",)
"""Methods of a block that a model calls beside its `forward`."""


class ShardedLoss(nn.Module):
    """The loss of a task as the module at the root of a sharded model, whose hooks gather and scatter.

    A task may call any method of the model: only the call of the loss as a whole is known to all tasks.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any, objective: Any) -> Tensor:
        return self._loss(self.model, batch, objective)


class ShardedModel:
    """A model whose parameters are divided in place, and a whole copy of it where one is needed."""

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor], hardware: Hardware, group: Processes, *, is_sharded: bool
    ) -> None:
        self._model, self._whole, self._group = model, copy.deepcopy(model), group
        self._device = hardware.device
        self._free()
        if group.mesh is not None:
            divide_layers(model, group.mesh[SHARED])
        self.loss = ShardedLoss(model, loss)
        self.sums_gradients = is_sharded
        """Whether gradients are summed within the backward pass."""
        if is_sharded:
            self._shard(hardware)
        self._parameters = dict(model.named_parameters())

    def _shard(self, hardware: Hardware) -> None:
        require_blocks(self._model, "train.sharding")
        mesh = self._group.mesh
        if mesh is not None:  # a matrix that both divide is gathered in two steps, which torch warns of
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        mesh = init_device_mesh(hardware.device.type, (self._group.size,)) if mesh is None else mesh[REPLICAS]
        # Autocast computes the products in bfloat16 in any case: sent in bfloat16, weights are half as large.
        narrow = torch.bfloat16 if hardware.precision == "bfloat16" else None
        policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32 if narrow else None,
                                      cast_forward_inputs=False)  # fmt: skip
        for block in blocks_of(self._model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
            for method in _METHODS:
                register_fsdp_forward_method(block, method)
        fully_shard(self.loss, mesh=mesh)
        for module in self.loss.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # losses are divided by the targets of all rows
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other

    def __call__(self, model: nn.Module, batch: Any, objective: Any) -> Tensor:
        with warnings.catch_warnings():
            # It advises against changing the output of a block in place, which no model here does.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
            return self.loss(batch, objective)

    def settle_gradients(self) -> None:
        """Sum the gradients of weights that several processes use for their own heads; sharding does so by itself."""
        for parameter in self._model.parameters():
            if isinstance(grad := parameter.grad, DTensor) and isinstance(parameter, DTensor):
                parameter.grad = grad.redistribute(placements=parameter.placements)

    def clip_gradients(self, most: float) -> None:
        """Scale the gradients so that the norm of all of them together is at most `most`."""
        graded = [(each, own_part(each.grad)) for each in self._model.parameters() if each.grad is not None]
        once = [grad for parameter, grad in graded if self._writes(parameter)]
        square = nn.utils.get_total_norm(once).double().square() if once else torch.zeros((), dtype=torch.float64)
        norm = self._group.sum(square.to(self._device)).sqrt()
        scale = (most / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for dtype in {grad.dtype for _, grad in graded}:
            alike = [grad for _, grad in graded if grad.dtype == dtype]
            torch._foreach_mul_(alike, scale.to(dtype))  # pyright: ignore[reportPrivateImportUsage]  no public name

    def adapt(self, optimizer: AnyOptimizer) -> None:
        """Let Muon orthogonalize whole matrices."""
        for each in optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else [optimizer]:
            if isinstance(each, Muon):
                each.gather, each.scatter = whole_tensor, scatter

    @contextmanager
    def whole(self, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """A model with all of these weights, as long as the context lasts; every process has one."""
        resize_buffers(self._whole, weights)
        with torch.no_grad():
            for name, tensor in weights_of(self._whole).items():
                storage = tensor.untyped_storage()
                storage.resize_(storage.nbytes() or self._sizes[name])  # new buffers have their memory
                tensor.copy_(whole_tensor(weights[name]))
        try:
            yield self._whole.eval()
        finally:
            self._free()

    def _free(self) -> None:
        """Keep the modules of the whole copy, whose tied weights stay tied, without their memory."""
        self._sizes = {}
        for name, tensor in weights_of(self._whole).items():
            self._sizes[name] = tensor.untyped_storage().nbytes()
        for tensor in weights_of(self._whole).values():
            tensor.untyped_storage().resize_(0)

    def gather(self, tensors: Mapping[str, Tensor], *, is_kept: bool) -> dict[str, Tensor]:
        """Whole tensors, one by one, on the CPU of those processes that keep them."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            whole = whole_tensor(tensor.detach())
            if is_kept:
                found[name] = whole.cpu()
        return found

    def own_parts(self) -> list[Tensor]:
        """The parts of the parameters that this process keeps."""
        return [own_part(each) for each in self._model.parameters()]

    def shard(self, tensors: Mapping[str, Tensor], save: str) -> tuple[dict[str, Tensor], Shard]:
        """The parts of these tensors that this process writes, of which no other process writes the same."""
        own = {name: tensor for name, tensor in tensors.items() if self._writes(tensor)}
        places = {
            name: Place(tuple(each.start for each in slices_of(tensor)), tuple(tensor.shape))
            for name, tensor in own.items()
        }
        parts = {name: own_part(tensor.detach()) for name, tensor in own.items()}
        return parts, Shard(save, self._group.rank, self._group.size, places)

    def _writes(self, tensor: Tensor) -> bool:
        """Whether this is the first of the processes that keep the same part of a tensor, and the part is not empty."""
        if not isinstance(tensor, DTensor):
            return self._group.is_first
        names = tensor.device_mesh.mesh_dim_names or (REPLICAS,)
        divided = {name for name, each in zip(names, tensor.placements, strict=True) if hasattr(each, "dim")}
        places = {REPLICAS: self._group.replica, SHARED: self._group.rank % self._group.tensor_parallel}
        is_first = all(place == 0 for name, place in places.items() if name not in divided)
        return is_first and (own_part(tensor).numel() > 0 or (self._group.is_first and tensor.numel() == 0))

    def cut(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
        """What this process needs of a tensor of a checkpoint: a weight, its average or its optimizer state."""
        owner = self._owner(name.partition(":")[2])
        return None if owner is None or tuple(owner.shape) != shape else slices_of(owner)

    def place_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint, whole or as they were cut, each divided as the weight that it belongs to."""

        def place(name: str, tensor: Tensor) -> Tensor:
            owner = self._owner(name)
            if not isinstance(owner, DTensor):
                return tensor
            if tensor.shape == owner.shape:
                tensor = tensor[slices_of(owner)]
            return like(owner, tensor) if tensor.shape == own_part(owner).shape else tensor

        return {part: {name: place(name, each) for name, each in tensors.items()} for part, tensors in parts.items()}

    def _owner(self, name: str) -> Tensor | None:
        found = self._parameters.get(name)  # the optimizer has weight/exp_avg
        return self._parameters.get(name.rpartition("/")[0]) if found is None else found


def require_blocks(model: nn.Module, setting: str) -> None:
    """Raise where a setting is for Transformers, and the model is none."""
    if not blocks_of(model):
        raise ConfigError(f"{setting} is for models with the blocks of a Transformer, which this one does not have")


def recompute_activations(model: nn.Module) -> None:
    """Keep only the input of each block in training; what is inside is computed again for its gradient."""
    require_blocks(model, "train.activation_checkpointing")
    for block in blocks_of(model):
        block.forward = _recomputed(block, block.forward)


def _recomputed(block: nn.Module, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(forward)
    def run(*inputs: Any, **named: Any) -> Tensor:
        if torch.is_grad_enabled():
            # The state of the random generator can be saved, but not within a CUDA graph.
            is_random = block.training and has_dropout(block)
            return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=is_random, **named)
        return forward(*inputs, **named)

    return run


def like(own: DTensor, part: Tensor) -> Tensor:
    """A tensor that is divided as `own` is, of which this process has `part`."""
    found = torch.empty_like(own)
    own_part(found).copy_(part)
    return found


def scatter(own: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor, divided as `own` is."""
    return like(own, whole[slices_of(own)]) if isinstance(own, DTensor) else whole


def slices_of(tensor: Tensor) -> tuple[slice, ...]:
    """Where the part that this process keeps of a tensor is in the whole of it.

    The last dimension of a mesh divides first: layers are divided by tensor parallelism before they are sharded.
    """
    found = [slice(0, size) for size in tensor.shape]
    if isinstance(tensor, DTensor):
        coordinate = tensor.device_mesh.get_coordinate()
        assert coordinate is not None, "this process is in the mesh"
        for place, placement in reversed(list(enumerate(tensor.placements))):
            dim = getattr(placement, "dim", None)
            if dim is not None:
                start, stop = found[dim].start, found[dim].stop
                size = -(-(stop - start) // tensor.device_mesh.size(place))
                first = min(stop, start + coordinate[place] * size)
                found[dim] = slice(first, min(stop, first + size))
    return tuple(found)
