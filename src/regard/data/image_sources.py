"""The images of a run: a table of paths and labels, a folder with one folder for each label, or rows in memory.

A table has a column with the paths of images, absolute or relative to the table, and one with their labels. A folder
has one folder for each label; or it contains `train`, `valid` and `test`, each a folder of that kind.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec, write_codecs
from regard.data.codecs.pixels import PixelCodec
from regard.data.formats.images import (
    IMAGE_ROLES,
    LabeledImages,
    has_labeled_images,
    image_folders_by_split,
    images_in_folder,
    locate_image,
    read_image,
)
from regard.data.formats.messages import format_count, is_tolerable
from regard.data.formats.tables import Table, rows_hash
from regard.data.prepare import (
    FitData,
    HeldOut,
    Prepared,
    RowEncoder,
    Store,
    Values,
    find_or_build,
    label_warnings,
    write_record,
)
from regard.data.settings import DataConfig
from regard.data.sources import Rows, open_source
from regard.data.splits.by_hash import draw_shots
from regard.data.splits.plan import plan_split
from regard.data.stores.images import ImageStore, write_images
from regard.errors import BadRowsError, ConfigError, DataError
from regard.logging import progress_bar


@dataclass(frozen=True)
class ImageSource:
    """The images of a run by split; `valid` and `test` are None if they are to be split off `train`."""

    train: LabeledImages
    valid: LabeledImages | None
    test: LabeledImages | None
    inferred: list[str]

    def content_hash(self) -> str:
        """The hash of all images and labels; the location and the names of the files are not included."""
        digest = hashlib.sha256()
        for split, images in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            for key, (_, label) in zip(images.hashes, images.rows, strict=True) if images else ():
                digest.update(f"{split}\x1f{key}\x1f{label}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def open_images(config: DataConfig, rows: Rows | None = None) -> ImageSource:
    """Open the images that the settings name."""
    folder = Path(config.train[0]) if rows is None and len(config.train) == 1 else None
    given = {"valid": config.valid, "test": config.test}
    if folder is not None and has_labeled_images(folder):
        if config.group is not None or config.order is not None:
            raise ConfigError(
                f"data.group and data.order need a table of images, and {folder.name} is a folder of images"
            )
        found = image_folders_by_split(folder)
        given = {split: paths or ([found[split]] if split in found else []) for split, paths in given.items()}
        train, inferred = images_in_folder(Path(found["train"])), []
    else:
        source = open_source(config.changed(valid=[], test=[]), IMAGE_ROLES, rows)
        train, inferred = _images_of(source.train, config), source.inferred
    valid, test = (_held_out(config, paths) for paths in given.values())
    return ImageSource(train, valid, test, inferred)


def _held_out(config: DataConfig, paths: Sequence[str]) -> LabeledImages | None:
    if not paths:
        return None
    if len(paths) == 1 and has_labeled_images(Path(paths[0])):
        return images_in_folder(Path(paths[0]))
    plain = config.changed(train=list(paths), valid=[], test=[], group=None, order=None)
    return _images_of(open_source(plain, IMAGE_ROLES).train, config)


def _images_of(table: Table, config: DataConfig) -> LabeledImages:
    anywhere = config.outside_images or not table.paths  # rows in memory are the caller's own
    folder = table.paths[0].parent if table.paths else Path()
    rows = list(table)
    values = (row.values for row in rows)
    found = [(locate_image(path, folder, anywhere=anywhere), label.strip()) for path, label in values]
    return LabeledImages(found, None if table.key is None else [row.split_key for row in rows], table.key)


def prepare_images(source: ImageSource, config: DataConfig, encoder: RowEncoder) -> Prepared[ImageStore]:
    """Split, decode and store images with labels, or find them in the cache.

    The split is by a hash of the content: two copies of an image are in the same set.
    """
    return prepare_image_store(source, config, encoder, ImageStore, _write_labeled, ["image", "label"])


def prepare_image_store(
    source: ImageSource,
    config: DataConfig,
    encoder: RowEncoder,
    store: Callable[[Path], Store],
    write: "ImageWriter",
    columns: Sequence[str],
) -> Prepared[Store]:
    """The same with what belongs to an image written by `write` and opened by `store`."""
    sets = [some.rows for some in (source.train, source.valid, source.test) if some is not None]
    # Held-out images are kept by their paths, so the content alone does not identify what is stored.
    key = {"paths": rows_hash(row for rows in sets for row in rows)}
    if source.train.keys is not None:
        key["keys"] = rows_hash([source.train.keys])

    def build(folder: Path) -> None:
        _build_images(folder, source, config, encoder, write)

    return find_or_build(source, config, encoder, store, build, columns, key)


def _build_images(
    folder: Path, source: ImageSource, config: DataConfig, encoder: RowEncoder, write: "ImageWriter"
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
    codecs = encoder.fit_codecs(FitData(lambda: training, lambda: training, lambda: training, 0, {}))
    write_codecs(folder / "codecs", codecs)
    faults: list[str] = []
    kept = {role: _write_images(folder / role, by_role[role], codecs, faults, write) for role in ("train", "valid")}
    by_role["test"] = _readable(by_role["test"], codecs, faults)
    total = sum(len(some.rows) for some in (source.train, source.valid, source.test) if some is not None)
    is_skipped = is_tolerable(len(faults), total) if config.skip_bad is None else config.skip_bad
    if faults and not is_skipped:
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
    warnings += [*plan.warnings, *_image_leaks(by_role), *label_warnings(encoder.with_codecs(codecs), held_out)]
    write_record(folder, notes, warnings, held_out)


ImageWriter = Callable[[Path, Iterator[tuple[NDArray[np.uint8], str]], tuple[int, int, int], Mapping[str, Codec]], Any]
"""Writes images of a shape, each with its label or captions, to a store."""


def _write_labeled(
    folder: Path, images: Iterator[tuple[NDArray[np.uint8], str]], shape: tuple[int, int, int], codecs: Any
) -> None:
    write_images(folder, ((pixels, codecs["label"].encode([label])[0][0]) for pixels, label in images), shape)


def _readable(rows: Sequence[Values], codecs: Mapping[str, Codec], faults: list[str]) -> list[Values]:
    """The rows whose image can be read, which are not stored; errors are added to `faults`.

    A damaged image of the test set would otherwise be found when the set is opened.
    """
    return [row for row, _ in _read_images(rows, codecs, faults)]


def _read_images(
    rows: Sequence[Values], codecs: Mapping[str, Codec], faults: list[str]
) -> Iterator[tuple[Values, NDArray[np.uint8]]]:
    pixel_codec = codecs["image"]
    assert isinstance(pixel_codec, PixelCodec)
    for row in progress_bar(rows, "decoding images", total=len(rows)):
        try:
            yield row, read_image(row[1], pixel_codec.image)
        except DataError as error:
            faults.append(str(error))


def _write_images(
    folder: Path, rows: Sequence[Values], codecs: Mapping[str, Codec], faults: list[str], write: ImageWriter
) -> list[Values]:
    """Store the images that can be read, and return their rows; errors are added to `faults`."""
    pixel_codec = codecs["image"]
    assert isinstance(pixel_codec, PixelCodec)
    kept: list[Values] = []

    def readable() -> Iterator[tuple[NDArray[np.uint8], str]]:
        for row, pixels in _read_images(rows, codecs, faults):
            kept.append(row)
            yield pixels, row[2]

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
