"""`regard bound`: confidence bounds on a score that was selected among many."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.output import Json, option, print_json
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.selection.bounds import ScoreSummary

_PIPED_WIDTH = 140
"""Columns of a table that is not printed to a terminal."""


def bound_command(
    m: Annotated[int | None, option("The number of candidates that one is selected from.", "--m")] = None,
    n: Annotated[int | None, option("Examples that they are scored on.", "--n")] = None,
    delta: Annotated[float, typer.Option(help="The probability with which the bound may fail.")] = 0.05,
    score: Annotated[float | None, option("The score of the selected one: a mean of scores in [0, 1].")] = None,
    values: Annotated[str | None, option("A file with its score on each example, one number a line.")] = None,
    unbounded: Annotated[bool, typer.Option("--unbounded", help="The values can lie outside [0, 1].")] = False,
    epsilon: Annotated[float | None, option("The accuracy to reach; prints what it requires.")] = None,
    out: Annotated[str | None, option("Also write a figure (.png, .svg) or a page (.html).")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Bound the true score of the best of M candidates, measured on N examples, or compute the M, N or delta required.

    Examples:

      regard bound --m 1000000 --n 4000

      regard bound --m 1000000 --n 4000 --score 0.93 --out bound.png

      regard bound --m 200 --epsilon 0.02

      regard bound --n 4000 --epsilon 0.03

      regard bound --m 200 --values losses.txt --unbounded
    """
    from regard.explanation.report import SUMMARY_SUFFIXES, bound_summary
    from regard.files import check_suffix
    from regard.selection.bounds.planning import calculate

    if out is not None:
        check_suffix(out, SUMMARY_SUFFIXES)
    scores = _scores(n, score, values, unbounded)
    found = calculate(num_candidates=m, num_examples=n, delta=delta, scores=scores, epsilon=epsilon)
    given = {"m": m, "n": n, "delta": delta, "score": score, "values": values, "epsilon": epsilon}
    summary = bound_summary(found, command=_command(given, unbounded))
    if out is not None:
        summary.save(out)
    if json:
        print_json({**found.to_json(), "out": out})
        return
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_PIPED_WIDTH)).print(summary, highlight=False)
    if out is not None:
        print(out)


def _scores(
    num_examples: int | None, score: float | None, path: str | None, is_unbounded: bool
) -> "ScoreSummary | None":
    """The score of the selected candidate."""
    from regard.selection.bounds import ScoreSummary
    from regard.selection.bounds.bound import check_arguments, check_unit_interval

    if path is not None:
        if score is not None or num_examples is not None:
            raise ConfigError("--values cannot be combined with --score and --n")
        return ScoreSummary.from_values(_read(path), is_bounded=False if is_unbounded else None)
    if is_unbounded:
        raise ConfigError("--unbounded needs --values")
    if score is None:
        return None
    if num_examples is None:
        raise ConfigError("--score needs --n, the number of examples that it is a mean of")
    check_arguments(num_examples=num_examples)
    check_unit_interval(score, "a bound by Hoeffding, Chernoff, Bernstein or Clopper and Pearson")
    return ScoreSummary.from_successes(score * num_examples, num_examples)


def _read(path: str) -> list[float]:
    from regard.data.formats.files import iter_lines

    found = []
    for number, line in enumerate(iter_lines(path), start=1):
        if line.strip():
            try:
                found.append(float(line))
            except ValueError:
                raise DataError(
                    f"{path} must have a number in each line, got {line.strip()!r} in line {number}"
                ) from None
    return found


def _command(given: dict[str, Any], is_unbounded: bool) -> str:
    """The command line without --out and --json."""
    words = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    return shlex.join(["regard", "bound", *words, *(["--unbounded"] if is_unbounded else [])])
