"""The table of a terminal: a line under its head, and no others."""

from collections.abc import Container, Iterable

from rich import box
from rich.table import Table
from rich.text import Text


def open_table(headers: Iterable[str], *, left: Container[int] = ()) -> Table:
    """A table without rows; the columns `left` stand at the left, numbers at the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(headers):
        table.add_column(Text(name), justify="left" if number in left else "right")
    return table
