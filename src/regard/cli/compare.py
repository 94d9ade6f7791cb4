"""`regard compare`: train several models under one budget, and test their differences."""

from typing import Annotated

import typer

from regard.cli.options import (
    EXPERIMENT_REMEDIES,
    Columns,
    Encoding,
    SetValues,
    SharedSettings,
    TaskName,
    TokenizerName,
    TrainDevice,
    merge_settings,
    remedies,
    shared_options,
)
from regard.cli.output import Beam, Json, Quiet, argument, configure_logging, numbers, option, print_json


def compare_command(
    data: Annotated[list[str], argument("DATA", "A file, several files, a folder, or a built-in name.")],
    models: Annotated[str, option("Presets or TOML files: rnn,lstm,lstm-attention,mine.toml")],
    task: TaskName = None,
    out: Annotated[str | None, option("Folder. Unset: runs/compare-DATA. An interrupted one is continued.")] = None,
    minutes: Annotated[float | None, option("Budget of each run, in minutes of training.")] = None,
    steps: Annotated[int | None, option("Budget of each run, in steps.")] = None,
    flops: Annotated[float | None, option("Budget of each run, in floating-point operations: 1e13")] = None,
    seeds: Annotated[str, typer.Option(help="Number of seeds, or a list of them: 3 or 1,5,7")] = "1",
    params: Annotated[int | None, option("Number of parameters; sets the width of each model.")] = None,
    sizes: Annotated[str | None, option("Also train on so many rows, or documents: 1000,10000")] = None,
    columns: Columns = None,
    encoding: Encoding = None,
    tokenizer: TokenizerName = None,
    device: TrainDevice = None,
    jobs: Annotated[int | None, option("Runs at a time. Unset: one for each core, or one on a GPU.", min=1)] = None,
    beam: Beam = None,
    settings: SharedSettings = None,
    set_: SetValues = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the comparison in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train models on the same data under one budget, and test which differences are significant.

    Each score has a 95 % interval over rows and seeds. Each pair of models is compared by a paired test on the same
    rows, corrected for the number of pairs. Language models are compared by bits per byte (lower is better).

    Examples:

      regard compare dates --models rnn,lstm,lstm-attention,transformer --minutes 1 --seeds 2

      regard compare pairs.tsv --models lstm,transformer --steps 2000 --params 1000000

      regard compare corpus/ --columns de,en --models small,wide.toml --flops 1e15 --beam 5

      regard compare shakespeare.txt --models gpt,lstm,gru --minutes 1 --seeds 2
    """
    configure_logging(quiet=quiet)
    from regard.experiments.compare import compare

    options = shared_options(task=task, tokenizer=tokenizer, columns=columns, encoding=encoding, device=device)
    values = merge_settings(settings, set_, options)
    with remedies(EXPERIMENT_REMEDIES):
        result = compare(
            data,
            [name.strip() for name in models.split(",") if name.strip()],
            minutes=minutes,
            steps=steps,
            flops=flops,
            seeds=numbers("--seeds", seeds) if "," in seeds else numbers("--seeds", seeds)[0],
            params=params,
            sizes=numbers("--sizes", sizes) if sizes else (),
            settings=values,
            beam_size=beam,
            out=out,
            overwrite=overwrite,
            jobs=jobs,
            show_progress=not quiet,
        )
    if json:
        print_json(result.table)
        return
    from rich.console import Console

    from regard.explanation.report.comparison import ComparisonView

    console = Console()
    console.print(ComparisonView(result.table))
    console.print(f"\npage: {result.page}", markup=False, highlight=False, soft_wrap=True)
