"""Sentences with a tag for each word: columns as CoNLL has them, CoNLL-U, or JSON lines.

In columns each line is a word with what is known about it, between tabs or spaces,
and a blank line ends the sentence. `-DOCSTART-` lines, which say that a document
begins, are left out. CoNLL-U has ten columns; its comments, the ranges of words
that are written together (`1-2`) and the words that are not written (`1.1`) are
left out. In JSON lines a sentence is an object with a list of words and one of tags.

Tjong Kim Sang and Buchholz, "Introduction to the CoNLL-2000 Shared Task: Chunking" (2000).
https://aclanthology.org/W00-0726
CoNLL-U: https://universaldependencies.org/format.html
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.bad_rows import BadRows
from regard.data.columns import choose_columns, count_of, listing
from regard.data.fields import as_text, decode_json, kind_of
from regard.data.files import AnyPath, open_text, plain_name
from regard.errors import BadRowsError, ConfigError, DataError

FORMATS = {"columns": "columns", "conllu": "CoNLL-U", "jsonl": "JSON lines"}
"""The formats, and what each is called in a sentence."""

ROLES = ("words", "tags")
"""What a sentence must give."""

_SUFFIXES = {".conllu": "conllu", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_WORD_FIELDS = ("words", "tokens")
_TAG_FIELDS = ("tags", "ner_tags", "labels", "pos_tags", "chunk_tags", "upos")
_DOCUMENT_START = "-DOCSTART-"
_STARTS = re.compile(r"-DOCSTART-|#\s*newdoc\b")
_SPACES = re.compile(r"[ \t]+")
_NO_WORD = re.compile(r"\d+[-.]\d+")  # a range of words, or a word that is not written
_COMMENT = re.compile(r"#\s*(\w+\s*=|id\s)")
_NOTHING = object()
_SAMPLE_LINES = 1_000


class Sentence(NamedTuple):
    """The words of a sentence, and the tag of each."""

    line: int
    """Where it begins, counted from 1: the line of a file, the row of a list."""
    words: tuple[str, ...]
    tags: tuple[str, ...]


Record = tuple[int, tuple[str, ...], tuple[str, ...], str]
"""Line, words, tags, fault: a sentence that is right has an empty fault, and else its line is that of the fault."""


@dataclass(kw_only=True, eq=False)
class TaggedSentences:
    """A source of sentences that can be read again and again, in constant memory.

    Iterating yields each good sentence. At the end of the pass a `DataError` tells of
    the bad ones, unless `skip_bad`; if there is no good one at all it is raised anyway.
    """

    path: Path | None
    format: str
    """One of `columns conllu jsonl`, or `rows` for sentences in memory."""
    columns: tuple[str, str]
    """Those of the words and the tags: their names, or their positions from 1 where columns have no names."""
    guesses: list[str]
    """What was not given but concluded from the file, in sentences."""
    skip_bad: bool
    read: Callable[[], Iterator[Record]] = field(repr=False)
    """Start reading from the beginning."""
    bad_rows: BadRows = field(init=False, repr=False)
    """What was wrong, as of the last pass that came to its end."""

    def __post_init__(self) -> None:
        self.bad_rows = self._no_bad_rows()

    @property
    def name(self) -> str:
        """What to call the source in a sentence."""
        return self.path.name if self.path else "the sentences in memory"

    def __iter__(self) -> Iterator[Sentence]:
        bad = self._no_bad_rows()
        for line, words, tags, fault in self.read():
            if fault:
                bad.add(fault, line)
            else:
                bad.num_good += 1
                yield Sentence(line, words, tags)
        self.bad_rows = bad
        if bad.total and not bad.num_good:
            raise DataError(str(bad))
        if bad.total and not self.skip_bad:
            raise BadRowsError(str(bad))
        if not bad.num_good:
            raise DataError(f"{self.name} has no sentences")

    def check(self) -> int:
        """Read every sentence once, and return how many are good.

        Raises:
            DataError: If there is none, or if some are bad and `skip_bad` is not set.
        """
        return sum(1 for _ in self)

    def _no_bad_rows(self) -> BadRows:
        return BadRows(where=self.name, unit="line" if self.path else "row")


def open_tagged(
    path: AnyPath, *, columns: Sequence[str] | None = None, format: str | None = None, skip_bad: bool = False
) -> TaggedSentences:
    """Find out how to read tagged sentences, from the file's name and first lines; what is given is not guessed.

    Unless told, the words are the first column and the tags the last; where the first
    one counts the words, they are the second. Of CoNLL-U they are `form` and `upos`.
    A line with more or fewer columns than most makes its sentence a bad one.

    Args:
        path: A file, plain or compressed as `open_text` knows it.
        columns: Those of the words and of the tags, by name or by position from 1.
        format: One of `columns conllu jsonl`, if name and lines do not say it.
        skip_bad: Pass over bad sentences, where otherwise the pass ends in an error.

    Raises:
        DataError: If the file cannot be opened, or has not the columns asked for.
        ConfigError: If the arguments do not fit one another.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if columns is not None and (isinstance(columns, str) or len(columns) != 2):
        raise ConfigError(f"columns must be two, of words and of tags, got {columns!r}")
    sample = _first_lines(path)
    format = format or _SUFFIXES.get(Path(plain_name(path)).suffix.lower()) or _sniff(sample)
    if format == "jsonl":
        layout = _jsonl_layout(path, sample, columns)
    else:
        layout = _column_layout(path, sample, columns, is_conllu=format == "conllu")
    chosen = [f"column {column}" if column.isdigit() else column for column in layout.columns]
    told = ", ".join(f"{role} = {column}" for role, column in zip(ROLES, chosen, strict=True))
    of_all = f" of {layout.num_columns} columns" if layout.num_columns > len(ROLES) else ""
    return TaggedSentences(
        path=path,
        format=format,
        columns=layout.columns,
        guesses=[f"read {path.name} as {layout.what}; {told}{of_all}"] if columns is None else [],
        skip_bad=skip_bad,
        read=layout.read,
    )


def document_starts(path: AnyPath) -> list[int]:
    """The lines at which documents begin: those of `-DOCSTART-`, or in CoNLL-U those of `# newdoc`."""
    return [number for number, line in enumerate(open_text(path), 1) if _STARTS.match(line)]


def tagged_from_rows(rows: Iterable[tuple[Sequence[str], Sequence[str]]], *, skip_bad: bool = False) -> TaggedSentences:
    """Sentences in memory, each its words and its tags. An iterator is drained into a list first, to be read again.

    >>> [sentence.tags for sentence in tagged_from_rows([(["Ada", "sang"], ["B-PER", "O"])])]
    [('B-PER', 'O')]
    """
    kept = rows if isinstance(rows, Sequence) else list(rows)
    read = partial(_read_rows, kept)
    return TaggedSentences(path=None, format="rows", columns=("1", "2"), guesses=[], skip_bad=skip_bad, read=read)


def _read_rows(rows: Iterable[Sequence[object]]) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        if len(row) != len(ROLES):
            yield number, (), (), f"{count_of(len(row), 'value')} instead of {len(ROLES)}"
        else:
            yield number, *_as_sentence(*row)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How a file is read, and what that was concluded from."""

    columns: tuple[str, str]
    num_columns: int
    what: str
    """What the file is, in a sentence."""
    read: Callable[[], Iterator[Record]]


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """How lines of columns are cut, and which of them are words."""

    width: int
    has_tabs: bool
    is_conllu: bool

    def cells(self, line: str) -> list[str]:
        return line.split("\t") if self.has_tabs else _SPACES.split(line.strip(" \t"))

    def sentences(self, lines: Iterable[str]) -> Iterator[list[tuple[int, list[str]]]]:
        """The words of each sentence: the line and the cells of each."""
        words: list[tuple[int, list[str]]] = []
        for number, line in enumerate(lines, 1):
            if _is_blank(line) or line.startswith(_DOCUMENT_START):
                if words:
                    yield words
                words = []
            else:
                cells = self.cells(line)
                if not self._is_left_out(line, cells, is_first=not words):
                    words.append((number, cells))
        if words:
            yield words

    def _is_left_out(self, line: str, cells: list[str], *, is_first: bool) -> bool:
        if self.is_conllu:
            return line.startswith("#") or _NO_WORD.fullmatch(cells[0]) is not None
        # A number sign is a word as well: of pounds, in the Wall Street Journal.
        return is_first and line.startswith("#") and (len(cells) != self.width or _COMMENT.match(line) is not None)


def _column_layout(path: Path, sample: Sequence[str], wanted: Sequence[str] | None, *, is_conllu: bool) -> _Layout:
    full = [line for line in sample if not _is_blank(line)]
    has_tabs = is_conllu or 2 * sum("\t" in line for line in full) > len(full)
    split = _Lines(width=0, has_tabs=has_tabs, is_conllu=is_conllu).cells
    widths = Counter(len(split(line)) for line in full if not line.startswith(("#", _DOCUMENT_START)))
    width = len(_CONLLU_COLUMNS) if is_conllu else max(widths, key=lambda width: widths[width], default=0)
    if width < len(ROLES):
        raise DataError(f"{path.name} has {count_of(width, 'column')}, but 2 are needed ({', '.join(ROLES)})")
    lines = _Lines(width=width, has_tabs=has_tabs, is_conllu=is_conllu)
    names = _CONLLU_COLUMNS if is_conllu else tuple(str(position) for position in range(1, width + 1))
    if wanted is not None:
        word, tag = choose_columns(names, wanted, ROLES, where=path.name)
    elif is_conllu:
        word, tag = names.index("form"), names.index("upos")
    else:
        word, tag = int(width > len(ROLES) and _counts_words(lines.sentences(sample))), width - 1
    return _Layout(
        columns=(names[word], names[tag]),
        num_columns=width,
        what=FORMATS["conllu"] if is_conllu else f"columns between {'tabs' if has_tabs else 'spaces'}",
        read=partial(_read_columns, path, lines=lines, word=word, tag=tag),
    )


def _counts_words(sentences: Iterable[list[tuple[int, list[str]]]]) -> bool:
    """Whether the first column counts the words of each sentence."""
    firsts = [[cells[0] for _, cells in words] for words in sentences]
    return all(
        numbers in ([str(start + place) for place in range(len(numbers))] for start in (0, 1)) for numbers in firsts
    )


def _read_columns(path: Path, *, lines: _Lines, word: int, tag: int) -> Iterator[Record]:
    for rows in lines.sentences(open_text(path)):
        fault = next(((line, told) for line, cells in rows if (told := _fault(cells, lines.width, word, tag))), None)
        if fault is not None:
            yield fault[0], (), (), fault[1]
        else:
            yield rows[0][0], tuple(cells[word] for _, cells in rows), tuple(cells[tag] for _, cells in rows), ""


def _fault(cells: list[str], width: int, word: int, tag: int) -> str:
    if len(cells) != width:
        return f"{count_of(len(cells), 'column')} instead of {width}"
    if not cells[word].strip():
        return "an empty word"
    return "" if cells[tag].strip() else "an empty tag"


def _jsonl_layout(path: Path, sample: Sequence[str], wanted: Sequence[str] | None) -> _Layout:
    objects = [record for line in sample if (record := _as_object(line)) is not None]
    if not objects:
        raise DataError(f"{path.name} is not JSON lines: none of its first lines is an object, as {{...}} on one line")
    lists = list(dict.fromkeys(key for record in objects for key, value in record.items() if isinstance(value, list)))
    if wanted is None:
        columns = _known(lists, _WORD_FIELDS, path), _known(lists, _TAG_FIELDS, path)
    else:
        columns = tuple(lists[place] for place in choose_columns(lists, wanted, ROLES, where=path.name))
    word, tag = columns
    return _Layout(
        columns=(word, tag),
        num_columns=len(lists),
        what=FORMATS["jsonl"],
        read=partial(_read_jsonl, path, word=word, tag=tag),
    )


def _known(lists: Sequence[str], known: Sequence[str], path: Path) -> str:
    """The field that has one of the known names."""
    for name in known:
        if name in lists:
            return name
    has = f"it has {listing(lists)}" if lists else "it has no lists"
    raise DataError(f"{path.name} has no list called {' or '.join(known)}; {has}")


def _read_jsonl(path: Path, *, word: str, tag: str) -> Iterator[Record]:
    for number, line in enumerate(open_text(path), 1):
        if _is_blank(line):
            continue
        record = _as_object(line)
        if record is None:
            yield number, (), (), "no JSON object"
        elif missing := [name for name in (word, tag) if name not in record]:
            yield number, (), (), f"no field {missing[0]!r}"
        else:
            yield number, *_as_sentence(record[word], record[tag])


def _as_sentence(words: object, tags: object) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Words, tags and what is wrong with them."""
    texts: list[tuple[str, ...]] = []
    for role, values in zip(ROLES, (words, tags), strict=True):
        if isinstance(values, str) or not isinstance(values, Sequence):
            return (), (), f"{'text' if isinstance(values, str) else kind_of(values)} instead of a list of {role}"
        found = [as_text(value) for value in values]
        wrong = next((value for value, text in zip(values, found, strict=True) if text is None), _NOTHING)
        if wrong is not _NOTHING:
            return (), (), f"{kind_of(wrong)} among its {role}"
        if any(not text or text.isspace() for text in found):
            return (), (), f"an empty {role.removesuffix('s')}"
        texts.append(tuple(text for text in found if text is not None))
    if len(texts[0]) != len(texts[1]) or not texts[0]:
        return (), (), f"{count_of(len(texts[0]), 'word')} and {count_of(len(texts[1]), 'tag')}"
    return texts[0], texts[1], ""


def _sniff(sample: Sequence[str]) -> str:
    """The format of a file whose name does not say it."""
    first = next((line for line in sample if not _is_blank(line) and not line.startswith("# ")), "")
    if _as_object(first) is not None:
        return "jsonl"
    cells = first.split("\t")
    is_conllu = len(cells) == len(_CONLLU_COLUMNS) and (cells[0] == "1" or _NO_WORD.fullmatch(cells[0]) is not None)
    return "conllu" if is_conllu else "columns"


def _first_lines(path: Path) -> list[str]:
    with closing(open_text(path)) as lines:
        sample = list(islice(lines, _SAMPLE_LINES))
    if all(_is_blank(line) for line in sample):
        raise DataError(f"{path} has nothing but blank lines")
    return sample


def _as_object(line: str) -> dict[str, Any] | None:
    try:
        record = decode_json(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_blank(line: str) -> bool:
    return not line.strip(" \t")
