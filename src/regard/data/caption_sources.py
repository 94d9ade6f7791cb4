"""Images with captions: a table of paths and captions, COCO's annotations, the built-in scenes, or rows in memory.

A table has one row for each caption; an image with several captions is in several rows. A third column, `grounding`,
may have boxes for the words that name something: a JSON list of `[first word, word after the last, left, top, right,
bottom]`, where words are counted from 0 and the sides of the image are 1 long.

A row of a run is an image and all of its captions, one on each line: the caption and, after a tab, its grounding.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.builtin import find_builtin
from regard.data.formats.coco import is_coco, read_coco
from regard.data.formats.images import LabeledImages, is_data_uri, locate_image
from regard.data.formats.tables import Table
from regard.data.image_sources import ImageSource, prepare_image_store
from regard.data.prepare import Prepared, RowEncoder
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, is_builtin, open_source, require_files
from regard.data.stores.captions import CaptionStore, write_captions
from regard.errors import ConfigError, DataError
from regard.files import load_json

CAPTION_ROLES = ("image", "caption")
_GROUNDING = "grounding"
_LINE, _FIELD = "\n", "\t"
_FOLDERS = ("", "images", "Images", "..", "../images")
"""Where images are looked for, relative to the file that names them, where `task.images` is unset."""


@dataclass(frozen=True)
class GroundedWords:
    """Words of a caption, and the box of what they name, in units of the sides of the image."""

    first: int
    end: int
    box: tuple[float, float, float, float]
    """Left, top, right and bottom."""


@dataclass(frozen=True)
class Caption:
    """One caption of an image."""

    text: str
    grounding: tuple[GroundedWords, ...] = ()


def read_captions(text: str) -> list[Caption]:
    """The captions in the second value of a row.

    Example:
        >>> [caption.text for caption in read_captions("a dog runs" + chr(10) + "a brown dog")]
        ['a dog runs', 'a brown dog']
    """
    found = []
    for line in text.split(_LINE):
        words, _, boxes = line.partition(_FIELD)
        found.append(Caption(words, _read_grounding(boxes, words) if boxes else ()))
    return found


def open_captions(config: DataConfig, rows: Rows | None = None, *, folder: str | None = None) -> ImageSource:
    """Open the images and captions that the settings name; `folder` has the images, if paths are relative to it."""
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"task.images must be a folder, and there is none at {folder}")
    if config.stratify:
        raise ConfigError("data.stratify is for rows with labels, and captions have none")
    train, inferred = _open(config, rows, folder)
    valid, test = (
        _open(config.changed(train=list(paths), valid=[], test=[], group=None, order=None), None, folder)[0]
        if paths
        else None
        for paths in (config.valid, config.test)
    )
    return ImageSource(train, valid, test, inferred)


def _open(config: DataConfig, rows: Rows | None, folder: str | None) -> tuple[LabeledImages, list[str]]:
    if rows is None:
        require_files(config, "a table of images and captions, COCO's annotations or a built-in data set")
        if is_builtin(config):
            data = find_builtin(config.train[0])
            if data.columns[: len(CAPTION_ROLES)] != CAPTION_ROLES:
                raise DataError(f"{data.name} has the columns {', '.join(data.columns)}, captions need images")
            return _grouped(data.generate(config.num_rows or data.num_rows, config.split_seed)), []
        if len(config.train) == 1 and is_coco(path := Path(config.train[0])):
            if config.group is not None or config.order is not None:
                raise ConfigError(f"data.group and data.order need a table, and {path.name} has COCO's annotations")
            pairs = list(read_coco(path))
            base = _base_folder([name for name, _ in pairs], path.parent, folder)
            return _grouped(
                (locate_image(name, base, anywhere=config.outside_images), text) for name, text in pairs
            ), []
    table = _open_table(config.changed(valid=[], test=[]), rows)
    found = list(table)
    home = table.paths[0].parent if table.paths else Path()
    base = _base_folder([row.values[0] for row in found], home, folder)
    anywhere = config.outside_images or not table.paths  # rows in memory are the caller's own
    names = [locate_image(row.values[0], base, anywhere=anywhere) for row in found]
    keys = {} if table.key is None else {name: row.split_key for name, row in zip(names, found, strict=True)}
    images = _grouped((name, *row.values[1:]) for name, row in zip(names, found, strict=True))
    if keys:
        images = LabeledImages(images.rows, [keys[name] for name, _ in images.rows], table.key)
    return images, table.inferred


def _open_table(config: DataConfig, rows: Rows | None) -> Table:
    """The table, with the column of boxes where it has one."""
    if isinstance(rows, NamedRows) or rows is None:
        table = open_source(config, CAPTION_ROLES, rows).train
        if _GROUNDING not in table.names or config.columns:
            return table
        config = config.changed(columns=[*table.columns, _GROUNDING])
        return open_source(config, (*CAPTION_ROLES, _GROUNDING), rows).train
    width = len(rows[0]) if len(rows) else 0
    return open_source(config, (*CAPTION_ROLES, _GROUNDING) if width == 3 else CAPTION_ROLES, rows).train


def _base_folder(names: Sequence[str], home: Path, given: str | None) -> Path:
    """The folder that paths are relative to: the given one, or the first that has the first image."""
    if given is not None or not names:
        return Path(given or home)
    candidates = [home / folder for folder in _FOLDERS if not is_data_uri(names[0])]
    return next((folder for folder in candidates if _is_file(folder / names[0])), home)


def _is_file(path: Path) -> bool:
    """Whether there is a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _grouped(rows: Iterable[Sequence[str]]) -> LabeledImages:
    """One row for each image, with all its captions."""
    lines: dict[str, dict[str, None]] = {}
    for image, caption, *grounding in rows:
        words = " ".join(caption.split())
        if grounding:
            _read_grounding(grounding[0], words)
        lines.setdefault(image, {})[_FIELD.join([words, *grounding])] = None
    return LabeledImages([(image, _LINE.join(captions)) for image, captions in lines.items()])


def _read_grounding(text: str, caption: str) -> tuple[GroundedWords, ...]:
    num_words = len(caption.split())
    try:
        found = [[float(number) for number in each] for each in load_json(text)]
    except (ValueError, TypeError):
        found = [[]]
    for each in found:
        is_box = len(each) == 6 and all(map(math.isfinite, each)) and each[2] < each[4] and each[3] < each[5]
        if not is_box or not 0 <= each[0] < each[1] <= num_words:
            raise DataError(
                "the grounding of a caption must be a list of [first word, word after the last, left, top, right, "
                f"bottom], got {text[:60]!r} for {caption[:60]!r}"
            )
    return tuple(GroundedWords(int(each[0]), int(each[1]), (each[2], each[3], each[4], each[5])) for each in found)


def prepare_captions(source: ImageSource, config: DataConfig, encoder: RowEncoder) -> Prepared[CaptionStore]:
    """Split, decode and store images and the ids of their captions, or find them in the cache."""
    return prepare_image_store(source, config, encoder, CaptionStore, _write_captioned, CAPTION_ROLES)


def _write_captioned(
    folder: Path, images: Iterator[tuple[NDArray[np.uint8], str]], shape: tuple[int, int, int], codecs: Any
) -> None:
    tokenizer = codecs["caption"].tokenizer
    captioned = ((pixels, [each.text for each in read_captions(text)]) for pixels, text in images)
    write_captions(folder, captioned, shape, encode=tokenizer.encode, vocab_size=tokenizer.vocab_size)
