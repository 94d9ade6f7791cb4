"""Splitting text: independent documents by hash, contiguous text by position.

Independent documents are assigned whole, by a hash of their content, as rows are. Contiguous text is split by
position: the beginning is for training, the next part for validation, the end for the test. Splitting it at random
would ask the model for passages between two others that it was trained on. A small number of documents is also split
by position, each document separately.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat

from regard.data.formats.messages import format_count
from regard.data.formats.plain_text import Documents, Piece, cut_documents, read_pieces
from regard.data.settings import DataConfig
from regard.data.splits.by_hash import SplitRule, default_share, held_out_shares
from regard.data.splits.plan import plan_split, split_settings
from regard.errors import ConfigError, DataError
from regard.logging import progress_bar

_SPLITS = ("train", "valid", "test")
_MIN_DOCUMENTS = 40
"""Of fewer documents a validation set of whole ones has at most four, which are too few to evaluate a model on."""
_MAX_HELD_OUT = 1_000_000
"""Default limit of the characters held out for each of validation and test."""

_Cuts = tuple[int, int, int]
"""The ends of the training, validation and test part; the last is the total length."""


@dataclass(frozen=True)
class TextSplit:
    """A text in which every piece is assigned to a split."""

    num_documents: int
    num_characters: int
    pieces: Callable[[], Iterator[tuple[str, Piece]]]
    """Read from the beginning: `train`, `valid`, `test` or `unused`, and the piece.

    If only a part of a document is in a split, the document ends there where the part does.
    """
    rule: SplitRule | None = None
    """The split of each document, if documents are assigned whole."""
    notes: list[str] = field(default_factory=list)
    """How documents were assigned, if not by their content."""
    warnings: list[str] = field(default_factory=list)

    def training_pieces(self) -> Iterator[Piece]:
        return (piece for split, piece in self.pieces() if split == "train")


def split_text(
    documents: Documents, config: DataConfig, *, is_isolated: bool, has_valid: bool, has_test: bool
) -> TextSplit:
    """Count the text and decide how it is split, in one pass and constant memory.

    Args:
        documents: The training text.
        config: The split settings.
        is_isolated: Whether documents are independent of each other.
        has_valid: Whether there is a separate validation text.
        has_test: Whether there is a separate test text.
    """
    if is_isolated and (has_valid or _has_many(documents)):
        return _by_content(documents, config, has_valid=has_valid, has_test=has_test)
    kind = "few documents" if is_isolated else "contiguous text"
    if (settings := split_settings(config)) is not None:
        raise ConfigError(
            f"{settings} applies to many independent documents, such as the rows of a table, got {kind}, which is "
            "split by position"
        )
    if config.train_rows is not None:
        raise ConfigError(f"data.train_rows applies to many independent documents, got {config.train_rows} for {kind}")
    return _by_position(documents, config, is_isolated=is_isolated, has_valid=has_valid, has_test=has_test)


def _has_many(documents: Documents) -> bool:
    if documents.form == "file":
        return len(documents.files) >= _MIN_DOCUMENTS
    return sum(1 for _ in islice(documents.documents(), _MIN_DOCUMENTS)) == _MIN_DOCUMENTS


def _by_content(documents: Documents, config: DataConfig, *, has_valid: bool, has_test: bool) -> TextSplit:
    column = documents.column
    if (settings := split_settings(config)) is not None and column is None and not (config.stratify or config.split):
        raise ConfigError(f"{settings} applies to documents that are rows of a table, got {documents.name}")
    texts = progress_bar(documents.entries(), f"reading {documents.name}")
    entries = (((document,), key) for document, key in texts)
    plan = plan_split(entries, config, has_valid=has_valid, has_test=has_test, column=column)
    if not has_valid and not plan.rule.has_validation:
        raise _nothing_held_out(config, plan.num_characters)
    pieces = partial(_assigned_whole, documents, plan.rule)
    return TextSplit(plan.num_rows, plan.num_characters, pieces, plan.rule, plan.notes, plan.warnings)


def _assigned_whole(documents: Documents, rule: SplitRule) -> Iterator[tuple[str, Piece]]:
    for document, key in documents.entries():
        yield from zip(repeat(rule.assign((document,), key)), cut_documents([document]), strict=False)


def _by_position(
    documents: Documents, config: DataConfig, *, is_isolated: bool, has_valid: bool, has_test: bool
) -> TextSplit:
    """Split whole files and few documents at characters, lines and rows of contiguous text between two of them."""
    cuts_documents = is_isolated or documents.form == "file"
    num_characters, of_documents, of_files = _lengths(documents, keeps_documents=cuts_documents)
    valid, test = held_out_shares(
        config, default_share(num_characters, most=_MAX_HELD_OUT), has_valid=has_valid, has_test=has_test
    )
    # The share as given, if there is one: 1 - 0.05 - 0.05 is slightly less than 0.9.
    train = config.splits[0] if config.splits and not (has_valid or has_test) else 1 - valid - test
    cuts = [cut_by_shares(length, train, valid, test) for length in (of_documents if cuts_documents else of_files)]
    if not any(train_end for train_end, _, _ in cuts):
        text = f"a text of {format_count(num_characters, 'character')}"
        raise DataError(f"{text} is too short for a training share of {train:g}: no character is left to train on")
    if not has_valid and all(train_end == valid_end for train_end, valid_end, _ in cuts):
        raise _nothing_held_out(config, num_characters)
    read = _cut_within_documents if cuts_documents else _cut_between_documents
    return TextSplit(sum(of_files), num_characters, partial(read, documents, cuts))


def cut_by_shares(length: int, train: float, valid: float, test: float) -> _Cuts:
    """Cut a length by shares; without a test share, the validation part extends to the end.

    >>> cut_by_shares(1_115_394, 0.9, 0.1, 0.0)
    (1003854, 1115394, 1115394)
    """
    return int(train * length), int((train + valid) * length) if test else length, length


def _lengths(documents: Documents, *, keeps_documents: bool) -> tuple[int, list[int], list[int]]:
    """The total number of characters, the characters of each document if needed, and the documents of each file."""
    num_characters, of_documents, of_files = 0, [0], [0] * len(documents.files)
    pieces = ((number, piece) for number, file in enumerate(documents.files) for piece in read_pieces(file))
    for number, (text, is_last) in progress_bar(pieces, f"reading {documents.name}"):
        num_characters += len(text)
        of_files[number] += is_last
        of_documents[-1] += len(text)
        if is_last and keeps_documents:
            of_documents.append(0)
    return num_characters, of_documents[:-1], of_files


def _cut_within_documents(documents: Documents, cuts: list[_Cuts]) -> Iterator[tuple[str, Piece]]:
    remaining = iter(cuts)
    position, ends = 0, None
    for text, is_last in documents:
        ends = ends or next(remaining)
        start = 0
        for split, end in zip(_SPLITS, ends, strict=True):
            part = text[start : max(0, end - position)]
            start += len(part)
            if part:
                yield split, Piece(part, is_last=position + start == end)
        position += len(text)
        if is_last:
            position, ends = 0, None


def _cut_between_documents(documents: Documents, cuts: list[_Cuts]) -> Iterator[tuple[str, Piece]]:
    for file, (train_end, valid_end, _) in zip(documents.files, cuts, strict=True):
        number = 0
        for piece in read_pieces(file):
            yield "train" if number < train_end else "valid" if number < valid_end else "test", piece
            number += piece.is_last


def _nothing_held_out(config: DataConfig, num_characters: int) -> DataError:
    if config.splits:
        return DataError(f"data.splits must leave text for validation, got {config.splits}")
    text = f"a text of {format_count(num_characters, 'character')}"
    return DataError(f"{text} is too short to hold out a part for validation: add text or a validation file")
