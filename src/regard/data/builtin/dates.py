"""Dates as people write them, in many languages and scripts, and their ISO 8601 form.

    source                              target
    Tuesday the 4th of March, 2025      2025-03-04
    ४ मार्च २०२५                          2025-03-04
    03/04/2025 [en-US]                  2025-03-04
    03/04/2025 [en-GB]                  2025-04-03

Each source has one right answer. Where its reading depends on the language or the
country, it ends with the locale in brackets: `3 listopada 2025` is a day of October
in Croatian, of November in Polish. Two rules decide, and both are conservative:

* a month in digits needs a tag, unless the year comes first (no locale here writes
  year, day, month) or the day is above 12, and so cannot be a month;
* a month by name needs a tag where the name, whatever its case, denotes another
  month in any of `LOCALES`. A misspelt name needs one where a name of another
  month in any of them is as near to it as the name that was meant.

The calendar is the Gregorian one throughout and years have all their digits.
The locales' names and patterns are those of CLDR as Babel holds it, so a new
version of Babel can change rows.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from itertools import islice
from random import Random
from typing import NamedTuple, TypeVar

from regard.data.builtin.date_patterns import MONTH, YEAR, YEARS, DateLocale, Pattern, load_locale, units_of
from regard.data.builtin.misspellings import NameIndex, can_misspell, misspell
from regard.errors import ConfigError

LOCALES = (
    "en-US", "en-GB", "de", "fr", "es", "it", "pt-BR", "ca", "ro", "nl", "sv", "da", "nb", "fi", "et", "hu", "lt",
    "lv", "pl", "cs", "sk", "sl", "hr", "sr", "sr-Latn", "bg", "mk", "uk", "be", "ru", "el", "tr", "az", "ka", "hy",
    "he", "ar-EG", "fa", "ur", "hi", "mr", "ne", "bn", "ta", "th", "my", "ko", "ja", "zh", "vi", "id", "ms", "sw",
    "fil",
)  # fmt: skip
"""The locales whose dates are written, as BCP 47 tags."""

LOCALE_WEIGHTS = {
    **dict.fromkeys(("en-US", "en-GB"), 6),
    **dict.fromkeys(("de", "fr", "es"), 4),
    **dict.fromkeys(("it", "pt-BR", "ru"), 3),
    **dict.fromkeys(("nl", "pl", "ja", "zh", "tr"), 2),
}
"""How many times as often as the others the locales most written on the web are drawn."""

NATIVE_DIGITS = {
    "ar-EG": ("\u0660", 0.8),
    "fa": ("\u06f0", 0.8),
    "ur": ("\u06f0", 0.3),
    "hi": ("\u0966", 0.3),
    "mr": ("\u0966", 0.8),
    "ne": ("\u0966", 0.8),
    "bn": ("\u09e6", 0.8),
    "th": ("\u0e50", 0.3),
    "my": ("\u1040", 0.8),
    "ja": ("\uff10", 0.1),
}
"""The zero of each locale that has digits of its own, and the share of rows that use them."""

NUMERIC_SHARE, WORDS_SHARE = 0.2, 0.03
MISSPELT_SHARE = 0.14
"""Of the rows with a name that can be misspelt; of all rows it makes about a twentieth."""
NEEDLESS_TAG_SHARE = 0.03
LOWER_SHARE, UPPER_SHARE = 0.15, 0.05
NO_COMMA_SHARE = 0.2
SPACE_SHARE = 0.03

_CASE_OF_ITS_OWN = frozenset({"tr", "az"})  # dotted and dotless i: str.lower and str.upper are wrong there
_WRITTEN_IN_CAPITALS = frozenset({"en-US", "en-GB"})  # elsewhere so rare that a model would see each too seldom

Choice = TypeVar("Choice")


class DrawnDate(NamedTuple):
    """A row, and how it came to be."""

    source: str
    target: str
    locale: str
    pattern: Pattern
    month: str
    """The month as it stands in the source, but for case and digits."""
    is_tagged: bool
    misspelt: str | None
    """The name of a month or weekday before it was misspelt, where one was."""


def generate_dates(num_rows: int, seed: int) -> Iterator[tuple[str, str]]:
    """Pairs of a written date and its ISO 8601 form, drawn one by one.

    The first rows of a seed are the same however many are asked for.

    Example:
        >>> for source, target in generate_dates(3, 0):
        ...     assert len(target) == len("2025-03-04")
    """
    if num_rows < 0:
        raise ConfigError(f"num_rows must not be negative, got {num_rows}")
    return ((row.source, row.target) for row in islice(draw_dates(seed), num_rows))


def draw_dates(seed: int) -> Iterator[DrawnDate]:
    """An endless stream of rows with all that is known about each."""
    rng = Random(seed)
    writer = date_writer()
    while True:
        yield writer.draw(rng)


@cache
def date_writer() -> "DateWriter":
    """The writer over all of `LOCALES`, built at the first call."""
    return DateWriter([load_locale(tag) for tag in LOCALES])


class DateWriter:
    """Draws dates, writes them in one of many ways, and tags those that need it.

    All randomness goes through `Random.random`, the one method whose stream
    Python promises to keep from version to version.
    """

    def __init__(self, locales: Sequence[DateLocale]) -> None:
        self.locales = {locale.tag: locale for locale in locales}
        self.months = NameIndex((name, locale.tag, month) for locale in locales for name, month in locale.month_names)
        self._drawn = [locale for locale in locales for _ in range(LOCALE_WEIGHTS.get(locale.tag, 1))]
        self._drawn_in_words = [locale for locale in self._drawn if locale.word_patterns]
        self._first_day = date(YEARS.start, 1, 1).toordinal()
        self._num_days = date(YEARS.stop, 1, 1).toordinal() - self._first_day

    def draw(self, rng: Random) -> DrawnDate:
        """One row."""
        day = date.fromordinal(self._first_day + int(rng.random() * self._num_days))
        units = units_of(day)
        locale, pattern = self._draw_pattern(rng)
        texts = locale.texts(pattern, units)
        misspelt, distance = self._misspell_one(rng, locale, pattern, texts, day.month)
        month = texts[pattern.month_position]
        source = _vary(rng, pattern.fill(texts), locale)
        is_tagged = self.needs_tag(pattern, day, month, distance) or rng.random() < NEEDLESS_TAG_SHARE
        if is_tagged:
            source = f"{source} [{locale.tag}]"
        return DrawnDate(source, day.isoformat(), locale.tag, pattern, month, is_tagged, misspelt)

    def needs_tag(self, pattern: Pattern, day: date, month: str, distance: int = 0) -> bool:
        """Whether a date written so could be read as another day in another locale.

        Args:
            pattern: How it is written.
            day: The date.
            month: The month as written.
            distance: How many edits away from its right spelling the month is.
        """
        if pattern.names_month:
            return bool(self.months.rivals(month, distance=distance, month=day.month))
        return pattern.order[0] != YEAR and day.day <= 12

    def _draw_pattern(self, rng: Random) -> tuple[DateLocale, Pattern]:
        kind = rng.random()
        if kind < WORDS_SHARE:
            locale = _pick(rng, self._drawn_in_words)
            return locale, _pick(rng, locale.word_patterns)
        locale = _pick(rng, self._drawn)
        is_numeric = kind < WORDS_SHARE + NUMERIC_SHARE
        return locale, _pick(rng, locale.numeric_patterns if is_numeric else locale.text_patterns)

    def _misspell_one(
        self, rng: Random, locale: DateLocale, pattern: Pattern, texts: list[str], month: int
    ) -> tuple[str | None, int]:
        """Misspell, at times, one name in `texts`, in place.

        Returns the name that was there, and how far the month now is from its right spelling.
        """
        positions = [position for position in pattern.name_positions if can_misspell(texts[position])]
        if not positions or rng.random() >= MISSPELT_SHARE:
            return None, 0
        position = _pick(rng, positions)
        name = texts[position]
        changed, distance = misspell(rng, name, locale.alphabet)
        is_month = pattern.units[position] == MONTH
        if distance == 0 or not self._is_recoverable(changed, distance, locale, month if is_month else None):
            return None, 0
        texts[position] = changed
        return name, distance if is_month else 0

    def _is_recoverable(self, name: str, distance: int, locale: DateLocale, month: int | None) -> bool:
        """Whether no other month of the locale is as near; for a weekday, no month of any."""
        rivals = self.months.rivals(name, distance=distance, month=month)
        return not rivals if month is None else locale.tag not in rivals


def _vary(rng: Random, source: str, locale: DateLocale) -> str:
    """Native digits, and the liberties that people take with case, commas and spaces."""
    if locale.tag in NATIVE_DIGITS:
        zero, share = NATIVE_DIGITS[locale.tag]
        if rng.random() < share:
            source = source.translate(_digits_from(zero))
    case = rng.random()
    if locale.tag not in _CASE_OF_ITS_OWN:
        if case < LOWER_SHARE:
            source = source.lower()
        elif case > 1 - UPPER_SHARE and locale.tag in _WRITTEN_IN_CAPITALS:
            source = source.upper()
    if rng.random() < NO_COMMA_SHARE:
        source = source.replace(", ", " ").replace("، ", " ")
    spaces = rng.random() / SPACE_SHARE
    if spaces < 1:
        source = (f" {source}", f"{source} ", source.replace(" ", "  ", 1))[int(spaces * 3)]
    return source


@cache
def _digits_from(zero: str) -> dict[int, int]:
    """What turns Latin digits into those that begin with `zero`."""
    return {ord("0") + digit: ord(zero) + digit for digit in range(10)}


def _pick(rng: Random, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.random() * len(choices))]
