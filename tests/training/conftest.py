"""A trainer for a tiny model on sixty pairs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.config import DataConfig
from regard.data.preparation import Prepared, prepare
from regard.data.sources import open_source
from regard.models.transformer import TransformerConfig
from regard.tasks import find_task
from regard.training.loop import Trainer
from regard.training.precision import choose_hardware
from regard.training.settings import RunSettings

SHAPE = {"num_layers": 1, "model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "block": "pre-norm"}
TRAIN = {"max_steps": 20, "learning_rate": 0.003, "warmup_steps": 3, "batch_tokens": 200, "device": "cpu",
         "optimizer": "adamw", "label_smoothing": 0.1, "schedule": "cosine", "beta2": 0.98, "weight_decay": 0.01,
         "average": 0.998}  # fmt: skip


@pytest.fixture
def single_precision(exact_and_repeatable: None) -> None:
    """What training uses; without it a test's trainer works in float64."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """Rows of 3 to 40 bytes."""
    rows = [(f"{'abc' * (number % 13)}{number}", f"{number}{'x' * (number % 7)}") for number in range(60)]
    config = DataConfig(tokenizer="bytes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield prepare(open_source(config, ("source", "target"), rows), config, ("source", "target"))


@pytest.fixture
def make_trainer(prepared: Prepared) -> Callable[..., Trainer]:
    """A trainer from seed 0, with the settings of `TRAIN` but for those given."""

    def make(*, dropout: float = 0.1, **settings: Any) -> Trainer:
        run = RunSettings.read({"train": {**TRAIN, **settings}})
        torch.manual_seed(0)
        task = find_task("translation")
        model = task.build_model(TransformerConfig.read({**SHAPE, "dropout": dropout}), prepared.tokenizer)
        return Trainer(model, task, prepared, run, choose_hardware("cpu", "float32", 22))

    return make


class Watch:
    """Keeps what a trainer hands out."""

    def __init__(self, *, stop_at: int | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.saved: list[int] = []
        self.best: list[int] = []
        self._stop_at = stop_at

    def fit(self, trainer: Trainer, *, save: Callable[[Trainer], None] | None = None) -> Any:
        def note(trainer: Trainer) -> None:
            self.saved.append(trainer.progress.step)
            if save is not None:
                save(trainer)

        return trainer.fit(
            lambda line: self.lines.append(dict(line)),
            save=note,
            save_best=lambda trainer: self.best.append(trainer.progress.step),
            should_stop=lambda: trainer.progress.step == self._stop_at,
        )

    @property
    def losses(self) -> list[tuple[int, float | None, float | None]]:
        return [(line["step"], line.get("loss"), line.get("valid_loss")) for line in self.lines]


@pytest.fixture
def watch() -> type[Watch]:
    return Watch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
