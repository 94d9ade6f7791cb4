"""Files of drawn images: a grid as PNG, or a page with the nearest training images of each."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from regard.errors import ConfigError
from regard.explanation.report import Report, write_report
from regard.files import write_atomically
from regard.tasks.content import DrawnImage, image_section

_GAP, _SMALLEST_SIDE = 2, 64
"""Pixels between images, and the width to which small images are enlarged."""
_SUFFIXES = (".png", ".html")


def save_drawn(drawn: Sequence[DrawnImage], path: str | Path, *, title: str) -> None:
    """Write images as a grid (.png) or as a page (.html), by the suffix of `path`."""
    require_drawn_path(path)
    if Path(path).suffix.lower() == ".html":
        write_report(path, Report(title=title, sections=[image_section(drawn)]))
        return
    data = io.BytesIO()
    image_grid(drawn).save(data, format="PNG")
    write_atomically(Path(path), data.getvalue())


def image_grid(drawn: Sequence[DrawnImage]) -> Image.Image:
    """Images row by row, in about as many rows as columns."""
    images = [Image.open(io.BytesIO(base64.b64decode(each.png))) for each in drawn]
    factor = max(1, math.ceil(_SMALLEST_SIDE / images[0].width))
    width, height = (factor * side for side in images[0].size)
    num_columns = math.ceil(math.sqrt(len(images)))
    num_rows = math.ceil(len(images) / num_columns)
    size = (num_columns * (width + _GAP) + _GAP, num_rows * (height + _GAP) + _GAP)
    grid = Image.new(images[0].mode, size, "white")
    for number, image in enumerate(images):
        row, column = divmod(number, num_columns)
        enlarged = image.resize((width, height), Image.Resampling.NEAREST)
        grid.paste(enlarged, (_GAP + column * (width + _GAP), _GAP + row * (height + _GAP)))
    return grid


def require_drawn_path(path: str | Path) -> None:
    """Raise unless drawn images can be written there."""
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"images are written as a grid (.png) or as a page (.html), got {Path(path).name!r}")
    if not Path(path).parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {Path(path).parent}")
