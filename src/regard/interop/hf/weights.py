"""Where each weight of a model is stored in a checkpoint of another library, and how its layout differs.

Dimensions: `rows` and `columns` of a matrix.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import CheckpointError


class ForeignWeight(NamedTuple):
    """The name and layout of one of our weights in a checkpoint."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names it may have; if it is tied, several of them may be present."""
    is_transposed: bool = False
    is_flattened: bool = False
    """A vector here, a matrix of one row there."""
    stored_shape: tuple[int, ...] | None = None
    """The shape there, if the same numbers in the same order have another shape here."""
    part: tuple[int, int] | None = None
    """(i, n): the i-th of n equal parts that are concatenated there."""
    skipped: int = 0
    """Leading rows there that are not used."""
    plus: str | None = None
    """The name of a single row that is added to every row."""
    default: Callable[[tuple[int, ...]], Tensor] | None = None
    """Computes it from its shape if it is not stored."""


WeightNames = dict[str, ForeignWeight]
"""For each of our weights, where it is stored."""


def layer_names(
    depth: int, ours: str, theirs: str, parts: Mapping[str, str], *, has_bias: bool = True
) -> dict[str, ForeignWeight]:
    """The names of parts that every layer has; `{}` in `ours` and `theirs` is the number of the layer.

    Example:
        >>> layer_names(1, "blocks.{}.", "h.{}.", {"norm": "ln"})["blocks.0.norm.bias"].name
        'h.0.ln.bias'
    """
    kinds = ("weight", "bias") if has_bias else ("weight",)
    return {
        f"{ours.format(layer)}{part}.{kind}": ForeignWeight(f"{theirs.format(layer)}{name}.{kind}")
        for layer in range(depth)
        for part, name in parts.items()
        for kind in kinds
    }


def stored_name(name: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a weight in this checkpoint, or None.

    The body of a model may be saved without its prefix (`bert.`, `model.`), and
    the first norms converted from TensorFlow have a gamma and a beta.
    """
    for candidate in (name, name.partition(".")[2]):
        old = candidate.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for spelled in (candidate, old):
            if spelled and spelled in tensors:
                return spelled
    return None


def stored_names(weight: ForeignWeight, tensors: Mapping[str, Tensor]) -> list[str]:
    """All names of this checkpoint that belong to the weight."""
    candidates = (weight.name, *weight.aliases, *([weight.plus] if weight.plus else []))
    return [name for name in (stored_name(candidate, tensors) for candidate in candidates) if name is not None]


def read_weight(weight: ForeignWeight, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> Tensor:
    """Read a weight of this shape from a checkpoint."""
    found = (stored_name(name, tensors) for name in (weight.name, *weight.aliases))
    name = next((each for each in found if each is not None), None)
    if name is None:
        if weight.default is None:
            raise CheckpointError(f"the checkpoint has no {weight.name}, which config.json requires")
        return weight.default(shape)
    tensor = tensors[name]
    if not tensor.is_floating_point():
        raise CheckpointError(f"{name} has the type {tensor.dtype}: quantized weights cannot be imported")
    stored = tuple(tensor.shape)
    if weight.stored_shape is not None:
        converted = tensor.reshape(shape) if stored == weight.stored_shape else None
    else:
        converted = _slice(tensor, weight)
    if converted is None or tuple(converted.shape) != shape:
        expected = "x".join(map(str, _stored_shape(weight, shape)))
        got = "x".join(map(str, stored)) or "of a scalar"
        raise CheckpointError(f"{name} has the shape {got}, config.json requires {expected}")
    if weight.plus is not None:
        converted = converted + read_weight(ForeignWeight(weight.plus), (1, *shape[1:]), tensors)
    return converted


def foreign_weights(names: Mapping[str, ForeignWeight], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights in the names and layout of the other library: the inverse of `read_weight`."""
    parts: dict[str, dict[int, Tensor]] = {}
    for ours, weight in names.items():
        if ours not in weights:
            continue
        tensor = weights[ours]
        if weight.is_flattened:
            tensor = tensor[None]
        if weight.stored_shape is not None:
            tensor = tensor.reshape(weight.stored_shape)
        if weight.skipped:
            tensor = torch.cat([tensor.new_zeros(weight.skipped, *tensor.shape[1:]), tensor])
        parts.setdefault(weight.name, {})[weight.part[0] if weight.part else 0] = tensor
        if weight.plus is not None:
            parts[weight.plus] = {0: tensor.new_zeros(1, *tensor.shape[1:])}
    transposed = {weight.name for weight in names.values() if weight.is_transposed}
    joined = {name: torch.cat([some[index] for index in sorted(some)]) for name, some in parts.items()}
    return {name: tensor.T.contiguous() if name in transposed else tensor for name, tensor in joined.items()}


def _slice(tensor: Tensor, weight: ForeignWeight) -> Tensor | None:
    """The part of a stored tensor that is the weight, or None if its shape does not allow that."""
    if tensor.dim() == 0:
        return None
    if weight.is_flattened:
        return tensor.flatten() if tensor.dim() == 2 and tensor.size(0) == 1 else None
    if weight.is_transposed:
        tensor = tensor.T if tensor.dim() == 2 else tensor
    if weight.part is not None:
        index, count = weight.part
        return None if tensor.size(0) % count else tensor.chunk(count)[index]
    return tensor[weight.skipped :]


def _stored_shape(weight: ForeignWeight, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the stored tensor should have."""
    if weight.stored_shape is not None:
        return weight.stored_shape
    rows = (shape[0] + weight.skipped) * (weight.part[1] if weight.part else 1)
    stored = (rows, *shape[1:])
    if weight.is_flattened:
        return (1, *stored)
    return stored[::-1] if weight.is_transposed else stored
