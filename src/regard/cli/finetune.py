"""`regard finetune`: from a pretrained model and some rows to a run."""

from typing import Annotated, Any

import typer

from regard.cli.few_shot import FEW_SHOT_REMEDIES, Jobs, Shots, ShotSeeds, print_few_shot, read_shots, require_shots
from regard.cli.options import (
    TUNING_REMEDIES,
    Encoding,
    Epochs,
    Given,
    Lora,
    Minutes,
    NoBaseline,
    NumProcesses,
    Overwrite,
    Rank,
    RunOut,
    Seed,
    SettingsFile,
    SkipBad,
    Steps,
    TaskName,
    Template,
    TensorParallel,
    TestFile,
    TrainDevice,
    ValidFile,
    merge_settings,
    print_run,
    read_template,
    remedies,
    require_lora,
    training_options,
)
from regard.cli.output import Json, Quiet, RunPath, argument, configure_logging, option
from regard.errors import ConfigError


def finetune_command(
    base: RunPath,
    data: Annotated[Given, argument("DATA", "A file, several files, or a folder.")] = None,
    out: RunOut = None,
    task: TaskName = None,
    lora: Lora = False,
    rank: Rank = None,
    head: Annotated[bool, typer.Option("--head", help="Only the new head: a linear probe, without steps.")] = False,
    top: Annotated[int | None, option("Train the new layers and this many of the topmost layers.")] = None,
    columns: Annotated[str | None, option("The columns, by name or position: text,label")] = None,
    encoding: Encoding = None,
    valid: ValidFile = None,
    test: TestFile = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seed: Seed = None,
    device: TrainDevice = None,
    processes: NumProcesses = None,
    tensor_parallel: TensorParallel = None,
    settings: SettingsFile = None,
    set_: Annotated[Given, option("Any setting: --set finetune.layer_decay=0.9", "--set", metavar="NAME=VALUE")] = None,
    template: Template = None,
    no_baseline: NoBaseline = False,
    skip_bad: SkipBad = None,
    shots: Shots = None,
    shot_seeds: ShotSeeds = None,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Fine-tune the model of a run folder, imported or trained, on your rows.

    Examples:

      regard import all-MiniLM-L6-v2 minilm

      regard finetune minilm reviews.csv --lora --out runs/reviews

      regard finetune minilm reviews.csv --top 2 --set finetune.layer_decay=0.9

      regard finetune minilm reviews.csv --shots 16,100 --shot-seeds 5

      regard predict runs/reviews "A film to remember."
    """
    configure_logging(quiet=quiet)
    if lora + head + (top is not None) > 1:
        raise ConfigError("at most one of --lora, --head and --top can be given")
    require_lora(rank, lora=lora)
    if shots is None:
        require_shots(shot_seeds, jobs)

    options: dict[str, Any] = training_options(
        columns=columns, encoding=encoding, valid=valid, test=test, skip_bad=skip_bad, minutes=minutes, steps=steps,
        epochs=epochs, seed=seed, device=device,
    )  # fmt: skip
    options["task"] = {"name": task, "template": read_template(template)}
    options["train"] |= {"baseline": False if no_baseline else None, "tensor_parallel": tensor_parallel}
    options["finetune"] = {"top_layers": top, "lora": None if rank is None else {"rank": rank}}
    values = merge_settings(settings, set_, options)
    method = "lora" if lora else "head" if head else "top" if top is not None else "all"
    if shots is not None:
        from regard.experiments.few_shot import few_shot

        refused = {"--seed": seed, "--processes": processes, "--tensor-parallel": tensor_parallel}
        chosen = read_shots(shots, shot_seeds, refused=refused)
        with remedies(FEW_SHOT_REMEDIES):
            print_few_shot(few_shot(data or [], **chosen, base=base, method=method, settings=values, out=out,
                                    overwrite=overwrite, jobs=jobs, show_progress=not quiet), json=json)  # fmt: skip
        return
    from regard.runs.finetune import finetune

    with remedies(TUNING_REMEDIES):
        run = finetune(base, data or None, out=out, method=method, settings=values, overwrite=overwrite,
                    show_progress=not quiet, num_processes=processes or 1)  # fmt: skip
    print_run(run, json=json)
