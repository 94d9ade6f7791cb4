"""`regard train`: from a file to a run."""

from typing import Annotated, Any

import typer

from regard.cli.few_shot import FEW_SHOT_REMEDIES, Jobs, Shots, ShotSeeds, print_few_shot, read_shots, require_shots
from regard.cli.options import (
    Columns,
    Encoding,
    Epochs,
    Given,
    LadderStep,
    Minutes,
    ModelName,
    NoBaseline,
    NumProcesses,
    Overwrite,
    RunOut,
    Seed,
    SettingsFile,
    SetValues,
    SkipBad,
    Steps,
    TaskName,
    Template,
    TensorParallel,
    ThresholdoutStep,
    TokenizerName,
    TrainDevice,
    merge_settings,
    print_run,
    read_release_steps,
    read_template,
    remedies,
    training_options,
)
from regard.cli.output import Json, Quiet, argument, configure_logging, option
from regard.errors import ConfigError


def train_command(
    data: Annotated[Given, argument("DATA", "A file, several files, a folder, or a built-in data set.")] = None,
    out: RunOut = None,
    model: ModelName = None,
    task: TaskName = None,
    columns: Columns = None,
    encoding: Encoding = None,
    valid: Annotated[Given, option("A file of validation rows; twice for two aligned files.")] = None,
    test: Annotated[Given, option("A file of test rows; twice for two aligned files.")] = None,
    tokenizer: TokenizerName = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: TrainDevice = None,
    processes: NumProcesses = None,
    tensor_parallel: TensorParallel = None,
    settings: SettingsFile = None,
    set_: SetValues = None,
    no_auto_batch: Annotated[bool, typer.Option("--no-auto-batch", help="Never split batches to save memory.")] = False,
    template: Template = None,
    no_baseline: NoBaseline = False,
    ladder: LadderStep = None,
    thresholdout: ThresholdoutStep = None,
    skip_bad: SkipBad = None,
    shots: Shots = None,
    shot_seeds: ShotSeeds = None,
    jobs: Jobs = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train a model on a file of texts, labels, images, series or other sequences; write a run folder with a report.

    Examples:

      regard train pairs.tsv --minutes 5

      regard train train.de.gz train.en.gz --valid val.de --valid val.en --out runs/de-en

      regard train pairs.csv --columns german,english --model small --set train.learning_rate=1e-3

      regard train shakespeare.txt --tokenizer characters --minutes 3 --out runs/shakespeare

      regard train reviews.csv --shots 16,100 --shot-seeds 5

      regard train reviews.csv --ladder 0.02 --out runs/honest

      regard train pairs.tsv --processes 2 --out runs/shared

      regard train corpus.txt --model gpt-big --processes 4 --tensor-parallel 2 --out runs/wide

      regard train --out runs/de-en --resume
    """
    configure_logging(quiet=quiet)
    if resume and (out is None or overwrite):
        raise ConfigError("--resume needs --out, and cannot be combined with --overwrite")
    if shots is None:
        require_shots(shot_seeds, jobs)

    options: dict[str, Any] = training_options(
        columns=columns, encoding=encoding, valid=valid, test=test, skip_bad=skip_bad, minutes=minutes, steps=steps,
        epochs=epochs, seed=seed, device=device,
    )  # fmt: skip
    options["task"] = {"name": task, "tokenizer": tokenizer, "template": read_template(template)}
    options["train"] |= {
        "auto_batch": False if no_auto_batch else None,
        "tensor_parallel": tensor_parallel,
        "baseline": False if no_baseline else None,
        **read_release_steps(ladder, thresholdout),
    }
    values = merge_settings(settings, set_, options)
    if shots is not None:
        from regard.experiments.few_shot import few_shot

        refused = {"--resume": resume, "--seed": seed, "--processes": processes, "--tensor-parallel": tensor_parallel}
        chosen = read_shots(shots, shot_seeds, refused=refused)
        with remedies(FEW_SHOT_REMEDIES):
            print_few_shot(few_shot(data or [], **chosen, model=model, settings=values, out=out, overwrite=overwrite,
                                    jobs=jobs, show_progress=not quiet), json=json)  # fmt: skip
        return
    from regard.runs.train import train

    with remedies():
        run = train(data or None, out=out, model=model, settings=values, resume=resume, overwrite=overwrite,
                    show_progress=not quiet, num_processes=processes or 1)  # fmt: skip
    print_run(run, json=json)
