"""Control: the next action, given the return to reach and what was observed and done before.

Chen et al., "Decision Transformer: Reinforcement Learning via Sequence Modeling" (2021).
https://arxiv.org/abs/2106.01345. A held-out row is an episode as JSON. A step of an episode is to it what a token is to
a text: batch sizes and speed are counted in steps, and scores are over all steps, with intervals over episodes.

A window begins at any step of an episode and has at most `task.window` steps; the action of each of them is predicted
from those before it. A step is read as one vector: the action before it (zeros at the beginning of an episode), the
return-to-go and the observation.

Dimensions: `steps` of all episodes, `batch` windows, `time` steps of each, `numbers` of a step, `running` episodes,
`features` of an observation.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.sequences import LinearPolicy, fit_actions
from regard.data.batches import TensorBatch
from regard.data.codecs.codec import Codec
from regard.data.codecs.episodes import EncodedSteps, EpisodeCodec
from regard.data.formats.episodes import EPISODE_FIELDS, EPISODE_ROLE, episodes_in_memory, open_episodes
from regard.data.formats.files import content_hash
from regard.data.formats.tables import rows_hash
from regard.data.permutation import mix, permute
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, require_files, with_held_out
from regard.data.stores.rows import TokenStore
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.models.trajectories import TrajectoryShape
from regard.tasks.capabilities import ExportGraph
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Prediction, ServerSchema
from regard.tasks.control.model import ActionModel, ExportedPolicy
from regard.tasks.control.policy import TrajectoryPolicy
from regard.tasks.detection import DetectionSummary
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, Task, TaskSettings, to_device

_BATCH_WINDOWS = 64
"""Windows of a batch, as in Chen et al. (2021)."""
_DIGITS = 6
"""Significant digits of an action as text."""
_NO_EFFECT = ("group", "stratify", "order", "columns", "header")
_TRAIN_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "label_smoothing": 0.0,
    "schedule": "cosine",
    "warmup_steps": 100,
    "beta2": 0.99,
    "weight_decay": 0.01,
    "ema_decay": 0.99,
}
_EVALUATION_STEPS = 1 << 15
"""Steps that are read at once when no gradient is needed."""


class ControlSettings(TaskSettings):
    """Settings of control."""

    name: str = "control"
    window: int = Field(default=20, ge=1)
    """Steps that an action is chosen from, the current one included."""
    use_returns: bool = True
    """Whether the model reads the return that is still to be reached; without it, it is behavior cloning."""
    target_return: float | None = None
    """The return that a rollout tries to reach. Unset: the best one of the training episodes."""
    num_actions: int | None = Field(default=None, ge=1)
    """The number of actions, where not all of them occur in the training episodes."""


class Control(Task[ControlSettings]):
    """Episodes of an agent, by a causal encoder of trajectories."""

    name = "control"
    description = "control"
    other_names = ("rl", "offline-rl", "reinforcement-learning", "decision-transformer", "behavior-cloning")
    Settings = ControlSettings
    roles = (EPISODE_ROLE,)
    codec_types: Mapping[str, type[Codec]] = {EPISODE_ROLE: EpisodeCodec}
    store_columns = (EPISODE_ROLE,)
    metrics = ("action_accuracy", "episode_accuracy", "action_mse", "action_loss")
    input_kind = "trajectories"
    next_command = "rollout {run} --env NAME"
    output_description = "the mean return of the policy in an environment"
    default_preset = "decision-transformer"
    has_targets = False
    unit = "episode"
    token_unit = "steps"
    attention_kind = None
    objectives = frozenset({"label_smoothing"})

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.suffix == ".npz" or all(summary.has_column(name) for name in EPISODE_FIELDS):
            return Detection("episodes with observations, actions and rewards", confidence=0.95)
        return None

    @property
    def codec(self) -> EpisodeCodec:
        codec = self.codecs.get(EPISODE_ROLE)
        return codec if isinstance(codec, EpisodeCodec) else EpisodeCodec()

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        defaults = DataConfig()
        for name in _NO_EFFECT:
            if (value := getattr(config, name)) != getattr(defaults, name):
                raise ConfigError(f"data.{name} has no effect on episodes, got {value!r}")
        if rows is not None:
            records = [dict(zip(rows.names, row, strict=True)) for row in rows] if isinstance(rows, NamedRows) else None
            # Rows of a run folder are lists with the JSON of an episode.
            records = [row if isinstance(row, str) else row[0] for row in rows] if records is None else records
            table = episodes_in_memory(records, skip_bad=config.skip_bad)
            hash_of_train = rows_hash([[json.dumps(record, default=str)] for record in records])
        else:
            require_files(config, "a file of episodes")
            table = open_episodes(config.train, skip_bad=config.skip_bad, encoding=config.encoding)
            hash_of_train = ""
        return with_held_out(
            config,
            table,
            lambda paths: open_episodes(paths, skip_bad=config.skip_bad, encoding=config.encoding),
            lambda: hash_of_train or content_hash(table.paths),
        )

    def cache_key(self) -> Mapping[str, Any]:
        return {"task": self.name, "num_actions": self.settings.num_actions}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {EPISODE_ROLE: EpisodeCodec.fit((row[0] for row in data.rows()), num_actions=self.settings.num_actions)}

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [self.codec.encode([row[0] for row in rows])]

    def notes(self) -> list[str]:
        return [self.codec.describe()]

    def facts(self) -> dict[str, str]:
        codec = self.codec
        return {
            "episodes": f"{codec.num_episodes:,}, returns of {codec.mean_return:.4g} on average",
            "target return": f"{self.target_return:.4g}" if self.settings.use_returns else "none: behavior cloning",
        }

    @property
    def target_return(self) -> float:
        """The return that a rollout tries to reach where none is named."""
        given = self.settings.target_return
        return self.codec.best_return if given is None else given

    # Settings

    def defaults(self, context: DefaultsContext) -> Defaults:
        codec = context.data.codecs[EPISODE_ROLE]
        assert isinstance(codec, EpisodeCodec)
        reasons = {}
        if self.settings.use_returns:
            reasons["task.target_return"] = (
                f"{codec.best_return:.4g}: the best of the training episodes, since no return above it was seen"
            )
        return Defaults(
            train={**_TRAIN_DEFAULTS, "batch_tokens": _BATCH_WINDOWS * self.settings.window},
            head={"dropout": 0.0},
            reasons=reasons,
        )

    def num_positions(self, data: Prepared) -> int:
        return 0  # positions are those within a window

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> ActionModel:
        if head.hidden_layer or head.pooling != "mean":
            raise ConfigError("head.hidden_layer and head.pooling have no effect on actions, which are one for a step")
        codec = self.codec
        shape = TrajectoryShape(
            codec.action_width,
            codec.num_features,
            has_returns=self.settings.use_returns,
            num_steps=self.settings.window,
        )
        return ActionModel(model, shape, head, is_discrete=codec.is_discrete)

    def _stored(self, data: Prepared, store: Any) -> "EpisodeSteps":
        """The steps of a store, by the codec of the data: batches are also counted before the task has codecs."""
        codec = data.codecs[EPISODE_ROLE]
        assert isinstance(codec, EpisodeCodec)
        assert isinstance(store, TokenStore)
        return self._steps(codec, codec.steps_of(*store.column(0)))

    def _steps(self, codec: EpisodeCodec, steps: EncodedSteps) -> "EpisodeSteps":
        return EpisodeSteps(codec, steps, has_returns=self.settings.use_returns)

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> "ControlBatches":
        return ControlBatches(
            self._stored(data, data.train), window=self.settings.window, batch_tokens=batch_tokens, seed=seed,
            has_fixed_shapes=has_fixed_shapes,
        )  # fmt: skip

    def validation_batches(self, data: Prepared) -> "Iterator[ControlBatch]":
        return episode_batches(self._stored(data, data.valid), window=self.settings.window)

    def row_batches(self, rows: Sequence[Sequence[str]]) -> "Iterator[ControlBatch]":
        steps = self.codec.read_steps([row[0] for row in rows])
        return episode_batches(self._steps(self.codec, steps), window=self.settings.window)

    def loss(self, model: Any, batch: "ControlBatch", objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The negative log-likelihood of the actions, summed over the steps."""
        outputs = model(batch.steps)
        losses = model.losses(outputs, batch.actions)
        if objective.label_smoothing:
            uniform = -outputs.log_softmax(dim=-1).mean(dim=-1)
            losses = torch.lerp(losses, uniform, objective.label_smoothing)
        return (losses * batch.known).sum()

    def objective_terms(self) -> frozenset[str]:
        return self.objectives if self.codec.is_discrete else frozenset()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: "Iterator[ControlBatch]", device: torch.device) -> "ActionLikelihoods":
        """The losses and errors of each episode."""
        sums: dict[int, NDArray[np.float64]] = {}
        shift = float(np.log(self.codec.action_stds).sum()) if not self.codec.is_discrete else 0.0
        for batch in batches:
            batch = to_device(batch, device)
            outputs = model(batch.steps)
            losses = model.losses(outputs, batch.actions) + shift
            parts = [losses, batch.known.float(), self._errors(outputs, batch.actions)]
            found = torch.stack([(part * batch.known).double().sum(dim=1) for part in parts], dim=1).cpu().numpy()
            for episode, each in zip(batch.episodes, found, strict=True):
                sums[episode] = sums.get(episode, 0.0) + each
        table = np.stack([sums[episode] for episode in sorted(sums)])
        return ActionLikelihoods(
            table[:, 0].tolist(), table[:, 1].astype(np.int64).tolist(), errors=tuple(table[:, 2].tolist())
        )

    def _errors(self, outputs: Tensor, actions: Tensor) -> Float[Tensor, "batch time"]:
        """Returns whether each discrete action is wrong, or the squared error of continuous ones, in data units."""
        if self.codec.is_discrete:
            return (outputs.argmax(dim=-1) != actions).float()
        stds = torch.tensor(self.codec.action_stds, device=outputs.device, dtype=outputs.dtype)
        return ((outputs - actions) * stds).square().mean(dim=-1)

    # Use

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return self.metric_names()[0]

    def metric_names(self) -> tuple[str, ...]:
        names = ("action_accuracy", "episode_accuracy") if self.codec.is_discrete else ("action_mse",)
        return (*names, "action_loss")

    def examples(self, data: EvaluationData) -> Examples:
        assert isinstance(data.likelihoods, ActionLikelihoods)
        found = data.likelihoods
        return self._examples(found.losses, found.counts, found.errors)

    def _examples(self, losses: Sequence[float] | None, counts: Sequence[int], errors: Sequence[float]) -> Examples:
        is_discrete = self.codec.is_discrete
        return Examples(
            losses=losses,
            num_tokens=counts,
            num_correct=[round(count - error) for count, error in zip(counts, errors, strict=True)]
            if is_discrete
            else None,
            extras={} if is_discrete else {"squared_errors": list(errors)},
        )

    def step_numbers(
        self,
        before: Float[np.ndarray, "running width"],
        to_go: Float[np.ndarray, " running"],
        observations: Float[np.ndarray, "running features"],
    ) -> Float[np.ndarray, "running numbers"]:
        """What a model reads of a step: the action before it, the return-to-go and the observation."""
        codec = self.codec
        returns = [(to_go / codec.return_scale)[:, None]] if self.settings.use_returns else []
        return np.concatenate([before, *returns, codec.standardize(observations)], axis=1).astype(np.float32)

    def policy(
        self, model: Any, *, target_return: float | None = None, temperature: float = 0.0, seed: int = 0
    ) -> TrajectoryPolicy:
        if target_return is not None and not self.settings.use_returns:
            raise ConfigError(f"behavior cloning reads no return (task.use_returns), got a target of {target_return:g}")
        goal = self.target_return if target_return is None else target_return
        return TrajectoryPolicy(self, model, goal, temperature=temperature, seed=seed)

    def predictor(self, model: Any, config: Any) -> "ActionPredictor":
        return ActionPredictor(self, model)

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        return []

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        codec = self.codec
        observation = [0.0] * codec.num_features
        action: Any = 0 if codec.is_discrete else [0.0] * codec.action_width
        example = {"observations": [observation] * 2, "actions": [action], "rewards": [1.0]}
        return ServerSchema(
            ("history",),
            placeholder=json.dumps(example),
            labels=tuple(map(str, range(codec.num_actions))),
            output="label" if codec.is_discrete else "text",
        )

    def export_graph(self, model: Any, rows: Sequence[Sequence[str]]) -> ExportGraph:
        """One step of the policy, given the last steps of an episode, at most `task.window`."""
        codec, window = self.codec, self.settings.window
        longest = max(rows, key=lambda row: len(row[0]))
        shapes = ((2, min(3, window)), (1, 1), (2, window))
        examples = [self._export_example(model, longest[0], *shape) for shape in shapes]
        # A size of 1 cannot be traced as one that varies.
        is_fixed = examples[0][0]["observations"].size(1) == 1
        axes = {name: {0: "batch"} if is_fixed else {0: "batch", 1: "time"} for name in examples[0][0]}
        return ExportGraph(
            module=ExportedPolicy(model, codec),
            axes=axes,
            outputs=("probabilities" if codec.is_discrete else "action",),
            examples=examples[:2] if is_fixed else examples,
            limits={"time": window},
            config={"window": window, "target_return": self.target_return if self.settings.use_returns else None},
        )

    def _export_example(
        self, model: Any, text: str, count: int, length: int
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """The first steps of an episode with several returns to reach, and the action that the run predicts."""
        codec, record = self.codec, json.loads(text)
        length = min(length, len(record["observations"]))
        before: Any = [-1, *record["actions"]] if codec.is_discrete else [
            [math.nan] * codec.action_width, *record["actions"]]  # fmt: skip
        goals = [self.target_return + place for place in range(count)]
        rewards = np.cumsum([0.0, *record["rewards"]])[:length]
        inputs = {
            "observations": torch.tensor([record["observations"][:length]] * count, dtype=torch.float32),
            "previous_actions": torch.tensor(
                [before[:length]] * count, dtype=torch.int64 if codec.is_discrete else torch.float32
            ),
        }
        if self.settings.use_returns:
            inputs["returns_to_go"] = torch.tensor(np.array([goal - rewards for goal in goals]), dtype=torch.float32)
        histories = [
            json.dumps({"observations": record["observations"][:length], "actions": record["actions"][: length - 1],
                        "rewards": record["rewards"][: length - 1], "return": goal})
            for goal in goals
        ]  # fmt: skip
        found = ActionPredictor(self, model)(histories)
        values = [list((each.probabilities or {}).values()) or json.loads(each.output) for each in found]
        return inputs, (torch.tensor(values),)

    # The baseline

    def baseline(self, data: Prepared) -> Baseline:
        """A linear policy of the current observation."""
        return fit_actions(self._stored(data, data.train).found, num_actions=self.codec.num_actions)

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        steps = self.codec.read_steps([row[0] for row in rows])
        assert isinstance(baseline, LinearPolicy)
        outputs = torch.from_numpy(baseline.act(steps.observations))
        errors = self._errors(outputs, torch.from_numpy(steps.actions)).double().numpy()
        sums = np.add.reduceat(errors, steps.ends - steps.lengths)
        return self._examples(None, steps.lengths.tolist(), sums.tolist())


@dataclass(frozen=True)
class ActionLikelihoods(Likelihoods):
    """The losses of episodes, and the sums of their errors."""

    errors: tuple[float, ...] = ()


class ActionPredictor:
    """The next action of histories that are given as JSON; `return` in one is the return to reach from its start."""

    def __init__(self, task: Control, model: Any) -> None:
        self._task, self._model = task, model
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        return [self._predict(text) for text in inputs]

    def _predict(self, text: str) -> Prediction:
        task, codec = self._task, self._task.codec
        try:
            episode = codec.read(text, is_history=True)
        except DataError as error:
            raise DataError(f"the history has {error}") from None
        goal = json.loads(text).get("return", task.target_return)
        if isinstance(goal, bool) or not isinstance(goal, int | float):
            raise DataError(f"the return to reach must be a number, got {goal!r}")
        length = min(len(episode.observations), task.settings.window)
        before = np.zeros((len(episode.observations), codec.action_width), np.float32)
        before[1:] = codec.action_inputs(codec.action_scaled(episode.actions)) if len(episode.actions) else 0.0
        to_go = goal - np.concatenate([[0.0], np.cumsum(episode.rewards)])
        numbers = task.step_numbers(before, to_go, episode.observations)[-length:]
        output = self._model(torch.from_numpy(numbers)[None].to(self._device))[0, -1]
        if not codec.is_discrete:
            action = codec.restore_actions(output.float().cpu().numpy())
            return Prediction(text, json.dumps([float(f"{number:.{_DIGITS}g}") for number in action]))
        probabilities = output.softmax(dim=-1).tolist()
        best = int(np.argmax(probabilities))
        table = {str(action): probability for action, probability in enumerate(probabilities)}
        return Prediction(text, str(best), probabilities=table, probability=probabilities[best])


@dataclass(frozen=True)
class ControlBatch(TensorBatch):
    """Windows, the action of each step, and which steps are of the window rather than padding after it."""

    tensor_names = ("steps", "actions", "known")
    steps: Float[Tensor, "batch time numbers"]
    actions: Shaped[Tensor, "batch time ..."]
    known: Bool[Tensor, "batch time"]
    """True where the action counts: in evaluations, each action once, with the longest history."""
    num_targets: int
    num_tokens: int
    """The steps that are read."""
    episodes: tuple[int, ...] = ()
    """The number of the episode of each window, in evaluations."""


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
