"""`regard sweep`: settings searched, and the winner's score with its luck taken out."""

from typing import Annotated

import typer

from regard.cli.output import Json, Quiet, argument, option, print_json, talk
from regard.cli.training_options import (
    Columns,
    Given,
    ModelName,
    SetValues,
    SharedSettings,
    TaskName,
    TokenizerName,
    TrainDevice,
    joined,
    names,
    remedies,
)
from regard.errors import ConfigError, RunExistsError, StoppedError

_REMEDIES = {RunExistsError: "the options are --overwrite and --out", StoppedError: "type the same command again"}
_PIPED_WIDTH = 160
"""Columns of a table that nobody looks at in a terminal."""


def sweep(
    given: Annotated[list[str], argument("DATA... SPACE", "Data as for train; last, a TOML file of ranges.")],
    trials: Annotated[int | None, option("Trials in all. Unset: 50, or each point of a grid.")] = None,
    sampler: Annotated[str, typer.Option(help="random, tpe or grid.")] = "tpe",
    pruner: Annotated[str, typer.Option(help="none, or hyperband, which ends trials that fall behind.")] = "none",
    objective: Annotated[Given, option("A score, or loss, parameters, seconds; more than once for several.")] = None,
    minutes: Annotated[float | None, option("Train each trial for so many minutes.")] = None,
    steps: Annotated[int | None, option("Train each trial for so many steps. Unset: 160, on a GPU 2,000.")] = None,
    again: Annotated[int, typer.Option(help="Train the winner's settings with so many other seeds.")] = 3,
    storage: Annotated[str | None, option("A database that machines share: postgresql://user@host/name")] = None,
    workers: Annotated[int | None, option("Trials at a time. Unset: one a core, or one on a GPU.")] = None,
    seed: Annotated[int, typer.Option(help="Of the proposals.")] = 0,
    out: Annotated[str | None, option("The folder. Unset: runs/sweep-DATA. An interrupted one goes on.")] = None,
    model: ModelName = None,
    task: TaskName = None,
    columns: Columns = None,
    tokenizer: TokenizerName = None,
    device: TrainDevice = None,
    settings: SharedSettings = None,
    set_: SetValues = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sweep in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Search settings: train many trials, train the best again with other seeds, and count every look.

    The space is a TOML file with a table for each setting, as in:

      [train.learning_rate]

      low = 1e-4

      high = 1e-2

      log = true

    Examples:

      regard sweep dates space.toml --trials 50

      regard sweep pairs.tsv space.toml --sampler random --steps 500 --workers 2 --out runs/mine

      regard sweep reviews.csv space.toml --pruner hyperband --steps 900

      regard sweep dates space.toml --objective exact_match --objective parameters
    """
    talk(quiet=quiet)
    if len(given) < 2 or not given[-1].endswith(".toml"):
        raise ConfigError(f"a sweep takes data and, last, a TOML file of ranges, got {' '.join(given)}")
    from regard.runs.sweep import sweep as start

    options = {
        "task": task,
        "data": {"columns": names(columns), "tokenizer": tokenizer},
        "train": {"device": device},
    }
    values = joined(settings, set_, options)
    with remedies(_REMEDIES):
        result = start(
            given[:-1],
            given[-1],
            trials=trials,
            sampler=sampler,
            pruner=pruner,
            objectives=objective or (),
            minutes=minutes,
            steps=steps,
            model=model,
            settings=values,
            again=again,
            seed=seed,
            storage=storage,
            workers=workers,
            out=out,
            overwrite=overwrite,
            show_progress=not quiet,
        )
    if json:
        print_json(result.table)
        return
    from rich.console import Console

    from regard.explanation.sweep import SweepTable

    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(SweepTable(result.table), highlight=False)
    console.print(f"\nthe page to look at: {result.page}", markup=False, highlight=False, soft_wrap=True)
