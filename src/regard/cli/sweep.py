"""`regard sweep`: search settings."""

from typing import Annotated

import typer

from regard.cli.options import (
    EXPERIMENT_REMEDIES,
    Columns,
    Encoding,
    Given,
    LadderStep,
    ModelName,
    SetValues,
    SharedSettings,
    TaskName,
    ThresholdoutStep,
    TokenizerName,
    TrainDevice,
    merge_settings,
    read_release_steps,
    remedies,
    shared_options,
)
from regard.cli.output import Json, Quiet, argument, configure_logging, option, print_json
from regard.errors import ConfigError

_PIPED_WIDTH = 160
"""Columns of a table where stdout is no terminal."""


def sweep_command(
    given: Annotated[list[str], argument("DATA... SPACE", "Data as for regard train; last, a TOML file of ranges.")],
    trials: Annotated[int | None, option("Number of trials. Unset: 50, or each point of a grid.")] = None,
    sampler: Annotated[str, typer.Option(help="random, tpe or grid.")] = "tpe",
    pruner: Annotated[str, typer.Option(help="none, or hyperband, which stops bad trials early.")] = "none",
    objective: Annotated[Given, option("A score, or loss, parameters, seconds; repeat it for several.")] = None,
    minutes: Annotated[float | None, option("Budget of each trial, in minutes of training.")] = None,
    steps: Annotated[int | None, option("Budget of each trial, in steps. Unset: 160, on a GPU 2,000.")] = None,
    repeats: Annotated[int | None, option("Train the best settings again with N other seeds. Unset: 3.")] = None,
    ladder: LadderStep = None,
    thresholdout: ThresholdoutStep = None,
    storage: Annotated[str | None, option("A database that machines share: postgresql://user@host/name")] = None,
    workers: Annotated[int | None, option("Trials at a time. Unset: one for each core, or one on a GPU.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    out: Annotated[str | None, option("Folder. Unset: runs/sweep-DATA. An interrupted one is continued.")] = None,
    model: ModelName = None,
    task: TaskName = None,
    columns: Columns = None,
    encoding: Encoding = None,
    tokenizer: TokenizerName = None,
    device: TrainDevice = None,
    settings: SharedSettings = None,
    set_: SetValues = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sweep in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Search settings: train many trials, then the best settings again with other seeds.

    The space is a TOML file with a table for each setting, such as:

    \b
      [train.learning_rate]
      low = 1e-4
      high = 1e-2
      log = true

    The number of evaluations that the winner is selected from is counted, and the bound on its score accounts for it.

    Examples:

      regard sweep dates space.toml --trials 50

      regard sweep pairs.tsv space.toml --sampler random --steps 500 --workers 2 --out runs/mine

      regard sweep reviews.csv space.toml --pruner hyperband --steps 900

      regard sweep dates space.toml --objective exact_match --objective parameters

      regard sweep reviews.csv space.toml --trials 100 --ladder
    """
    configure_logging(quiet=quiet)
    if len(given) < 2 or not given[-1].endswith(".toml"):
        raise ConfigError(f"a sweep needs data and, last, a TOML file of ranges, got {' '.join(given)}")
    from regard.experiments.sweep import sweep

    options = shared_options(task=task, tokenizer=tokenizer, columns=columns, encoding=encoding, device=device)
    options["train"] |= read_release_steps(ladder, thresholdout)
    values = merge_settings(settings, set_, options)
    with remedies(EXPERIMENT_REMEDIES):
        result = sweep(
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
            repeats=repeats,
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

    from regard.explanation.report.sweep import sweep_summary

    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    console.print(sweep_summary(result.table), highlight=False)
    console.print(f"\npage: {result.page}", markup=False, highlight=False, soft_wrap=True)
