"""Options of the commands that train, the settings they stand for, and advice on errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Command, option, print_json, process_rank
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
NumProcesses = Annotated[
    int | None, option("Train in so many processes of this machine, which share each batch.", "--processes", min=1)
]
TensorParallel = Annotated[
    int | None, option("The number of processes that share the layers of each Transformer block.", min=1)
]
TrainDevice = Annotated[str | None, option("auto, cpu, cuda or cuda:N.")]
SettingsFile = Annotated[Path | None, option("A TOML file of settings; see regard settings.", dir_okay=False)]
SharedSettings = Annotated[Path | None, option("A TOML file of settings for all runs.", dir_okay=False)]
SetValues = Annotated[Given, option("Any setting: --set model.num_layers=6", "--set", metavar="NAME=VALUE")]
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not fit a simple baseline to compare with.")]
LadderStep = Annotated[
    str | None, option("Show and use only scores released by a Ladder with this step.", "--ladder", metavar="[STEP]")
]
ThresholdoutStep = Annotated[
    str | None, option("The same by Thresholdout with this threshold.", "--thresholdout", metavar="[STEP]")
]
Template = Annotated[str | None, option("A file with a chat template in Jinja, for conversations.")]
SkipBad = Annotated[
    bool | None,
    typer.Option("--skip-bad/--no-skip-bad", help="Skip rows that cannot be read; unset: up to 5 % of all rows."),
]
ValidFile = Annotated[Given, option("A file of validation rows.")]
TestFile = Annotated[Given, option("A file of test rows.")]
Lora = Annotated[bool, typer.Option("--lora", help="Train low-rank updates, and store only these.")]
Rank = Annotated[int | None, option("The rank of the updates, with --lora.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]

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
TUNING_REMEDIES: dict[type[RegardError], str] = {
    RunExistsError: "the options are --overwrite and --out",
    StoppedError: "regard train --out RUN --resume resumes it",
}
"""Those of commands that start from the model of another run."""


class StepsAreOptional(Command):
    """A command whose `--ladder` and `--thresholdout` may stand alone, which means `auto`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[str] = []
        for word, following in zip(args, [*args[1:], ""], strict=False):
            given.append(word)
            if word in ("--ladder", "--thresholdout") and not _is_number(following):
                given.append("auto")
        return super().parse_args(ctx, given)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word == "auto"
    return True


def read_release_steps(ladder: str | None, thresholdout: str | None) -> dict[str, Any]:
    """The settings of --ladder and --thresholdout, checked before any data is read."""
    steps: dict[str, Any] = {}
    for name, text in {"ladder": ladder, "thresholdout": thresholdout}.items():
        if text is not None and not _is_number(text):
            raise ConfigError(f"--{name} takes a number, got {text!r}")
        steps[name] = text if text is None or text == "auto" else float(text)
        if isinstance(steps[name], float):
            from regard.selection.releases import make_mechanism

            make_mechanism(name, steps[name])
    return steps


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


def training_options(
    *,
    columns: str | None,
    encoding: str | None,
    valid: Given,
    test: Given,
    skip_bad: bool | None,
    minutes: float | None,
    steps: int | None,
    epochs: float | None,
    seed: int | None,
    device: str | None,
) -> dict[str, dict[str, Any]]:
    """The settings of the options that every command has which trains one run."""
    return {
        "data": {"columns": split_names(columns), "encoding": encoding, "valid": valid, "test": test,
                 "skip_bad": skip_bad},
        "train": {"max_steps": steps, "max_epochs": epochs, "minutes": minutes, "seed": seed, "device": device},
    }  # fmt: skip


def require_lora(rank: int | None, *, lora: bool) -> None:
    if rank is not None and not lora:
        raise ConfigError(f"--rank needs --lora, got {rank} without it")


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
    """Print the path of a run that was trained, or its scores as JSON; of several processes, the first one prints."""
    if process_rank():
        return
    if not json:
        from regard.runs.commands import next_commands

        commands = next_commands(run)
        width = max(len(command) for command, _ in commands)
        for line in ("next:", *(f"  {command:<{width}}  {purpose}" for command, purpose in commands)):
            log_info(line)
        print(run.path)
        return
    report = run.last_report()
    scores = {} if report is None else report["scores"]
    baseline = {} if run.baseline is None else {"baseline": run.baseline.to_json()}
    print_json({"run": str(run.path), "report": str(run.folder.report_path), **scores, **baseline})
