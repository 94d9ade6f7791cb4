"""The training loop. It knows no task.

One step: the batch that the seed and the step number give; the loss summed
over its targets and divided by their number, also over several batches; the
gradient, clipped; the optimizer at the scheduled rate; the moving average.

All randomness is drawn from the seed and the step number, so that a run that
was stopped anywhere goes on as if it had not been.
"""

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.permutation import mix
from regard.data.preparation import Prepared
from regard.errors import CheckpointError, RunError
from regard.tasks.task import Batch, Batches, Likelihoods, RunningTask, Task
from regard.training.average import WeightAverage
from regard.training.checkpoints import copy_weights, trained_weights
from regard.training.finetuning import depth_of, opens_at, share_of
from regard.training.optimizers import make_optimizer, optimizer_tensors, restore_optimizer
from regard.training.precision import Hardware
from regard.training.schedules import rate_factor
from regard.training.settings import RunSettings
from regard.training.threads import ThreadChooser
from regard.training.update import Updater, can_record

_LOG_EVERY = 10
_CHECKPOINT_SECONDS = 300.0


@dataclass
class Progress:
    """How far a run has come. It is kept in each checkpoint."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf
    best_step: int = 0
    num_worse: int = 0
    """Evaluations since the best one."""
    tokens: int = 0
    seconds_at_line: float = 0.0
    """When the last line of figures was handed out."""
    window: list[tuple[Tensor, int, int]] = field(default_factory=list)
    """The summed loss, and the number of targets and of tokens, of each step since then."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    progress: Progress
    reason: str
    is_finished: bool


class Trainer:
    """A model, its optimizer and its data, and the steps that join them."""

    def __init__(self, model: nn.Module, task: Task, data: Prepared, settings: RunSettings, hardware: Hardware) -> None:
        self.model, self.task, self.data, self.hardware = model, task, data, hardware
        self.settings, self.config = settings, settings.train
        config = self.config
        assert config.batch_tokens is not None, "settings are resolved before training"
        assert config.optimizer is not None, "settings are resolved before training"
        assert config.beta2 is not None, "settings are resolved before training"
        assert config.weight_decay is not None, "settings are resolved before training"
        assert config.average is not None, "settings are resolved before training"
        self.batches = self._batches(config.batch_tokens)
        self.optimizer = make_optimizer(
            config.optimizer,
            model,
            betas=(config.beta1, config.beta2),
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            pace=self._pace(),
        )
        self.average = WeightAverage(model, config.average)
        self.updater = Updater(
            model, task, self.optimizer, self.average, config, hardware, is_compiled=config.compile == "always"
        )
        self.progress = Progress()
        self._ahead = BatchesAhead(self.batches, is_threaded=hardware.device.type == "cuda")

    def fit(
        self,
        observe: Callable[[Mapping[str, Any]], None],
        *,
        save: Callable[["Trainer"], None],
        save_best: Callable[["Trainer"], None],
        should_stop: Callable[[], bool],
    ) -> Outcome:
        """Train until the budget is used, no progress is made, or `should_stop` says so.

        `observe` is handed a line of figures now and then; `save` and `save_best`
        are called when there is a state, or a model, worth keeping.
        """
        progress, config = self.progress, self.config
        clock = time.perf_counter() - progress.seconds
        last_save = progress.seconds
        reason = self._reason_to_stop()
        chooser = self._thread_chooser()
        while reason is None:
            progress.step += 1
            before = time.perf_counter()
            progress.window.append(self._step(progress.step))
            progress.seconds = time.perf_counter() - clock
            if chooser is not None:
                chooser.note(progress.window[-1][2], time.perf_counter() - before)
            is_evaluation = progress.step % config.evaluate_every == 0
            reason = self._reason_to_stop()
            if progress.step % _LOG_EVERY == 0 or is_evaluation or reason:
                observe(self._line(clock))
                progress.seconds = progress.seconds_at_line = time.perf_counter() - clock
            if is_evaluation or reason:
                observe(self._look(save_best))
                progress.seconds = progress.seconds_at_line = time.perf_counter() - clock
                reason = reason or self._reason_to_stop()
            is_stopped = reason is None and should_stop()
            is_due = progress.step % config.checkpoint_every == 0 or progress.seconds - last_save > _CHECKPOINT_SECONDS
            if is_due or reason or is_stopped:
                self._require_finite_weights()
                save(self)
                last_save = progress.seconds
            if is_stopped:
                return Outcome(progress, "interrupted", is_finished=False)
        return Outcome(progress, reason, is_finished=True)

    def validate(self) -> Likelihoods:
        """How probable the validation data is under the averaged weights."""
        self.model.eval()
        with self.average.applied(), self.hardware.autocast():
            batches = self.task.held_out(self.data, self.settings.data)
            return self.task.negative_log_likelihoods(self.model, batches, self.hardware.device)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        parts = {
            "model": trained_weights(self.model),
            "average": self.average.tensors(),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            "carried": self._carried(),
        }
        return {f"{part}:{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def note(self) -> dict[str, Any]:
        """The progress as JSON can hold it."""
        window = [(float(loss), targets, tokens) for loss, targets, tokens in self.progress.window]
        return {**vars(self.progress), "window": window}

    def restore(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Go back to a state that `tensors` and `note` gave."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimizer": {}, "carried": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(":")
            if part not in parts:
                raise CheckpointError(f"not a checkpoint of a training run: it holds {name}")
            parts[part][rest] = tensor
        copy_weights(trained_weights(self.model), parts["model"])
        self.average.restore(parts["average"])
        restore_optimizer(self.optimizer, self.model, parts["optimizer"])
        if carried := parts["carried"]:
            self.updater.carried = {0: [carried[str(n)].to(self.hardware.device) for n in range(len(carried))]}
        window = [(torch.tensor(loss), targets, tokens) for loss, targets, tokens in note["window"]]
        self.progress = Progress(**{**note, "window": window})

    def used(self, step: int | None = None) -> float:
        """How much of the budget is used after `step` (unset: now), 0 to 1; the shortest budget given counts."""
        config, progress = self.config, self.progress
        step = progress.step if step is None else step
        shares = [0.0]
        if config.max_steps:
            shares.append(step / config.max_steps)
        if config.max_epochs:
            shares.append(step * config.accumulate / (config.max_epochs * self.batches.per_epoch))
        if config.minutes:
            shares.append(progress.seconds / (60 * config.minutes))
        return min(1.0, max(shares))

    def _pace(self) -> Callable[[str], tuple[float, float]]:
        tuned, num_layers = self.settings.finetune, depth_of(self.model)
        if tuned is None:
            return lambda name: (1.0, 0.0)
        return lambda name: (share_of(name, tuned, num_layers), opens_at(name, tuned, num_layers))

    def _batches(self, batch_tokens: int) -> Batches:
        config, data_config = self.config, self.settings.data
        if config.carry_state:
            assert isinstance(self.task, RunningTask), "settings are resolved before training"
            return self.task.running_batches(
                self.data, data_config, batch_tokens=batch_tokens, seed=config.seed, jitter=config.window_jitter
            )
        has_few_shapes = can_record(self.model, config, self.hardware)
        return self.task.batches(
            self.data, data_config, batch_tokens=batch_tokens, seed=config.seed, has_few_shapes=has_few_shapes
        )

    def _carried(self) -> dict[str, Tensor]:
        """The state that the next batch goes on from; nothing where batches are read in parts, which do not stay."""
        if self.updater.num_pieces > 1:
            return {}
        return {str(number): tensor for number, tensor in enumerate(self.updater.carried.get(0, []))}

    def _step(self, step: int) -> tuple[Tensor, int, int]:
        """One update; the summed loss, and the number of targets and of tokens in it."""
        config = self.config
        torch.manual_seed(mix(config.seed, step))
        first = (step - 1) * config.accumulate
        batches = [self._ahead.take(first + index) for index in range(config.accumulate)]
        decay, progress = self.average.decay_at(step), self.used(step - 1)
        total = self.updater.update(batches, rate=self._rate(step), decay=decay, progress=progress)
        num_targets = sum(batch.num_targets for batch in batches)
        return total, num_targets, sum(batch.num_tokens for batch in batches)

    def _thread_chooser(self) -> ThreadChooser | None:
        """On a CPU under a budget of time, which no two runs use alike, threads may come and go."""
        if self.hardware.device.type != "cpu" or self.config.minutes is None:
            return None
        return ThreadChooser(torch.get_num_threads())

    def _rate(self, step: int) -> float:
        config = self.config
        assert config.learning_rate is not None, "settings are resolved before training"
        assert config.warmup_steps is not None, "settings are resolved before training"
        assert config.schedule is not None, "settings are resolved before training"
        return config.learning_rate * rate_factor(
            config.schedule, step=step, warmup_steps=config.warmup_steps, progress=self.used(step - 1)
        )

    def _line(self, clock: float) -> dict[str, Any]:
        """The figures of the steps since the last line."""
        progress = self.progress
        losses, targets, tokens = (sum(each) for each in zip(*progress.window, strict=True))
        loss = self._finite(float(losses) / targets, "loss")
        self.hardware.synchronize()
        progress.tokens += tokens
        progress.window = []
        return {
            "step": progress.step,
            "loss": loss,
            "learning_rate": self._rate(progress.step),
            "tokens_per_second": tokens / max(progress.seconds - progress.seconds_at_line, 1e-9),
            "seconds": time.perf_counter() - clock,
            "epoch": progress.step * self.config.accumulate / self.batches.per_epoch,
        }

    def _look(self, save_best: Callable[["Trainer"], None]) -> dict[str, Any]:
        """Look at the validation rows, and keep the model if it is the best so far."""
        progress = self.progress
        loss = self._finite(self.validate().mean, "validation loss")
        if loss < progress.best_loss:
            progress.best_loss, progress.best_step, progress.num_worse = loss, progress.step, 0
            save_best(self)
        else:
            progress.num_worse += 1
        return {"step": progress.step, "valid_loss": loss, "valid_perplexity": math.exp(min(loss, 700.0))}

    def _finite(self, value: float, what: str) -> float:
        if not math.isfinite(value):
            raise RunError(
                f"the {what} is {value} at step {self.progress.step}: "
                f"a lower train.learning_rate than {self.config.learning_rate:.1e} may help"
            )
        return value

    def _require_finite_weights(self) -> None:
        """A loss tells of the weights before its step; those after it are what a checkpoint would keep."""
        for weight in self.model.parameters():
            self._finite(float(weight.detach().sum()), "sum of some weights")

    def _reason_to_stop(self) -> str | None:
        progress, config = self.progress, self.config
        if self.used() >= 1.0:
            return "the budget is used"
        if config.patience and progress.num_worse >= config.patience:
            return f"no better validation loss in {progress.num_worse} looks"
        return None


class BatchesAhead:
    """Makes the next batch while a GPU is busy with the last one."""

    def __init__(self, batches: Batches, *, is_threaded: bool) -> None:
        self._batches = batches
        self._maker = ThreadPoolExecutor(1) if is_threaded else None
        self._next: tuple[int, Future[Batch]] | None = None

    def take(self, number: int) -> Batch:
        """Batch `number`; the one behind it is begun."""
        if self._maker is None:
            return self._batches.batch(number)
        is_made = self._next is not None and self._next[0] == number
        batch = self._next[1].result() if self._next and is_made else self._batches.batch(number)
        self._next = number + 1, self._maker.submit(self._batches.batch, number + 1)
        return batch
