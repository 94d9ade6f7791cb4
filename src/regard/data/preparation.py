"""From rows or running text to token ids on disk, once for each content and setting.

The result lies in a cache folder keyed by the hash of the content and of the
settings that matter, so a second run on the same data starts at once.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from regard.data.aspects import AspectCoding
from regard.data.coding import Coding, LabelCoding, Learned, TextCoding
from regard.data.columns import count_of
from regard.data.config import DataConfig
from regard.data.divisions import Division, divide
from regard.data.documents import ROLES, Piece, Texts, TextSource, as_pieces, join_pieces
from regard.data.leaks import near_duplicates
from regard.data.permutation import mix
from regard.data.picture_sources import Pictures, PictureSource
from regard.data.picture_store import PictureStore
from regard.data.sources import Source, usual_tokenizer
from regard.data.splits import Entry, Split, Survey, draw_few, sample_of
from regard.data.store import TokenStore, write_store
from regard.data.strata import LabelOf
from regard.data.stream import TokenStream, count_tokens, write_stream
from regard.data.surveys import survey
from regard.data.tables import Row, Table
from regard.errors import ConfigError, DataError, DeviceError
from regard.logging import log_info, log_warning, progress_bar
from regard.text.tokenizer import SPECIALS, Tokenizer, TokenizerKind, load_tokenizer, train_tokenizer

_LAYOUT = 4
"""Changes when what lies in the cache changes its form."""
_CHARACTERS_PER_TOKEN_KIND, _FEWEST_TOKENS, _MOST_TOKENS = 400, 512, 32_000
_MOST_OF_ROWS = {"characters": _MOST_TOKENS}
_MOST_OF_TEXT = {"characters": sys.maxunicode, "words": 50_000 + len(SPECIALS)}
"""Tokens of the vocabularies that are to hold whatever there is, by kind; other kinds go by the amount of data."""
_LABELS_TOLD = 12
_SAMPLE_CHARACTERS = 1 << 26
"""Running text that a tokenizer learns from, where it need not see all of it."""

HeldOut = dict[str, list[tuple[str, ...]]]
Store = TypeVar("Store", TokenStore, TokenStream, PictureStore)


@dataclass(frozen=True)
class Prepared(Generic[Store]):
    """Everything a training loop needs of the data.

    Rows lie in a `TokenStore`, running text in a `TokenStream`, pictures in a `PictureStore`.
    """

    tokenizer: Tokenizer
    train: Store
    valid: Store
    held_out: HeldOut
    """The rows of the validation and of the test set, as text; of running text the documents, or their parts."""
    content_hash: str
    notes: list[str]
    """What was guessed, left out, or found in two sets."""
    is_isolated: bool = False
    """Whether a document of a stream is read by itself, or runs on into the next."""
    learned: Learned = field(default_factory=Learned)
    """What the rows say besides their texts."""


def prepare(
    source: Source, config: DataConfig, roles: Sequence[str], coding: Coding | None = None
) -> Prepared[TokenStore]:
    """Split, tokenize and store rows, or find that this was done before; unset, `coding` has a column for each role."""
    config = config.changed(tokenizer=usual_tokenizer(config))
    chosen = coding or TextCoding(roles)
    key = roles if coding is None else [*roles, *coding.columns]
    return find_or_build(
        source, settings_that_matter(config), key, TokenStore, lambda folder: _build(folder, source, config, chosen)
    )


def prepare_text(source: TextSource, config: DataConfig) -> Prepared[TokenStream]:
    """Split, tokenize and store running text, or find that this was done before."""
    if config.few is not None:
        raise ConfigError(f"data.few is for rows, and running text has none, got {config.few}")
    config = config.changed(tokenizer=usual_tokenizer(config))
    matters = settings_that_matter(config) | {
        "max_length": None,
        "documents": source.train.form,
        "isolate": source.is_isolated,
    }
    return find_or_build(source, matters, ROLES, TokenStream, lambda folder: _build_text(folder, source, config))


def find_or_build(
    source: Source | TextSource | PictureSource,
    matters: dict[str, Any],
    roles: Sequence[str],
    store: type[Store],
    build: Callable[[Path], None],
) -> Prepared[Store]:
    for guess in source.guesses:
        log_info(guess)
    content = source.content_hash()
    folder = cache_folder() / _key(content, matters, roles)
    found = _read(folder, store)
    if found is None:
        _require_space(folder, source.train)
        _build_whole(folder, build)
        found = _read(folder, store)
    if found is None:
        raise DeviceError(f"what was written to {folder} cannot be read back")
    tokenizer, train, valid, record = found
    for note in record["notes"]:
        log_info(note)
    for warning in record["warnings"]:
        log_warning(warning)
    return Prepared(
        tokenizer=tokenizer,
        train=train,
        valid=valid,
        held_out={role: [tuple(row) for row in rows] for role, rows in record["held_out"].items()},
        content_hash=content,
        notes=[*source.guesses, *record["notes"], *record["warnings"]],
        is_isolated=isinstance(source, TextSource) and source.is_isolated,
        learned=Learned(**record["learned"]),
    )


def cache_folder() -> Path:
    """Where prepared data is kept: `$REGARD_CACHE`, or `regard` in the user's cache folder."""
    if chosen := os.environ.get("REGARD_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def _read(folder: Path, store: type[Store]) -> tuple[Tokenizer, Store, Store, dict[str, Any]] | None:
    """What lies in the cache, or None if there is nothing, or if what there is was damaged and is now removed."""
    if not folder.exists():
        return None
    try:
        record = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        return tokenizer, store(folder / "train"), store(folder / "valid"), record
    except (OSError, ValueError):  # among the latter, JSON that is none and a store that is not whole
        log_warning(f"the prepared data in {folder} is damaged: it is prepared anew")
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _build_whole(folder: Path, build: Callable[[Path], None]) -> None:
    """Build under another name and rename, so that what is there is whole, also with two at work at once."""
    work = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(work, ignore_errors=True)
        build(work)
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


def _build(folder: Path, source: Source, config: DataConfig, coding: Coding) -> None:
    found = _survey(source, config, coding)
    held_out: HeldOut = {"valid": [], "test": []}
    training_rows = _route(progress_bar(source.train, "cutting into tokens", total=found.num_rows), found, held_out)
    drawing: list[str] = []
    if config.few is not None:
        training_rows, drawing = _draw(training_rows, config, coding)
        found = replace(
            found, sample=training_rows, num_characters=sum(len(text) for row in training_rows for text in row)
        )
    learned = coding.learned()
    sample = found.sample if found.sample is not None else sample_of(_entries(source.train), found.split)
    texts = (text for row in sample for text in coding.texts(row))
    vocab_size = _vocab_size(config, found.num_characters, _MOST_OF_ROWS)
    tokenizer, tokenizer_note = _make_tokenizer(config, texts, vocab_size, "rows")
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    train = write_store(folder / "train", training_rows, tokenizer, coding, max_length=config.max_length)
    for role, table in (("valid", source.valid), ("test", source.test)):
        if table is not None:
            held_out[role] = [row.values for row in table]
    if not held_out["valid"]:
        raise DataError(f"no rows were held back for validation: data.splits must leave some, got {config.splits}")
    _write_held_out(folder / "valid", held_out["valid"], tokenizer, coding)
    notes = [
        f"{found.num_rows:,} rows: {len(train):,} to train on, {len(held_out['valid']):,} for validation, "
        f"{len(held_out['test']):,} for the test",
        *found.notes,
        *drawing,
        tokenizer_note,
    ]
    if learned.labels:
        notes.append(f"{count_of(len(learned.labels), 'label')}: {frequencies(learned.labels)}")
    if learned.aspects:
        notes.append(f"{count_of(len(learned.aspects), 'aspect')}: {frequencies(learned.aspects)}")
    write_record(folder, notes, _warnings(source, train, held_out, config, found), held_out, learned)


def _survey(source: Source, config: DataConfig, coding: Coding) -> Survey:
    """Read the training table once: count, decide the split, and show the coding every row, unless few are drawn."""
    rows = progress_bar(source.train, f"reading {source.train.name}")
    return survey(
        _entries(_seen(rows, coding) if config.few is None else rows),
        config,
        has_valid=source.valid is not None,
        has_test=source.test is not None,
        column=source.train.key,
        label_of=_label_of(coding),
    )


def _seen(rows: Iterable[Row], coding: Coding) -> Iterator[Row]:
    for row in rows:
        coding.see(row.values)
        yield row


def _entries(rows: Iterable[Row]) -> Iterator[Entry]:
    return ((row.values, row.split_by) for row in rows)


def _label_of(coding: Coding) -> LabelOf | None:
    """What a row is called, where it has one label."""
    return (lambda row: coding.labels(row)[0]) if isinstance(coding, LabelCoding | AspectCoding) else None


def _draw(
    rows: Iterable[tuple[str, ...]], config: DataConfig, coding: Coding
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The few rows that are learned from, which are all that the coding sees, and what is said of them."""
    assert config.few is not None, "few are drawn where that is asked for"
    has_labels = isinstance(coding, LabelCoding)
    drawn = draw_few(rows, config.few, config.draw, coding.labels if has_labels else lambda row: ("",))
    for row in drawn:
        coding.see(row)
    counts = coding.learned().labels if has_labels else {"": len(drawn)}
    if max(counts.values()) < config.few:
        raise DataError(
            f"data.few must leave rows to choose from, got {config.few:,} of the {max(counts.values()):,} "
            f"training rows {'of the commonest label' if has_labels else 'there are'}"
        )
    rare = {label: count for label, count in counts.items() if count < config.few}
    kind = f"{count_of(config.few, 'row')} of each label" if has_labels else count_of(config.few, "row")
    less = f", but of {frequencies(rare)}, which have no more" if rare else ""
    return drawn, [f"draw {config.draw}: {kind}{less}"]


def frequencies(labels: Mapping[str, int]) -> str:
    """The commonest labels, and how often each was seen."""
    common = sorted(labels, key=lambda label: -labels[label])
    more = f" and {len(common) - _LABELS_TOLD} more" if len(common) > _LABELS_TOLD else ""
    return ", ".join(f"{label} ({labels[label]:,})" for label in common[:_LABELS_TOLD]) + more


def _build_text(folder: Path, source: TextSource, config: DataConfig) -> None:
    found = divide(source, config)
    texts = _texts_to_learn_from(found, is_whole=config.tokenizer in _MOST_OF_TEXT)
    vocab_size = _vocab_size(config, found.num_characters, _MOST_OF_TEXT)
    tokenizer, tokenizer_note = _make_tokenizer(config, texts, vocab_size, "text")
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    kept: dict[str, list[Piece]] = {"valid": [], "test": []}
    train = write_stream(
        folder / "train", _route_pieces(progress_bar(found.pieces(), "cutting into tokens"), kept), tokenizer
    )
    for role, given in (("valid", source.valid), ("test", source.test)):
        kept[role] += given or ()
    documents = {role: list(join_pieces(pieces)) for role, pieces in kept.items()}
    held_out: HeldOut = {role: [(document,) for document in some] for role, some in documents.items()}
    valid = write_stream(folder / "valid", as_pieces(documents["valid"]), tokenizer)
    notes = [
        f"{count_of(found.num_characters, 'character')} in {count_of(found.num_documents, 'document')}: "
        f"{train.num_text_tokens:,} tokens to train on, {valid.num_text_tokens:,} for validation, "
        f"{count_tokens(as_pieces(documents['test']), tokenizer):,} for the test",
        *found.notes,
        tokenizer_note,
    ]
    write_record(folder, notes, _text_warnings(source, held_out, config, found), held_out)


def write_record(
    folder: Path, notes: list[str], warnings: list[str], held_out: HeldOut, learned: Learned | None = None
) -> None:
    record = {"notes": notes, "warnings": warnings, "held_out": held_out, "learned": asdict(learned or Learned())}
    (folder / "prepared.json").write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")


def _route_pieces(pieces: Iterable[tuple[str, Piece]], kept: dict[str, list[Piece]]) -> Iterator[Piece]:
    """Hand on the pieces to train on, and keep the others."""
    for role, piece in pieces:
        if role == "train":
            yield piece
        elif role != "unused":
            kept[role].append(piece)


def _texts_to_learn_from(found: Division, *, is_whole: bool) -> Iterator[str]:
    """The training text, or enough of it from every part: of its pieces each has the same chance."""
    share = 1.0 if is_whole else min(1.0, _SAMPLE_CHARACTERS / found.num_characters)
    for number, piece in enumerate(found.training_pieces()):
        if share == 1.0 or mix(number) < share * (1 << 64):
            yield piece.text


def _write_held_out(folder: Path, rows: list[tuple[str, ...]], tokenizer: Tokenizer, coding: Coding) -> None:
    """Held-out rows are all kept, however long: leaving the hard ones out would flatter the score."""
    longest = max((sum(len(text.encode()) + 1 for text in row) for row in rows), default=0)
    write_store(folder, rows, tokenizer, coding, max_length=longest + 1)


def _route(table: Iterable[Row], found: Survey, held_out: HeldOut) -> Iterator[tuple[str, ...]]:
    """Hand on the training rows, and keep the others."""
    for row in table:
        role = found.split.role(row.values, row.split_by)
        if role == "train":
            yield row.values
        elif role != "unused":
            held_out[role].append(row.values)


def _vocab_size(config: DataConfig, num_characters: int, most: Mapping[str, int]) -> int:
    by_amount = min(_MOST_TOKENS, max(_FEWEST_TOKENS, num_characters // _CHARACTERS_PER_TOKEN_KIND))
    return config.vocab_size or most.get(config.tokenizer or "", by_amount)


def _make_tokenizer(config: DataConfig, texts: Iterable[str], vocab_size: int, what: str) -> tuple[Tokenizer, str]:
    assert config.tokenizer is not None, "a tokenizer is chosen before it is made"
    if config.tokenizer not in get_args(TokenizerKind) and Path(config.tokenizer).suffix == ".json":
        if config.lowercase:
            raise ConfigError(f"data.lowercase is for tokenizers that are learned, {config.tokenizer} is one already")
        tokenizer = load_tokenizer(Path(config.tokenizer))
        return tokenizer, f"tokenizer {config.tokenizer}: {tokenizer.vocab_size:,} tokens"
    kind: Any = config.tokenizer  # checked inside
    tokenizer = train_tokenizer(texts, kind, vocab_size, is_lowercased=config.lowercase)
    kind = f"{kind}, lower-cased" if config.lowercase else kind
    return tokenizer, f"tokenizer {kind}: {tokenizer.vocab_size:,} tokens, learned from the training {what}"


def _warnings(source: Source, train: TokenStore, held_out: HeldOut, config: DataConfig, found: Survey) -> list[str]:
    tables = [table for table in (source.train, source.valid, source.test) if table is not None]
    warnings = [f"skipped: {table.bad_rows}" for table in tables if table.bad_rows.total]
    if train.num_left_out:
        warnings.append(
            f"left out of training: {train.num_left_out:,} rows with more than {config.max_length} tokens on a side"
        )
    looked_for, is_seen = _to_look_for(source, held_out, found.split)
    trained = (row for row, key in _entries(source.train) if is_seen(row, key))
    return warnings + found.warnings + _leaks(trained, looked_for, "rows")


def _text_warnings(source: TextSource, held_out: HeldOut, config: DataConfig, found: Division) -> list[str]:
    texts = [texts for texts in (source.train, source.valid, source.test) if texts is not None]
    warnings = [f"skipped: {table.bad_rows}" for some in texts for table in some.tables if table.bad_rows.total]
    warnings += found.warnings
    if not source.is_isolated:
        return warnings
    looked_for, is_seen = _to_look_for(source, held_out, found.split)
    trained = ((document,) for document, key in source.train.entries() if is_seen((document,), key))
    return warnings + _leaks(trained, looked_for, "documents")


def _to_look_for(
    source: Source | TextSource, held_out: HeldOut, split: Split | None
) -> tuple[HeldOut, Callable[[Sequence[str], str], bool]]:
    """The held-out rows that may be training rows too, and which rows of the training table are to be compared."""
    if split is None:
        given = {role: held_out[role] for role in held_out if getattr(source, role) is not None}
        return given, lambda row, key: True
    return held_out, lambda row, key: split.role(row, key) == "train"


def _leaks(training_rows: Iterable[Sequence[str]], given: HeldOut, what: str) -> list[str]:
    """What held-out rows have in common with training rows: some may be the same, more may be nearly."""
    if not any(given.values()):
        return []
    return near_duplicates(progress_bar(training_rows, f"comparing {what} across sets"), given).told(what)


def settings_that_matter(config: DataConfig) -> dict[str, Any]:
    """The settings that change what is stored, of rows; for the tokenizer in a file, what it says."""
    elsewhere = {"train", "valid", "test", "num_rows", "documents", "isolate", "window", "stride"}
    elsewhere |= {"labels", "aspects", "balance", "center", "spread", "mask_share", "mask_spans", "mask_words"}
    elsewhere |= {"picture"}
    matters = config.model_dump(exclude=elsewhere)
    assert config.tokenizer is not None, "a tokenizer is chosen before it is made"
    tokenizer = Path(config.tokenizer)
    if tokenizer.is_file():
        matters["tokenizer"] = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    return matters


def _key(content: str, matters: dict[str, Any], roles: Sequence[str]) -> str:
    text = json.dumps([_LAYOUT, content, list(roles), matters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _require_space(folder: Path, table: Table | Texts | Pictures) -> None:
    """Two bytes a token, eight a row and the order of rows come to about as much as the text itself."""
    needed = sum(path.stat().st_size for path in table.paths)
    existing = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DeviceError(
            f"not enough disk space at {existing}: about {needed / 2**20:,.0f} MiB are needed for token ids, "
            f"{free / 2**20:,.0f} MiB are free; the variable REGARD_CACHE names another place"
        )
