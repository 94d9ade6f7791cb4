"""Settings that a task chooses for its data, and the defaults of those that the user left unset.

`Choices` are made before the data is encoded, `Defaults` when it is and the model is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from regard.data.prepare import Prepared
from regard.data.stores.tokens import TokenStream
from regard.models.family import ModelConfig

_QUICK_MINUTES = 15.0
BATCH_TOKENS: Mapping[str, int] = {"cpu": 1_024, "cuda": 4_096}
"""A CPU gains nothing from larger batches, and many small steps learn more than few large ones."""
MUON_REASON = "muon: on a GPU, a Transformer learns more by it than by adamw in as many steps"
TRAIN_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "label_smoothing": 0.1,
    "schedule": "cosine",
    "warmup_steps": 200,
    "beta2": 0.98,
    "weight_decay": 0.01,
    "ema_decay": 0.998,
}
"""For sequence-to-sequence models, by the experiments in docs/log.md."""
READING_DEFAULTS: dict[str, Any] = {**TRAIN_DEFAULTS, "label_smoothing": 0.0, "ema_decay": 0.99}
"""For encoders with a head: few steps, so a shorter moving average."""


@dataclass(frozen=True)
class ChoiceContext:
    """What settings may depend on that are chosen before the data is encoded."""

    rows: Sequence[Sequence[str]]
    """A sample of the training rows."""
    num_characters: int
    """The number of characters of all rows that were read for the sample."""
    device: Literal["cpu", "cuda"]
    minutes: float | None
    """The budget, where it is a time."""

    @property
    def is_quick(self) -> bool:
        """Whether the run takes at most 15 minutes on a CPU."""
        return _is_quick(self.device, self.minutes)


@dataclass(frozen=True)
class Choices:
    """Settings that are chosen for the data before it is encoded; what the user has set takes precedence."""

    task: Mapping[str, Any] = field(default_factory=dict)
    """Values of the `[task]` section."""
    preset: str | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """For each setting that is printed, its value and why: `task.tokenizer` -> `characters: single words`."""


@dataclass(frozen=True)
class DefaultsContext:
    """What defaults may depend on."""

    data: Prepared
    model: ModelConfig
    device: Literal["cpu", "cuda"]
    is_finetuned: bool = False
    method: str | None = None
    """Which weights are fine-tuned: `finetune.method`."""
    minutes: float | None = None
    """The budget as far as it is set, with `max_steps` and `max_epochs`."""
    max_steps: int | None = None
    max_epochs: float | None = None

    @property
    def num_rows(self) -> int:
        return len(self.data.train)

    def num_epochs(self, *, tokens_per_second: float, batch_tokens: int) -> float | None:
        """Roughly how many passes over the training data the budget allows; None without a budget.

        Args:
            tokens_per_second: The rough speed of training on this device, with the terms of the loss in question.
            batch_tokens: The size of a batch.
        """
        store: Any = self.data.train
        num_tokens = len(store) if isinstance(store, TokenStream) else int(store.lengths().sum())
        found = [
            None if self.minutes is None else 60 * self.minutes * tokens_per_second / max(1, num_tokens),
            None if self.max_steps is None else self.max_steps * batch_tokens / max(1, num_tokens),
            self.max_epochs,
        ]
        return min((each for each in found if each is not None), default=None)

    @property
    def is_quick(self) -> bool:
        """Whether the run takes at most 15 minutes on a CPU."""
        return _is_quick(self.device, self.minutes)


@dataclass(frozen=True)
class Defaults:
    """Values for settings that the user left unset, by section."""

    train: Mapping[str, Any] = field(default_factory=dict)
    """A learning rate is used only with the optimizer beside it."""
    task: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    """In place of values of the preset, except those of a size that the user has named."""
    finetune: Mapping[str, Any] = field(default_factory=dict)
    finetune_train: Mapping[str, Any] = field(default_factory=dict)
    """Values of the `[train]` section for fine-tuning, in place of those that all tasks share."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """For each setting that is printed, its value and why: `train.rdrop` -> `5: the budget allows many epochs`."""


def _is_quick(device: Literal["cpu", "cuda"], minutes: float | None) -> bool:
    return device == "cpu" and minutes is not None and minutes <= _QUICK_MINUTES
