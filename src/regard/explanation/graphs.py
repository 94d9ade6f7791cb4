"""Drawings of graphs: nodes shaded by the weights with which one of them, or the whole graph, reads them."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.explanation.colors import INK, MUTED
from regard.tasks.capabilities import GraphDrawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS = 300
_INCHES = 0.62
"""The length of an edge in a figure."""
_APART = 0.09
"""Half the distance between the lines of a double bond, in lengths of an edge."""
_PIXELS, _MARGIN, _RADIUS, _LONGEST_NAME = 26, 12, 7.5, 2
"""The length of an edge, the margin and the radius of a node in pixels, and the characters that fit into a node."""


def lay_out(drawing: GraphDrawing) -> tuple[tuple[float, float], ...]:
    """Returns the coordinates of the nodes, an edge about 1 long; without given ones, by springs.

    Fruchterman & Reingold, "Graph Drawing by Force-Directed Placement" (1991): all nodes repel each other, those with
    an edge attract each other.
    """
    count = len(drawing.names)
    ends = np.array([edge[:2] for edge in drawing.edges], np.int64).reshape(-1, 2)
    if drawing.positions is not None:
        places = np.array(drawing.positions, np.float64)
    else:
        places = _springs(count, ends)
    lengths = np.linalg.norm(places[ends[:, 0]] - places[ends[:, 1]], axis=1)
    places = (places - places.mean(axis=0)) / (float(np.median(lengths)) if len(ends) else 1.0)
    return tuple((float(x), float(y)) for x, y in places)


def _springs(count: int, ends: NDArray[np.int64]) -> NDArray[np.float64]:
    angles = 2 * np.pi * np.arange(count) / max(1, count)
    # A circle with a small perturbation, which is the same each time: on a perfect circle forces can cancel.
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.sqrt(count)
    places += 0.1 * np.random.default_rng(0).normal(size=places.shape)
    for step in range(_STEPS):
        offsets = places[:, None] - places[None]
        distances = np.maximum(np.linalg.norm(offsets, axis=2), 0.01)
        forces = (offsets / distances[..., None] ** 2).sum(axis=1) - 0.02 * places
        along = places[ends[:, 0]] - places[ends[:, 1]]
        pulls = along * np.linalg.norm(along, axis=1, keepdims=True)
        np.add.at(forces, ends[:, 0], -pulls)
        np.add.at(forces, ends[:, 1], pulls)
        sizes = np.maximum(np.linalg.norm(forces, axis=1, keepdims=True), 1e-9)
        places = places + forces / sizes * np.minimum(sizes, 0.3 * (1 - step / _STEPS))
    return places


def draw_graph(path: Path, drawing: GraphDrawing, weights: NDArray[np.float32], *, title: str) -> None:
    """Writes a figure of the graph with its nodes shaded by `weights`, as PNG or SVG."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    from regard.explanation.figures import RAMP, save_figure

    places = np.array(lay_out(drawing))
    size = np.maximum(np.ptp(places, axis=0) + 1.2, 2.5)
    figure = Figure(figsize=(_INCHES * float(size[0]) + 1.2, _INCHES * float(size[1]) + 0.5), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 0.86, 0.9))
    _draw_edges(axes, drawing.edges, places)
    largest = float(weights.max()) or 1.0
    for name, place, weight in zip(drawing.names, places, weights, strict=True):
        share = float(weight) / largest
        axes.add_patch(_circle(place, RAMP(share)))
        axes.text(
            place[0],
            place[1],
            name,
            ha="center",
            va="center",
            fontsize=9,
            color="white" if share > 0.55 else INK,
            zorder=3,
        )
    middle = (places.max(axis=0) + places.min(axis=0)) / 2
    axes.set_xlim(middle[0] - size[0] / 2, middle[0] + size[0] / 2)
    axes.set_ylim(middle[1] - size[1] / 2, middle[1] + size[1] / 2)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    bar = figure.colorbar(ScalarMappable(Normalize(0.0, largest), RAMP), cax=figure.add_axes((0.9, 0.2, 0.02, 0.5)))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]  # typed as if it were callable
    bar.set_ticks([0.0, largest], labels=["0", f"{largest:.2f}"])
    bar.ax.set_title("weight", fontsize=8, color=MUTED)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    save_figure(figure, path)


def graph_svg(drawing: GraphDrawing) -> str:
    """A small drawing of the graph as SVG, in the colors of a white page."""
    places = np.array(lay_out(drawing)) * _PIXELS * np.array([1, -1])
    left, top = places.min(axis=0) - _MARGIN
    width, height = np.ptp(places, axis=0) + 2 * _MARGIN
    parts = []
    for one, other, order in drawing.edges:
        for shift, style in bond_lines(order):
            (x1, y1), (x2, y2) = _beside(places[one], places[other], shift * _APART * _PIXELS)
            dashes = ' stroke-dasharray="2 2"' if style == ":" else ""
            parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{MUTED}"{dashes}/>')
    for name, (x, y) in zip(drawing.names, places, strict=True):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="#fff" stroke="{MUTED}" stroke-width="0.6"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" dy="0.35em" fill="{INK}">{escape(name[:_LONGEST_NAME])}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{left:.1f} {top:.1f} {width:.1f} {height:.1f}" font-family="sans-serif" font-size="9" '
        f'text-anchor="middle">{"".join(parts)}</svg>'
    )


def _circle(place: NDArray[np.float64], color: Any) -> Any:
    from matplotlib.patches import Circle

    return Circle((place[0], place[1]), 0.3, facecolor=color, edgecolor=MUTED, linewidth=0.6, zorder=2)


def _draw_edges(axes: "Axes", edges: Sequence[tuple[int, int, float]], places: NDArray[np.float64]) -> None:
    for one, other, order in edges:
        for shift, style in bond_lines(order):
            line = _beside(places[one], places[other], shift * _APART)
            axes.plot(line[:, 0], line[:, 1], color=MUTED, linewidth=1.3, linestyle=style, zorder=1)


def _beside(start: NDArray[np.float64], end: NDArray[np.float64], distance: float) -> NDArray[np.float64]:
    """The ends of a line that is parallel to that from `start` to `end`."""
    direction = (end - start) / max(float(np.linalg.norm(end - start)), 1e-9)
    return np.stack([start, end]) + distance * np.array([-direction[1], direction[0]])


def bond_lines(order: float) -> list[tuple[float, str]]:
    """Returns the lines of a bond: how far each is from the middle, and whether it is solid or dashed."""
    if order == 1.5:
        return [(-0.6, "-"), (0.9, ":")]
    if order == 2.0:
        return [(-0.8, "-"), (0.8, "-")]
    return [(0.0, "-"), (-1.4, "-"), (1.4, "-")] if order == 3.0 else [(0.0, "-")]
