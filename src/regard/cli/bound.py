"""`regard bound`: what can still be said of a score that was chosen among many."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Json, option, print_json
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.selection.bounds import Scores

_PIPED_WIDTH = 140
"""Columns of a table that nobody looks at in a terminal."""


def bound(
    m: Annotated[int | None, option("Hypotheses: among how many one was or will be chosen.", "--m")] = None,
    n: Annotated[int | None, option("Examples that they were or will be scored on.", "--n")] = None,
    delta: Annotated[float, typer.Option(help="The chance with which the bound may be wrong.")] = 0.05,
    score: Annotated[float | None, option("What the chosen one got: a mean of scores in [0, 1].")] = None,
    values: Annotated[str | None, option("A file with its score on each example, one number a line.")] = None,
    unbounded: Annotated[bool, typer.Option("--unbounded", help="Such scores could lie outside [0, 1].")] = False,
    epsilon: Annotated[float | None, option("How near the true mean should be: what that takes.")] = None,
    out: Annotated[str | None, option("Draw to this .png or .svg; or all of it to this .html.")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Bound the true score of the best of M hypotheses, measured on N examples; or ask what M, N or delta may be.

    Examples:

      regard bound --m 1000000 --n 4000

      regard bound --m 1000000 --n 4000 --score 0.93 --out bound.png

      regard bound --m 200 --epsilon 0.02

      regard bound --n 4000 --epsilon 0.03

      regard bound --m 200 --values losses.txt --unbounded
    """
    from regard.explanation.bounds import BoundTable, check_ending, draw_bounds
    from regard.selection.bound_calculator import calculate

    if out is not None:
        check_ending(out)
    scores = _scores(n, score, values, unbounded)
    found = calculate(num_hypotheses=m, num_examples=n, delta=delta, scores=scores, epsilon=epsilon)
    if out is not None:
        given = {"m": m, "n": n, "delta": delta, "score": score, "values": values, "epsilon": epsilon}
        draw_bounds(found, out, command=_command(given, unbounded))
    if json:
        print_json({**found.to_dict(), "out": out})
        return
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_PIPED_WIDTH)).print(BoundTable(found), highlight=False)
    if out is not None:
        print(out)


def _scores(num_examples: int | None, score: float | None, path: str | None, is_unbounded: bool) -> "Scores | None":
    """What is known of the chosen one."""
    from regard.selection.bound_record import check, check_share
    from regard.selection.bounds import Scores

    if path is not None:
        if score is not None or num_examples is not None:
            raise ConfigError("a file of values has its own mean and number: --values excludes --score and --n")
        return Scores.of(_read(path), is_bounded=False if is_unbounded else None)
    if is_unbounded:
        raise ConfigError("--unbounded says something of --values, which were not given")
    if score is None:
        return None
    if num_examples is None:
        raise ConfigError("a score is bounded by the number of examples it is the mean of: --score needs --n")
    check(num_examples=num_examples)
    check_share(score, "a bound by Hoeffding, Chernoff, Bernstein or Clopper and Pearson")
    return Scores.counted(score * num_examples, num_examples)


def _read(path: str) -> list[float]:
    from regard.data.files import open_text

    found = []
    for number, line in enumerate(open_text(path), start=1):
        if line.strip():
            try:
                found.append(float(line))
            except ValueError:
                raise DataError(
                    f"{path} must have a number in each line, got {line.strip()!r} in line {number}"
                ) from None
    return found


def _command(given: dict[str, Any], is_unbounded: bool) -> str:
    """What was typed, less where it goes."""
    words = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    return shlex.join(["regard", "bound", *words, *(["--unbounded"] if is_unbounded else [])])
