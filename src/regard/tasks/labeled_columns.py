"""Which columns of a table are the texts and which the label, by their names and by statistics of their cells.

The label is the column with a usual name (`label`, `sentiment`, `airline_sentiment`, `stars`, ...), or else the only
one with few distinct short values, each of which occurs again and again. The texts are the two that are called a pair
(`premise`, `hypothesis`); or a title and a text; or the only one or two columns of running text of the table; or the
longest one. Columns that are empty, that number or identify the rows, and numbers and dates are never texts. Several
columns of only 0 and 1 beside a text are labels of which a row may have any number; so are the parts of a column
(`labels`, `topics`, `genres`, ...) whose cells list them, if most of these also occur alone.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from regard.data.formats.columns import is_identifier, is_language, text_names
from regard.data.formats.messages import format_column, format_names
from regard.data.formats.summary import ColumnSummary
from regard.tasks.feature_tables import is_feature, is_feature_table, is_free_text, is_named_time

LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "intent", "topic", "gold_label", "polarity",
                 "is_duplicate")  # fmt: skip
"""Names of columns of labels, likeliest first."""
PAIR_COLUMNS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence"), ("question", "passage"),
)  # fmt: skip
"""What the two texts of a pair are called, where a table has names for them."""
FEWEST_LABELED, LEAST_REPEATED, LONGEST_LABEL = 20, 10, 40
"""A label of an unknown name has so many rows, occurs so often on average, and has at most so many characters."""

_LABEL_WORDS = ("label", "class", "category", "sentiment", "intent", "topic", "emotion", "polarity", "genre", "stance")
"""Words of the names of labels, such as `airline_sentiment` and `Class Index`."""
_LIST_WORDS = ("labels", "classes", "categories", "sentiments", "intents", "topics", "emotions", "genres", "tags")
"""Words of the names of columns whose cells may list several labels."""
_RATING_NAMES = ("target", "spam", "is_spam", "stars", "rating", "score", "overall", "quality", "y", "output")
"""Names of labels if the columns have few distinct values."""
_TITLE_NAMES = ("title", "headline", "subject", "summary")
_SOURCE_NAMES = ("source", "src", "input", "question", "prompt", "article", "document")
_TARGET_NAMES = ("target", "tgt", "output", "answer", "summary", "highlights", "translation", "response")
_MOST_LABELS = 100
"""More distinct values in a sample of a thousand rows are names or words."""
_PROSE_WORDS = 3.0
"""Words of a cell of running text, on average."""
_TIME_WORDS = 4.0
"""Words of a date on average: `Jan 1 2000`."""
_FEWEST_FLAGS = 3
"""So many columns of 0 and 1 are labels; a single one may be something else about the text."""
_MOST_FEATURES, _MOST_UNNAMED = 3, 5
"""Of more columns of numbers and categories, with and without names, the label is unknown unless it is called one."""
_MOSTLY = 0.9
_LIST_SEPARATORS = (",", ";", "|")
_FEWEST_LISTS, _ALONE = 0.05, 0.5
"""Such a share of cells lists several labels, and such a share of the labels is a whole cell elsewhere: `Paris, France`
is one label."""


class LabeledColumns(NamedTuple):
    """The columns of a labeled text, by name."""

    texts: tuple[str, ...]
    """One, or two."""
    labels: tuple[str, ...]
    """One; or several, whose cells are 0 and 1, or false and true."""
    is_named: bool
    """Whether the label has the name of one."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.labels)

    def __str__(self) -> str:
        texts = " and ".join(map(format_column, self.texts))
        first, *others = self.labels
        if others:
            return f"several columns of 0 and 1 ({format_names(self.labels)}) for the text in {texts}"
        what = "a column of labels" if self.is_named else "few distinct short values"
        return f"{what} ({format_column(first)}) for the text in {texts}"


def find_labeled_columns(columns: Sequence[ColumnSummary], *, has_names: bool) -> LabeledColumns | None:
    """The texts and the label of a table; None where it has no label or no text, or where either is ambiguous."""
    used = [column for column in columns if _is_used(column)]
    flags = [column for column in used if _is_flag(column)] if has_names else []
    if len(flags) >= _FEWEST_FLAGS and not any(column.plain_name in LABEL_COLUMNS for column in used):
        labels, is_named = flags, False
    else:
        label, is_named = _find_label(used, has_names=has_names)
        labels = [] if label is None else [label]
    texts = find_texts(used, labels, has_names=has_names)
    if (
        not labels
        or not texts
        or (not is_named and has_pair_names([column for column in used if column not in labels]))
        or _are_features(used, labels, texts, is_named=is_named, has_names=has_names)
    ):
        return None
    return LabeledColumns(texts, tuple(column.name for column in labels), is_named)


def _are_features(
    used: Sequence[ColumnSummary],
    labels: Sequence[ColumnSummary],
    texts: Collection[str],
    *,
    is_named: bool,
    has_names: bool,
) -> bool:
    """Whether a table has features rather than a text: none is free text, or any of many may be the label."""
    inputs = [column for column in used if column.name in texts]
    if is_feature_table(used, has_names=has_names) or (len(labels) > 1 and not any(map(is_free_text, inputs))):
        return True
    is_wide = len(used) > len(texts) + len(labels)
    if (is_wide or not is_named) and all(map(is_class, inputs)):
        return True
    most = _MOST_FEATURES if has_names else _MOST_UNNAMED
    return not is_named and len(labels) == 1 and sum(map(is_feature, used)) > most


def find_label_lists(columns: Sequence[ColumnSummary]) -> tuple[LabeledColumns, str] | None:
    """The texts and a column whose cells list labels, with their separator; None where no column has such a name."""
    used = [column for column in columns if _is_used(column)]
    for column in used:
        words = set(re.split(r"[^a-z]+", column.plain_name))
        if not words & {*_LABEL_WORDS, *_LIST_WORDS}:
            continue
        separator = next((each for each in _LIST_SEPARATORS if _lists_labels(column, each)), None)
        if separator is not None and (texts := find_texts(used, [column], has_names=True)):
            return LabeledColumns(texts, (column.name,), True), separator
    return None


def _lists_labels(column: ColumnSummary, separator: str) -> bool:
    """Whether cells are lists of a few labels, most of which also occur alone."""
    cells = [[part.strip() for part in cell.split(separator) if part.strip()] for cell in column.cells]
    labels = {part for parts in cells for part in parts}
    alone = {parts[0] for parts in cells if len(parts) == 1}
    return (
        len(cells) >= FEWEST_LABELED
        and sum(len(parts) > 1 for parts in cells) >= _FEWEST_LISTS * len(cells)
        and 1 < len(labels) <= min(_MOST_LABELS, sum(map(len, cells)) / LEAST_REPEATED)
        and max(map(len, labels)) <= LONGEST_LABEL
        and len(alone) >= _ALONE * len(labels)
        and not column.is_numeric
    )


def find_texts(
    columns: Sequence[ColumnSummary], labels: Collection[ColumnSummary], *, has_names: bool
) -> tuple[str, ...]:
    """The columns of one text or two, in the order of the table; none where no column has text."""
    rest = [column for column in columns if column not in labels and _is_used(column) and _is_text(column)]
    if has_names:
        by_name = {column.plain_name: column.name for column in rest}
        for pair in PAIR_COLUMNS:
            if set(pair) <= set(by_name):
                return by_name[pair[0]], by_name[pair[1]]
    varied = [column for column in rest if not is_class(column)]
    is_titled = has_names and any(column.mean_words >= _PROSE_WORDS for column in varied)
    prose = [
        column
        for column in varied
        if column.mean_words >= _PROSE_WORDS or (is_titled and column.plain_name in _TITLE_NAMES)
    ]
    prose = prose or varied or rest
    if len(prose) <= 1 or (len(prose) == 2 and len(varied) == 2):
        return tuple(column.name for column in prose)
    named = [column for name in text_names() for column in prose if column.plain_name == name]
    main = next(iter(named), max(prose, key=lambda column: column.mean_characters))
    title = next((column for column in prose if column.plain_name in _TITLE_NAMES and column is not main), None)
    return tuple(column.name for column in prose if column is main or column is title)


def is_class(column: ColumnSummary) -> bool:
    """Whether a column has few distinct short values, each of which occurs again and again."""
    return (
        len(column.cells) >= FEWEST_LABELED
        and 1 < column.num_distinct <= min(_MOST_LABELS, len(column.cells) / LEAST_REPEATED)
        and column.max_characters <= LONGEST_LABEL
        and column.share_dates < _MOSTLY
        and not (column.is_measurement or column.has_fractions)
    )


def _find_label(columns: Sequence[ColumnSummary], *, has_names: bool) -> tuple[ColumnSummary | None, bool]:
    """The column of labels, and whether it has the name of one."""
    classes = [column for column in columns if is_class(column) and _is_filled(column)]
    if has_names:
        exact = [column for name in LABEL_COLUMNS for column in columns if column.plain_name == name]
        if exact:
            fitting = [column for column in exact if column in classes]
            is_few = all(len(column.cells) < FEWEST_LABELED for column in exact)
            return (fitting or exact)[0] if fitting or is_few else None, True
        named = [column for column in classes if set(_LABEL_WORDS) & set(re.split(r"[^a-z]+", column.plain_name))]
        named += [column for name in _RATING_NAMES for column in classes if column.plain_name == name]
        if named:
            return named[0], True
    if len(classes) <= 1:
        return next(iter(classes), None), False
    ends = [column for column in (columns[-1], columns[0]) if column in classes]
    return next(iter(ends), None), False


def _is_used(column: ColumnSummary) -> bool:
    """Whether a column has different values, which neither number nor identify the rows."""
    if not any(cell.strip() for cell in column.cells):
        return False
    return not is_identifier(column.name)


def _is_filled(column: ColumnSummary) -> bool:
    return sum(bool(cell.strip()) for cell in column.cells) >= _MOSTLY * len(column.cells)


def _is_flag(column: ColumnSummary) -> bool:
    """Whether all cells are 0 or 1, or false or true."""
    values = {cell.strip().lower() for cell in column.cells}
    return len(column.cells) >= FEWEST_LABELED and (values <= {"0", "1"} or values <= {"false", "true"})


def _is_text(column: ColumnSummary) -> bool:
    """Whether cells are texts: not numbers, dates, images, or codes of which most occur once."""
    if column.kind not in ("text", "labels") or column.num_distinct < 2:
        return False
    if is_named_time(column) and not is_free_text(column) and column.mean_words <= _TIME_WORDS:
        return False
    is_code = 2 * column.num_distinct > len(column.cells) and column.mean_words <= 1.0
    return not (is_code and all(any(map(str.isdigit, cell)) for cell in column.cells))


def has_pair_names(columns: Sequence[ColumnSummary]) -> bool:
    """Whether columns are called source and target, as `article` and `highlights`."""
    names = [column.plain_name for column in columns if column.kind not in ("numbers", "dates")]
    has_source, has_target = (any(name in known for name in names) for known in (_SOURCE_NAMES, _TARGET_NAMES))
    return (has_source and has_target) or sum(map(is_language, names)) > 1
