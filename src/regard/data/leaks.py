r"""Held-out rows that are training rows too, or nearly: what a model could have learnt by heart.

Lee et al., "Deduplicating Training Data Makes Language Models Better" (2022). https://arxiv.org/abs/2107.06499

A text is taken apart into its pieces: all runs of five characters in it, whatever
their case. Two texts are as similar as the share of their pieces that both have,
Jaccard's $J = |A \cap B| / |A \cup B|$; two rows as the least similar of their
columns. So a row is nearly another where *all* of it is: question and answer,
text and label. The same question with another answer, or a text under another
label, is no leak: whoever has learnt it by heart is wrong.

One changed character inside a text changes five pieces, which leaves a similarity
of 0.8 from 49 characters on. In shorter texts only changes at the ends pass, such
as a full stop, and those of case and spacing. In very short ones such a change
is as likely another number or name (`4 March 2025` and `4 March 2026` are two
questions), so that a text of fewer than 20 characters is one piece, itself, as it
is written: a label, a date or a name is the same or it is not. Rows all of whose
texts are short are compared whole and no further.

What is called nearly the same is so, by its true similarity. Of what is so next
to nothing is missed (`regard.data.minhash`), but where many held-out rows are
alike: then some of them are looked at for each training row, not all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from regard.data.minhash import PIECE, Row, Search, is_long
from regard.data.splits import row_hash
from regard.errors import ConfigError

THRESHOLD = 0.8
"""The similarity from which on two rows are nearly the same."""
MOST_ROWS = 20_000
"""Held-out rows of a set that are looked for; of more, so many are drawn."""
_CHUNK_CHARACTERS, _CHUNK_ROWS = 1 << 20, 20_000
_EXAMPLES = 3
_SHOWN = 80


@dataclass(frozen=True)
class Overlap:
    """What one held-out set has in common with the training rows."""

    num_rows: int
    num_identical: int
    num_compared: int
    """Rows that were looked for among the training rows, as long as `SHORT` in some column."""
    num_near: int
    """Of those compared, the ones that are nearly a training row, and not identical to any."""
    is_sample: bool
    """Whether those compared are a draw of more."""


class Example(NamedTuple):
    """A held-out row, and the training row that it nearly is."""

    role: str
    held_out: Row
    training: Row
    similarity: float


@dataclass(frozen=True)
class Leaks:
    """Held-out rows that a model has seen, or nearly."""

    overlaps: Mapping[str, Overlap]
    """By the name of the set."""
    examples: Sequence[Example]
    """A few of those that are nearly the same, the least similar of each set first: there the reader can judge."""
    threshold: float

    def told(self, what: str = "rows") -> list[str]:
        """One sentence for each thing found; none where nothing was."""
        sentences = []
        for role, found in self.overlaps.items():
            if found.num_identical:
                sentences.append(
                    f"{found.num_identical:,} of the {found.num_rows:,} {role} {what} are training {what} too: "
                    "scores on them flatter the model"
                )
            if found.num_near:
                compared = f"{found.num_compared:,} {role} {what} that were drawn to be compared"
                whole = compared if found.is_sample else f"{found.num_rows:,} {role} {what}"
                example = next(each for each in self.examples if each.role == role)
                sentences.append(
                    f"{found.num_near:,} of the {whole} are nearly training {what} ({self.threshold:.0%} or more of "
                    f"their {PIECE}-grams are shared): scores on them may flatter the model"
                    # Nobody is to read a test row before the test.
                    + (
                        ""
                        if role == "test"
                        else f"; for example {_shown(example.held_out)}, where training has {_shown(example.training)}"
                    )
                )
        return sentences


def near_duplicates(
    train_rows: Iterable[Row], held_out: Mapping[str, Sequence[Row]], *, threshold: float = THRESHOLD, seed: int = 0
) -> Leaks:
    """Find the held-out rows that are training rows too, or nearly.

    Training rows are read once, a chunk at a time, so there may be any number;
    held-out rows are all compared whole, and of those of a set that are long
    enough at most `MOST_ROWS`, drawn at random, piece by piece.

    Args:
        train_rows: All rows that are trained on.
        held_out: Rows by the name of their set, with the same columns.
        threshold: The least similarity of rows that are nearly the same.
        seed: Of the hashes, and of what is drawn.

    Example:
        >>> train = [("the cat sat quietly on the old mat by the door", "animal")]
        >>> valid = [("The cat sat quietly on the old mat by the door.", "animal"), ("a dog ran", "animal")]
        >>> found = near_duplicates(train, {"valid": valid})
        >>> found.overlaps["valid"].num_near, round(found.examples[0].similarity, 2)
        (1, 0.98)
    """
    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"threshold must lie in (0, 1], got {threshold}")
    rng = np.random.default_rng(seed)
    everything = [(role, row) for role, rows in held_out.items() for row in rows]
    hashes = [row_hash(row) for _, row in everything]
    chosen = _choose(everything, rng)
    search = Search([everything[i][1] for i in chosen], threshold, rng)
    wanted, seen = set(hashes), set()
    for chunk in _chunks(train_rows):
        seen |= wanted.intersection(map(row_hash, chunk))
        search.look(chunk)
    near = {
        i: (training, similarity)
        for i, (training, similarity) in zip(chosen, search.decide(), strict=True)
        if similarity >= threshold and hashes[i] not in seen
    }
    overlaps, examples, start = {}, [], 0
    for role, rows in held_out.items():
        own = range(start, start + len(rows))
        start += len(rows)
        compared = [i for i in chosen if i in own]
        mine = sorted((i for i in compared if i in near), key=lambda i: near[i][1])
        num_long = sum(is_long(row) for row in rows)
        identical = sum(hashes[i] in seen for i in own)
        overlaps[role] = Overlap(len(rows), identical, len(compared), len(mine), len(compared) < num_long)
        examples += [Example(role, everything[i][1], *near[i]) for i in mine[:_EXAMPLES]]
    return Leaks(overlaps, examples, threshold)


def _choose(everything: Sequence[tuple[str, Row]], rng: np.random.Generator) -> list[int]:
    """The rows that are long enough, by their numbers, or a draw of them where a set has very many."""
    by_role: dict[str, list[int]] = {}
    for i, (role, row) in enumerate(everything):
        if is_long(row):
            by_role.setdefault(role, []).append(i)
    chosen = []
    for numbers in by_role.values():
        if len(numbers) > MOST_ROWS:
            numbers = sorted(rng.choice(numbers, MOST_ROWS, replace=False).tolist())
        chosen += numbers
    return chosen


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk, size = [], 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row))
        if size >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_ROWS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _shown(row: Row) -> str:
    """The texts of a row, the beginning of each."""
    return " -> ".join(repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...") for text in row)
