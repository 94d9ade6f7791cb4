"""What `regard train` and `regard finetune` share where few labels are tried: `--few` and `--draws`."""

from typing import TYPE_CHECKING, Annotated, Any

from regard.cli.output import numbers, option, print_json
from regard.errors import ConfigError, RegardError, RunExistsError, StoppedError

if TYPE_CHECKING:
    from regard.runs.few import FewShot

FEW_REMEDIES: dict[type[RegardError], str] = {
    RunExistsError: "the options are --overwrite and --out",
    StoppedError: "nothing is lost",
}

Few = Annotated[str | None, option("Try so many rows of each label, drawn several times: 16, or 16,100 for a curve.")]
Draws = Annotated[str | None, option("With --few: how many draws, or which: 5, or 1,4,7.")]
Jobs = Annotated[int | None, option("With --few: runs at a time. Unset: one a core, or one on a GPU.", min=1)]


def read_few(few: str, draws: str | None, *, refused: dict[str, Any]) -> dict[str, Any]:
    """The numbers that were given, as `regard.few_shot` takes them; `refused` are options that do not go with them."""
    for name, value in refused.items():
        if value is not None and value is not False:
            raise ConfigError(f"--few has runs of its own, and does not go with {name}")
    chosen = numbers("--draws", draws) if draws is not None else []
    wanted = {} if draws is None else {"draws": chosen if "," in draws else chosen[0]}
    return {"few": numbers("--few", few), **wanted}


def require_few(draws: str | None, jobs: int | None) -> None:
    """Draws without --few would do nothing."""
    for name, value in (("--draws", draws), ("--jobs", jobs)):
        if value is not None:
            raise ConfigError(f"{name} is for --few, got {value} without it")


def print_few(result: "FewShot", *, json: bool) -> None:
    """The table, and where it lies."""
    if json:
        print_json({"folder": str(result.path), **result.table})
        return
    from rich.console import Console

    from regard.explanation.few import FewTable

    console = Console()
    console.print(FewTable(result.table))
    console.print(f"\nthe runs: {result.path}", markup=False, highlight=False, soft_wrap=True)
