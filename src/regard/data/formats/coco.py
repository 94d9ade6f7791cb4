"""Annotations of COCO: one JSON file with the images of a set and their captions.

Lin et al., "Microsoft COCO: Common Objects in Context" (2014). https://arxiv.org/abs/1405.0312

    {"images": [{"id": 9, "file_name": "000000000009.jpg"}, ...],
     "annotations": [{"image_id": 9, "caption": "A dog on a beach."}, ...]}
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.data.formats.files import iter_lines
from regard.data.formats.json_lines import decode_json
from regard.data.formats.messages import format_count
from regard.errors import DataError

_KEYS = ("images", "annotations")
_START = 1 << 16
"""Characters in which one of the keys must be found."""


def is_coco(path: Path) -> bool:
    """Whether a JSON file has COCO's layout, by its first characters."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        start = file.read(_START)
    return start.lstrip().startswith("{") and any(f'"{key}"' in start for key in _KEYS)


def read_coco(path: Path) -> Iterator[tuple[str, str]]:
    """The file name of the image and the text of each caption."""
    try:
        whole = decode_json("\n".join(iter_lines(path)))
    except ValueError as error:
        raise DataError(f"{path.name} is not JSON: {error}") from None
    images, annotations = (_list_of(path, whole, key) for key in _KEYS)
    names: dict[str, str] = {}
    for number, image in enumerate(images, start=1):
        names[_value(path, image, "id", f"image {number:,}")] = _value(path, image, "file_name", f"image {number:,}")
    unknown = [each for each in annotations if isinstance(each, dict) and str(each.get("image_id")) not in names]
    if unknown:
        raise DataError(
            f"{path.name} has {format_count(len(unknown), 'caption')} of images that it does not list, such as "
            f"image_id {unknown[0].get('image_id')}"
        )
    for number, annotation in enumerate(annotations, start=1):
        where = f"annotation {number:,}"
        name = names[_value(path, annotation, "image_id", where)]
        yield name, _value(path, annotation, "caption", where)


def _list_of(path: Path, whole: Any, key: str) -> list[Any]:
    found = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(found, list) or not found:
        raise DataError(f"{path.name} must have a list {key!r} that is not empty, as COCO's annotations have")
    return found


def _value(path: Path, record: Any, key: str, where: str) -> str:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{path.name}: {where} has no {key}")
    return value
