"""Captioning: a sentence about an image, with the attention of each word over the image."""

from regard.tasks.captioning.model import Captioner
from regard.tasks.captioning.task import Captioning, CaptioningSettings

__all__ = ["Captioner", "Captioning", "CaptioningSettings"]
