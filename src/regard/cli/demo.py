"""`regard demo`: train, test, compare and certify on built-in data."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.output import Json, Quiet, configure_logging, option, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from regard.experiments.demo import Demo

_EXAMPLE = "mardi 4 mars 2025"


def demo_command(
    out: Annotated[str, typer.Option(help="Run folder; a run in it is replaced.")] = "runs/demo",
    minutes: Annotated[float | None, option("Minutes of training of the main model. Unset: 1.3.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on dates in more than 50 languages in two minutes, then test, compare and certify it.

    Examples:

      regard demo

      regard demo --json --quiet
    """
    configure_logging(quiet=quiet)
    from regard.experiments.demo import demo

    budget = {} if minutes is None else {"minutes": minutes}
    result = demo(out, **budget, show_progress=not quiet)
    if json:
        table = result.comparison.table
        print_json(
            {
                **result.evaluation.to_json(),
                "seconds": round(result.seconds, 1),
                "baseline": None if result.baseline is None else result.baseline.to_json(),
                "report": str(result.report),
                "certificate": result.run.certificate().to_json(),
                "comparison": {key: table[key] for key in ("metric", "budget", "models", "pairs")},
            }
        )
    else:
        from rich.console import Console

        _print(result, Console())


def _print(result: "Demo", console: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    from regard.explanation.report.certificate import certificate_summary
    from regard.explanation.report.comparison import ComparisonView

    table = Table("source", "prediction", "correct", title="test rows", title_justify="left")
    pairs = list(zip(result.evaluation.rows, result.evaluation.outputs, strict=True))
    wrong = [pair for pair in pairs if pair[0][1] != pair[1]][:3]
    for (source, target), output in [*pairs[: 12 - len(wrong)], *wrong]:
        table.add_row(escape(source), escape(output), "yes" if output == target else f"no: {target}")
    console.print(table)
    maps = result.run.attention(_EXAMPLE)
    console.print(f"\ncross-attention for the source {maps.source!r} and the prediction {maps.prediction!r}")
    console.print(maps.heat_map("cross", width=console.width))
    console.print()
    for score in result.evaluation.scores.values():
        console.print(str(score), markup=False, highlight=False, soft_wrap=True)
    if result.baseline is not None:
        console.print(result.baseline.sentence, markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(certificate_summary(result.run.certificate()), highlight=False)
    console.print("\nother models, trained for a few seconds each:\n")
    console.print(ComparisonView(result.comparison.table))
    last = f"\n{result.seconds:.0f} s in all; report: {result.report}; comparison: {result.comparison.page}"
    last += f"\ntry: regard predict {result.run.path} 'the 3rd of March 1999'"
    console.print(last, markup=False, highlight=False, soft_wrap=True)
