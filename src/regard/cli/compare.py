"""`regard compare`: several models, one budget, one table that can be believed."""

from typing import Annotated

import typer

from regard.cli.output import Beam, Json, Quiet, argument, numbers, option, print_json, talk
from regard.cli.training_options import (
    Columns,
    SetValues,
    SharedSettings,
    TaskName,
    TokenizerName,
    TrainDevice,
    joined,
    names,
    remedies,
)


def compare(
    data: Annotated[list[str], argument("DATA...", "A file, several files, a folder, or a built-in name.")],
    models: Annotated[str, option("Presets or TOML files: rnn,lstm,lstm-attention,mine.toml")],
    task: TaskName = None,
    out: Annotated[str | None, option("The folder. Unset: runs/compare-DATA. An interrupted one goes on.")] = None,
    minutes: Annotated[float | None, option("Train each run for so many minutes.")] = None,
    steps: Annotated[int | None, option("Train each run for so many steps.")] = None,
    flops: Annotated[float | None, option("Train each run for so many operations: 1e13")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 3 or 1,5,7")] = "1",
    params: Annotated[int | None, option("Make each model as wide as so many parameters allow.")] = None,
    sizes: Annotated[str | None, option("Also train on so many rows, or documents, only: 1000,10000")] = None,
    columns: Columns = None,
    tokenizer: TokenizerName = None,
    device: TrainDevice = None,
    jobs: Annotated[int | None, option("Runs at a time. Unset: one a core, or one on a GPU.", min=1)] = None,
    beam: Beam = None,
    settings: SharedSettings = None,
    set_: SetValues = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the comparison in --out.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Train models on the same data under one budget, and say which differences are real.

    The score of each comes with an interval over rows and seeds; each pair is
    tested on the same rows, corrected for the number of pairs. Language models are
    compared by bits per byte, lower being better, on stretches of the same text.

    Examples:

      regard compare dates --models rnn,lstm,lstm-attention,transformer --minutes 1 --seeds 2

      regard compare pairs.tsv --models lstm,transformer --steps 2000 --params 1000000

      regard compare corpus/ --columns de,en --models small,wide.toml --flops 1e15 --beam 5

      regard compare shakespeare.txt --models gpt,lstm,gru --minutes 1 --seeds 2
    """
    talk(quiet=quiet)
    from regard.runs.comparison import compare as start

    options = {
        "task": task,
        "data": {"columns": names(columns), "tokenizer": tokenizer},
        "train": {"device": device},
    }
    values = joined(settings, set_, options)
    with remedies():
        result = start(
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

    from regard.explanation.comparison import draw_comparison

    console = Console()
    console.print(draw_comparison(result.table))
    console.print(f"\nthe page to look at: {result.page}", markup=False, highlight=False, soft_wrap=True)
