"""Built-in data sets, which are generated: nothing is downloaded or stored.

Each is a function of a number of rows and a seed, and the same two numbers give the same rows.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

from regard.data.builtin.dates import LOCALES, generate_dates
from regard.data.builtin.molecules import generate_molecules
from regard.data.builtin.patients import generate_patients, patients_log_likelihood
from regard.data.builtin.ratings import RATERS, generate_answers, generate_ratings, preference_ceiling
from regard.data.builtin.rings import generate_rings
from regard.data.builtin.sales import STORES, generate_sales
from regard.data.builtin.scenes import SIZE, generate_scenes
from regard.errors import DataError

__all__ = ["BuiltinData", "builtin_names", "find_builtin"]


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
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()


def builtin_names() -> list[str]:
    """The names of the built-in data sets, sorted."""
    return sorted(_BUILTIN)


def find_builtin(name: str) -> BuiltinData:
    """Return the built-in data set with this name."""
    if name not in _BUILTIN:
        names = builtin_names()
        nearest = get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise DataError(
            f"name must be that of a built-in data set ({', '.join(names)}), got {name!r}; the nearest is {nearest!r}"
        )
    return _BUILTIN[name]


_DATES = BuiltinData(
    name="dates",
    description=f"dates as people write them in {len(LOCALES)} locales, to ISO 8601",
    columns=("source", "target"),
    num_rows=100_000,
    tokenizer="characters",
    generate=generate_dates,
)
_RINGS = BuiltinData(
    name="rings",
    description="graphs of two rings that are fused or joined, which distances distinguish and degrees do not",
    columns=("graph", "label"),
    num_rows=2_000,
    tokenizer="",
    generate=generate_rings,
)
_SALES = BuiltinData(
    name="sales",
    description=f"daily sales of {len(STORES)} stores, with a trend, a week, a year and noise of known variance",
    columns=("date", "store", "sales"),
    num_rows=4 * 3 * 365,
    tokenizer="",
    generate=generate_sales,
)
_PATIENTS = BuiltinData(
    name="patients",
    description="visits, medications, relapses and admissions of patients, from a process of known likelihood",
    columns=("subject", "time", "event", "marker"),
    num_rows=150_000,
    tokenizer="",
    generate=generate_patients,
    log_likelihood=patients_log_likelihood,
)
_SCENES = BuiltinData(
    name="scenes",
    description=f"pictures of {SIZE} x {SIZE} pixels with colored shapes, two captions of each, and boxes of the words",
    columns=("image", "caption", "grounding"),
    num_rows=20_000,
    tokenizer="",
    generate=generate_scenes,
)
_MOLECULES = BuiltinData(
    name="molecules",
    description="molecules of a few ring systems and groups, with a solubility that their parts determine",
    columns=("smiles", "solubility"),
    num_rows=1_000,
    tokenizer="smiles",
    generate=generate_molecules,
)
_RATINGS = BuiltinData(
    name="ratings",
    description=f"pairs of answers of which {len(RATERS)} raters with known noise have chosen one, by a known utility",
    columns=("prompt", "chosen", "rejected", "rater"),
    num_rows=24_000,
    tokenizer="words",
    generate=generate_ratings,
    true_reward="regard.data.builtin.ratings:utility",
    preference_ceiling=preference_ceiling,
)
_ANSWERS = BuiltinData(
    name="answers",
    description="prompts with answers of any quality: the text for a language model that is then aligned by ratings",
    columns=("text",),
    num_rows=8_000,
    tokenizer="words",
    generate=generate_answers,
)
_BUILTIN = {data.name: data for data in (_ANSWERS, _DATES, _MOLECULES, _PATIENTS, _RATINGS, _RINGS, _SALES, _SCENES)}
