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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from regard.data.codecs.codec import Codec, read_codecs, write_codecs
from regard.data.codecs.labels import LabelCodec, describe_unknown, format_frequencies
from regard.data.codecs.text import TextCodec
from regard.data.formats.messages import format_count
from regard.data.formats.tables import TableRow
from regard.data.settings import DataConfig
from regard.data.sources import Source
from regard.data.splits.by_hash import SplitEntry, SplitPlan, SplitRule, draw_shots, row_hash, sample_rows
from regard.data.splits.leaks import find_near_duplicates
from regard.data.splits.plan import plan_split
from regard.data.stores.arrays import token_dtype
from regard.data.stores.rows import TokenStore, write_store
from regard.errors import CheckpointError, ConfigError, DataError, DeviceError
from regard.logging import log_info, log_warning, progress_bar

_LAYOUT = 7
"""Part of the cache key: raised when the layout of the cache changes, or how a file is read."""
_KEPT_ROWS, _KEPT_CHARACTERS = 100_000, 1 << 26
"""Training rows that are kept as text, for baselines: at most these, chosen by a hash of the row."""
_ROWS_FILE = "train_rows.jsonl.gz"
_NO_LABEL = ("",)

Values = Sequence[str]
"""The cells of a row, in the order of the task's roles."""
HeldOut = dict[str, list[tuple[str, ...]]]
Store = TypeVar("Store")


@dataclass(frozen=True)
class Prepared(Generic[Store]):
    """Everything that training needs of the data.

    Rows are in a `TokenStore`, running text in a `TokenStream`; other kinds of data have stores of their own.
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
        """The labels of a row, where it has some."""
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
    whole_sample: Callable[[], Iterable[Values]]
    """About as many, with whole cells: half a molecule or conversation cannot be read."""
    num_characters: int
    complete_vocabularies: Mapping[str, int]
    """Default vocabulary sizes of tokenizers that cover all of the data."""


def prepare_rows(source: Source, config: DataConfig, encoder: RowEncoder) -> Prepared[TokenStore]:
    """Split, encode and store rows, or find them in the cache."""
    columns = [*source.train.roles, *encoder.store_columns]
    found = find_or_build(
        source, config, encoder, TokenStore, lambda folder: _build_rows(folder, source, config, encoder), columns
    )
    return replace(found, columns=source.train.columns if source.train.names else ())


def cache_folder() -> Path:
    """Where prepared data is kept: `$REGARD_CACHE`, or `regard` in the user's cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


class DataSource(Protocol):
    """What is prepared: the data of each split, opened."""

    @property
    def train(self) -> Any:
        """With the `paths` of its files, by whose size the needed space is estimated."""
        ...

    @property
    def inferred(self) -> list[str]:
        """What was inferred about the data, for the log."""
        ...

    @property
    def content_hash(self) -> Callable[[], str]:
        """A hash of the content of all splits."""
        ...


def find_or_build(
    source: DataSource,
    config: DataConfig,
    encoder: RowEncoder,
    store: Callable[[Path], Store],
    build: Callable[[Path], None],
    columns: Sequence[str],
    key: Mapping[str, Any] | None = None,
) -> Prepared[Store]:
    """What `build` writes, or has written before for the same content and settings.

    Args:
        source: The data.
        config: The data settings, which are part of the key of the cache.
        encoder: The task, whose `cache_key` is part of it too.
        store: Opens what is in the folder of a split.
        build: Writes the folders `codecs`, `train` and `valid`, and the record, by `write_record`.
        columns: What is stored.
        key: What else changes it.
    """
    for inferred in source.inferred:
        log_info(inferred)
    content = source.content_hash()
    settings = {
        **config.model_dump(exclude={"train", "valid", "test", "num_rows"}),
        **encoder.cache_key(),
        **(key or {}),
    }
    folder = cache_folder() / _cache_name(content, settings, columns)
    found = _read_cache(folder, store, encoder)
    if found is None:
        _require_space(folder, source.train.paths)
        _build_atomically(folder, lambda work: _build_unchanged(work, build, source, content))
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
        rows_path=folder / _ROWS_FILE if (folder / _ROWS_FILE).exists() else None,
    )


def _read_cache(
    folder: Path, store: Callable[[Path], Store], encoder: RowEncoder
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


def _build_unchanged(work: Path, build: Callable[[Path], None], source: DataSource, content: str) -> None:
    """Build, and raise if a file has changed since its hash was computed: what was read has another."""
    build(work)
    if source.content_hash() != content:
        names = ", ".join(Path(path).name for path in source.train.paths) or "the data"
        raise DataError(f"{names} changed while it was read: nothing was kept, try again when it is complete")


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
    share = _kept_share(plan.num_rows if kept is None else len(kept), plan.num_characters)

    def rows() -> Iterable[Values]:
        return kept if kept is not None else _route(source.train, plan, {"valid": [], "test": []})

    codecs = encoder.fit_codecs(
        FitData(
            rows=rows,
            sample=lambda: plan.sample if plan.sample is not None else sample_rows(_entries(source.train), plan.rule),
            whole_sample=lambda: (row for row in rows() if _is_kept(row, share)),
            num_characters=plan.num_characters,
            complete_vocabularies={"characters": 32_000},
        )
    )
    encoder = encoder.with_codecs(codecs)
    folder.mkdir(parents=True)
    write_codecs(folder / "codecs", codecs)
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
    write_record(folder, notes, warnings, held_out)


def _kept_share(num_rows: int, num_characters: int) -> float:
    return min(1.0, _KEPT_ROWS / max(1, num_rows), _KEPT_CHARACTERS / max(1, num_characters))


def _is_kept(row: Values, share: float) -> bool:
    return share == 1.0 or row_hash(row) < share * (1 << 64)


def _keep_rows(rows: Iterable[tuple[str, ...]], path: Path, share: float) -> Iterator[tuple[str, ...]]:
    """Yield the rows, and write a share of them to a file."""
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        for row in rows:
            if _is_kept(row, share):
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


def write_record(folder: Path, notes: list[str], warnings: list[str], held_out: HeldOut) -> None:
    """Write what is known of the data beside its stores: notes and warnings for the log, and the held-out rows."""
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
    compared, is_compared = rows_to_compare(source, held_out, plan.rule)
    trained = (row for row, key in _entries(source.train) if is_compared(row, key))
    return [
        *warnings,
        *plan.warnings,
        *label_warnings(encoder, held_out),
        *leak_warnings(trained, compared, "rows"),
    ]


def label_warnings(encoder: RowEncoder, held_out: HeldOut) -> list[str]:
    """Warnings about labels of held-out rows that no training row has."""
    codec = encoder.codecs.get("label")
    return unknown_label_warnings(codec.counts, held_out, encoder.labels_of) if isinstance(codec, LabelCodec) else []


def unknown_label_warnings(
    known: Container[str], held_out: HeldOut, labels_of: Callable[[Values], Sequence[str]], kind: str = "label"
) -> list[str]:
    """A warning about each held-out set with labels that are not among the `known` ones, those of training."""
    names = {"valid": "the validation set", "test": "the test set"}
    found = (describe_unknown(known, map(labels_of, held_out[role]), name, kind) for role, name in names.items())
    return [warning for warning in found if warning is not None]


def rows_to_compare(
    source: Any, held_out: HeldOut, rule: SplitRule | None
) -> tuple[HeldOut, Callable[[Values, str], bool]]:
    """The held-out rows that may be training rows too, and which rows of the training table to compare them with."""
    if rule is None:
        given = {role: held_out[role] for role in held_out if getattr(source, role) is not None}
        return given, lambda row, key: True
    return held_out, lambda row, key: rule.assign(row, key) == "train"


def leak_warnings(training_rows: Iterable[Values], held_out: HeldOut, unit: str) -> list[str]:
    """Warnings about held-out rows that are equal or nearly equal to training rows."""
    if not any(held_out.values()):
        return []
    return find_near_duplicates(progress_bar(training_rows, f"comparing {unit} across sets"), held_out).describe(unit)


def _cache_name(content: str, key: Mapping[str, Any], columns: Sequence[str]) -> str:
    text = json.dumps([_LAYOUT, content, list(columns), dict(key)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _require_space(folder: Path, paths: Iterable[Path]) -> None:
    """Two bytes a token, eight a row and the order of rows add up to about the size of the text."""
    needed = sum(path.stat().st_size for path in paths)
    existing = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DeviceError(
            f"not enough disk space at {existing}: about {needed / 2**20:,.0f} MiB are needed for token ids, "
            f"{free / 2**20:,.0f} MiB are free; the variable REGARD_CACHE names another folder"
        )
