"""A description of a source, by which tasks recognize it.

A source is read once, a sample of its rows is kept, and every task's `detect`
is asked what it makes of the description.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from regard.data.builtin import find_builtin
from regard.data.formats import fasttext
from regard.data.formats.cells import decimal_marks, is_missing, parse_timestamp
from regard.data.formats.coco import is_coco
from regard.data.formats.columns import find_column, is_identifier
from regard.data.formats.conll import is_tagged_file
from regard.data.formats.files import format_suffix, uncompressed_name
from regard.data.formats.folders import label_folders_by_split
from regard.data.formats.graph_folders import is_graph_folder
from regard.data.formats.graphs import DIRECTED, FIELDS
from regard.data.formats.images import has_labeled_images, is_image
from regard.data.formats.json_lines import single_object
from regard.data.formats.layouts import FORMAT_OF_SUFFIX, FORMATS_OF_CELLS
from regard.data.formats.messages import format_column, format_names
from regard.data.formats.plain_text import has_mostly_numbers
from regard.data.formats.squad import question_format
from regard.data.formats.summary import ColumnSummary, SourceSummary, describe, describe_rows
from regard.data.formats.trees import TREE_SUFFIXES, is_tree, is_tree_file
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, is_builtin, open_source, require_names
from regard.data.splits.plan import key_column
from regard.data.text_sources import open_texts
from regard.errors import ConfigError, DataError
from regard.tasks.feature_tables import is_feature_table
from regard.tasks.labeled_columns import FEWEST_LABELED, LEAST_REPEATED, LONGEST_LABEL

DOCUMENT_COLUMNS = ("text", "content", "document")
"""Names of a column of documents for a language model."""

_PAIR = ("source", "target")
_SAMPLE_ROWS, _FEW = 1_000, 10


@dataclass(frozen=True)
class DetectionSummary:
    """What a source looks like: its kind, the names of its columns, and a sample of rows."""

    name: str
    suffix: str = ""
    """The suffix of a single file, without that of a compression: `.tsv`."""
    names: tuple[str, ...] = ()
    """Names of all columns, lower-case, where they have names."""
    sample: tuple[tuple[Any, ...], ...] = ()
    """The columns that hold a source and a target, or all columns of rows in memory; of the first 1,000 rows."""
    columns: tuple[ColumnSummary, ...] = ()
    """All columns of a table but those that number its rows, or those that the user has named, in that order."""
    columns_given: int = 0
    """The number of columns that the user has named."""
    lists: tuple[str, ...] = ()
    """Names of the fields of JSON lines whose values are lists."""
    has_label_separator: bool = False
    label_separator: str | None = None
    """The separator of the labels of a row, by the format of a file whose rows have several."""
    is_squad: bool = False
    """Whether a JSON file has questions in SQuAD's form."""
    is_tagged: bool = False
    """Whether each line of a file is a word with its tags, and blank lines separate sentences."""
    is_builtin: bool = False
    is_plain_text: bool = False
    is_measured: bool = False
    """Whether a file that is no table has lines of numbers."""
    is_image_folder: bool = False
    is_text_folder: bool = False
    """Whether it is a folder with a folder of texts for each label."""
    is_coco: bool = False
    """Whether a JSON file has COCO's annotations."""
    has_trees: bool = False
    """Whether a file, or a list, has trees in brackets."""

    @property
    def num_columns(self) -> int:
        return self.columns_given or (len(self.sample[0]) if self.sample else 0)

    @property
    def has_lists(self) -> bool:
        """Whether cells are lists, as of words and tags in memory."""
        return bool(self.sample) and isinstance(self.sample[0][0], list | tuple)

    @property
    def has_images(self) -> bool:
        """Whether a column of the sample has paths of images."""
        return any(self.are_images(column) for column in self._columns)

    @property
    def is_series(self) -> bool:
        """Whether the sample has dates and numbers only, and not just whole numbers, which may be text."""
        is_known = bool(self.sample) and all(self.are_dates(each) or self.is_numeric(each) for each in self._columns)
        return is_known and any(self.are_dates(each) or self.has_decimals(each) for each in self._columns)

    @property
    def _columns(self) -> range:
        return range(len(self.sample[0]) if self.sample else 0)

    def has_column(self, *names: str) -> bool:
        """Whether a column has one of these names."""
        return any(name in self.names for name in names)

    def named_column(self, *names: str) -> str:
        return next(name for name in names if name in self.names)

    def are_labels(self, column: int, *, fewest: int = FEWEST_LABELED, repeated: int = LEAST_REPEATED) -> bool:
        """Whether a column has few distinct short values, each of which occurs again and again."""
        values = [str(row[column]) for row in self.sample]
        distinct = set(values)
        is_short = all(len(value) <= LONGEST_LABEL for value in distinct)
        return len(values) >= fewest and is_short and len(distinct) * repeated <= len(values)

    def are_images(self, column: int) -> bool:
        """Whether all values of a column are paths of images."""
        return bool(self.sample) and all(is_image(str(row[column])) for row in self.sample)

    def is_numeric(self, column: int) -> bool:
        """Whether all known values of a column are numbers."""
        return self._are_all(_is_number, column)

    def has_decimals(self, column: int) -> bool:
        """Whether a column has numbers with decimals."""
        return self.is_numeric(column) and any(set(str(row[column])) & set(".,") for row in self.sample)

    def are_dates(self, column: int) -> bool:
        """Whether all known values of a column are dates such as 2024-05-31."""
        return self._are_all(_is_date, column)

    def _are_all(self, is_typed: Callable[[Any], bool], column: int) -> bool:
        """Whether all known values of a column have a type."""
        known = [row[column] for row in self.sample if not is_missing(str(row[column]))]
        return bool(known) and all(map(is_typed, known))

    @property
    def source(self) -> ColumnSummary:
        """The first column of the sample."""
        return ColumnSummary("source", tuple(str(row[0]) for row in self.sample))

    @property
    def target(self) -> ColumnSummary:
        """The last column of the sample."""
        return ColumnSummary("target", tuple(str(row[-1]) for row in self.sample))

    @property
    def is_table_of_numbers(self) -> bool:
        """Whether a table of several columns has numbers and no text, so that rows are measurements."""
        kinds = [column.kind for column in self.columns]
        return kinds.count("numbers") > 1 and "text" not in kinds

    @cached_property
    def is_table_of_features(self) -> bool:
        """Whether a table has numbers, categories and identifiers only, and the user has named no columns of it."""
        if self.columns_given:
            return False
        num_identifiers = sum(is_identifier(column.name) for column in self.columns)
        if num_identifiers and len(self.columns) - num_identifiers < len(_PAIR) and not self.lists:
            return True
        return is_feature_table(self.columns, has_names=bool(self.names))

    def describe_columns(self) -> str:
        """What the columns hold, for messages: `numbers (height, weight) and text (comment)`."""
        by_kind: dict[str, list[str]] = {}
        for column in self.columns:
            by_kind.setdefault(column.kind, []).append(format_column(column.name))
        if self.lists:
            by_kind["lists"] = [format_column(name) for name in self.lists]
        return " and ".join(f"{kind} ({format_names(names)})" for kind, names in by_kind.items())


def describe_source(config: DataConfig, rows: Rows | None, given: dict[str, Any]) -> DetectionSummary:
    """Describe the data that `config` names, or rows in memory; `given` are values of the `[task]` section."""
    has_separator, num_given = given.get("label_separator") is not None, len(config.columns)
    if rows is not None:
        if not rows:
            raise DataError("the table in memory has no rows")
        if rows and all(map(_is_tree_row, rows[:_FEW])):
            return DetectionSummary("the list of trees", has_trees=True)
        if rows and (isinstance(rows[0], str) or len(rows[0]) == 1):
            return DetectionSummary("the list of texts", is_plain_text=True)
        return _describe_memory(config, rows, has_separator)
    require_names(config)
    name = ", ".join(Path(path).name for path in config.train)
    if is_builtin(config):
        data = find_builtin(config.train[0])
        return DetectionSummary(name, names=data.columns, sample=(data.columns,), is_builtin=bool(data.tokenizer))
    if len(config.train) > len(_PAIR):
        return DetectionSummary(name, is_plain_text=True)
    suffix = ""
    if len(config.train) == 1:
        suffix = Path(uncompressed_name(Path(config.train[0]))).suffix.lower()
        if (found := _describe_file(config, name, suffix)) is not None:
            return found
    named = tuple(_plain(column) for column in config.columns)
    lists: tuple[str, ...] = ()
    if suffix in (".json", ".jsonl", ".ndjson", ".parquet", ".pq") and not named:
        described = describe(config.train[0], format=config.format, encoding=config.encoding)
        lists = described.lists
        if lists and (len(described.columns) < len(_PAIR) or (len(lists) > 1 and not _has_text(described))):
            return _describe_lists(name, suffix, described)
    if num_given > len(_PAIR):
        return DetectionSummary(
            name, suffix, named, columns=_columns(config), columns_given=num_given, has_label_separator=has_separator
        )
    try:
        table = open_source(config, _PAIR).train
    except (DataError, ConfigError) as error:
        return _describe_single(config, name, suffix, error)
    names = named or tuple(map(_plain, table.names))
    columns = _columns(config)
    try:
        sample = _sample(table)
    except DataError:
        if len(columns) <= len(_PAIR):
            raise
        sample = ()  # two columns by their order, of which one is empty: the others may be those of a task
    has_several = table.format == "fasttext" and any(fasttext.LABEL_SEPARATOR in row[-1] for row in sample)
    return DetectionSummary(
        name,
        suffix,
        names,
        sample=sample,
        columns=columns,
        columns_given=num_given,
        lists=lists,
        has_label_separator=has_separator,
        label_separator=fasttext.LABEL_SEPARATOR if has_several else None,
    )


def _describe_single(config: DataConfig, name: str, suffix: str, error: DataError | ConfigError) -> DetectionSummary:
    """A source without two columns: a column of documents, running text, or lines of numbers; `error` for others."""
    if any(FORMAT_OF_SUFFIX.get(format_suffix(path)) in FORMATS_OF_CELLS for path in config.train):
        is_single = isinstance(error, DataError) and not config.columns and len(config.train) == 1
        columns = _columns(config) if is_single else ()
        if [column.plain_name for column in columns] in ([each] for each in DOCUMENT_COLUMNS):
            return DetectionSummary(name, suffix, tuple(column.plain_name for column in columns), columns=columns)
        raise error
    try:
        open_texts(config)
    except (DataError, ConfigError):
        raise error from None
    is_measured = config.format is None and len(config.train) == 1 and _has_mostly_numbers(config)
    return DetectionSummary(name, suffix, is_plain_text=not is_measured, is_measured=is_measured)


def _describe_file(config: DataConfig, name: str, suffix: str) -> DetectionSummary | None:
    """A file or a folder that is no table, by its suffix and its content; None for a table or text."""
    path, describe_as = Path(config.train[0]), partial(DetectionSummary, name, suffix)
    named = partial(describe_as, tuple(_plain(column) for column in config.columns), columns_given=len(config.columns))
    if has_labeled_images(path):
        return DetectionSummary(name, is_image_folder=True)
    if is_graph_folder(path):
        return _describe_lists(name, "", describe(path, encoding=config.encoding))
    if label_folders_by_split(path):
        return DetectionSummary(name, is_text_folder=True)
    if suffix == ".json" and is_coco(path):
        return describe_as(is_coco=True)
    if FORMAT_OF_SUFFIX.get(suffix) == "fasta":
        return describe_as(is_plain_text=True)
    if suffix == ".json" and config.format is None and question_format(path, config.encoding) != "jsonl":
        _require_questions(path, config.encoding)
        return named(is_squad=True)
    if suffix == ".json" and config.format is None:
        _require_rows(path, config.encoding)
    if suffix in (".npz", ".xml", ".conll", ".conllu", ".iob", ".iob2", ".bio"):
        return named()
    if _is_file_of_trees(config, suffix):
        return describe_as(has_trees=True)
    if config.format is None and _is_file_of_tags(config, suffix):
        return describe_as(is_tagged=True)
    return None


def _require_rows(path: Path, encoding: str | None) -> None:
    """Raise if a JSON file is one object, such as a dictionary of words, and not a graph."""
    whole = single_object(path, encoding)
    if whole is not None and not set(FIELDS) <= whole.keys():
        raise DataError(
            f"{path.name} is one JSON object, with {format_names(list(whole)) or 'nothing in it'}: rows are objects in "
            "an array, or one on each line"
        )


def _require_questions(path: Path, encoding: str | None) -> None:
    """Raise if a JSON file is one object without SQuAD's list of articles; what is no JSON is reported later."""
    whole = single_object(path, encoding)
    articles = None if whole is None else whole.get("data")
    is_squad = isinstance(articles, list) and all(isinstance(each, dict) and "paragraphs" in each for each in articles)
    if not is_squad:
        _require_rows(path, encoding)


def _has_mostly_numbers(config: DataConfig) -> bool:
    path = Path(config.train[0])
    return path.is_file() and format_suffix(path) not in FORMAT_OF_SUFFIX and has_mostly_numbers(path, config.encoding)


def _describe_lists(name: str, suffix: str, described: SourceSummary) -> DetectionSummary:
    """Objects whose values are lists, and few others."""
    names = tuple(map(_plain, described.lists))
    columns = tuple(column for column in described.columns if column.name != DIRECTED or described.format != "graphs")
    return DetectionSummary(name, suffix, names, columns=columns, lists=described.lists)


def _is_tree_row(row: Any) -> bool:
    """Whether a row in memory is a tree in brackets, or ends with one."""
    text = row if isinstance(row, str) or not row else row[-1]
    return isinstance(text, str) and is_tree(text)


def _is_file_of_trees(config: DataConfig, suffix: str) -> bool:
    """Whether a file has trees; a table by its suffix is not read."""
    path = Path(config.train[0])
    if config.format is not None or not os.path.isfile(path) or suffix in FORMAT_OF_SUFFIX:
        return False
    try:
        return is_tree_file(path, config.encoding)
    except DataError:  # of a file that cannot be read; what reads it next reports it
        return suffix in TREE_SUFFIXES


def _is_file_of_tags(config: DataConfig, suffix: str) -> bool:
    """Whether a file of lines has tagged words; a table by its suffix is not read, unless tabs separate its columns."""
    path = Path(config.train[0])
    if not os.path.isfile(path) or (suffix in FORMAT_OF_SUFFIX and FORMAT_OF_SUFFIX[suffix] != "tsv"):
        return False
    try:
        return is_tagged_file(path, config.encoding)
    except DataError:  # of a file that cannot be read; what reads it next reports it
        return False


def _describe_memory(config: DataConfig, rows: Rows, has_separator: bool) -> DetectionSummary:
    names: tuple[str, ...] = ()
    sample: Any = rows[:_SAMPLE_ROWS]
    described = describe_rows(sample)
    if isinstance(rows, NamedRows):
        described = describe_rows([dict(zip(rows.names, row, strict=True)) for row in sample])
        names = tuple(map(_plain, config.columns or rows.names))
        if not any(isinstance(value, list | tuple) for value in rows[0]):
            is_pair = len(config.columns) <= len(_PAIR)
            sample = _sample(open_source(config if is_pair else config.changed(columns=[]), _PAIR, rows).train)
    return DetectionSummary(
        "the table in memory",
        names=names,
        sample=tuple(map(tuple, sample)),
        columns=_chosen(config, described),
        columns_given=len(config.columns) if names else 0,
        lists=described.lists if names else (),
        has_label_separator=has_separator,
    )


def _columns(config: DataConfig) -> tuple[ColumnSummary, ...]:
    described = describe(
        cast("Sequence[str | Path]", config.train),
        columns=config.columns,
        format=config.format,
        header=config.header,
        encoding=config.encoding,
    )
    return _chosen(config, described)


def _has_text(described: SourceSummary) -> bool:
    texts = [column for column in described.columns if column.kind == "text"]
    return any({cell.lower() for cell in column.cells} - {"true", "false"} for column in texts)


def _chosen(config: DataConfig, described: SourceSummary) -> tuple[ColumnSummary, ...]:
    where = described.paths[0].name if described.paths else "the table in memory"
    if not config.columns or not described.columns:
        key = key_column(config)
        place = None if key is None else find_column(key, described.names, where=where)
        unused = {*described.index, *(() if place is None else (described.names[place],))}
        return tuple(column for column in described.columns if column.name not in unused)
    places = [find_column(name, described.names, where=where) for name in config.columns]
    return tuple(described.columns[place] for place in places if place is not None)


def _plain(column: str) -> str:
    return column.rpartition(".")[2].lower()


def _sample(table: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(islice(readable_rows(table), _SAMPLE_ROWS))


def readable_rows(table: Any) -> Iterator[tuple[str, ...]]:
    """The rows of a table up to the end or to an error, which is reported when the rows are prepared."""
    num_rows = 0
    try:
        for row in table:
            yield row.values
            num_rows += 1
    except DataError:
        if not num_rows:
            raise


def _is_number(value: Any) -> bool:
    return bool(decimal_marks(str(value)))


def _is_date(value: Any) -> bool:
    return not _is_number(value) and parse_timestamp(str(value)) is not None
