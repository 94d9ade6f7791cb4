"""`regard check`: whether a model computes the same in every way that it can be used."""

from typing import TYPE_CHECKING

from regard.cli.output import Device, Json, Quiet, RunPath, configure_logging, print_json

if TYPE_CHECKING:
    from regard.runs.check import CheckResult

_PIPED_WIDTH = 140


def check_command(run: RunPath, device: Device = "cpu", json: Json = False, quiet: Quiet = False) -> int:
    """Check on your own run that resuming, accumulating, caching, batching, merging and exporting change no result.

    Each is compared with its plain form, on the run's weights and data, and the largest difference is printed; where
    one is too large, also the first tensor, layer or input that differs. The run folder is not changed. The exit code
    is 1 if an equality fails.

    Examples:

      regard check runs/mine

      regard check runs/mine --json --quiet > check.json
    """
    configure_logging(quiet=quiet)
    from regard.runs.check import check

    result = check(run, device=device)
    if json:
        print_json(result.to_json())
    else:
        _print(result)
    return 0 if result.holds else 1


def _format(number: float | None) -> str:
    return "-" if number is None else f"{number:.1e}" if number else "0"


def _print(result: "CheckResult") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    table = Table("equality", "result", "difference", "allowed", "compared")
    for each in result.equalities:
        numbers = [_format(number) for number in (each.difference, each.tolerance)]
        compared = each.compared + (f"; {each.where}" if each.where else "")
        table.add_row(each.name, each.verdict, *numbers, compared)
    console.print(table, markup=False, highlight=False)
    failed = [each.name for each in result.equalities if each.verdict == "fails"]
    held = sum(each.verdict == "holds" for each in result.equalities)
    console.print(
        f"{held} equalities hold" + (f"; {len(failed)} fail: {', '.join(failed)}" if failed else ""), highlight=False
    )
