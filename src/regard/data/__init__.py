"""From files to batches: formats, splits, codecs, stores and samplers.

formats/   readers of files: tables, plain text, tagged sentences, questions, images
splits/    training, validation and test splits, and the search for leaks between them
codecs/    values to ids and back: text, labels, numbers, pixels
stores/    prepared data on disk, memory-mapped
builtin/   generated data sets
settings   the `[data]` section of run.toml
sources, text_sources, image_sources    the data that the settings of a run name
prepare    split, encode and store; the cache
batches, windows, permutation    samplers that compute the batch of any step

The public names are imported when they are first used: `regard data` needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.data.batches import BatchSampler
    from regard.data.builtin import builtin_names, find_builtin
    from regard.data.codecs import Codec, ImageConfig, LabelCodec, NumberCodec, PixelCodec, TextCodec
    from regard.data.formats import open_table
    from regard.data.prepare import Prepared
    from regard.data.settings import DataConfig
    from regard.data.windows import WindowSampler

_HOMES = {
    "BatchSampler": "batches",
    "Codec": "codecs",
    "DataConfig": "settings",
    "ImageConfig": "codecs",
    "LabelCodec": "codecs",
    "NumberCodec": "codecs",
    "PixelCodec": "codecs",
    "Prepared": "prepare",
    "TextCodec": "codecs",
    "WindowSampler": "windows",
    "builtin_names": "builtin",
    "find_builtin": "builtin",
    "open_table": "formats",
}

__all__ = [
    "BatchSampler",
    "Codec",
    "DataConfig",
    "ImageConfig",
    "LabelCodec",
    "NumberCodec",
    "PixelCodec",
    "Prepared",
    "TextCodec",
    "WindowSampler",
    "builtin_names",
    "find_builtin",
    "open_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard.data' has no attribute {name!r}")
    return getattr(import_module(f"regard.data.{_HOMES[name]}"), name)
