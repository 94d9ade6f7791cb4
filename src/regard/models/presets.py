"""Named shapes: a kind of model in four sizes.

Of the Transformer, `base` and `big` are those of Vaswani et al. (2017), table
3, to the letter. `tiny` and `small` are for small data and small machines:
normalised before each sub-layer, so that they learn fast from few steps, and
with rotary positions, because copying and re-ordering need to know *how far*,
not *where*. `small` is meant for tens of thousands of rows that are read many
times, and drops 30 % out. The other kinds have about as many parameters at
each size.

`gpt`, `gpt2` and `llama` are decoders alone, for running text: a modern one that
learns fast, the one of Radford et al. (2019), and that of Touvron et al. (2023),
arXiv 2302.13971. The other kinds become language models by leaving out their
encoder. `bag` has no layers at all: a bag of vectors, one for each token, for tasks
that read.

`vit` is an encoder alone, for pictures: that of Dosovitskiy et al. (2020), arXiv
2010.11929.

A name is a kind (`lstm`), whose size is then chosen for the data and the
machine; a kind and a size (`lstm-small`); or a size, which is a Transformer's.
"""

from typing import Any, Literal, get_args

from regard.errors import ConfigError
from regard.settings import nearest

Size = Literal["tiny", "small", "base", "big"]

_LEARNS_FAST = {"block": "pre-norm", "positions": "rotary"}
_TRANSFORMER: dict[Size, dict[str, Any]] = {
    "tiny": {"num_layers": 2, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512, **_LEARNS_FAST},
    "small": {
        "num_layers": 4,
        "model_dim": 256,
        "num_heads": 4,
        "feedforward_dim": 1024,
        "dropout": 0.3,
        **_LEARNS_FAST,
    },
    "base": {},
    "big": {"model_dim": 1024, "num_heads": 16, "feedforward_dim": 4096, "dropout": 0.3},
}
_RECURRENT: dict[Size, dict[str, Any]] = {
    "tiny": {"num_layers": 2, "model_dim": 192},
    "small": {"num_layers": 2, "model_dim": 512, "dropout": 0.3},
    "base": {"num_layers": 4, "model_dim": 1024},
    "big": {"num_layers": 4, "model_dim": 2048, "dropout": 0.3},
}
_CONVOLUTIONAL: dict[Size, dict[str, Any]] = {
    "tiny": {"num_layers": 3, "model_dim": 128},
    "small": {"num_layers": 6, "model_dim": 256, "dropout": 0.3},
    "base": {"num_layers": 8, "model_dim": 512},
    "big": {"num_layers": 8, "model_dim": 1024, "dropout": 0.3},
}
_SIMPLIFIED = {
    "block": "parallel",
    "positions": "rotary",
    "residual": False,
    "value_projection": False,
    "output_projection": False,
    "shaped_attention": True,
}

_DECODER: dict[Size, dict[str, Any]] = {
    "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4},
    "small": {"num_layers": 6, "model_dim": 384, "num_heads": 6, "dropout": 0.15},
    "base": {"num_layers": 12, "model_dim": 768, "num_heads": 12},
    "big": {"num_layers": 24, "model_dim": 1024, "num_heads": 16},
}
"""Of `base` and `big` the shapes are those of Radford et al. (2019), table 2: 124 and 355 million parameters."""

_BAG: dict[Size, dict[str, Any]] = {"tiny": {"model_dim": 128}, "small": {"model_dim": 256},
                                    "base": {"model_dim": 512}, "big": {"model_dim": 1024}}  # fmt: skip


def _decoder(feedforward: float | int, **same: Any) -> tuple[dict[Size, dict[str, Any]], dict[str, Any]]:
    """A decoder alone, whose feed-forward network is so many times as wide as the model, rounded up to 32."""
    sizes: dict[Size, dict[str, Any]] = {
        size: {
            "dropout": 0.0,
            **shape,
            "feedforward_dim": -(-round(feedforward * shape["model_dim"]) // 32) * 32,
        }
        for size, shape in _DECODER.items()
    }
    return sizes, {"family": "transformer", "encoder_layers": 0, "block": "pre-norm", **same}


_GPT = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "squared-relu",
    "query_key_norm": True,
    "bias": False,
}
_GPT2 = {"positions": "learned", "activation": "gelu-tanh", "initialization": "gpt2", "scale_embeddings": False}
_LLAMA = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    "initialization": "gpt2",
    "scale_embeddings": False,
    "bias": False,
}

_VISION: dict[Size, dict[str, Any]] = {
    "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512},
    "small": {"num_layers": 12, "model_dim": 384, "num_heads": 6, "feedforward_dim": 1536},
    "base": {"num_layers": 12, "model_dim": 768, "num_heads": 12, "feedforward_dim": 3072},
    "big": {"num_layers": 24, "model_dim": 1024, "num_heads": 16, "feedforward_dim": 4096},
}
"""`base` and `big` are ViT-Base and ViT-Large of Dosovitskiy et al. (2020), table 1."""
_VIT = {
    "family": "transformer",
    "decoder_layers": 0,
    "block": "pre-norm",
    "positions": "learned",
    "activation": "gelu",
    "scale_embeddings": False,
    "initialization": "gpt2",
}

KINDS: dict[str, tuple[dict[Size, dict[str, Any]], dict[str, Any]]] = {
    "transformer": (_TRANSFORMER, {"family": "transformer"}),
    "simplified": (_TRANSFORMER, {"family": "transformer", **_SIMPLIFIED}),
    "rnn": (_RECURRENT, {"family": "recurrent", "cell": "rnn"}),
    "gru": (_RECURRENT, {"family": "recurrent", "cell": "gru"}),
    "lstm": (_RECURRENT, {"family": "recurrent", "cell": "lstm"}),
    "gru-attention": (_RECURRENT, {"family": "recurrent", "cell": "gru", "attention": "bahdanau"}),
    "lstm-attention": (_RECURRENT, {"family": "recurrent", "cell": "lstm", "attention": "luong"}),
    "convolution": (_CONVOLUTIONAL, {"family": "convolutional"}),
    "bag": (_BAG, {"family": "transformer", "num_layers": 0, "positions": "none"}),
    "gpt": _decoder(4, **_GPT),
    "gpt2": _decoder(4, **_GPT2),
    "llama": _decoder(8 / 3, **_LLAMA),
    "vit": (_VISION, _VIT),
}
"""For each kind its sizes, and what is the same in all of them."""

SIZES: tuple[Size, ...] = get_args(Size)


def preset(name: str, size: Size = "tiny") -> tuple[str, dict[str, Any]]:
    """The full name, and the model settings, of what goes by this name; `size` where the name has none.

    Example:
        >>> preset("lstm")
        ('lstm-tiny', {'num_layers': 2, 'model_dim': 192, 'family': 'recurrent', 'cell': 'lstm'})
    """
    if name in SIZES:
        return name, {**_TRANSFORMER[name], "family": "transformer"}
    kind, _, ending = name.rpartition("-")
    if kind in KINDS and ending in SIZES:
        size = ending
    elif name in KINDS:
        kind = name
    else:
        known = [*KINDS, *SIZES, *(f"{one}-{other}" for one in KINDS for other in SIZES)]
        close = nearest(name, known)
        told = close if "did you mean" in close else f"; known: {', '.join([*KINDS, *SIZES])}"
        raise ConfigError(f"no preset is called {name!r}{told}")
    sizes, same = KINDS[kind]
    full_name = size if kind == "transformer" else f"{kind}-{size}"
    return full_name, {**sizes[size], **same}


def without_encoder(model: dict[str, Any]) -> dict[str, Any]:
    """The same shape as a language model: a decoder alone, which reads forwards."""
    alone = {**model, "encoder_layers": 0}
    return {**alone, "bidirectional": False, "attention": "none"} if model["family"] == "recurrent" else alone


def without_decoder(model: dict[str, Any]) -> dict[str, Any]:
    """The same shape as a model that reads: its encoder alone; a decoder alone stays what it is."""
    if model.get("encoder_layers") == 0:
        return model
    alone = {**model, "decoder_layers": 0}
    return {**alone, "attention": "none"} if model["family"] == "recurrent" else alone


def has_size(name: str) -> bool:
    """Whether a name says its size, or leaves it to be chosen."""
    return name not in KINDS
