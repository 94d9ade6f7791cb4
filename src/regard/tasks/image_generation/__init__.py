"""Image generation: pixels one after the other.

`task` has the task itself, `drawing` the generated images and the training images that are nearest to them.
"""

from regard.tasks.image_generation.task import ImageGeneration

__all__ = ["ImageGeneration"]
