"""Splitting by time: the first rows are for training, the next for validation, the last for the test.

A model is then evaluated on rows that are later than those it was trained on, as it is in use. Rows with the same
timestamp stay together. A timestamp is a number, or a date with or without a time in ISO 8601.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from regard.data.formats.cells import Timestamp, TimestampKind, parse_timestamp
from regard.data.formats.messages import format_column, format_count
from regard.data.settings import DataConfig
from regard.data.splits.by_group import cut_whole, size_warnings
from regard.data.splits.by_hash import SPLIT_PURPOSES, SplitEntry, SplitPlan, held_out_counts
from regard.errors import DataError

ROW_ORDER = "rows"
"""The value of `data.order` if the order of the file is that of time."""


@dataclass(frozen=True)
class TimeSplit:
    """Assigns rows by their timestamp."""

    train_from: float
    """Rows before this are not used; the training rows follow."""
    valid_from: float
    """The validation rows begin here."""
    test_from: float
    """The test rows begin here."""

    @property
    def has_validation(self) -> bool:
        return self.valid_from < self.test_from

    def assign(self, row: Sequence[str], key: str) -> str:
        time = _parse(key).value
        if time >= self.valid_from:
            return "test" if time >= self.test_from else "valid"
        return "train" if time >= self.train_from else "unused"


def plan_by_time(entries: Iterable[SplitEntry], config: DataConfig, *, has_test: bool, column: str) -> SplitPlan:
    """Count the rows and decide the split, in one pass that keeps one number for each row.

    With `train_rows`, the last rows before the validation rows are used for training.
    """
    times, num_characters = array("d"), 0
    kind: TimestampKind = "number"
    for row, key in entries:
        timestamp = _parse(key)
        kind = timestamp.kind
        times.append(timestamp.value)
        num_characters += sum(map(len, row))
    distinct, weights = np.unique(np.array(times), return_counts=True)
    num_valid, num_test = held_out_counts(config, len(times), has_valid=False, has_test=has_test)
    wanted = [num_test, num_valid, config.train_rows or len(times)]
    test, valid, train = (len(distinct) - taken for taken in cut_whole(weights[::-1], wanted))
    if valid == 0:
        raise DataError(
            f"{len(times):,} rows with {format_count(len(distinct), 'timestamp')} are too few to hold out the last for "
            "validation and the test: rows with the same timestamp stay together"
        )
    limits = (float(distinct[start]) if start < len(distinct) else math.inf for start in (train, valid, test))
    rows = {"valid": int(weights[valid:test].sum()), "test": int(weights[test:].sum())}
    starts = [train, valid, test, len(distinct)]
    ranges = [
        f"{Timestamp(kind, distinct[start])} to {Timestamp(kind, distinct[end - 1])} {purpose}"
        for purpose, start, end in zip(SPLIT_PURPOSES.values(), starts, starts[1:], strict=False)
        if start < end
    ]
    order = "the rows, by their lines" if column == ROW_ORDER else format_column(column)
    return SplitPlan(
        len(times),
        num_characters,
        TimeSplit(*limits),
        None,
        [f"split in the order of {order}: {', '.join(ranges)}"],
        size_warnings(rows, {"valid": num_valid, "test": num_test}, "rows with the same timestamp stay together"),
    )


def _parse(key: str) -> Timestamp:
    timestamp = parse_timestamp(key)
    assert timestamp is not None, "a row without a timestamp is a bad row"
    return timestamp
