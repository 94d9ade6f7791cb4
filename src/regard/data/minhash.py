r"""Which of many training rows are like a held-out one, found without comparing all with all.

Broder, "On the Resemblance and Containment of Documents" (1997): signatures.
Indyk & Motwani, "Approximate Nearest Neighbors" (1998), section 4: their bands.

A text is taken apart into its pieces: all runs of five characters in it, whatever
their case. Two texts are as similar as the share of their pieces that both have,
Jaccard's $J = |A \cap B| / |A \cup B|$; two rows as the least similar of their columns.

The least value of a random hash over the pieces of a row is the same for two
rows with probability $J$ of all their pieces, which is no less than the least of
their columns. So rows are alike as their signatures of such values are. Those
that agree in all of a band of 6 values in any of 20 bands, which a pair of
similarity $s$ does with probability $1 - (1 - s^6)^{20}$ (0.998 at 0.8, 0.27 at
0.5), are looked at, and the true $J$ of the best decides.

Dimensions: `rows`, `values` of a signature, `bands` of them, `pairs` of a training row and a held-out one, `pieces`.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt32, UInt64

PIECE = 5
"""Characters of a piece; of long texts, words."""
SHORT = 20
"""Texts of fewer characters are one piece."""
LONG = 1_000
"""Where the held-out texts of a column are as long as this on average, their pieces are made of words, not characters:
they are fewer, and two texts on the same subject have fewer of them in common."""
READ = 100_000
"""Characters of a text that are looked at."""
BANDS, BAND = 20, 6
_VALUES = BANDS * BAND
_KEPT = 4
"""Training rows remembered for each held-out row, to be compared piece by piece: those with the likest signatures."""
_AT_ONCE = 16
"""Held-out rows looked at for a training row in a band: where more agree, the band says little."""
_PAIRS_AT_ONCE = 1 << 17
_CHARACTERS_PER_WORD = 12
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Row = Sequence[str]
Signatures = UInt32[np.ndarray, "rows values"]


def similarity(first: Row, second: Row, units: Sequence[str] | None = None) -> float:
    """How alike two rows are: the least Jaccard similarity of their columns.

    Args:
        first: A row.
        second: Another, with as many columns.
        units: What the pieces of each column are made of, `characters` or `words`; unset, characters.
    """
    shares = []
    for one, other, unit in zip(first, second, units or ["characters"] * len(first), strict=True):
        a, b = pieces(one, unit), pieces(other, unit)
        shares.append(len(a & b) / len(a | b))
    return min(shares)


def pieces(text: str, unit: str = "characters") -> set[str]:
    """All runs of `PIECE` characters or words, whatever their case and spacing; of a short text, the text as it stands.

    Example:
        >>> sorted(pieces("A text  of twenty characters"))[:3], pieces("short")
        ([' char', ' of t', ' text'], {'short'})
    """
    text = text[:READ]
    if len(text) < SHORT:
        return {text}
    words = text.casefold().split()
    if unit == "words":
        return {" ".join(words[i : i + PIECE]) for i in range(max(1, len(words) - PIECE + 1))}
    plain = " ".join(words)
    return {plain[i : i + PIECE] for i in range(max(1, len(plain) - PIECE + 1))}


def is_long(row: Row) -> bool:
    """Whether any of its texts is long enough to be nearly another."""
    return any(len(text) >= SHORT for text in row)


class Search:
    """Held-out rows by their signatures, and for each the training rows that are likest so far."""

    def __init__(self, rows: Sequence[Row], threshold: float, rng: np.random.Generator) -> None:
        self._rows, self._threshold = rows, threshold
        self._units = [_unit([row[i] for row in rows]) for i in range(len(rows[0]))] if rows else []
        self._factors = rng.integers(1 << 31, size=_VALUES, dtype=np.uint32) * 2 + 1
        self._offsets = rng.integers(1 << 32, size=_VALUES, dtype=np.uint32)
        self._signatures = self.sign(rows)
        keys = _band_keys(self._signatures)
        self._orders = np.argsort(keys, axis=0, kind="stable")
        self._keys = np.take_along_axis(keys, self._orders, axis=0)
        self._best: list[list[tuple[float, Row]]] = [[] for _ in rows]
        # Three standard deviations of an estimate below the threshold, and later the worst of the best.
        margin = 3 * np.sqrt(threshold * (1 - threshold) / _VALUES)
        self._floors = np.full(len(rows), threshold - margin - 1e-9)

    def look(self, rows: Sequence[Row]) -> None:
        """Remember those of these training rows that may be nearly a held-out one."""
        rows = [row for row in rows if is_long(row)] if self._rows else []
        if not rows:
            return
        signatures = self.sign(rows)
        pairs = self._agreeing(_band_keys(signatures))
        for part in np.array_split(pairs, len(pairs) // _PAIRS_AT_ONCE + 1):
            training, held_out = np.divmod(part, len(self._rows))
            alike = (signatures[training] == self._signatures[held_out]).mean(axis=1)
            for i in np.flatnonzero(alike > self._floors[held_out]):
                self._remember(int(held_out[i]), float(alike[i]), rows[int(training[i])])

    def decide(self) -> Iterator[tuple[Row, float]]:
        """For each held-out row the training row that is truly likest of those remembered, and how alike they are."""
        for row, best in zip(self._rows, self._best, strict=True):
            found = [(similarity(row, other, self._units), other) for _, other in best]
            share, other = max(found, key=lambda each: each[0], default=(0.0, ()))
            yield other, share

    def sign(self, rows: Sequence[Row]) -> Signatures:
        """The least value of each hash over the pieces of each row, all columns together."""
        signatures = np.full((len(rows), _VALUES), np.uint32(0xFFFFFFFF))
        for column, unit in enumerate(self._units):
            hashes, starts = _hash_pieces([row[column] for row in rows], unit, column)
            for i in range(_VALUES):
                values = hashes * self._factors[i] + self._offsets[i]
                np.minimum(signatures[:, i], np.minimum.reduceat(values, starts), out=signatures[:, i])
        return signatures

    def _remember(self, held_out: int, alike: float, row: Row) -> None:
        if alike <= self._floors[held_out]:
            return
        best = self._best[held_out]
        best.append((alike, row))
        if len(best) > _KEPT:
            best.remove(min(best, key=lambda each: each[0]))
        if len(best) == _KEPT:
            self._floors[held_out] = max(self._floors[held_out], min(each[0] for each in best))

    def _agreeing(self, keys: UInt64[np.ndarray, "rows bands"]) -> Int[np.ndarray, " pairs"]:
        """Pairs that agree in a band: the number of the training row times all held-out rows, plus the other's."""
        found = []
        for band in range(BANDS):
            own = self._keys[:, band]
            first = np.searchsorted(own, keys[:, band], side="left")
            total = np.searchsorted(own, keys[:, band], side="right") - first
            count = np.minimum(total, _AT_ONCE)
            training = np.repeat(np.arange(len(keys)), count)
            # Of many that agree, each training row looks at others.
            turns = (_count_up(count) + training * _AT_ONCE) % np.repeat(total, count)
            places = np.repeat(first, count) + turns
            found.append(training * len(self._rows) + self._orders[places, band])
        return np.unique(np.concatenate(found))


def _hash_pieces(
    texts: Sequence[str], unit: str, column: int
) -> tuple[UInt32[np.ndarray, " pieces"], Int[np.ndarray, " rows"]]:
    """A number for each piece of each text, and where those of each text start; equal pieces have equal numbers."""
    codes = [_codes(text[:READ], unit) for text in texts]
    flat = np.concatenate(codes).astype(np.uint64)
    sizes = np.array([len(code) for code in codes])
    hashes = np.full(len(flat) - PIECE + 1, np.uint64(column))
    for k in range(PIECE):
        hashes = hashes * _MULTIPLIER + flat[k : len(flat) - PIECE + 1 + k]
    hashes = ((hashes ^ (hashes >> np.uint64(29))) * _MULTIPLIER) >> np.uint64(32)
    counts = sizes - PIECE + 1
    inside = np.repeat(sizes.cumsum() - sizes, counts) + _count_up(counts)
    return hashes[inside].astype(np.uint32), counts.cumsum() - counts


def _codes(text: str, unit: str) -> UInt32[np.ndarray, " units"]:
    """A number for each character or word of a text; a short text is one. At least `PIECE` of them, by zeros."""
    plain = text if len(text) < SHORT else " ".join(text.casefold().split())
    if len(text) < SHORT or unit == "words":
        units = [text] if len(text) < SHORT else plain.split()
        codes = np.array([zlib.crc32(each.encode("utf-8", "surrogatepass")) for each in units], np.uint32)
    else:
        codes = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
    return codes if len(codes) >= PIECE else np.concatenate([codes, np.zeros(PIECE - len(codes), np.uint32)])


def _band_keys(signatures: Signatures) -> UInt64[np.ndarray, "rows bands"]:
    """One number for each band of a signature."""
    bands = signatures.reshape(len(signatures), BANDS, BAND)
    keys = np.zeros((len(signatures), BANDS), np.uint64)
    for i in range(BAND):
        keys = keys * _MULTIPLIER + bands[:, :, i]
    return keys


def _unit(texts: Sequence[str]) -> str:
    """What the pieces of a column are made of; words only where there are spaces between them."""
    num_characters, num_words = sum(map(len, texts)), sum(len(text.split()) for text in texts)
    is_spaced = num_characters <= _CHARACTERS_PER_WORD * num_words
    return "words" if num_characters >= LONG * len(texts) and is_spaced else "characters"


def _count_up(counts: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " pairs"]:
    """0, 1, ... for each count, one behind the other."""
    return np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
