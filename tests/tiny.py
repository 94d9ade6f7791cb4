"""A tiny instance of a task: a few rows prepared, settings resolved, and models that are built in milliseconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data.prepare import Prepared
from regard.data.sources import IN_MEMORY
from regard.generation.config import GenerationConfig
from regard.models.family import ModelConfig, read_model_config
from regard.models.heads import HeadConfig
from regard.settings import merge_tables
from regard.tasks import Prediction, Task, make_task
from regard.tasks.task import EvaluationData, Likelihoods
from regard.training.defaults import draft, resolve
from regard.training.settings import ResolvedSettings

CPU = torch.device("cpu")
TRANSFORMER = {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0}
"""A small shape without dropout."""
_LAYERS = {"num_layers": 2, "model_dim": 12, "dropout": 0.0}
_HEADS = {"num_heads": 3, "feedforward_dim": 17, "positions": "sinusoidal"}
BODIES: dict[str, ModelConfig] = {
    "transformer": read_model_config({**_LAYERS, **_HEADS, "decoder_layers": 0}),
    "decoder": read_model_config({**_LAYERS, **_HEADS, "encoder_layers": 0, "positions": "alibi"}),
    "recurrent": read_model_config({**_LAYERS, "family": "recurrent", "decoder_layers": 0}),
    "convolutional": read_model_config({**_LAYERS, "family": "convolutional", "decoder_layers": 0}),
}
"""A model of each family that reads text: encoders, and a decoder-only model."""


@dataclass(frozen=True)
class Tiny:
    """A task with fitted codecs, the data that they were fitted on, and resolved settings."""

    task: Any
    data: Prepared[Any]
    settings: ResolvedSettings

    def build(self, model: ModelConfig | None = None, *, std: float = 0.0, **head: Any) -> Any:
        """A new model in evaluation mode; with `std`, all its weights are drawn from a normal distribution."""
        torch.manual_seed(0)
        config = HeadConfig.read({**self.settings.head.model_dump(), "dropout": 0.0, **head})
        built = self.task.build(model or self.settings.model, config)
        if std:
            for parameter in built.parameters():
                nn.init.normal_(parameter, std=std)
        return built.eval()

    def batches(self, *, batch_tokens: int = 400, seed: int = 3, **options: Any) -> Any:
        return self.task.batches(self.data, batch_tokens=batch_tokens, seed=seed, **options)

    def validation(self, model: Any) -> Likelihoods:
        """The likelihoods of the validation rows in the store."""
        return self.task.likelihoods(model, self.task.validation_batches(self.data), CPU)

    def likelihoods(self, model: Any, rows: Sequence[Sequence[str]]) -> Likelihoods:
        """The likelihoods of rows of text."""
        return self.task.likelihoods(model, self.task.row_batches(rows), CPU)

    def predict(self, model: Any, inputs: Sequence[str]) -> list[Prediction]:
        return self.task.predictor(model, GenerationConfig(max_tokens=7))(inputs)

    def scores(self, rows: Iterable[Sequence[str]], outputs: Iterable[str]) -> dict[str, float]:
        """The value of each score of these outputs, which have probability 1."""
        rows = list(rows)
        predictions = [
            Prediction(self.task.input_of(row), output, probabilities={output: 1.0})
            for row, output in zip(rows, outputs, strict=True)
        ]
        found = self.task.scores(EvaluationData(rows, predictions, Likelihoods([], [])))
        return {score.name: score.value for score in found}


def tiny(task: str, rows: Any, *, preset: str = "transformer-tiny", **sections: Any) -> Tiny:
    """Prepare rows in memory, or those of a path, for a task.

    Args:
        task: The name of the task.
        rows: Rows in memory, or the path of a file or folder.
        preset: The preset of the model.
        sections: `model`, `head`, `data` and `train` are sections of the settings; all others are settings of the task.
    """
    named = {name: sections.pop(name) for name in ("model", "head", "data", "train") if name in sections}
    is_path = isinstance(rows, str | Path)
    given = {
        "preset": preset,
        "task": {"name": task, **sections},
        "model": TRANSFORMER if preset.startswith(("transformer", "gpt", "llama", "vit")) else {},
        "head": {"dropout": 0.0},
        "data": {"train": [str(rows) if is_path else IN_MEMORY]},
        "train": {"max_steps": 2, "device": "cpu", "precision": "float32"},
    }
    settings = draft(merge_tables(given, named))
    unbound: Task[Any] = make_task(settings.task)
    data = unbound.prepare(settings.data, None if is_path else rows)
    resolved = resolve(settings, data)
    return Tiny(make_task(resolved.task, data.codecs), data, resolved)
