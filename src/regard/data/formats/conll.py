"""Sentences with a tag for each word: the columns of CoNLL, CoNLL-U, or JSON lines.

In columns, each line is a word with its annotations, separated by tabs or spaces, and a blank line ends the sentence.
`-DOCSTART-` lines, which mark the beginning of a document, are skipped. CoNLL-U has ten columns; its comments,
multiword ranges (`1-2`) and empty nodes (`1.1`) are skipped. In JSON lines a sentence is an object with a list of words
and a list of tags.

Tjong Kim Sang and Buchholz, "Introduction to the CoNLL-2000 Shared Task: Chunking" (2000).
https://aclanthology.org/W00-0726
CoNLL-U: https://universaldependencies.org/format.html
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from regard.data.formats.cells import as_text, value_kind
from regard.data.formats.columns import choose_columns
from regard.data.formats.files import (
    AnyPath,
    describe_encoding,
    file_encoding,
    format_suffix,
    iter_lines,
    sample_lines,
)
from regard.data.formats.json_lines import decode_object, list_fields, sample_objects
from regard.data.formats.layouts import positions
from regard.data.formats.messages import format_column, format_count, format_names
from regard.errors import ConfigError, DataError

TAG_FORMATS = {"columns": "columns", "conllu": "CoNLL-U", "jsonl": "JSON lines"}
"""The formats of tagged sentences, and their names in messages."""

TAG_ROLES = ("words", "tags")
"""The values that each sentence must have."""

_SUFFIXES = {".conllu": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_FIELDS = ("words", "tokens")
_TAG_FIELDS = ("tags", "ner_tags", "labels", "pos_tags", "chunk_tags", "upos")
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
    inferred = describe_encoding([path], encoding)
    encoding = encoding or file_encoding(path)
    sample = sample_lines(path, _SAMPLE_LINES, encoding=encoding)
    format = format or _SUFFIXES.get(format_suffix(path)) or _infer_format(sample)
    if format == "jsonl":
        found = _open_jsonl(path, sample, columns, encoding)
    else:
        found = _open_columns(path, sample, columns, encoding, is_conllu=format == "conllu")
    return replace(found, inferred=[*inferred, *found.inferred])


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

    def cells(self, line: str) -> list[str]:
        return line.split("\t") if self.has_tabs else _SPACES.split(line.strip(" \t"))

    def sentences(self, lines: Iterable[str]) -> Iterator[list[tuple[int, list[str]]]]:
        """The words of each sentence, each with its line and its cells."""
        words: list[tuple[int, list[str]]] = []
        for number, line in enumerate(lines, 1):
            if _is_blank(line) or line.startswith(_DOCUMENT_START):
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
    lines = _Lines(width=width, has_tabs=has_tabs, is_conllu=is_conllu)
    names = _CONLLU_COLUMNS if is_conllu else positions(width)
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


def _open_jsonl(path: Path, sample: Sequence[str], wanted: Sequence[str] | None, encoding: str) -> TaggedSentences:
    lists = list_fields(sample_objects(path, sample))
    if wanted is None:
        word, tag = _known(lists, _WORD_FIELDS, path), _known(lists, _TAG_FIELDS, path)
    else:
        word, tag = (lists[place] for place in choose_columns(lists, wanted, TAG_ROLES, where=path.name))
    return TaggedSentences(
        path=path,
        format="jsonl",
        columns=(word, tag),
        inferred=_describe_inference(path, TAG_FORMATS["jsonl"], lists, (word, tag)) if wanted is None else [],
        read=partial(_read_jsonl, path, encoding, word=word, tag=tag),
    )


def _known(lists: Sequence[str], known: Sequence[str], path: Path) -> str:
    """The field with one of the known names."""
    for name in known:
        if name in lists:
            return name
    has = f"it has {format_names(lists)}" if lists else "it has no lists"
    raise DataError(f"{path.name} has no list called {' or '.join(known)}; {has}")


def _read_jsonl(path: Path, encoding: str, *, word: str, tag: str) -> Iterator[TaggedRecord]:
    for number, line in enumerate(iter_lines(path, encoding=encoding), 1):
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
