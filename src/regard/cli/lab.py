"""`regard lab`: small studies that measure what the lectures state."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Command, Json, Quiet, argument, configure_logging, print_json
from regard.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.lab import Study, StudyEntry

_PIPED_WIDTH = 140
"""Columns of a table where stdout is not a terminal."""


class LabCommand(Command):
    """`regard lab`, with the options that the registered studies declare; `lab_command` finds them in `ctx.obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from regard.lab import STUDIES

        # Only the study that is named is loaded: one that cannot be is reported when the studies are listed.
        known = STUDIES.names()
        named = [STUDIES.find(word) for word in args if word in known]
        ctx.obj, others = take_options(args, [option for entry in named for option in _study_options(entry)])
        return super().parse_args(ctx, others)

    def more_options(self) -> dict[str, list[tuple[str, str]]]:
        from regard.lab import STUDIES

        options = [(entry.name, *option) for entry in STUDIES for option in _study_options(entry).items()]
        return {"Options of single studies": [(f"--{name} TEXT", f"{study}: {help}") for study, name, help in options]}


def take_options(arguments: list[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of the options `names`, and the other arguments.

    Example:
        >>> take_options(["circuits", "--formula", "a ^ b", "--quick"], ["formula"])
        ({'formula': 'a ^ b'}, ['circuits', '--quick'])
    """
    found, others, rest = {}, [], iter(arguments)
    for word in rest:
        name, is_assigned, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in names:
            others.append(word)
            continue
        found[name] = value if is_assigned else next(rest, None)
        if found[name] is None:
            raise ConfigError(f"--{name} needs a value")
    return found, others


def _study_options(entry: Any) -> Mapping[str, str]:
    """The options of a study with their help; a study of another package need not declare any."""
    return getattr(entry, "options", {})


def lab_command(
    ctx: typer.Context,
    name: Annotated[str, argument("NAME", "The study to run; without it, all studies are listed.")] = "list",
    data: Annotated[
        str | None, argument("DATA", "A file or a run folder, for a study that reads one: see regard lab.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few samples: at most three minutes.")] = False,
    out: Annotated[str, typer.Option(help="The folder for NAME.png, NAME.html, NAME.json and NAME.csv.")] = "lab",
    seed: Annotated[int, typer.Option(min=0, help="The random seed.")] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N, for a study that runs on a GPU (locality).")
    ] = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a study: one question, answered by measured tables, findings and a figure.

    Examples:

      regard lab

      regard lab softmax

      regard lab positions --quick --out studies

      regard lab context book.txt --quick

      regard lab curvature runs/mine

      regard lab circuits --formula "(a & b) ^ !c" --quick
    """
    from regard.lab import STUDIES, run_study

    configure_logging(quiet=quiet)
    if name == "list":
        _print_list(list(STUDIES), json=json)
        return
    STUDIES.find(name)
    _check_folder(Path(out))
    study = run_study(name, quick=quick, seed=seed, data=data, device=device, options=ctx.obj)
    try:
        files = [str(path) for path in study.write(out)]
    except OSError as error:
        raise DeviceError(f"cannot write to {out}: {error.strerror or error}") from None
    if json:
        print_json({**study.to_json(), "files": files})
    else:
        from rich.console import Console

        console = Console()
        _print(study, files, console if console.is_terminal else Console(width=_PIPED_WIDTH))


def _print_list(entries: "Sequence[StudyEntry]", *, json: bool) -> None:
    """Print the studies with their lectures and times: a table in a terminal, otherwise lines with tabs."""
    import sys

    columns = ("name", "lectures", "quick", "full", "question", "reads")
    rows = [
        [each.name, " ".join(each.lectures) or "-", *each.times, each.question, each.reads or "-"] for each in entries
    ]
    if json:
        print_json({"studies": [dict(zip(columns, row, strict=True)) for row in rows]})
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table as RichTable

        grid = RichTable(*columns, box=None, pad_edge=False, caption="Times are those on one core of a CPU.")
        for row in rows:
            grid.add_row(*row)
        Console().print(grid, markup=False, highlight=False)
    else:
        for row in rows:
            print("\t".join(row))


def _check_folder(folder: Path) -> None:
    """Check before the study runs that its files can be written."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise ConfigError(f"a study is written to a folder, got {folder}, where {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise DeviceError(f"cannot write to {folder}: {existing} is not writable")


def _print(study: "Study", files: list[str], console: "Console") -> None:
    from rich.table import Table as RichTable

    def print_text(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    print_text(f"{study.title}\n{study.question}\n")
    for table in study.tables:
        grid = RichTable(title=table.name, title_justify="left", caption=table.note or None, caption_justify="left")
        for index, column in enumerate(table.columns):
            is_text = all(isinstance(row[index], str) for row in table.rows)
            grid.add_column(column, justify="left" if is_text else "right")
        for row in table.formatted_rows():
            grid.add_row(*row)
        console.print(grid, markup=False, highlight=False)
        print_text("")
    for finding in study.findings:
        print_text(f"- {finding}")
    print_text(f"\n{study.duration}; written: {', '.join(files)}")
