"""Misspelling a name so that it can still be recognised.

A misspelling is one slip of the hand: two neighbours swapped, a letter dropped,
doubled or replaced. It is recoverable where the name meant stays nearer than
every name that means something else, in Levenshtein's distance: the least number
of insertions, deletions and replacements (V. Levenshtein, "Binary codes capable
of correcting deletions, insertions, and reversals", 1966).

Names near a word are found without comparing it to each: if two words are at
most k edits apart, deleting at most k letters from each can make them equal
(W. Garbe, "Symmetric Delete", 2012). https://github.com/wolfgarbe/SymSpell
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random

SHORTEST_MISSPELT = 5
"""Names of fewer letters are left alone: one slip could hide what they were."""
LARGEST_DISTANCE = 2
"""How far apart a name and its misspelling can be: swapping costs two edits, the others one."""
SWAPPED, DROPPED, DOUBLED = 0.3, 0.25, 0.35
"""How often each slip is made; in the rest a letter is replaced."""


def edit_distance(first: str, second: str) -> int:
    """The least number of letters to insert, delete or replace to turn one word into the other.

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
    """What is left of a name when case and the full stop of an abbreviation do not count."""
    # Case folding takes some letters apart, such as the Greek iota with two accents: one letter must stay one.
    return unicodedata.normalize("NFC", name.casefold()).rstrip(".")


def can_misspell(name: str) -> bool:
    """Whether a name is long enough, and made of letters only, so that a slip leaves a likeness.

    Scripts that write vowels as marks upon letters are left alone: a swapped
    mark is no slip that a hand would make.
    """
    return len(name) >= SHORTEST_MISSPELT and name.isalpha()


def misspell(rng: Random, name: str, alphabet: Sequence[str]) -> tuple[str, int]:
    """One slip somewhere after the first letter, and its edit distance from `name`.

    A slip that changes nothing, such as swapping two equal letters, has distance 0.
    """
    slip = rng.random()
    at = 1 + int(rng.random() * (len(name) - 1))
    if slip < SWAPPED:
        at = min(at, len(name) - 2)
        changed = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        return changed, 0 if changed == name else LARGEST_DISTANCE
    if slip < SWAPPED + DROPPED:
        return name[:at] + name[at + 1 :], 1
    if slip < SWAPPED + DROPPED + DOUBLED:
        return name[:at] + name[at] + name[at:], 1
    changed = name[:at] + alphabet[int(rng.random() * len(alphabet))] + name[at + 1 :]
    return changed, 0 if changed == name else 1


class NameIndex:
    """The names of the months in many locales, to be asked which are near a word.

    Args:
        names: Triples of a name, the locale that uses it and the month it denotes there.
    """

    def __init__(self, names: Iterable[tuple[str, str, int]]) -> None:
        self._meanings: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for name, locale, month in names:
            self._meanings[normalize_name(name)].add((locale, month))
        self._shortened: dict[str, list[str]] = defaultdict(list)
        for name in self._meanings:
            for form in _shortened_forms(name, LARGEST_DISTANCE):
                self._shortened[form].append(name)

    def rivals(self, word: str, *, distance: int, month: int | None) -> set[str]:
        """The locales in which a name of another month is at most `distance` edits from `word`.

        Every month is another one where `month` is None.
        """
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
    return {
        "".join(kept)
        for length in range(max(0, len(word) - most), len(word) + 1)
        for kept in combinations(word, length)
    }
