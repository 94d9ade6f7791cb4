"""The images of a run: a table of paths and labels, a folder with one folder for each label, or rows in memory.

A table has a column with the paths of images, absolute or relative to the table, and one with their labels. A folder
has one folder for each label; or it contains `train`, `valid` and `test`, each a folder of that kind.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.formats.images import (
    IMAGE_ROLES,
    LabeledImages,
    has_labeled_images,
    image_folders_by_split,
    images_in_folder,
    locate_image,
)
from regard.data.formats.tables import Table
from regard.data.settings import DataConfig
from regard.data.sources import Rows, open_source
from regard.errors import ConfigError


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
        train, inferred = _images_of(source.train), source.inferred
    valid, test = (_held_out(config, paths) for paths in given.values())
    return ImageSource(train, valid, test, inferred)


def _held_out(config: DataConfig, paths: Sequence[str]) -> LabeledImages | None:
    if not paths:
        return None
    if len(paths) == 1 and has_labeled_images(Path(paths[0])):
        return images_in_folder(Path(paths[0]))
    plain = config.changed(train=list(paths), valid=[], test=[], group=None, order=None)
    return _images_of(open_source(plain, IMAGE_ROLES).train)


def _images_of(table: Table) -> LabeledImages:
    folder = table.paths[0].parent if table.paths else Path()
    rows = list(table)
    found = [(locate_image(path, folder), label.strip()) for path, label in (row.values for row in rows)]
    return LabeledImages(found, None if table.key is None else [row.split_key for row in rows], table.key)
