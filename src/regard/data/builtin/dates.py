"""Dates as people write them, in many languages and scripts, and their ISO 8601 form.

    source                              target
    Tuesday the 4th of March, 2025      2025-03-04
    ४ मार्च २०२५                          2025-03-04
    03/04/2025 [en-US]                  2025-03-04
    03/04/2025 [en-GB]                  2025-04-03

Each source has one correct target. If its reading depends on the language or the country, it ends with the locale in
brackets: `3 listopada 2025` is a day in October in Croatian and in November in Polish. Two conservative rules decide:

* a month in digits needs a tag, unless the year comes first (no locale here writes year, day, month) or the day is
  above 12 and cannot be a month;
* a name of a month needs a tag if, regardless of case, it denotes another month in any of `LOCALES`. A misspelt name
  needs one if a name of another month in any of them is as close to it as the intended name.

The calendar is Gregorian and years have all their digits. Names and patterns are those of CLDR in Babel, so another
version of Babel may change rows. A pattern has the notation of the Unicode CLDR ("Unicode Technical Standard #35, part
4: Dates", https://www.unicode.org/reports/tr35/tr35-dates.html): `d` is a day, `MM` a month in two digits, `MMMM` its
name, `EEEE` the weekday, `y` the year, and quoted text is literal. Fields that CLDR does not have are in braces:
`{day_ordinal}`, `{day_words}`, `{year_words}`; they exist for the languages where their form is certain. Each locale
has a table of all values for each field, so that writing a date takes one lookup per field.

A misspelling is one typing error: two adjacent letters swapped, a letter dropped, doubled or replaced. It is
recoverable if the intended name remains closer than every name with another meaning, by the Levenshtein distance: the
minimum number of insertions, deletions and replacements (V. Levenshtein, "Binary codes capable of correcting deletions,
insertions, and reversals", 1966). Names close to a word are found without comparing it with each: if two words are at
most k edits apart, deleting at most k letters from each can make them equal (W. Garbe, "Symmetric Delete", 2012).
https://github.com/wolfgarbe/SymSpell
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property
from itertools import combinations, islice
from random import Random
from typing import Any, NamedTuple, TypeVar

from regard.data.builtin import BuiltinData
from regard.errors import ConfigError

LOCALES = (
    "en-US", "en-GB", "de", "fr", "es", "it", "pt-BR", "ca", "ro", "nl", "sv", "da", "nb", "fi", "et", "hu", "lt",
    "lv", "pl", "cs", "sk", "sl", "hr", "sr", "sr-Latn", "bg", "mk", "uk", "be", "ru", "el", "tr", "az", "ka", "hy",
    "he", "ar-EG", "fa", "ur", "hi", "mr", "ne", "bn", "ta", "th", "my", "ko", "ja", "zh", "vi", "id", "ms", "sw",
    "fil",
)  # fmt: skip
"""The locales of the dates, as BCP 47 tags."""

LOCALE_WEIGHTS = {
    **dict.fromkeys(("en-US", "en-GB"), 6),
    **dict.fromkeys(("de", "fr", "es"), 4),
    **dict.fromkeys(("it", "pt-BR", "ru"), 3),
    **dict.fromkeys(("nl", "pl", "ja", "zh", "tr"), 2),
}
"""Weights of the most common locales on the web; the others have weight 1."""

NATIVE_DIGITS = {
    "ar-EG": ("\u0660", 0.8), "fa": ("\u06f0", 0.8), "ur": ("\u06f0", 0.3), "hi": ("\u0966", 0.3),
    "mr": ("\u0966", 0.8), "ne": ("\u0966", 0.8), "bn": ("\u09e6", 0.8), "th": ("\u0e50", 0.3),
    "my": ("\u1040", 0.8), "ja": ("\uff10", 0.1),
}  # fmt: skip
"""The zero of each locale with its own digits, and the share of rows that use them."""

NUMERIC_SHARE, WORDS_SHARE = 0.2, 0.03
MISSPELT_SHARE = 0.14
"""Share of the rows with a name that can be misspelt; about 5 % of all rows."""
NEEDLESS_TAG_SHARE = 0.03
LOWER_SHARE, UPPER_SHARE = 0.15, 0.05
NO_COMMA_SHARE = 0.2
SPACE_SHARE = 0.03

_SPECIAL_CASING = frozenset({"tr", "az"})  # dotted and dotless i, for which str.lower and str.upper are wrong
_WITH_UPPER_CASE = frozenset({"en-US", "en-GB"})  # elsewhere it is so rare that a model would see too few

_Choice = TypeVar("_Choice")

YEARS = range(1900, 2100)
_MONTHS, _DAYS = range(1, 13), range(1, 32)
_NUMBER_TABLES = {
    "y": tuple(map(str, YEARS)),
    "M": tuple(map(str, _MONTHS)),
    "MM": tuple(f"{month:02}" for month in _MONTHS),
    "d": tuple(map(str, _DAYS)),
    "dd": tuple(f"{day:02}" for day in _DAYS),
}

YEAR, MONTH, DAY, WEEKDAY = range(4)
_MONTH_NAMES = ("MMM", "MMMM", "LLL", "LLLL")
_NAMES = frozenset({*_MONTH_NAMES, "E", "EEE", "EEEE", "ccc", "cccc"})
_UNITS = {
    **dict.fromkeys(("y", "year_words"), YEAR),
    **dict.fromkeys(("M", "MM", *_MONTH_NAMES), MONTH),
    **dict.fromkeys(("d", "dd", "day_ordinal", "day_words"), DAY),
    **dict.fromkeys(_NAMES - set(_MONTH_NAMES), WEEKDAY),
}
"""The unit of each field, as an index into the result of `units_of`."""

STANDARD_FORMATS = ("medium", "long", "full")
STANDARD_SKELETONS = ("yMMMd", "yMMMMd", "yMMMEd", "yMMMMEd", "yMMMMEEEEd")
_NUMERIC_SKELETON = "yMd"

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
_EXTRA_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "en-US": _ENGLISH,
    "en-GB": _ENGLISH,
    "de": ("'den' d. MMMM y", "d. MMMM y", "EEEE, 'der' d. MMMM y", "d.MMMM y"),
    "fr": ("'le' {day_ordinal} MMMM y", "{day_ordinal} MMMM y", "EEEE {day_ordinal} MMMM y"),
    "es": ("d MMMM y", "'el' d 'de' MMMM 'de' y"),
    "ru": ("d MMMM y", "d MMMM y 'года'"),
}
"""Common patterns that CLDR does not list."""
_ENGLISH_WORDS = (
    "'the' {day_words} 'of' MMMM, y",
    "{day_words} 'of' MMMM y",
    "EEEE 'the' {day_words} 'of' MMMM y",
    "MMMM {day_words}, y",
    "MMMM 'the' {day_words}, y",
    "EEEE, MMMM {day_words}, y",
)
_WORD_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "en-US": _ENGLISH_WORDS,
    "en-GB": _ENGLISH_WORDS,
    "zh": ("{year_words}年MMMM{day_words}日",),
}
"""Patterns with numbers in words."""
_ENGLISH_ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth",
)  # fmt: skip
_CHINESE_DIGITS = "〇一二三四五六七八九"

_TOKEN = re.compile(r"'(?P<quoted>[^']*)'|\{(?P<braced>\w+)\}|(?P<letters>([A-Za-z])\4*)")
_TYPED_BY_HAND = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200e": None, "\u200f": None})
MIN_MISSPELT_LENGTH = 5
"""Shorter names are not misspelt: a single error could make them unrecognizable."""
MAX_DISTANCE = 2
"""The largest distance of a misspelling: swapping takes two edits, the other errors one."""
SWAPPED, DROPPED, DOUBLED = 0.3, 0.25, 0.35
"""The probability of each error; otherwise a letter is replaced."""


@dataclass(frozen=True)
class Pattern:
    """A way of writing dates: literal text before each field and after the last, and the fields between."""

    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @cached_property
    def units(self) -> tuple[int, ...]:
        """The unit of each field: year, month, day or weekday."""
        return tuple(_UNITS[field] for field in self.fields)

    @cached_property
    def name_positions(self) -> tuple[int, ...]:
        """The positions of the names of months and weekdays among the fields."""
        return tuple(i for i, field in enumerate(self.fields) if field in _NAMES)

    @cached_property
    def month_position(self) -> int:
        return self.units.index(MONTH)

    @cached_property
    def names_month(self) -> bool:
        """Whether the month is a name rather than a number."""
        return self.month_position in self.name_positions

    @cached_property
    def is_numeric(self) -> bool:
        """Whether it consists of digits and punctuation only."""
        return not self.name_positions and not any(letter.isalpha() for letter in "".join(self.literals))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Year, month and day in their order."""
        return tuple(unit for unit in self.units if unit != WEEKDAY)

    def fill(self, texts: Sequence[str]) -> str:
        """The pattern with the text of each field."""
        return "".join(piece for pair in zip(self.literals, (*texts, ""), strict=True) for piece in pair)


@dataclass(frozen=True)
class DateLocale:
    """The patterns and tables of one locale, with Latin digits."""

    tag: str
    tables: Mapping[str, Sequence[str]]
    month_names: tuple[tuple[str, int], ...]
    """Each name of a month, wide or abbreviated, inflected or not, and its number from 1."""
    standard: Mapping[str, Pattern]
    """The patterns of CLDR, by the name of the format or skeleton."""
    text_patterns: tuple[Pattern, ...]
    numeric_patterns: tuple[Pattern, ...]
    word_patterns: tuple[Pattern, ...]

    @cached_property
    def alphabet(self) -> tuple[str, ...]:
        """The letters of the names of months."""
        return tuple(sorted({letter for name, _ in self.month_names for letter in name.lower() if letter.isalpha()}))

    def texts(self, pattern: Pattern, units: Sequence[int]) -> list[str]:
        """The text of each field of a pattern for the date with these units."""
        return [self.tables[field][units[unit]] for field, unit in zip(pattern.fields, pattern.units, strict=True)]


class DrawnDate(NamedTuple):
    """A row, and how it was generated."""

    source: str
    target: str
    locale: str
    pattern: Pattern
    month: str
    """The month in the source, before changes of case and digits."""
    is_tagged: bool
    misspelt: str | None
    """The correct spelling of a misspelt name of a month or weekday."""


def generate_dates(num_rows: int, seed: int) -> Iterator[tuple[str, str]]:
    """Generate pairs of a written date and its ISO 8601 form.

    The first rows of a seed do not depend on the number of rows.

    Example:
        >>> for source, target in generate_dates(3, 0):
        ...     assert len(target) == len("2025-03-04")
    """
    if num_rows < 0:
        raise ConfigError(f"num_rows must not be negative, got {num_rows}")
    return ((row.source, row.target) for row in islice(draw_dates(seed), num_rows))


def draw_dates(seed: int) -> Iterator[DrawnDate]:
    """An infinite stream of rows with their details."""
    rng = Random(seed)
    writer = date_writer()
    while True:
        yield writer.draw(rng)


@cache
def date_writer() -> "DateWriter":
    """The writer for all of `LOCALES`, which is built at the first call."""
    return DateWriter([load_locale(tag) for tag in LOCALES])


class DateWriter:
    """Draws dates, writes them in one of many ways, and tags those that are ambiguous.

    All random numbers come from `Random.random`, the one method whose sequence Python keeps from version to version.
    """

    def __init__(self, locales: Sequence[DateLocale]) -> None:
        self.locales = {locale.tag: locale for locale in locales}
        self.months = NameIndex((name, locale.tag, month) for locale in locales for name, month in locale.month_names)
        self._weighted = [locale for locale in locales for _ in range(LOCALE_WEIGHTS.get(locale.tag, 1))]
        self._with_words = [locale for locale in self._weighted if locale.word_patterns]
        self._first_day = date(YEARS.start, 1, 1).toordinal()
        self._num_days = date(YEARS.stop, 1, 1).toordinal() - self._first_day

    def draw(self, rng: Random) -> DrawnDate:
        """Draw one row."""
        day = date.fromordinal(self._first_day + int(rng.random() * self._num_days))
        locale, pattern = self._draw_pattern(rng)
        texts = locale.texts(pattern, units_of(day))
        misspelt, distance = self._misspell_one(rng, locale, pattern, texts, day.month)
        month = texts[pattern.month_position]
        source = _vary(rng, pattern.fill(texts), locale)
        is_tagged = self.needs_tag(pattern, day, month, distance) or rng.random() < NEEDLESS_TAG_SHARE
        if is_tagged:
            source = f"{source} [{locale.tag}]"
        return DrawnDate(source, day.isoformat(), locale.tag, pattern, month, is_tagged, misspelt)

    def needs_tag(self, pattern: Pattern, day: date, month: str, distance: int = 0) -> bool:
        """Whether a date in this form could be read as another day in another locale.

        `month` is the month as written, `distance` its edit distance from the correct spelling.
        """
        if pattern.names_month:
            return bool(self.months.rivals(month, distance=distance, month=day.month))
        return pattern.order[0] != YEAR and day.day <= 12

    def _draw_pattern(self, rng: Random) -> tuple[DateLocale, Pattern]:
        kind = rng.random()
        if kind < WORDS_SHARE:
            locale = _pick(rng, self._with_words)
            return locale, _pick(rng, locale.word_patterns)
        locale = _pick(rng, self._weighted)
        is_numeric = kind < WORDS_SHARE + NUMERIC_SHARE
        return locale, _pick(rng, locale.numeric_patterns if is_numeric else locale.text_patterns)

    def _misspell_one(
        self, rng: Random, locale: DateLocale, pattern: Pattern, texts: list[str], month: int
    ) -> tuple[str | None, int]:
        """Misspell one name in `texts` in some rows, in place.

        Returns the correct name, and the distance of the month from its correct spelling.
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
        """Whether no other month of the locale is as close; for a weekday, no month of any locale."""
        rivals = self.months.rivals(name, distance=distance, month=month)
        return not rivals if month is None else locale.tag not in rivals


def _vary(rng: Random, source: str, locale: DateLocale) -> str:
    """Native digits, and variations of case, commas and spaces."""
    if locale.tag in NATIVE_DIGITS:
        zero, share = NATIVE_DIGITS[locale.tag]
        if rng.random() < share:
            source = source.translate({ord("0") + digit: ord(zero) + digit for digit in range(10)})
    case = rng.random()
    if locale.tag not in _SPECIAL_CASING:
        if case < LOWER_SHARE:
            source = source.lower()
        elif case > 1 - UPPER_SHARE and locale.tag in _WITH_UPPER_CASE:
            source = source.upper()
    if rng.random() < NO_COMMA_SHARE:
        source = source.replace(", ", " ").replace("، ", " ")
    spaces = rng.random() / SPACE_SHARE
    if spaces < 1:
        source = (f" {source}", f"{source} ", source.replace(" ", "  ", 1))[int(spaces * 3)]
    return source


def _pick(rng: Random, choices: Sequence[_Choice]) -> _Choice:
    return choices[int(rng.random() * len(choices))]


def units_of(day: date) -> tuple[int, int, int, int]:
    """Year, month, day and weekday, as indices into the tables."""
    return day.year - YEARS.start, day.month - 1, day.day - 1, day.weekday()


def parse_pattern(text: str, era: str = "") -> Pattern:
    """Parse a pattern of CLDR; a field for the era becomes the text `era`.

    A two-digit year becomes one of four digits: a date without its century is ambiguous.
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
    """Load the patterns and names of a locale, such as `en-US`, from Babel."""
    from babel import Locale

    locale = Locale.parse(tag, sep="-")
    skeletons = locale.datetime_skeletons
    sources = {name: locale.date_formats[name] for name in (*STANDARD_FORMATS, "short")}
    sources |= {name: skeletons[name] for name in (*STANDARD_SKELETONS, _NUMERIC_SKELETON) if name in skeletons}
    era = locale.eras["abbreviated"][1]
    standard = {name: parse_pattern(source.pattern, era) for name, source in sources.items()}
    extra = [parse_pattern(source) for source in _EXTRA_PATTERNS.get(tag, ())]
    numeric = _numeric_patterns(standard[_NUMERIC_SKELETON].order)
    patterns = _with_typed([*standard.values(), *extra, *numeric])
    names = _name_tables(locale)
    month_names = [(name, number) for field in _MONTH_NAMES for number, name in enumerate(names[field], 1)]
    return DateLocale(
        tag=tag,
        tables=_NUMBER_TABLES | names | word_tables(locale.language, YEARS),
        month_names=tuple(dict.fromkeys(month_names)),
        standard=standard,
        text_patterns=tuple(pattern for pattern in patterns if not pattern.is_numeric),
        numeric_patterns=tuple(pattern for pattern in patterns if pattern.is_numeric),
        word_patterns=tuple(parse_pattern(source) for source in _WORD_PATTERNS.get(tag, ())),
    )


def word_tables(language: str, years: range) -> dict[str, tuple[str, ...]]:
    """The numbers that a language writes in words or as ordinals, by field; empty for other languages."""
    match language:
        case "en":
            ordinals = tuple(f"{day}{_english_ending(day)}" for day in _DAYS)
            return {"day_ordinal": ordinals, "day_words": tuple(map(_english_day, _DAYS))}
        case "fr":
            return {"day_ordinal": ("1er", *map(str, _DAYS[1:]))}
        case "zh":
            digits = str.maketrans("0123456789", _CHINESE_DIGITS)
            return {
                "day_words": tuple(map(_chinese_day, _DAYS)),
                "year_words": tuple(str(year).translate(digits) for year in years),
            }
        case _:
            return {}


def _english_ending(day: int) -> str:
    return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")


def _english_day(day: int) -> str:
    if day == 30:
        return "thirtieth"
    if day <= 20:
        return _ENGLISH_ORDINALS[day - 1]
    return f"{'twenty' if day < 30 else 'thirty'}-{_ENGLISH_ORDINALS[day % 10 - 1]}"


def _chinese_day(day: int) -> str:
    tens, unit = divmod(day, 10)
    tens_part = ("" if tens < 2 else _CHINESE_DIGITS[tens]) + ("十" if tens else "")
    return tens_part + (_CHINESE_DIGITS[unit] if unit else "")


def _numeric_patterns(order: Sequence[int]) -> list[Pattern]:
    """ISO 8601, and a locale's order of year, month and day with common separators."""
    patterns = [parse_pattern("y-MM-dd")]
    for letters in ({YEAR: "y", MONTH: "M", DAY: "d"}, {YEAR: "y", MONTH: "MM", DAY: "dd"}):
        patterns += [parse_pattern(separator.join(letters[unit] for unit in order)) for separator in "/.-"]
    return patterns


def _with_typed(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Each distinct pattern, also as it is typed by hand, without special spaces and marks."""
    typed = [
        Pattern(tuple(literal.translate(_TYPED_BY_HAND) for literal in pattern.literals), pattern.fields)
        for pattern in patterns
    ]
    return list(dict.fromkeys([*patterns, *typed]))


def _name_tables(locale: Any) -> dict[str, tuple[str, ...]]:
    """The names of months from January and of weekdays from Monday, by field."""
    tables = {}
    for context, month, weekday in (("format", "M", "E"), ("stand-alone", "L", "c")):
        for width, repeats in (("abbreviated", 3), ("wide", 4)):
            tables[month * repeats] = tuple(locale.months[context][width][number] for number in _MONTHS)
            tables[weekday * repeats] = tuple(locale.days[context][width][number] for number in range(7))
    return tables | {"E": tables["EEE"]}


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


DATES_DATA = BuiltinData(
    name="dates",
    description=f"dates as people write them in {len(LOCALES)} locales, to ISO 8601",
    columns=("source", "target"),
    num_rows=100_000,
    tokenizer="characters",
    generate=generate_dates,
)
