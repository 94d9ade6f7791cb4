"""What is said about what: rows of a text, an aspect of it, and a label."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from regard.data.coding import Columns, LabelCoding, Learned, Row
from regard.data.columns import listing
from regard.data.config import DataConfig
from regard.data.records import Record
from regard.data.sources import Rows, Source, open_source
from regard.data.tables import Table
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

ROLES = ("text", "aspect", "label")
_LABEL = ROLES.index("label")

_ROWS_SEEN = 10_000
"""Rows that are looked at before it is said that some are ignored."""


def open_aspects(config: DataConfig, rows: Rows | None = None) -> Source:
    """Find the rows that the settings name, or those in memory, without those of ignored labels."""
    source = open_source(config, ROLES, rows)
    ignored = frozenset(config.ignored_labels)
    if not ignored:
        return source
    train, valid, test = (
        None if table is None else _without(table, ignored) for table in (source.train, source.valid, source.test)
    )
    assert train is not None, "a source has rows to train on"
    return replace(source, train=train, valid=valid, test=test)


class AspectCoding:
    """A text with its aspect behind it as one sequence, and the numbers of its label and of its aspect.

    An aspect that only held-out rows have gets the number behind the last.
    """

    columns: tuple[str, ...] = ("text", "label")

    def __init__(self, *, max_length: int) -> None:
        self._labels = LabelCoding(max_length=max_length)
        self._aspects: Counter[str] = Counter()

    def labels(self, row: Row) -> list[str]:
        """What is said of the aspect."""
        return self._labels.labels(row)

    def see(self, row: Row) -> None:
        self._labels.see(row)
        self._aspects[row[1].strip()] += 1

    def texts(self, row: Row) -> Sequence[str]:
        return row[:2]

    def encode(self, rows: Sequence[Row], tokenizer: Tokenizer) -> Columns:
        texts, labels = self._labels.encode(rows, tokenizer)
        known = list(self._sorted())
        aspects = [number_of(row[1], known) for row in rows]
        return [texts, [[*label, aspect] for label, aspect in zip(labels, aspects, strict=True)]]

    def learned(self) -> Learned:
        return replace(self._labels.learned(), aspects=self._sorted())

    def _sorted(self) -> dict[str, int]:
        """The commonest first."""
        return dict(sorted(self._aspects.items(), key=lambda item: (-item[1], item[0])))


def number_of(aspect: str, known: Sequence[str]) -> int:
    """The place of an aspect among those known, or the one behind them."""
    return known.index(aspect.strip()) if aspect.strip() in known else len(known)


def unknown_aspect(aspect: str, known: Sequence[str]) -> DataError:
    """The error for an aspect that a model has no query for."""
    return DataError(f"the model knows no aspect {aspect.strip()!r}, it knows {listing(known)}")


def require_known(rows: Sequence[Row], known: Sequence[str]) -> None:
    """Refuse held-out rows with an aspect that no training row has."""
    for row in rows:
        if row[1].strip() not in known:
            raise DataError(
                f"the aspect {row[1].strip()!r} of a held-out row does not occur among the training rows, which have "
                f"{listing(known)}; a model that reads the aspect beside the text (head.aspect=pair) needs no list"
            )


def _without(table: Table, ignored: frozenset[str]) -> Table:
    found = sorted({values[_LABEL].strip() for _, values, _ in islice(table.read(), _ROWS_SEEN) if values} & ignored)
    guesses = [f"{table.name}: rows with the label {listing(found)} are ignored"] if found else []
    return replace(table, guesses=[*table.guesses, *guesses], read=partial(_read_without, table.read, ignored))


def _read_without(read: Callable[[], Iterator[Record]], ignored: frozenset[str]) -> Iterator[Record]:
    return (record for record in read() if not record[1] or record[1][_LABEL].strip() not in ignored)
