"""Prepared data: rows, running text, images or series, split, encoded and stored once for each content and setting.

The result is kept in a cache folder whose name is a hash of the content and of
the settings that change what is stored, so a second run on the same data starts
at once.
"""

import gzip
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.caption_sources import read_captions
from regard.data.codecs.codec import Codec, read_codecs, write_codecs
from regard.data.codecs.labels import LabelCodec, describe_unknown, format_frequencies
from regard.data.codecs.pixels import PixelCodec
from regard.data.codecs.series import SeriesCodec
from regard.data.codecs.text import TextCodec
from regard.data.formats.files import check_file
from regard.data.formats.images import LabeledImages, is_data_uri, read_image
from regard.data.formats.messages import format_count, format_names
from regard.data.formats.plain_text import Documents, Piece, cut_documents, join_pieces
from regard.data.formats.series import Clock, Series, SeriesTable, require_columns
from regard.data.formats.tables import Table, TableRow, rows_hash
from regard.data.image_sources import ImageSource
from regard.data.permutation import mix
from regard.data.series_sources import SeriesSource, SeriesSplit
from regard.data.settings import DataConfig
from regard.data.sources import Source
from regard.data.splits.by_hash import SplitEntry, SplitPlan, SplitRule, draw_shots, row_hash, sample_rows
from regard.data.splits.by_position import TextSplit, split_text
from regard.data.splits.leaks import find_near_duplicates
from regard.data.splits.plan import plan_split
from regard.data.stores.arrays import token_dtype
from regard.data.stores.captions import CaptionStore, write_captions
from regard.data.stores.images import ImageStore, write_images
from regard.data.stores.rows import TokenStore, write_store
from regard.data.stores.series import SeriesStore, write_series
from regard.data.stores.tokens import TokenStream, count_tokens, write_stream
from regard.data.text_sources import TextSource
from regard.errors import BadRowsError, CheckpointError, ConfigError, DataError, DeviceError
from regard.logging import log_info, log_warning, progress_bar
from regard.text.tokenizer import SPECIAL_TOKENS

_LAYOUT = 6
"""Part of the cache key: raised when the layout of the cache changes."""
_TEXT_VOCABULARIES = {
    "characters": sys.maxunicode,
    **dict.fromkeys(("words", "wordpunct"), 50_000 + len(SPECIAL_TOKENS)),
}
"""Default vocabulary sizes for running text of the tokenizers that cover all of it; others go by the amount of text."""
_SAMPLE_CHARACTERS = 1 << 26
"""Characters of running text that a tokenizer is trained on, where it need not see all of it."""
_KEPT_ROWS, _KEPT_CHARACTERS = 100_000, 1 << 26
"""Training rows that are kept as text, for baselines: at most these, chosen by a hash of the row."""
_ROWS_FILE = "train_rows.jsonl.gz"
_NO_LABEL = ("",)

Values = Sequence[str]
"""The cells of a row, in the order of the task's roles."""
HeldOut = dict[str, list[tuple[str, ...]]]
Store = TypeVar("Store", TokenStore, TokenStream, ImageStore, CaptionStore, SeriesStore)


@dataclass(frozen=True)
class Prepared(Generic[Store]):
    """Everything that training needs of the data.

    Rows are in a `TokenStore`, running text in a `TokenStream`, images in an `ImageStore` or
    with captions in a `CaptionStore`, series in a `SeriesStore`.
    """

    codecs: dict[str, Codec]
    train: Store
    valid: Store
    held_out: HeldOut
    """The validation and test rows as text; of running text the documents, or their parts."""
    content_hash: str
    notes: list[str]
    """What was inferred, left out, or found in two sets."""
    is_isolated: bool = False
    """Whether the documents of a stream are independent of each other, or one continues the next."""
    columns: tuple[str, ...] = ()
    """The columns of the training table for the roles of the task, where columns have names."""
    rows_path: Path | None = None
    """The file of the training rows as text; None for running text and images."""

    def train_rows(self) -> list[tuple[str, ...]]:
        """The training rows as text: all of them, or about 100,000 that a hash has chosen."""
        if self.rows_path is None:
            return []
        with gzip.open(self.rows_path, "rt", encoding="utf-8") as file:
            return [tuple(json.loads(line)) for line in file]


class RowEncoder(Protocol):
    """What `prepare` needs of a task: how codecs are fitted, and how rows are encoded with them."""

    @property
    def store_columns(self) -> tuple[str, ...]:
        """Names of the columns of the store."""
        ...

    @property
    def has_labels(self) -> bool:
        """Whether rows have labels, by which splits can be stratified and shots are drawn."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]: ...

    @property
    def tokenizer_kind(self) -> str:
        """The kind of tokenizer, or the path of one; empty where rows have no text."""
        ...

    @property
    def max_row_length(self) -> int | None:
        """Training rows with a longer column are left out; None for no limit."""
        ...

    def cache_key(self) -> Mapping[str, Any]:
        """The task settings that change what is stored."""
        ...

    def fitted_codec_types(self) -> Mapping[str, type[Codec]]:
        """The types of the codecs that `fit_codecs` returns."""
        ...

    def fit_codecs(self, data: "FitData") -> dict[str, Codec]:
        """Fit the codecs on training rows."""
        ...

    def with_codecs(self, codecs: Mapping[str, Codec]) -> "RowEncoder":
        """The same task with fitted codecs."""
        ...

    def encode_rows(self, rows: Sequence[Values]) -> list[list[list[int]]]:
        """For each column of the store, the ids of each row."""
        ...

    def labels_of(self, row: Values) -> Sequence[str]:
        """The labels of a row, where `has_labels`."""
        ...

    def notes(self) -> list[str]:
        """What the fitted codecs are, for the log."""
        ...


@dataclass(frozen=True)
class FitData:
    """Training rows as `RowEncoder.fit_codecs` needs them."""

    rows: Callable[[], Iterable[Values]]
    """Every training row; each call is a pass over the data."""
    sample: Callable[[], Iterable[Values]]
    """Training rows for tokenizers, at most 100,000, each cell cut to 1,000 characters; or running text in pieces."""
    num_characters: int
    complete_vocabularies: Mapping[str, int]
    """Default vocabulary sizes of tokenizers that cover all of the data."""


def prepare_rows(source: Source, config: DataConfig, encoder: RowEncoder) -> Prepared[TokenStore]:
    """Split, encode and store rows, or find them in the cache."""
    key = _data_key(config) | dict(encoder.cache_key())
    columns = [*source.train.roles, *encoder.store_columns]
    return _find_or_build(
        source, key, columns, TokenStore, encoder, lambda folder: _build_rows(folder, source, config, encoder)
    )


def prepare_text(source: TextSource, config: DataConfig, encoder: RowEncoder) -> Prepared[TokenStream]:
    """Split, tokenize and store running text, or find it in the cache."""
    if config.shots is not None:
        raise ConfigError(f"data.shots is for rows, and running text has none, got {config.shots}")
    key = _data_key(config) | dict(encoder.cache_key()) | {"documents": source.train.form}
    key["isolate"] = source.is_isolated
    return _find_or_build(
        source, key, ["text"], TokenStream, encoder, lambda folder: _build_text(folder, source, config, encoder)
    )


def prepare_images(source: ImageSource, config: DataConfig, encoder: RowEncoder) -> Prepared[ImageStore]:
    """Split, decode and store images, or find them in the cache.

    The split is by a hash of the content: two copies of an image are in the same set.
    """
    sets = [some.rows for some in (source.train, source.valid, source.test) if some is not None]
    # Held-out images are kept by their paths, so the content alone does not identify what is stored.
    key = _data_key(config) | dict(encoder.cache_key()) | {"paths": rows_hash(row for rows in sets for row in rows)}
    if source.train.keys is not None:
        key["keys"] = rows_hash([source.train.keys])
    return _find_or_build(
        source,
        key,
        ["image", "label"],
        ImageStore,
        encoder,
        lambda folder: _build_images(folder, source, config, encoder, _write_labeled),
    )


def prepare_captions(source: ImageSource, config: DataConfig, encoder: RowEncoder) -> Prepared[CaptionStore]:
    """Split, decode and store images and the ids of their captions, or find them in the cache."""
    sets = [some.rows for some in (source.train, source.valid, source.test) if some is not None]
    key = _data_key(config) | dict(encoder.cache_key()) | {"paths": rows_hash(row for rows in sets for row in rows)}
    key |= {} if source.train.keys is None else {"keys": rows_hash([source.train.keys])}

    def build(folder: Path) -> None:
        _build_images(folder, source, config, encoder, _write_captioned)

    return _find_or_build(source, key, ["image", "caption"], CaptionStore, encoder, build)


def prepare_series(
    source: SeriesSource, config: DataConfig, encoder: RowEncoder, split: SeriesSplit
) -> Prepared[SeriesStore]:
    """Split, standardize and store series, or find them in the cache."""
    key = _data_key(config) | dict(encoder.cache_key()) | {"split": asdict(split)}
    return _find_or_build(
        source,
        key,
        source.train.columns,
        SeriesStore,
        encoder,
        lambda folder: _build_series(folder, source, encoder, split),
    )


def cache_folder() -> Path:
    """Where prepared data is kept: `$REGARD_CACHE`, or `regard` in the user's cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def _find_or_build(
    source: Source | TextSource | ImageSource | SeriesSource,
    key: Mapping[str, Any],
    columns: Sequence[str],
    store: type[Store],
    encoder: RowEncoder,
    build: Callable[[Path], None],
) -> Prepared[Store]:
    for inferred in source.inferred:
        log_info(inferred)
    content = source.content_hash()
    folder = cache_folder() / _cache_name(content, key, columns)
    found = _read_cache(folder, store, encoder)
    if found is None:
        _require_space(folder, source.train)
        _build_atomically(folder, build)
        found = _read_cache(folder, store, encoder)
    if found is None:
        raise DeviceError(f"what was written to {folder} cannot be read back")
    codecs, train, valid, record = found
    for note in record["notes"]:
        log_info(note)
    for warning in record["warnings"]:
        log_warning(warning)
    return Prepared(
        codecs=codecs,
        train=train,
        valid=valid,
        held_out={role: [tuple(row) for row in rows] for role, rows in record["held_out"].items()},
        content_hash=content,
        notes=[*source.inferred, *record["notes"], *record["warnings"]],
        is_isolated=isinstance(source, TextSource) and source.is_isolated,
        rows_path=folder / _ROWS_FILE if isinstance(source, Source) else None,
        columns=source.train.columns if isinstance(source, Source) and source.train.names else (),
    )


def _read_cache(
    folder: Path, store: type[Store], encoder: RowEncoder
) -> tuple[dict[str, Codec], Store, Store, dict[str, Any]] | None:
    """The content of a cache folder; None if there is none, or if it was damaged and is now removed."""
    if not folder.exists():
        return None
    try:
        record = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
        codecs = read_codecs(folder / "codecs", encoder.fitted_codec_types())
        return codecs, store(folder / "train"), store(folder / "valid"), record
    except (OSError, ValueError, CheckpointError):  # ValueError: invalid JSON and incomplete stores
        log_warning(f"the prepared data in {folder} is damaged: it is prepared again")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _build_atomically(folder: Path, build: Callable[[Path], None]) -> None:
    """Build under a temporary name and rename, so that two processes may build the same folder."""
    work = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(work, ignore_errors=True)
        build(work)
        try:
            os.replace(work, folder)
        except OSError:
            if not folder.exists():  # otherwise another process was first, and built the same
                raise
    except OSError as error:
        raise DeviceError(
            f"cannot write token ids to {folder}: {error.strerror or error}; nothing was kept, "
            "and the variable REGARD_CACHE names another folder"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build_rows(folder: Path, source: Source, config: DataConfig, encoder: RowEncoder) -> None:
    plan = plan_split(
        _entries(progress_bar(source.train, f"reading {source.train.name}")),
        config,
        has_valid=source.valid is not None,
        has_test=source.test is not None,
        column=source.train.key,
        label_of=_stratum_of(encoder),
    )
    held_out: HeldOut = {"valid": [], "test": []}
    training_rows: Iterable[tuple[str, ...]] = _route(
        progress_bar(source.train, "encoding rows", total=plan.num_rows), plan, held_out
    )
    drawn: list[str] = []
    if config.shots is not None:
        training_rows, drawn = _draw_shots(training_rows, config, encoder)
        num_characters = sum(len(text) for row in training_rows for text in row)
        plan = replace(plan, sample=training_rows, num_characters=num_characters)
    kept = training_rows if isinstance(training_rows, list) else None
    codecs = encoder.fit_codecs(
        FitData(
            rows=lambda: kept if kept is not None else _route(source.train, plan, {"valid": [], "test": []}),
            sample=lambda: plan.sample if plan.sample is not None else sample_rows(_entries(source.train), plan.rule),
            num_characters=plan.num_characters,
            complete_vocabularies={"characters": 32_000},
        )
    )
    encoder = encoder.with_codecs(codecs)
    folder.mkdir(parents=True)
    write_codecs(folder / "codecs", codecs)
    share = _kept_share(plan.num_rows if kept is None else len(kept), plan.num_characters)
    training_rows = _keep_rows(training_rows, folder / _ROWS_FILE, share)
    train = _write_store(folder / "train", training_rows, encoder, encoder.max_row_length)
    for role, table in (("valid", source.valid), ("test", source.test)):
        if table is not None:
            held_out[role] = [row.values for row in table]
    if not held_out["valid"]:
        raise DataError(f"there are no validation rows: data.splits must have a share for them, got {config.splits}")
    # Held-out rows are all kept, however long: leaving the hard ones out would raise the score.
    _write_store(folder / "valid", held_out["valid"], encoder, None)
    notes = [
        f"{plan.num_rows:,} rows: {len(train):,} for training, {len(held_out['valid']):,} for validation, "
        f"{len(held_out['test']):,} for the test",
        *plan.notes,
        *drawn,
        *encoder.notes(),
    ]
    warnings = _row_warnings(source, train, held_out, encoder, plan)
    _write_record(folder, notes, warnings, held_out)


def _kept_share(num_rows: int, num_characters: int) -> float:
    return min(1.0, _KEPT_ROWS / max(1, num_rows), _KEPT_CHARACTERS / max(1, num_characters))


def _keep_rows(rows: Iterable[tuple[str, ...]], path: Path, share: float) -> Iterator[tuple[str, ...]]:
    """Yield the rows, and write a share of them to a file."""
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        for row in rows:
            if share == 1.0 or row_hash(row) < share * (1 << 64):
                file.write(json.dumps(row) + "\n")
            yield row


def _write_store(
    folder: Path, rows: Iterable[tuple[str, ...]], encoder: RowEncoder, max_length: int | None
) -> TokenStore:
    sizes = [codec.tokenizer.vocab_size for codec in encoder.codecs.values() if isinstance(codec, TextCodec)]
    return write_store(
        folder,
        rows,
        encoder.encode_rows,
        columns=encoder.store_columns,
        dtype=token_dtype(max(sizes, default=0)),
        max_length=sys.maxsize if max_length is None else max_length,
    )


def _stratum_of(encoder: RowEncoder) -> Callable[[Values], str] | None:
    """The label of a row by which splits are stratified; None where rows have none."""

    def label_of(row: Values) -> str:
        labels = encoder.labels_of(row)
        if len(labels) != 1:
            raise ConfigError(f"data.stratify is for rows with one label each, got {len(labels)} in {row[-1]!r}")
        return labels[0]

    return label_of if encoder.has_labels else None


def _draw_shots(
    rows: Iterable[tuple[str, ...]], config: DataConfig, encoder: RowEncoder
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of a few-shot run, and a note on them."""
    assert config.shots is not None
    has_labels = encoder.has_labels
    labels_of = encoder.labels_of if has_labels else lambda row: _NO_LABEL
    drawn = draw_shots(rows, config.shots, config.shot_seed, labels_of)
    counts = Counter(label for row in drawn for label in labels_of(row))
    most = max(counts.values(), default=0)
    if most < config.shots:
        which = "of the most frequent label" if has_labels else "there are"
        raise DataError(f"data.shots must be at most the {most:,} training rows {which}, got {config.shots:,}")
    rare = {label: count for label, count in counts.items() if count < config.shots}
    kind = f"{format_count(config.shots, 'row')} of each label" if has_labels else format_count(config.shots, "row")
    fewer = f"; all rows of {format_frequencies(rare)}" if rare else ""
    return drawn, [f"shot seed {config.shot_seed}: {kind}{fewer}"]


def _entries(rows: Iterable[TableRow]) -> Iterator[SplitEntry]:
    return ((row.values, row.split_key) for row in rows)


def _route(table: Iterable[TableRow], plan: SplitPlan, held_out: HeldOut) -> Iterator[tuple[str, ...]]:
    """Yield the training rows, and collect the others in `held_out`."""
    for row in table:
        role = plan.rule.assign(row.values, row.split_key)
        if role == "train":
            yield row.values
        elif role != "unused":
            held_out[role].append(row.values)


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

    codecs = encoder.fit_codecs(FitData(sample, sample, plan.num_characters, _TEXT_VOCABULARIES))
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
    _write_record(folder, notes, _text_warnings(source, held_out, plan), held_out)


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


def _build_images(
    folder: Path, source: ImageSource, config: DataConfig, encoder: RowEncoder, write: "_ImageWriter"
) -> None:
    rows = [(key, *row) for key, row in zip(source.train.hashes, source.train.rows, strict=True)]
    entries = list(zip(rows, source.train.keys or source.train.hashes, strict=True))
    plan = plan_split(
        entries,
        config,
        has_valid=source.valid is not None,
        has_test=source.test is not None,
        column=source.train.column,
        label_of=lambda row: row[-1],
    )
    by_role: dict[str, list[Values]] = {"train": [], "valid": [], "test": [], "unused": []}
    for row, key in entries:
        by_role[plan.rule.assign(row, key)].append(row)
    if config.shots is not None:
        by_role["train"] = list(draw_shots(by_role["train"], config.shots, config.shot_seed, lambda row: row[-1:]))
    for role, some in (("valid", source.valid), ("test", source.test)):
        if some is not None:
            by_role[role] = [(key, *row) for key, row in zip(some.hashes, some.rows, strict=True)]
    if not by_role["valid"]:
        raise DataError(f"there are no validation images: data.splits must have a share for them, got {config.splits}")
    folder.mkdir(parents=True)
    training = [row[1:] for row in by_role["train"]]
    codecs = encoder.fit_codecs(FitData(lambda: training, lambda: training, 0, {}))
    write_codecs(folder / "codecs", codecs)
    faults: list[str] = []
    kept = {role: _write_images(folder / role, by_role[role], codecs, faults, write) for role in ("train", "valid")}
    by_role["test"] = _present(by_role["test"], faults)
    total = sum(len(some.rows) for some in (source.train, source.valid, source.test) if some is not None)
    if faults and not config.skip_bad:
        raise BadRowsError(_describe_faults(faults, total))
    held_out: HeldOut = {"valid": [tuple(row[1:]) for row in kept["valid"]],
                         "test": [tuple(row[1:]) for row in by_role["test"]]}  # fmt: skip
    notes = [
        f"{format_count(sum(map(len, by_role.values())), 'image')}: {len(kept['train']):,} for training, "
        f"{len(held_out['valid']):,} for validation, {len(held_out['test']):,} for the test",
        *plan.notes,
        *encoder.with_codecs(codecs).notes(),
    ]
    warnings = [f"skipped: {_describe_faults(faults, total)}"] if faults else []
    warnings += [*plan.warnings, *_image_leaks(by_role), *_unknown_labels(codecs, held_out)]
    _write_record(folder, notes, warnings, held_out)


_ImageWriter = Callable[[Path, Iterator[tuple[NDArray[np.uint8], str]], tuple[int, int, int], Mapping[str, Codec]], Any]
"""Writes images of a shape, each with its label or captions, to a store."""


def _write_labeled(
    folder: Path, images: Iterator[tuple[NDArray[np.uint8], str]], shape: tuple[int, int, int], codecs: Any
) -> None:
    write_images(folder, ((pixels, codecs["label"].encode([label])[0][0]) for pixels, label in images), shape)


def _write_captioned(
    folder: Path, images: Iterator[tuple[NDArray[np.uint8], str]], shape: tuple[int, int, int], codecs: Any
) -> None:
    tokenizer = codecs["caption"].tokenizer
    captioned = ((pixels, [each.text for each in read_captions(text)]) for pixels, text in images)
    write_captions(folder, captioned, shape, encode=tokenizer.encode, vocab_size=tokenizer.vocab_size)


def _present(rows: list[Values], faults: list[str]) -> list[Values]:
    """The rows whose image is a file or a data URI; errors are added to `faults`."""
    kept: list[Values] = []
    for row in rows:
        try:
            if not is_data_uri(row[1]):
                check_file(row[1])
            kept.append(row)
        except DataError as error:
            faults.append(str(error))
    return kept


def _write_images(
    folder: Path, rows: Sequence[Values], codecs: Mapping[str, Codec], faults: list[str], write: _ImageWriter
) -> list[Values]:
    """Store the images that can be read, and return their rows; errors are added to `faults`."""
    pixel_codec = codecs["image"]
    assert isinstance(pixel_codec, PixelCodec)
    kept: list[Values] = []

    def readable() -> Iterator[tuple[NDArray[np.uint8], str]]:
        for row in progress_bar(rows, "decoding images", total=len(rows)):
            _, path, label = row
            try:
                pixels = read_image(path, pixel_codec.image)
            except DataError as error:
                faults.append(str(error))
                continue
            kept.append(row)
            yield pixels, label

    image = pixel_codec.image
    write(folder, readable(), (image.channels, image.size, image.size), codecs)
    if not kept:
        raise DataError(f"none of the {format_count(len(rows), 'image')} can be read: {faults[0]}")
    return kept


def _describe_faults(faults: list[str], total: int) -> str:
    more = f", and {len(faults) - 1:,} more" if len(faults) > 1 else ""
    return f"{len(faults):,} of {format_count(total, 'image')} cannot be read: {faults[0]}{more}"


def _image_leaks(by_role: dict[str, list[Values]]) -> list[str]:
    """Held-out images that are training images too; a split by content has none, given files may."""
    seen = {row[0] for row in by_role["train"]}
    counts = {role: sum(row[0] in seen for row in by_role[role]) for role in ("valid", "test")}
    return [
        f"{count:,} of the {len(by_role[role]):,} {role} images are training images too: scores on them are too high"
        for role, count in counts.items()
        if count
    ]


def _build_series(folder: Path, source: SeriesSource, encoder: RowEncoder, split: SeriesSplit) -> None:
    table = source.train
    codec = SeriesCodec.fit(
        table, end=split.train_end, input_length=split.input_length, horizon=split.horizon, start=split.train_start
    )
    before = split.input_length
    parts = {
        "train": _parts(table.series, table.clock, split.train_start, split.train_end),
        "valid": _parts(table.series, table.clock, split.train_end - before, split.valid_end),
        "test": _parts(table.series, table.clock, split.valid_end - before, split.test_end),
    }
    ends = {"valid": split.train_end, "test": split.valid_end}
    for role, given in (("valid", source.valid), ("test", source.test)):
        if given is not None:
            own = require_columns(given, table.columns, role)
            parts[role], ends[role] = _parts(own.series, own.clock, 0, given.num_steps), 0
    sizes = {"train": split.train_end - split.train_start, "valid": split.valid_end - split.train_end,
             "test": split.test_end - split.valid_end}  # fmt: skip
    usable = {role: [each for each in some if len(each.values) >= split.window] for role, some in parts.items()}
    warnings = []
    for role, some in usable.items():
        if short := len(parts[role]) - len(some) if sizes[role] or role not in ends else 0:
            names = format_names([each.name for each in parts[role] if len(each.values) < split.window])
            warnings.append(
                f"{short:,} of {len(parts[role]):,} series have fewer than {split.window:,} steps up to the end of the "
                f"{_PARTS[role]} part, and are left out of it: {names}"
            )
    if not usable["valid"]:
        raise DataError(
            f"the validation part has {max(0, sizes['valid']):,} steps, fewer than the horizon of {split.horizon:,}: "
            "a smaller task.horizon, or other data.splits"
        )
    folder.mkdir(parents=True)
    write_codecs(folder / "codecs", {"values": codec})
    for role in ("train", "valid"):
        write_series(
            folder / role, map(codec.segment, usable[role]), len(table.columns), codec.num_features(has_calendar=True)
        )  # fmt: skip
    held_out: HeldOut = {role: [(each.name, each.first, codec.text(each)) for each in usable[role]] for role in ends}
    notes = [
        f"{format_count(table.num_steps, 'step')}, split by time: {sizes['train']:,} for training, "
        f"{sizes['valid']:,} for validation, {sizes['test']:,} for the test",
        *encoder.with_codecs({"values": codec}).notes(),
    ]
    _write_record(folder, notes, warnings, held_out)


_PARTS = {"train": "training", "valid": "validation", "test": "test"}


def _parts(series: Sequence[Series], clock: Clock, start: int, end: int) -> list[Series]:
    """The steps from `start` to `end` of each series that has some."""
    found = []
    for each in series:
        first, last = max(0, start - each.start), max(0, end - each.start)
        if len(each.values[first:last]):
            found.append(each.part(first, last, clock))
    return found


def _write_record(folder: Path, notes: list[str], warnings: list[str], held_out: HeldOut) -> None:
    record = {"notes": notes, "warnings": warnings, "held_out": held_out}
    (folder / "prepared.json").write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")


def _row_warnings(
    source: Source, train: TokenStore, held_out: HeldOut, encoder: RowEncoder, plan: SplitPlan
) -> list[str]:
    tables = [table for table in (source.train, source.valid, source.test) if table is not None]
    warnings = [f"skipped: {table.bad_rows}" for table in tables if table.bad_rows.total]
    if train.num_left_out:
        warnings.append(
            f"left out of training: {train.num_left_out:,} rows with more than {encoder.max_row_length} tokens a side"
        )
    compared, is_compared = _to_compare(source, held_out, plan.rule)
    trained = (row for row, key in _entries(source.train) if is_compared(row, key))
    return [*warnings, *plan.warnings, *_unknown_labels(encoder.codecs, held_out), *_leaks(trained, compared, "rows")]


def _unknown_labels(codecs: Mapping[str, Codec], held_out: HeldOut) -> list[str]:
    codec = codecs.get("label")
    if not isinstance(codec, LabelCodec):
        return []
    return unknown_label_warnings(codec.counts, held_out, lambda row: codec.split(row[-1]))


def unknown_label_warnings(
    known: Container[str], held_out: HeldOut, labels_of: Callable[[Values], Sequence[str]], kind: str = "label"
) -> list[str]:
    """A warning about each held-out set with labels that are not among the `known` ones, those of training."""
    names = {"valid": "the validation set", "test": "the test set"}
    found = (describe_unknown(known, map(labels_of, held_out[role]), name, kind) for role, name in names.items())
    return [warning for warning in found if warning is not None]


def _text_warnings(source: TextSource, held_out: HeldOut, plan: TextSplit) -> list[str]:
    texts = [texts for texts in (source.train, source.valid, source.test) if texts is not None]
    warnings = [f"skipped: {table.bad_rows}" for some in texts for table in some.tables if table.bad_rows.total]
    warnings += plan.warnings
    if not source.is_isolated:
        return warnings
    compared, is_compared = _to_compare(source, held_out, plan.rule)
    trained = ((document,) for document, key in source.train.entries() if is_compared((document,), key))
    return warnings + _leaks(trained, compared, "documents")


def _to_compare(
    source: Source | TextSource, held_out: HeldOut, rule: SplitRule | None
) -> tuple[HeldOut, Callable[[Values, str], bool]]:
    """The held-out rows that may be training rows too, and which rows of the training table to compare them with."""
    if rule is None:
        given = {role: held_out[role] for role in held_out if getattr(source, role) is not None}
        return given, lambda row, key: True
    return held_out, lambda row, key: rule.assign(row, key) == "train"


def _leaks(training_rows: Iterable[Values], held_out: HeldOut, unit: str) -> list[str]:
    """Warnings about held-out rows that are equal or nearly equal to training rows."""
    if not any(held_out.values()):
        return []
    return find_near_duplicates(progress_bar(training_rows, f"comparing {unit} across sets"), held_out).describe(unit)


def _data_key(config: DataConfig) -> dict[str, Any]:
    """The data settings that change what is stored."""
    return config.model_dump(exclude={"train", "valid", "test", "num_rows"})


def _cache_name(content: str, key: Mapping[str, Any], columns: Sequence[str]) -> str:
    text = json.dumps([_LAYOUT, content, list(columns), dict(key)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _require_space(folder: Path, table: Table | Documents | LabeledImages | SeriesTable) -> None:
    """Two bytes a token, eight a row and the order of rows add up to about the size of the text."""
    needed = sum(path.stat().st_size for path in table.paths)
    existing = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DeviceError(
            f"not enough disk space at {existing}: about {needed / 2**20:,.0f} MiB are needed for token ids, "
            f"{free / 2**20:,.0f} MiB are free; the variable REGARD_CACHE names another folder"
        )
