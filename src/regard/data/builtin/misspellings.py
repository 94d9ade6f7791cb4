"""Misspelling a name so that it can still be recognized.

A misspelling is one typing error: two adjacent letters swapped, a letter dropped, doubled or replaced. It is
recoverable if the intended name remains closer than every name with another meaning, by the Levenshtein distance: the
minimum number of insertions, deletions and replacements (V. Levenshtein, "Binary codes capable of correcting deletions,
insertions, and reversals", 1966).

Names close to a word are found without comparing it with each: if two words are at most k edits apart, deleting at most
k letters from each can make them equal (W. Garbe, "Symmetric Delete", 2012). https://github.com/wolfgarbe/SymSpell
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random

MIN_MISSPELT_LENGTH = 5
"""Shorter names are not misspelt: a single error could make them unrecognizable."""
MAX_DISTANCE = 2
"""The largest distance of a misspelling: swapping takes two edits, the other errors one."""
SWAPPED, DROPPED, DOUBLED = 0.3, 0.25, 0.35
"""The probability of each error; otherwise a letter is replaced."""


def edit_distance(first: str, second: str) -> int:
    """The Levenshtein distance of two words.

    Example:
        >>> edit_distance("march", "mrach"), edit_distance("junio", "julio")
        (2, 1)
    """
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
    return row[-1]


def normalize_name(name: str) -> str:
    """The name without case and without the full stop of an abbreviation."""
    # Case folding decomposes some letters, such as the Greek iota with two accents; each must remain one letter.
    return unicodedata.normalize("NFC", name.casefold()).rstrip(".")


def can_misspell(name: str) -> bool:
    """Whether a name is long enough and consists of letters only.

    Scripts that write vowels as marks are excluded: swapping marks is not a typical error.
    """
    return len(name) >= MIN_MISSPELT_LENGTH and name.isalpha()


def misspell(rng: Random, name: str, alphabet: Sequence[str]) -> tuple[str, int]:
    """Make one error after the first letter, and return the result and its distance from `name`.

    The distance is 0 if nothing changes, such as when two equal letters are swapped.
    """
    error = rng.random()
    at = 1 + int(rng.random() * (len(name) - 1))
    if error < SWAPPED:
        at = min(at, len(name) - 2)
        changed = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        return changed, 0 if changed == name else MAX_DISTANCE
    if error < SWAPPED + DROPPED:
        return name[:at] + name[at + 1 :], 1
    if error < SWAPPED + DROPPED + DOUBLED:
        return name[:at] + name[at] + name[at:], 1
    changed = name[:at] + alphabet[int(rng.random() * len(alphabet))] + name[at + 1 :]
    return changed, 0 if changed == name else 1


class NameIndex:
    """An index of the names of months in many locales, for finding those close to a word.

    Args:
        names: Triples of a name, its locale, and the month it denotes there.
    """

    def __init__(self, names: Iterable[tuple[str, str, int]]) -> None:
        self._meanings: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for name, locale, month in names:
            self._meanings[normalize_name(name)].add((locale, month))
        self._shortened: dict[str, list[str]] = defaultdict(list)
        for name in self._meanings:
            for form in _shortened_forms(name, MAX_DISTANCE):
                self._shortened[form].append(name)

    def rivals(self, word: str, *, distance: int, month: int | None) -> set[str]:
        """The locales in which a name of a month other than `month` is at most `distance` edits from `word`."""
        word = normalize_name(word)
        if distance == 0:
            candidates = {word} if word in self._meanings else set()
        else:
            forms = _shortened_forms(word, distance)
            candidates = {name for form in forms for name in self._shortened.get(form, ())}
        rivals: set[str] = set()
        for name in candidates:
            others = {locale for locale, other in self._meanings[name] if other != month}
            if others and edit_distance(word, name) <= distance:
                rivals |= others
        return rivals


def _shortened_forms(word: str, most: int) -> set[str]:
    """The word with at most `most` of its letters deleted."""
    lengths = range(max(0, len(word) - most), len(word) + 1)
    return {"".join(kept) for length in lengths for kept in combinations(word, length)}
