"""Sentences with a tag for each word: the columns of CoNLL, CoNLL-U, JSON, or tables.

In columns, each line is a word with its annotations, separated by tabs or spaces, and a blank line ends the sentence.
`-DOCSTART-` lines, which mark the beginning of a document, are skipped. CoNLL-U has ten columns; its comments,
multiword ranges (`1-2`) and empty nodes (`1.1`) are skipped. In JSON and in Parquet a sentence is an object with a list
of words and a list of tags. In CSV, TSV and Excel a row is a word, and a column has the number of its sentence, which
may be empty but for the first word; or a row is a sentence, and its tags are a list in brackets, as pandas writes it.

Tjong Kim Sang and Buchholz, "Introduction to the CoNLL-2000 Shared Task: Chunking" (2000).
https://aclanthology.org/W00-0726
CoNLL-U: https://universaldependencies.org/format.html
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.columns import choose_columns, require_column
from regard.data.formats.files import (
    AnyPath,
    describe_encoding,
    file_encoding,
    format_suffix,
    iter_lines,
    sample_lines,
)
from regard.data.formats.json_lines import (
    decode_object,
    iter_json_lines,
    list_fields,
    sample_json_lines,
    sample_objects,
)
from regard.data.formats.layouts import BLANK, FORMAT_OF_SUFFIX, TABLE_FORMATS, Layout, ReadOptions, Record, positions
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.parquet import parquet_objects
from regard.data.formats.tables import file_layout
from regard.errors import ConfigError, DataError

_TABLES = ("csv", "tsv", "xlsx", "parquet")

TAG_FORMATS = {
    "columns": "columns",
    "conllu": "CoNLL-U",
    "jsonl": "JSON lines",
    **{name: TABLE_FORMATS[name] for name in _TABLES},
}
"""The formats of tagged sentences, and their names in messages."""

TAG_ROLES = ("words", "tags")
"""The values that each sentence must have."""

_SUFFIXES = {
    ".conllu": "conllu", **{suffix: name for suffix, name in FORMAT_OF_SUFFIX.items() if name in ("jsonl", *_TABLES)},
}  # fmt: skip
_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_FIELDS = ("words", "tokens")
_TAG_FIELDS = ("tags", "ner_tags", "labels", "pos_tags", "chunk_tags", "upos")
_SENTENCE_NAMES = ("sentence #", "sentence_id", "sentence_idx", "sentence_number", "sent_id", "sentence", "sent")
_WORD_NAMES = ("word", "token", *_WORD_FIELDS)
_TEXT_NAMES = (*_WORD_FIELDS, "sentence", "text")
_TAG_NAMES = ("tag", "ner", "ner_tag", "label", "pos", *_TAG_FIELDS)
_LIST_ITEM = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\s,'"]+)""")
_MIN_SENTENCES, _MIN_WORDS, _MOST_COLUMNS, _WORDS_PER_TAG, _NEARLY_ALL = 3, 2.0, 14, 4, 0.95
"""By which a file without a known suffix is recognized: sentences, words of each on average, columns, words for each
distinct tag, and the share of lines with as many columns as most."""
_DOCUMENT_START = "-DOCSTART-"
_STARTS = re.compile(r"-DOCSTART-|#\s*newdoc\b")
_SPACES = re.compile(r"[ \t]+")
_NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # a multiword range, or an empty node
_COMMENT = re.compile(r"#\s*(\w+\s*=|id\s)")
_SAMPLE_LINES = 1_000


TaggedRecord = tuple[int, tuple[str, ...], tuple[str, ...], str]
"""Line, words, tags, fault. A valid sentence has an empty fault; for an invalid one the line is that of the fault."""


@dataclass(frozen=True, kw_only=True)
class TaggedSentences:
    """How tagged sentences are read, repeatedly and in constant memory."""

    path: Path | None
    format: str
    """One of `TAG_FORMATS`, or `rows` for sentences in memory."""
    columns: tuple[str, str]
    """Those of the words and the tags: their names, or their positions from 1 if columns have no names."""
    inferred: list[str]
    """What was inferred from the file, in sentences."""
    read: Callable[[], Iterator[TaggedRecord]] = field(repr=False)
    """Read from the beginning."""


def open_tagged(
    path: AnyPath, *, columns: Sequence[str] | None = None, format: str | None = None, encoding: str | None = None
) -> TaggedSentences:
    """Open tagged sentences; what is not specified is inferred from the file's name and first lines.

    By default the words are the first column and the tags the last; if the first one numbers the words, they are the
    second. In CoNLL-U they are `form` and `upos`. A sentence with a line that has more or fewer columns than most is
    invalid.

    Args:
        path: A file, plain or compressed.
        columns: Those of the words and of the tags, by name or by position from 1.
        format: One of `TAG_FORMATS`, if name and lines do not determine it.
        encoding: The encoding of the file, detected by default.

    Raises:
        DataError: If the file cannot be read, or does not have the columns.
        ConfigError: If an argument is invalid.
    """
    path = Path(path)
    if format is not None and format not in TAG_FORMATS:
        raise ConfigError(f"format must be one of {', '.join(TAG_FORMATS)}, got {format!r}")
    if columns is not None and (isinstance(columns, str) or len(columns) != 2):
        raise ConfigError(f"columns must be two, of words and of tags, got {columns!r}")
    format = format or _SUFFIXES.get(format_suffix(path))
    is_binary = format in ("parquet", "xlsx")
    inferred = [] if is_binary else describe_encoding([path], encoding)
    encoding = "utf-8" if is_binary else encoding or file_encoding(path)
    options = ReadOptions(roles=TAG_ROLES, format=format, encoding=encoding)
    if format == "tsv" and _find_tagged_columns(file_layout(path, options)) is None:
        format = "columns"
    if format == "jsonl":
        found = _open_jsonl(path, columns, encoding)
    elif format == "parquet":
        found = _open_parquet(path, columns)
    elif format in _TABLES:
        found = _open_cells(path, columns, options)
    else:
        sample = sample_lines(path, _SAMPLE_LINES, encoding=encoding)
        format = format or _infer_format(sample)
        if format == "jsonl":
            found = _open_jsonl(path, columns, encoding)
        else:
            found = _open_columns(path, sample, columns, encoding, is_conllu=format == "conllu")
    return replace(found, inferred=[*inferred, *found.inferred])


def is_tagged_file(path: AnyPath, encoding: str | None = None) -> bool:
    """Whether lines are words with tags, by their columns, of which the last has few values, and by blank lines."""
    sample = sample_lines(path, _SAMPLE_LINES, encoding=encoding)
    full = [line for line in sample if not _is_blank(line) and not line.startswith(("#", _DOCUMENT_START))]
    has_tabs = 2 * sum("\t" in line for line in full) > len(full)
    cells = list(map(_Lines(width=0, has_tabs=has_tabs, is_conllu=False).cells, full))
    width, count = Counter(map(len, cells)).most_common(1)[0] if cells else (0, 0)
    lines = set(full)
    starts = [line for before, line in zip(["", *sample], sample, strict=False) if _is_blank(before) and line in lines]
    is_regular = 1 < width <= _MOST_COLUMNS and count >= _NEARLY_ALL * len(full)
    has_sentences = len(starts) >= _MIN_SENTENCES and len(full) >= _MIN_WORDS * len(starts)
    return is_regular and has_sentences and len({row[-1] for row in cells}) * _WORDS_PER_TAG <= len(full)


def tagged_columns(columns: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """Of a table the columns of sentences, words and tags, or of words and lists of tags; None if it has none.

    >>> tagged_columns({"Sentence #": ["1", "", ""], "Word": ["Ada", "sang", "."], "Tag": ["B-PER", "O", "O"]})
    ('Sentence #', 'Word', 'Tag')
    """
    plain = {name.strip().lower(): name for name in columns}
    sentence, word, text, tag = (
        next((plain[name] for name in names if name in plain), None)
        for names in (
            _SENTENCE_NAMES,
            _WORD_NAMES,
            _TEXT_NAMES,
            reversed(_TAG_NAMES) if "tags" in plain else _TAG_NAMES,
        )
    )
    if tag is None:
        return None
    if sentence is not None and word is not None and not any(" " in cell.strip() for cell in columns[word]):
        return sentence, word, tag
    is_list = all(cell.strip().startswith("[") and cell.strip().endswith("]") for cell in columns[tag])
    if text is None or not is_list or not columns[tag]:
        return None
    # Lists of labels of a whole text have lengths of their own.
    num_alike = sum(
        len(_items(one)) == len(_items(other)) for one, other in zip(columns[text], columns[tag], strict=True)
    )
    return (text, tag) if 2 * num_alike > len(columns[tag]) else None


def document_starts(path: AnyPath, encoding: str | None = None) -> list[int]:
    """The lines at which documents begin: `-DOCSTART-`, or `# newdoc` in CoNLL-U."""
    return [number for number, line in enumerate(iter_lines(path, encoding=encoding), 1) if _STARTS.match(line)]


def tagged_from_rows(rows: Iterable[tuple[Sequence[str], Sequence[str]]]) -> TaggedSentences:
    """Sentences in memory, each a list of words and a list of tags. An iterator is read into a list first.

    >>> [tags for _, _, tags, _ in tagged_from_rows([(["Ada", "sang"], ["B-PER", "O"])]).read()]
    [('B-PER', 'O')]
    """
    kept = rows if isinstance(rows, Sequence) else list(rows)
    return TaggedSentences(path=None, format="rows", columns=("1", "2"), inferred=[], read=partial(_read_rows, kept))


def _read_rows(rows: Iterable[Sequence[object]]) -> Iterator[TaggedRecord]:
    for number, row in enumerate(rows, 1):
        if len(row) != len(TAG_ROLES):
            yield number, (), (), f"{format_count(len(row), 'value')} instead of {len(TAG_ROLES)}"
        else:
            yield number, *_as_sentence(*row)


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """How lines are split into columns, and which of them are words."""

    width: int
    has_tabs: bool
    is_conllu: bool
    header: tuple[str, ...] = ()
    """The names of the columns, which are the first line that is not blank; none where it is a word."""

    def cells(self, line: str) -> list[str]:
        return line.split("\t") if self.has_tabs else _SPACES.split(line.strip(" \t"))

    def sentences(self, lines: Iterable[str]) -> Iterator[list[tuple[int, list[str]]]]:
        """The words of each sentence, each with its line and its cells."""
        words: list[tuple[int, list[str]]] = []
        has_names = bool(self.header)
        for number, line in enumerate(lines, 1):
            if has_names and tuple(self.cells(line)) == self.header:
                has_names = False
            elif _is_blank(line) or line.startswith(_DOCUMENT_START):
                if words:
                    yield words
                words = []
            else:
                cells = self.cells(line)
                if not self._is_skipped(line, cells, is_first=not words):
                    words.append((number, cells))
        if words:
            yield words

    def _is_skipped(self, line: str, cells: list[str], *, is_first: bool) -> bool:
        if self.is_conllu:
            return line.startswith("#") or _NOT_A_WORD.fullmatch(cells[0]) is not None
        # A number sign may also be a word: the sign for pounds in the Wall Street Journal.
        return is_first and line.startswith("#") and (len(cells) != self.width or _COMMENT.match(line) is not None)


def _open_columns(
    path: Path, sample: Sequence[str], wanted: Sequence[str] | None, encoding: str, *, is_conllu: bool
) -> TaggedSentences:
    full = [line for line in sample if not _is_blank(line)]
    has_tabs = is_conllu or 2 * sum("\t" in line for line in full) > len(full)
    split = _Lines(width=0, has_tabs=has_tabs, is_conllu=is_conllu).cells
    widths = Counter(len(split(line)) for line in full if not line.startswith(("#", _DOCUMENT_START)))
    width = len(_CONLLU_COLUMNS) if is_conllu else max(widths, key=lambda width: widths[width], default=0)
    if width < len(TAG_ROLES):
        raise DataError(f"{path.name} has {format_count(width, 'column')}, but 2 are needed ({', '.join(TAG_ROLES)})")
    header = () if is_conllu else _find_header(split(full[0]))
    lines = _Lines(width=width, has_tabs=has_tabs, is_conllu=is_conllu, header=header)
    names = header or (_CONLLU_COLUMNS if is_conllu else positions(width))
    if wanted is not None:
        word, tag = choose_columns(names, wanted, TAG_ROLES, where=path.name)
    elif is_conllu:
        word, tag = names.index("form"), names.index("upos")
    else:
        word, tag = int(width > len(TAG_ROLES) and _has_word_numbers(lines.sentences(sample))), width - 1
    label = TAG_FORMATS["conllu"] if is_conllu else f"columns between {'tabs' if has_tabs else 'spaces'}"
    return TaggedSentences(
        path=path,
        format="conllu" if is_conllu else "columns",
        columns=(names[word], names[tag]),
        inferred=_describe_inference(path, label, names, (names[word], names[tag])) if wanted is None else [],
        read=partial(_read_columns, path, encoding, lines=lines, word=word, tag=tag),
    )


def _find_header(cells: Sequence[str]) -> tuple[str, ...]:
    """The cells of a first line, if one is a name of words, a later one a name of tags, and no name occurs twice."""
    names = tuple(cell.strip().lower() for cell in cells)
    word = next((place for place, name in enumerate(names) if name in _WORD_NAMES), len(names))
    has_tags = any(name in _TAG_NAMES for name in names[word + 1 :])
    return tuple(cells) if has_tags and len(set(names)) == len(names) else ()


def _describe_inference(path: Path, label: str, names: Sequence[str], chosen: Sequence[str]) -> list[str]:
    columns = ", ".join(f"{role} = {format_column(column)}" for role, column in zip(TAG_ROLES, chosen, strict=True))
    of_all = f" of {len(names)} columns" if len(names) > len(TAG_ROLES) else ""
    return [f"read {path.name} as {label}; {columns}{of_all}"]


def _has_word_numbers(sentences: Iterable[list[tuple[int, list[str]]]]) -> bool:
    """Whether the first column numbers the words of each sentence, from 0 or 1."""
    firsts = [[cells[0] for _, cells in words] for words in sentences]
    return all(
        numbers in ([str(start + place) for place in range(len(numbers))] for start in (0, 1)) for numbers in firsts
    )


def _read_columns(path: Path, encoding: str, *, lines: _Lines, word: int, tag: int) -> Iterator[TaggedRecord]:
    for rows in lines.sentences(iter_lines(path, encoding=encoding)):
        fault = next(((line, what) for line, cells in rows if (what := _fault(cells, lines.width, word, tag))), None)
        if fault is not None:
            yield fault[0], (), (), fault[1]
        else:
            yield rows[0][0], tuple(cells[word] for _, cells in rows), tuple(cells[tag] for _, cells in rows), ""


def _fault(cells: list[str], width: int, word: int, tag: int) -> str:
    if len(cells) != width:
        return f"{format_count(len(cells), 'column')} instead of {width}"
    if not cells[word].strip():
        return "an empty word"
    return "" if cells[tag].strip() else "an empty tag"


def _open_jsonl(path: Path, wanted: Sequence[str] | None, encoding: str) -> TaggedSentences:
    lists = list_fields(sample_objects(path, sample_json_lines(path, _SAMPLE_LINES, encoding=encoding)))
    return _of_lists(path, "jsonl", lists, wanted, lambda word, tag: _read_jsonl(path, encoding, word=word, tag=tag))


def _open_parquet(path: Path, wanted: Sequence[str] | None) -> TaggedSentences:
    def read(word: str, tag: str) -> Iterator[TaggedRecord]:
        for number, row in enumerate(parquet_objects(path), 1):
            yield number, *_as_sentence(row[word], row[tag])

    return _of_lists(path, "parquet", list_fields(islice(parquet_objects(path), _SAMPLE_LINES)), wanted, read)


def _of_lists(
    path: Path,
    format: str,
    lists: Sequence[str],
    wanted: Sequence[str] | None,
    read: Callable[[str, str], Iterator[TaggedRecord]],
) -> TaggedSentences:
    """The sentences of records with lists of words and of tags, whose names `read` is called with."""
    if wanted is None:
        word, tag = _known(lists, _WORD_FIELDS, path), _known(lists, _TAG_FIELDS, path)
    else:
        word, tag = (lists[place] for place in choose_columns(lists, wanted, TAG_ROLES, where=path.name))
    return TaggedSentences(
        path=path,
        format=format,
        columns=(word, tag),
        inferred=_describe_inference(path, TAG_FORMATS[format], lists, (word, tag)) if wanted is None else [],
        read=partial(read, word, tag),
    )


def _open_cells(path: Path, wanted: Sequence[str] | None, options: ReadOptions) -> TaggedSentences:
    """The sentences of a table of cells."""
    layout = file_layout(path, options)
    found = _find_tagged_columns(layout)
    if wanted is not None:
        places = [require_column(name, layout.names, where=path.name) for name in wanted]
        starts = found[:-2] if found else ()
        found = (*starts, *(layout.names[place] for place in places))
    if found is None:
        raise DataError(
            f"{path.name} has no columns of words and tags: it needs a column for the sentence of each word, or lists "
            f"of tags; it has {format_names(layout.names)}"
        )
    picks = [layout.names.index(name) for name in found]
    read = _read_words if len(picks) > len(TAG_ROLES) else _read_sentences
    return TaggedSentences(
        path=path,
        format=layout.format,
        columns=(found[-2], found[-1]),
        inferred=_describe_inference(path, layout.label, layout.names, found[-2:]) if wanted is None else [],
        read=lambda: read(layout.read(picks)),
    )


def _find_tagged_columns(layout: Layout) -> tuple[str, ...] | None:
    sample = [values for _, values, fault in islice(layout.read(range(len(layout.names))), _SAMPLE_LINES) if not fault]
    cells = zip(*sample, strict=True) if sample else [()] * len(layout.names)
    return tagged_columns(dict(zip(layout.names, cells, strict=True))) if layout.has_names else None


def _read_words(records: Iterable[Record]) -> Iterator[TaggedRecord]:
    """Sentences of rows with a word each, which begin where the number of the sentence changes."""
    current, start, fault = "", 0, ""
    rows: list[tuple[str, str]] = []
    for line, values, wrong in records:
        if wrong == BLANK:
            continue
        number, word, tag = (cell.strip() for cell in values) if not wrong else ("", "", "")
        if number and number != current:
            if rows or fault:
                yield start, *_tagged(rows, fault)
            current, start, rows, fault = number, line, [], ""
        rows.append((word, tag))
        fault = fault or wrong
    if rows or fault:
        yield start, *_tagged(rows, fault)


def _tagged(rows: Sequence[tuple[str, str]], fault: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    return ((), (), fault) if fault else _as_sentence([word for word, _ in rows], [tag for _, tag in rows])


def _read_sentences(records: Iterable[Record]) -> Iterator[TaggedRecord]:
    """Sentences of rows with the words and the tags of each, as lists in brackets or separated by spaces."""
    for line, values, fault in records:
        if fault == BLANK:
            continue
        if fault:
            yield line, (), (), fault
        else:
            yield line, *_as_sentence(*map(_items, values))


def _items(cell: str) -> list[str]:
    """The items of a list as pandas writes it, or the words of a text.

    >>> _items("['O', 'B-PER']"), _items("Ada sang")
    (['O', 'B-PER'], ['Ada', 'sang'])
    """
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return cell.split()
    return [next(filter(None, groups)) for groups in _LIST_ITEM.findall(cell[1:-1]) if any(groups)]


def _known(lists: Sequence[str], known: Sequence[str], path: Path) -> str:
    """The field with one of the known names."""
    for name in known:
        if name in lists:
            return name
    has = f"it has {format_names(lists)}" if lists else "it has no lists"
    raise DataError(f"{path.name} has no list called {' or '.join(known)}; {has}")


def _read_jsonl(path: Path, encoding: str, *, word: str, tag: str) -> Iterator[TaggedRecord]:
    for number, line in enumerate(iter_json_lines(path, encoding=encoding), 1):
        if _is_blank(line):
            continue
        record = decode_object(line)
        if record is None:
            yield number, (), (), "no JSON object"
        elif missing := [name for name in (word, tag) if name not in record]:
            yield number, (), (), f"no field {missing[0]!r}"
        else:
            yield number, *_as_sentence(record[word], record[tag])


def _as_sentence(words: object, tags: object) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Words, tags and their fault."""
    texts: list[tuple[str, ...]] = []
    for role, values in zip(TAG_ROLES, (words, tags), strict=True):
        if isinstance(values, str) or not isinstance(values, Sequence):
            return (), (), f"{'text' if isinstance(values, str) else value_kind(values)} instead of a list of {role}"
        found: list[str] = []
        for value in values:
            text = as_text(value)
            if text is None:
                return (), (), f"{value_kind(value)} among its {role}"
            if not text or text.isspace():
                return (), (), f"an empty {role.removesuffix('s')}"
            found.append(text)
        texts.append(tuple(found))
    if len(texts[0]) != len(texts[1]) or not texts[0]:
        return (), (), f"{format_count(len(texts[0]), 'word')} and {format_count(len(texts[1]), 'tag')}"
    return texts[0], texts[1], ""


def _infer_format(sample: Sequence[str]) -> str:
    """The format of a file whose name does not determine it."""
    first = next((line for line in sample if not _is_blank(line) and not line.startswith("# ")), "")
    if decode_object(first) is not None:
        return "jsonl"
    cells = first.split("\t")
    is_conllu = len(cells) == len(_CONLLU_COLUMNS) and (cells[0] == "1" or _NOT_A_WORD.fullmatch(cells[0]) is not None)
    return "conllu" if is_conllu else "columns"


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")
