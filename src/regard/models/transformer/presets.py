"""The family of Transformers and its presets.

`base` and `big` of `transformer` are those of Vaswani et al. (2017), table 3.
`tiny` and `small` are for small data and small machines: pre-norm, so that they
learn in few steps, and with rotary positions, because copying and reordering
depend on distances rather than on absolute positions. `small` is meant for tens
of thousands of rows that are read many times, and has a dropout of 30 %.

`gpt`, `gpt2` and `llama` are decoder-only: a modern one that learns fast, that of
Radford et al. (2019), and that of Touvron et al. (2023), arXiv 2302.13971.
`simplified` has the block of He & Hofmann (2023). `bag` has no layers: one
embedding per token, for tasks that need an encoder.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from regard.models.family import Family, ModelConfig, Preset
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer

_PRE_NORM = {"block": "pre-norm", "positions": "rotary"}
_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_layers": 2, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512, **_PRE_NORM},
    "small": {"num_layers": 4, "model_dim": 256, "num_heads": 4, "feedforward_dim": 1024, "dropout": 0.3, **_PRE_NORM},
    "base": {},
    "big": {"model_dim": 1024, "num_heads": 16, "feedforward_dim": 4096, "dropout": 0.3},
}
_DECODER_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4},
    "small": {"num_layers": 6, "model_dim": 384, "num_heads": 6, "dropout": 0.15},
    "base": {"num_layers": 12, "model_dim": 768, "num_heads": 12},
    "big": {"num_layers": 24, "model_dim": 1024, "num_heads": 16},
}
"""`base` and `big` are those of Radford et al. (2019), table 2: 124 and 355 million parameters."""


def _decoder(feedforward: float | int, **shared: Any) -> Preset:
    """A decoder-only preset whose feedforward_dim is that multiple of model_dim, rounded up to 32."""
    sizes = {
        size: {"dropout": 0.0, **values, "feedforward_dim": -(-round(feedforward * values["model_dim"]) // 32) * 32}
        for size, values in _DECODER_SIZES.items()
    }
    return Preset(sizes, {"encoder_layers": 0, "block": "pre-norm", **shared})


class TransformerFamily(Family):
    """Transformers: encoder-decoders, encoders and decoders."""

    name: ClassVar[str] = "transformer"
    Config: ClassVar[type[ModelConfig]] = TransformerConfig
    Model: ClassVar[type[nn.Module]] = Transformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "transformer": Preset(_SIZES),
        "simplified": Preset(
            _SIZES,
            {
                "block": "parallel",
                "positions": "rotary",
                "residual": False,
                "value_projection": False,
                "output_projection": False,
                "shaped_attention": True,
            },
        ),
        "bag": Preset(
            {
                "tiny": {"model_dim": 128},
                "small": {"model_dim": 256},
                "base": {"model_dim": 512},
                "big": {"model_dim": 1024},
            },
            {"num_layers": 0, "positions": "none"},
        ),
        "gpt": _decoder(4, positions="rotary", norm="rms", activation="squared-relu", query_key_norm=True, bias=False),
        "gpt2": _decoder(4, positions="learned", activation="gelu-tanh", initialization="gpt2", scale_embeddings=False),
        "llama": _decoder(
            8 / 3,
            positions="rotary",
            norm="rms",
            activation="swiglu",
            initialization="gpt2",
            scale_embeddings=False,
            bias=False,
        ),
    }
