"""The training loop, which is the same for every task.

One step: the batch that the seed and the step number determine; the loss summed
over its targets and divided by their number, also over several batches; the
gradient, clipped; the optimizer at the scheduled learning rate; the moving
average of the weights.

All randomness is derived from the seed and the step number, so that a run that
was interrupted anywhere continues as if it had not been.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.data.formats.messages import format_count
from regard.data.permutation import mix
from regard.data.prepare import Prepared
from regard.errors import CheckpointError, ConfigError, DivergedError
from regard.evaluation.registry import find_metric
from regard.logging import log_info, log_warning
from regard.selection.releases import Release, Thresholdout
from regard.tasks.capabilities import PartSolver, RolloutTask, StatefulTask, capability
from regard.tasks.task import Batch, Batches, Likelihoods, SelectionScore, Task
from regard.training.checkpoints import (
    Cut,
    Shard,
    copy_weights,
    resize_buffers,
    trained_weights,
    weights_digest,
    weights_of,
)
from regard.training.distributed import processes
from regard.training.divergence import HIGH_LINES, RATE_FACTOR, RECENT_LINES, LoadState, is_high, roll_back
from regard.training.ema import WeightAverage
from regard.training.finetuning import lr_multipliers
from regard.training.optimizers import make_optimizer, optimizer_tensors, restore_optimizer
from regard.training.precision import Hardware, ThreadChooser, num_cores, threads
from regard.training.probe import PROBE_SHARE, probe_head
from regard.training.schedules import cooldown_progress, lr_multiplier
from regard.training.settings import ResolvedSettings, num_released_rows
from regard.training.update import Updater, can_use_cuda_graphs

if TYPE_CHECKING:
    from regard.training.sharding import ShardedModel

Releaser = Callable[[str, SelectionScore, float | None], Release]
"""From a hash of the weights, their score on validation rows and that on training rows to what may be used of it."""
_LOG_EVERY = 10
_CHECKPOINT_SECONDS = 300.0
_CHECKPOINT_STEPS, _CHECKPOINT_SHARE = 500, 0.02
"""Where `train.checkpoint_every` is unset: steps between checkpoints, and the largest share of a time limit that saving
takes. The steps of a small model on a GPU take milliseconds, and a checkpoint up to a second."""
_TIMED_EVALUATIONS = 25
"""Evaluations under a time limit, unless these would take more than the share below."""
_EVALUATION_SHARE = 0.1
_SOLVING_SHARE = 0.15
"""The share of a time limit that the parts of a model which are solved may take."""
_NEAR_TIE = 2.0
"""Scores closer than this many rows' worth are equal, and the loss decides: a row or two change by chance."""


@dataclass
class Progress:
    """The progress of a run. It is part of each checkpoint."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf
    """The lowest validation loss so far."""
    best_score: float | None = None
    """The best score so far, negated where lower is better; None where weights are selected by loss."""
    best_step: int = 0
    """The step of the kept weights."""
    kept_rollbacks: int = 0
    """The value of `num_rollbacks` at that step."""
    kept_loss: float = math.inf
    kept_score: float | None = None
    num_worse: int = 0
    """Evaluations since the last one with a better score or loss."""
    evaluated_at: float = 0.0
    """The seconds after the last evaluation."""
    evaluation_seconds: float = 0.0
    """How long that took."""
    cooldown_step: int = 0
    """The step after which early stopping began to decay the learning rate; 0 before."""
    cooldown_seconds: float = 0.0
    """The seconds at that step."""
    cooldown_rate: float = 0.0
    """The multiplier of the learning rate at that step."""
    cooldown_patience: int = 0
    """The number of evaluations without improvement that began it."""
    tokens: int = 0
    seconds_at_line: float = 0.0
    """When the last line of figures was written."""
    window: list[tuple[Tensor, int, int]] = field(default_factory=list)
    """The summed loss, and the number of targets and of tokens, of each step since then."""
    last_good: int = 0
    """The step of the checkpoint that training returns to if it diverges."""
    num_rollbacks: int = 0
    """How often it has."""
    num_skipped: int = 0
    """The batches that were seen before it did, and are not repeated."""
    first_loss: float | None = None
    """That of the first line of figures."""
    recent_losses: list[float] = field(default_factory=list)
    """Those of the last lines of figures, without those that are far above the others."""
    num_high: int = 0
    """Lines in a row whose loss is."""

    def add_release(self, rank: float | None) -> bool:
        """Record an evaluation of which a mechanism releases `rank`; returns whether the weights are the ones to keep.

        They are if their rank is the highest of the run. Weights without a rank are kept, the newest ones, until there
        are some with one.
        """
        is_best = self.kept_score is None or (rank is not None and rank > self.kept_score)
        self.num_worse = 0 if is_best and rank is not None else self.num_worse + 1
        if is_best:
            self.best_step, self.kept_rollbacks, self.kept_score = self.step, self.num_rollbacks, rank
            self.best_score = rank
        return is_best

    def add_evaluation(self, loss: float, score: SelectionScore | None = None) -> bool:
        """Record an evaluation of the current weights; returns whether they are the ones to keep.

        They are if their score is better than that of the kept weights by more than a
        near tie; or if it is no worse than the best score by more than that, and their
        loss is lower than that of the kept weights. Without a score, the lowest loss decides.
        """
        quality = None if score is None or not math.isfinite(score.value) else score.quality
        is_best = loss < self.kept_loss
        if score is not None and quality is not None and self.kept_score is not None and self.best_score is not None:
            near = _NEAR_TIE / score.num_rows
            is_higher = quality - self.kept_score > near * abs(self.kept_score)
            is_near = self.best_score - quality <= near * abs(self.best_score)
            is_best = is_higher or (is_near and is_best)
        self.num_worse = 0 if is_best or loss < self.best_loss else self.num_worse + 1
        self.best_loss = min(self.best_loss, loss)
        if quality is not None:
            self.best_score = quality if self.best_score is None else max(self.best_score, quality)
        if is_best:
            self.best_step, self.kept_rollbacks = self.step, self.num_rollbacks
            self.kept_loss, self.kept_score = loss, quality
        return is_best


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    progress: Progress
    reason: str
    is_finished: bool


class Trainer:
    """Trains a model on prepared data.

    Example:
        trainer = Trainer(model, task, data, settings, hardware)
        outcome = trainer.fit(print)
    """

    def __init__(
        self, model: nn.Module, task: Task[Any], data: Prepared, settings: ResolvedSettings, hardware: Hardware
    ) -> None:
        self.model, self.task, self.data, self.hardware = model, task, data, hardware
        self.settings, self.config = settings, settings.train
        config = self.config
        self.processes = processes()
        self._require_sums()
        self.batches = self._batches()
        self.sharded = self._shard()
        self.optimizer = make_optimizer(
            config.optimizer,
            model,
            betas=(config.beta1, config.beta2),
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            lr_multipliers=lr_multipliers(model, settings.finetune),
        )
        if self.sharded is not None:
            self.sharded.adapt(self.optimizer)
        self.ema = WeightAverage(model, config.ema_decay)
        self.updater = Updater(
            model, task, self.optimizer, self.ema, settings, hardware, is_compiled=config.compile == "always",
            sharded=self.sharded,
        )  # fmt: skip
        self.progress = Progress()
        self._splits_validation = True
        """Whether the likelihoods of validation batches can be computed by different processes."""
        self._release: Releaser | None = None
        self._can_roll_back = False
        self._most_threads = min(torch.get_num_threads(), num_cores())
        self._ahead = BatchPrefetcher(self.batches, is_threaded=hardware.device.type == "cuda")

    def fit(
        self,
        observe: Callable[[Mapping[str, Any]], None] = lambda line: None,
        *,
        save: Callable[["Trainer"], None] = lambda trainer: None,
        save_best: Callable[["Trainer"], None] = lambda trainer: None,
        should_stop: Callable[[], bool] = lambda: False,
        release: Releaser | None = None,
        load: LoadState | None = None,
    ) -> Outcome:
        """Train until the budget is used, early stopping ends the run, or `should_stop` returns True.

        Training that diverges returns to an earlier state, if there is one, at a lower learning rate.

        Args:
            observe: Called with a dictionary of figures every few steps, and after each evaluation.
            save: Called when a checkpoint is due.
            save_best: Called when the validation score, or the loss, is the best so far.
            should_stop: Called after each step.
            release: Returns what may be used and shown of a score; needed where the settings have a mechanism.
            load: Returns a state that `save` has saved; without it, training that diverges is an error.
        """
        if (self.config.mechanism is None) != (release is None):
            raise ConfigError("a run whose settings have a mechanism needs what releases its scores, and no other does")
        self._release = release
        while True:
            self._can_roll_back = load is not None and self.progress.num_rollbacks < self.config.max_rollbacks
            try:
                return self._fit(observe, save, save_best, should_stop)
            except DivergedError as error:
                line = roll_back(self, error, load)
            observe(line)

    def _fit(
        self,
        observe: Callable[[Mapping[str, Any]], None],
        save: Callable[["Trainer"], None],
        save_best: Callable[["Trainer"], None],
        should_stop: Callable[[], bool],
    ) -> Outcome:
        """The same; a `DivergedError` if the loss or the weights are not finite, or the loss has exploded."""
        progress = self.progress
        clock = time.perf_counter() - progress.seconds
        last_save, save_seconds = progress.seconds, 0.0
        if self._needs_probe():
            is_stopped = not self._probe(clock, observe, save_best, should_stop)
            if is_stopped or self.settings.is_probe_alone:
                save(self)
            if is_stopped:
                return Outcome(progress, "interrupted", is_finished=False)
            last_save = progress.seconds
        elif self._solve() or (self._is_new() and isinstance(self.task, RolloutTask)):
            before = time.perf_counter()
            observe({**self._evaluate(save_best), "seconds": time.perf_counter() - clock})
            progress.seconds = progress.seconds_at_line = self._seconds_since(clock)
            if isinstance(self.task, RolloutTask):  # it samples answers: the time of a pass over the rows says nothing
                progress.evaluation_seconds = self._seconds_since(before)
        reason = self._reason_to_stop()
        if progress.step == 0 and reason is None and self._can_roll_back:
            save(self)
        chooser = self._thread_chooser()
        while reason is None:
            before = time.perf_counter()
            self.advance()
            progress.seconds = self._seconds_since(clock)
            if chooser is not None:
                chooser.note(progress.window[-1][2], time.perf_counter() - before)
            is_evaluation = self._is_evaluation_due()
            reason = self._reason_to_stop()
            if progress.step % _LOG_EVERY == 0 or is_evaluation or reason:
                observe(self._line(clock))
                progress.seconds = progress.seconds_at_line = self._seconds_since(clock)
            if (is_evaluation or reason) and not self._has_diverged:
                observe(self._evaluate(save_best))
                before, progress.seconds = progress.seconds, self._seconds_since(clock)
                progress.seconds_at_line = progress.evaluated_at = progress.seconds
                progress.evaluation_seconds = progress.seconds - before
                self._begin_cooldown()
                reason = reason or self._reason_to_stop()
            is_stopped = reason is None and self.processes.any(should_stop())
            is_due = self._is_checkpoint_due(progress.seconds - last_save, save_seconds) or reason or is_stopped
            if is_due and not self._has_diverged:  # of a run that diverged, the checkpoint before is kept
                before = time.perf_counter()
                is_fixed = progress.step % self._checkpoint_steps == 0 or reason is not None
                if self._has_finite_weights(is_required=is_fixed):
                    if is_fixed and not progress.num_high:
                        progress.last_good = progress.step
                    save(self)
                last_save, save_seconds = progress.seconds, self._seconds_since(before)
            if is_stopped:
                return Outcome(progress, "interrupted", is_finished=False)
        return Outcome(progress, reason, is_finished=True)

    def advance(self) -> None:
        """Take one step, without evaluations and checkpoints."""
        self.progress.step += 1
        self.progress.window.append(self._step(self.progress.step))

    def validate(self) -> Likelihoods:
        """The likelihoods of the validation data under the averaged weights."""
        with self.averaged_model() as model, self.hardware.autocast():
            return self._likelihoods(model)

    @contextmanager
    def averaged_model(self) -> Iterator[nn.Module]:
        """The model in evaluation mode with the averaged weights; of a sharded one, a whole copy."""
        if self.sharded is not None:
            with self.sharded.whole({**weights_of(self.model), **self.ema.tensors()}) as model:
                yield model
            return
        self.model.eval()
        with self.ema.applied():
            yield self.model

    def score(self) -> SelectionScore | None:
        """The headline score of the averaged weights on validation rows; None where weights are selected by loss."""
        if self.config.select_by != "score":
            return None
        return self._score(self.data.held_out["valid"])

    def require_releasable(self) -> None:
        """Raise if the score of this task cannot be released: one that is not a mean of values in [0, 1]."""
        assert self.config.release is not None, "a mechanism is set"
        name = self.config.release[0]
        found = self._score(self.data.held_out["valid"], num_rows=1)  # whose value is not used
        assert found is not None, "there are validation rows"
        metric = find_metric(found.metric)
        if not ((found.is_proportion or metric.is_bounded_mean) and metric.higher_is_better):
            raise ConfigError(
                f"train.{name} needs a score that is a mean of values in [0, 1], such as exact match or accuracy, and "
                f"{self.task.description} is scored by {metric.in_text} here"
            )
        if isinstance(self.task, RolloutTask):
            raise ConfigError(f"train.{name} is not for {self.task.description}, whose rewards are shown")
        if name == Thresholdout.name and not self.data.train_rows():
            raise ConfigError("train.thresholdout compares with scores on training rows, and there are none as text")

    def _score(self, rows: Sequence[tuple[str, ...]], *, num_rows: int | None = None) -> SelectionScore | None:
        metric = None
        if self.config.release is not None and rows:
            headline = self.task.headline(rows)
            metric = find_metric(headline).certified_by or headline
            num_rows = num_rows or num_released_rows(self.task, len(rows))
        score = partial(self.task.selection_score, rows=rows, num_rows=num_rows, metric=metric)
        if self.processes.size > 1:
            score = partial(score, spread=self.processes.map)
        if self.task.architecture == "encoder-decoder":
            # A step of generation is too little work to be shared by threads, and has a cache in the weights' dtype.
            with self.averaged_model() as model, threads(1):
                return score(model)
        with self.averaged_model() as model, self.hardware.autocast():
            return score(model)

    def training_batch(self, number: int) -> Batch:
        """Training batch `number`, with what the current model adds to it."""
        batch = self._ahead.take(number)
        if not isinstance(self.task, RolloutTask):
            return batch
        with self.hardware.autocast():
            return self.task.roll_out(self.model, batch, number, mix(self.config.seed, number))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the training state."""
        return self._whole(self._state())

    @property
    def is_saved_in_shards(self) -> bool:
        """Whether several processes keep parts of the training state, and each writes its own."""
        return self.sharded is not None and self.processes.size > 1

    def shard(self, save: str) -> tuple[dict[str, Tensor], Shard] | None:
        """What this process writes of the training state where several keep parts of it; None where rank 0 has all."""
        if self.sharded is None or not self.is_saved_in_shards:
            return None
        return self.sharded.shard(self._state(), f"{save}-{self.progress.num_rollbacks}")

    @property
    def cut(self) -> Cut | None:
        """What this process needs of the tensors of a checkpoint; None is all of them."""
        return None if self.sharded is None else self.sharded.cut

    def _state(self) -> dict[str, Tensor]:
        parts = {
            "model": trained_weights(self.model),
            "ema": self.ema.tensors(),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            "state": self._carried_state(),
            "task": self.task.state_tensors() if isinstance(self.task, RolloutTask) else {},
        }
        return {f"{part}:{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def kept_tensors(self) -> dict[str, Tensor]:
        """The averaged weights as a run keeps them: all, or those of an adapter."""
        tuned = self.settings.finetune
        own = trained_weights(self.model) if tuned and tuned.is_adapter else weights_of(self.model)
        return self._whole({**own, **self.ema.tensors()})

    def _whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a sharded model as a whole, for rank 0 to write; all processes take part."""
        if self.sharded is None:
            return tensors
        return self.sharded.gather(tensors, is_kept=self.processes.is_first)

    def progress_note(self) -> dict[str, Any]:
        """The progress as JSON."""
        window = [(float(loss), targets, tokens) for loss, targets, tokens in self.progress.window]
        return {**vars(self.progress), "window": window, "recent_losses": list(self.progress.recent_losses)}

    def restore(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Restore a state from `tensors` and `progress_note`."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}, "state": {}, "task": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(":")
            if part not in parts:
                raise CheckpointError(f"not a checkpoint of a training run: it has {name}")
            parts[part][rest] = tensor
        resize_buffers(self.model, parts["model"])
        if self.sharded is not None:
            parts = self.sharded.place_parts(parts)
        copy_weights(trained_weights(self.model), parts["model"])
        self.ema.restore(parts["ema"])
        self.updater.reset()
        restore_optimizer(self.optimizer, self.model, parts["optimizer"])
        if carried := parts["state"]:
            self.updater.carried = {0: [carried[str(n)].to(self.hardware.device) for n in range(len(carried))]}
        if isinstance(self.task, RolloutTask):
            self.task.restore_state(parts["task"], self.hardware.device)
        window = [(torch.tensor(loss), targets, tokens) for loss, targets, tokens in note["window"]]
        self.progress = Progress(**{**note, "window": window})

    def used(self, step: int | None = None, seconds: float | None = None) -> float:
        """The share of the budget that is used after `step` (unset: now), 0 to 1, by the shortest of several."""
        config, progress = self.config, self.progress
        step = progress.step if step is None else step
        seconds = progress.seconds if seconds is None else seconds
        shares = [0.0]
        if config.max_steps:
            shares.append(step / config.max_steps)
        if config.max_epochs:
            shares.append(step * config.accumulate / (config.max_epochs * self.batches.per_epoch))
        if config.minutes:
            shares.append(seconds / (60 * config.minutes))
        return min(1.0, max(shares))

    def _require_sums(self) -> None:
        """Raise where several processes cannot compute what one would: each computes the loss of some rows."""
        size, reason = self.processes.size, why_not_shared(self.task)
        if size > 1 and reason is not None:
            raise ConfigError(f"{self.task.description} is trained by one process, got {size}: {reason}")

    def _seconds_since(self, start: float) -> float:
        """The seconds since `start` by the clock of rank 0, on which all processes decide."""
        return self.processes.agree(time.perf_counter() - start)

    def _shard(self) -> "ShardedModel | None":
        """The sharded model, where the settings have one; activations that are kept are chosen, too."""
        config, tuned, group = self.config, self.settings.finetune, self.processes
        is_sharded = config.sharding == "full"
        if config.tensor_parallel != group.tensor_parallel:
            raise ConfigError(
                f"train.tensor_parallel is {config.tensor_parallel}, and the processes of this run have joined for "
                f"{group.tensor_parallel}"
            )
        is_divided = is_sharded or config.tensor_parallel > 1
        if not (config.activation_checkpointing or is_divided):
            return None
        from regard.training.sharding import ShardedModel, recompute_activations  # takes a second to import

        name = "train.sharding" if is_sharded else "train.tensor_parallel"
        if is_divided and tuned is not None and tuned.probe:
            raise ConfigError(f"finetune.probe solves the head of a whole model: with {name} it must be false")
        if is_divided and config.compile == "always":
            raise ConfigError(f"a divided model is not compiled: with {name}, train.compile must be never")
        sharded = None
        if is_divided:
            sharded = ShardedModel(self.model, self.task.loss, self.hardware, group, is_sharded=is_sharded)
        if config.activation_checkpointing:
            recompute_activations(self.model)
        return sharded

    def _likelihoods(self, model: nn.Module) -> Likelihoods:
        """Those of the validation batches, each computed by one process."""
        task, device = self.task, self.hardware.device
        batches = task.validation_batches(self.data)
        if self.processes.size == 1 or not self._splits_validation:
            return task.likelihoods(model, batches, device)
        found = list(batches)
        self._splits_validation = is_sum_over_batches(task.likelihoods(model, iter(found[:1]), device))
        if not self._splits_validation:
            return task.likelihoods(model, iter(found), device)
        return join_likelihoods(
            self.processes.map(lambda own: [task.likelihoods(model, iter([batch]), device) for batch in own], found)
        )

    def _batches(self) -> Batches:
        config, task = self.config, self.task
        if task.carries_state:
            stateful = capability(task, StatefulTask)
            return stateful.stateful_batches(self.data, batch_tokens=config.batch_tokens, seed=config.seed)
        has_fixed_shapes = can_use_cuda_graphs(self.settings, self.hardware, self.model)
        return task.batches(
            self.data, batch_tokens=config.batch_tokens, seed=config.seed, has_fixed_shapes=has_fixed_shapes
        )

    def _carried_state(self) -> dict[str, Tensor]:
        """The recurrent state that the next batch continues; none where batches are split, whose parts may change."""
        if self.updater.num_pieces > 1:
            return {}
        return {str(number): tensor for number, tensor in enumerate(self.updater.carried.get(0, []))}

    def _needs_probe(self) -> bool:
        tuned = self.settings.finetune
        return tuned is not None and tuned.probe and self._is_new()

    def _is_new(self) -> bool:
        """Whether nothing was computed yet, in this process or before it."""
        progress = self.progress
        return progress.step == 0 and progress.best_loss == math.inf and not progress.num_rollbacks

    def _solve(self) -> bool:
        """Whether a new model has parts that were solved; not where no validation rows may weight them."""
        if not self._is_new() or self.settings.data.shots is not None or self.config.release is not None:
            return False
        if not isinstance(self.task, PartSolver):
            return False
        task, seconds = self.task, None if self.config.minutes is None else _SOLVING_SHARE * 60 * self.config.minutes
        if self.processes.size == 1:
            return task.solve(self.model, self.data, seconds=seconds)

        def solve() -> dict[str, Tensor]:
            is_solved = task.solve(self.model, self.data, seconds=seconds)
            return {name: tensor.cpu() for name, tensor in self.model.named_buffers()} if is_solved else {}

        solved = self.processes.from_first(solve)  # such parts are buffers: their shapes may depend on the data
        if solved:
            resize_buffers(self.model, solved)
            copy_weights(dict(self.model.named_buffers()), solved)
        return bool(solved)

    def _probe(
        self,
        clock: float,
        observe: Callable[[Mapping[str, Any]], None],
        save_best: Callable[["Trainer"], None],
        should_stop: Callable[[], bool],
    ) -> bool:
        """Solve the head, and evaluate it as the first candidate; False if stopped."""
        minutes, is_alone = self.config.minutes, self.settings.is_probe_alone
        share = 1.0 if is_alone else PROBE_SHARE
        is_few = self.settings.data.shots is not None
        is_solved = probe_head(
            self.model,
            self.task,
            self.data,
            self.batches,
            self.hardware,
            uses_validation_rows=not is_few and self.config.release is None,
            deadline=None if minutes is None else clock + share * 60 * minutes,
            should_stop=should_stop,
        )
        if self.processes.any(not is_solved):
            return False
        self.processes.share_weights(trained_weights(self.model))  # under a time limit they may differ
        self.ema.restore(trained_weights(self.model))
        # With few shots the validation rows select nothing, so the probe is a candidate only if nothing follows it.
        if is_alone or not is_few:
            line = self._evaluate(save_best)
            observe({**line, "seconds": time.perf_counter() - clock})
        self.progress.seconds = self.progress.seconds_at_line = time.perf_counter() - clock
        return True

    def _step(self, step: int) -> tuple[Tensor, int, int]:
        """One update; the summed loss, and the number of targets and of tokens in it."""
        config = self.config
        torch.manual_seed(mix(config.seed, step))
        first = (step - 1) * config.accumulate + self.progress.num_skipped
        batches = [self.training_batch(first + index) for index in range(config.accumulate)]
        if number := self.processes.replica:
            torch.manual_seed(mix(config.seed, step, number))  # other rows, and other dropout
        decay, progress = self.ema.decay_at(step), self.used(step - 1)
        total = self.updater.update(batches, learning_rate=self._learning_rate(step), decay=decay, progress=progress)
        num_targets = sum(batch.num_targets for batch in batches)
        return total, num_targets, sum(batch.num_tokens for batch in batches)

    def _thread_chooser(self) -> ThreadChooser | None:
        """On a CPU under a time limit, where runs are not reproducible anyway, the number of threads may change."""
        is_fixed = self.config.minutes is None or self.config.threads is not None
        if self.hardware.device.type != "cpu" or is_fixed or self.processes.size > 1:
            return None
        return ThreadChooser(self._most_threads)

    def _learning_rate(self, step: int) -> float:
        return self.config.learning_rate * self._lr_multiplier(step) * RATE_FACTOR**self.progress.num_rollbacks

    def _lr_multiplier(self, step: int) -> float:
        """That of the schedule and, once early stopping has begun a cooldown, at most that of the cooldown."""
        config = self.config
        multiplier = lr_multiplier(
            config.schedule,
            step=step,
            warmup_steps=config.warmup_steps,
            progress=self.used(step - 1),
            is_timed=config.minutes is not None,
        )
        if not self._is_cooling:
            return multiplier
        return min(multiplier, self.progress.cooldown_rate * (1.0 - self._cooled(step - 1)))

    @property
    def _is_cooling(self) -> bool:
        """Whether early stopping has begun; a run that is resumed with more patience continues without it."""
        return bool(self.progress.cooldown_step) and 0 < self.config.patience <= self.progress.cooldown_patience

    def _begin_cooldown(self) -> None:
        """Let the learning rate decay to 0 where validation has not improved for long enough."""
        progress, patience = self.progress, self.config.patience
        if not patience or progress.num_worse < patience or self._is_cooling or self.used() >= 1.0:
            return
        progress.cooldown_rate = self._lr_multiplier(progress.step)
        progress.cooldown_step, progress.cooldown_seconds = progress.step, progress.seconds
        progress.cooldown_patience = progress.num_worse
        log_info(f"{self._no_improvement()}: the learning rate decays to 0 before training ends")

    def _cooled(self, step: int | None = None) -> float:
        """The share of the cooldown that is over after `step` (unset: now)."""
        progress = self.progress
        return cooldown_progress(self.used(step), self.used(progress.cooldown_step, progress.cooldown_seconds))

    def _is_evaluation_due(self) -> bool:
        """Every `evaluate_every` steps; where that is unset, under a time limit, by the time an evaluation takes."""
        progress, config = self.progress, self.config
        if (every := config.evaluation_steps) is not None:
            return progress.step % every == 0
        assert config.minutes is not None, "without a time limit, evaluations are counted in steps"
        budget, expected = 60 * config.minutes, progress.evaluation_seconds
        if not expected:  # a forward pass over all validation rows, a third of what it is with its gradient
            num_steps = self.batches.per_epoch / config.accumulate * len(self.data.valid) / max(1, len(self.data.train))
            expected = progress.seconds / progress.step * num_steps / 3
        pause = max(budget / _TIMED_EVALUATIONS, expected * (1 / _EVALUATION_SHARE - 1))
        # The last evaluation is at the end of the run: one shortly before it would find the same.
        return progress.seconds - progress.evaluated_at >= pause and budget - progress.seconds > pause / 2

    def _is_checkpoint_due(self, since_save: float, save_seconds: float) -> bool:
        """Whether to save now, by the seconds since the last checkpoint and those that saving it took."""
        step, config = self.progress.step, self.config
        if since_save > _CHECKPOINT_SECONDS:
            return True
        is_cheap = (
            config.checkpoint_every is not None
            or config.minutes is None
            or save_seconds <= _CHECKPOINT_SHARE * since_save
        )
        return step % self._checkpoint_steps == 0 and is_cheap

    @property
    def _checkpoint_steps(self) -> int:
        return self.config.checkpoint_every or _CHECKPOINT_STEPS

    def _line(self, clock: float) -> dict[str, Any]:
        """The figures of the steps since the last line."""
        progress = self.progress
        losses, targets, tokens = (sum(each) for each in zip(*progress.window, strict=True))
        loss = self._finite(float(losses) / targets, "loss")
        self._watch(loss)
        self.hardware.synchronize()
        progress.tokens += tokens
        progress.window = []
        return {
            "step": progress.step,
            "loss": loss,
            "learning_rate": self._learning_rate(progress.step),
            "tokens_per_second": tokens / max(progress.seconds - progress.seconds_at_line, 1e-9),
            "seconds": time.perf_counter() - clock,
            "epoch": progress.step * self.config.accumulate / self.batches.per_epoch,
        }

    def _evaluate(self, save_best: Callable[["Trainer"], None]) -> dict[str, Any]:
        """Evaluate on the validation rows, and save the model if it is the best so far."""
        if self._release is not None:
            return self._evaluate_released(self._release, save_best)
        self._blend()
        likelihoods = self.validate()
        loss = self._finite(likelihoods.mean, "validation loss")
        score = self.score()
        if self.progress.add_evaluation(loss, score):
            save_best(self)
        line = {"step": self.progress.step, "valid_loss": loss, "valid_perplexity": math.exp(min(loss, 700.0))}
        line |= likelihoods.figures
        return line if score is None else {**line, "valid_score": score.value, "valid_metric": score.metric}

    def _evaluate_released(self, release: Releaser, save_best: Callable[["Trainer"], None]) -> dict[str, Any]:
        """The same where scores are released: nothing but the answer of the mechanism is used."""
        score = self.score()
        assert score is not None, "weights are selected by score"
        rows = self.data.train_rows() if self.config.thresholdout is not None else []
        reference = self._score(rows[: score.num_rows]) if rows else None
        with self.averaged_model() as model:
            digest = weights_digest(model, f"{self.settings.task!r} {self.settings.model!r}")
        value = None if reference is None else reference.value
        found = self.processes.from_first(lambda: release(digest, score, value))
        if self.progress.add_release(found.rank):
            save_best(self)
        line = {"step": self.progress.step, "valid_score": found.value, "valid_metric": score.metric}
        kind = "proportion" if score.is_proportion else "mean"
        return {**line, "release": {**found.to_json(), "examples": score.num_rows, "kind": kind}}

    def _blend(self) -> None:
        if not isinstance(self.task, PartSolver):
            return
        with self.averaged_model() as model, self.hardware.autocast():
            self.task.blend(model, self.task.validation_batches(self.data), self.hardware.device)
            for own, fitted in zip(self.model.buffers(), model.buffers(), strict=True):
                if own is not fitted:
                    own.copy_(fitted)

    def _watch(self, loss: float) -> None:
        """Raise if the loss of the last steps has exploded and training can return to a checkpoint."""
        progress = self.progress
        if not self.config.max_rollbacks or isinstance(self.task, RolloutTask):  # whose loss is not one of a model
            return
        if progress.first_loss is None:
            progress.first_loss = loss
        if not is_high(loss, progress.first_loss, progress.recent_losses):
            progress.num_high = 0
            progress.recent_losses = [*progress.recent_losses, loss][-RECENT_LINES:]
            return
        progress.num_high += 1
        if progress.num_high < HIGH_LINES:
            return
        usual = statistics.median(progress.recent_losses)
        reason = f"the loss is {loss:.4g} at step {progress.step}, and was {usual:.4g}"
        if self._can_roll_back:
            raise DivergedError(reason, self._advice)
        if progress.num_high == HIGH_LINES:
            log_warning(f"{reason}: {self._advice}")

    def _finite(self, value: float, what: str) -> float:
        if not math.isfinite(value):
            raise DivergedError(f"the {what} is {value} at step {self.progress.step}", self._advice)
        return value

    @property
    def _advice(self) -> str:
        return f"a lower train.learning_rate than {self.config.learning_rate:.1e} may help"

    def _has_finite_weights(self, *, is_required: bool) -> bool:
        """Whether the weights may be saved: the loss is of those before a step, and a checkpoint has those after it.

        Required where that does not depend on the clock or on a signal, so that a run that is interrupted diverges
        at the same step as one that is not. Elsewhere the checkpoint before is kept.
        """
        parts = list(self.model.parameters()) if self.sharded is None else self.sharded.own_parts()
        sums = torch.stack([weight.detach().sum().float() for weight in parts])
        total = float(sums[~sums.isfinite()][:1].sum())
        if self.processes.any(not math.isfinite(total)) and math.isfinite(total):
            total = math.nan  # those of another process
        if is_required:
            self._finite(total, "sum of some weights")
        return math.isfinite(total)

    @property
    def _has_diverged(self) -> bool:
        return isinstance(self.task, RolloutTask) and self.task.reason_to_stop() is not None

    def _reason_to_stop(self) -> str | None:
        progress = self.progress
        if isinstance(self.task, RolloutTask) and (reason := self.task.reason_to_stop()) is not None:
            return reason
        if self.settings.is_probe_alone:
            return "the head is solved exactly"
        if self._is_cooling and self._cooled() >= 1.0:
            num_steps = progress.step - progress.cooldown_step
            steps = f"{num_steps:,} steps" if num_steps != 1 else "step"
            return f"stopped early: {self._no_improvement()}; the learning rate was decayed over the last {steps}"
        return self._budget_reached() if self.used() >= 1.0 else None

    def _no_improvement(self) -> str:
        is_scored, number = self.config.select_by == "score", self.progress.cooldown_patience
        if self.config.release is not None:
            return f"the released score has not improved for {number} evaluations"
        what = "neither the validation score nor the loss has" if is_scored else "the validation loss has not"
        return f"{what} improved for {number} evaluations"

    def _budget_reached(self) -> str:
        config, progress = self.config, self.progress
        if config.minutes and progress.seconds >= 60 * config.minutes:
            return "time limit reached"
        return f"{format_count(progress.step, 'step')} completed"


def why_not_shared(task: Task[Any]) -> str | None:
    """Why the rows of a batch cannot be shared by several processes; None where they can."""
    if isinstance(task, RolloutTask):
        return "answers are sampled from the whole batch"
    if task.carries_state:
        return "each batch continues the state of the one before"
    return "the rows of a batch are examples for each other" if task.uses_whole_batch else None


def is_sum_over_batches(found: Likelihoods) -> bool:
    """Whether the likelihoods of batches can be computed one by one and joined."""
    return type(found) is Likelihoods and not (found.carries_state or found.ranks or found.figures)


def join_likelihoods(parts: Sequence[Likelihoods]) -> Likelihoods:
    """Those of several batches, in order."""
    return Likelihoods(
        [loss for part in parts for loss in part.losses],
        [count for part in parts for count in part.counts],
        num_correct=tuple(number for part in parts for number in part.num_correct),
    )


class BatchPrefetcher:
    """Makes the next batch in a thread while a GPU computes."""

    def __init__(self, batches: Batches, *, is_threaded: bool) -> None:
        self._batches = batches
        self._maker = ThreadPoolExecutor(1) if is_threaded else None
        self._next: tuple[int, Future[Batch]] | None = None

    def take(self, number: int) -> Batch:
        """Batch `number`; the one after it is started."""
        if self._maker is None:
            return self._batches.batch(number)
        is_made = self._next is not None and self._next[0] == number
        batch = self._next[1].result() if self._next and is_made else self._batches.batch(number)
        self._next = number + 1, self._maker.submit(self._batches.batch, number + 1)
        return batch
