"""Windows of episodes as batches.

A window begins at any step of an episode and has at most `task.window` steps; the action of each of them is predicted
from those before it. A step is read as one vector: the action before it (zeros at the beginning of an episode), the
return-to-go and the observation.

Dimensions: `steps` of all episodes, `batch` windows, `time` steps of a window, `numbers` of a step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from regard.data.codecs.episodes import EncodedSteps, EpisodeCodec
from regard.data.permutation import mix, permute

_EVALUATION_STEPS = 1 << 15
"""Steps that are read at once when no gradient is needed."""


@dataclass(frozen=True)
class ControlBatch:
    """Windows, the action of each step, and which steps are of the window rather than padding after it."""

    steps: Float[Tensor, "batch time numbers"]
    actions: Shaped[Tensor, "batch time ..."]
    known: Bool[Tensor, "batch time"]
    """True where the action counts: in evaluations, each action once, with the longest history."""
    num_targets: int
    num_tokens: int
    """The steps that are read."""
    episodes: tuple[int, ...] = ()
    """The number of the episode of each window, in evaluations."""

    def tensors(self) -> list[Tensor | None]:
        return [self.steps, self.actions, self.known]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "ControlBatch":
        names = ("steps", "actions", "known")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name


@dataclass(frozen=True)
class EpisodeSteps:
    """Episodes with what a model reads of each step."""

    codec: EpisodeCodec
    found: EncodedSteps
    has_returns: bool

    @cached_property
    def numbers(self) -> Float[np.ndarray, "steps numbers"]:
        """The action before each step, its return-to-go and its observation."""
        before = np.zeros((len(self.found.returns), self.codec.action_width), np.float32)
        before[1:] = self.codec.action_inputs(self.found.actions[:-1])
        before[self.found.ends - self.found.lengths] = 0.0
        returns = [self.found.returns[:, None]] if self.has_returns else []
        return np.concatenate([before, *returns, self.found.observations], axis=1)

    def batch(self, starts: NDArray[np.int64], stops: NDArray[np.int64], length: int) -> ControlBatch:
        """The windows from `starts` to `stops`, padded to `length` steps."""
        places = starts[:, None] + np.arange(length)
        known = places < stops[:, None]
        places = np.minimum(places, stops[:, None] - 1)
        num_steps = int(known.sum())
        return ControlBatch(
            steps=torch.from_numpy(self.numbers[places]),
            actions=torch.from_numpy(self.found.actions[places]),
            known=torch.from_numpy(known),
            num_targets=num_steps,
            num_tokens=num_steps,
        )


class ControlBatches:
    """Windows in shuffled order, one for each step that it begins at."""

    def __init__(
        self, steps: EpisodeSteps, *, window: int, batch_tokens: int, seed: int, has_fixed_shapes: bool
    ) -> None:
        self._steps, self._window, self._seed = steps, window, seed
        self._stops = np.repeat(steps.found.ends, steps.found.lengths)
        total = len(self._stops)
        self.per_epoch = -(-total // max(1, batch_tokens // window))
        self._num_windows = -(-total // self.per_epoch) if has_fixed_shapes else 0

    def batch(self, number: int) -> ControlBatch:
        """Batch `number`, counted from 0 through all epochs."""
        epoch, place = divmod(number, self.per_epoch)
        total = len(self._stops)
        first, last = (total * each // self.per_epoch for each in (place, place + 1))
        starts = permute(np.arange(first, last), total, mix(self._seed, epoch))
        stops = np.minimum(self._stops[starts], starts + self._window)
        batch = self._steps.batch(starts, stops, self._window)
        more = max(0, self._num_windows - len(starts))
        return batch if not more else batch.with_tensors([_with_rows(tensor, more) for tensor in batch.tensors()])


def episode_batches(steps: EpisodeSteps, *, window: int) -> Iterator[ControlBatch]:
    """The action of every step once: those of the first window of an episode, then that of the last step of each."""
    lengths, ends = steps.found.lengths, steps.found.ends
    firsts = ends - lengths
    more = np.maximum(lengths - window, 0)
    starts = np.concatenate([firsts, np.repeat(firsts + 1, more) + _counts(more)])
    episodes = np.concatenate([np.arange(len(lengths)), np.repeat(np.arange(len(lengths)), more)])
    stops = np.minimum(starts + window, ends[episodes])
    is_first = np.arange(len(starts)) < len(lengths)
    at_once = max(1, _EVALUATION_STEPS // window)
    for place in range(0, len(starts), at_once):
        chosen = slice(place, place + at_once)
        batch = steps.batch(starts[chosen], stops[chosen], window)
        is_last = torch.arange(window) == torch.from_numpy(stops[chosen] - starts[chosen] - 1)[:, None]
        known = batch.known & (is_last | torch.from_numpy(is_first[chosen])[:, None])
        yield replace(
            batch, known=known, num_targets=int(known.sum()), episodes=tuple(episodes[chosen].tolist())
        )  # fmt: skip


def _counts(sizes: Int[np.ndarray, " episodes"]) -> Int[np.ndarray, " windows"]:
    """0, 1, 2 and so on up to each size, one after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _with_rows(tensor: Tensor | None, count: int) -> Tensor | None:
    return None if tensor is None else torch.cat([tensor, tensor.new_zeros(count, *tensor.shape[1:])])
