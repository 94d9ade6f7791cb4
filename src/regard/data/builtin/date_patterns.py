"""How dates are written in each locale: patterns, and the tables that fill them.

A pattern is written in the notation of the Unicode CLDR ("Unicode Technical
Standard #35, part 4: Dates", https://www.unicode.org/reports/tr35/tr35-dates.html):
`d` a day, `MM` a month in two digits, `MMMM` its name, `EEEE` the weekday, `y` the
year, quotes around letters that stand for themselves. Braces hold the fields that
CLDR has not: `{day_ordinal}`, `{day_words}`, `{year_words}`.

Each locale has, per field, a table of all its values. To write a date is to look
up one entry per field: nothing is computed twice, and Babel is asked only once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from regard.data.builtin.date_words import word_tables

YEARS = range(1900, 2100)

YEAR, MONTH, DAY, WEEKDAY = range(4)
FIELD_UNITS = {
    **dict.fromkeys(("y", "year_words"), YEAR),
    **dict.fromkeys(("M", "MM", "MMM", "MMMM", "LLL", "LLLL"), MONTH),
    **dict.fromkeys(("d", "dd", "day_ordinal", "day_words"), DAY),
    **dict.fromkeys(("E", "EEE", "EEEE", "ccc", "cccc"), WEEKDAY),
}
"""What each field tells: an index into what `units_of` returns."""
NAME_FIELDS = frozenset({"MMM", "MMMM", "LLL", "LLLL", "E", "EEE", "EEEE", "ccc", "cccc"})

STANDARD_FORMATS = ("medium", "long", "full")
STANDARD_SKELETONS = ("yMMMd", "yMMMMd", "yMMMEd", "yMMMMEd", "yMMMMEEEEd")
NUMERIC_SKELETON = "yMd"

_ENGLISH = (
    "MMMM {day_ordinal}, y",
    "{day_ordinal} MMMM y",
    "{day_ordinal} 'of' MMMM y",
    "'the' {day_ordinal} 'of' MMMM, y",
    "EEEE 'the' {day_ordinal} 'of' MMMM, y",
    "EEEE, MMMM {day_ordinal}, y",
    "dd-MMM-y",
    "d MMMM y",
    "MMM d y",
)
EXTRA_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "en-US": _ENGLISH,
    "en-GB": _ENGLISH,
    "de": ("'den' d. MMMM y", "d. MMMM y", "EEEE, 'der' d. MMMM y", "d.MMMM y"),
    "fr": ("'le' {day_ordinal} MMMM y", "{day_ordinal} MMMM y", "EEEE {day_ordinal} MMMM y"),
    "es": ("d MMMM y", "'el' d 'de' MMMM 'de' y"),
    "ru": ("d MMMM y", "d MMMM y 'года'"),
}
"""Ways of writing that CLDR does not list, beside those that it does."""

_ENGLISH_WORDS = (
    "'the' {day_words} 'of' MMMM, y",
    "{day_words} 'of' MMMM y",
    "EEEE 'the' {day_words} 'of' MMMM y",
    "MMMM {day_words}, y",
    "MMMM 'the' {day_words}, y",
    "EEEE, MMMM {day_words}, y",
)
WORD_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "en-US": _ENGLISH_WORDS,
    "en-GB": _ENGLISH_WORDS,
    "zh": ("{year_words}年MMMM{day_words}日",),
}
"""Patterns whose numbers are in words, all or in part."""

_TOKEN = re.compile(r"'(?P<quoted>[^']*)'|\{(?P<braced>\w+)\}|(?P<letters>([A-Za-z])\4*)")
_TYPED_BY_HAND = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200e": None, "\u200f": None})


@dataclass(frozen=True)
class Pattern:
    """A way of writing dates: literal text with fields in between.

    `literals` has one entry more than `fields`: the text before each, and after the last.
    """

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @cached_property
    def units(self) -> tuple[int, ...]:
        """What each field tells: year, month, day or weekday."""
        return tuple(FIELD_UNITS[field] for field in self.fields)

    @cached_property
    def name_positions(self) -> tuple[int, ...]:
        """Where among the fields the names of months and weekdays stand."""
        return tuple(i for i, field in enumerate(self.fields) if field in NAME_FIELDS)

    @cached_property
    def month_position(self) -> int:
        """Where among the fields the month stands."""
        return self.units.index(MONTH)

    @cached_property
    def names_month(self) -> bool:
        """Whether the month is written as a name, not as a number."""
        return self.month_position in self.name_positions

    @cached_property
    def is_numeric(self) -> bool:
        """Whether it holds digits and punctuation only."""
        return not self.name_positions and not any(letter.isalpha() for letter in "".join(self.literals))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Year, month and day in the order in which they stand."""
        return tuple(unit for unit in self.units if unit != WEEKDAY)

    def fill(self, texts: Sequence[str]) -> str:
        """The pattern with the text of each field in its place."""
        pieces = [piece for pair in zip(self.literals, texts, strict=False) for piece in pair]
        return "".join(pieces) + self.literals[-1]


@dataclass(frozen=True)
class DateLocale:
    """What one locale needs to write dates.

    The tables hold Latin digits; native ones are put in after a pattern is filled.
    """

    tag: str
    tables: Mapping[str, Sequence[str]]
    month_names: tuple[tuple[str, int], ...]
    """Each name of a month, wide or abbreviated, inflected or not, and its number from 1."""
    standard: Mapping[str, Pattern]
    """The patterns that CLDR gives, by the name of the format or skeleton."""
    text_patterns: tuple[Pattern, ...]
    numeric_patterns: tuple[Pattern, ...]
    word_patterns: tuple[Pattern, ...]

    @cached_property
    def alphabet(self) -> tuple[str, ...]:
        """The letters that its months are spelt with."""
        return tuple(sorted({letter for name, _ in self.month_names for letter in name.lower() if letter.isalpha()}))

    def texts(self, pattern: Pattern, units: Sequence[int]) -> list[str]:
        """What goes into each field of a pattern for the date with these units."""
        return [self.tables[field][units[unit]] for field, unit in zip(pattern.fields, pattern.units, strict=True)]


def units_of(day: date) -> tuple[int, int, int, int]:
    """Year, month, day and weekday, each counted from zero: the places in the tables."""
    return day.year - YEARS.start, day.month - 1, day.day - 1, day.weekday()


def parse_pattern(text: str, era: str = "") -> Pattern:
    """Read a pattern in the notation of CLDR; a field of the era becomes the text `era`.

    A two-digit year becomes one of four digits: a date without its century has no one right answer.
    """
    literals, fields, end = [""], [], 0
    for token in _TOKEN.finditer(text):
        literals[-1] += text[end : token.start()]
        end = token.end()
        field = token["braced"] or token["letters"]
        if field is None:
            literals[-1] += token["quoted"] or "'"
        elif field == "G":
            literals[-1] += era
        else:
            fields.append("y" if field in ("yy", "yyyy") else field)
            literals.append("")
    literals[-1] += text[end:]
    return Pattern(tuple(literals), tuple(fields))


def load_locale(tag: str) -> DateLocale:
    """Ask Babel how dates are written in the locale called `tag`, such as `en-US`."""
    from babel import Locale

    locale = Locale.parse(tag, sep="-")
    era = locale.eras["abbreviated"][1]
    sources = {name: locale.date_formats[name].pattern for name in (*STANDARD_FORMATS, "short")}
    skeletons = (*STANDARD_SKELETONS, NUMERIC_SKELETON)
    sources |= {
        name: locale.datetime_skeletons[name].pattern for name in skeletons if name in locale.datetime_skeletons
    }
    standard = {name: parse_pattern(source, era) for name, source in sources.items()}
    extra = [parse_pattern(source) for source in EXTRA_PATTERNS.get(tag, ())]
    numeric = _numeric_patterns(standard[NUMERIC_SKELETON].order)
    patterns = _without_repeats([*standard.values(), *extra, *numeric])
    return DateLocale(
        tag=tag,
        tables=_number_tables() | _name_tables(locale) | word_tables(locale.language, YEARS),
        month_names=_month_names(locale),
        standard=standard,
        text_patterns=tuple(pattern for pattern in patterns if not pattern.is_numeric),
        numeric_patterns=tuple(pattern for pattern in patterns if pattern.is_numeric),
        word_patterns=tuple(parse_pattern(source) for source in WORD_PATTERNS.get(tag, ())),
    )


def _numeric_patterns(order: Sequence[int]) -> list[Pattern]:
    """A locale's order of year, month and day with the separators that people use, and ISO 8601."""
    patterns = [parse_pattern("y-MM-dd")]
    for letters in ({YEAR: "y", MONTH: "M", DAY: "d"}, {YEAR: "y", MONTH: "MM", DAY: "dd"}):
        patterns += [parse_pattern(separator.join(letters[unit] for unit in order)) for separator in "/.-"]
    return patterns


def _without_repeats(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Each pattern once, as CLDR has it and as a hand would type it, without special spaces and marks."""
    typed = [
        Pattern(tuple(literal.translate(_TYPED_BY_HAND) for literal in pattern.literals), pattern.fields)
        for pattern in patterns
    ]
    return list(dict.fromkeys([*patterns, *typed]))


def _number_tables() -> dict[str, tuple[str, ...]]:
    return {
        "y": tuple(str(year) for year in YEARS),
        "M": tuple(str(month) for month in range(1, 13)),
        "MM": tuple(f"{month:02}" for month in range(1, 13)),
        "d": tuple(str(day) for day in range(1, 32)),
        "dd": tuple(f"{day:02}" for day in range(1, 32)),
    }


def _name_tables(locale: Any) -> dict[str, tuple[str, ...]]:
    """The names of months from January and of weekdays from Monday, by field."""
    tables = {}
    for context, month, weekday in (("format", "M", "E"), ("stand-alone", "L", "c")):
        for width, repeats in (("abbreviated", 3), ("wide", 4)):
            tables[month * repeats] = tuple(locale.months[context][width][number] for number in range(1, 13))
            tables[weekday * repeats] = tuple(locale.days[context][width][number] for number in range(7))
    return tables | {"E": tables["EEE"]}


def _month_names(locale: Any) -> tuple[tuple[str, int], ...]:
    tables = _name_tables(locale)
    pairs = [(name, number) for field in ("MMM", "MMMM", "LLL", "LLLL") for number, name in enumerate(tables[field], 1)]
    return tuple(dict.fromkeys(pairs))
