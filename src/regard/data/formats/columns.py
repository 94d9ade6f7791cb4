"""The columns of a table, and which of them are used for which roles.

A role is a value that a task needs of each row, such as `source` and `target`. A column is specified by its name or by
its position from 1; otherwise it is inferred from the names and, failing that, from the order of the columns.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from regard.data.formats.messages import format_count, format_names
from regard.errors import DataError

# Common names of the columns for each role, likeliest first.
_SYNONYMS = {
    "source": "source src input inputs question prompt instruction query article document original text sentence",
    "target": "target tgt trg output outputs answer completion response summary translation reference label labels",
    "text": "text sentence content review document comment tweet input body source src title",
    "aspect": "aspect category target term",
    "image": "image picture img photo file filename path",
    "path": "path image picture img photo file filename",
    "label": "label labels class category sentiment polarity target tgt output stars rating",
}
_IDENTIFIERS = "id idx index key guid uid number"
# One of these names makes a first row a header; of the other names, which are common words, it takes two.
_HEADER_NAMES = """source src target tgt trg text texts label labels input inputs output outputs question answer
    answers prompt completion sentence sentences sentence1 sentence2 premise hypothesis question1 question2 gold_label
    is_duplicate"""
_OTHER_NAMES = """caption captions context date entities image intent lang language lemma name pos score split tag tags
    text1 text2 token tokens topic url utterance word words"""
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
_LANGUAGE_TAG = re.compile(r"([a-z]{2}|[A-Z]{2})([-_][A-Za-z]{2,4})?")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_MISSING = ("", "-", "?", "na", "n/a", "nan", "none", "null")
_MAX_NAME_LENGTH = 40
_MIN_NUMBERS = 3


def looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header.

    It is if its cells are short and distinct, and one is a typical name (`text`, `label`, `question`, ...), or two are
    common names (`word`, `tag`) or languages (`en`, `de`): a single one may be a word of the data, such as `no` and
    `it`. It also is if one of its cells is not a number above a column of numbers.

    >>> looks_like_header([["en", "de"], ["Hello", "Hallo"]])
    True
    >>> looks_like_header([["Is it raining?", "no"], ["Is it late?", "yes"]])
    False
    """
    first = [cell.strip() for cell in rows[0]]
    named = [cell for cell in first if cell]
    if len(set(named)) < len(named) or any(len(cell) > _MAX_NAME_LENGTH or cell[-1] in ".?!" for cell in named):
        return False
    is_typical = any(cell.lower() in _HEADER_NAMES.split() for cell in named)
    if is_typical or sum(_is_common_name(cell) for cell in named) > 1:
        return True
    return any(
        _is_number_column(column) for column in zip(*(row for row in rows if len(row) == len(first)), strict=True)
    )


def _is_common_name(cell: str) -> bool:
    tag = _LANGUAGE_TAG.fullmatch(cell)
    return cell.lower() in _COMMON_NAMES or (tag is not None and tag[1].lower() in _LANGUAGES)


def _is_number_column(column: Sequence[str]) -> bool:
    title, *cells = (cell.strip() for cell in column)
    is_title = title.lower() not in _MISSING and not _NUMBER.fullmatch(title)
    return is_title and len(cells) >= _MIN_NUMBERS and all(_NUMBER.fullmatch(cell) for cell in cells)


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
) -> list[int]:
    """The index into `names` of the column for each role, `wanted` or inferred, followed by that of the key.

    The inference takes for each role the column with the likeliest name, and for the remaining roles the remaining
    columns in their order, identifiers last. The key is not used for a role if there are enough other columns.
    """
    keys = [] if key is None else [require_column(key, names, where=where)]
    if wanted is not None:
        return [require_column(name, names, where=where) for name in wanted] + keys
    check_width(len(names), roles, where=where, names=names)
    free = [index for index in range(len(names)) if index not in keys or len(names) == len(roles)]
    return [free[index] for index in _infer_columns([names[index] for index in free], roles)] + keys


def require_column(name: str, names: Sequence[str], *, where: str) -> int:
    """The index of a column in `names`, which must contain it."""
    index = find_column(name, names, where=where)
    if index is None:
        raise DataError(f"{where} has no column {name!r}; it has {format_names(names)}{closest_name(name, names)}")
    return index


def _infer_columns(names: Sequence[str], roles: Sequence[str]) -> list[int]:
    plain = [name.rpartition(".")[2].strip().lower() for name in names]
    identifiers = _IDENTIFIERS.split()
    free = sorted(range(len(names)), key=lambda index: plain[index] in identifiers)
    chosen: dict[str, int] = {}

    def take(role: str, synonyms: Sequence[str]) -> None:
        matches = [index for name in synonyms for index in free if plain[index] == name]
        if role not in chosen and matches:
            chosen[role] = matches[0]
            free.remove(matches[0])

    for role in roles:  # a role's own name takes precedence over synonyms of other roles
        take(role, [role])
    for role in roles:
        take(role, _SYNONYMS.get(role, "").split())
    for role in roles:
        take(role, [plain[free[0]]] if free else [])
    return [chosen[role] for role in roles]


def check_width(width: int, roles: Sequence[str], *, where: str, names: Sequence[str] = ()) -> None:
    """Reject a table with fewer columns than roles."""
    if width < len(roles):
        names = [name for name in names if not is_position(name)]
        named = f" ({format_names(names)})" if names else ""
        need = f"{len(roles)} are needed ({', '.join(roles)})"
        advice = "" if names else ": separate columns by tabs, or give one aligned file for each"
        raise DataError(f"{where} has {format_count(width, 'column')}{named}, but {need}{advice}")


def closest_name(name: str, names: Sequence[str]) -> str:
    """The end of an error message that proposes the closest of the names, if one is close."""
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
