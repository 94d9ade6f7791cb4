"""From rows of text to token ids on disk, once for each content and setting.

The result lies in a cache folder keyed by the hash of the content and of the
settings that matter, so a second run on the same data starts at once.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from regard.data.config import DataConfig
from regard.data.sources import Source, usual_tokenizer
from regard.data.splits import Survey, row_hash, survey
from regard.data.store import TokenStore, write_store
from regard.data.tables import Table
from regard.errors import DataError, DeviceError
from regard.progress import say, track, warn
from regard.text.tokenizer import Tokenizer, TokenizerKind, load_tokenizer, train_tokenizer

_LAYOUT = 2
"""Changes when what lies in the cache changes its form."""
_CHARACTERS_PER_TOKEN_KIND, _FEWEST_TOKENS, _MOST_TOKENS = 400, 512, 32_000

HeldOut = dict[str, list[tuple[str, ...]]]


@dataclass(frozen=True)
class Prepared:
    """Everything a training loop needs of the data."""

    tokenizer: Tokenizer
    train: TokenStore
    valid: TokenStore
    held_out: HeldOut
    """The rows of the validation and of the test set, as text."""
    content_hash: str
    notes: list[str]
    """What was guessed, left out, or found in two sets."""


def prepare(source: Source, config: DataConfig, roles: Sequence[str]) -> Prepared:
    """Split, tokenize and store, or find that this was done before."""
    config = config.changed(tokenizer=usual_tokenizer(config))
    for guess in source.guesses:
        say(guess)
    content = source.content_hash()
    folder = cache_folder() / _key(content, config, roles)
    found = _read(folder)
    if found is None:
        _require_space(folder, source.train)
        _build_whole(folder, source, config, roles)
        found = _read(folder)
    if found is None:
        raise DeviceError(f"what was written to {folder} cannot be read back")
    tokenizer, train, valid, record = found
    for note in record["notes"]:
        say(note)
    for warning in record["warnings"]:
        warn(warning)
    return Prepared(
        tokenizer=tokenizer,
        train=train,
        valid=valid,
        held_out={role: [tuple(row) for row in rows] for role, rows in record["held_out"].items()},
        content_hash=content,
        notes=[*source.guesses, *record["notes"], *record["warnings"]],
    )


def cache_folder() -> Path:
    """Where prepared data is kept: `$REGARD_CACHE`, or `regard` in the user's cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def _read(folder: Path) -> tuple[Tokenizer, TokenStore, TokenStore, dict[str, Any]] | None:
    """What lies in the cache, or None if there is nothing, or if what there is was damaged and is now removed."""
    if not folder.exists():
        return None
    try:
        record = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        return tokenizer, TokenStore(folder / "train"), TokenStore(folder / "valid"), record
    except (OSError, ValueError):  # among the latter, JSON that is none and a store that is not whole
        warn(f"the prepared data in {folder} is damaged: it is prepared anew")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _build_whole(folder: Path, source: Source, config: DataConfig, roles: Sequence[str]) -> None:
    """Build under another name and rename, so that what is there is whole, also with two at work at once."""
    work = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(work, ignore_errors=True)
        _build(work, source, config, roles)
        try:
            os.replace(work, folder)
        except OSError:
            if not folder.exists():  # or else another run was first, and built the same
                raise
    except OSError as error:
        raise DeviceError(
            f"cannot write token ids to {folder}: {error.strerror or error}; nothing was kept, "
            "and the variable REGARD_CACHE names another place"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build(folder: Path, source: Source, config: DataConfig, roles: Sequence[str]) -> None:
    rows = (row.values for row in track(source.train, f"reading {source.train.name}"))
    found = survey(rows, config, has_valid=source.valid is not None, has_test=source.test is not None)
    tokenizer, tokenizer_note = _make_tokenizer(config, found)
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    held_out: HeldOut = {"valid": [], "test": []}
    training_rows = _route(track(source.train, "cutting into tokens", total=found.num_rows), found, held_out)
    train = write_store(folder / "train", training_rows, tokenizer, roles, max_length=config.max_length)
    for role, table in (("valid", source.valid), ("test", source.test)):
        if table is not None:
            held_out[role] = [row.values for row in table]
    if not held_out["valid"]:
        raise DataError(f"no rows were held back for validation: data.splits must leave some, got {config.splits}")
    _write_held_out(folder / "valid", held_out["valid"], tokenizer, roles)
    notes = [
        f"{found.num_rows:,} rows: {len(train):,} to train on, {len(held_out['valid']):,} for validation, "
        f"{len(held_out['test']):,} for the test",
        tokenizer_note,
    ]
    record = {"notes": notes, "warnings": _warnings(source, train, held_out, config), "held_out": held_out}
    (folder / "prepared.json").write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")


def _write_held_out(folder: Path, rows: list[tuple[str, ...]], tokenizer: Tokenizer, roles: Sequence[str]) -> None:
    """Held-out rows are all kept, however long: leaving the hard ones out would flatter the score."""
    longest = max((len(text.encode()) for row in rows for text in row), default=0)
    write_store(folder, rows, tokenizer, roles, max_length=longest + 1)


def _route(table: Iterable, found: Survey, held_out: HeldOut) -> Iterator[tuple[str, ...]]:
    """Hand on the training rows, and keep the others."""
    for row in table:
        role = found.split.role(row.values)
        if role == "train":
            yield row.values
        elif role != "unused":
            held_out[role].append(row.values)


def _make_tokenizer(config: DataConfig, found: Survey) -> tuple[Tokenizer, str]:
    assert config.tokenizer is not None, "a tokenizer is chosen before it is made"
    if config.tokenizer not in get_args(TokenizerKind) and Path(config.tokenizer).suffix == ".json":
        tokenizer = load_tokenizer(Path(config.tokenizer))
        return tokenizer, f"tokenizer {config.tokenizer}: {tokenizer.vocab_size:,} tokens"
    wanted = config.vocab_size or min(
        _MOST_TOKENS, max(_FEWEST_TOKENS, found.num_characters // _CHARACTERS_PER_TOKEN_KIND)
    )
    if config.tokenizer == "characters" and config.vocab_size is None:
        wanted = _MOST_TOKENS
    texts = (text for row in found.sample for text in row)
    tokenizer = train_tokenizer(texts, config.tokenizer, wanted)  # pyright: ignore[reportArgumentType]  checked inside
    return tokenizer, f"tokenizer {config.tokenizer}: {tokenizer.vocab_size:,} tokens, learned from the training rows"


def _warnings(source: Source, train: TokenStore, held_out: HeldOut, config: DataConfig) -> list[str]:
    tables = [table for table in (source.train, source.valid, source.test) if table is not None]
    warnings = [f"skipped: {table.bad_rows}" for table in tables if table.bad_rows.total]
    if train.num_left_out:
        warnings.append(
            f"left out of training: {train.num_left_out:,} rows with more than {config.max_length} tokens on a side"
        )
    return warnings + _leaks(source, held_out)


def _leaks(source: Source, held_out: HeldOut) -> list[str]:
    """Held-out rows that are training rows too; a split by content has none, a file of one's own may."""
    given = {role: rows for role, rows in held_out.items() if getattr(source, role) is not None}
    if not given:
        return []
    wanted = {row_hash(row) for rows in given.values() for row in rows}
    seen = {key for row in source.train if (key := row_hash(row.values)) in wanted}
    counts = {role: sum(row_hash(row) in seen for row in rows) for role, rows in given.items()}
    return [
        f"{count:,} of the {len(given[role]):,} {role} rows are training rows too: scores on them flatter the model"
        for role, count in counts.items()
        if count
    ]


def _key(content: str, config: DataConfig, roles: Sequence[str]) -> str:
    matters = config.model_dump(exclude={"train", "valid", "test", "num_rows"})
    assert config.tokenizer is not None, "a tokenizer is chosen before it is made"
    tokenizer = Path(config.tokenizer)
    if tokenizer.is_file():
        matters["tokenizer"] = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    text = json.dumps([_LAYOUT, content, list(roles), matters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _require_space(folder: Path, table: Table) -> None:
    """Two bytes a token, eight a row and the order of rows come to about as much as the text itself."""
    needed = sum(path.stat().st_size for path in table.paths)
    existing = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DeviceError(
            f"not enough disk space at {existing}: about {needed / 2**20:,.0f} MiB are needed for token ids, "
            f"{free / 2**20:,.0f} MiB are free; the variable REGARD_CACHE names another place"
        )
