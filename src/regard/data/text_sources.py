"""The text of a run: files, a folder, tables or documents in memory, for each split."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from regard.data.codecs.codec import write_codecs
from regard.data.codecs.text import TextCodec
from regard.data.formats.files import check_file, content_hash, describe_encoding, format_suffix, iter_blocks
from regard.data.formats.folders import TABLE_SUFFIXES
from regard.data.formats.messages import format_count
from regard.data.formats.plain_text import (
    TEXT_ROLES,
    Documents,
    Piece,
    TextFile,
    cut_documents,
    format_paths,
    join_pieces,
)
from regard.data.formats.tables import Table, open_table, rows_hash
from regard.data.permutation import mix
from regard.data.prepare import (
    FitData,
    HeldOut,
    Prepared,
    RowEncoder,
    Values,
    find_or_build,
    leak_warnings,
    rows_to_compare,
    write_record,
)
from regard.data.settings import DataConfig
from regard.data.sources import (
    NamedRows,
    hash_with_held_out,
    is_builtin,
    open_source,
    require_files,
    rows_in_memory,
    with_folder,
)
from regard.data.splits.by_hash import SPLIT_PURPOSES
from regard.data.splits.by_position import TextSplit, split_text
from regard.data.splits.by_time import ROW_ORDER
from regard.data.splits.plan import key_column, with_split_keys
from regard.data.stores.tokens import TokenStream, count_tokens, write_stream
from regard.errors import ConfigError, DataError
from regard.logging import progress_bar
from regard.text.alphabets import SEQUENCE_KINDS
from regard.text.tokenizer import SPECIAL_TOKENS

DocumentKind = Literal["auto", "file", "lines"]
"""What a document of a plain text is: the whole file, or each line; `auto` depends on the tokenizer."""

_FIRST_BLOCK = 1 << 16
_TEXT_VOCABULARIES = {
    "characters": sys.maxunicode,
    **dict.fromkeys(("words", "wordpunct"), 50_000 + len(SPECIAL_TOKENS)),
}
"""Default vocabulary sizes for running text of the tokenizers that cover all of it; others go by the amount of text."""
_SAMPLE_CHARACTERS = 1 << 26
"""Characters of running text that a tokenizer is trained on, where it need not see all of it."""


@dataclass(frozen=True)
class TextSource:
    """The text of a run by split; `valid` and `test` are None if they are to be split off `train`."""

    train: Documents
    valid: Documents | None
    test: Documents | None
    content_hash: Callable[[], str]
    """Computes the hash of all text, in a pass over the files."""
    inferred: list[str]
    """What was inferred, in sentences."""
    is_isolated: bool
    """Whether documents are independent, or each continues the previous one."""


def open_texts(
    config: DataConfig,
    rows: Iterable[Any] | None = None,
    *,
    tokenizer: str = "bpe",
    documents: DocumentKind = "auto",
    isolate: bool | None = None,
) -> TextSource:
    """Open the text that the settings name.

    Args:
        config: Where the text is.
        rows: Documents in memory, instead of files.
        tokenizer: Its kind: with `words` and for molecules, each line of a plain text is a document.
        documents: What a document of a plain text is.
        isolate: Whether documents are independent of each other; None to infer it.

    Raises:
        DataError: If a file is missing, empty, not text, or a table without a column of text.
        ConfigError: If the settings do not match the files.
    """
    inferred: list[str] = []
    if rows is not None:
        rows = rows if isinstance(rows, NamedRows) else list(rows)
        train = Documents((rows_in_memory(config, TEXT_ROLES, rows),), "rows")
        hash_of_train = partial(rows_hash, rows)
    elif is_builtin(config):
        source = open_source(config.changed(valid=[], test=[]), TEXT_ROLES)
        train, hash_of_train = Documents((source.train,), "rows"), source.content_hash
    else:
        config, inferred = _with_folder(config)
        train = _open(config.train, config, documents, tokenizer, key=key_column(config))
        if train.form == "rows" and config.order == ROW_ORDER and len(train.files) > 1:
            num_files = format_count(len(train.files), "file")
            raise ConfigError(f"data.order = {ROW_ORDER!r} is for the rows of one file, got {num_files}")
        train = replace(train, files=tuple(_with_split_keys(file, config) for file in train.files))
        hash_of_train = partial(content_hash, train.paths)
    held_out = {
        split: _open(paths, config, documents, tokenizer)
        for split, paths in (("valid", config.valid), ("test", config.test))
        if paths
    }
    # Rows and files are independent of each other; a line continues the previous one, unless it is a molecule.
    is_isolated = train.form == "rows" or (train.form == "file" and len(train.files) > 1)
    is_isolated = is_isolated or (train.form == "lines" and tokenizer in SEQUENCE_KINDS)
    is_isolated = is_isolated if isolate is None else isolate
    for some in (train, *held_out.values()):
        inferred += [sentence for table in some.tables for sentence in table.inferred]
        inferred += describe_encoding([file.path for file in some.files if isinstance(file, TextFile)], config.encoding)
    if train.paths and (isolate is None or (documents == "auto" and train.form != "rows")):
        inferred.append(_describe(train, is_isolated))
    paths_held_out = {split: some.paths for split, some in held_out.items()}
    return TextSource(
        train=train,
        valid=held_out.get("valid"),
        test=held_out.get("test"),
        content_hash=lambda: hash_with_held_out(hash_of_train(), paths_held_out),
        inferred=list(dict.fromkeys(inferred)),
        is_isolated=is_isolated,
    )


def _with_folder(config: DataConfig) -> tuple[DataConfig, list[str]]:
    """The settings with the files of a folder, and a sentence about them."""
    require_files(config, "a file, several files or a folder of them")
    changed = with_folder(config)
    if changed is config:
        return config, []
    found = {"train": changed.train, "valid": changed.valid, "test": changed.test}
    used = {split: paths for split, paths in found.items() if paths and paths != getattr(config, split)}
    files = ", ".join(f"{format_paths(map(Path, paths))} {SPLIT_PURPOSES[split]}" for split, paths in used.items())
    return changed, [f"from the folder {Path(config.train[0]).name}: {files}"]


def _with_split_keys(file: TextFile | Table, config: DataConfig) -> TextFile | Table:
    # Lines of plain text are contiguous; `split_text` reports that they cannot be split by time.
    return with_split_keys(file, config) if isinstance(file, Table) and file.format != "lines" else file


def _open(
    names: Sequence[str], config: DataConfig, documents: DocumentKind, tokenizer: str, key: str | None = None
) -> Documents:
    paths = [check_file(name) for name in names]
    # The content of the first is read; the others are of the same kind, unless their names contradict.
    is_table = [_is_table(path, config, reads_content=index == 0) for index, path in enumerate(paths)]
    if all(is_table):
        if documents != "auto":
            given = f"got task.documents = {documents!r} for {format_paths(paths)}"
            raise ConfigError(f"task.documents is for plain text, each row of a table is a document, {given}")
        return Documents(tuple(_open_table(path, config, key) for path in paths), "rows")
    if any(is_table):
        table, plain = paths[is_table.index(True)], paths[is_table.index(False)]
        raise DataError(f"files read together must be of one kind, but {table.name} is a table and {plain.name} is not")
    is_auto = config.format == "lines" or tokenizer in ("words", *SEQUENCE_KINDS)
    is_lines = is_auto if documents == "auto" else documents == "lines"
    if not is_lines:
        return Documents(tuple(TextFile(path, config.encoding) for path in paths), "file")
    lines = config.changed(format="lines", columns=[], header=None)
    return Documents(tuple(_open_table(path, lines) for path in paths), "lines")


def _is_table(path: Path, config: DataConfig, *, reads_content: bool) -> bool:
    """Whether a file is a table: by the settings, by its name, or because it begins like JSON lines."""
    if config.format == "lines":
        return False
    if format_suffix(path).removeprefix(".") in TABLE_SUFFIXES:
        return True
    is_specified = bool(config.format or config.columns or config.header is not None)
    is_likely = is_specified or (reads_content and _begins_with_brace(path, config.encoding))
    return is_likely and _open_table(path, config).format != "lines"


def _begins_with_brace(path: Path, encoding: str | None) -> bool:
    with closing(iter_blocks(path, block_length=_FIRST_BLOCK, encoding=encoding)) as blocks:
        return next((block.lstrip().startswith("{") for block in blocks if not block.isspace()), False)


def _open_table(path: Path, config: DataConfig, key: str | None = None) -> Table:
    return open_table(
        path,
        columns=config.columns or None,
        format=config.format,
        roles=TEXT_ROLES,
        header=config.header,
        key=key,
        skip_bad=config.skip_bad,
        encoding=config.encoding,
    )


def _describe(documents: Documents, is_isolated: bool) -> str:
    if documents.form == "file" and len(documents.files) == 1:
        return f"read {documents.name} as {'an independent document' if is_isolated else 'contiguous text'}"
    how = {"file": "", "lines": " line by line", "rows": " row by row"}[documents.form]
    return f"read {documents.name}{how} as {'independent' if is_isolated else 'consecutive'} documents"


def prepare_text(source: TextSource, config: DataConfig, encoder: RowEncoder) -> Prepared[TokenStream]:
    """Split, tokenize and store running text, or find it in the cache."""
    if config.shots is not None:
        raise ConfigError(f"data.shots is for rows, and running text has none, got {config.shots}")
    key = {"documents": source.train.form, "isolate": source.is_isolated}

    def build(folder: Path) -> None:
        _build_text(folder, source, config, encoder)

    found = find_or_build(source, config, encoder, TokenStream, build, ["text"], key)
    return replace(found, is_isolated=source.is_isolated)


def _build_text(folder: Path, source: TextSource, config: DataConfig, encoder: RowEncoder) -> None:
    plan = split_text(
        source.train,
        config,
        is_isolated=source.is_isolated,
        has_valid=source.valid is not None,
        has_test=source.test is not None,
    )
    is_whole = encoder.tokenizer_kind in _TEXT_VOCABULARIES

    def sample() -> Iterator[Values]:
        return ((text,) for text in _training_texts(plan, is_whole=is_whole))

    codecs = encoder.fit_codecs(FitData(sample, sample, sample, plan.num_characters, _TEXT_VOCABULARIES))
    encoder = encoder.with_codecs(codecs)
    tokenizer = next(codec.tokenizer for codec in codecs.values() if isinstance(codec, TextCodec))
    folder.mkdir(parents=True)
    write_codecs(folder / "codecs", codecs)
    kept: dict[str, list[Piece]] = {"valid": [], "test": []}
    pieces = _route_pieces(progress_bar(plan.pieces(), "tokenizing"), kept)
    train = write_stream(folder / "train", pieces, tokenizer)
    for role, given in (("valid", source.valid), ("test", source.test)):
        kept[role] += given or ()
    documents = {role: list(join_pieces(some)) for role, some in kept.items()}
    held_out: HeldOut = {role: [(document,) for document in some] for role, some in documents.items()}
    valid = write_stream(folder / "valid", cut_documents(documents["valid"]), tokenizer)
    notes = [
        f"{format_count(plan.num_characters, 'character')} in {format_count(plan.num_documents, 'document')}: "
        f"{train.num_text_tokens:,} tokens for training, {valid.num_text_tokens:,} for validation, "
        f"{count_tokens(cut_documents(documents['test']), tokenizer):,} for the test",
        *plan.notes,
        *encoder.notes(),
    ]
    write_record(folder, notes, _text_warnings(source, held_out, plan), held_out)


def _route_pieces(pieces: Iterable[tuple[str, Piece]], kept: dict[str, list[Piece]]) -> Iterator[Piece]:
    """Yield the training pieces, and collect the others in `kept`."""
    for role, piece in pieces:
        if role == "train":
            yield piece
        elif role != "unused":
            kept[role].append(piece)


def _training_texts(plan: TextSplit, *, is_whole: bool) -> Iterator[str]:
    """The training text, or a random sample of its pieces."""
    share = 1.0 if is_whole else min(1.0, _SAMPLE_CHARACTERS / plan.num_characters)
    for number, piece in enumerate(plan.training_pieces()):
        if share == 1.0 or mix(number) < share * (1 << 64):
            yield piece.text


def _text_warnings(source: TextSource, held_out: HeldOut, plan: TextSplit) -> list[str]:
    texts = [texts for texts in (source.train, source.valid, source.test) if texts is not None]
    warnings = [f"skipped: {table.bad_rows}" for some in texts for table in some.tables if table.bad_rows.total]
    warnings += plan.warnings
    if not source.is_isolated:
        return warnings
    compared, is_compared = rows_to_compare(source, held_out, plan.rule)
    trained = ((document,) for document, key in source.train.entries() if is_compared((document,), key))
    return warnings + leak_warnings(trained, compared, "documents")
