"""How rows become columns of ids: what each task puts into a store.

A coding sees every row once before any is stored, so that it may learn what
there is (such as all labels), and then turns rows into ids, column by column.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from regard.data.columns import count_of, listing
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

Row = Sequence[str]
Columns = list[list[list[int]]]
"""For each column, the ids of each row."""


class Coding(Protocol):
    """What a task makes of its rows."""

    columns: tuple[str, ...]

    def see(self, row: Row) -> None:
        """Take in a row of the training file, before any is stored."""
        ...

    def texts(self, row: Row) -> Sequence[str]:
        """What of a row a tokenizer is to learn from."""
        ...

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        """The ids of these rows."""
        ...

    def learned(self) -> "Learned":
        """What the rows have shown."""
        ...


@dataclass(frozen=True)
class Learned:
    """What the rows of a training file say besides their texts; where they say nothing, nothing."""

    labels: dict[str, int] = field(default_factory=dict)
    """Which there are, in the order of their numbers, and how often each was seen."""
    aspects: dict[str, int] = field(default_factory=dict)
    """The same for what labels are about."""
    center: float = 0.0
    """The mean of the numbers to be foretold,"""
    spread: float = 1.0
    """and their standard deviation."""


class TextCoding:
    """Each role of a row is a text, and a column of its tokens."""

    def __init__(self, roles: Sequence[str]) -> None:
        self.columns = tuple(roles)

    def see(self, row: Row) -> None:
        """There is nothing to learn."""

    def texts(self, row: Row) -> Sequence[str]:
        return row

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        encoded = tokenizer.encode([row[index] for index in range(len(self.columns)) for row in rows])
        return [encoded[index * len(rows) : (index + 1) * len(rows)] for index in range(len(self.columns))]

    def learned(self) -> Learned:
        return Learned()


class LabelCoding:
    """One text or two, and what they are called: the last of a row, one label or several."""

    columns: tuple[str, ...] = ("text", "label")

    def __init__(self, *, max_length: int, separator: str | None = None) -> None:
        self._max_length, self._separator = max_length, separator
        self._counts: Counter[str] = Counter()

    def labels(self, row: Row) -> list[str]:
        """What a row is called."""
        return labels_of(row[-1], self._separator)

    def see(self, row: Row) -> None:
        self._counts.update(self.labels(row))

    def texts(self, row: Row) -> Sequence[str]:
        return row[:-1]

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        numbers = {label: number for number, label in enumerate(self.learned().labels)}
        known = [[numbers[label] for label in self._known(row[-1], numbers)] for row in rows]
        return [encode_texts([row[:-1] for row in rows], tokenizer, self._max_length), known]

    def learned(self) -> Learned:
        if len(self._counts) == 1 and self._separator is None:
            (label, count) = next(iter(self._counts.items()))
            raise DataError(f"all {count_of(count, 'row')} have the label {label!r}: there is nothing to tell apart")
        return Learned({label: self._counts[label] for label in sorted(self._counts, key=_as_number_or_text)})

    def _known(self, text: str, numbers: dict[str, int]) -> list[str]:
        labels = labels_of(text, self._separator)
        for label in labels:
            if label not in numbers:
                raise DataError(
                    f"the label {label!r} of a held-out row does not occur among the training rows, "
                    f"which have {listing(list(numbers))}"
                )
        return labels


class NumberCoding:
    """One text or two, and a number: the last of a row, stored as the bytes of a float32."""

    columns: tuple[str, ...] = ("text", "number")

    def __init__(self, *, max_length: int) -> None:
        self._max_length = max_length
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def see(self, row: Row) -> None:
        # Welford (1962): the squares are those of distances from the mean, which is not known beforehand.
        number = number_of(row[-1], beside=row[0])
        self._count += 1
        before = number - self._mean
        self._mean += before / self._count
        self._squares += before * (number - self._mean)

    def texts(self, row: Row) -> Sequence[str]:
        return row[:-1]

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        numbers = [list(np.float32(number_of(row[-1], beside=row[0])).tobytes()) for row in rows]
        return [encode_texts([row[:-1] for row in rows], tokenizer, self._max_length), numbers]

    def learned(self) -> Learned:
        if self._squares == 0.0:
            raise DataError(
                f"all {count_of(self._count, 'row')} have the number {self._mean:g}: there is nothing to learn"
            )
        return Learned(center=self._mean, spread=math.sqrt(self._squares / self._count))


def labels_of(text: str, separator: str | None) -> list[str]:
    """The labels of a row: one, or, with a separator, any number of them.

    Example:
        >>> labels_of(" cats, dogs ,", ","), labels_of("cats, dogs", None)
        (['cats', 'dogs'], ['cats, dogs'])
    """
    if separator is None:
        return [text.strip()]
    return list(dict.fromkeys(part.strip() for part in text.split(separator) if part.strip()))


def number_of(text: str, *, beside: str) -> float:
    """The number that a row ends with; `beside` is what it begins with, for an error to name it."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"a row must end with a number, got {text!r} behind {beside[:60]!r}")
    return number


def encode_texts(rows: Sequence[Row], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
    """Each row's texts as one sequence: the start, and behind each text the end.

    A row with more than `max_length` tokens is cut, its longest text first.
    """
    width = len(rows[0]) if rows else 0
    flat = tokenizer.encode([text for row in rows for text in row])
    return [joined(flat[place : place + width], tokenizer, max_length) for place in range(0, len(flat), width)]


def joined(parts: Sequence[list[int]], tokenizer: Tokenizer, max_length: int) -> list[int]:
    """Texts one behind the other, as `encode_texts` has them."""
    room = max_length - 1 - len(parts)
    lengths = [len(part) for part in parts]
    while sum(lengths) > max(room, 0):
        longest = max(range(len(lengths)), key=lambda number: lengths[number])
        others = max((length for number, length in enumerate(lengths) if number != longest), default=0)
        lengths[longest] = max(min(others, lengths[longest] - 1), lengths[longest] - (sum(lengths) - max(room, 0)))
    ids = [tokenizer.start]
    for part, length in zip(parts, lengths, strict=True):
        ids += [*part[:length], tokenizer.end]
    return ids


def _as_number_or_text(label: str) -> tuple[bool, float, str]:
    """Numbers in their order, before words in theirs."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
