"""A trainer for a tiny model on sixty pairs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import Tiny, tiny

from regard.training.loop import Trainer
from regard.training.precision import choose_hardware

TRAIN = {"max_steps": 20, "learning_rate": 0.003, "warmup_steps": 3, "batch_tokens": 200, "device": "cpu",
         "optimizer": "adamw", "label_smoothing": 0.1, "schedule": "cosine", "beta2": 0.98, "weight_decay": 0.01,
         "ema_decay": 0.998}  # fmt: skip


@pytest.fixture
def single_precision(exact_and_repeatable: None) -> None:
    """The precision of training; without it a test's trainer computes in float64."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache of prepared data for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def pairs(cache: None) -> Tiny:
    """Rows of 3 to 40 bytes."""
    rows = [(f"{'abc' * (number % 13)}{number}", f"{number}{'x' * (number % 7)}") for number in range(60)]
    return tiny("seq2seq", rows, tokenizer="bytes", train=TRAIN)


@pytest.fixture
def make_trainer(pairs: Tiny) -> Callable[..., Trainer]:
    """A trainer from seed 0, with the settings of `TRAIN` except for those given."""

    def make(*, dropout: float = 0.1, **train: Any) -> Trainer:
        model = {**pairs.settings.model.model_dump(), "dropout": dropout}
        settings = pairs.settings.changed(model=model, train={**pairs.settings.train.model_dump(), **train})
        torch.manual_seed(0)
        built = pairs.task.build(settings.model, settings.head)
        return Trainer(built, pairs.task, pairs.data, settings, choose_hardware("cpu", "float32", 12))

    return make


class Recorder:
    """Records what a trainer reports, and may stop it."""

    def __init__(self, *, stop_at: int | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.saved: list[int] = []
        self.best: list[int] = []
        self._stop_at = stop_at

    def fit(self, trainer: Trainer, *, save: Callable[[Trainer], None] | None = None) -> Any:
        def record(trainer: Trainer) -> None:
            self.saved.append(trainer.progress.step)
            if save is not None:
                save(trainer)

        return trainer.fit(
            lambda line: self.lines.append(dict(line)),
            save=record,
            save_best=lambda trainer: self.best.append(trainer.progress.step),
            should_stop=lambda: trainer.progress.step == self._stop_at,
        )

    @property
    def losses(self) -> list[tuple[int, float | None, float | None]]:
        return [(line["step"], line.get("loss"), line.get("valid_loss")) for line in self.lines]


@pytest.fixture
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
