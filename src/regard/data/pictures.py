"""Pictures: a file of any common format to pixels of one size.

What is wrong with a file is a `DataError` of one line. Only formats that are
decoded here and now are read: of others, PostScript is a program.
"""

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from regard.data.config import PictureConfig
from regard.data.files import AnyPath, check_file
from regard.errors import DataError

_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_BOMB = (Image.DecompressionBombError, Image.DecompressionBombWarning)
_DAMAGED = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error, zlib.error)
"""What Pillow's decoders raise where a file breaks off, or says what cannot be."""


def is_picture(name: str) -> bool:
    """Whether a file is a picture, by how its name ends.

    Example:
        >>> is_picture("cats/1.JPG"), is_picture("cats.tsv")
        (True, False)
    """
    return Path(name).suffix.lower() in _ENDINGS


def read_picture(path: AnyPath, config: PictureConfig) -> NDArray[np.uint8]:
    """The pixels of a file, 0 to 255, by channel, row and column.

    A picture is turned upright where its camera has noted how it was held, squeezed
    into a square, and loses its transparency; of a film it is the first picture.
    """
    path = check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                return _pixels(image, config, path)
    except UnidentifiedImageError:
        raise DataError(f"{path} is no picture of a known format: {', '.join(_FORMATS)}") from None
    except _BOMB:
        raise DataError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels, and is not read") from None
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} is a damaged picture: {' '.join(str(error).split())}") from None


def _pixels(image: Image.Image, config: PictureConfig, path: Path) -> NDArray[np.uint8]:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # Pillow would cut off what is above 255
    elif image.mode in ("I", "F"):
        raise DataError(f"{path} has 32 bits a pixel, only 8 and 16 are read")
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert("RGB" if config.channels == 3 else "L")
    image = image.resize((config.size, config.size), _RESAMPLING[config.resampling])
    return np.atleast_3d(np.asarray(image)).transpose(2, 0, 1).copy()
