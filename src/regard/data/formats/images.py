"""Images: files of any common format as pixels of one size, and folders with one folder for each label.

Wherever the path of a file is expected, an image may also be given as text: a data URI (RFC 2397) in base64.

Every problem with a file is a `DataError` of one line. Only raster formats that Pillow decodes itself are read: a
PostScript file, for example, is a program.
"""

import base64
import hashlib
import io
import math
import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import Field, model_validator

from regard.data.formats.files import AnyPath, check_file, content_hash
from regard.data.formats.folders import VALID_NAMES
from regard.errors import ConfigError, DataError
from regard.files import require_inside
from regard.logging import progress_bar
from regard.settings import Settings

Resampling = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]

IMAGE_ROLES = ("image", "label")
"""The values that each row of a table of images must have."""

_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_MAX_BYTES = 1 << 29
"""A file of 89 million pixels, the most that are decoded, has at most so many bytes."""
_OUTSIDE = "data.outside_images = true reads it, for a table that you trust"
_DATA_URI = "data:image/"
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_DAMAGED = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error, zlib.error)
"""What Pillow's decoders raise for a truncated or invalid file."""


class ImageConfig(Settings):
    """The size and normalization of images, and the size of patches."""

    size: int = Field(default=32, ge=1, le=4_096)
    """Height and width to which each image is resized, in pixels; a multiple of patch_size."""
    patch_size: int = Field(default=4, ge=1)
    """Height and width of a patch. A patch is to an image what a token is to a text."""
    channels: Literal[1, 3] = 3
    """3: red, green and blue; 1: grayscale."""
    mean: list[float] = Field(default_factory=lambda: [0.5])
    """Subtracted from pixel values in [0, 1]: one number for each channel, or one for all."""
    std: list[float] = Field(default_factory=lambda: [0.5])
    """Pixel values are divided by it after the mean is subtracted."""
    resampling: Resampling = "bilinear"
    """The resampling filter: nearest, box, bilinear, hamming, bicubic or lanczos."""

    @model_validator(mode="after")
    def _sizes_are_consistent(self) -> Self:
        if self.size % self.patch_size:
            raise ConfigError(
                f"the image size must be a multiple of patch_size, got size={self.size} and "
                f"patch_size={self.patch_size}"
            )
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels) or not all(map(math.isfinite, numbers)):
                raise ConfigError(f"{name} must be one finite number for all channels or one for each, got {numbers}")
        if min(self.std) <= 0.0:
            raise ConfigError(f"std must be positive, got {self.std}")
        return self

    @property
    def num_positions(self) -> int:
        """The number of positions a model reads: the patches, and the class token before them."""
        return 1 + (self.size // self.patch_size) ** 2

    @property
    def patch_dim(self) -> int:
        """The number of values in a patch."""
        return self.channels * self.patch_size**2


@dataclass(frozen=True)
class LabeledImages:
    """Paths of images, and the label of each."""

    rows: list[tuple[str, str]]
    keys: list[str] | None = None
    """The keys by which images are split, if that is not their content."""
    column: str | None = None
    """The column of the keys."""

    @property
    def paths(self) -> tuple[Path, ...]:
        names = (name for name, _ in self.rows if not is_data_uri(name))
        return tuple(path for path in map(Path, names) if path.is_file())

    @cached_property
    def hashes(self) -> list[str]:
        """Hashes of the content of each image, or of its path if it cannot be read. Computing them reads all files."""
        return [_hash(path) for path, _ in progress_bar(self.rows, "reading images", total=len(self.rows))]


def is_image(name: str) -> bool:
    """Whether a file is an image, by its suffix; so is the data URI of one.

    Example:
        >>> is_image("cats/1.JPG"), is_image("cats.tsv")
        (True, False)
    """
    return is_data_uri(name) or Path(name).suffix.lower() in _SUFFIXES


def is_data_uri(name: str) -> bool:
    """Whether an image is given as text rather than by its path."""
    return name.startswith(_DATA_URI)


def to_data_uri(pixels: NDArray[np.uint8]) -> str:
    """Pixels, by row, column and channel, as the text of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"{_DATA_URI}png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def locate_image(name: str, folder: Path, *, anywhere: bool = False) -> str:
    """The absolute path of an image whose path is relative to `folder`; a data URI is returned as it is.

    A path that leads out of the folder is an error, unless `anywhere`: a table may be a stranger's.
    """
    if is_data_uri(name):
        return name
    path = (folder / name).absolute()
    if not anywhere:
        home, place = _real(folder.absolute()), _real(path.parent)
        if path.name == ".." or not place.is_relative_to(home):
            raise DataError(f"the image {name!r} is not in {folder}, the folder of its table: {_OUTSIDE}")
        if os.path.islink(path) and not _real(path).is_relative_to(home):
            raise DataError(f"the image {name!r} is a link that leads out of {folder}: {_OUTSIDE}")
    return str(path)


@lru_cache(maxsize=1 << 12)
def _real(path: Path) -> Path:
    """A path without links; one that cannot be resolved, as with a NUL in it, as it is."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return path


def image_size(path: AnyPath) -> tuple[int, int]:
    """Width and height of an image that `read_image` can read, with the orientation in its metadata."""
    with _opened(path) as (image, _):
        return ImageOps.exif_transpose(image).size


def read_image(path: AnyPath, config: ImageConfig) -> NDArray[np.uint8]:
    """The pixels of a file, 0 to 255, by channel, row and column.

    The orientation in the metadata is applied, the image is resized to a square regardless of its proportions, and
    transparency is dropped. Of an animation, the first frame is read.
    """
    with _opened(path) as (image, name):
        return _pixels(image, config, name)


@contextmanager
def _opened(path: AnyPath) -> Iterator[tuple[Image.Image, Path]]:
    """An image and its name in errors; what is wrong with it is found while it is used."""
    is_text = isinstance(path, str) and is_data_uri(path)
    file = _decoded(str(path)) if is_text else _content(check_file(path))
    path = Path("the data URI") if is_text else Path(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                yield image, path
    except UnidentifiedImageError:
        raise DataError(f"{path} is not an image of a known format: {', '.join(_FORMATS)}") from None
    except _TOO_LARGE:
        raise DataError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels, and is not read") from None
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} is a damaged image: {' '.join(str(error).split())}") from None


def has_labeled_images(folder: Path) -> bool:
    """Whether a folder contains folders with images."""
    if not os.path.isdir(folder):
        return False
    return any(is_image(path.name) for inner in _folders(folder) for path in inner.rglob("*"))


def image_folders_by_split(folder: Path) -> dict[str, str]:
    """The folders for `train`, `valid` and `test`; only the folder itself as `train` if it is not split."""
    names = {inner.name.lower(): str(inner) for inner in _folders(folder)}
    if "train" not in names or not has_labeled_images(Path(names["train"])):
        return {"train": str(folder)}
    valid = next((names[name] for name in VALID_NAMES if name in names), None)
    found = {"train": names["train"], "valid": valid, "test": names.get("test")}
    return {split: path for split, path in found.items() if path is not None}


def images_in_folder(folder: Path) -> LabeledImages:
    """The images of a folder that contains one folder for each label, with images at any depth."""
    rows = [
        (str(require_inside(path, folder).absolute()), inner.name)
        for inner in _folders(folder)
        for path in sorted(inner.rglob("*"))
        if path.is_file() and is_image(path.name) and not path.name.startswith(".")
    ]
    if not rows:
        raise DataError(f"{folder} has no images: it needs a folder for each label, with images in it")
    return LabeledImages(rows)


def _pixels(image: Image.Image, config: ImageConfig, path: Path) -> NDArray[np.uint8]:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # Pillow would clip values above 255
    elif image.mode in ("I", "F"):
        raise DataError(f"{path} has 32 bits per channel, only 8 and 16 are supported")
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("RGB" if config.channels == 3 else "L")
    image = image.resize((config.size, config.size), _RESAMPLING[config.resampling])
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1).copy()


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _content(path: Path) -> io.BytesIO:
    """The bytes of a file: from the file itself, a decoder would allocate as many as a damaged length in it says."""
    if (size := path.stat().st_size) > _MAX_BYTES:
        raise DataError(f"{path} has {size:,} bytes, more than {_MAX_BYTES:,} of an image, and is not read")
    try:
        return io.BytesIO(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _decoded(text: str) -> io.BytesIO:
    """The file in a data URI."""
    kind, _, data = text.partition(",")
    if not kind.endswith(";base64"):
        raise DataError(f"an image in a data URI must be in base64, got {kind[:40]!r}")
    try:
        return io.BytesIO(base64.b64decode(data, validate=True))
    except ValueError as error:  # also of characters beyond ASCII
        raise DataError(f"the data URI of an image is not valid base64: {error}") from None


def _hash(path: str) -> str:
    if is_data_uri(path):
        return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
    try:
        return content_hash(path)
    except DataError:  # reported when it is read as an image
        return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()
