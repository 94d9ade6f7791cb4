"""Rollouts: a policy acts in an environment of gymnasium (the extra `regard[control]`), and its returns are reported.

Several episodes are stepped together: a policy chooses the actions of all that are running at once.

Dimensions: `running` episodes, `features` of an observation.
"""

import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from regard.data.formats.episodes import Episode
from regard.data.formats.messages import format_count
from regard.errors import ConfigError, DataError, RegardError
from regard.evaluation.intervals import CONFIDENCE, mean_interval
from regard.files import check_suffix, require_writable, write_atomically
from regard.logging import log_warning, progress_bar
from regard.settings import nearest
from regard.tasks.capabilities import Policy, PolicyProvider, capability
from regard.training.interruption import Interruption, listen
from regard.training.precision import threads

if TYPE_CHECKING:
    from regard.runs.run import Run

_MOST_TOGETHER = 128
"""Episodes that are stepped together."""
_FRAME_WIDTH, _MOST_FRAMES, _GIF_FPS, _COLORS = 300, 400, 25, 64
"""An animation's width in pixels, largest number of frames, frames per second, and colors of each frame."""
_EXTRA = "pip install 'regard[control]'"


class EnvironmentMissingError(RegardError, ImportError):
    """An environment, or the package that it needs, is not installed."""


@dataclass(frozen=True)
class Rollout:
    """The returns of some episodes."""

    env: str
    policy: str
    """What acted: the path of a run, or `random`."""
    returns: list[float]
    lengths: list[int]
    """Steps of each episode."""
    target_return: float | None
    """The return that the policy was to reach; None where it reads none."""
    num_wanted: int
    """Episodes that were asked for; more than there are returns where the rollout was interrupted."""
    episodes: list[Episode] = field(repr=False)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean return over all episodes of the environment, by Student's t."""
        if len(self.returns) < 2:
            return None
        return mean_interval(self.returns, confidence=CONFIDENCE)[1:]

    @property
    def is_complete(self) -> bool:
        return len(self.returns) == self.num_wanted

    def to_json(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "policy": self.policy,
            "episodes": len(self.returns),
            "mean_return": self.mean_return if self.returns else None,
            "interval": None if self.interval is None else list(self.interval),
            "target_return": self.target_return,
            "is_complete": self.is_complete,
            "returns": self.returns,
            "lengths": self.lengths,
        }

    def __str__(self) -> str:
        """`mean return 487.3 [480.1, 494.5] over 100 episodes of CartPole-v1 (lowest 391, highest 500)`."""
        count = format_count(len(self.returns), "episode")
        if not self.returns:
            return f"no complete episode of {self.env}"
        spread = "" if self.interval is None else " [{:.1f}, {:.1f}]".format(*self.interval)
        ends = f"lowest {min(self.returns):g}, highest {max(self.returns):g}"
        return f"mean return {self.mean_return:.1f}{spread} over {count} of {self.env} ({ends})"


def rollout(
    run: "Run | str | os.PathLike[str] | None" = None,
    *,
    env: str,
    episodes: int = 100,
    target_return: float | None = None,
    temperature: float = 0.0,
    epsilon: float = 0.0,
    seed: int = 0,
    record: str | os.PathLike[str] | None = None,
    gif: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> Rollout:
    """Let a run, or random actions, act in an environment of gymnasium.

    Args:
        run: A run for control or its folder; unset, all actions are random.
        env: The name of an environment, such as CartPole-v1.
        episodes: The number of episodes.
        target_return: The return that the run is to reach; unset, the best one of its training episodes.
        temperature: 0 for the most probable action; 1 to draw actions from the distribution of the model.
        epsilon: The probability with which an action is random.
        seed: Of the environments and of random actions.
        record: A file of JSON lines to write the episodes to, from which a model can be trained.
        gif: A file to write an animation of the first episode to.
        device: Where a run that is named by its folder is loaded.
    """
    from regard.runs.run import load

    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if not 0.0 <= epsilon <= 1.0:
        raise ConfigError(f"epsilon must be from 0 to 1, got {epsilon}")
    if not (0.0 <= temperature < math.inf):
        raise ConfigError(f"temperature must be at least 0 and finite, got {temperature}")
    if run is None and (target_return is not None or temperature):
        name = "target_return" if target_return is not None else "temperature"
        raise ConfigError(f"{name} is for the actions of a run, and without one all are random")
    if target_return is not None and not math.isfinite(target_return):
        raise ConfigError(f"target_return must be finite, got {target_return}")
    targets = [
        check_suffix(path, suffixes)
        for path, suffixes in ((record, (".json", ".jsonl")), (gif, (".gif", ".GIF")))
        if path is not None
    ]
    for path in targets:
        require_writable(path.parent)
    environments = Environments(env, min(episodes, _MOST_TOGETHER), seed=seed, has_frames=gif is not None)
    try:
        loaded = load(run, device=device) if isinstance(run, str | os.PathLike) else run
        policy = None
        if loaded is not None:
            # In the precision of its weights: half of it would round observations.
            policy = capability(loaded.task, PolicyProvider).policy(
                loaded.model, target_return=target_return, temperature=temperature, seed=seed
            )
            policy.check_spaces(
                num_features=environments.num_features,
                num_actions=environments.num_actions,
                action_width=environments.action_width,
            )
        with listen() as interruption, threads(1):  # a step is too little work to be shared by threads
            found = _run_all(environments, policy, episodes, 1.0 if policy is None else epsilon, interruption)
    finally:
        environments.close()
    result = Rollout(
        env=env,
        policy="random" if loaded is None else str(loaded.path),
        returns=[float(each.rewards.sum()) for each in found],
        lengths=[len(each.rewards) for each in found],
        target_return=None if policy is None else policy.target_return,
        num_wanted=episodes,
        episodes=found,
    )
    if not result.is_complete:
        log_warning(f"interrupted: {len(found):,} of {episodes:,} episodes are complete")
    if record is not None and found:
        write_atomically(Path(record), "".join(f"{each.to_json()}\n" for each in found).encode())
    if gif is not None and environments.film is not None and environments.film.frames:
        write_atomically(Path(gif), environments.film.to_gif())
    return result


def _run_all(
    environments: "Environments",
    policy: Policy | None,
    num_episodes: int,
    epsilon: float,
    interruption: Interruption,
) -> list[Episode]:
    """Episodes in waves of as many as there are environments, in the order of their seeds."""
    found: dict[int, Episode] = {}

    def complete() -> Iterator[int]:
        for first in range(0, num_episodes, len(environments)):
            wave = _run_wave(environments, policy, first, min(first + len(environments), num_episodes), epsilon)
            for done in wave:
                for number, episode in done:
                    found[number] = episode
                    yield number
                if interruption:
                    return

    for _ in progress_bar(complete(), f"{environments.name}", total=num_episodes):
        pass
    return [found[number] for number in sorted(found)]


def _run_wave(
    environments: "Environments", policy: Policy | None, first: int, last: int, epsilon: float
) -> Iterator[list[tuple[int, Episode]]]:
    """Step the episodes from `first` to `last` together; after each step, those that ended."""
    running = np.arange(last - first)
    current = np.stack([environments.reset(number, first + number) for number in range(len(running))])
    observations: list[list[NDArray]] = [[] for _ in running]
    actions: list[list[Any]] = [[] for _ in running]
    rewards: list[list[float]] = [[] for _ in running]
    if policy is not None:
        policy.reset(len(running))
    while len(running):
        chosen = environments.choose(running, None if policy is None else policy.act(running, current), epsilon)
        stepped = [environments.step(int(number), action) for number, action in zip(running, chosen, strict=True)]
        for place, number in enumerate(running):
            observations[number].append(current[place])
            actions[number].append(chosen[place])
            rewards[number].append(stepped[place][1])
        if policy is not None:
            policy.observe(running, np.stack(chosen), np.array([reward for _, reward, _, _ in stepped]))
        ended = [place for place, (_, _, terminated, truncated) in enumerate(stepped) if terminated or truncated]
        yield [
            (
                first + int(running[place]),
                Episode(
                    np.stack(observations[running[place]]),
                    np.stack(actions[running[place]]),
                    np.array(rewards[running[place]]),
                    stepped[place][2],
                ),
            )
            for place in ended
        ]
        kept = np.setdiff1d(np.arange(len(running)), ended)
        running, current = running[kept], np.stack([each for each, *_ in stepped])[kept]


class Environments:
    """Several copies of an environment, and what is known of its observations and actions.

    Raises:
        EnvironmentMissingError: If the environment is unknown, or a package that it needs is not installed.
        DataError: If its observations or actions are neither vectors nor a number of choices.
    """

    def __init__(self, name: str, count: int, *, seed: int = 0, has_frames: bool = False) -> None:
        self.name, self._seed, self._is_filmed = name, seed, False
        if has_frames:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures need no screen
        first = make_environment(name, render_mode="rgb_array" if has_frames else None)
        self._all = [first, *(make_environment(name) for _ in range(count - 1))]
        fps = first.metadata.get("render_fps") or _GIF_FPS
        self.film = Film(first, fps) if has_frames else None
        space = first.observation_space
        shape = space.shape
        if shape is None or len(shape) != 1 or np.dtype(space.dtype).kind not in "fiu":
            self.close()
            raise DataError(f"observations of an environment must be vectors of numbers, those of {name} are {space}")
        self.num_features = int(shape[0])
        actions = first.action_space
        self.num_actions = int(actions.n) if hasattr(actions, "n") and not actions.shape else None
        self._start = int(actions.start) if self.num_actions is not None else 0
        self.action_width = 0 if self.num_actions is not None or actions.shape is None else math.prod(actions.shape)
        if self.num_actions is None and (actions.shape is None or len(actions.shape) != 1):
            self.close()
            raise DataError(
                f"actions of an environment must be choices or vectors of numbers, those of {name} are {actions}"
            )
        self._rng = np.random.default_rng([seed, 1])
        for number, each in enumerate(self._all):
            each.action_space.seed(seed + number)

    def __len__(self) -> int:
        return len(self._all)

    def reset(self, number: int, episode: int) -> Float[np.ndarray, " features"]:
        """Begin an episode in environment `number`, with a seed of its own; its first observation."""
        found, _ = self._all[number].reset(seed=self._seed * 1_000_003 + episode)
        self._is_filmed = number == episode == 0 or (self._is_filmed and number > 0)
        self._take_frame(number)
        return np.asarray(found, np.float64)

    def step(self, number: int, action: Any) -> tuple[Float[np.ndarray, " features"], float, bool, bool]:
        """The next observation, the reward, and whether the episode terminated or was truncated."""
        found, reward, terminated, truncated, _ = self._all[number].step(action + self._start)
        self._take_frame(number)
        return np.asarray(found, np.float64), float(reward), bool(terminated), bool(truncated)

    def choose(self, running: Int[np.ndarray, " running"], chosen: NDArray | None, epsilon: float) -> list[Any]:
        """The actions of the running episodes, each of which is random with probability `epsilon`."""
        is_random = self._rng.random(len(running)) < epsilon
        return [
            self._sample(number) if chosen is None or is_random[place] else self._within(chosen[place])
            for place, number in enumerate(running)
        ]

    def _sample(self, number: int) -> Any:
        action = self._all[number].action_space.sample()
        return int(action) - self._start if self.num_actions is not None else np.asarray(action)

    def _within(self, action: Any) -> Any:
        """An action of a policy as the environment takes it: vectors of numbers are cut to their range."""
        if self.num_actions is not None:
            return int(action)
        space = self._all[0].action_space
        return np.clip(action, space.low, space.high).astype(space.dtype)

    def _take_frame(self, number: int) -> None:
        if self.film is not None and number == 0 and self._is_filmed:
            self.film.take()

    def close(self) -> None:
        for each in self._all:
            each.close()


class Film:
    """Pictures of an environment that renders them, in its own speed."""

    def __init__(self, environment: Any, fps: float) -> None:
        self._environment, self._fps = environment, fps
        self._every = max(1, round(fps / _GIF_FPS))
        self._num_steps = 0
        self.frames: list[Any] = []

    def take(self) -> None:
        """Add the current picture, unless there are enough of them in a second, or altogether."""
        from PIL import Image

        self._num_steps += 1
        if self._num_steps % self._every == 0 and len(self.frames) < _MOST_FRAMES:
            picture = Image.fromarray(self._environment.render())
            height = round(picture.height * _FRAME_WIDTH / picture.width)
            self.frames.append(picture.resize((_FRAME_WIDTH, height)))

    def to_gif(self) -> bytes:
        """The animation, with one palette for all frames, so that colors do not flicker."""
        palette = self.frames[0].quantize(_COLORS)
        first, *more = [frame.quantize(palette=palette) for frame in self.frames]
        file = io.BytesIO()
        duration = round(1000 * self._every / self._fps)
        first.save(file, format="GIF", save_all=True, append_images=more, duration=duration, loop=0)
        return file.getvalue()


def make_environment(name: str, render_mode: str | None = None) -> Any:
    """An environment of gymnasium by its name."""
    try:
        import gymnasium
    except ImportError:
        raise EnvironmentMissingError(f"rollouts need the package gymnasium: {_EXTRA}") from None
    try:
        return gymnasium.make(name, render_mode=render_mode, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvironmentMissingError(f"{name} needs another package: {error} (classic control: {_EXTRA})") from None
    except (gymnasium.error.Error, ModuleNotFoundError):
        raise EnvironmentMissingError(
            f"there is no environment {name!r}{nearest(name, sorted(gymnasium.registry))}"
        ) from None
