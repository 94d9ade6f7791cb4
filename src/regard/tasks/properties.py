"""Tasks on properties: one or several numbers or binary labels of an object, any of which may be missing.

A row has two values: the object, such as a molecule or a graph, and its properties joined to one text, in which a
missing one is empty. Several numbers are scored in standard deviations of the training rows, and several labels by the
mean of the areas under their ROC curves.

Dimensions: `batch` objects, `outputs` properties.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from jaxtyping import Float
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.data.codecs.codec import codec_of
from regard.data.codecs.properties import PropertyCodec, join_cells
from regard.data.formats.cells import is_number
from regard.data.formats.columns import is_identifier
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_column, format_names
from regard.data.formats.summary import ColumnSummary, describe, describe_rows
from regard.data.formats.tables import Table
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows
from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts
from regard.evaluation.registry import score_label
from regard.evaluation.scores import Score
from regard.tasks.content import Prediction, ReportContent, number_section
from regard.tasks.task import EvaluationData, Likelihoods, Task, TaskSettingsT

_CHANCE = 0.5
"""The area under the curve of a model that has learned nothing."""
_TARGET_NAMES = ("label", "class", "target", "y", "activity", "exp", "expt", "value", "property")
_MEASURED = "measured"
"""The first word of the name of a column beside others that were computed."""
_NEARLY_ALL = 0.95
_MISSING = ("", "na", "nan", "n/a", "null", "none")


@dataclass(frozen=True)
class PropertyPrediction(Prediction):
    """Properties that are numbers."""

    properties: dict[str, float] = field(default_factory=dict)
    """The value of each property."""


class PropertyTask(Task[TaskSettingsT]):
    """A task whose rows end with properties; its codecs have a `PropertyCodec` called `properties`."""

    metrics = ("rmse", "mean_absolute_error", "r_squared", "spearman")
    label_metrics: ClassVar[tuple[str, ...]] = ("auroc", "accuracy", "matthews", "calibration_error")
    several_label_metrics: ClassVar[tuple[str, ...]] = ("auroc",)

    @property
    def property_codec(self) -> PropertyCodec:
        return codec_of(self.codecs, "properties", PropertyCodec)

    def target_of(self, row: Sequence[str]) -> str:
        return self.property_codec.display(row[-1])

    def property_outputs(self, outputs: Float[Tensor, "batch outputs"]) -> list[list[float]]:
        """The outputs of a model as numbers in the units of the data, or as probabilities."""
        codec, found = self.property_codec, outputs.double()
        return codec.restore((found.sigmoid() if codec.are_labels else found).cpu().numpy()).tolist()

    def prediction(self, text: str, output: list[float]) -> Prediction:
        codec = self.property_codec
        shown = codec.display(codec.write(output))
        if not codec.are_labels:
            return PropertyPrediction(text, shown, properties=dict(zip(codec.names, output, strict=True)))
        if len(codec) > 1:
            return Prediction(text, shown, probabilities=dict(zip(codec.names, output, strict=True)))
        probabilities = dict(zip(codec.labels[0], (1 - output[0], output[0]), strict=True))
        return Prediction(text, shown, probabilities=probabilities, probability=probabilities[shown])

    def metric_names(self) -> tuple[str, ...]:
        if not self.property_codec.are_labels:
            return self.metrics
        return self.label_metrics if len(self.property_codec) == 1 else self.several_label_metrics

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return self.metric_names()[0]

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return self.metric_names()[:2]

    def examples(self, data: EvaluationData) -> Examples:
        """Several numbers of an object are examples of their own, in standard deviations of the training rows."""
        codec = self.property_codec
        targets = self.property_targets(data.rows)
        predicted = np.array([self._numbers(each) for each in data.predictions]).reshape(-1, len(codec))
        if codec.are_labels and len(codec) == 1:
            outputs = [each.output for each in data.predictions]
            return Examples(
                outputs=outputs,
                targets=[codec.format(0, number) for number in targets[:, 0]],
                labels=codec.labels[0],
                confidences=[(each.probabilities or {})[each.output] for each in data.predictions],
            )
        if codec.are_labels:
            known = [[None if math.isnan(each) else int(each) for each in row] for row in targets.tolist()]
            return Examples(outputs=predicted.tolist(), targets=known, labels=codec.names)
        if len(codec) > 1:
            targets, predicted = codec.standardize(targets), codec.standardize(predicted)
        known = ~np.isnan(targets)
        return Examples(outputs=predicted[known].tolist(), targets=targets[known].tolist())

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        content, codec = super().report(model, data), self.property_codec
        if codec.are_labels:
            return content
        measured, predicted = self.property_targets(data.rows), [self._numbers(each) for each in data.predictions]
        columns = zip(codec.names, measured.T.tolist(), zip(*predicted, strict=True), strict=True)
        inputs = [self.input_of(row) for row in data.rows]
        section = number_section(inputs, {name: (one, other) for name, one, other in columns})
        return replace(content, samples=[], sections=[*content.sections, section])

    def property_targets(self, rows: Sequence[Sequence[str]]) -> Float[np.ndarray, "batch outputs"]:
        """The properties of rows as numbers; NaN where one is missing."""
        codec = self.property_codec
        return np.array([codec.numbers_of(row[-1]) for row in rows]).reshape(-1, len(codec))

    def _numbers(self, prediction: Prediction) -> list[float]:
        codec = self.property_codec
        if isinstance(prediction, PropertyPrediction):
            return [prediction.properties[name] for name in codec.names]
        probabilities = prediction.probabilities or {}
        return [probabilities[name] for name in (codec.labels[0][1:] if len(codec) == 1 else codec.names)]

    def label_counts(self, examples: Examples) -> LabelCounts | None:
        is_single = self.property_codec.are_labels and len(self.property_codec) == 1
        return super().label_counts(examples) if is_single else None

    def failure(self, scores: Mapping[str, Score], counts: LabelCounts | None, headline: str) -> str:
        if self.property_codec.are_labels:
            value = scores[headline].value
            return "" if value > _CHANCE else f"{score_label(headline)} is {value:.3f}, and that of chance is {_CHANCE}"
        explained = scores["r_squared"].value
        return "" if explained > 0 else f"R squared is {explained:.3f}, and that of the mean of all rows is 0"

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        return self.fit_baseline([row[0] for row in rows], self.property_targets(rows))

    def fit_baseline(self, texts: Sequence[str], targets: Float[np.ndarray, "batch outputs"]) -> Baseline:
        """A baseline whose outputs are the numbers, or the probabilities, of all properties, separated by spaces."""
        raise NotImplementedError

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        found = baseline.predict([row[0] for row in rows])
        numbers = [[float(cell) for cell in each.split()] for each in found.outputs]
        predictions = [self.prediction(row[0], some) for row, some in zip(rows, numbers, strict=True)]
        return self.examples(EvaluationData(rows, predictions, Likelihoods([], [])))


@dataclass(frozen=True)
class PropertyColumns:
    """The columns of a table that are used."""

    source: str
    """That of the objects."""
    properties: tuple[str, ...]
    are_numbers: tuple[bool, ...]
    """Which properties are numbers; the others are labels."""

    @property
    def names(self) -> list[str]:
        return [self.source, *self.properties]

    @classmethod
    def of_codec(cls, codec: PropertyCodec) -> "PropertyColumns":
        """Those of training."""
        return cls(codec.source, codec.names, (not codec.are_labels,) * len(codec))


def choose_property_columns(
    config: DataConfig,
    rows: Rows | None,
    find: Callable[[Sequence[ColumnSummary]], ColumnSummary | None],
    *,
    objects: str,
    role: str,
) -> PropertyColumns:
    """The columns that the settings name, or those that are recognized by their content.

    Args:
        config: Where the data is.
        rows: Rows in memory, instead of files.
        find: Finds the column of the objects among all.
        objects: What is in that column, for messages.
        role: What one of them is.

    Raises:
        DataError: If there is no column of objects, or if it is not clear which the properties are.
    """
    described = describe_columns(config, rows)
    if rows is not None and not isinstance(rows, NamedRows):
        if len(described) < 2:
            raise DataError(f"a row needs a {role} and one or more properties, got {len(described)} columns")
        names = [f"property {place}" for place in range(1, len(described))]
        return property_columns(role, names, described[1:])
    if config.columns:
        by_name = {column.name: column for column in described}
        found = [by_name.get(name) or _by_position(name, described) for name in config.columns]
        if len(found) < 2:
            raise DataError(f"a column of {role}s and one or more of properties are needed, got {config.columns[0]}")
        return property_columns(config.columns[0], config.columns[1:], found[1:])
    where, source = _where(config, rows), find(described)
    if source is None:
        raise DataError(f"no column of {where} has {objects}: name it and those of properties")
    others = [column for column in described if column is not source]
    found = require_properties(others, where, f"name that of {role}s and these")
    return property_columns(source.name, [column.name for column in found], found)


def require_properties(columns: Sequence[ColumnSummary], where: str, remedy: str) -> list[ColumnSummary]:
    """The columns that are properties; an error where there are none, or numbers and labels beside each other."""
    found = find_properties(columns)
    if not found or len({_is_binary(column) for column in found}) > 1:
        names = format_names([format_column(column.name) for column in found or columns])
        raise DataError(f"which columns of {where} are properties? It may be {names}: {remedy}")
    return found


def find_properties(columns: Sequence[ColumnSummary]) -> list[ColumnSummary]:
    """The columns, other than that of the objects, that may be properties: numbers, or labels of two kinds."""
    known = [replace(column, cells=tuple(known_cells(column))) for column in columns]
    fitting = [
        column for column in known if not is_identifier(column.name) and (_is_numeric(column) or _is_binary(column))
    ]
    named = [each for each in fitting if each.plain_name in _TARGET_NAMES or each.plain_name.startswith(_MEASURED)]
    return named if len(named) == 1 else fitting


def known_cells(column: ColumnSummary) -> list[str]:
    return [cell for cell in column.cells if cell.strip().lower() not in _MISSING]


def property_columns(source: str, names: Sequence[str], columns: Sequence[ColumnSummary | None]) -> PropertyColumns:
    """Columns of these names; a summary that is None is of a wrong name, reported when the table is opened."""
    are_numbers = tuple(each is not None and _is_numeric(each) and not _is_binary(each) for each in columns)
    return PropertyColumns(source, tuple(names), are_numbers)


def read_properties(
    table: Table, columns: PropertyColumns, role: str, fault_of: Callable[[str], str] | None = None
) -> Table:
    """The table with two values in each row; one without any property, or with a fault of its object, is invalid."""
    read = partial(_read, table.read, columns, fault_of, has_key=table.key is not None)
    return replace(table, roles=(role, "properties"), read=read)


def without_none(rows: Rows) -> Rows:
    """Rows in memory with empty cells for missing values."""
    if isinstance(rows, NamedRows):
        return NamedRows(
            [{name: "" if cell is None else cell for name, cell in zip(rows.names, row, strict=True)} for row in rows]
        )
    return [tuple("" if cell is None else cell for cell in row) for row in rows]


def describe_columns(config: DataConfig, rows: Rows | None) -> Sequence[ColumnSummary]:
    """The columns of the data, but for one that numbers its rows."""
    if rows is not None:
        sample: Any = rows[:1_000]
        if isinstance(rows, NamedRows):
            sample = [dict(zip(rows.names, row, strict=True)) for row in sample]
        return describe_rows(sample).columns
    found = describe(
        cast("Sequence[str | Path]", config.train),
        columns=config.columns,
        format=config.format,
        header=config.header,
        encoding=config.encoding,
    )
    return [column for column in found.columns if column.name not in found.index]


def _where(config: DataConfig, rows: Rows | None) -> str:
    return "the table in memory" if rows is not None else Path(config.train[0]).name


def _by_position(name: str, columns: Sequence[ColumnSummary]) -> ColumnSummary | None:
    """The column at a position from 1; a wrong name is reported when the table is opened."""
    is_place = name.isdigit() and 1 <= int(name) <= len(columns)
    return columns[int(name) - 1] if is_place else None


def _is_numeric(column: ColumnSummary) -> bool:
    cells = known_cells(column)
    return bool(cells) and sum(map(is_number, cells)) >= _NEARLY_ALL * len(cells)


def _is_binary(column: ColumnSummary) -> bool:
    distinct = {cell.strip() for cell in known_cells(column)}
    return len(distinct) == 2 or (bool(distinct) and distinct <= {"0", "1"})


def _read(
    read: Callable[[], Iterator[Record]],
    columns: PropertyColumns,
    fault_of: Callable[[str], str] | None,
    *,
    has_key: bool,
) -> Iterator[Record]:
    num_values = 1 + len(columns.properties)
    for line, values, fault in read():
        if fault:
            yield line, values, fault
            continue
        source, *cells = (cell.strip() for cell in values[:num_values])
        cells = ["" if cell.lower() in _MISSING else cell for cell in cells]
        wrong = (
            name
            for name, is_numeric, cell in zip(columns.properties, columns.are_numbers, cells, strict=True)
            if cell and ((is_numeric and not is_number(cell)) or ";" in cell)
        )
        fault = "" if fault_of is None else fault_of(source)
        if not fault and not any(cells):
            fault = "no property" if len(cells) > 1 else f"an empty {format_column(columns.properties[0])}"
        if not fault and (name := next(wrong, None)) is not None:
            fault = f"no finite number in {format_column(name)}"
        key = values[num_values:] if has_key else ()
        yield (line, (), fault) if fault else (line, (source, join_cells(cells), *key), "")
