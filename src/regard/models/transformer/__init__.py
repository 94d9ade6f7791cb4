"""The Transformer: its settings, the model, the states of its decoder, its presets and its inference backends.

`model.py` is the specification. `inference/` has faster implementations of one
decoding step, on a CPU and on a GPU, which `Transformer.for_inference` selects.
"""

from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer

__all__ = ["Transformer", "TransformerConfig"]
