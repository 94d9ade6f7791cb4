"""Image generation: pixels one after the other."""

from regard.tasks.image_generation.task import ImageGeneration

__all__ = ["ImageGeneration"]
