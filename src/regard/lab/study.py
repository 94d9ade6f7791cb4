"""What a study returns (findings, tables, a figure), the files it writes, and how it is registered."""

import csv
import io
import json
import math
import os
import pkgutil
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError
from regard.logging import format_duration
from regard.version import version

if TYPE_CHECKING:
    from matplotlib.figure import Figure

StudyCell = str | int | float | tuple[float, float, float] | None
"""A tuple is an estimate with the lower and upper end of its interval."""


@dataclass(frozen=True)
class StudyTable:
    """One table of a study."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[StudyCell]]
    note: str = ""
    """Explains the columns."""

    def formatted_rows(self) -> list[list[str]]:
        """Returns the rows as text."""
        return [[format_cell(cell) for cell in row] for row in self.rows]


StudySection = tuple[Sequence[str], Sequence[StudyTable]]
"""The findings and tables of one part of a study; its panels are drawn when it is measured."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """The results of a study, with the settings that reproduce them."""

    name: str
    title: str
    question: str
    """What the study measures, as one question."""
    findings: Sequence[str]
    """Conclusions, one sentence each, generated from the measured numbers."""
    tables: Sequence[StudyTable]
    figure: "Figure"
    settings: Mapping[str, Any]
    seconds: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of its own that were given."""

    @property
    def command(self) -> str:
        """The command that reproduces the numbers."""
        quick = " --quick" if self.settings.get("quick") else ""
        seed = f" --seed {self.settings['seed']}" if self.settings.get("seed") else ""
        data = f" {shlex.quote(str(self.settings['data']))}" if self.settings.get("data") else ""
        # With an equals sign, since a value may begin with a minus sign.
        own = "".join(f" --{name}={shlex.quote(value)}" for name, value in self.options.items())
        return f"regard lab {self.name}{data}{own}{quick}{seed}"

    @property
    def duration(self) -> str:
        """How long the study took, formatted."""
        return format_duration(self.seconds) if self.seconds >= 1 else "less than a second"

    def to_json(self) -> dict[str, Any]:
        """Returns everything but the figure as JSON values; numbers that are not finite become null."""
        from regard.explanation.pages import embed_json

        tables = [vars(table) for table in self.tables]
        values = {key: value for key, value in vars(self).items() if key != "figure"}
        return json.loads(embed_json({**values, "tables": tables, "command": self.command, "version": version()}))

    def to_csv(self) -> str:
        """Returns the cells of all tables, one in each line: table, row, column, value and the ends of its interval."""
        lines: list[list[StudyCell]] = [["table", "row", "column", "value", "low", "high"]]
        for table in self.tables:
            for number, row in enumerate(table.rows):
                for column, cell in zip(table.columns, row, strict=True):
                    value, low, high = cell if isinstance(cell, tuple) else (cell, None, None)
                    lines.append([table.name, number, column, value, low, high])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue()

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the figure as PNG, a self-contained HTML page, and the numbers as JSON and CSV; returns the paths.

        The files are complete before the first one is moved into place, so an
        interrupted write leaves nothing half-written.
        """
        from regard.explanation.report.summary import write_figure_page
        from regard.lab.drawing import render_png

        folder = Path(folder)
        names = [f"{self.name}.{ending}" for ending in ("png", "html", "json", "csv")]
        png = render_png(self.figure)
        numbers = json.dumps(self.to_json(), ensure_ascii=False, indent=2) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{self.name}.", dir=folder) as temporary:
            unfinished = [Path(temporary) / name for name in names]
            unfinished[0].write_bytes(png)
            write_figure_page(
                unfinished[1],
                self.figure,
                title=self.title,
                claim=self.question,
                findings=self.findings,
                tables=[
                    {"name": table.name, "columns": table.columns, "rows": table.formatted_rows(), "note": table.note}
                    for table in self.tables
                ],
                settings=[(name.replace("_", " "), _format_setting(value)) for name, value in self.settings.items()],
                command=self.command,
                time=self.duration,
            )
            unfinished[2].write_text(numbers, encoding="utf-8")
            unfinished[3].write_text(self.to_csv(), encoding="utf-8")
            for path in unfinished:
                path.replace(folder / path.name)
        return [folder / name for name in names]


@dataclass(frozen=True, kw_only=True)
class StudyEntry:
    """A study as it is registered: what `regard lab` lists, without the modules that run it."""

    name: str
    """What `regard lab` calls it, such as `scaling-factor`."""
    title: str
    question: str
    """What it measures, as one question."""
    function: str
    """Where the function `(*, quick, seed) -> Study` is, such as `regard.lab.softmax.temperature:study_softmax`."""
    reads: str = ""
    """What the function's parameter `data` may be, such as `a text file`; empty for a function without it. Where it is
    None, the study generates its data."""
    runs_on_gpu: bool = False
    """Whether the function has a parameter `device` too."""
    lectures: tuple[str, ...] = ()
    """The rows of the lectures that it measures, such as `L22`."""
    minutes: tuple[float | None, float | None] = (None, None)
    """How long it takes on one core of a CPU, with `quick` and without; None where that was not measured."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Other parameters of the function, strings or None, each with its help: `regard lab` has an option for each."""

    @property
    def times(self) -> tuple[str, str]:
        """The same as text, such as `20 s` and `3 min`; a dash for what was not measured."""
        quick, full = (
            "-" if each is None else f"{each:.0f} min" if each >= 1 else f"{60 * each:.0f} s" for each in self.minutes
        )
        return quick, full

    def study(
        self, *, quick: bool, seed: int, data: str | None = None, device: str = "cpu", **own: str | None
    ) -> Study:
        """Import the study's modules and run it; `own` are values of its `options`."""
        if data is not None and not self.reads:
            raise ConfigError(f"the study {self.name} generates its data and reads no file, got {data}")
        own |= {"data": data} if self.reads else {}
        own |= {"device": device} if self.runs_on_gpu else {}
        return pkgutil.resolve_name(self.function)(quick=quick, seed=seed, **own)

    def result(self, sizes: Any, sections: Sequence[StudySection], figure: "Figure", **settings: Any) -> Study:
        """Returns the results of this study; its settings are the fields of the dataclass `sizes`, and `settings`."""
        return Study(
            name=self.name, title=self.title, question=self.question, figure=figure,
            findings=[finding for findings, _ in sections for finding in findings],
            tables=[table for _, tables in sections for table in tables],
            settings={**asdict(sizes), **settings},
        )  # fmt: skip


def format_cell(cell: StudyCell) -> str:
    """Format a cell of a table; an interval gets as many decimals as its width warrants, at least two.

    Example:
        >>> format_cell(0.123456), format_cell(0.5), format_cell(0.99999), format_cell(float("inf")), format_cell(None)
        ('0.1235', '0.5', '1.000', '∞', '-')
        >>> format_cell((0.5, 0.25, 1.0)), format_cell((0.0042, 0.0031, 0.0053))
        ('0.50 [0.25, 1.00]', '0.0042 [0.0031, 0.0053]')
    """
    match cell:
        case None:
            return "-"
        case str() | int():
            return str(cell)
        case (middle, low, high):
            width = high - low
            digits = 2 if not 0 < width < 0.1 else min(9, 1 - math.floor(math.log10(width)))
            return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        case _ if math.isnan(cell):
            return "-"
        case _ if math.isinf(cell):
            return "∞" if cell > 0 else "-∞"
        case _:
            short = f"{cell:.4g}"
            # A rounded number keeps its zeros: 0.99999 is 1.000, while 1.0 is 1.
            return short if float(short) == cell else f"{cell:#.4g}".rstrip(".")


def _format_setting(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(_format_setting, value))
        case _:
            return format_cell(value)
