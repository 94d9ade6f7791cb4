"""Attention maps: who looked at whom while one prediction was made.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
Translate" (2014), section 5.2.1, drew the first of them.
https://arxiv.org/abs/1409.0473

Axes of an array of weights, in order:
    layers, heads   counted from 0, here and in every picture
    query           the position that looks: a row of the map
    key             the position looked at: a column of the map
"""

import base64
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError

AXES = {
    "encoder": ("source_tokens", "source_tokens"),
    "decoder": ("target_tokens", "target_inputs"),
    "cross": ("target_tokens", "source_tokens"),
}
"""For each kind of attention, the tokens on its rows and on its columns."""

LEVELS = 65535
"""Embedded weights are whole numbers from 0 to this one, two bytes each."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Who looked at whom while one prediction was made.

    A row of the decoder stands for two tokens: the one it read and the one it
    then produced. Rows are named for what was produced, since that is what the
    look explains.
    """

    source_tokens: tuple[str, ...]
    """The pieces of the source as a person should see them; `visible` makes them so."""
    target_tokens: tuple[str, ...]
    """For each row of the decoder, the token produced there."""
    target_inputs: tuple[str, ...]
    """For each row of the decoder, the token read there; the first is the start sign."""
    weights: Mapping[str, NDArray[np.float32]]
    """By kind (`encoder`, `decoder`, `cross`), an array of layers, heads, query, key; a kind may be absent."""
    source: str
    prediction: str

    def __post_init__(self) -> None:
        if len(self.target_tokens) != len(self.target_inputs):
            raise ConfigError(
                "each row of the decoder reads one token and produces one, "
                f"got {len(self.target_inputs)} target_inputs and {len(self.target_tokens)} target_tokens"
            )
        if not self.weights:
            raise ConfigError(f"weights must hold at least one of {', '.join(AXES)}, got none")
        for kind, weights in self.weights.items():
            if kind not in AXES:
                raise ConfigError(f"a kind of attention must be one of {', '.join(AXES)}, got {kind!r}")
            self._check(kind, weights)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention recorded, in the order encoder, decoder, cross."""
        return tuple(kind for kind in AXES if kind in self.weights)

    def rows(self, kind: str) -> tuple[str, ...]:
        """The tokens that look."""
        return getattr(self, AXES[self._known(kind)][0])

    def columns(self, kind: str) -> tuple[str, ...]:
        """The tokens looked at."""
        return getattr(self, AXES[self._known(kind)][1])

    def num_layers(self, kind: str) -> int:
        return self.weights[self._known(kind)].shape[0]

    def num_heads(self, kind: str) -> int:
        return self.weights[self._known(kind)].shape[1]

    def average(self, kind: str, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """One map, rows by columns: the mean over all layers and over all heads that are not named."""
        chosen = self.select(kind, layer, head)
        return chosen.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)

    def select(self, kind: str, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """The maps of one layer, of one head, of both, or all: still layers, heads, query, key."""
        weights = self.weights[self._known(kind)]
        for name, index, count in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
            if index is not None and not 0 <= index < count:
                raise ConfigError(f"{name} must lie in 0 to {count - 1} for {kind} attention, got {index}")
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        heads = slice(None) if head is None else slice(head, head + 1)
        return weights[layers, heads]

    def describe(self, kind: str, layer: int | None = None, head: int | None = None) -> str:
        """What `average` with the same arguments shows, for a title."""
        num_layers, num_heads = self.select(kind, layer, head).shape[:2]
        named = [f"{name} {index}" for name, index in (("layer", layer), ("head", head)) if index is not None]
        counts = (("layer", num_layers), ("head", num_heads))
        averaged = [f"{count} {name}s" for name, count in counts if count > 1]
        parts = named + ([f"average of {' and '.join(averaged)}"] if averaged else [])
        return ", ".join([f"{kind.capitalize()} attention", *parts])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; weights become whole numbers of two bytes (little-endian, base64), exact to 1e-5."""
        return {
            "source": self.source,
            "prediction": self.prediction,
            "source_tokens": list(self.source_tokens),
            "target_tokens": list(self.target_tokens),
            "target_inputs": list(self.target_inputs),
            "weights": {kind: _pack(self.weights[kind]) for kind in self.kinds},
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The maps that `to_dict` wrote."""
        return cls(
            source_tokens=tuple(data["source_tokens"]),
            target_tokens=tuple(data["target_tokens"]),
            target_inputs=tuple(data["target_inputs"]),
            weights={kind: _unpack(packed) for kind, packed in data["weights"].items()},
            source=data["source"],
            prediction=data["prediction"],
        )

    def _known(self, kind: str) -> str:
        if kind not in self.weights:
            raise ConfigError(f"no attention of kind {kind!r} was recorded; there is {', '.join(self.kinds)}")
        return kind

    def _check(self, kind: str, weights: NDArray[np.float32]) -> None:
        expected = (len(self.rows(kind)), len(self.columns(kind)))
        if weights.ndim != 4 or weights.shape[2:] != expected or 0 in weights.shape:
            rows, columns = AXES[kind]
            raise ConfigError(
                f"{kind} weights must have the shape (layers, heads, {expected[0]} {rows}, {expected[1]} {columns}), "
                f"none of them empty, got {weights.shape}"
            )
        # A softmax in bfloat16 may exceed 1 by its rounding; NaN fails both comparisons.
        if not (weights.min() >= 0.0 and weights.max() <= 1.01):
            raise ConfigError(
                f"{kind} weights must lie in 0 to 1, got a least of {weights.min()} and a largest of {weights.max()}"
            )


def visible(piece: str) -> str:
    """`piece` with nothing left that a person cannot see.

    Spaces become middle dots, line ends and tabs arrows, other control signs
    their pictures; a mark that needs a letter before it gets a dotted circle to
    sit on, and a piece made of nothing but joiners is named by its numbers.

    Example:
        >>> visible(" the"), visible("\\n")
        ('·the', '↵')
    """
    if piece and all(unicodedata.category(character) == "Cf" for character in piece):
        return " ".join(f"U+{ord(character):04X}" for character in piece)
    shown = "".join(_sign(character) for character in piece)
    return f"◌{shown}" if shown and unicodedata.category(shown[0]).startswith("M") else shown


def _sign(character: str) -> str:
    named = {" ": "·", "\u00a0": "·", "\u3000": "·", "\n": "↵", "\t": "⇥", "\x7f": "␡"}
    if character in named:
        return named[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    # A lone surrogate cannot be written as UTF-8, nor a control sign as XML.
    return "\ufffd" if unicodedata.category(character) in {"Cc", "Cs"} else character


def _pack(weights: NDArray[np.float32]) -> dict[str, Any]:
    levels = np.rint(np.clip(weights, 0.0, 1.0).astype(np.float64) * LEVELS).astype("<u2")
    return {"shape": list(weights.shape), "values": base64.b64encode(levels.tobytes()).decode("ascii")}


def _unpack(packed: Mapping[str, Any]) -> NDArray[np.float32]:
    levels = np.frombuffer(base64.b64decode(packed["values"]), dtype="<u2")
    return (levels / LEVELS).astype(np.float32).reshape(packed["shape"])
