"""`regard lab`: small studies that show what the lectures claim."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.output import Json, Quiet, argument, print_json, talk
from regard.errors import ConfigError, DeviceError
from regard.lab import STUDIES, check, run

if TYPE_CHECKING:
    from rich.console import Console

    from regard.lab.study import Study

_PIPED_WIDTH = 140
"""Columns of a table that nobody looks at in a terminal."""


def lab(
    name: Annotated[str, argument("[NAME]", f"{', '.join(STUDIES)}; or list, which says what each asks.")] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, few samples: at most three minutes.")] = False,
    out: Annotated[str, typer.Option(help="The folder for NAME.png, NAME.html and NAME.json.")] = "lab",
    seed: Annotated[int, typer.Option(min=0, help="Where randomness starts.")] = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a study: a question, measured; its answer as sentences, tables and a figure.

    Examples:

      regard lab

      regard lab softmax

      regard lab positions --quick --out studies
    """
    talk(quiet=quiet)
    if name == "list":
        _list(json)
        return
    check(name)
    _check_folder(Path(out))
    study = run(name, quick=quick, seed=seed)
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


def _list(as_json: bool) -> None:
    if as_json:
        print_json({"studies": [{"name": name, "claim": claim} for name, claim in STUDIES.items()]})
        return
    for name, claim in STUDIES.items():
        print(f"{name}\t{claim}")


def _check_folder(folder: Path) -> None:
    """Nobody should wait for a study that cannot be kept."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise ConfigError(f"a study is written to a folder, got {folder}, where {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise DeviceError(f"cannot write to {folder}: {there} is not writable")


def _print(study: "Study", files: list[str], console: "Console") -> None:
    from rich.table import Table as RichTable

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    tell(f"{study.title}\n{study.claim}\n")
    for table in study.tables:
        texts = table.texts()
        drawn = RichTable(title=table.name, title_justify="left", caption=table.note or None, caption_justify="left")
        for index, column in enumerate(table.columns):
            are_words = all(isinstance(row[index], str) for row in table.rows)
            drawn.add_column(column, justify="left" if are_words else "right")
        for row in texts:
            drawn.add_row(*row)
        console.print(drawn, markup=False, highlight=False)
        tell("")
    for finding in study.findings:
        tell(f"- {finding}")
    tell(f"\n{study.time}; written: {', '.join(files)}")
