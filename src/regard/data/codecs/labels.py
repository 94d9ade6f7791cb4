"""Labels to class indices: one label for each value, or several."""

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from regard.data.codecs.codec import Codec
from regard.data.formats.messages import format_count
from regard.errors import DataError
from regard.files import load_json

_MOST_LISTED = 12


@dataclass(frozen=True)
class LabelCodec(Codec):
    """The labels of the training rows, in the order of their indices, and how many rows have each."""

    counts: dict[str, int]
    separator: str | None = None
    """The string between the labels of a value that may have several; None where each has one."""

    @classmethod
    def fit(cls, values: Iterable[str], *, separator: str | None = None) -> Self:
        """Collect the labels; numbers are sorted by value and precede other labels, which are sorted by name."""
        counts = Counter(label for value in values for label in split_labels(value, separator))
        if len(counts) == 1 and separator is None:
            label, count = next(iter(counts.items()))
            raise DataError(f"a classifier needs at least two labels: all {format_count(count, 'row')} have {label!r}")
        return cls({label: counts[label] for label in sorted(counts, key=_numbers_first)}, separator)

    @property
    def labels(self) -> list[str]:
        return list(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def split(self, value: str) -> list[str]:
        """The labels of one value."""
        return split_labels(value, self.separator)

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """The indices of each value's labels; `len(self)` for one that does not occur among the training rows."""
        indices = {label: index for index, label in enumerate(self.counts)}
        return [[indices.get(label, len(self)) for label in self.split(value)] for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        labels, between = self.labels, f"{self.separator} "
        return [between.join(labels[index] for index in some) for some in ids]

    def unknown(self, values: Iterable[str]) -> list[str]:
        """The distinct labels of `values` that training did not see, in order."""
        return list(dict.fromkeys(label for value in values for label in self.split(value) if label not in self.counts))

    def labels_with(self, values: Iterable[str]) -> list[str]:
        """The labels of the training rows, and after them those of `values` that training did not see."""
        return [*self.labels, *self.unknown(values)]

    def describe(self, kind: str = "label") -> str:
        """One line for the log: how many labels there are, and the most frequent ones."""
        return f"{format_count(len(self), kind)}: {format_frequencies(self.counts)}"

    def to_json(self) -> str:
        return json.dumps({"labels": self.counts, "separator": self.separator}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = load_json(text)
        labels, separator = values["labels"], values["separator"]
        if not isinstance(labels, dict) or not all(isinstance(count, int) for count in labels.values()):
            raise ValueError("labels must be an object with the count of each")
        if separator is not None and (not isinstance(separator, str) or not separator):
            raise ValueError(f"the separator must be a text or null, got {separator!r}")
        return cls(labels, separator)


def split_labels(value: str, separator: str | None) -> list[str]:
    """The labels of a value: one, or any number of them with a separator.

    Example:
        >>> split_labels(" cats, dogs ,", ","), split_labels("cats, dogs", None)
        (['cats', 'dogs'], ['cats, dogs'])
    """
    if separator is None:
        return [value.strip()]
    return list(dict.fromkeys(part.strip() for part in value.split(separator) if part.strip()))


def format_frequencies(counts: dict[str, int]) -> str:
    """The most frequent labels and their counts."""
    frequent = sorted(counts, key=lambda label: -counts[label])
    more = f" and {len(frequent) - _MOST_LISTED} more" if len(frequent) > _MOST_LISTED else ""
    return ", ".join(f"{label} ({counts[label]:,})" for label in frequent[:_MOST_LISTED]) + more


def describe_unknown(
    known: Container[str], rows: Iterable[Sequence[str]], where: str, kind: str = "label"
) -> str | None:
    """A warning about labels of held-out rows that are not among the `known` ones, or None."""
    found = [[label for label in labels if label not in known] for labels in rows]
    count = sum(map(bool, found))
    if not count:
        return None
    unknown = Counter(label for labels in found for label in labels)
    return (
        f"{format_count(count, 'row')} of {where} {'has' if count == 1 else 'have'} a {kind} that no training row has: "
        f"{format_frequencies(unknown)}; each counts as an error"
    )


def _numbers_first(label: str) -> tuple[bool, float, str]:
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
