"""Tables of features: numbers and categories of objects, none of which is a sequence to model.

A sequence is a text of several words, a long string of symbols, or what its column is called a text. The names of
objects, such as people, cars and countries, are sequences in a table of names and labels; among features they only
identify the rows.
"""

import re
from collections.abc import Sequence

from regard.data.formats.columns import is_identifier, is_language
from regard.data.formats.events import EVENT_TIME_COLUMNS
from regard.data.formats.summary import ColumnSummary

_TEXT_WORDS = ("text", "sentence", "sentences", "review", "comment", "tweet", "message", "question", "description",
               "title", "headline", "sequence", "smiles", "lyrics", "quote")  # fmt: skip
_TIME_WORDS = ("date", "time", "datetime", "timestamp", "day", "week", "month", "quarter", "year")
_NAME_WORDS = ("name", "names", "surname", "firstname", "lastname", "fullname", "address", "street", "city", "town",
               "county", "country", "state", "url", "link", "email", "phone", "ticket", *_TIME_WORDS)  # fmt: skip
"""Words of the names of columns whose cells identify something, unless they have many words."""
_FREE_WORDS, _LONG_NAME, _LONG_CHARACTERS = 3.0, 5.0, 30.0
"""Words of a cell of running text on average, words of the names of products, which are descriptions, and characters of
a string without spaces."""
_FEWEST_ROWS, _FACTOR_REPEATED, _LONGEST_FACTOR = 10, 2, 40
"""The fewest rows with groups, the rows of a group on average, and the most characters of its name."""
_PAIR, _FEWEST_FEATURES = 2, 3
"""So many columns of features, one of which may be the target, make the other columns names of the rows."""
_SPARSE = 5
"""Fewer rows than this for each value of an identifier are too few for a series."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Characters of languages that write no spaces: Thai, Lao, Khmer, Japanese and Chinese."""
_UNSPACED_PER_WORD = 2
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_feature_table(columns: Sequence[ColumnSummary], *, has_names: bool) -> bool:
    """Whether rows are features of objects: no column is free text, and several are numbers or categories.

    Two columns without names are a pair, of digits and words for example, and so are those with names of languages.
    """
    used = [column for column in columns if any(cell.strip() for cell in column.cells)]
    used = [column for column in used if not is_identifier(column.name)]
    num_languages = sum(is_language(column.plain_name) for column in used if column.kind == "text")
    if any(map(is_free_text, used)) or num_languages > 1 or (len(used) <= _PAIR and not has_names):
        return False
    # The dates of numbers may be in any form; a column of dates alone may be one to be translated.
    is_measured = any(column.kind == "numbers" for column in used)
    num_features = sum(is_feature(column) or (is_measured and is_named_time(column)) for column in used)
    return num_features >= (_FEWEST_FEATURES if num_features < len(used) else _PAIR)


def find_interactions(columns: Sequence[ColumnSummary]) -> tuple[str, str, str] | None:
    """The subject, the item and the time of a table such as one of ratings; None for another table.

    Two columns are called identifiers, and one is a time. A table of series has identifiers, too, but many rows of each
    or many rows at each time: here, most values of an identifier and most times occur a few times only.
    """
    times = [column for column in columns if column.kind == "dates" or _is_time(column)]
    times = [column for column in times if _SPARSE * column.num_distinct > len(column.cells)]
    ids = [column for column in columns if is_identifier(column.name) and column not in times]
    repeated = [column for column in ids if column.num_distinct < len(column.cells)]
    is_sparse = any(_SPARSE * column.num_distinct > len(column.cells) for column in repeated)
    if not times or len(ids) < _PAIR or not repeated or not is_sparse:
        return None
    return ids[0].name, ids[1].name, times[0].name


def _is_time(column: ColumnSummary) -> bool:
    return column.kind == "numbers" and column.plain_name in EVENT_TIME_COLUMNS


def is_feature(column: ColumnSummary) -> bool:
    """Whether cells are numbers, dates or categories."""
    return column.kind in ("numbers", "dates", "labels") or is_factor(column)


def is_factor(column: ColumnSummary) -> bool:
    """Whether cells are the names of groups of rows: short values, each of which occurs twice or more on average."""
    return (
        len(column.cells) >= _FEWEST_ROWS
        and _FACTOR_REPEATED * column.num_distinct <= len(column.cells)
        and column.max_characters <= _LONGEST_FACTOR
        and num_words(column) < _FREE_WORDS
    )


def is_free_text(column: ColumnSummary) -> bool:
    """Whether cells are texts of several words, or long strings, rather than names, codes or categories."""
    words = _words(column)
    if column.kind not in ("text", "labels") or column.num_distinct < 2:
        return False
    if words & set(_TEXT_WORDS):
        return True
    if is_factor(column):
        return False
    if words & set(_NAME_WORDS):
        return num_words(column) >= _LONG_NAME
    is_long = column.mean_characters >= _LONG_CHARACTERS and not any("://" in cell for cell in column.cells)
    return is_long or num_words(column) >= _FREE_WORDS


def is_named_time(column: ColumnSummary) -> bool:
    """Whether a column is called a date or a time, in whatever form its cells are."""
    return bool(_words(column) & set(_TIME_WORDS))


def _words(column: ColumnSummary) -> set[str]:
    return {word.lower() for word in _WORD.findall(column.name)}


def num_words(column: ColumnSummary) -> float:
    """The mean number of words, also in languages that write no spaces between them."""
    unspaced = sum(len(_UNSPACED.findall(cell)) for cell in column.cells) / max(1, len(column.cells))
    return max(column.mean_words, unspaced / _UNSPACED_PER_WORD)
