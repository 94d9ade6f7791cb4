"""The options `--shots`, `--shot-seeds` and `--jobs` of `regard train` and `regard finetune`."""

from typing import TYPE_CHECKING, Annotated, Any

from regard.cli.output import numbers, option, print_json
from regard.errors import ConfigError, RegardError, RunExistsError, StoppedError

if TYPE_CHECKING:
    from regard.experiments.few_shot import FewShot

FEW_SHOT_REMEDIES: dict[type[RegardError], str] = {
    RunExistsError: "the options are --overwrite and --out",
    StoppedError: "nothing is lost",
}

Shots = Annotated[str | None, option("Train on N rows of each label, several times: 16, or 16,100 for a curve.")]
ShotSeeds = Annotated[str | None, option("With --shots: the number of draws, or their seeds: 5, or 1,4,7.")]
Jobs = Annotated[int | None, option("With --shots: runs at a time. Unset: one for each core, or one on a GPU.", min=1)]


def read_shots(shots: str, shot_seeds: str | None, *, refused: dict[str, Any]) -> dict[str, Any]:
    """The options as `regard.few_shot` takes them; `refused` are options that cannot be combined with them."""
    for name, value in refused.items():
        if value is not None and value is not False:
            raise ConfigError(f"--shots trains several runs, and cannot be combined with {name}")
    chosen = numbers("--shot-seeds", shot_seeds) if shot_seeds is not None else []
    seeds = {} if shot_seeds is None else {"shot_seeds": chosen if "," in shot_seeds else chosen[0]}
    return {"shots": numbers("--shots", shots), **seeds}


def require_shots(shot_seeds: str | None, jobs: int | None) -> None:
    """Raise if options that need --shots are given without it."""
    for name, value in (("--shot-seeds", shot_seeds), ("--jobs", jobs)):
        if value is not None:
            raise ConfigError(f"{name} needs --shots, got {value} without it")


def print_few_shot(result: "FewShot", *, json: bool) -> None:
    """Print the table, and the path of the folder."""
    if json:
        print_json({"folder": str(result.path), **result.table})
        return
    from rich.console import Console

    from regard.explanation.report.few_shot import few_shot_summary

    console = Console()
    console.print(few_shot_summary(result.table))
    console.print(f"\nruns: {result.path}", markup=False, highlight=False, soft_wrap=True)
