"""Names of numbers in ten languages, and their digits: `einundzwanzig` and `twenty-one` are 21."""

import random
from collections.abc import Callable

LANGUAGES = ("de", "en", "es", "fi", "fr", "it", "nl", "pt", "sv", "tr")
NUMBERS_PER_LANGUAGE, ALL_BELOW, MOST_DIGITS = 1_500, 101, 6
HELD_OUT_SHARE = 0.1
"""Of the numbers that are not below `ALL_BELOW`, for validation and for the test; they occur in no training row."""

Pairs = list[tuple[str, ...]]


def number_names(seed: int = 0) -> dict[str, Pairs]:
    """Names and digits by set: all small numbers, others of any length, each language with numbers of its own."""
    from num2words import num2words  # pyright: ignore[reportMissingImports]  in the extra `dev`

    return make_names(lambda number, language: num2words(number, lang=language), seed)


def make_names(spell: Callable[[int, str], str], seed: int = 0) -> dict[str, Pairs]:
    """The rows, with names by `spell`, in a shuffled order."""
    rng = random.Random(seed)
    found: dict[str, Pairs] = {"train": [], "valid": [], "test": []}
    roles: dict[int, str] = dict.fromkeys(range(ALL_BELOW), "train")
    for language in LANGUAGES:
        numbers = set(range(ALL_BELOW))
        while len(numbers) < NUMBERS_PER_LANGUAGE:
            numbers.add(int(10 ** rng.uniform(2, MOST_DIGITS)))
        for number in sorted(numbers):
            if number not in roles:
                roles[number] = rng.choices(list(found), [1 - 2 * HELD_OUT_SHARE, HELD_OUT_SHARE, HELD_OUT_SHARE])[0]
            found[roles[number]].append((spell(number, language), str(number)))
    for rows in found.values():
        rng.shuffle(rows)
    return found
