"""Codecs: the values of a column to ids or numbers, and back.

A codec is fitted on the training rows only and saved in the run folder. A task
composes codecs, one for each column or side; a source and a target may have
different ones.
"""

from regard.data.codecs.codec import Codec
from regard.data.codecs.labels import LabelCodec
from regard.data.codecs.numbers import NumberCodec
from regard.data.codecs.pixels import PixelCodec
from regard.data.codecs.text import TextCodec
from regard.data.formats.images import ImageConfig

__all__ = ["Codec", "ImageConfig", "LabelCodec", "NumberCodec", "PixelCodec", "TextCodec"]
