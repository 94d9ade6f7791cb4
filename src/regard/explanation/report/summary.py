"""The content of a result as plain data, from which the terminal, the figure and the page are rendered."""

import base64
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from regard.explanation.pages import write_page
from regard.files import check_suffix
from regard.version import version

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_SUFFIXES = (".png", ".svg")
SUMMARY_SUFFIXES = (*FIGURE_SUFFIXES, ".html")
_GAP = 2
"""Cells between two columns of a terminal."""
_NARROWEST_NAME = 14
"""Names are shortened to this many cells before a column is left out."""


@dataclass(frozen=True, kw_only=True)
class SummaryTable:
    """A table of texts."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    left: Collection[int] = (0,)
    """The columns whose texts are aligned at the left; numbers are aligned at the right."""
    names: Collection[int] = (0,)
    """The columns whose texts a narrow terminal shortens; the texts of others wrap."""
    bold: Collection[int] = ()
    """The rows that stand out."""
    faint: Collection[int] = ()
    """The rows that recede."""
    optional: Sequence[str] = ()
    """The columns that a narrow terminal leaves out, in this order."""
    num_printed: int | None = None
    """How many rows a terminal prints; the page has all of them."""

    def to_json(self) -> dict[str, Any]:
        """Returns what a page embeds."""
        return {
            "name": self.name,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
            "left": list(self.left),
            "bold": list(self.bold),
        }

    def fitted(self, width: int) -> tuple["SummaryTable", list[str]]:
        """Returns the table without the columns for which `width` cells are too few, and the names of those columns."""
        kept, left_out = list(range(len(self.columns))), []
        for name in self.optional:
            if self.least_width(kept) > width:
                kept.remove(list(self.columns).index(name))
                left_out.append(name)
        narrowed = replace(
            self,
            columns=[self.columns[i] for i in kept],
            rows=[[row[i] for i in kept] for row in self.rows],
            left=[place for place, i in enumerate(kept) if i in self.left],
            names=[place for place, i in enumerate(kept) if i in self.names],
            optional=(),
        )
        return narrowed, left_out

    def least_width(self, columns: Sequence[int] | None = None) -> int:
        """Returns how many cells the columns take where names are shortened."""
        widths = [min(w, _NARROWEST_NAME) if i in self.names else w for i, w in enumerate(self._widths())]
        return sum(widths[i] + _GAP for i in (range(len(widths)) if columns is None else columns)) - _GAP

    def spare_width(self, width: int) -> int:
        """Returns how many of `width` cells the columns leave free."""
        return width - sum(column + _GAP for column in self._widths()) + _GAP

    def draw(self, width: int) -> Table:
        """Returns the table for a rich console; names that are too long lose their middle."""
        widths, excess = self._widths(), -self.spare_width(width)
        for _ in range(excess if self.names else 0):
            widest = max(self.names, key=lambda column: widths[column])
            widths[widest] = max(3, widths[widest] - 1)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        table.header_style = "dim"

        def text(cell: str, column: int) -> Text:
            return Text(shorten(cell, widths[column]) if column in self.names else cell)

        for place, name in enumerate(self.columns):
            justify = "left" if place in self.left else "right"
            table.add_column(text(name, place), justify=justify, no_wrap=place in self.names)
        for number, row in enumerate(self.rows[: self.num_printed]):
            style = "bold" if number in self.bold else "dim" if number in self.faint else ""
            table.add_row(*(text(cell, place) for place, cell in enumerate(row)), style=style)
        return table

    def _widths(self) -> list[int]:
        """The cells that each column takes where nothing is shortened."""
        rows = self.rows[: self.num_printed]
        return [max(cell_len(text) for text in column) for column in zip(self.columns, *rows, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A result: printed by a rich console, saved as a figure or as a page."""

    title: str
    subtitle: str
    findings: Sequence[str]
    """One sentence each."""
    tables: Sequence[SummaryTable]
    settings: Sequence[tuple[str, str]] = ()
    """What the result was computed from: names and texts, for the page."""
    command: str = ""
    """The command that gives the same result."""
    time: str = "less than a second"
    footnote: str = ""
    figure: "Callable[[], Figure] | None" = None

    def to_json(self) -> dict[str, Any]:
        """Returns what a page embeds of the findings and the tables."""
        return {
            "subtitle": self.subtitle,
            "findings": list(self.findings),
            "tables": [table.to_json() for table in self.tables],
            "footnote": self.footnote,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the figure (`.png`, `.svg`) or the page (`.html`), by the suffix of `path`."""
        path = check_suffix(path, SUMMARY_SUFFIXES)
        assert self.figure is not None, "only a summary with a figure is saved"
        # Imported here, since importing matplotlib takes longer than printing a table.
        from regard.explanation.figures import save_figure

        if path.suffix.lower() in FIGURE_SUFFIXES:
            save_figure(self.figure(), path)
            return
        write_figure_page(
            path,
            self.figure(),
            title=self.title,
            claim=self.subtitle,
            findings=self.findings,
            tables=[table.to_json() for table in self.tables],
            settings=self.settings,
            command=self.command,
            time=self.time,
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold")
        if self.subtitle:
            yield Text(self.subtitle, style="dim")
        for table in self.tables:
            if table.num_printed == 0:
                continue
            fitted, left_out = table.fitted(options.max_width)
            yield Text()
            yield fitted.draw(options.max_width)
            if table.num_printed is not None and (more := len(table.rows) - table.num_printed) > 0:
                yield Text(f"and {more:,} more", style="dim")
            if left_out:
                yield Text(f"too narrow for: {', '.join(left_out)}", style="dim")
        if self.findings:
            yield Text()
        for sentence in self.findings:
            yield Text(f"- {sentence}")
        if self.footnote:
            yield Text()
            yield Text(self.footnote, style="dim")


def write_figure_page(
    path: Path,
    figure: "Figure",
    *,
    title: str,
    claim: str,
    findings: Sequence[str],
    tables: Sequence[Mapping[str, Any]],
    settings: Sequence[tuple[str, str]],
    command: str,
    time: str = "less than a second",
) -> None:
    """Writes a page with findings, a figure and tables.

    Args:
        path: The HTML file.
        figure: Drawn in colors of `regard.explanation.colors`, which have counterparts on a dark page.
        title: The heading.
        claim: The question, or the claim, in one sentence.
        findings: The answers, one sentence each.
        tables: Each with `name`, `columns`, `rows` of texts, a `note`, and optionally the indices of `bold` rows.
        settings: Names and texts of what the result was computed from.
        command: The command that gives the same result.
        time: How long that takes.
    """
    from regard.explanation.figures import to_dark, to_svg

    drawing = to_svg(figure)
    data = {
        "title": title,
        "claim": claim,
        "findings": list(findings),
        "tables": list(tables),
        "settings": [list(pair) for pair in settings],
        "light": _data_uri(drawing),
        "dark": _data_uri(to_dark(drawing)),
        "command": command,
        "time": time,
        "version": version(),
    }
    write_page(path, "summary", title=title, data=data)


def shorten(name: str, width: int) -> str:
    """Returns `name` in at most `width` cells; its middle is cut, since names often differ at their ends.

    Example:
        >>> shorten("transformer-of-the-kind-a", 13)
        'transf…kind-a'
    """
    if cell_len(name) <= width:
        return name
    head = set_cell_size(name, width // 2).rstrip()
    tail = name[::-1]
    while cell_len(tail) > width - 1 - cell_len(head):
        tail = tail[:-1]
    return f"{head}…{tail[::-1]}"


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
