"""`regard train`: from a file to a run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.few import FEW_REMEDIES, Draws, Few, Jobs, print_few, read_few, require_few
from regard.cli.output import Json, Quiet, argument, option, print_json, talk
from regard.errors import BadRowsError, ConfigError, RegardError, RunExistsError, StoppedError

Given = list[str] | None

_REMEDIES: dict[type[RegardError], str] = {
    BadRowsError: "--skip-bad goes on without them",
    RunExistsError: "the options are --resume, --overwrite and --out",
    StoppedError: "the option is --resume",
}
"""What the command line offers against an error, which the library cannot know."""


def train(
    data: Annotated[Given, argument("DATA...", "A file, several files, a folder, or a built-in name.")] = None,
    out: Annotated[str | None, option("The run folder. Unset: a fresh one under runs/.")] = None,
    model: Annotated[str | None, option("A kind, or a kind and a size: transformer, lstm-small.")] = None,
    task: Annotated[str | None, option("classification, language and so on; unset, read off the data.")] = None,
    columns: Annotated[str | None, option("The columns, by name or position: de,en or text,label")] = None,
    valid: Annotated[Given, option("A file of validation rows; twice for two aligned files.")] = None,
    test: Annotated[Given, option("A file of test rows; twice for two aligned files.")] = None,
    tokenizer: Annotated[str | None, option("bpe, unigram, characters, bytes, words or a tokenizer.json.")] = None,
    minutes: Annotated[float | None, option("Stop after so many minutes of training.")] = None,
    steps: Annotated[int | None, option("Stop after so many steps.")] = None,
    epochs: Annotated[float | None, option("Stop after so many passes over the data.")] = None,
    seed: Annotated[int | None, option("Another seed gives another run.")] = None,
    device: Annotated[str | None, option("auto, cpu, cuda or cuda:N.")] = None,
    settings: Annotated[Path | None, option("A TOML file of settings; see regard settings.", dir_okay=False)] = None,
    set_: Annotated[Given, option("Any setting: --set model.num_layers=6", "--set", metavar="NAME=VALUE")] = None,
    no_auto_batch: Annotated[bool, typer.Option("--no-auto-batch", help="Stop where memory runs out.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on without rows that cannot be read.")] = False,
    few: Few = None,
    draws: Draws = None,
    jobs: Jobs = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train a model on a file of pairs, labelled rows or running text, and write a run folder with a report.

    Examples:

      regard train pairs.tsv --minutes 5

      regard train train.de.gz train.en.gz --valid val.de --valid val.en --out runs/de-en

      regard train pairs.csv --columns german,english --model small --set train.learning_rate=1e-3

      regard train shakespeare.txt --tokenizer characters --minutes 3 --out runs/shakespeare

      regard train reviews.csv --few 16,100 --draws 5

      regard train --out runs/de-en --resume
    """
    talk(quiet=quiet)
    if resume and (out is None or overwrite):
        raise ConfigError("--resume goes on with the run in --out, and does not go with --overwrite")
    if few is None:
        require_few(draws, jobs)

    options = {
        "data": {"columns": [name.strip() for name in columns.split(",")] if columns else None, "valid": valid,
                 "test": test, "tokenizer": tokenizer, "skip_bad": skip_bad or None},
        "train": {"max_steps": steps, "max_epochs": epochs, "minutes": minutes, "seed": seed, "device": device,
                  "auto_batch": False if no_auto_batch else None},
    }  # fmt: skip
    values = joined(settings, set_ or [], options) | ({} if task is None else {"task": task})
    if few is not None:
        from regard.runs.few import few_shot

        wanted = read_few(few, draws, refused={"--resume": resume, "--seed": seed})
        with remedies(FEW_REMEDIES):
            print_few(few_shot(data or [], **wanted, model=model, settings=values, out=out, overwrite=overwrite,
                               jobs=jobs, show_progress=not quiet), json=json)  # fmt: skip
        return
    from regard.runs.launch import train as start

    with remedies():
        run = start(data or None, out=out, model=model, settings=values, resume=resume, overwrite=overwrite,
                    show_progress=not quiet)  # fmt: skip
    if json:
        looks = [line for line in run.folder.read_looks() if line["what"] == "report"]
        print_json({"run": str(run.path), "report": str(run.folder.report_path), **looks[-1]["scores"]})
    else:
        print(run.path)


def joined(path: Path | None, assignments: list[str], options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings of a file, outweighed by those of --set, outweighed by the options that were given."""
    from regard.config import merge, override, read_toml

    given = {section: {k: v for k, v in some.items() if v is not None} for section, some in options.items()}
    values = override(read_toml(path) if path is not None else {}, assignments)
    return merge(values, {section: some for section, some in given.items() if some})


@contextmanager
def remedies(own: Mapping[type[RegardError], str] | None = None) -> Iterator[None]:
    """Add to an error what the command line has against it; `own` are those of a command that has others."""
    known = {**_REMEDIES, **(own or {})}
    try:
        yield
    except tuple(known) as error:
        error.add_note(known[type(error)])
        raise
