r"""Maps over an image: which of its squares a prediction was computed from.

Abnar & Zuidema, "Quantifying Attention Flow in Transformers" (2020), equation 1: rollout. https://arxiv.org/abs/2005.00928
Selvaraju et al., "Grad-CAM" (2017), equations 1 and 2. https://arxiv.org/abs/1610.02391

    attention   of a Vision Transformer: the weights of the class token over the patches, of each layer and head
    rollout     the attention of all layers: $\tilde A = A_L \cdots A_1$ with $A_l = (\bar W_l + I) / 2$, where
                $\bar W_l$ are the weights of layer $l$, averaged over its heads
    grad-cam    of a convolutional network: $\max(0, \sum_k \alpha_k F_k)$ of the last feature map $F$, where
                $\alpha_k$ is the mean gradient of the logit of the label with respect to channel $k$; divided by its
                maximum

Dimensions: `layers`, `heads`, `query` and `key` positions; `rows` and `columns` of squares of an image.
"""

import base64
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.formats.images import ImageConfig, image_size, read_image
from regard.errors import ConfigError
from regard.explanation.attention.drawing import HeatMap
from regard.explanation.attention.maps import weights_for_page
from regard.explanation.attention.recording import has_attention, record_attention
from regard.explanation.colors import INK, MUTED
from regard.explanation.pages import frame, page_html, write_page
from regard.files import check_suffix, write_atomically
from regard.models.heads import pooled
from regard.models.protocols import EncoderOutput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"attention": "Attention of the class token", "rollout": "Attention rollout", "grad-cam": "Grad-CAM"}
_POOLED_NAME = "Attention, averaged over all positions"
_LARGEST = 448
"""Height and width, in pixels, of the picture on a page or in a figure."""
_SIDE, _TILE = 3.2, 0.8
"""Sizes of the pictures of a figure, in inches."""
_OPACITY = 0.75
"""The opacity of the color over the square with the largest weight."""


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """Maps of one prediction over its image."""

    source: str
    """The path of the image."""
    prediction: str
    picture: NDArray[np.uint8]
    """By row, column and channel."""
    aspect: float
    """Width of the image in the file, divided by its height: the picture is a square."""
    weights: Mapping[str, NDArray[np.float32]]
    """By kind, an array of layers, heads, rows, columns; rollout and grad-cam are of one layer and one head."""
    is_pooled: bool = False
    """Whether the attention is the mean over all positions, since the model has no class token that it reads."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of maps; the last one summarizes the model."""
        return tuple(self.weights)

    def num_layers(self, kind: str) -> int:
        return self._known(kind).shape[0]

    def num_heads(self, kind: str) -> int:
        return self._known(kind).shape[1]

    def average(self, kind: str, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """Returns one map, rows by columns: the mean over all layers and all heads that are not given."""
        return self.select(kind, layer, head).mean(axis=(0, 1), dtype=np.float64).astype(np.float32)

    def select(self, kind: str, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """Returns the maps of one layer, of one head, of both, or all: still layers, heads, rows, columns."""
        found = self._known(kind)
        for name, index, count in (("layer", layer, len(found)), ("head", head, found.shape[1])):
            if index is not None and not 0 <= index < count:
                raise ConfigError(f"the index of a {name} must be in 0 to {count - 1} for {kind}, got {index}")
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        heads = slice(None) if head is None else slice(head, head + 1)
        return found[layers, heads]

    def describe(self, kind: str, layer: int | None = None, head: int | None = None) -> str:
        """Returns a title of the map."""
        name = _POOLED_NAME if kind == "attention" and self.is_pooled else NAMES[kind]
        parts = [f"{part} {index + 1}" for part, index in (("layer", layer), ("head", head)) if index is not None]
        if kind == "attention" and len(parts) < 2:
            parts.append("mean of " + " and ".join(["all layers"] * (layer is None) + ["all heads"] * (head is None)))
        return ", ".join([name, *parts])

    def heat_map(
        self, kind: str | None = None, *, layer: int | None = None, head: int | None = None, width: int | None = None
    ) -> HeatMap:
        """Returns one map for a rich console."""
        kind = kind or self.kinds[-1]
        weights = self.average(kind, layer, head)
        rows, columns = (tuple(str(number + 1) for number in range(count)) for count in weights.shape)
        return HeatMap(weights, rows, columns, ("row", "column"), self.describe(kind, layer, head), width)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> None:
        """Writes the maps, in a format chosen by the suffix of `path`.

        `.html` is a page on which every map can be selected, and `.json` has the weights of all of them. `.png` and
        `.svg` are figures of one map over the image, and of the maps that it averages.

        Example:
            run.image_maps("photo.png").save("attention.html")
        """
        path = check_suffix(path, (".html", ".png", ".svg", ".json"))
        suffix, kind = path.suffix.lower(), kind or self.kinds[-1]
        parts = self.select(kind, layer, head)
        if suffix == ".html":
            write_page(path, "image-maps", title=self._title, data=self.to_page_data())
        elif suffix == ".json":
            write_atomically(path, json.dumps(self.to_json(), ensure_ascii=False).encode("utf-8", errors="replace"))
        else:
            # Imported here, since importing matplotlib takes longer than printing a map.
            from regard.explanation.figures import save_figure

            title = f"{self.describe(kind, layer, head)}: {self.prediction}"
            save_figure(_figure(self, parts, title=title, first=(layer or 0, head or 0)), path)

    def to_json(self) -> dict[str, Any]:
        """Returns the maps in the types of JSON, with the weights as nested lists."""
        weights = {kind: found.tolist() for kind, found in self.weights.items()}
        return {"input": self.source, "output": self.prediction, "weights": weights}

    def to_page_data(self) -> dict[str, Any]:
        """Returns what a page embeds: the picture as PNG, and the weights as two-byte integers."""
        drawn = io.BytesIO()
        Image.fromarray(self.picture).save(drawn, format="PNG")
        return {
            "input": self.source,
            "output": self.prediction,
            "picture": "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode("ascii"),
            "aspect": self.aspect,
            "names": {kind: self.describe(kind).split(", mean of")[0] for kind in self.kinds},
            "weights": {kind: weights_for_page(found) for kind, found in self.weights.items()},
        }

    def _repr_html_(self) -> str:
        return frame(page_html("image-maps", title=self._title, data=self.to_page_data()))

    @property
    def _title(self) -> str:
        return f"{os.path.basename(self.source)}: {self.prediction}"

    def _known(self, kind: str) -> NDArray[np.float32]:
        if kind not in self.weights:
            raise ConfigError(f"this model has no maps of kind {kind!r}, it has {', '.join(self.kinds)}")
        return self.weights[kind]


def image_maps(model: Any, path: str, image: ImageConfig, *, prediction: str, label: int) -> ImageMaps:
    """Returns the maps of a classifier of images: attention and rollout, or for a model without attention Grad-CAM.

    Args:
        model: A classifier with a `body`, a `pooling` and a `head`.
        path: The image.
        image: The size of the images that the model reads.
        prediction: The label to show.
        label: Its index among the logits.
    """
    pixels = torch.from_numpy(read_image(path, image))[None].to(next(model.parameters()).device)
    is_pooled = model.pooling.how != "first"
    weights = (
        _attention_maps(model, pixels, is_pooled) if has_attention(model.body) else _grad_cam(model, pixels, label)
    )
    width, height = image_size(path)
    shown = image.changed(size=min(_LARGEST, max(width, height)), patch_size=1)
    picture = read_image(path, shown).transpose(1, 2, 0)
    picture = np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
    return ImageMaps(path, prediction, picture, width / height, weights, is_pooled)


@torch.inference_mode()
def _attention_maps(model: Any, pixels: Tensor, is_pooled: bool) -> dict[str, NDArray[np.float32]]:
    with record_attention(model.body) as recorded:
        model.body.encode(pixels)
    weights = torch.stack([layer[0] for layer in recorded.values()]).float().cpu().numpy()
    rolled = attention_rollout(weights)[None, None]
    return {
        kind: _squares(_of_query(found, is_pooled)) for kind, found in (("attention", weights), ("rollout", rolled))
    }


def attention_rollout(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns query by key, the attention of all layers: weights by layer, head, query and key."""
    averaged = weights.mean(axis=1, dtype=np.float64)
    identity = np.eye(weights.shape[-1])
    product = identity
    for layer in averaged:
        product = (layer + identity) / 2 @ product
    return product.astype(np.float32)


def _of_query(weights: NDArray[np.float32], is_pooled: bool) -> NDArray[np.float32]:
    """Layers, heads, key: the row of the class token, or the mean of all; without the class token as a key."""
    rows = weights.mean(axis=2) if is_pooled else weights[:, :, 0]
    return rows[:, :, 1:]


def _squares(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    side = round(weights.shape[-1] ** 0.5)
    return weights.reshape(*weights.shape[:2], side, side)


def _grad_cam(model: Any, pixels: Tensor, label: int) -> dict[str, NDArray[np.float32]]:
    with torch.no_grad():
        features = model.body.encode(pixels).hidden_states
    features.requires_grad_()
    logit = model.head(pooled(model.pooling, EncoderOutput(features, None)))[0, label]
    (gradient,) = torch.autograd.grad(logit, features)
    found = (features.detach() * gradient.mean(dim=1, keepdim=True)).sum(dim=-1).clamp(min=0.0)
    weights = (found / found.max().clamp(min=1e-12)).float().cpu().numpy()
    return {"grad-cam": _squares(weights[:, None])}


def _figure(maps: ImageMaps, parts: NDArray[np.float32], *, title: str, first: tuple[int, int]) -> "Figure":
    """Draws the image, the average of `parts` over it and, where there are several, each part."""
    from matplotlib.figure import Figure

    average = parts.mean(axis=(0, 1), dtype=np.float64)
    has_tiles = parts.shape[0] * parts.shape[1] > 1
    # A picture keeps its proportions, within a square.
    wide, high = min(1.0, maps.aspect), min(1.0, 1 / maps.aspect)
    grid = (parts.shape[1] * _TILE * wide, parts.shape[0] * _TILE * high) if has_tiles else (0.0, 0.0)
    side = _SIDE * wide, _SIDE * high
    gap = 0.35
    width = 2 * side[0] + gap + (2 * gap + grid[0] if has_tiles else 0.0)
    height = max(side[1], grid[1])
    figure = Figure(figsize=(width, height), facecolor="white")

    def place(left: float, top: float, size: tuple[float, float]) -> "Axes":
        axes = figure.add_axes((left / width, 1 - (top + size[1]) / height, size[0] / width, size[1] / height))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        return axes

    picture = place(0.0, 0.0, side)
    picture.imshow(maps.picture, aspect="auto")
    picture.set_title(title, loc="left", fontsize=11, color=INK, pad=10)
    over = place(side[0] + gap, 0.0, side)
    _draw_over(over, maps.picture, average, float(average.max()) or 1.0)
    over.set_xlabel(f"weight of a square: 0 to {average.max():.3f}", fontsize=7.5, color=MUTED, loc="left", labelpad=5)
    tile = _TILE * wide, _TILE * high
    for layer in range(parts.shape[0] if has_tiles else 0):
        for head in range(parts.shape[1]):
            left = 2 * side[0] + 3 * gap + head * tile[0]
            axes = place(left, layer * tile[1], (0.94 * tile[0], 0.94 * tile[1]))
            # On a scale of its own: the largest weights of some heads are a hundred times those of others.
            _draw_over(axes, maps.picture, parts[layer, head], float(parts[layer, head].max()) or 1.0)
            if layer == 0:
                axes.set_title(f"head {first[1] + head + 1}", fontsize=6.5, color=MUTED, pad=3)
            if head == 0:
                axes.set_ylabel(f"layer {first[0] + layer + 1}", fontsize=6.5, color=MUTED, labelpad=3)
    return figure


def _draw_over(axes: "Axes", picture: NDArray[np.uint8], weights: NDArray[Any], largest: float) -> None:
    """Draws a picture in gray, and over it the weights: the larger, the more opaque and red."""
    height, width = picture.shape[:2]
    extent = (0.0, float(width), float(height), 0.0)
    axes.imshow(picture.mean(axis=2), cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto")
    share = np.clip(weights / largest, 0.0, 1.0)
    colors = np.stack([np.ones_like(share), 0.8 * (1 - share), np.zeros_like(share), _OPACITY * share], axis=-1)
    axes.imshow(colors, extent=extent, aspect="auto", interpolation="nearest")
