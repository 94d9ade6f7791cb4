"""Text as it stands: documents of any length, read a piece at a time.

A language model learns from running text, so here nothing is a row of two sides. A
plain file is one document, kept to the letter with its line ends; or each of its
lines is one; and each row of a table is one. What is read again is read from the
file again, so a text of any size takes the same memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, cast

from regard.data.columns import count_of
from regard.data.config import DataConfig
from regard.data.files import check_file, content_hash, cut_text, plain_name, read_text
from regard.data.folders import TABLE_SUFFIXES, text_files
from regard.data.keys import key_column, ordered
from regard.data.sources import IN_MEMORY, hash_with_held_out, is_builtin, open_source, rows_in_memory, usual_tokenizer
from regard.data.tables import Table, open_table, rows_hash
from regard.data.times import ROWS
from regard.errors import ConfigError, DataError

ROLES = ("text",)
"""What a row must give to be a document."""

Form = Literal["file", "lines", "rows"]
"""What a document is: a whole plain file, a line of one, or a row of a table."""

_PIECE_LENGTH = 1 << 16
_FILES_TO_NAME = 3


class Piece(NamedTuple):
    """Part of a document: pieces follow one another without anything between."""

    text: str
    is_last: bool
    """Whether the document ends here."""


@dataclass(frozen=True)
class TextFile:
    """A plain file as one document, verbatim; only `\\r\\n` is read as `\\n`.

    Its pieces end where lines end, unless a line is longer than a piece.
    """

    path: Path

    def __iter__(self) -> Iterator[Piece]:
        waiting = ""
        is_blank = True
        for block in read_text(self.path, block_length=_PIECE_LENGTH):
            is_blank = is_blank and block.isspace()
            if waiting:
                yield Piece(waiting, is_last=False)
            waiting = block
        if is_blank:
            raise DataError(f"{self.path} has nothing but blank lines")
        yield Piece(waiting, is_last=True)


@dataclass(frozen=True)
class Texts:
    """A source of documents that can be read again and again, in constant memory.

    Iterating yields the pieces of all documents in order. What is wrong with a file
    or with rows of a table is a `DataError`, as it is for every table.
    """

    volumes: tuple[TextFile | Table, ...]
    """The files, in order; each plain one is a document, each table holds one a row."""
    form: Form

    def __iter__(self) -> Iterator[Piece]:
        for volume in self.volumes:
            yield from pieces_of(volume)

    def documents(self) -> Iterator[str]:
        """Each document whole; the longest has to fit into memory."""
        return join_pieces(self)

    def entries(self) -> Iterator[tuple[str, str]]:
        """Each document whole, and what it is split by: itself, or a column of its table."""
        for volume in self.volumes:
            if isinstance(volume, Table):
                yield from ((row.values[0], row.split_by) for row in volume)
            else:
                yield from ((document, document) for document in join_pieces(volume))

    @property
    def column(self) -> str | None:
        """The column that documents are split by, if any."""
        return next((table.key for table in self.tables), None)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for volume in self.volumes for path in _paths_of(volume))

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(volume for volume in self.volumes if isinstance(volume, Table))

    @property
    def name(self) -> str:
        """What to call the text in a sentence."""
        names = [path.name for path in self.paths]
        if len(names) > _FILES_TO_NAME:
            return count_of(len(names), "file")
        return " and ".join(names) or "the table in memory"


@dataclass(frozen=True)
class TextSource:
    """The texts of a run, by role; `valid` and `test` are None where they are to be split off `train`."""

    train: Texts
    valid: Texts | None
    test: Texts | None
    content_hash: Callable[[], str]
    """The hash of all that is read; it costs a pass over the files."""
    guesses: list[str]
    """What was not given but concluded, in sentences."""
    is_isolated: bool
    """Whether a document is read by itself, or runs on into the next."""


def open_texts(config: DataConfig, rows: Iterable[Sequence[str]] | None = None) -> TextSource:
    """Find the text that the settings name, and how to read it; `rows` are documents in memory.

    Raises:
        DataError: If a file is missing, empty, not text, or a table without a column of text.
        ConfigError: If the settings do not fit the files.
    """
    guesses: list[str] = []
    if rows is not None:
        rows = list(rows)
        train = Texts((rows_in_memory(config, ROLES, rows),), "rows")
        hash_of_train = partial(rows_hash, rows)
    elif is_builtin(config):
        source = open_source(config.changed(valid=[], test=[]), ROLES)
        train, hash_of_train = Texts((source.train,), "rows"), source.content_hash
    else:
        config, guesses = _with_folder(config)
        train = _open(config.train, config, key=key_column(config))
        if train.form == "rows" and config.order == ROWS and len(train.volumes) > 1:
            raise ConfigError(
                f"data.order = {ROWS!r} is for the rows of one file, got {count_of(len(train.volumes), 'file')}"
            )
        train = replace(train, volumes=tuple(_ordered(volume, config) for volume in train.volumes))
        hash_of_train = partial(content_hash, train.paths)
    held_out = {role: _open(paths, config) for role in ("valid", "test") if (paths := getattr(config, role))}
    is_isolated = _is_isolated(train) if config.isolate is None else config.isolate
    for texts in (train, *held_out.values()):
        guesses += [guess for table in texts.tables for guess in table.guesses]
    if train.paths and (config.isolate is None or (config.documents == "auto" and train.form != "rows")):
        guesses.append(_sentence(train, is_isolated))
    paths_held_out = {role: texts.paths for role, texts in held_out.items()}
    return TextSource(
        train=train,
        valid=held_out.get("valid"),
        test=held_out.get("test"),
        content_hash=lambda: hash_with_held_out(hash_of_train(), paths_held_out),
        guesses=list(dict.fromkeys(guesses)),
        is_isolated=is_isolated,
    )


def pieces_of(volume: TextFile | Table) -> Iterator[Piece]:
    """The pieces of one file, or of the rows of one table."""
    return iter(volume) if isinstance(volume, TextFile) else as_pieces(row.values[0] for row in volume)


def as_pieces(documents: Iterable[str]) -> Iterator[Piece]:
    """Documents in memory, cut as those in files are."""
    for document in documents:
        *blocks, last = cut_text(document, block_length=_PIECE_LENGTH)
        for block in blocks:
            yield Piece(block, is_last=False)
        yield Piece(last, is_last=True)


def join_pieces(pieces: Iterable[Piece]) -> Iterator[str]:
    """The documents that the pieces make up.

    >>> list(join_pieces([Piece("a b", False), Piece(" c", True), Piece("d", True)]))
    ['a b c', 'd']
    """
    parts: list[str] = []
    for text, is_last in pieces:
        parts.append(text)
        if is_last:
            yield "".join(parts)
            parts = []


def _with_folder(config: DataConfig) -> tuple[DataConfig, list[str]]:
    """The settings with the files of a folder in the place of its name; what is given outweighs what is found."""
    if not config.train:
        raise DataError("no text to train on: name a file, several files or a folder of them")
    if config.train == [IN_MEMORY]:
        raise DataError("this run was trained on rows in memory: hand in the same rows to go on")
    folder = Path(config.train[0])
    if len(config.train) > 1 or not folder.is_dir():
        return config, []
    found = text_files(folder)
    used = {role: paths for role, paths in found.items() if role == "train" or not getattr(config, role)}
    purposes = {"train": "to train on", "valid": "for validation", "test": "for the test"}
    told = ", ".join(f"{_names(paths)} {purposes[role]}" for role, paths in used.items())
    guess = f"took from the folder {folder.name} {told}"
    return config.changed(**{role: [str(path) for path in paths] for role, paths in used.items()}), [guess]


def _names(paths: Sequence[Path]) -> str:
    if len(paths) > _FILES_TO_NAME:
        return count_of(len(paths), "file")
    return " and ".join(path.name for path in paths)


def _ordered(volume: TextFile | Table, config: DataConfig) -> TextFile | Table:
    # Lines of plain text run on; that they cannot be split by time is told where they are divided.
    return ordered(volume, config) if isinstance(volume, Table) and volume.format != "lines" else volume


def _open(names: Sequence[str], config: DataConfig, key: str | None = None) -> Texts:
    paths = [check_file(name) for name in names]
    # The first is looked into; the others are like it, or their names say that they are not.
    is_table = [_is_table(path, config, looks_inside=index == 0) for index, path in enumerate(paths)]
    if all(is_table):
        if config.documents != "auto":
            told = f"got data.documents = {config.documents!r} for {_names(paths)}"
            raise ConfigError(f"data.documents is for plain text, each row of a table is a document, {told}")
        return Texts(tuple(_open_table(path, config, key) for path in paths), "rows")
    if any(is_table):
        table, plain = paths[is_table.index(True)], paths[is_table.index(False)]
        raise DataError(f"files read together must be of one kind, but {table.name} is a table and {plain.name} is not")
    if _form_of_plain_text(config) == "file":
        return Texts(tuple(TextFile(path) for path in paths), "file")
    lines = config.changed(format="lines", columns=[], header=None)
    return Texts(tuple(_open_table(path, lines) for path in paths), "lines")


def _is_table(path: Path, config: DataConfig, *, looks_inside: bool) -> bool:
    """Whether a file is a table: by the settings, by its name, or because it begins as JSON lines do."""
    if config.format == "lines":
        return False
    if Path(plain_name(path)).suffix.lower().removeprefix(".") in TABLE_SUFFIXES:
        return True
    is_told = bool(config.format or config.columns or config.header is not None)
    is_likely = is_told or (looks_inside and _begins_with_brace(path))
    return is_likely and _open_table(path, config).format != "lines"


def _begins_with_brace(path: Path) -> bool:
    with closing(read_text(path, block_length=_PIECE_LENGTH)) as blocks:
        return next((block.lstrip().startswith("{") for block in blocks if not block.isspace()), False)


def _open_table(path: Path, config: DataConfig, key: str | None = None) -> Table:
    return open_table(
        path,
        columns=config.columns or None,
        format=config.format,
        roles=ROLES,
        header=config.header,
        key=key,
        skip_bad=config.skip_bad,
    )


def _form_of_plain_text(config: DataConfig) -> Form:
    if config.documents != "auto":
        return cast("Form", config.documents)
    return "lines" if config.format == "lines" or usual_tokenizer(config) == "words" else "file"


def _is_isolated(texts: Texts) -> bool:
    """Rows and files have nothing to do with one another; lines follow from one another."""
    return texts.form == "rows" or (texts.form == "file" and len(texts.volumes) > 1)


def _sentence(texts: Texts, is_isolated: bool) -> str:
    if texts.form == "file" and len(texts.volumes) == 1:
        return f"read {texts.name} as {'a document by itself' if is_isolated else 'one running text'}"
    how = {"file": "", "lines": " line by line", "rows": " row by row"}[texts.form]
    return f"read {texts.name}{how} as documents, {'each by itself' if is_isolated else 'one running on into the next'}"


def _paths_of(volume: TextFile | Table) -> tuple[Path, ...]:
    return (volume.path,) if isinstance(volume, TextFile) else volume.paths
