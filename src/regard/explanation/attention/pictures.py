"""Attention over a picture: the weights of the cells of an image for each token of its caption.

Xu et al., "Show, Attend and Tell" (2015), figures 2 and 3. https://arxiv.org/abs/1502.03044
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from rich.cells import set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.data.formats.images import ImageConfig, is_data_uri, read_image, to_data_uri
from regard.errors import ConfigError
from regard.explanation.attention.drawing import block
from regard.explanation.attention.maps import AttentionMaps
from regard.explanation.colors import INK, MUTED
from regard.explanation.tokens import visible
from regard.files import check_suffix

_SHOWN_SIZE = 256
"""Height and width of a picture on a page, in pixels."""
_SMALL = 64
"""An image that a model reads in so few pixels is shown with sharp pixels."""
_PER_ROW, _TILE = 6, 1.5
"""Pictures in a row of a figure, and the side of one in inches."""
_VEIL = 0.82
"""How much a cell without attention is darkened."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PictureMaps(AttentionMaps):
    """The attention maps of a caption; the keys are the cells of a square image, row by row."""

    picture: NDArray[np.uint8]
    """By row, column and channel."""

    @property
    def side(self) -> int:
        """Cells in a row of the image."""
        return math.isqrt(len(self.source_tokens))

    def heat_map(  # pyright: ignore[reportIncompatibleMethodOverride]  another drawing
        self, kind: str | None = None, *, layer: int | None = None, head: int | None = None, width: int | None = None
    ) -> "PictureHeatMap":
        """Returns the maps of all tokens for a rich console, each a square of cells."""
        kind = kind or self.kinds[-1]
        weights = self.average(kind, layer, head).reshape(-1, self.side, self.side)
        return PictureHeatMap(weights, tuple(map(visible, self.target_tokens)), self.describe(kind, layer, head), width)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> None:
        """Writes the maps over the picture, as a page (.html) or a figure (.png, .svg), or as .json."""
        path = check_suffix(path, (".html", ".png", ".svg", ".json"))
        if path.suffix.lower() in (".html", ".json"):
            super().save(path, kind=kind)
            return
        kind = kind or self.kinds[-1]
        _draw(self, path, self.average(kind, layer, head), self.describe(kind, layer, head))

    def to_page_data(self) -> dict[str, Any]:
        """Returns what a page embeds, with the picture as a data URI."""
        return {**super().to_page_data(), "input": short_name(self.source), "picture": to_data_uri(self.picture)}


@dataclass(frozen=True, eq=False)
class PictureHeatMap:
    """A square of cells for each token, which a rich console can print."""

    weights: Float[np.ndarray, "tokens rows columns"]
    tokens: tuple[str, ...]
    title: str
    width: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width or options.max_width, options.max_width)
        is_colored = console.color_system is not None and not console.no_color
        side = 2 * self.weights.shape[2]
        at_once = max(1, width // (side + 2))
        yield Text(self.title, style="bold")
        yield Text("each square: the image; its cells by the attention weight when the token is generated", style="dim")
        for start in range(0, len(self.tokens), at_once):
            some = range(start, min(start + at_once, len(self.tokens)))
            yield Text()
            yield Text("  ".join(set_cell_size(self.tokens[token], side) for token in some), no_wrap=True)
            for row in range(self.weights.shape[1]):
                line = Text(no_wrap=True)
                for token in some:
                    peak = float(self.weights[token].max()) or 1.0
                    for weight in self.weights[token, row]:
                        line.append_text(block(float(weight) / peak, 2, is_colored=is_colored))
                    line.append("  ")
                yield line


def picture_maps(
    tokens: list[str], layers: list[Float[np.ndarray, "heads target cells"]], image: str, caption: str, size: int
) -> PictureMaps:
    """The maps of a caption, as a task returns them; `size` is the number of pixels that the model reads in a row."""
    if len({layer.shape for layer in layers}) != 1:
        raise ConfigError("the layers of a decoder must have the same number of heads to be drawn")
    side = math.isqrt(layers[0].shape[-1])
    cells = [f"row {row + 1}, column {column + 1}" for row in range(side) for column in range(side)]
    return PictureMaps(
        source_tokens=tuple(cells),
        target_tokens=tuple(map(visible, tokens)),
        target_inputs=("<s>", *map(visible, tokens[:-1])),
        weights={"cross": np.stack(layers).astype(np.float32)},
        source=image,
        prediction=caption,
        picture=shown_picture(image, _SHOWN_SIZE, is_sharp=size <= _SMALL),
    )


def shown_picture(image: str, size: int, *, is_sharp: bool = False) -> NDArray[np.uint8]:
    """The pixels of an image for display, by row, column and channel."""
    config = ImageConfig(size=size, patch_size=size, resampling="nearest" if is_sharp else "bilinear")
    return read_image(image, config).transpose(1, 2, 0)


def short_name(image: str) -> str:
    """The name of an image for titles.

    Example:
        >>> short_name("photos/dog.jpg"), short_name("data:image/png;base64,iVBO")
        ('dog.jpg', 'picture')
    """
    return "picture" if is_data_uri(image) else Path(image).name


def _draw(maps: PictureMaps, path: Path, weights: NDArray[np.float32], title: str) -> None:
    # Imported here, since importing matplotlib takes longer than printing a map.
    from matplotlib.figure import Figure

    from regard.explanation.figures import save_figure

    tiles = [maps.picture, *(_darkened(maps.picture, own.reshape(maps.side, -1)) for own in weights)]
    names = [short_name(maps.source), *map(visible, maps.target_tokens)]
    largest = ["", *(f"largest weight {own.max():.2f}" for own in weights)]
    num_rows = math.ceil(len(tiles) / _PER_ROW)
    figure = Figure(figsize=(_TILE * min(_PER_ROW, len(tiles)), (_TILE + 0.4) * num_rows), facecolor="white")
    for number, (tile, name, note) in enumerate(zip(tiles, names, largest, strict=True), start=1):
        axes = figure.add_subplot(num_rows, min(_PER_ROW, len(tiles)), number)
        axes.imshow(tile, interpolation="nearest")
        axes.set_title(name, fontsize=9, color=INK, pad=4)
        axes.set_xlabel(note, fontsize=6, color=MUTED, labelpad=3)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    figure.suptitle(f"{maps.prediction}\n{title}: bright cells have the largest weight", fontsize=9, color=INK)
    save_figure(figure, path)


def _darkened(picture: NDArray[np.uint8], weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The picture with its cells darkened by how far they are from the largest weight."""
    height, width, _ = picture.shape
    rows, columns = (np.arange(count) * weights.shape[0] // count for count in (height, width))
    shares = (weights / (float(weights.max()) or 1.0))[rows][:, columns]
    return (picture * (1 - _VEIL * (1 - shares[..., None]))).astype(np.uint8)
