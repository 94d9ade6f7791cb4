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
               "sequence", "smiles", "lyrics", "quote")  # fmt: skip
_NAME_WORDS = ("name", "names", "surname", "firstname", "lastname", "fullname", "address", "street", "city", "town",
               "county", "country", "state", "url", "link", "email", "phone", "ticket", "date", "time")  # fmt: skip
"""Words of the names of columns whose cells identify something, however many words they have."""
_FREE_WORDS, _LONG_CHARACTERS = 3.0, 30.0
"""Words of a cell of running text on average, and characters of a string without spaces."""
_FEWEST_ROWS, _FACTOR_REPEATED, _LONGEST_FACTOR = 10, 2, 40
_PAIR, _FEWEST_FEATURES = 2, 3
"""So many columns of features, one of which may be the target, make the other columns names of the rows."""
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
    num_features = sum(map(is_feature, used))
    return num_features >= (_FEWEST_FEATURES if num_features < len(used) else _PAIR)


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
    words = {word.lower() for word in _WORD.findall(column.name.rpartition(".")[2])}
    if column.kind not in ("text", "labels") or column.num_distinct < 2:
        return False
    if words & set(_TEXT_WORDS):
        return True
    if words & set(_NAME_WORDS) or column.plain_name in EVENT_TIME_COLUMNS or is_factor(column):
        return False
    is_long = column.mean_characters >= _LONG_CHARACTERS and not any("://" in cell for cell in column.cells)
    return is_long or num_words(column) >= _FREE_WORDS


def num_words(column: ColumnSummary) -> float:
    """The mean number of words, also in languages that write no spaces between them."""
    unspaced = sum(len(_UNSPACED.findall(cell)) for cell in column.cells) / max(1, len(column.cells))
    return max(column.mean_words, unspaced / _UNSPACED_PER_WORD)
