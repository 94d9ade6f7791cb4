"""What a study gives back: findings, tables and a figure, and the files they are kept in."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from regard.logging import format_duration
from regard.version import version

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | int | float | tuple[float, float, float] | None
"""Three numbers are one with the ends of a range around it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers of a study, row by row."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    """What a reader has to know of the columns."""

    def texts(self) -> list[list[str]]:
        """The rows as a person reads them."""
        return [[say(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What was asked, what was found, and all it takes to find it again."""

    name: str
    title: str
    claim: str
    """What is asked, in one sentence."""
    findings: Sequence[str]
    """What the numbers say, one sentence each."""
    tables: Sequence[Table]
    figure: "Figure"
    settings: Mapping[str, Any]
    seconds: float = 0.0

    @property
    def command(self) -> str:
        """What to type to see the same numbers again."""
        quick = " --quick" if self.settings.get("quick") else ""
        seed = f" --seed {self.settings['seed']}" if self.settings.get("seed") else ""
        return f"regard lab {self.name}{quick}{seed}"

    @property
    def time(self) -> str:
        """How long it took, as a person says it."""
        return format_duration(self.seconds) if self.seconds >= 1 else "less than a second"

    def to_json(self) -> dict[str, Any]:
        """All but the figure, as JSON knows it."""
        from regard.explanation.templates import embed

        tables = [vars(table) for table in self.tables]
        values = {key: value for key, value in vars(self).items() if key != "figure"}
        return json.loads(embed({**values, "tables": tables, "command": self.command, "version": version()}))

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write a picture, a page that stands alone and the numbers as JSON; returns where they are.

        All three are made before the first takes its place, so whoever
        interrupts leaves nothing half-written.
        """
        from regard.explanation.figure_page import write_figure_page
        from regard.lab.drawing import to_png

        folder = Path(folder)
        names = [f"{self.name}.{ending}" for ending in ("png", "html", "json")]
        picture = to_png(self.figure)
        numbers = json.dumps(self.to_json(), ensure_ascii=False, indent=2) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{self.name}.", dir=folder) as place:
            unfinished = [Path(place) / name for name in names]
            unfinished[0].write_bytes(picture)
            write_figure_page(
                unfinished[1],
                self.figure,
                title=self.title,
                claim=self.claim,
                findings=self.findings,
                tables=[
                    {"name": table.name, "columns": table.columns, "rows": table.texts(), "note": table.note}
                    for table in self.tables
                ],
                settings=[(name.replace("_", " "), say_setting(value)) for name, value in self.settings.items()],
                command=self.command,
                time=self.time,
            )
            unfinished[2].write_text(numbers, encoding="utf-8")
            for path in unfinished:
                path.replace(folder / path.name)
        return [folder / name for name in names]


def say(cell: Cell) -> str:
    """A cell of a table as a person reads it.

    Example:
        >>> say(0.123456), say(0.5), say(0.99999), say((0.5, 0.25, 1.0)), say(float("inf")), say(None)
        ('0.1235', '0.5', '1.000', '0.50 [0.25, 1.00]', '∞', '-')
        >>> say((0.0042, 0.0031, 0.0053))
        '0.0042 [0.0031, 0.0053]'
    """
    match cell:
        case None:
            return "-"
        case str() | int():
            return str(cell)
        case tuple():
            return say_around(*cell)
        case _ if math.isnan(cell):
            return "-"
        case _ if math.isinf(cell):
            return "∞" if cell > 0 else "-∞"
        case _:
            short = f"{cell:.4g}"
            # A rounded number keeps its zeros: 0.99999 is 1.000, while 1.0 is 1.
            return short if float(short) == cell else f"{cell:#.4g}".rstrip(".")


def say_around(middle: float, low: float, high: float) -> str:
    """A number and the ends around it, to as many digits as the ends are known: two at least behind the point."""
    width = high - low
    digits = 2 if not 0 < width < 0.1 else min(9, 1 - math.floor(math.log10(width)))
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def say_setting(value: Any) -> str:
    """A setting as a person reads it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(say_setting, value))
        case _:
            return say(value)
