"""Attention maps: the attention weights of one prediction, with tokens on both axes.

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and
Translate" (2014), section 5.2.1, introduced them.
https://arxiv.org/abs/1409.0473

Axes of an array of weights, in order:
    layers, heads   indexed from 0 in Python, numbered from 1 in titles and on pages
    query           a row of the map
    key             a column of the map; the weights of a row sum to 1
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import ConfigError
from regard.explanation.attention.drawing import HeatMap, draw_heads
from regard.explanation.graphs import draw_graph
from regard.explanation.pages import frame, page_html, write_page
from regard.explanation.tokens import visible
from regard.files import check_suffix, write_atomically
from regard.tasks.capabilities import GraphDrawing

_AXES = {
    "encoder": ("source_tokens", "source_tokens"),
    "decoder": ("target_tokens", "target_inputs"),
    "cross": ("target_tokens", "source_tokens"),
}
"""For each kind of attention, the tokens of its rows and of its columns."""
_ROLES = {
    "encoder": ("source token (query)", "source token (key)"),
    "decoder": ("generated token (query)", "input token (key)"),
    "cross": ("generated token (query)", "source token (key)"),
}
"""For each kind of attention, the labels of its two axes."""
_LEVELS = 65535
"""Weights embedded in a page are integers from 0 to this one, two bytes each."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention weights of one prediction.

    A row of the decoder belongs to two tokens: the one that was read there and the one that was generated there. Rows
    are named for the generated token, since that is what the weights contribute to.
    """

    source_tokens: tuple[str, ...]
    """The tokens of the source as visible text."""
    target_tokens: tuple[str, ...]
    """For each row of the decoder, the token generated there."""
    target_inputs: tuple[str, ...]
    """For each row of the decoder, the token read there; the first is the start token."""
    weights: Mapping[str, NDArray[np.float32]]
    """By kind (`encoder`, `decoder`, `cross`), an array of layers, heads, query, key; a kind may be absent."""
    source: str
    prediction: str
    drawing: GraphDrawing | None = None
    """The graph that was read, with the positions of its nodes: row 0 is the whole graph, the others are its nodes."""

    def __post_init__(self) -> None:
        if len(self.target_tokens) != len(self.target_inputs):
            raise ConfigError(
                "each row of the decoder reads one token and generates one, "
                f"got {len(self.target_inputs)} target_inputs and {len(self.target_tokens)} target_tokens"
            )
        if not self.weights:
            raise ConfigError(f"weights must contain at least one of {', '.join(_AXES)}, got none")
        for kind, weights in self.weights.items():
            if kind not in _AXES:
                raise ConfigError(f"a kind of attention must be one of {', '.join(_AXES)}, got {kind!r}")
            self._check(kind, weights)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of attention recorded, in the order encoder, decoder, cross."""
        return tuple(kind for kind in _AXES if kind in self.weights)

    def rows(self, kind: str) -> tuple[str, ...]:
        """Returns the query tokens."""
        return getattr(self, _AXES[self._known(kind)][0])

    def columns(self, kind: str) -> tuple[str, ...]:
        """Returns the key tokens."""
        return getattr(self, _AXES[self._known(kind)][1])

    def num_layers(self, kind: str) -> int:
        return self.weights[self._known(kind)].shape[0]

    def num_heads(self, kind: str) -> int:
        return self.weights[self._known(kind)].shape[1]

    def average(self, kind: str, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """Returns one map, rows by columns: the mean over all layers and all heads that are not given."""
        return self.select(kind, layer, head).mean(axis=(0, 1), dtype=np.float64).astype(np.float32)

    def select(self, kind: str, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """Returns the maps of one layer, of one head, of both, or all: still layers, heads, query, key."""
        weights = self.weights[self._known(kind)]
        for name, index, count in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
            if index is not None and not 0 <= index < count:
                raise ConfigError(
                    f"the index of a {name} must be in 0 to {count - 1} for {kind} attention, got {index}"
                )
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        heads = slice(None) if head is None else slice(head, head + 1)
        return weights[layers, heads]

    def describe(self, kind: str, layer: int | None = None, head: int | None = None) -> str:
        """Returns a title for what `average` shows with the same arguments; layers and heads are numbered from 1."""
        num_layers, num_heads = self.select(kind, layer, head).shape[:2]
        named = [f"{name} {index + 1}" for name, index in (("layer", layer), ("head", head)) if index is not None]
        averaged = [f"{count} {name}s" for name, count in (("layer", num_layers), ("head", num_heads)) if count > 1]
        parts = named + ([f"average of {' and '.join(averaged)}"] if averaged else [])
        return ", ".join([f"{kind.capitalize()} attention", *parts])

    def heat_map(
        self,
        kind: str | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
        width: int | None = None,
    ) -> HeatMap:
        """Returns one map for a rich console; by default the last of `kinds`, averaged over what is not given.

        A map wider than `width` (by default the width of the console) continues in a second band below.
        """
        kind = kind or self.kinds[-1]
        return HeatMap(
            weights=self.average(kind, layer, head),
            rows=tuple(map(visible, self.rows(kind))),
            columns=tuple(map(visible, self.columns(kind))),
            roles=_ROLES[kind],
            title=self.describe(kind, layer, head),
            width=width,
        )

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> None:
        """Writes the maps, in a format chosen by the suffix of `path`.

        `.html` is a page on which every kind, layer and head can be selected, and `.json` has the weights of all of
        them. `.png` and `.svg` are figures of one kind, by default the last of `kinds`: the average over the layers
        and heads that are not given, and beside it the maps that were averaged. Of a graph, the figure is the graph
        with its nodes shaded by the average weights with which the whole graph reads them.

        Example:
            maps = regard.attention_maps(run, "4 March 2025")
            maps.save("attention.html")
            maps.save("head.png", kind="encoder", layer=0, head=1)
        """
        path = check_suffix(path, (".html", ".png", ".svg", ".json"))
        suffix = path.suffix.lower()
        kind = kind or self.kinds[-1]
        parts = self.select(kind, layer, head)
        if suffix == ".html":
            write_attention_page(self, path)
        elif suffix == ".json":
            write_atomically(path, json.dumps(self.to_json(), ensure_ascii=False).encode("utf-8", errors="replace"))
        elif self.drawing is not None:
            weights = self.average(kind, layer, head)[0, 1:]
            draw_graph(path, self.drawing, weights, title=f"{self.prediction}: {self.describe(kind, layer, head)}")
        else:
            draw_heads(
                path,
                parts,
                rows=[visible(token) for token in self.rows(kind)],
                columns=[visible(token) for token in self.columns(kind)],
                roles=_ROLES[kind],
                title=self.describe(kind, layer, head),
                first=(layer or 0, head or 0),
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the maps in the types of JSON, with the weights as nested lists."""
        return {
            "input": self.source,
            "output": self.prediction,
            **{name: list(getattr(self, name)) for name in ("source_tokens", "target_tokens", "target_inputs")},
            "weights": {kind: self.weights[kind].tolist() for kind in self.kinds},
            **({} if self.drawing is None else {"drawing": asdict(self.drawing)}),
        }

    def to_page_data(self) -> dict[str, Any]:
        """Returns what a page embeds: the weights as two-byte integers (little-endian, base64), exact to 1e-5."""
        return {**self.to_json(), "weights": {kind: weights_for_page(self.weights[kind]) for kind in self.kinds}}

    def _repr_html_(self) -> str:
        return frame(page_html("attention", title=_title([self]), data=[self.to_page_data()]))

    def _known(self, kind: str) -> str:
        if kind not in self.weights:
            raise ConfigError(f"no attention of kind {kind!r} was recorded; recorded: {', '.join(self.kinds)}")
        return kind

    def _check(self, kind: str, weights: NDArray[np.float32]) -> None:
        expected = (len(self.rows(kind)), len(self.columns(kind)))
        if weights.ndim != 4 or weights.shape[2:] != expected or 0 in weights.shape:
            rows, columns = _AXES[kind]
            raise ConfigError(
                f"{kind} weights must have the shape (layers, heads, {expected[0]} {rows}, {expected[1]} {columns}), "
                f"none of them empty, got {weights.shape}"
            )
        # A softmax in bfloat16 may exceed 1 by its rounding; NaN fails both comparisons.
        if not (weights.min() >= 0.0 and weights.max() <= 1.01):
            raise ConfigError(
                f"{kind} weights must be in 0 to 1, got a smallest of {weights.min()} and a largest of {weights.max()}"
            )


def write_attention_page(maps: AttentionMaps | Sequence[AttentionMaps], path: str | os.PathLike[str]) -> None:
    """Writes the maps of one prediction, or of several to choose from, as one HTML file."""
    examples = [maps] if isinstance(maps, AttentionMaps) else list(maps)
    if not examples:
        raise ConfigError("an attention page needs the maps of at least one prediction, got none")
    write_page(path, "attention", title=_title(examples), data=[example.to_page_data() for example in examples])


def _title(examples: Sequence[AttentionMaps]) -> str:
    first = examples[0]
    return f"Attention: {first.source} → {first.prediction}" if len(examples) == 1 else f"{len(examples)} examples"


def weights_for_page(weights: NDArray[np.float32]) -> dict[str, Any]:
    """Returns weights of 0 to 1 as a page embeds them: two-byte integers, little-endian, in base64."""
    levels = np.rint(np.clip(weights, 0.0, 1.0).astype(np.float64) * _LEVELS).astype("<u2")
    return {"shape": list(weights.shape), "values": base64.b64encode(levels.tobytes()).decode("ascii")}
