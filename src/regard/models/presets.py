"""Named shapes.

`base` and `big` are those of Vaswani et al. (2017), table 3, to the letter.
`tiny` and `small` are for small data and small machines: normalised before
each sub-layer, so that they learn fast from few steps, and with rotary
positions, because copying and re-ordering need to know *how far*, not *where*.
"""

from typing import Any

from regard.config import nearest
from regard.errors import ConfigError

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "num_layers": 2,
        "model_dim": 128,
        "num_heads": 4,
        "feedforward_dim": 512,
        "block": "pre-norm",
        "positions": "rotary",
    },
    "small": {
        "num_layers": 4,
        "model_dim": 256,
        "num_heads": 4,
        "feedforward_dim": 1024,
        "block": "pre-norm",
        "positions": "rotary",
    },
    "base": {},
    "big": {"model_dim": 1024, "num_heads": 16, "feedforward_dim": 4096, "dropout": 0.3},
}


def preset(name: str) -> dict[str, Any]:
    """The model settings that go by this name."""
    if name not in PRESETS:
        raise ConfigError(f"no preset is called {name!r}{nearest(name, list(PRESETS))}")
    return dict(PRESETS[name])
