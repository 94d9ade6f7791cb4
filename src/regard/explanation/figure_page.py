"""A page of findings, a figure and tables, that stands alone: drawn for the day and for the night."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from regard.explanation.comparison import PALETTE
from regard.explanation.figures import INK, MUTED
from regard.explanation.templates import write_page
from regard.version import version

GRID = "#e5e5e0"
COLORS = tuple(by_day for by_day, _ in PALETTE)
"""Of lines, in the order in which they are taken."""
_BY_NIGHT = {INK: "#e6e8ed", MUTED: "#9ba2af", GRID: "#2f343e", "#ffffff": "#1a1d24", **dict(PALETTE)}


def write_figure_page(
    path: Path,
    figure: Figure,
    *,
    title: str,
    claim: str,
    findings: Sequence[str],
    tables: Sequence[Mapping[str, Any]],
    settings: Sequence[tuple[str, str]],
    command: str,
    time: str = "less than a second",
) -> None:
    """Write the page.

    Args:
        path: Where it goes.
        figure: Drawn in colours that have their counterparts for a dark page.
        title: Its head.
        claim: What is asked, or told, in one sentence.
        findings: Sentences, one each.
        tables: Each with `name`, `columns`, `rows` of texts, and a `note` or none.
        settings: What it was made from, name and text.
        command: What to type to see the same again.
        time: How long that takes, in words.
    """
    drawing = to_svg(figure)
    data = {
        "title": title,
        "claim": claim,
        "findings": list(findings),
        "tables": list(tables),
        "settings": [list(pair) for pair in settings],
        "light": _as_uri(drawing),
        "dark": _as_uri(by_night(drawing)),
        "command": command,
        "time": time,
        "version": version(),
    }
    write_page(
        path,
        "study.html",
        title=title,
        data=data,
        styles=["style.css", "report.css", "study.css"],
        scripts=["common.js", "study.js", "study_start.js"],
    )


def to_svg(figure: Figure) -> str:
    """The figure as drawing on nothing, its letters as outlines, so that it looks the same everywhere."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "regard"}):
        figure.savefig(
            buffer, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
        )
    return buffer.getvalue()


def by_night(svg: str) -> str:
    """The same drawing in colours for a dark page."""
    return re.sub("|".join(_BY_NIGHT), lambda color: _BY_NIGHT[color[0]], svg)


def _as_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
