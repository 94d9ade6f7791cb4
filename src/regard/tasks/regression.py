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

from regard.baselines.baseline import Baseline
from regard.baselines.linear import fit_number
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.numbers import NumberCodec, parse_number
from regard.data.codecs.text import TextCodec
from regard.data.formats.columns import is_identifier
from regard.data.formats.decimals import with_numbers
from regard.data.formats.messages import format_column
from regard.data.formats.summary import ColumnSummary
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts
from regard.evaluation.scores import Score
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.tasks.content import ExportSpec, Prediction, ReportContent, number_section
from regard.tasks.detection import DetectionSummary
from regard.tasks.labeled_columns import LABEL_COLUMNS, find_texts, is_class
from regard.tasks.task import PLAIN, Detection, EvaluationData, ImportedCodecs, Likelihoods, Objective, to_device
from regard.tasks.text import TextBatch, make_text_batch
from regard.tasks.text_classification import LabeledTextSettings, LabeledTextTask

_TARGET_NAMES = ("score", "rating", "stars", "similarity", "value", "price", "grade", "points", "target", "y", "label")
_WRITTEN_OUT = 0.5
"""The correlation between the lengths of texts and the numbers of digits from which on the texts spell the numbers."""
_WRITTEN_OUT_REPEATED = 4
"""How often each of the numbers that texts spell occurs at the most, on average."""


class RegressionSettings(LabeledTextSettings):
    """Settings of regression."""

    name: str = "regression"


class Regression(LabeledTextTask[RegressionSettings]):
    """Texts and numbers, by an encoder with one output."""

    name = "regression"
    description = "regression"
    output_description = "the predicted number"
    other_names = ("numeric", "rating", "scoring", "similarity")
    Settings = RegressionSettings
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, "label": NumberCodec}
    store_columns = ("text", "number")
    target_role = "number"
    metrics = ("pearson", "spearman", "mean_absolute_error", "rmse", "r_squared")
    supports_shots = True
    objectives = frozenset()
    head_kind = "number"
    outputs_are = "numbers"

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.has_lists or summary.has_images or summary.is_series or summary.is_table_of_features:
            return None
        target = _target_of(summary)
        kinds = ("text",) if summary.is_table_of_numbers else ("text", "labels")
        texts = [column for column in summary.columns if column.kind in kinds]
        if target is None or not texts or _is_written_out(texts[0], target):
            return None
        numbers = f"{target.num_distinct:,} distinct values from {min(target.numbers):g} to {max(target.numbers):g}"
        is_label = target.has_fractions and target.plain_name in LABEL_COLUMNS
        columns: tuple[str, ...] = ()
        if not summary.columns_given and (summary.names or summary.suffix):
            found = find_texts(summary.columns, [target], has_names=bool(summary.names))
            is_wide = len(summary.columns) > len(found) + 1
            if not found or (is_wide and all(is_class(each) for each in summary.columns if each.name in found)):
                return None
            columns = (*found, target.name)
        return Detection(
            f"numbers in {format_column(target.name)}, {numbers}", 0.7 if is_label else 0.55, columns=columns
        )

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        source = super().open(config, rows)
        held_out = {
            split: None if table is None else with_numbers(table)
            for split, table in (("valid", source.valid), ("test", source.test))
        }
        return replace(source, train=with_numbers(source.train), **held_out)

    @property
    def number_codec(self) -> NumberCodec:
        return codec_of(self.codecs, "label", NumberCodec)

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {**super().fit_codecs(data), "label": NumberCodec.fit(row[-1] for row in data.rows())}

    def placeholder(self) -> list[int]:
        return [0, 0, 0, 0]

    def build(self, model: ModelConfig, head: HeadConfig) -> SequenceClassifier:
        return SequenceClassifier(model, head, self.tokenizer.vocab_size, 1, ngrams=self.settings.ngrams)

    def stored_targets(self, data: Prepared) -> NDArray[Any]:
        ids, offsets = data.train.column(1)
        numbers = self.number_codec.numbers(np.split(ids.astype(np.int64), offsets[1:-1]))
        return self.number_codec.standardize(numbers)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> TextBatch:
        texts, numbers = columns
        targets = self.number_codec.standardize(self.number_codec.numbers(numbers))
        return make_text_batch(texts, torch.from_numpy(targets).float(), self.tokenizer)

    def loss(self, model: SequenceClassifier, batch: TextBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Half of the squared error, summed over the texts."""
        return (_losses(model, batch) * batch.weights).sum()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[TextBatch], device: torch.device) -> Likelihoods:
        """Returns each number's likelihood under a normal distribution with the data's variance, up to a constant."""
        losses = [loss for batch in batches for loss in _losses(model, to_device(batch, device)).tolist()]
        return Likelihoods(losses, [1] * len(losses))

    def outputs(self, model: Any, batch: TextBatch) -> list[float]:
        numbers = model(batch.source, batch.lengths, batch.segments)[:, 0].double()
        return (numbers * self.number_codec.std + self.number_codec.mean).tolist()

    def prediction(self, text: str, output: float) -> Prediction:
        return Prediction(text, f"{output:.6g}")

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        return fit_number([self.input_of(row) for row in rows], [parse_number(row[-1]) for row in rows])

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(
            outputs=[float(each.output) for each in data.predictions],
            targets=[parse_number(row[-1]) for row in data.rows],
        )

    def failure(self, scores: Mapping[str, Score], counts: LabelCounts | None, headline: str) -> str:
        explained = scores["r_squared"].value
        return "" if explained > 0 else f"R squared is {explained:.3f}, and that of the mean of all rows is 0"

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        examples = self.examples(data)
        pair = ([float(each) for each in examples.targets or ()], [float(each) for each in examples.outputs or ()])
        section = number_section([" | ".join(row[:-1]) for row in data.rows], {"number": pair})
        content = super().report(model, data)
        return replace(content, samples=[], sections=[*content.sections, section])

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("pearson", "rmse")

    def export_spec(self) -> ExportSpec:
        return replace(super().export_spec(), scale=self.number_codec.std, shift=self.number_codec.mean)

    @classmethod
    def imported_codecs(cls, imported: ImportedCodecs) -> dict[str, Codec]:
        """The head of an imported model predicts numbers in the units of the data."""
        return {**super().imported_codecs(imported), "label": NumberCodec()}


def _target_of(summary: DetectionSummary) -> ColumnSummary | None:
    """The column of measurements that is the target: the last one named, or the only one that it can be."""
    if summary.columns and (summary.columns_given or not (summary.names or summary.suffix)):
        *others, last = summary.columns
        return last if last.is_measurement and not any(each.is_numeric for each in others) else None
    numeric = [each for each in summary.columns if each.is_numeric and not is_identifier(each.name)]
    if len(summary.columns) > 2 and numeric and _are_ids(numeric[0]) and numeric[0] is summary.columns[0]:
        numeric = numeric[1:] if summary.names else [each for each in numeric if not _are_ids(each)]
    named = [each for each in numeric if each.plain_name in _TARGET_NAMES]
    candidates = numeric if len(numeric) == 1 else named
    return candidates[0] if len(candidates) == 1 and candidates[0].is_measurement else None


def _are_ids(column: ColumnSummary) -> bool:
    return not column.has_fractions and column.num_distinct == len(column.cells)


def _is_written_out(text: ColumnSummary, target: ColumnSummary) -> bool:
    """Whether the whole numbers of a column are those that the texts spell: the longer the text, the more digits.

    Numbers that the texts do not spell, such as counts, occur many times each.
    """
    is_counted = _WRITTEN_OUT_REPEATED * target.num_distinct < len(target.cells)
    if target.has_fractions or is_counted or len(text.cells) != len(target.cells):
        return False
    lengths = np.array([[len(some), len(digits)] for some, digits in zip(text.cells, target.cells, strict=True)])
    if not lengths.std(axis=0).all():
        return False
    return float(np.corrcoef(lengths.T)[0, 1]) > _WRITTEN_OUT


def _losses(model: SequenceClassifier, batch: TextBatch) -> Float[Tensor, " batch"]:
    found = model(batch.source, batch.lengths, batch.segments)[:, 0].float()
    return (found - batch.targets).square() / 2
