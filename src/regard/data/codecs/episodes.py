"""Episodes: observations and actions standardized, returns scaled, by what the training episodes have.

The text of an episode is its JSON, see `formats.episodes`. Its ids are the halves of its numbers as float32, step by
step: the observation, the action and the reward.

Dimensions: `steps` of all episodes, `episodes`, `features` of an observation, `width` of an action.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec, checked_codec
from regard.data.formats.episodes import Episode, action_width_of, read_episode, require_alike
from regard.data.formats.messages import format_count
from regard.errors import DataError
from regard.files import load_json

_SMALLEST_STD = 1e-6
"""A feature that varies less is constant, and is left as it is."""


@dataclass(frozen=True)
class EncodedSteps:
    """Episodes one after the other, as a model reads them."""

    observations: Float[np.ndarray, "steps features"]
    """Standardized."""
    actions: Shaped[np.ndarray, "steps ..."]
    """Integers, or standardized numbers."""
    returns: Float[np.ndarray, " steps"]
    """The sum of the rewards from each step on, divided by `EpisodeCodec.return_scale`."""
    lengths: Int[np.ndarray, " episodes"]

    @property
    def ends(self) -> Int[np.ndarray, " episodes"]:
        """The step after the last one of each episode."""
        return np.cumsum(self.lengths)


@dataclass(frozen=True)
class EpisodeCodec(Codec):
    """What is known of observations, actions and returns by the training episodes."""

    means: tuple[float, ...] = (0.0,)
    stds: tuple[float, ...] = (1.0,)
    """Standard deviation of each feature of an observation."""
    num_actions: int = 0
    """Actions are 0 to this number, exclusive; 0 where they are vectors of numbers."""
    action_means: tuple[float, ...] = ()
    action_stds: tuple[float, ...] = ()
    action_low: tuple[float, ...] = ()
    """The smallest and the largest value of each number of an action."""
    action_high: tuple[float, ...] = ()
    return_scale: float = 1.0
    """The largest absolute return-to-go."""
    best_return: float = 0.0
    mean_return: float = 0.0
    num_episodes: int = 0
    num_steps: int = 0

    @classmethod
    def fit(cls, texts: Iterable[str], *, num_actions: int | None = None) -> Self:
        """Compute statistics of episodes; `num_actions` where some actions occur in none of them."""
        episodes = [read_episode(text) for text in texts]
        first = episodes[0]
        for each in episodes:
            require_alike(each, first.observations.shape[1], action_width_of(first), first.is_discrete)
        observations = np.concatenate([each.observations for each in episodes])
        actions = np.concatenate([each.actions for each in episodes])
        returns = np.array([each.rewards.sum() for each in episodes])
        to_go = np.concatenate([_returns_to_go(each.rewards) for each in episodes])
        common = {
            "means": tuple(observations.mean(axis=0).tolist()),
            "stds": _stds(observations),
            "return_scale": float(np.abs(to_go).max()) or 1.0,
            "best_return": float(returns.max()),
            "mean_return": float(returns.mean()),
            "num_episodes": len(episodes),
            "num_steps": len(observations),
        }
        if first.is_discrete:
            return cls(**common, num_actions=max(num_actions or 0, int(actions.max()) + 1))
        if num_actions is not None:
            raise DataError(f"task.num_actions is for actions that are integers, got {num_actions} for numbers")
        return cls(
            **common,
            action_means=tuple(actions.mean(axis=0).tolist()),
            action_stds=_stds(actions),
            action_low=tuple(actions.min(axis=0).tolist()),
            action_high=tuple(actions.max(axis=0).tolist()),
        )

    @property
    def is_discrete(self) -> bool:
        return self.num_actions > 0

    @property
    def num_features(self) -> int:
        """Numbers of an observation."""
        return len(self.means)

    @property
    def action_width(self) -> int:
        """Numbers that a model reads of an action: one for each action, or those of the vector."""
        return self.num_actions or len(self.action_means)

    @property
    def step_width(self) -> int:
        """Numbers that are stored of a step."""
        return self.num_features + (1 if self.is_discrete else self.action_width) + 1

    def standardize(self, observations: NDArray) -> Float[np.ndarray, "steps features"]:
        """Standardized observations."""
        return ((observations - np.array(self.means)) / np.array(self.stds)).astype(np.float32)

    def read(self, text: str, *, is_history: bool = False) -> Episode:
        """An episode with the shapes of the training episodes."""
        episode = read_episode(text, is_history=is_history)
        width = 1 if self.is_discrete else self.action_width
        has_actions = len(episode.actions) > 0
        require_alike(
            episode,
            self.num_features,
            width if has_actions else action_width_of(episode),
            self.is_discrete if has_actions else episode.is_discrete,
        )
        if has_actions and self.is_discrete and episode.actions.max() >= self.num_actions:
            raise DataError(
                f"the action {episode.actions.max()}, and those of training are 0 to {self.num_actions - 1}: "
                "task.num_actions has their number"
            )
        return episode

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return [self._encode(self.read(value)) for value in values]

    def _encode(self, episode: Episode) -> list[int]:
        actions = episode.actions.reshape(len(episode.actions), -1)
        steps = np.concatenate([episode.observations, actions, episode.rewards[:, None]], axis=1)
        return steps.astype(np.float32).reshape(-1).view(np.uint16).tolist()

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [self._decode(np.array(some, np.uint16)).to_json() for some in ids]

    def _decode(self, ids: NDArray[np.uint16]) -> Episode:
        steps = self._matrix(ids).astype(np.float64)
        actions = steps[:, self.num_features : -1]
        actions = np.rint(actions[:, 0]).astype(np.int64) if self.is_discrete else actions
        return Episode(steps[:, : self.num_features], actions, steps[:, -1])

    def _matrix(self, ids: NDArray[np.uint16]) -> NDArray[np.float32]:
        return np.ascontiguousarray(ids).view(np.float32).reshape(-1, self.step_width)

    def steps_of(self, ids: NDArray[np.uint16], offsets: NDArray[np.int64]) -> EncodedSteps:
        """The steps of a column of a store: all ids, and the offsets at which each episode begins and ends."""
        matrix = self._matrix(ids)
        lengths = np.diff(offsets) // (2 * self.step_width)
        rewards = matrix[:, -1].astype(np.float64)
        ends = np.cumsum(lengths)
        totals = np.concatenate([[0.0], np.cumsum(rewards)])
        returns = np.repeat(totals[ends], lengths) - totals[:-1]
        actions = matrix[:, self.num_features : -1]
        return EncodedSteps(
            observations=self.standardize(matrix[:, : self.num_features]),
            actions=np.rint(actions[:, 0]).astype(np.int64) if self.is_discrete else self._scaled(actions),
            returns=(returns / self.return_scale).astype(np.float32),
            lengths=lengths,
        )

    def read_steps(self, texts: Sequence[str]) -> EncodedSteps:
        """The steps of episodes as text."""
        ids = [np.array(some, np.uint16) for some in self.encode(texts)]
        offsets = np.concatenate([[0], np.cumsum([len(some) for some in ids])])
        return self.steps_of(np.concatenate(ids), offsets)

    def action_inputs(self, actions: NDArray) -> Float[np.ndarray, "steps width"]:
        """Actions as a model reads them: one-hot, or the standardized vectors."""
        if self.is_discrete:
            return np.eye(self.num_actions, dtype=np.float32)[actions]
        return actions.astype(np.float32)

    def _scaled(self, actions: NDArray) -> NDArray[np.float32]:
        return ((actions - np.array(self.action_means)) / np.array(self.action_stds)).astype(np.float32)

    def action_scaled(self, actions: NDArray) -> NDArray:
        """Actions of an environment in the units of the model: integers, or standardized numbers."""
        return actions if self.is_discrete else self._scaled(actions)

    def restore_actions(self, outputs: NDArray) -> NDArray[np.float64]:
        """Vectors of numbers in the units of the data, within the range of the training episodes."""
        found = outputs.astype(np.float64) * np.array(self.action_stds) + np.array(self.action_means)
        return np.clip(found, self.action_low, self.action_high)

    def describe(self) -> str:
        """What the episodes are, for messages."""
        actions = f"{self.num_actions} actions" if self.is_discrete else f"actions of {self.action_width} numbers"
        return (
            f"{format_count(self.num_episodes, 'training episode')} of {format_count(self.num_steps, 'step')}: "
            f"observations of {self.num_features} numbers, {actions}, returns of {self.mean_return:.4g} on average and "
            f"{self.best_return:.4g} at most"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found: dict[str, Any] = load_json(text)
        actions = ("action_means", "action_stds", "action_low", "action_high")
        return checked_codec(cls, found, (("means", "stds"), actions))


def _returns_to_go(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    return rewards[::-1].cumsum()[::-1]


def _stds(values: NDArray[np.float64]) -> tuple[float, ...]:
    stds = values.std(axis=0)
    return tuple(np.where(stds > _SMALLEST_STD, stds, 1.0).tolist())
