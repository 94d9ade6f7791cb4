"""`regard train`: from a file to a run."""

from typing import Annotated

import typer

from regard.cli.few import FEW_REMEDIES, Draws, Few, Jobs, print_few, read_few, require_few
from regard.cli.output import Json, Quiet, argument, option, talk
from regard.cli.training_options import (
    Columns,
    Epochs,
    Given,
    Minutes,
    ModelName,
    RunOut,
    Seed,
    SettingsFile,
    SetValues,
    SkipBad,
    Steps,
    TaskName,
    TokenizerName,
    TrainDevice,
    joined,
    names,
    print_run,
    remedies,
)
from regard.errors import ConfigError


def train(
    data: Annotated[Given, argument("DATA...", "A file, several files, a folder, or a built-in name.")] = None,
    out: RunOut = None,
    model: ModelName = None,
    task: TaskName = None,
    columns: Columns = None,
    valid: Annotated[Given, option("A file of validation rows; twice for two aligned files.")] = None,
    test: Annotated[Given, option("A file of test rows; twice for two aligned files.")] = None,
    tokenizer: TokenizerName = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: TrainDevice = None,
    settings: SettingsFile = None,
    set_: SetValues = None,
    no_auto_batch: Annotated[bool, typer.Option("--no-auto-batch", help="Stop where memory runs out.")] = False,
    skip_bad: SkipBad = False,
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
        "task": task,
        "data": {"columns": names(columns), "valid": valid, "test": test, "tokenizer": tokenizer,
                 "skip_bad": skip_bad or None},
        "train": {"max_steps": steps, "max_epochs": epochs, "minutes": minutes, "seed": seed, "device": device,
                  "auto_batch": False if no_auto_batch else None},
    }  # fmt: skip
    values = joined(settings, set_, options)
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
    print_run(run, json=json)
