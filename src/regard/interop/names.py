"""Where each weight of ours lies in a foreign file, and how it comes out of it and goes back.

Dimensions: `rows` and `columns` of a matrix.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import CheckpointError

Shape = tuple[int, ...]


class Weight(NamedTuple):
    """A weight of ours, by what it is called and how it lies elsewhere."""

    name: str
    others: tuple[str, ...] = ()
    """Names that it may have instead; where it is tied, all of them may be there."""
    is_transposed: bool = False
    is_flattened: bool = False
    """A vector here, a matrix of one row there."""
    folded: Shape | None = None
    """The shape that it has there, where the same numbers in the same order have another one here."""
    part: tuple[int, int] | None = None
    """(i, n): the i-th of n equal parts that lie one behind the other."""
    skipped: int = 0
    """Rows in front that have no meaning here."""
    plus: str | None = None
    """What has one row, which is added to every row."""
    otherwise: Callable[[Shape], Tensor] | None = None
    """What makes it where the file does not hold it."""


Names = Mapping[str, Weight]
"""For each weight of ours, where it lies."""


def layers(depth: int, ours: str, theirs: str, parts: Mapping[str, str], *, has_bias: bool = True) -> dict[str, Weight]:
    """The names of parts that every layer has: `{}` in `ours` and `theirs` is the number of the layer.

    Example:
        >>> layers(1, "blocks.{}.", "h.{}.", {"norm": "ln"})["blocks.0.norm.bias"].name
        'h.0.ln.bias'
    """
    kinds = ("weight", "bias") if has_bias else ("weight",)
    return {
        f"{ours.format(layer)}{part}.{kind}": Weight(f"{theirs.format(layer)}{name}.{kind}")
        for layer in range(depth)
        for part, name in parts.items()
        for kind in kinds
    }


def found_name(name: str, tensors: Mapping[str, Tensor]) -> str | None:
    """What a weight is called in this very file, or None.

    The body of a model may have been saved without the model that it is part of
    (`bert.`, `model.`), and the first norms of TensorFlow's had a gamma and a beta.
    """
    for candidate in (name, name.partition(".")[2]):
        old = candidate.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for spelled in (candidate, old):
            if spelled and spelled in tensors:
                return spelled
    return None


def names_within(weight: Weight, tensors: Mapping[str, Tensor]) -> list[str]:
    """All names of this file that the weight accounts for."""
    candidates = (weight.name, *weight.others, *([weight.plus] if weight.plus else []))
    return [name for name in (found_name(candidate, tensors) for candidate in candidates) if name is not None]


def taken(weight: Weight, shape: Shape, tensors: Mapping[str, Tensor]) -> Tensor:
    """A weight of this shape out of a foreign file."""
    found = (found_name(name, tensors) for name in (weight.name, *weight.others))
    name = next((each for each in found if each is not None), None)
    if name is None:
        if weight.otherwise is None:
            raise CheckpointError(f"the file has no {weight.name}, which config.json asks for")
        return weight.otherwise(shape)
    tensor = tensors[name]
    if not tensor.is_floating_point():
        raise CheckpointError(f"{name} holds numbers of type {tensor.dtype}: quantised weights cannot be imported")
    whole = tuple(tensor.shape)
    tensor = (
        _cut(tensor, weight) if weight.folded is None else tensor.reshape(shape) if whole == weight.folded else None
    )
    if tensor is None or tuple(tensor.shape) != shape:
        wanted = "x".join(map(str, _whole(weight, shape)))
        got = "x".join(map(str, whole)) or "of a single number"
        raise CheckpointError(f"{name} has the shape {got}, config.json asks for {wanted}")
    if weight.plus is not None:
        tensor = tensor + taken(Weight(weight.plus), (1, *shape[1:]), tensors)
    return tensor


def given_back(names: Names, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of ours in the names and the layout of others: what `taken` takes apart, put together."""
    parts: dict[str, dict[int, Tensor]] = {}
    for ours, weight in names.items():
        if ours not in weights:
            continue
        tensor = weights[ours]
        if weight.is_flattened:
            tensor = tensor[None]
        if weight.folded is not None:
            tensor = tensor.reshape(weight.folded)
        if weight.skipped:
            tensor = torch.cat([tensor.new_zeros(weight.skipped, *tensor.shape[1:]), tensor])
        parts.setdefault(weight.name, {})[weight.part[0] if weight.part else 0] = tensor
        if weight.plus is not None:
            parts[weight.plus] = {0: tensor.new_zeros(1, *tensor.shape[1:])}
    transposed = {weight.name for weight in names.values() if weight.is_transposed}
    whole = {name: torch.cat([some[index] for index in sorted(some)]) for name, some in parts.items()}
    return {name: tensor.T.contiguous() if name in transposed else tensor for name, tensor in whole.items()}


def _cut(tensor: Tensor, weight: Weight) -> Tensor | None:
    """What of a foreign tensor the weight is, or None where it cannot be cut so."""
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


def _whole(weight: Weight, shape: Shape) -> Shape:
    """The shape that the foreign tensor should have."""
    if weight.folded is not None:
        return weight.folded
    rows = (shape[0] + weight.skipped) * (weight.part[1] if weight.part else 1)
    whole = (rows, *shape[1:])
    if weight.is_flattened:
        return (1, *whole)
    return whole[::-1] if weight.is_transposed else whole
