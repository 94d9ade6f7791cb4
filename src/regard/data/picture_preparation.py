"""From pictures to pixels on disk, once for each content and setting.

Which set a picture belongs to is decided by a hash of its content: of two files
that are the same picture none can be in two sets.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.coding import LabelCoding, Learned
from regard.data.columns import count_of
from regard.data.config import DataConfig, PictureConfig
from regard.data.picture_sources import ROLES, PictureSource
from regard.data.picture_store import PictureStore, write_pictures
from regard.data.pictures import read_picture
from regard.data.preparation import HeldOut, Prepared, find_or_build, frequencies, settings_that_matter, write_record
from regard.data.splits import draw_few
from regard.data.surveys import survey
from regard.data.tables import rows_hash
from regard.errors import BadRowsError, ConfigError, DataError
from regard.logging import progress_bar
from regard.text.tokenizer import train_tokenizer

Row = Sequence[str]
"""The hash of a picture, its path, its label."""


def prepare_pictures(source: PictureSource, config: DataConfig) -> Prepared[PictureStore]:
    """Split, decode and store pictures, or find that this was done before."""
    if config.label_separator is not None:
        raise ConfigError(
            f"a picture has one label: data.label_separator must be unset, got {config.label_separator!r}"
        )
    config = config.changed(tokenizer="bytes")
    sets = [some.rows for some in (source.train, source.valid, source.test) if some is not None]
    # The content alone does not do: held-out pictures are kept by where they lie, and may be split by something else.
    places = rows_hash(row for rows in sets for row in rows)
    matters = settings_that_matter(config) | {"picture": config.picture.model_dump(), "places": places}
    if source.train.keys is not None:
        matters["keys"] = rows_hash([source.train.keys])
    return find_or_build(source, matters, ROLES, PictureStore, lambda folder: _build(folder, source, config))


def _build(folder: Path, source: PictureSource, config: DataConfig) -> None:
    rows = [(key, *row) for key, row in zip(source.train.hashes, source.train.rows, strict=True)]
    entries = list(zip(rows, source.train.keys or source.train.hashes, strict=True))
    found = survey(
        entries,
        config,
        has_valid=source.valid is not None,
        has_test=source.test is not None,
        column=source.train.column,
        label_of=lambda row: row[-1],
    )
    by_role: dict[str, list[Row]] = {"train": [], "valid": [], "test": [], "unused": []}
    for row, key in entries:
        by_role[found.split.role(row, key)].append(row)
    if config.few is not None:
        by_role["train"] = list(draw_few(by_role["train"], config.few, config.draw, lambda row: row[-1:]))
    for role, some in (("valid", source.valid), ("test", source.test)):
        if some is not None:
            by_role[role] = [(key, *row) for key, row in zip(some.hashes, some.rows, strict=True)]
    if not by_role["valid"]:
        raise DataError(f"no pictures were held back for validation: data.splits must leave some, got {config.splits}")
    folder.mkdir(parents=True)
    # What is read besides pictures is their labels, which are never cut into tokens; but a run has a tokenizer.
    (folder / "tokenizer.json").write_text(train_tokenizer([], "bytes", 300).to_json(), encoding="utf-8")
    coding = LabelCoding(max_length=1)
    for row in by_role["train"]:
        coding.see(row)
    learned, faults = coding.learned(), list[str]()
    kept = {role: _write(folder / role, by_role[role], learned, config.picture, faults) for role in ("train", "valid")}
    if faults and not config.skip_bad:
        raise BadRowsError(_told(faults, source))
    held_out: HeldOut = {"valid": [tuple(row[1:]) for row in kept["valid"]],
                         "test": [tuple(row[1:]) for row in by_role["test"]]}  # fmt: skip
    notes = [
        f"{count_of(sum(map(len, by_role.values())), 'picture')}: {len(kept['train']):,} to train on, "
        f"{len(held_out['valid']):,} for validation, {len(held_out['test']):,} for the test",
        *found.notes,
        f"each is brought to {config.picture.size} x {config.picture.size} pixels, and read in "
        f"{config.picture.num_positions - 1:,} patches",
        f"{count_of(len(learned.labels), 'label')}: {frequencies(learned.labels)}",
    ]
    warnings = [f"skipped: {_told(faults, source)}"] if faults else []
    write_record(folder, notes, warnings + found.warnings + _leaks(by_role), held_out, learned)


def _write(folder: Path, rows: Sequence[Row], learned: Learned, config: PictureConfig, faults: list[str]) -> list[Row]:
    """Store the pictures that can be read; the rows of those. What is wrong with others is added to `faults`."""
    numbers = {label: number for number, label in enumerate(learned.labels)}
    kept: list[Row] = []

    def readable() -> Iterator[tuple[NDArray[np.uint8], int]]:
        for row in progress_bar(rows, "decoding pictures", total=len(rows)):
            _, path, label = row
            if label not in numbers:
                raise DataError(f"the label {label!r} of {path} does not occur among the pictures to train on")
            try:
                pixels = read_picture(path, config)
            except DataError as error:
                faults.append(str(error))
                continue
            kept.append(row)
            yield pixels, numbers[label]

    write_pictures(folder, readable(), config)
    if not kept:
        raise DataError(f"none of the {count_of(len(rows), 'picture')} can be read: {faults[0]}")
    return kept


def _told(faults: list[str], source: PictureSource) -> str:
    total = sum(len(some.rows) for some in (source.train, source.valid, source.test) if some is not None)
    more = f", and so on with {len(faults) - 1:,} more" if len(faults) > 1 else ""
    return f"{len(faults):,} of {count_of(total, 'picture')} cannot be read: {faults[0]}{more}"


def _leaks(by_role: dict[str, list[Row]]) -> list[str]:
    """Held-out pictures that are training pictures too; a split by content has none, a folder of one's own may."""
    seen = {row[0] for row in by_role["train"]}
    counts = {role: sum(row[0] in seen for row in by_role[role]) for role in ("valid", "test")}
    return [
        f"{count:,} of the {len(by_role[role]):,} {role} pictures are training pictures too: "
        "scores on them flatter the model"
        for role, count in counts.items()
        if count
    ]
