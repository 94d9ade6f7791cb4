"""A user's file for a study: running text as characters, or rows of texts or numbers with a label or a number each.

Files are read as in training, by the task that recognizes them; tables of numbers, which no task is for, by their
columns. Texts become their leading components: Deerwester et al., "Indexing by Latent Semantic Analysis" (1990), of
TF-IDF vectors.

Dimensions: `row` of the file, `input` features of a row.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.baselines.linear import make_features
from regard.data.codecs.numbers import parse_number
from regard.data.formats.cells import decimal_mark, with_decimal_point
from regard.data.formats.files import check_file, iter_blocks
from regard.data.formats.messages import format_column
from regard.data.formats.summary import describe
from regard.data.formats.tables import open_table
from regard.data.settings import DataConfig
from regard.errors import DataError, UnknownTaskError
from regard.logging import log_info
from regard.tasks.detection import readable_rows
from regard.tasks.labeled_columns import LABEL_COLUMNS
from regard.tasks.registry import detect_task, find_task, make_task

MOST_INPUTS = 50
"""Features of a text: more components of small collections are mostly noise."""
_MOST_ROWS = 20_000
_FEWEST_ROWS = 60
_BLOCK = 1 << 16
_TARGET_COLUMNS = (*LABEL_COLUMNS, "target", "y", "quality", "price", "score", "rating")
_KINDS = ("numbers", "labels")


@dataclass(frozen=True)
class LabeledRows:
    """Rows with features and a target each."""

    inputs: Float[Tensor, "row input"]
    """With a mean of 0 and, over all features, a variance of 1."""
    targets: Float[Tensor, " row"]
    """Labels of -1 and 1, or standardized numbers."""
    kind: Literal["labels", "numbers"]
    description: str
    """What the features and targets are."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def signs(self) -> Float[Tensor, " row"]:
        """Labels of -1 and 1; of numbers, whether they are above the median."""
        if self.kind == "labels":
            return self.targets
        return torch.where(self.targets > self.targets.median(), 1.0, -1.0).to(self.targets)


def read_labeled_rows(path: str, *, study: str, seed: int = 0) -> LabeledRows:
    """Read a table of texts or numbers with a label or a number in its target column.

    Of several labels, the most frequent one is compared with all others.

    Raises:
        DataError: If the file is of another kind, or too small.
    """
    found = _read_numbers(path) or _read_texts(path, study, seed)
    inputs, targets, features, target = found
    if len(targets) < _FEWEST_ROWS:
        raise DataError(f"{study} needs at least {_FEWEST_ROWS} rows, and {path} has {len(targets)}")
    kind: Literal["labels", "numbers"] = "numbers"
    if isinstance(targets[0], str):
        (label, _), *others = Counter(targets).most_common()
        if not others:
            raise DataError(f"{study} needs two labels or more, and all rows of {path} have {label!r}")
        target = f"{target}: {label!r} against {repr(others[0][0]) if len(others) == 1 else 'all others'}"
        values, kind = torch.tensor([1.0 if each == label else -1.0 for each in targets], dtype=torch.float64), "labels"
    else:
        numbers = torch.tensor(targets, dtype=torch.float64)
        if float(numbers.std()) == 0:
            raise DataError(f"{study} needs targets that differ, and all rows of {path} have {targets[0]}")
        values = (numbers - numbers.mean()) / numbers.std()
    description = f"{features}; {target}"
    log_info(f"{len(targets):,} rows: {description}")
    centered = torch.from_numpy(np.asarray(inputs, dtype=np.float64))
    centered = centered - centered.mean(dim=0)
    return LabeledRows(centered / centered.square().mean().sqrt(), values, kind, description)


def read_characters(path: str, *, study: str) -> tuple[Int[Tensor, " time"], int]:
    """The characters of a text file, numbered by frequency, and the number of distinct ones."""
    check_file(path)
    if (name := _task_of(path)) is not None and find_task(name).architecture != "decoder":
        raise DataError(
            f"{study} reads running text, and {path} is recognized as data for {find_task(name).description}"
        )
    text = np.array(list("".join(iter_blocks(path, block_length=_BLOCK))))
    distinct, numbers, counts = np.unique(text, return_inverse=True, return_counts=True)
    ranks = np.empty(len(distinct), dtype=np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(distinct))
    return torch.from_numpy(ranks[numbers]), len(distinct)


_Columns = tuple[np.ndarray, Sequence[str] | Sequence[float], str, str]
"""Features, targets, and what they are."""


def _task_of(path: str) -> str | None:
    """The task that recognizes the file; None where none does."""
    try:
        return detect_task(DataConfig.read({"train": [path]}, section="data"))[0]
    except UnknownTaskError:
        return None


def _read_numbers(path: str) -> _Columns | None:
    """The columns of a table of numbers; None where it has text, dates, images or no columns."""
    summary = describe(path)
    columns = [column for column in summary.columns if column.name not in summary.index]
    if len(columns) < 2 or any(column.kind not in _KINDS for column in columns):
        return None
    target = next((column for column in columns if column.plain_name in _TARGET_COLUMNS), columns[-1])
    features = [column for column in columns if column is not target and column.kind == "numbers"]
    if not features:
        return None
    names = [column.name for column in features]
    table = open_table(path, columns=[*names, target.name], roles=[*names, target.name], skip_bad=True)
    rows = list(islice(readable_rows(table), _MOST_ROWS))
    marks = [decimal_mark(column.cells) for column in features]
    inputs = np.array([[_number(cell, mark) for cell, mark in zip(row, marks, strict=False)] for row in rows])
    deviations = inputs.std(axis=0)
    inputs = (inputs - inputs.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
    targets: Sequence[str] | Sequence[float] = [row[-1].strip() for row in rows]
    if target.is_measurement:
        targets = [_number(row[-1], decimal_mark(target.cells)) for row in rows]
    described = f"{len(features)} columns of numbers, standardized"
    return inputs, targets, described, f"the target is {format_column(target.name)}"


def _number(cell: str, mark: str) -> float:
    return parse_number(with_decimal_point(cell, mark))


def _read_texts(path: str, study: str, seed: int) -> _Columns:
    name = _task_of(path)
    task = None if name is None else find_task(name)
    if task is None or task.input_kind != "tokens" or task.head_kind not in ("labels", "number"):
        what = "no task recognizes it" if task is None else f"it is recognized as data for {task.description}"
        raise DataError(
            f"{study} reads a table of texts or numbers with a label or a number in each row, and {path} is not one: "
            f"{what}"
        )
    config = DataConfig.read({"train": [path]}, section="data")
    bound = make_task(task.Settings.draft({"name": name}, section="task"))
    rows = list(islice(readable_rows(bound.open(config).train), _MOST_ROWS))
    texts = [" ".join(row[:-1]) for row in rows]
    targets: Sequence[str] | Sequence[float] = [row[-1].strip() for row in rows]
    if task.head_kind == "number":
        targets = [parse_number(row[-1]) for row in rows]
    vectors = make_features(texts, num_outputs=1).fit_transform(texts)
    from sklearn.decomposition import TruncatedSVD

    number = min(MOST_INPUTS, vectors.shape[1] - 1, len(texts) - 1)
    inputs = TruncatedSVD(number, random_state=seed).fit_transform(vectors)
    return (
        inputs,
        targets,
        f"the {number} leading components of TF-IDF vectors of texts",
        "the target is the last column",
    )
