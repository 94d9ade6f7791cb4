r"""Held-out rows that are also training rows, or nearly, so that a model could have memorized them.

Lee et al., "Deduplicating Training Data Makes Language Models Better" (2022). https://arxiv.org/abs/2107.06499
Broder, "On the Resemblance and Containment of Documents" (1997): MinHash signatures.
Indyk & Motwani, "Approximate Nearest Neighbors" (1998), section 4: locality-sensitive hashing in bands.

A text is represented by its shingles: all runs of five characters, ignoring case. The similarity of two texts is the
Jaccard index of their shingles, $J = |A \cap B| / |A \cup B|$; that of two rows is the minimum over their columns. So a
row is a near-duplicate only if *all* of it is: question and answer, text and label. The same question with another
answer, or a text with another label, is not a leak: a model that memorized it would be wrong.

One changed character inside a text changes five shingles, which leaves a similarity of 0.8 from 49 characters on. In
shorter texts only changes at the ends, such as a full stop, and those of case and spacing are found. In very short
ones such a change is as likely another number or name (`4 March 2025` and `4 March 2026` are two questions), so a text
of fewer than 20 characters is a single shingle: a label, a date or a name is equal or it is not. Rows of short texts
only are compared for equality.

The minimum of a random hash over the shingles of a row is equal for two rows with probability $J$ of all their
shingles, which is at least the minimum over their columns. A signature consists of 120 such minima. Rows that agree in
all of a band of 6 of them, in any of 20 bands, which a pair of similarity $s$ does with probability
$1 - (1 - s^6)^{20}$ (0.998 at 0.8, 0.27 at 0.5), are candidates, and the exact $J$ of the best ones decides. So every
row reported is a near-duplicate, and almost none is missed, except if many held-out rows are alike: then only some of
them are compared with each training row.

Dimensions: `rows`, `values` of a signature, `bands` of them, `pairs` of a training row and a held-out one, `shingles`.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt32, UInt64

from regard.data.splits.by_hash import row_hash
from regard.errors import ConfigError

TextRow = Sequence[str]

LEAK_THRESHOLD = 0.8
"""The similarity from which two rows are near-duplicates."""
MAX_COMPARED = 20_000
"""The most held-out rows of a split that are compared; of more, this many are drawn at random."""
SHINGLE_LENGTH = 5
"""Characters of a shingle; in long texts, words."""
SHORT_TEXT = 20
"""A text of fewer characters is a single shingle."""
LONG_TEXT = 1_000
"""If the held-out texts of a column have this mean length, their shingles consist of words rather than characters:
there are fewer of them, and two texts on the same subject have fewer in common."""
MAX_CHARACTERS = 100_000
"""Characters of a text that are compared."""
NUM_BANDS, BAND_SIZE = 20, 6
_SIGNATURE_SIZE = NUM_BANDS * BAND_SIZE
_MAX_CANDIDATES = 4
"""Training rows kept for each held-out row, to be compared exactly: those with the most similar signatures."""
_MAX_MATCHES = 16
"""Held-out rows compared with a training row in a band: if more agree, the band is not informative."""
_MAX_PAIRS = 1 << 17
_CHARACTERS_PER_WORD = 12
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_CHUNK_CHARACTERS, _CHUNK_ROWS = 1 << 20, 20_000
_NUM_EXAMPLES = 3
_MAX_SHOWN = 80

Signatures = UInt32[np.ndarray, "rows values"]


@dataclass(frozen=True)
class Overlap:
    """What one held-out split has in common with the training rows."""

    num_rows: int
    num_identical: int
    num_compared: int
    """Rows that were compared by similarity: those with a text of at least `SHORT_TEXT` characters."""
    num_near: int
    """Rows of those compared that are near-duplicates of a training row, and not identical to any."""
    is_sample: bool
    """Whether the rows compared are a random sample."""


class LeakExample(NamedTuple):
    """A held-out row, and the training row of which it is a near-duplicate."""

    split: str
    held_out: TextRow
    training: TextRow
    similarity: float


@dataclass(frozen=True)
class Leaks:
    """Held-out rows that are also training rows, or nearly."""

    overlaps: Mapping[str, Overlap]
    """By the name of the split."""
    examples: Sequence[LeakExample]
    """A few near-duplicates of each split, the least similar first, so that the threshold can be judged."""
    threshold: float

    def describe(self, what: str = "rows") -> list[str]:
        """One sentence for each finding; `what` is what a row is called."""
        sentences = []
        for split, found in self.overlaps.items():
            name = {"valid": "validation"}.get(split, split)
            if found.num_identical:
                verb = f"is also a training {what[:-1]}" if found.num_identical == 1 else f"are also training {what}"
                sentences.append(
                    f"{found.num_identical:,} of the {found.num_rows:,} {name} {what} {verb}: "
                    "scores on them are too optimistic"
                )
            if found.num_near:
                compared = f"{found.num_compared:,} {name} {what} sampled for comparison"
                whole = compared if found.is_sample else f"{found.num_rows:,} {name} {what}"
                verb = "is a near-duplicate" if found.num_near == 1 else "are near-duplicates"
                example = next(each for each in self.examples if each.split == split)
                shown = f"; for example {_shown(example.held_out)}, training has {_shown(example.training)}"
                sentences.append(
                    f"{found.num_near:,} of the {whole} {verb} of training {what} ({100 * self.threshold:.0f} % "
                    f"or more of their {SHINGLE_LENGTH}-grams are shared): scores on them may be too optimistic"
                    # Test rows are not shown before the test.
                    + ("" if split == "test" else shown)
                )
        return sentences


def find_near_duplicates(
    train_rows: Iterable[TextRow],
    held_out: Mapping[str, Sequence[TextRow]],
    *,
    threshold: float = LEAK_THRESHOLD,
    seed: int = 0,
) -> Leaks:
    """Find the held-out rows that are also training rows, or nearly.

    Training rows are read once, a chunk at a time, so there may be any number. All held-out rows are compared for
    equality, and at most `MAX_COMPARED` of each split, drawn at random among those that are long enough, by
    similarity.

    Args:
        train_rows: All training rows.
        held_out: Rows by the name of their split, with the same columns.
        threshold: The similarity from which two rows are near-duplicates.
        seed: Seed of the hashes and of the random sample.

    Example:
        >>> train = [("the cat sat quietly on the old mat by the door", "animal")]
        >>> valid = [("The cat sat quietly on the old mat by the door.", "animal"), ("a dog ran", "animal")]
        >>> found = find_near_duplicates(train, {"valid": valid})
        >>> found.overlaps["valid"].num_near, round(found.examples[0].similarity, 2)
        (1, 0.98)
    """
    if not 0.0 < threshold <= 1.0:
        raise ConfigError(f"threshold must be in (0, 1], got {threshold}")
    rng = np.random.default_rng(seed)
    hashes = {split: [row_hash(row) for row in rows] for split, rows in held_out.items()}
    chosen: dict[str, list[int]] = {}
    num_long: dict[str, int] = {}
    for split, rows in held_out.items():
        long = [i for i, row in enumerate(rows) if is_long(row)]
        num_long[split] = len(long)
        is_sample = len(long) > MAX_COMPARED
        chosen[split] = sorted(rng.choice(long, MAX_COMPARED, replace=False).tolist()) if is_sample else long
    search = NearDuplicateSearch([held_out[split][i] for split, some in chosen.items() for i in some], threshold, rng)
    wanted, seen = {number for some in hashes.values() for number in some}, set[int]()
    for chunk in _chunks(train_rows):
        seen |= wanted.intersection(map(row_hash, chunk))
        search.add_training_rows(chunk)
    overlaps, examples = {}, []
    best = search.best_matches()
    for split, rows in held_out.items():
        found = [(similarity, i, training) for i, (training, similarity) in zip(chosen[split], best, strict=False)]
        near = [each for each in found if each[0] >= threshold and hashes[split][each[1]] not in seen]
        near.sort(key=lambda each: each[0])
        num_identical = sum(number in seen for number in hashes[split])
        num_compared = len(chosen[split])
        overlaps[split] = Overlap(len(rows), num_identical, num_compared, len(near), num_compared < num_long[split])
        examples += [LeakExample(split, rows[i], row, similarity) for similarity, i, row in near[:_NUM_EXAMPLES]]
    return Leaks(overlaps, examples, threshold)


def row_similarity(first: TextRow, second: TextRow, units: Sequence[str] | None = None) -> float:
    """The similarity of two rows: the minimum Jaccard index over their columns.

    Args:
        first: A row.
        second: Another row with as many columns.
        units: The units of the shingles of each column, `characters` (the default) or `words`.
    """
    shares = []
    for one, other, unit in zip(first, second, units or ["characters"] * len(first), strict=True):
        a, b = shingles(one, unit), shingles(other, unit)
        shares.append(len(a & b) / len(a | b))
    return min(shares)


def shingles(text: str, unit: str = "characters") -> set[str]:
    """All runs of `SHINGLE_LENGTH` characters or words, ignoring case and spacing; a short text is one shingle.

    Example:
        >>> sorted(shingles("A text  of twenty characters"))[:3], shingles("short")
        ([' char', ' of t', ' text'], {'short'})
    """
    text = text[:MAX_CHARACTERS]
    if len(text) < SHORT_TEXT:
        return {text}
    words = text.casefold().split()
    if unit == "words":
        return {" ".join(words[i : i + SHINGLE_LENGTH]) for i in range(max(1, len(words) - SHINGLE_LENGTH + 1))}
    plain = " ".join(words)
    return {plain[i : i + SHINGLE_LENGTH] for i in range(max(1, len(plain) - SHINGLE_LENGTH + 1))}


def is_long(row: TextRow) -> bool:
    """Whether any text of a row is long enough to have near-duplicates."""
    return any(len(text) >= SHORT_TEXT for text in row)


class NearDuplicateSearch:
    """An index of held-out rows by their signatures, with the most similar training rows found so far for each."""

    def __init__(self, rows: Sequence[TextRow], threshold: float, rng: np.random.Generator) -> None:
        self._rows, self._threshold = rows, threshold
        self._units = [_unit([row[i] for row in rows]) for i in range(len(rows[0]))] if rows else []
        self._factors = rng.integers(1 << 31, size=_SIGNATURE_SIZE, dtype=np.uint32) * 2 + 1
        self._offsets = rng.integers(1 << 32, size=_SIGNATURE_SIZE, dtype=np.uint32)
        self._signatures = self.signatures(rows)
        keys = _band_keys(self._signatures)
        self._orders = np.argsort(keys, axis=0, kind="stable")
        self._keys = np.take_along_axis(keys, self._orders, axis=0)
        self._candidates: list[list[tuple[float, TextRow]]] = [[] for _ in rows]
        # Three standard deviations of an estimate below the threshold; later the worst of the best candidates.
        margin = 3 * np.sqrt(threshold * (1 - threshold) / _SIGNATURE_SIZE)
        self._floors = np.full(len(rows), threshold - margin - 1e-9)

    def add_training_rows(self, rows: Sequence[TextRow]) -> None:
        """Keep those of these training rows that may be near-duplicates of a held-out row."""
        rows = [row for row in rows if is_long(row)] if self._rows else []
        if not rows:
            return
        signatures = self.signatures(rows)
        pairs = self._matches(_band_keys(signatures))
        for part in np.array_split(pairs, len(pairs) // _MAX_PAIRS + 1):
            training, held_out = np.divmod(part, len(self._rows))
            estimates = (signatures[training] == self._signatures[held_out]).mean(axis=1)
            for i in np.flatnonzero(estimates > self._floors[held_out]):
                self._keep(int(held_out[i]), float(estimates[i]), rows[int(training[i])])

    def best_matches(self) -> Iterator[tuple[TextRow, float]]:
        """For each held-out row the candidate with the highest exact similarity, and this similarity."""
        for row, candidates in zip(self._rows, self._candidates, strict=True):
            found = [(row_similarity(row, other, self._units), other) for _, other in candidates]
            share, other = max(found, key=lambda each: each[0], default=(0.0, ()))
            yield other, share

    def signatures(self, rows: Sequence[TextRow]) -> Signatures:
        """The minimum of each hash function over the shingles of each row, all columns together."""
        signatures = np.full((len(rows), _SIGNATURE_SIZE), np.uint32(0xFFFFFFFF))
        for column, unit in enumerate(self._units):
            hashes, starts = _hash_shingles([row[column] for row in rows], unit, column)
            for i in range(_SIGNATURE_SIZE):
                values = hashes * self._factors[i] + self._offsets[i]
                np.minimum(signatures[:, i], np.minimum.reduceat(values, starts), out=signatures[:, i])
        return signatures

    def _keep(self, held_out: int, estimate: float, row: TextRow) -> None:
        if estimate <= self._floors[held_out]:
            return
        candidates = self._candidates[held_out]
        candidates.append((estimate, row))
        if len(candidates) > _MAX_CANDIDATES:
            candidates.remove(min(candidates, key=lambda each: each[0]))
        if len(candidates) == _MAX_CANDIDATES:
            self._floors[held_out] = max(self._floors[held_out], min(each[0] for each in candidates))

    def _matches(self, keys: UInt64[np.ndarray, "rows bands"]) -> Int[np.ndarray, " pairs"]:
        """Pairs that agree in a band: training row times the number of held-out rows, plus the held-out row."""
        found = []
        for band in range(NUM_BANDS):
            own = self._keys[:, band]
            first = np.searchsorted(own, keys[:, band], side="left")
            total = np.searchsorted(own, keys[:, band], side="right") - first
            count = np.minimum(total, _MAX_MATCHES)
            training = np.repeat(np.arange(len(keys)), count)
            # Of many that agree, each training row is compared with others.
            turns = (_count_up(count) + training * _MAX_MATCHES) % np.repeat(total, count)
            places = np.repeat(first, count) + turns
            found.append(training * len(self._rows) + self._orders[places, band])
        return np.unique(np.concatenate(found))


def _hash_shingles(
    texts: Sequence[str], unit: str, column: int
) -> tuple[UInt32[np.ndarray, " shingles"], Int[np.ndarray, " rows"]]:
    """A hash of each shingle of each text, and the start of those of each text."""
    codes = [_codes(text[:MAX_CHARACTERS], unit) for text in texts]
    flat = np.concatenate(codes).astype(np.uint64)
    sizes = np.array([len(code) for code in codes])
    hashes = np.full(len(flat) - SHINGLE_LENGTH + 1, np.uint64(column))
    for k in range(SHINGLE_LENGTH):
        hashes = hashes * _MULTIPLIER + flat[k : len(flat) - SHINGLE_LENGTH + 1 + k]
    hashes = ((hashes ^ (hashes >> np.uint64(29))) * _MULTIPLIER) >> np.uint64(32)
    counts = sizes - SHINGLE_LENGTH + 1
    inside = np.repeat(sizes.cumsum() - sizes, counts) + _count_up(counts)
    return hashes[inside].astype(np.uint32), counts.cumsum() - counts


def _codes(text: str, unit: str) -> UInt32[np.ndarray, " units"]:
    """A number for each character or word of a text, or for a whole short text; at least `SHINGLE_LENGTH`, by zeros."""
    plain = text if len(text) < SHORT_TEXT else " ".join(text.casefold().split())
    if len(text) < SHORT_TEXT or unit == "words":
        units = [text] if len(text) < SHORT_TEXT else plain.split()
        codes = np.array([zlib.crc32(each.encode("utf-8", "surrogatepass")) for each in units], np.uint32)
    else:
        codes = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.pad(codes, (0, max(0, SHINGLE_LENGTH - len(codes))))


def _band_keys(signatures: Signatures) -> UInt64[np.ndarray, "rows bands"]:
    """One number for each band of a signature."""
    bands = signatures.reshape(len(signatures), NUM_BANDS, BAND_SIZE)
    keys = np.zeros((len(signatures), NUM_BANDS), np.uint64)
    for i in range(BAND_SIZE):
        keys = keys * _MULTIPLIER + bands[:, :, i]
    return keys


def _unit(texts: Sequence[str]) -> str:
    """The units of the shingles of a column: words only if the texts are long and have spaces between words."""
    num_characters, num_words = sum(map(len, texts)), sum(len(text.split()) for text in texts)
    is_spaced = num_characters <= _CHARACTERS_PER_WORD * num_words
    return "words" if num_characters >= LONG_TEXT * len(texts) and is_spaced else "characters"


def _count_up(counts: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " pairs"]:
    """0, 1, ... for each count, concatenated."""
    return np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)


def _chunks(rows: Iterable[TextRow]) -> Iterator[list[TextRow]]:
    chunk, size = [], 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row))
        if size >= _CHUNK_CHARACTERS or len(chunk) >= _CHUNK_ROWS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _shown(row: TextRow) -> str:
    """The beginning of each text of a row."""
    return " -> ".join(repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "...") for text in row)
