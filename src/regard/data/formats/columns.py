"""The columns of a table, and which of them are used for which roles.

A role is a value that a task needs of each row, such as `source` and `target`. A column is specified by its name or by
its position from 1; otherwise it is inferred from the names and, failing that, from the order of the columns.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from regard.data.formats.cells import decimal_marks, is_date, is_missing
from regard.data.formats.layouts import ReadOptions, positions
from regard.data.formats.messages import format_count, format_names
from regard.errors import DataError

# Common names of the columns for each role, likeliest first.
_SYNONYMS = {
    "source": """source src input inputs question prompt instruction query article document original text sentence
        anchor""",
    "target": """target tgt trg output outputs answer completion response summary translation reference label labels
        positive""",
    "text": "text sentence content review document comment tweet input body source src title smiles sequence",
    "aspect": "aspect category target term",
    "image": "image picture img photo file filename path",
    "caption": "caption captions text sentence target output",
    "grounding": "grounding",
    "path": "path image picture img photo file filename",
    "label": "label labels class category sentiment polarity target tgt output stars rating",
    "number": "number score rating stars similarity value price grade points target y label output",
    "answer": "answer answers",
    "words": "words tokens",
    "tags": "tags ner_tags labels pos_tags chunk_tags upos",
}
_IDENTIFIERS = "id identifier idx index key guid uid number unnamed:0 __index_level_0__"
# One of these names makes a first row a header; of the other names, which are common words, it takes two.
_HEADER_NAMES = """source src target tgt trg text texts label labels input inputs output outputs question answer
    answers prompt completion sentence sentences sentence1 sentence2 premise hypothesis question1 question2 gold_label
    is_duplicate"""
_PAIR_NAMES = {"anchor", "positive"}
"""Which are a header together: "positive" alone is a label."""
_OTHER_NAMES = """caption captions context date entities event event_type image intent lang language lemma name pos
    score split subject subject_id tag tags phonemes pronunciation spelling text1 text2 time timestamp token tokens
    topic transcription url utterance word words abbreviation abstract adjective author capital city clean code complex
    corrected correct country definition description dialect dialogue domain emotion error example expansion explanation
    expression feature form formal formula function gender genre gloss grapheme graphemes headline hyphenation inflected
    inflection informal instruction ipa kana kanji keyword keywords kind logical_form meaning message misspelled
    morphemes nationality noisy normalized noun onset origin paragraph passage paraphrase past phoneme phonetic phrase
    pinyin plural postag prefix product program property reading region romaji romanization root sense simple simplified
    singular sql stem suffix syllables symbol synonym tense term transliteration type value verb"""
_ISO_639_1 = """aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee
    el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja
    jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
    ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su
    sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"""
_LANGUAGE_NAMES = """arabic bulgarian catalan chinese czech danish dutch english estonian finnish french german greek
    hebrew hindi hungarian indonesian italian japanese korean latin latvian lithuanian norwegian persian polish
    portuguese romanian russian slovak slovenian spanish swedish thai turkish ukrainian vietnamese"""
_LANGUAGES = frozenset(_ISO_639_1.split())
_COMMON_NAMES = frozenset(" ".join([*_SYNONYMS.values(), _IDENTIFIERS, _OTHER_NAMES, _LANGUAGE_NAMES]).split())
_IDENTIFIER_SUFFIX = re.compile(r"(?i:.*[\W_](id|guid|uuid))|.*[a-z0-9]I[dD]")
_LANGUAGE_TAG = re.compile(r"([a-z]{2}|[A-Z]{2})([-_][A-Za-z]{2,4})?")
_MAX_NAME_LENGTH = 40
_MAX_WORDS_OF_LANGUAGE = 2
"""So many words may follow the name of a language in a title, as in `English words/sentences`."""
_MAX_WORDS_OF_NAME = 4
"""Words of the name of a row, on average."""
_MIN_NUMBERS = 3
_MIN_ALIKE = 10
"""So many cells that have something in common which the first one lacks make that one a title."""
_SNAKE_CASE = re.compile(r"[A-Za-z]+(_[A-Za-z0-9]+)+")
_MIN_EACH = 5
"""Cells that a label below a title occurs in, on average."""


class ColumnNames(NamedTuple):
    """The names of the columns of a table, or their positions from 1."""

    names: tuple[str, ...]
    has_header: bool
    is_inferred: bool
    """Whether the header was recognized, rather than specified."""


def find_names(rows: Sequence[Sequence[str]], options: ReadOptions, *, where: str) -> ColumnNames:
    """The names of the columns of a table by its first rows.

    The first row is a header if it contains one of the requested column names, or by `looks_like_header`. Without one,
    a table is as wide as most of its rows.
    """
    first = [cell.strip() for cell in rows[0]]
    is_named = any(name in first and not is_position(name) for name in options.requested)
    has_header = options.header if options.header is not None else is_named or looks_like_header(rows)
    names = positions(len(first) if has_header else Counter(map(len, rows)).most_common(1)[0][0])
    if has_header:
        # Of several columns with one name, the first has it.
        names = tuple(
            name if name and name not in first[:place] else position
            for place, (name, position) in enumerate(zip(first, names, strict=True))
        )
    else:
        for name in options.requested:
            if not is_position(name):
                reason = f"its first row is not a header: {format_names(first)}"
                raise DataError(f"{where} has no column {name!r}; {reason}{closest_name(name, first)}")
    is_inferred = options.header is None and (not is_named or looks_like_header(rows))
    return ColumnNames(names, has_header, is_inferred)


def index_columns(found: ColumnNames, rows: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """The columns that only number the rows.

    It is the first one, or one whose name says so, if it counts from 0 or 1; and a first one without a title in the
    header, as a data frame's index has, if its whole numbers or its names are distinct.

    >>> index_columns(ColumnNames(("1", "text"), False, True), [["0", "a"], ["1", "b"], ["2", "c"]])
    (0,)
    """
    is_untitled = found.has_header and found.names[:1] == positions(1)
    return tuple(
        place
        for place, cells in enumerate(zip(*rows, strict=True))
        if (place == 0 or is_identifier(found.names[place]))
        and (
            _is_index(cells, is_untitled=place == 0 and is_untitled)
            or (place == 0 and is_untitled and _are_row_names(cells))
        )
    )


def number_columns(columns: Sequence[Sequence[str]]) -> frozenset[int]:
    """The columns of numbers, in which cells may be missing."""
    return frozenset(place for place, cells in enumerate(columns) if _are_numbers(cells))


def _is_index(cells: Sequence[str], *, is_untitled: bool) -> bool:
    cells = [cell.strip() for cell in cells]
    if len(cells) < _MIN_NUMBERS:
        return False
    if is_untitled and len(set(cells)) == len(cells) and all(cell.isascii() and cell.isdigit() for cell in cells):
        return True
    return cells in ([str(start + place) for place in range(len(cells))] for start in (0, 1))


def _are_row_names(cells: Sequence[str]) -> bool:
    """Whether cells are distinct names of few words: no dates and numbers, which may be those of a series."""
    is_distinct = len(cells) >= _MIN_NUMBERS and len(set(cells)) == len(cells)
    is_typed = any(is_date(cell) or decimal_marks(cell) for cell in cells)
    return is_distinct and not is_typed and sum(len(cell.split()) for cell in cells) <= _MAX_WORDS_OF_NAME * len(cells)


def _are_numbers(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if not is_missing(cell)]
    return bool(known) and all(map(decimal_marks, known))


def looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header.

    A cell may occur twice only beside another common name, as in `text,text,label`.

    It is if one is not a number above a column of numbers, or not a date above dates; one
    in ten cells of such a column may be another word. It also is if they are short, and one is a typical name (`text`,
    `label`, `question`, ...), or two are common names (`word`, `tag`) or languages (`en`, `de`): a single one may be a
    word of the data, such as `no` and `it`, unless all cells below it or another one have digits, several words or
    capitals only, and the title has not; or if the first one is empty above an index; or if one is in Latin letters
    above cells that have none; or if one is no label of the column of labels below it, each of which occurs repeatedly,
    and another one is a single word above texts.

    >>> looks_like_header([["en", "de"], ["Hello", "Hallo"]])
    True
    >>> looks_like_header([["Is it raining?", "no"], ["Is it late?", "yes"]])
    False
    >>> rows = [["Das Essen war gut.", "gut"], ["Es war kalt.", "schlecht"]] * 9
    >>> looks_like_header([["Kommentar", "Bewertung"], *rows])
    True
    """
    first = [cell.strip() for cell in rows[0]]
    named = [cell for cell in first if cell]
    columns = list(zip(*(row for row in rows if len(row) == len(first)), strict=True))
    if len(set(named)) == len(named) and any(map(_has_other_type, columns)):
        return True
    if any(len(cell) > _MAX_NAME_LENGTH or cell[-1] in ".?!" for cell in named):
        return False
    if len(columns) == len(first) and any(map(_is_above_another_script, columns)):
        return True
    lowered = {cell.lower() for cell in named}
    is_typical = bool(lowered & set(_HEADER_NAMES.split())) or lowered >= _PAIR_NAMES
    identifiers = {column[0].strip() for column in columns if _is_above_other_words(column)}
    num_common = sum(_is_common_name(cell) or cell in identifiers for cell in set(named))
    if len(set(named)) < len(named):
        return num_common > 1
    if is_typical or num_common > 1:
        return True
    if not first[0] and named and _is_index(columns[0][1:], is_untitled=True):
        return True
    if num_common > 0 and any(map(_has_other_form, columns)):
        return True
    return any(map(_is_above_labels, columns)) and any(map(_is_above_texts, columns))


def _is_common_name(cell: str) -> bool:
    tag = _LANGUAGE_TAG.fullmatch(cell)
    first, *others = cell.lower().split()
    if first in _LANGUAGE_NAMES.split() and len(others) <= _MAX_WORDS_OF_LANGUAGE:
        return True
    return cell.lower() in _COMMON_NAMES or (tag is not None and tag[1].lower() in _LANGUAGES)


def _has_other_type(column: Sequence[str]) -> bool:
    """Whether the first cell is a title above numbers or dates."""
    title, *cells = (cell.strip() for cell in column)
    known = [cell for cell in cells if not is_missing(cell)]
    if is_missing(title) or decimal_marks(title) or is_date(title) or len(known) < _MIN_NUMBERS:
        return False
    # A word among many numbers is an error to be reported with its line, unless it is written like the first cell.
    num_other = len(known) // _MIN_ALIKE if title not in known else 0
    return any(sum(not is_typed(cell) for cell in known) <= num_other for is_typed in (decimal_marks, is_date))


def _has_other_form(column: Sequence[str]) -> bool:
    """Whether all cells have digits, several words, capitals only or a symbol first, and the title has not."""
    title, *cells = (cell.strip() for cell in column)
    forms: list[Callable[[str], bool]] = [_has_digit, _has_space, str.isupper, _begins_with_symbol]
    return len(cells) >= _MIN_ALIKE and any(not form(title) and all(map(form, cells)) for form in forms)


def _is_above_labels(column: Sequence[str]) -> bool:
    """Whether the cells are few labels, each of which occurs repeatedly, and the first one, the title, is not one."""
    title, *cells = (cell.strip() for cell in column)
    counts = Counter(cells)
    return (
        len(cells) >= _MIN_ALIKE
        and title not in counts
        and 1 < len(counts) <= len(cells) // _MIN_EACH
        and min(counts.values()) > 1
    )


def _is_above_texts(column: Sequence[str]) -> bool:
    """Whether nearly all cells have several words, and the first one, the title, is a single word."""
    title, *cells = (cell.strip() for cell in column)
    num_words = sum(not _has_space(cell) for cell in cells)
    return len(cells) >= _MIN_ALIKE and not _has_space(title) and num_words <= len(cells) // _MIN_ALIKE


def _is_above_another_script(column: Sequence[str]) -> bool:
    """Whether the first cell is a word in Latin letters, of which all cells below it have none."""
    title, *cells = (cell.strip() for cell in column)
    is_word = title.isascii() and title.replace("_", "").isalpha()
    return is_word and len(cells) >= _MIN_ALIKE and all(map(_has_foreign_letters, cells))


def _has_foreign_letters(text: str) -> bool:
    return any(map(str.isalpha, text)) and not any(letter.isalpha() for letter in text if letter.isascii())


def _is_above_other_words(column: Sequence[str]) -> bool:
    """Whether the first cell has words that are joined by `_`, and no cell below it has."""
    title, *cells = (cell.strip() for cell in column)
    return _SNAKE_CASE.fullmatch(title) is not None and not any("_" in cell for cell in cells)


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def _begins_with_symbol(text: str) -> bool:
    """As the codes of colors: #ffffff."""
    return text[:1] in ("#", "@", "$", "/")


def _has_space(text: str) -> bool:
    return " " in text


def is_identifier(name: str) -> bool:
    """Whether a column has the name of one that identifies rows or something else.

    >>> [is_identifier(name) for name in ("id", "text_id", "PhraseId", "paid", "Covid")]
    [True, True, True, False, False]
    """
    return _plain_name(name) in _IDENTIFIERS.split() or _IDENTIFIER_SUFFIX.fullmatch(name.strip()) is not None


def is_language(name: str) -> bool:
    """Whether a column has the name or the code of a language.

    >>> [is_language(name) for name in ("de", "en_US", "German", "text")]
    [True, True, True, False]
    """
    tag = _LANGUAGE_TAG.fullmatch(name)
    return name.lower() in _LANGUAGE_NAMES.split() or (tag is not None and tag[1].lower() in _LANGUAGES)


def text_names() -> Sequence[str]:
    """Common names of a column of text, likeliest first."""
    return _SYNONYMS["text"].split()


def find_column(wanted: str, names: Sequence[str], *, where: str) -> int | None:
    """The index of a column in `names`, or None if there is no such column.

    A name matches exactly, else regardless of case, else as the last part of a dotted name if that is unique; a number
    is a position unless it is a name.

    >>> find_column("en", ["id", "translation.de", "translation.en"], where="pairs.jsonl")
    2
    """
    if wanted in names:
        return names.index(wanted)
    same = [index for index, name in enumerate(names) if name.casefold() == wanted.casefold()]
    deeper = [index for index, name in enumerate(names) if name.endswith(f".{wanted}")]
    for matches in (same, deeper):
        if len(matches) == 1:
            return matches[0]
    if is_position(wanted):
        if 1 <= int(wanted) <= len(names):
            return int(wanted) - 1
        raise DataError(f"{where} has no column {wanted}; it has {format_count(len(names), 'column')}")
    return None


def is_position(wanted: str) -> bool:
    """Whether a column is specified by its position."""
    return wanted.isascii() and wanted.isdigit()


def choose_columns(
    names: Sequence[str],
    wanted: Sequence[str] | None,
    roles: Sequence[str],
    *,
    where: str,
    key: str | None = None,
    index: Collection[int] = (),
    numeric: Collection[int] = (),
) -> list[int]:
    """The index into `names` of the column for each role, `wanted` or inferred, followed by that of the key.

    The inference takes for each role the column with the likeliest name, and for the remaining roles the remaining
    columns in their order, identifiers last. The key is not used for a role if there are enough other columns.
    Columns of `index` count as identifiers; a number is looked for among the `numeric` ones, a text among the others.
    """
    keys = [] if key is None else [require_column(key, names, where=where)]
    if wanted is not None:
        return [require_column(name, names, where=where) for name in wanted] + keys
    check_width(len(names), roles, where=where, names=names)
    free = [place for place in range(len(names)) if place not in keys or len(names) == len(roles)]
    identifiers = {place for place in free if is_identifier(names[place])}
    if len(free) - len(identifiers | set(index)) >= len(roles):
        identifiers |= set(index)
    return _infer_columns({place: _plain_name(names[place]) for place in free}, roles, identifiers, numeric) + keys


def require_column(name: str, names: Sequence[str], *, where: str) -> int:
    """The index of a column in `names`, which must contain it."""
    index = find_column(name, names, where=where)
    if index is None:
        raise DataError(f"{where} has no column {name!r}; it has {format_names(names)}{closest_name(name, names)}")
    return index


def _infer_columns(
    names: Mapping[int, str], roles: Sequence[str], identifiers: Collection[int], numeric: Collection[int]
) -> list[int]:
    """The column of each role; `names` are the plain names of the columns that may be used."""
    free = sorted(names, key=lambda place: place in identifiers)
    numbers = [place for place in names if place in numeric and place not in identifiers]
    chosen: dict[str, int] = {}

    def take(role: str, places: Sequence[int]) -> None:
        fitting = [place for place in places if place in numbers] if role == "number" and numbers else places
        if role not in chosen and fitting:
            chosen[role] = fitting[0]
            free.remove(fitting[0])

    def named(synonyms: Sequence[str]) -> list[int]:
        return [place for name in synonyms for place in free if names[place] == name]

    for role in roles:  # a role's own name takes precedence over synonyms of other roles
        take(role, named([role]))
    for role in roles:
        take(role, named(_SYNONYMS.get(role, "").split()))
    for role in roles:
        if role == "number":
            take(role, [place for place in reversed(numbers) if place in free])
        elif role == "text":
            take(role, [place for place in free if place not in numbers])
        if role not in chosen:
            chosen[role] = free.pop(0)
    return [chosen[role] for role in roles]


def _plain_name(name: str) -> str:
    """The last part of a dotted name, in lower case and without spaces around: `Unnamed: 0` is `unnamed:0`."""
    return name.rpartition(".")[2].strip().lower().replace(": ", ":")


def check_width(width: int, roles: Sequence[str], *, where: str, names: Sequence[str] = ()) -> None:
    """Reject a table with fewer columns than roles."""
    if width < len(roles):
        names = [name for name in names if not is_position(name)]
        named = f" ({format_names(names)})" if names else ""
        need = f"{len(roles)} {'is' if len(roles) == 1 else 'are'} needed ({', '.join(roles)})"
        advice = "" if names or not width else ": separate columns by tabs, or give one aligned file for each"
        raise DataError(f"{where} has {format_count(width, 'column')}{named}, but {need}{advice}")


def closest_name(name: str, names: Sequence[str]) -> str:
    """The end of an error message that proposes the closest of the names, if one is close."""
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
