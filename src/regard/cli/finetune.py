"""`regard finetune`: from a model that knows something already to a run of one's own."""

from typing import Annotated

import typer

from regard.cli.few import FEW_REMEDIES, Draws, Few, Jobs, print_few, read_few, require_few
from regard.cli.output import Json, Quiet, RunPath, argument, option, talk
from regard.cli.training_options import (
    Epochs,
    Given,
    Minutes,
    RunOut,
    Seed,
    SettingsFile,
    SkipBad,
    Steps,
    TrainDevice,
    joined,
    names,
    print_run,
    remedies,
)
from regard.errors import ConfigError, RegardError, RunExistsError, StoppedError

_REMEDIES: dict[type[RegardError], str] = {
    RunExistsError: "the options are --overwrite and --out",
    StoppedError: "regard train --out RUN --resume does that",
}


def finetune(
    base: RunPath,
    data: Annotated[Given, argument("DATA...", "A file, several files, or a folder.")] = None,
    out: RunOut = None,
    task: Annotated[str | None, option("classification, regression and so on; unset, read off the data.")] = None,
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank corrections, and keep them alone.")] = False,
    rank: Annotated[int | None, option("Of the corrections, with --lora.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Train only what is new.")] = False,
    top: Annotated[int | None, option("Train what is new and so many of the topmost layers.")] = None,
    columns: Annotated[str | None, option("The columns, by name or position: text,label")] = None,
    valid: Annotated[Given, option("A file of validation rows.")] = None,
    test: Annotated[Given, option("A file of test rows.")] = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: TrainDevice = None,
    settings: SettingsFile = None,
    set_: Annotated[Given, option("Any setting: --set finetune.layer_decay=0.9", "--set", metavar="NAME=VALUE")] = None,
    skip_bad: SkipBad = False,
    few: Few = None,
    draws: Draws = None,
    jobs: Jobs = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Go on from the model of a run folder, imported or trained, on rows of your own.

    Examples:

      regard import all-MiniLM-L6-v2 minilm

      regard finetune minilm reviews.csv --lora --out runs/reviews

      regard finetune minilm reviews.csv --top 2 --set finetune.layer_decay=0.9

      regard finetune minilm reviews.csv --few 16,100 --draws 5

      regard predict runs/reviews "A film to remember."
    """
    talk(quiet=quiet)
    if lora + head + (top is not None) > 1:
        raise ConfigError("--lora, --head and --top say what is trained: one of them at most")
    if rank is not None and not lora:
        raise ConfigError(f"--rank is that of --lora, got {rank} without it")
    if few is None:
        require_few(draws, jobs)

    options = {
        "data": {"columns": names(columns), "valid": valid, "test": test, "skip_bad": skip_bad or None},
        "train": {"max_steps": steps, "max_epochs": epochs, "minutes": minutes, "seed": seed, "device": device},
        "finetune": {"top_layers": top},
    }  # fmt: skip
    values = joined(settings, set_, options)
    if rank is not None:
        values = joined(None, [f"finetune.lora.rank={rank}"], values)
    method = "lora" if lora else "head" if head else "top" if top is not None else "all"
    if few is not None:
        from regard.runs.few import few_shot

        wanted = read_few(few, draws, refused={"--seed": seed})
        with remedies(FEW_REMEDIES):
            print_few(few_shot(data or [], **wanted, base=base, method=method, task=task, settings=values, out=out,
                               overwrite=overwrite, jobs=jobs, show_progress=not quiet), json=json)  # fmt: skip
        return
    from regard.runs.finetune import finetune as start

    with remedies(_REMEDIES):
        run = start(base, data or None, out=out, task=task, method=method, settings=values, overwrite=overwrite,
                    show_progress=not quiet)  # fmt: skip
    print_run(run, json=json)
