"""Regression: a number for a text or a pair of texts, such as a rating or a similarity.

The model is trained on standardized numbers, by the squared error.

Dimensions: `batch` texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.data.codecs.codec import Codec
from regard.data.codecs.numbers import NumberCodec, parse_number
from regard.data.codecs.text import TextCodec
from regard.data.prepare import FitData
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts
from regard.evaluation.scores import Score
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.tasks.task import (
    PLAIN,
    EvaluationData,
    ExportSpec,
    ImportedCodecs,
    Likelihoods,
    Objective,
    Prediction,
    to_device,
)
from regard.tasks.text import TextBatch, TextSettings, make_text_batch
from regard.tasks.text_classification import LabeledTextTask


class RegressionSettings(TextSettings):
    """Settings of regression."""

    name: str = "regression"


class Regression(LabeledTextTask[RegressionSettings]):
    """Texts and numbers, by an encoder with one output."""

    name = "regression"
    description = "regression"
    other_names = ("numeric", "rating", "scoring", "similarity")
    Settings = RegressionSettings
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, "label": NumberCodec}
    store_columns = ("text", "number")
    target_role = "number"
    metrics = ("pearson", "spearman", "mean_absolute_error", "rmse", "r_squared")
    supports_shots = True
    objectives = frozenset()
    head_kind = "number"

    @property
    def number_codec(self) -> NumberCodec:
        codec = self.codecs["label"]
        assert isinstance(codec, NumberCodec)
        return codec

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {**super().fit_codecs(data), "label": NumberCodec.fit(row[-1] for row in data.rows())}

    def placeholder(self) -> list[int]:
        return [0, 0, 0, 0]

    def build(self, model: ModelConfig, head: HeadConfig) -> SequenceClassifier:
        return SequenceClassifier(model, head, self.tokenizer.vocab_size, 1)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> TextBatch:
        texts, numbers = columns
        targets = self.number_codec.standardize(self.number_codec.numbers(numbers))
        return make_text_batch(texts, torch.from_numpy(targets).float(), self.tokenizer)

    def loss(self, model: SequenceClassifier, batch: TextBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Half of the squared error, summed over the texts."""
        return (_losses(model, batch) * batch.weights).sum()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[TextBatch], device: torch.device) -> Likelihoods:
        """Of each number, under a normal distribution with the variance of the data, up to a constant."""
        losses = [loss for batch in batches for loss in _losses(model, to_device(batch, device)).tolist()]
        return Likelihoods(losses, [1] * len(losses))

    def outputs(self, model: Any, batch: TextBatch) -> list[float]:
        numbers = model(batch.source, batch.lengths, batch.segments)[:, 0].double()
        return (numbers * self.number_codec.std + self.number_codec.mean).tolist()

    def prediction(self, text: str, output: float) -> Prediction:
        return Prediction(text, f"{output:.6g}")

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(
            outputs=[float(each.output) for each in data.predictions],
            targets=[parse_number(row[-1]) for row in data.rows],
        )

    def failure(self, scores: Mapping[str, Score], counts: LabelCounts | None, headline: str) -> str:
        explained = scores["r_squared"].value
        return "" if explained > 0 else f"R squared is {explained:.3f}, and that of the mean of all rows is 0"

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("pearson", "rmse")

    def export_spec(self) -> ExportSpec:
        return replace(super().export_spec(), scale=self.number_codec.std, shift=self.number_codec.mean)

    @classmethod
    def imported_codecs(cls, imported: ImportedCodecs) -> dict[str, Codec]:
        """The head of an imported model predicts numbers in the units of the data."""
        return {**super().imported_codecs(imported), "label": NumberCodec()}


def _losses(model: SequenceClassifier, batch: TextBatch) -> Float[Tensor, " batch"]:
    found = model(batch.source, batch.lengths, batch.segments)[:, 0].float()
    return (found - batch.targets).square() / 2
