"""Which columns of a table play which roles.

A role is what a task needs from a row, such as `source` and `target`. A column is
asked for by its name or by its position, counted from 1; what is not asked for is
guessed from the names, and failing that from the order.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from regard.errors import DataError

# Names that a column is known by, likeliest first, for the roles that tasks have.
_SYNONYMS = {
    "source": "source src input inputs question prompt instruction query article document original text sentence",
    "target": "target tgt trg output outputs answer completion response summary translation reference label labels",
    "text": "text sentence content review document comment tweet input body source src title",
    "aspect": "aspect category target term",
    "label": "label labels class category sentiment polarity target tgt output stars rating",
}
_IDENTIFIERS = "id idx index key guid uid number"
# Names that a first row is a header by. Of those that are common words it takes two.
_TELLING_NAMES = """source src target tgt trg text texts label labels input inputs output outputs question answer
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
_LONGEST_NAME = 40
_ROWS_TO_TRUST_NUMBERS = 3
_NAMES_TO_LIST = 20


def looks_like_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first of the rows names the columns.

    It does if its cells are short and distinct, and one is a telling name (`text`,
    `label`, `question`, ...), or two are common names (`word`, `tag`) or languages
    (`en`, `de`): one alone may be a word of the data, as `no` and `it` are. It also
    does if it stands, as words, above a column of numbers.

    >>> looks_like_header([["en", "de"], ["Hello", "Hallo"]])
    True
    >>> looks_like_header([["Is it raining?", "no"], ["Is it late?", "yes"]])
    False
    """
    first = [cell.strip() for cell in rows[0]]
    named = [cell for cell in first if cell]
    if len(set(named)) < len(named) or any(len(cell) > _LONGEST_NAME or cell[-1] in ".?!" for cell in named):
        return False
    is_telling = any(cell.lower() in _TELLING_NAMES.split() for cell in named)
    if is_telling or sum(_is_common_name(cell) for cell in named) > 1:
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
    return is_title and len(cells) >= _ROWS_TO_TRUST_NUMBERS and all(_NUMBER.fullmatch(cell) for cell in cells)


def find_column(wanted: str, names: Sequence[str], *, where: str) -> int | None:
    """Where a column stands among `names`, or None if it is not there.

    A name is found as it is written, else whatever its case, else as the last part
    of a dotted name if only one ends so; a number is a position if it is no name.

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
        raise DataError(f"{where} has no column {wanted}; it has {count_of(len(names), 'column')}")
    return None


def is_position(wanted: str) -> bool:
    """Whether a column is asked for by its position."""
    return wanted.isascii() and wanted.isdigit()


def choose_columns(
    names: Sequence[str],
    wanted: Sequence[str] | None,
    roles: Sequence[str],
    *,
    where: str,
    key: str | None = None,
) -> list[int]:
    """The column for each role, as indices into `names`: those wanted, or a guess; and behind them that of the key.

    The guess takes for each role the column whose name is likeliest to mean it,
    and for the roles then left over the columns left over, in their order,
    identifiers last. It leaves the key out where there are columns enough.
    """
    keys = [] if key is None else [require_column(key, names, where=where)]
    if wanted is not None:
        return [require_column(name, names, where=where) for name in wanted] + keys
    check_width(len(names), roles, where=where, names=names)
    free = [index for index in range(len(names)) if index not in keys or len(names) == len(roles)]
    return [free[index] for index in _guess_columns([names[index] for index in free], roles)] + keys


def require_column(name: str, names: Sequence[str], *, where: str) -> int:
    """Where a column stands among `names`, which must have it."""
    index = find_column(name, names, where=where)
    if index is None:
        raise DataError(f"{where} has no column {name!r}; it has {listing(names)}{nearest(name, names)}")
    return index


def _guess_columns(names: Sequence[str], roles: Sequence[str]) -> list[int]:
    plain = [name.rpartition(".")[2].strip().lower() for name in names]
    identifiers = _IDENTIFIERS.split()
    free = sorted(range(len(names)), key=lambda index: plain[index] in identifiers)
    chosen: dict[str, int] = {}

    def take(role: str, synonyms: Sequence[str]) -> None:
        matches = [index for name in synonyms for index in free if plain[index] == name]
        if role not in chosen and matches:
            chosen[role] = matches[0]
            free.remove(matches[0])

    for role in roles:  # each its own name, before another may take that as a synonym
        take(role, [role])
    for role in roles:
        take(role, _SYNONYMS.get(role, "").split())
    for role in roles:
        take(role, [plain[free[0]]] if free else [])
    return [chosen[role] for role in roles]


def check_width(width: int, roles: Sequence[str], *, where: str, names: Sequence[str] = ()) -> None:
    """Refuse a table with fewer columns than there are roles."""
    if width < len(roles):
        names = [name for name in names if not is_position(name)]
        named = f" ({listing(names)})" if names else ""
        need = f"{len(roles)} are needed ({', '.join(roles)})"
        advice = "" if names else ": separate columns by tabs, or give one aligned file for each"
        raise DataError(f"{where} has {count_of(width, 'column')}{named}, but {need}{advice}")


def column_name(column: str) -> str:
    """What to call a column in a sentence: its name, or `column 3`."""
    return f"column {column}" if is_position(column) else column


def listing(names: Sequence[str]) -> str:
    """Names for an error message, cut short when there are many."""
    more = ", …" if len(names) > _NAMES_TO_LIST else ""
    return (
        ", ".join(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…" for name in names[:_NAMES_TO_LIST])
        + more
    )


def count_of(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count_of(1, "row"), count_of(1000, "row")
    ('1 row', '1,000 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error message, with the likeliest of the names if one is likely."""
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def plural(noun: str | None) -> str:
    """What several of a thing are called, where the name of a column says what one is.

    >>> plural("author"), plural("user id"), plural("address"), plural("3")
    ('authors', 'user ids', 'values of address', 'values of column 3')
    """
    name = noun or "value"
    is_regular = name.replace(" ", "").isalpha() and not name.endswith(("s", "x", "y", "z", "h"))
    return f"{name}s" if is_regular else f"values of {column_name(name)}"
