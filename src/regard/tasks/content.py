"""What a task returns for the folders to its right, as plain data: predictions, sections of reports, server schemas.

Those render it without knowing the task. What one kind of task adds to a
prediction is a field of a subclass of `Prediction`, beside that task; what it adds to
a report is a `Section`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

_OUTSTANDING = 4.0
"""The darkest shade of a word needs a weight of this many times the mean."""


@dataclass(frozen=True)
class Prediction:
    """The model's output for one input; a subclass has what only some tasks predict, each a field of the JSON."""

    input: str
    output: str
    score: float | None = None
    """The length-normalized log-probability, for beam search."""
    probabilities: dict[str, float] | None = None
    """The probability of each label, for classifiers; of the likeliest fillers, for masked models."""
    probability: float | None = None
    """The probability of the output, where the model has one: of a label, of a set of labels, of a sequence of tags."""

    @property
    def key(self) -> str | None:
        """Which of several outputs for one input this is, such as an aspect; None where there is one output."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `--json` prints and a server returns: fields that are None are left out."""
        found = {each.name: _plain(getattr(self, each.name)) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None or name == "score"}

    def to_row(self) -> dict[str, Any]:
        """The values of the columns of a table of predictions: see `Task.prediction_columns`."""
        return {"prediction": self.output, "probability": rounded(self.probability)}


@dataclass(frozen=True)
class Curve:
    """A line of a panel, with a band around it."""

    name: str
    """In the legend; curves and marks of one name have one color."""
    x: Sequence[float]
    y: Sequence[float | None]
    """None where a value is missing."""
    is_observed: bool = False
    """Whether it is data, which is drawn in black beside what a model computes."""
    is_points: bool = False
    """Whether it is points, without a line between them."""
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()
    band: str = ""
    """What the band from `lower` to `upper` is called."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a plot."""

    title: str
    curves: Sequence[Curve]
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By the names of curves, moments that are marked above them."""
    line: float | None = None
    """Where a vertical line is drawn."""
    end: float | None = None
    """Where a dotted line is drawn, and the axis ends."""
    labels: tuple[str, str] = ("", "")
    """The labels of the x axis and of the y axis."""
    ticks: Sequence[str] = ()
    """The names of x = 0, 1, 2, ..., a few of which are shown; none for numbers."""


@dataclass(frozen=True)
class Plot:
    """Panels with one legend."""

    panels: Sequence[Panel]
    per_row: int = 1
    description: str = ""
    """For readers who do not see it."""


@dataclass(frozen=True)
class DrawnImage:
    """An image that a model has drawn, or a training image beside it."""

    png: str
    """The image as a PNG file, in base64."""
    label: str = ""
    """The class that it was drawn for, or has; empty for none."""
    distance: float | None = None
    """The root mean squared difference between a training image and the generated one, in levels of 256."""
    nearest: "list[DrawnImage]" = field(default_factory=list)
    """The training images that differ least from it, where they are at hand."""


@dataclass(frozen=True)
class Drawing:
    """A drawing that the task has made, such as one of a tree."""

    caption: str
    svg: str
    """The drawing as an SVG file, with colors that are seen on white."""


@dataclass(frozen=True)
class Attribution:
    """The prediction for one aspect of a text, and the weight of each word in it."""

    aspect: str
    label: str
    probabilities: Mapping[str, float]
    words: Sequence[tuple[str, float]]
    """The words in their order, each with its weight; the weights sum to 1 unless the text was truncated."""
    target: str | None = None
    """The right label, where it is known."""

    @property
    def peak(self) -> float:
        """The weight of the darkest shade: the largest one, or a multiple of the mean where no word stands out."""
        weights = [weight for _, weight in self.words]
        return max(*weights, min(1.0, _OUTSTANDING / len(weights))) if weights else 1.0


@dataclass(frozen=True)
class Section:
    """A part of a report that a task defines; what is empty is left out."""

    title: str
    lead: str = ""
    """A paragraph below the title."""
    plot: Plot | None = None
    drawings: Sequence[Drawing] = ()
    images: Sequence[DrawnImage] = ()
    texts: Sequence[tuple[str, Sequence[Attribution]]] = ()
    """Texts whose words are shaded by their weights, once for each aspect."""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """A table: the cells of each row."""
    note: str = ""
    """A paragraph at the end."""


@dataclass(frozen=True)
class ReportContent:
    """What a report shows of a task, beside scores and curves."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    """Rows with `source`, `target`, `prediction` and `right`; errors first."""
    sample_names: tuple[str, str, str] = ("input", "expected", "predicted")
    """What the three texts of a sample are called."""
    confusion: dict[str, Any] | None = None
    """`labels`, and `counts` with a row for each true label and a column for each predicted one."""
    facts: dict[str, str] = field(default_factory=dict)
    """Short facts for the head of the report, such as the size of the vocabulary."""
    attention_inputs: list[tuple[str, str]] = field(default_factory=list)
    """Inputs whose attention can be drawn, and the output of each; the first one that is short enough is drawn."""
    sections: list[Section] = field(default_factory=list)
    """Further parts, below the learning curves."""


@dataclass(frozen=True)
class ServerSchema:
    """What a server accepts for a task."""

    inputs: tuple[str, ...] = ("text",)
    """The names of the parts of an input, which are separated by tabs."""
    placeholder: str = ""
    """An example of an input, or how to write one."""
    labels: tuple[str, ...] = ()
    output: Literal["text", "label", "tags", "span", "vector", "tree"] = "text"
    """How an output is displayed: a text, a label or number with probabilities, tags of words, a span, a vector, a tree
    in brackets."""
    streams: bool = False
    """Whether text is generated from a prompt, piece by piece."""
    has_beam_search: bool = False
    reads_files: bool = False
    """Whether inputs are paths of images. A server accepts data URIs instead, since clients could read its files."""


@dataclass(frozen=True)
class ExportSpec:
    """What an export needs to know of a model, whatever its task is called."""

    head: str
    labels: tuple[str, ...] = ()
    """In the order of the logits."""
    is_multi_label: bool = False
    scale: float = 1.0
    """With `shift`, the map from the model's output to a number in the units of the data."""
    shift: float = 0.0
    max_length: int | None = None
    """The largest number of tokens of a text."""
    unsupported: Mapping[str, bool | int] = field(default_factory=dict)
    """Settings in use that are not part of the network's logits, such as `task.crf`, with their values."""
    only_onnx: tuple[str, ...] = ()
    """Settings in use that only a graph of the whole model can represent, such as `task.ngrams`."""
    pooling: str | None = None
    """How hidden states become one vector."""
    has_hidden_layer: bool = False
    """Whether the head has a hidden layer with tanh."""


def number_section(inputs: Sequence[str], found: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Section:
    """Measured and predicted numbers: a panel for each name, and a table of the largest errors.

    Args:
        inputs: The texts of the rows.
        found: By name, the measured and the predicted number of each row; NaN where it was not measured.
    """
    panels, errors = [], []
    for name, (measured, predicted) in found.items():
        rows = [row for row in zip(inputs, measured, predicted, strict=True) if not math.isnan(row[1])]
        if not rows:
            continue  # of many properties, one may be measured in training rows only
        spread = math.sqrt(sum((one - other) ** 2 for _, one, other in rows) / max(1, len(rows))) or 1.0
        errors += [(abs(one - other) / spread, text, name, one, other) for text, one, other in rows]
        ends = [min(row[1] for row in rows), max(row[1] for row in rows)]
        line = Curve("exact", ends, ends, is_observed=True)
        points = Curve("predicted", [row[1] for row in rows], [row[2] for row in rows], is_points=True)
        panels.append(Panel(name, [line, points], labels=("measured", "predicted")))
    errors.sort(key=lambda error: (-error[0], error[1:3]))
    is_single = len(found) == 1
    rows = [
        (text, name, f"{one:.4g}", f"{other:.4g}", f"{other - one:+.3g}")
        for _, text, name, one, other in errors[:_LARGEST_ERRORS]
    ]
    columns = ("input", "property", "measured", "predicted", "error")
    return Section(
        "Predictions",
        f"{_NUMBERS} The table has the largest errors{'' if is_single else _RELATIVE}.",
        plot=Plot(panels, per_row=2, description="Measured and predicted numbers"),
        columns=(columns[0], *columns[2:]) if is_single else columns,
        rows=[(row[0], *row[2:]) if is_single else row for row in rows],
    )


def image_section(images: Sequence[DrawnImage], note: str = "") -> Section:
    """Images that a model has drawn, beside the training images that differ least from each."""
    return Section(
        "Generated images", _COMPARED if any(each.nearest for each in images) else _DRAWN, images=images, note=note
    )


_LARGEST_ERRORS = 20
_NUMBERS = "Held-out rows: on the line, a prediction is exact."
_RELATIVE = ", relative to those of the same property"
_DRAWN = "Images that the model has drawn."
_COMPARED = (
    "Each image that the model has drawn, and beside it the training images that differ least from it, with the root "
    "of the mean squared difference in levels of 256. A model that memorizes its training images draws copies of them."
)


def rounded(probability: float | None) -> float | None:
    """With as many digits as a reader of a table needs."""
    return None if probability is None else round(probability, 6)


def _plain(value: Any) -> Any:
    """With the objects of lists, such as spans, as JSON objects."""
    return [vars(each) if is_dataclass(each) else each for each in value] if isinstance(value, list) else value
