"""An exponential moving average of the weights.

Polyak & Juditsky (1992); Izmailov et al. (2018), arXiv 1803.05407.

    a <- d a + (1 - d) w,     d = min(decay, (1 + t) / (10 + t)) after t steps

The decay grows with the run, so that the random initial weights soon have no influence.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.norms import BatchNorm


class WeightAverage:
    """The moving average of a model's trainable weights; with a decay of 0, the weights themselves.

    The statistics of batch normalization belong to the weights that they were computed with, and are averaged too.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self._averages = [tensor.detach().clone() for tensor in _averaged(model).values()] if decay else []

    def decay_at(self, step: int) -> float:
        """The decay at `step`."""
        return min(self._decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float | Tensor) -> None:
        """Update the average with the current weights."""
        if not self._averages:
            return
        if isinstance(decay, Tensor):
            # In a CUDA graph the decay is known only on the device.
            gaps = torch._foreach_sub(list(_averaged(model).values()), self._averages)  # pyright: ignore[reportPrivateImportUsage]  no public name
            torch._foreach_mul_(gaps, 1.0 - decay)  # pyright: ignore[reportPrivateImportUsage]  no public name
            torch._foreach_add_(self._averages, gaps)  # pyright: ignore[reportPrivateImportUsage]  no public name
            return
        alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}  # of one device mesh, or of none
        for average, weight in zip(self._averages, _averaged(model).values(), strict=True):
            averages, weights = alike.setdefault(getattr(weight, "device_mesh", None), ([], []))
            averages.append(average)
            weights.append(weight)
        for averages, weights in alike.values():
            torch._foreach_lerp_(averages, weights, 1.0 - decay)  # pyright: ignore[reportPrivateImportUsage]  no public name

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged weights inside the context."""
        if not self._averages:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def tensors(self) -> dict[str, Tensor]:
        """The averages by name."""
        return dict(zip(_averaged(self._model), self._averages, strict=True)) if self._averages else {}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the averages that `tensors` returned."""
        for name, average in self.tensors().items():
            average.copy_(tensors[name])

    @torch.no_grad()
    def _swap(self) -> None:
        # Values are swapped, not memory: CUDA graphs and flattened recurrent weights refer to it.
        for tensor, average in zip(_averaged(self._model).values(), self._averages, strict=True):
            kept = tensor.clone()
            tensor.copy_(average)
            average.copy_(kept)


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and module.weight.requires_grad:
            found |= {f"{name}.{statistic}": tensor for statistic, tensor in module.named_buffers()}
    return found
