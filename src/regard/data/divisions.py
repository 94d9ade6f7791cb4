"""Which part of a text is for training, which for validation and which for the test.

Documents that have nothing to do with one another are dealt out whole, by a hash of
their content, as rows are. A text that runs on is divided by position: what comes
first is for training, then comes validation, then the test. Its parts must not be
dealt out at random, or the model would be asked what stands between two passages
it has read. Few documents are divided by position, too, each of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat

from regard.data.columns import count_of
from regard.data.config import DataConfig
from regard.data.documents import Piece, Texts, TextSource, as_pieces, pieces_of
from regard.data.splits import Split, default_share, held_out_shares
from regard.data.surveys import survey, way_of
from regard.errors import ConfigError, DataError
from regard.logging import progress_bar

_SETS = ("train", "valid", "test")
_FEWEST_TO_DEAL_OUT = 40
"""Of fewer documents a twentieth is at most one, by which nothing can be judged."""
_MOST_CHARACTERS = 1_000_000
"""Running text to hold back for each of validation and test, where nobody says."""

Cuts = tuple[int, int, int]
"""Where the training, the validation and the test part of something end, the last being its length."""


@dataclass(frozen=True)
class Division:
    """A text with the set that each piece of it is for."""

    num_documents: int
    num_characters: int
    pieces: Callable[[], Iterator[tuple[str, Piece]]]
    """Start reading from the beginning: `train`, `valid`, `test` or `unused`, and the piece.

    A document of which only a part is in a set ends in that set where the part does.
    """
    split: Split | None = None
    """Where documents are dealt out whole, the set that each belongs to."""
    notes: list[str] = field(default_factory=list)
    """How they were dealt out, where that is not by their content."""
    warnings: list[str] = field(default_factory=list)
    """What could not be done."""

    def training_pieces(self) -> Iterator[Piece]:
        return (piece for role, piece in self.pieces() if role == "train")


def divide(source: TextSource, config: DataConfig) -> Division:
    """Count what there is and decide how it is divided, in a pass over the text and constant memory."""
    if source.is_isolated and (source.valid is not None or _are_many(source.train)):
        return _by_content(source, config)
    if (way := way_of(config)) is not None:
        kind = "few documents" if source.is_isolated else "a text that runs on"
        raise ConfigError(
            f"{way} is for many documents by themselves, such as the rows of a table, got {kind}: it is divided by "
            "position, what comes first being for training"
        )
    if config.train_rows is not None:
        kind = "few documents" if source.is_isolated else "a text that runs on"
        raise ConfigError(f"data.train_rows chooses among many documents, got {config.train_rows} for {kind}")
    return _by_position(source, config)


def _are_many(texts: Texts) -> bool:
    if texts.form == "file":
        return len(texts.volumes) >= _FEWEST_TO_DEAL_OUT
    return sum(1 for _ in islice(texts.documents(), _FEWEST_TO_DEAL_OUT)) == _FEWEST_TO_DEAL_OUT


def _by_content(source: TextSource, config: DataConfig) -> Division:
    column = source.train.column
    if (way := way_of(config)) is not None and column is None and not config.stratify:
        raise ConfigError(f"{way} is for documents that are rows of a table, got {source.train.name}")
    texts = progress_bar(source.train.entries(), f"reading {source.train.name}")
    found = survey(
        (((document,), key) for document, key in texts),
        config,
        has_valid=source.valid is not None,
        has_test=source.test is not None,
        column=column,
    )
    if source.valid is None and not found.split.holds_back:
        raise _nothing_held_back(config, found.num_characters)
    pieces = partial(_dealt_out, source.train, found.split)
    return Division(found.num_rows, found.num_characters, pieces, found.split, found.notes, found.warnings)


def _dealt_out(texts: Texts, split: Split) -> Iterator[tuple[str, Piece]]:
    for document, key in texts.entries():
        yield from zip(repeat(split.role((document,), key)), as_pieces([document]), strict=False)


def _by_position(source: TextSource, config: DataConfig) -> Division:
    """Cut files and few documents by characters, but what falls into lines or rows between two of them."""
    texts = source.train
    cuts_documents = source.is_isolated or texts.form == "file"
    num_characters, documents, volumes = _lengths(texts, keeps_documents=cuts_documents)
    lengths = documents if cuts_documents else volumes
    shares = _shares(source, config, num_characters)
    cuts = [cut(length, *shares) for length in lengths]
    if not any(first for first, _, _ in cuts):
        what = f"a text of {count_of(num_characters, 'character')}"
        raise DataError(f"{what} is too short to leave any of it to train on: the share of it is {shares[0]:g}")
    if source.valid is None and all(first == second for first, second, _ in cuts):
        raise _nothing_held_back(config, num_characters)
    read = _cut_within_documents if cuts_documents else _cut_between_documents
    return Division(sum(volumes), num_characters, partial(read, texts, cuts))


def cut(length: int, train: float, valid: float, test: float) -> Cuts:
    """Cut a length by shares; where there is no test part, validation has all the rest.

    >>> cut(1_115_394, 0.9, 0.1, 0.0)
    (1003854, 1115394, 1115394)
    """
    return int(train * length), int((train + valid) * length) if test else length, length


def _lengths(texts: Texts, *, keeps_documents: bool) -> tuple[int, list[int], list[int]]:
    """Characters in all, characters of each document if wanted, and documents of each volume."""
    num_characters, documents, volumes = 0, [0], [0] * len(texts.volumes)
    pieces = ((number, piece) for number, volume in enumerate(texts.volumes) for piece in pieces_of(volume))
    for number, (text, is_last) in progress_bar(pieces, f"reading {texts.name}"):
        num_characters += len(text)
        volumes[number] += is_last
        documents[-1] += len(text)
        if is_last and keeps_documents:
            documents.append(0)
    return num_characters, documents[:-1], volumes


def _shares(source: TextSource, config: DataConfig, num_characters: int) -> tuple[float, float, float]:
    has_valid, has_test = source.valid is not None, source.test is not None
    default = default_share(num_characters, most=_MOST_CHARACTERS)
    valid, test = held_out_shares(config, default, has_valid=has_valid, has_test=has_test)
    # The share as it was given: 1 - 0.05 - 0.05 is a little less than 0.9.
    train = config.splits[0] if config.splits and not (has_valid or has_test) else 1 - valid - test
    return train, valid, test


def _cut_within_documents(texts: Texts, cuts: list[Cuts]) -> Iterator[tuple[str, Piece]]:
    remaining = iter(cuts)
    place, ends = 0, None
    for text, is_last in texts:
        ends = ends or next(remaining)
        start = 0
        for role, end in zip(_SETS, ends, strict=True):
            part = text[start : max(0, end - place)]
            start += len(part)
            if part:
                yield role, Piece(part, is_last=place + start == end)
        place += len(text)
        if is_last:
            place, ends = 0, None


def _cut_between_documents(texts: Texts, cuts: list[Cuts]) -> Iterator[tuple[str, Piece]]:
    for volume, (first, second, _) in zip(texts.volumes, cuts, strict=True):
        number = 0
        for piece in pieces_of(volume):
            yield "train" if number < first else "valid" if number < second else "test", piece
            number += piece.is_last


def _nothing_held_back(config: DataConfig, num_characters: int) -> DataError:
    if config.splits:
        return DataError(f"no text was held back for validation: data.splits must leave some, got {config.splits}")
    what = f"a text of {count_of(num_characters, 'character')}"
    return DataError(f"{what} is too short to hold any of it back for validation: give more, or a file for it")
