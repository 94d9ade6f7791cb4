"""Data sets that are generated, so that they are always at hand.

Each is a function of a number of rows and a seed: nothing is downloaded, nothing is
stored, and the same two numbers give the same rows again.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path

from regard.data.builtin.dates import LOCALES, generate_dates
from regard.errors import DataError


@dataclass(frozen=True)
class BuiltinData:
    """A data set by name, and the function that writes its rows.

    Example:
        >>> dates = builtin("dates")
        >>> rows = list(dates.generate(3, 0))
        >>> len(rows), dates.columns
        (3, ('source', 'target'))
    """

    name: str
    description: str
    columns: tuple[str, ...]
    num_rows: int
    """How many rows to generate where nobody says."""
    tokenizer: str
    """How its text is best cut into tokens where nobody says."""
    generate: Callable[[int, int], Iterator[tuple[str, ...]]]
    """From a number of rows and a seed to the rows, each as long as `columns`."""

    def content_hash(self, num_rows: int, seed: int) -> str:
        """A hash that tells rows apart without generating them: of all that they are made from."""
        digest = hashlib.sha256(f"{self.name} {num_rows} {seed} {metadata.version('babel')}".encode())
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()


def builtin_names() -> list[str]:
    """The names that `builtin` knows, sorted."""
    return sorted(_BUILTIN)


def builtin(name: str) -> BuiltinData:
    """The generated data set called `name`."""
    if name not in _BUILTIN:
        names = builtin_names()
        nearest = get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise DataError(
            f"name must be that of a built-in data set ({', '.join(names)}), got {name!r}; the nearest is {nearest!r}"
        )
    return _BUILTIN[name]


_BUILTIN = {
    data.name: data
    for data in (
        BuiltinData(
            name="dates",
            description=f"dates as people write them in {len(LOCALES)} locales, to ISO 8601",
            columns=("source", "target"),
            num_rows=100_000,
            tokenizer="characters",
            generate=generate_dates,
        ),
    )
}
