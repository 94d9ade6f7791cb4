"""A calculation of bounds as a person reads it: a table, sentences, a figure, a page."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.errors import ConfigError
from regard.explanation.open_table import open_table
from regard.selection.bound_calculator import Calculation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".html")
COLUMNS = ("bound", "holds for", "interval", "epsilon", "lower end alone")
FRESH = "the winner alone, on as many fresh examples with the same score"


@dataclass(frozen=True, eq=False)
class BoundTable:
    """A calculation for a rich console."""

    calculation: Calculation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(title_of(self.calculation), style="bold")
        yield Text()
        if rows := list(rows_of(self.calculation)):
            table = open_table(COLUMNS, left=(0, 1))
            for row in rows:
                table.add_row(*map(Text, row))
            yield table
            yield Text()
        for sentence in sentences(self.calculation):
            yield Text(f"- {sentence}")


def title_of(calculation: Calculation) -> str:
    """What was chosen from what."""
    m, n = calculation.num_hypotheses, calculation.num_examples
    among = None if m is None else f"{m:,} hypotheses" if m > 1 else "one hypothesis"
    on = None if n is None else f"{n:,} examples" if n > 1 else "one example"
    what = " on ".join(part for part in (among, on) if part is not None)
    return f"{what[0].upper()}{what[1:]}, delta {calculation.delta:g}"


def rows_of(calculation: Calculation) -> Iterator[list[str]]:
    """A row for each bound, as `COLUMNS` has it."""
    for bound, lower in zip(calculation.bounds, calculation.lower_bounds, strict=True):
        is_fresh = bound.num_hypotheses == 1 and (calculation.num_hypotheses or 1) > 1
        what = FRESH if is_fresh else _holds_for(bound.name, calculation.num_hypotheses or 1)
        ends = "" if bound.lower is None else "{:.4f} to {:.4f}".format(*bound.interval)
        alone = f"{lower.epsilon:.4f} below" if lower.lower is None else f"{lower.lower:.4f}"
        yield [bound.name, what, ends, f"{bound.epsilon:.4f}", alone]


def sentences(calculation: Calculation) -> Iterator[str]:
    """What else follows."""
    c = calculation
    has_bounds = c.epsilon is not None and not any(bound.is_estimate for bound in c.bounds)
    if has_bounds and c.epsilon is not None:
        yield _epsilon_sentence(c, c.epsilon)
    if has_bounds and c.num_hypotheses != 1:
        yield _difference_sentence(c)
        yield f"{c.fresh_worth:,} fresh examples, for the winner alone, would bound it as narrowly."
    if any(bound.is_estimate for bound in c.bounds):
        yield "Scores without a range have no bound: the bootstrap is an estimate, about right for many examples."
    elif c.score is not None:
        yield (
            "Decide which bound to report before looking: the exact binomial one where each example is right or "
            "wrong, else Chernoff's. The narrowest of several, picked afterwards, promises less."
        )
    if c.answers is not None:
        yield from _answer_sentences(c)


def draw_bounds(calculation: Calculation, path: str | os.PathLike[str], *, command: str) -> None:
    """Write the figure as .png or .svg, or a page of all as .html, by the ending of `path`.

    `command` is what the page says to see the same again.
    """
    path = check_ending(path)
    # Imported here, since matplotlib takes longer to load than a table takes to print.
    from regard.explanation.bounds_figure import compose
    from regard.explanation.figures import save

    figure = compose(calculation)
    if path.suffix.lower() == ".html":
        _write_page(calculation, figure, path, command)
    else:
        save(figure, path)


def check_ending(path: str | os.PathLike[str]) -> Path:
    """Refuse what is neither picture nor page."""
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"the name of a figure must end in .png, .svg or .html, got {path.name!r}")
    return path


def _holds_for(name: str, num_hypotheses: int) -> str:
    kind = {"exact binomial": "scores of 0 or 1", "bootstrap": "an estimate, no bound"}.get(name, "scores in [0, 1]")
    return f"{kind}, all {num_hypotheses:,} at once" if num_hypotheses > 1 else kind


def _epsilon_sentence(c: Calculation, epsilon: float) -> str:
    if epsilon >= 1:
        return f"Hoeffding's bound promises nothing here: its epsilon of {epsilon:.4f} is as wide as the scale."
    whom = "the measured score is not" if c.num_hypotheses == 1 else f"none of the {c.num_hypotheses:,} scores is"
    return (
        f"With probability {1 - c.delta:g}, {whom} farther than {epsilon:.4f} from the true one (Hoeffding); asked of "
        f"one side alone, {c.epsilon_one_sided:.4f}."
    )


def _difference_sentence(c: Calculation) -> str:
    assert c.smallest_difference is not None
    if c.smallest_difference >= 1:
        return "No measured difference is large enough to tell two of them apart for certain."
    return (
        f"Two of them are told apart by a measured difference above {c.smallest_difference:.4f}; the winner is truly "
        f"worse than the best by no more than that."
    )


def _answer_sentences(c: Calculation) -> Iterator[str]:
    assert c.answers is not None
    within = f"For an epsilon of {c.answers.epsilon:g} with delta {c.delta:g}"
    if c.answers.num_examples is not None:
        yield f"{within}, {c.num_hypotheses:,} hypotheses need {c.answers.num_examples:,} examples."
    looks = c.answers.num_hypotheses
    if looks is not None:
        allowed = "more hypotheses than can be counted" if math.isinf(looks) else f"{looks:,} hypotheses"
        allowed = "not even one hypothesis" if looks == 0 else "one hypothesis" if looks == 1 else allowed
        yield f"{within}, {c.num_examples:,} examples allow {allowed}."
    if c.answers.delta is not None:
        fails = f"fails with a chance of {c.answers.delta:.3g} at most" if c.answers.delta < 1 else "promises nothing"
        yield f"With M and N as given, an epsilon of {c.answers.epsilon:g} {fails}."


def _write_page(calculation: Calculation, figure: "Figure", path: Path, command: str) -> None:
    from regard.explanation.figure_page import write_figure_page

    rows = list(rows_of(calculation))
    write_figure_page(
        path,
        figure,
        title=title_of(calculation),
        claim="What can still be said of a score that was chosen among many?",
        findings=list(sentences(calculation)),
        tables=[{"name": "bounds", "columns": COLUMNS, "rows": rows, "note": ""}] if rows else [],
        settings=list(_given(calculation)),
        command=command,
    )


def _given(c: Calculation) -> Iterator[tuple[str, str]]:
    values = {"hypotheses, M": c.num_hypotheses, "examples, N": c.num_examples, "delta": c.delta, "score": c.score}
    for name, value in values.items():
        if value is not None:
            yield name, f"{value:,}" if isinstance(value, int) else f"{value:g}"
