"""Built-in data sets, which are generated: nothing is downloaded or stored.

Each is a function of a number of rows and a seed, and the same two numbers give the same rows. A package adds one by an
entry point of the group `regard.datasets`; those of this folder are declared in the same way.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.registry import Registry

__all__ = ["DATASETS", "BuiltinData", "builtin_names", "find_builtin"]


@dataclass(frozen=True)
class BuiltinData:
    """A generated data set.

    Example:
        >>> dates = find_builtin("dates")
        >>> rows = list(dates.generate(3, 0))
        >>> len(rows), dates.columns
        (3, ('source', 'target'))
    """

    name: str
    description: str
    columns: tuple[str, ...]
    num_rows: int
    """The default number of rows."""
    tokenizer: str
    """The default kind of tokenizer; empty where rows have no text."""
    generate: Callable[[int, int], Iterator[tuple[str, ...]]]
    """Generates rows from their number and a seed."""
    log_likelihood: Callable[[Iterable[Any]], tuple[list[float], list[int]]] | None = None
    """For events of a known process: the exact log-likelihood of histories, in nats, and their numbers of events."""
    true_reward: str | None = None
    """For answers of known utility: the function of a prompt and an answer that computes it, as `module:function`."""
    preference_ceiling: Callable[[Sequence[Sequence[str]]], float] | None = None
    """For preferences with known noise: the accuracy on rows that a model of them cannot exceed but by chance."""

    def content_hash(self, num_rows: int, seed: int) -> str:
        """A hash that identifies the rows without generating them: of the arguments, the code and Babel's version."""
        digest = hashlib.sha256(f"{self.name} {num_rows} {seed} {metadata.version('babel')}".encode())
        code = Path(inspect.getfile(self.generate))
        is_package = (code.parent / "__init__.py").exists()
        for path in sorted(code.parent.glob("*.py")) if is_package else [code]:
            digest.update(path.read_bytes())
        return digest.hexdigest()


DATASETS: Registry[BuiltinData] = Registry(
    "regard.datasets", "built-in data set", members=("name", "description", "columns", "num_rows", "generate")
)


def builtin_names() -> list[str]:
    """The names of the built-in data sets, sorted."""
    return DATASETS.names()


def find_builtin(name: str) -> BuiltinData:
    """Return the built-in data set with this name."""
    names = builtin_names()
    if name not in names:
        nearest = get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise DataError(
            f"name must be that of a built-in data set ({', '.join(names)}), got {name!r}; the nearest is {nearest!r}"
        )
    return DATASETS.find(name)
