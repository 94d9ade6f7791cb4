"""`regard demo`: the main job on built-in data."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.output import Json, Quiet, option, print_json, talk

if TYPE_CHECKING:
    from rich.console import Console

    from regard.runs.demo import Demo

_EXAMPLE = "mardi 4 mars 2025"


def demo(
    out: Annotated[str, typer.Option(help="The run folder; a run that is there is replaced.")] = "runs/demo",
    minutes: Annotated[float | None, option("Minutes to train the main model; unset, 1.3.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn to read dates in 50 languages, in two minutes on a laptop; then look inside.

    Examples:

      regard demo

      regard demo --json --quiet
    """
    talk(quiet=quiet)
    from regard.runs.demo import demo as show

    budget = {} if minutes is None else {"minutes": minutes}
    result = show(out, **budget, show_progress=not quiet)
    if json:
        table = result.comparison.table
        print_json(
            {
                **result.evaluation.to_json(),
                "seconds": round(result.seconds, 1),
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

    from regard.explanation.certificate import CertificateText
    from regard.explanation.comparison import draw_comparison
    from regard.explanation.drawings import draw_terminal

    table = Table("written", "read as", "right?", title="dates the model has never seen", title_justify="left")
    pairs = list(zip(result.evaluation.rows, result.evaluation.outputs, strict=True))
    wrong = [pair for pair in pairs if pair[0][1] != pair[1]][:3]
    for (source, target), output in [*pairs[: 12 - len(wrong)], *wrong]:
        table.add_row(escape(source), escape(output), "yes" if output == target else f"no: {target}")
    console.print(table)
    maps = result.run.attention(_EXAMPLE)
    console.print(f"\nwhat the model looked at while it wrote {maps.prediction} for {maps.source!r}")
    console.print(draw_terminal(maps, kind="cross", width=console.width))
    console.print()
    for score in result.evaluation.scores.values():
        console.print(str(score), markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(CertificateText(result.run.certificate()), highlight=False)
    console.print("\nhow its forerunners do, in a few seconds each:\n")
    console.print(draw_comparison(result.comparison.table))
    last = f"\n{result.seconds:.0f} s in all; the report: {result.report}; the comparison: {result.comparison.page}"
    last += f"\ntry: regard predict {result.run.path} 'the 3rd of March 1999'"
    console.print(last, markup=False, highlight=False, soft_wrap=True)
