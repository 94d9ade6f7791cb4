"""Options of the commands that train, the settings they stand for, and advice on errors."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import option, print_json
from regard.errors import (
    BadRowsError,
    ConfigError,
    EncodingError,
    RegardError,
    RunExistsError,
    StoppedError,
    UnknownTaskError,
)
from regard.logging import log_info

if TYPE_CHECKING:
    from regard.runs.run import Run

Given = list[str] | None

RunOut = Annotated[str | None, option("The run folder. Unset: a new one under runs/.")]
ModelName = Annotated[str | None, option("A preset, with or without a size: transformer, lstm-small.")]
TaskName = Annotated[str | None, option("text-classification, language-modeling, ...; unset, detected from the data.")]
Columns = Annotated[str | None, option("The columns, by name or position: de,en or text,label")]
Encoding = Annotated[str | None, option("Encoding of text files: utf-16, windows-1252, ...; unset, detected.")]
TokenizerName = Annotated[str | None, option("bpe, unigram, characters, bytes, words, wordpunct or a tokenizer.json.")]
Minutes = Annotated[float | None, option("Stop after this many minutes of training.")]
Steps = Annotated[int | None, option("Stop after this many steps.")]
Epochs = Annotated[float | None, option("Stop after this many passes over the training rows.")]
Seed = Annotated[int | None, option("The random seed.")]
TrainDevice = Annotated[str | None, option("auto, cpu, cuda or cuda:N.")]
SettingsFile = Annotated[Path | None, option("A TOML file of settings; see regard settings.", dir_okay=False)]
SharedSettings = Annotated[Path | None, option("A TOML file of settings for all runs.", dir_okay=False)]
SetValues = Annotated[Given, option("Any setting: --set model.num_layers=6", "--set", metavar="NAME=VALUE")]
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not fit a simple baseline to compare with.")]
Template = Annotated[str | None, option("A file with a chat template in Jinja, for conversations.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip rows that cannot be read.")]

_REMEDIES: dict[type[RegardError], str] = {
    BadRowsError: "--skip-bad skips them",
    EncodingError: "--encoding names another encoding",
    UnknownTaskError: "the options are --columns and --task",
    RunExistsError: "the options are --resume, --overwrite and --out",
    StoppedError: "the option is --resume",
}
"""Options that help against an error, which the library cannot know."""
EXPERIMENT_REMEDIES: dict[type[RegardError], str] = {
    RunExistsError: "the options are --overwrite and --out",
    StoppedError: "run the same command again",
}
"""Those of commands that train several runs, and continue where they were interrupted."""


def split_names(columns: str | None) -> list[str] | None:
    """The columns of an option, separated by commas."""
    return [name.strip() for name in columns.split(",")] if columns else None


def shared_options(
    *, task: str | None, tokenizer: str | None, columns: str | None, encoding: str | None, device: str | None
) -> dict[str, Any]:
    """The settings of the options that the runs of an experiment share."""
    return {
        "task": {"name": task, "tokenizer": tokenizer},
        "data": {"columns": split_names(columns), "encoding": encoding},
        "train": {"device": device},
    }


def merge_settings(path: Path | None, assignments: Given, options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, overridden by those of --set, overridden by the options that were given."""
    from regard.settings import merge_tables, override, read_toml

    given = {}
    for name, value in options.items():
        found = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        if found is not None and found != {}:
            given[name] = found
    return merge_tables(override(read_toml(path) if path is not None else {}, assignments or []), given)


@contextmanager
def remedies(own: Mapping[type[RegardError], str] | None = None) -> Iterator[None]:
    """Add to an error the options that help; `own` are those of a command that has others."""
    known = {**_REMEDIES, **(own or {})}
    try:
        yield
    except tuple(known) as error:
        error.add_note(known[type(error)])
        raise


def read_template(path: str | None) -> str | None:
    """The text of a chat template, the value of --template."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the chat template {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


def print_run(run: "Run", *, json: bool) -> None:
    """Print the path of a run that was trained, or its scores as JSON."""
    if not json:
        log_info(_next_commands(run))
        print(run.path)
        return
    report = run.last_report()
    scores = {} if report is None else report["scores"]
    baseline = {} if run.baseline is None else {"baseline": run.baseline.to_json()}
    print_json({"run": str(run.path), "report": str(run.folder.report_path), **scores, **baseline})


def _next_commands(run: "Run") -> str:
    """What can be done with a run, for its task."""
    schema, path = run.task.server_schema([]), shlex.quote(str(run.path))
    verb = "generate" if schema.streams else "embed" if schema.output == "vector" else "predict"
    use = f"{verb} {path} {'IMAGE' if schema.reads_files else 'TEXT'}"
    if run.task.answers_prompts:
        use = f"chat {path}, regard predict {path} PROMPT"
    if run.task.next_command is not None:
        use = run.task.next_command.format(run=path)
    use = f"next: regard {use}, regard evaluate {path} FILE"
    return f"{use}; once, when all choices are made: regard test {path}" if run.folder.has_test else use
