"""Dates in many languages: each has one correct reading, and Babel is the reference for their form."""

import re
import subprocess
import sys
from collections import defaultdict
from datetime import date, timedelta
from functools import cache
from itertools import chain, islice

import pytest
from babel import Locale
from babel.dates import format_date, format_skeleton

from regard.data.builtin import BuiltinData, builtin_names, find_builtin
from regard.data.builtin.dates import (
    LOCALES,
    NATIVE_DIGITS,
    STANDARD_FORMATS,
    STANDARD_SKELETONS,
    YEAR,
    YEARS,
    DrawnDate,
    NameIndex,
    date_writer,
    draw_dates,
    edit_distance,
    generate_dates,
    load_locale,
    normalize_name,
    parse_pattern,
    units_of,
    word_tables,
)
from regard.errors import ConfigError, DataError

TAG = re.compile(r" \[([\w-]+)\]$")
PUNCTUATION = re.compile(r"[,،./-]+")


@pytest.fixture(scope="module")
def drawn() -> list[DrawnDate]:
    return [row for seed in (0, 1) for row in islice(draw_dates(seed), 25_000)]


@cache
def months_of(tag: str) -> dict[str, set[int]]:
    """The normalized names of months of a locale in Babel, and the months they denote there."""
    months = defaultdict(set)
    for context in ("format", "stand-alone"):
        for width in ("wide", "abbreviated"):
            for month, name in Locale.parse(tag, sep="-").months[context][width].items():
                months[normalize_name(name)].add(month)
    return months


@cache
def months_anywhere() -> dict[str, set[int]]:
    months = defaultdict(set)
    for tag in LOCALES:
        for name, numbers in months_of(tag).items():
            months[name] |= numbers
    return months


def month_of(row: DrawnDate) -> int:
    return date.fromisoformat(row.target).month


def is_misspelt_month(row: DrawnDate) -> bool:
    return row.misspelt is not None and normalize_name(row.month) not in months_of(row.locale)


def distances(name: str, months: dict[str, set[int]], month: int) -> tuple[int, int]:
    """How far a name is from the nearest name of a month, and from the nearest of any other."""
    name = normalize_name(name)
    own = min(edit_distance(name, known) for known, numbers in months.items() if month in numbers)
    other = min(edit_distance(name, known) for known, numbers in months.items() if numbers - {month})
    return own, other


def simplify(source: str) -> str:
    """What a careless reader sees: no case, and any punctuation as one space."""
    return " ".join(PUNCTUATION.sub(" ", source.casefold()).split())


@pytest.mark.slow
def test_a_source_has_one_target_whatever_the_seed(drawn: list[DrawnDate]):
    targets: dict[str, str] = {}
    pairs = [(row.source, row.target) for row in drawn]
    for source, target in chain(pairs, *(generate_dates(25_000, seed) for seed in range(2, 8))):
        assert targets.setdefault(simplify(source), target) == target, source


@pytest.mark.slow
def test_every_day_of_a_leap_year_has_one_reading_however_it_is_written():
    # Latin digits are enough: what native ones tell apart is only told apart better.
    writer = date_writer()
    days = [date(2024, 1, 1) + timedelta(days=count) for count in range(366)]
    readings: dict[str, date] = {}
    for locale in writer.locales.values():
        for pattern in locale.text_patterns + locale.numeric_patterns + locale.word_patterns:
            for day in days:
                texts = locale.texts(pattern, units_of(day))
                is_tagged = writer.needs_tag(pattern, day, texts[pattern.month_position])
                source = simplify(pattern.fill(texts)) + (f" [{locale.tag}]" if is_tagged else "")
                assert readings.setdefault(source, day) == day, source


def test_an_untagged_name_denotes_one_month_in_all_locales(drawn: list[DrawnDate]):
    rows = [row for row in drawn if row.pattern.names_month and not row.is_tagged and not is_misspelt_month(row)]
    assert len(rows) > 10_000
    for row in rows:
        assert months_anywhere()[normalize_name(row.month)] == {month_of(row)}, row.source


def test_an_untagged_misspelling_is_nearer_its_month_than_any_other_of_all_locales(drawn: list[DrawnDate]):
    # The Slavic languages give different months the same old names: where it is hardest.
    hardest = [row for row in drawn if row.locale in {"cs", "hr", "pl"} and not row.is_tagged]
    rows = [row for row in hardest if is_misspelt_month(row)][:61]
    assert len(rows) == 61
    for row in rows:
        own, other = distances(row.month, months_anywhere(), month_of(row))
        assert own < other, row


def test_a_misspelling_is_nearer_its_month_than_any_other_of_its_language(drawn: list[DrawnDate]):
    rows = [row for row in drawn if is_misspelt_month(row)][:1500]
    assert len(rows) == 1500
    for row in rows:
        own, other = distances(row.month, months_of(row.locale), month_of(row))
        assert 0 < own <= 2, row
        assert own < other, row
        assert row.misspelt is not None
        assert len(row.misspelt) >= 5


def test_about_a_twentieth_of_the_rows_are_misspelt_and_most_are_short(drawn: list[DrawnDate]):
    assert 0.04 < sum(row.misspelt is not None for row in drawn) / len(drawn) < 0.13
    lengths = sorted(len(row.source) for row in drawn)
    assert 10 <= lengths[len(lengths) // 2] <= 30
    assert lengths[int(0.95 * len(lengths))] < 40


def test_year_and_day_are_in_the_source_unchanged(drawn: list[DrawnDate]):
    for row in drawn:
        in_digits = {"d", "dd"} & set(row.pattern.fields) and "y" in row.pattern.fields
        if row.pattern.names_month and in_digits:
            numbers = {int(number) for number in re.findall(r"\d+", TAG.sub("", row.source))}
            day = date.fromisoformat(row.target)
            assert {day.year, day.day} <= numbers, row


def test_all_locales_and_all_digits_appear(drawn: list[DrawnDate]):
    assert {row.locale for row in drawn} == set(LOCALES)
    assert len({tag.split("-")[0] for tag in LOCALES}) >= 40
    characters = set().union(*(row.source for row in drawn))
    for zero in {"0", *(zero for zero, _ in NATIVE_DIGITS.values())}:
        assert {chr(ord(zero) + digit) for digit in range(10)} <= characters
    assert set("〇一二三四五六七八九十") <= characters


def test_locales_with_a_numbering_system_of_their_own_use_it():
    own = {tag for tag in LOCALES if Locale.parse(tag, sep="-").default_numbering_system != "latn"}
    assert own == {tag for tag, (_, share) in NATIVE_DIGITS.items() if share > 0.5}


def test_targets_are_iso_dates_within_the_stated_years():
    for _, target in generate_dates(5_000, 3):
        assert date.fromisoformat(target).isoformat() == target
        assert date.fromisoformat(target).year in YEARS


def test_tags_name_a_locale_and_are_at_the_end(drawn: list[DrawnDate]):
    for row in drawn:
        match = TAG.search(row.source)
        assert (match is not None) == row.is_tagged
        assert match is None or match[1] == row.locale
        assert ("[" in row.source) == row.is_tagged


def test_listopada_is_tagged_october_in_croatian_and_november_in_polish(drawn: list[DrawnDate]):
    months: dict[str, set[int]] = defaultdict(set)
    for row in drawn:
        if row.locale in {"hr", "pl"} and row.month == "listopada":
            assert row.is_tagged
            months[row.locale].add(month_of(row))
    assert months == {"hr": {10}, "pl": {11}}


@pytest.mark.parametrize("tag", LOCALES)
def test_a_locale_writes_numbers_in_one_order_and_never_year_day_month(tag: str):
    locale = date_writer().locales[tag]
    patterns = [pattern for pattern in locale.text_patterns + locale.numeric_patterns if not pattern.names_month]
    orders = {pattern.order for pattern in patterns}
    assert {order for order in orders if order[0] == YEAR} == {(0, 1, 2)}
    assert len({order for order in orders if order[0] != YEAR}) <= 1


def test_digits_are_tagged_unless_they_have_one_reading():
    writer = date_writer()
    slashes, year_first = parse_pattern("MM/dd/y"), parse_pattern("y-MM-dd")
    assert writer.needs_tag(slashes, date(2025, 3, 4), "03")
    assert writer.needs_tag(slashes, date(2025, 12, 12), "12")
    assert not writer.needs_tag(slashes, date(2025, 3, 13), "03")
    assert not writer.needs_tag(year_first, date(2025, 3, 4), "03")


@pytest.mark.parametrize("tag", LOCALES)
def test_standard_formats_equal_those_of_babel(tag: str):
    locale = date_writer().locales[tag]
    identifier = tag.replace("-", "_")
    days = [date(1900 + 17 * month, month, 2 * month + 3) for month in range(1, 12)]
    days += [date(1999, month, 29 - month) for month in range(1, 13)]
    known = set(Locale.parse(identifier).datetime_skeletons)
    for name in (*STANDARD_FORMATS, *(known & {*STANDARD_SKELETONS, "yMd"})):
        for day in days:
            written = locale.standard[name].fill(locale.texts(locale.standard[name], units_of(day)))
            if name in STANDARD_FORMATS:
                assert written == format_date(day, name, locale=identifier)
            else:
                assert written == format_skeleton(name, day, fuzzy=False, locale=identifier)


@pytest.mark.parametrize("language", ["en", "fr", "zh"])
def test_numbers_in_words_are_all_different(language: str):
    for field, words in word_tables(language, YEARS).items():
        assert len(set(words)) == len(words) == (len(YEARS) if field.startswith("year") else 31)


def test_numbers_in_words_as_people_write_them():
    days = {language: word_tables(language, YEARS)["day_words"] for language in ("en", "zh")}
    assert [days["en"][day - 1] for day in (3, 12, 20, 21, 30, 31)] == [
        "third", "twelfth", "twentieth", "twenty-first", "thirtieth", "thirty-first",
    ]  # fmt: skip
    assert [days["zh"][day - 1] for day in (1, 10, 11, 20, 31)] == ["一", "十", "十一", "二十", "三十一"]
    assert word_tables("zh", YEARS)["year_words"][2025 - 1900] == "二〇二五"


def test_the_index_finds_the_names_that_comparing_with_each_would():
    names = [(name, tag, month) for tag in ("es", "pl", "hr") for name, month in load_locale(tag).month_names]
    index = NameIndex(names)
    for word in ("junio", "juio", "Listopda", "mraca", "febrero", "x", ""):
        for distance in range(3):
            expected = {
                tag
                for name, tag, month in names
                if month != 7 and edit_distance(normalize_name(word), normalize_name(name)) <= distance
            }
            assert index.rivals(word, distance=distance, month=7) == expected


def test_rows_depend_on_the_seed_and_not_on_their_number():
    rows = list(generate_dates(997, 11))
    assert rows == list(generate_dates(997, 11))
    assert rows[:101] == list(generate_dates(101, 11))
    assert rows != list(generate_dates(997, 12))
    assert list(generate_dates(0, 11)) == []


def test_another_process_generates_the_same_rows_and_starts_without_babel_and_torch():
    program = (
        "import sys; from regard.data.builtin import find_builtin;"
        "assert not {'torch', 'babel'} & set(sys.modules);"
        "print(ascii(list(find_builtin('dates').generate(997, 11))))"
    )
    paths = [path for path in sys.path if path]
    environment = {"PYTHONHASHSEED": "5", "PYTHONPATH": ":".join(paths)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ascii(list(generate_dates(997, 11)))


def test_a_negative_number_of_rows_is_an_error_at_once():
    with pytest.raises(ConfigError, match="num_rows must not be negative, got -1"):
        generate_dates(-1, 0)


def test_builtin_data_are_found_by_name():
    assert builtin_names() == ["answers", "dates", "molecules", "patients", "ratings", "rings", "sales", "scenes"]
    data = find_builtin("dates")
    assert isinstance(data, BuiltinData)
    assert all(len(row) == len(data.columns) for row in data.generate(7, 0))


def test_an_unknown_name_is_an_error_with_the_nearest_one():
    with pytest.raises(DataError, match=r"got 'date'; the nearest is 'dates'"):
        find_builtin("date")
