"""Options of the commands that train, and what becomes of them: settings, and advice on errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import option, print_json
from regard.errors import BadRowsError, RegardError, RunExistsError, StoppedError

if TYPE_CHECKING:
    from regard.runs.run import Run

Given = list[str] | None

RunOut = Annotated[str | None, option("The run folder. Unset: a fresh one under runs/.")]
ModelName = Annotated[str | None, option("A kind, or a kind and a size: transformer, lstm-small.")]
TaskName = Annotated[str | None, option("classification, language and so on; unset, read off the data.")]
Columns = Annotated[str | None, option("The columns, by name or position: de,en or text,label")]
TokenizerName = Annotated[str | None, option("bpe, unigram, characters, bytes, words or a tokenizer.json.")]
Minutes = Annotated[float | None, option("Stop after so many minutes of training.")]
Steps = Annotated[int | None, option("Stop after so many steps.")]
Epochs = Annotated[float | None, option("Stop after so many passes over the data.")]
Seed = Annotated[int | None, option("Another seed gives another run.")]
TrainDevice = Annotated[str | None, option("auto, cpu, cuda or cuda:N.")]
SettingsFile = Annotated[Path | None, option("A TOML file of settings; see regard settings.", dir_okay=False)]
SharedSettings = Annotated[Path | None, option("A TOML file of settings that all share.", dir_okay=False)]
SetValues = Annotated[Given, option("Any setting: --set model.num_layers=6", "--set", metavar="NAME=VALUE")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on without rows that cannot be read.")]

_REMEDIES: dict[type[RegardError], str] = {
    BadRowsError: "--skip-bad goes on without them",
    RunExistsError: "the options are --resume, --overwrite and --out",
    StoppedError: "the option is --resume",
}
"""What the command line offers against an error, which the library cannot know."""


def names(columns: str | None) -> list[str] | None:
    """Columns as they were given, with commas between."""
    return [name.strip() for name in columns.split(",")] if columns else None


def joined(path: Path | None, assignments: Given, options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, outweighed by those of --set, outweighed by the options that were given."""
    from regard.settings import merge, override, read_toml

    given = {}
    for name, value in options.items():
        found = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        if found is not None and found != {}:
            given[name] = found
    return merge(override(read_toml(path) if path is not None else {}, assignments or []), given)


@contextmanager
def remedies(own: Mapping[type[RegardError], str] | None = None) -> Iterator[None]:
    """Add to an error what the command line has against it; `own` are those of a command that has others."""
    known = {**_REMEDIES, **(own or {})}
    try:
        yield
    except tuple(known) as error:
        error.add_note(known[type(error)])
        raise


def print_run(run: "Run", *, json: bool) -> None:
    """Where a run is that has been trained, and what it scored."""
    if not json:
        print(run.path)
        return
    reports = [line for line in run.folder.read_looks() if line["what"] == "report"]
    print_json({"run": str(run.path), "report": str(run.folder.report_path), **reports[-1]["scores"]})
