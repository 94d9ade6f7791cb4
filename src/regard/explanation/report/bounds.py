"""What `regard bound` computes, as a summary."""

import math
from collections.abc import Iterator

from regard.explanation.report.summary import Summary, SummaryTable
from regard.selection.bounds.planning import Calculation

_COLUMNS = ("bound", "holds for", "interval", "epsilon", "lower end only")
_QUESTION = "What does the best of many measured scores guarantee?"


def bound_summary(calculation: Calculation, *, command: str = "") -> Summary:
    """Returns the bounds and what follows from them; `command` is the one that computes them."""

    def figure():
        from regard.explanation.report.plots import plot_bounds

        return plot_bounds(calculation)

    rows = list(_rows(calculation))
    return Summary(
        title=_title(calculation),
        subtitle=_QUESTION,
        findings=list(_sentences(calculation)),
        tables=[SummaryTable(name="bounds", columns=_COLUMNS, rows=rows, left=(0, 1), names=())] if rows else [],
        settings=list(_settings(calculation)),
        command=command,
        figure=figure,
    )


def _title(calculation: Calculation) -> str:
    m, n = calculation.num_candidates, calculation.num_examples
    parts = [_count(m, "candidate", "candidates"), _count(n, "example", "examples")]
    title = " on ".join(part for part in parts if part is not None)
    return f"{title[0].upper()}{title[1:]}, delta {calculation.delta:g}"


def _rows(calculation: Calculation) -> Iterator[list[str]]:
    num_candidates = calculation.num_candidates or 1
    for bound, lower in zip(calculation.bounds, calculation.lower_bounds, strict=True):
        if bound.num_candidates == 1 and num_candidates > 1:
            holds_for = "the winner only, on as many fresh examples with the same score"
        else:
            kinds = {"exact binomial": "scores of 0 or 1", "bootstrap": "an estimate, not a bound"}
            holds_for = kinds.get(bound.name, "scores in [0, 1]")
            holds_for += f", all {num_candidates:,} at once" if num_candidates > 1 else ""
        interval = "" if bound.lower is None else "{:.4f} to {:.4f}".format(*bound.interval)
        alone = f"{lower.epsilon:.4f} below" if lower.lower is None else f"{lower.lower:.4f}"
        yield [bound.name, holds_for, interval, f"{bound.epsilon:.4f}", alone]


def _sentences(c: Calculation) -> Iterator[str]:
    is_estimate = any(bound.is_estimate for bound in c.bounds)
    if c.epsilon is not None and not is_estimate:
        yield _epsilon_sentence(c, c.epsilon)
        if c.num_candidates != 1:
            yield _difference_sentence(c)
            yield f"{c.num_fresh:,} fresh examples, for the winner only, would bound it as narrowly."
    if is_estimate:
        yield "Scores without a range have no bound: the bootstrap is an estimate, approximate for many examples."
    elif c.score is not None:
        yield (
            "Decide which bound to report before computing them: the exact binomial one where each example is right "
            "or wrong, otherwise Chernoff's. The narrowest of several, selected afterwards, has a weaker guarantee."
        )
    if c.requirements is not None:
        yield from _answer_sentences(c)


def _epsilon_sentence(c: Calculation, epsilon: float) -> str:
    if epsilon >= 1:
        return f"Hoeffding's bound is vacuous here: its epsilon of {epsilon:.4f} is as wide as the range of scores."
    which = "the measured score is" if c.num_candidates == 1 else f"each of the {c.num_candidates:,} scores is"
    return (
        f"With probability {1 - c.delta:g}, {which} within {epsilon:.4f} of its true value (Hoeffding); for a "
        f"one-sided bound, within {c.epsilon_one_sided:.4f}."
    )


def _difference_sentence(c: Calculation) -> str:
    assert c.smallest_difference is not None
    if c.smallest_difference >= 1:
        return "No measured difference is large enough to decide which of two candidates is better."
    return (
        f"With the same probability, of two candidates whose measured scores differ by more than "
        f"{c.smallest_difference:.4f} the one ahead is better, and the true score of the winner is at most as much "
        "below that of the best."
    )


def _answer_sentences(c: Calculation) -> Iterator[str]:
    assert c.requirements is not None
    within = f"For an epsilon of {c.requirements.epsilon:g} with delta {c.delta:g}"
    if c.requirements.num_examples is not None:
        yield f"{within}, {c.num_candidates:,} candidates need {c.requirements.num_examples:,} examples."
    most = c.requirements.num_candidates
    if most is not None:
        counted = "no candidate" if most == 0 else _count(most, "candidate", "candidates")
        allowed = "more candidates than can be counted" if math.isinf(most) else counted
        yield f"{within}, {c.num_examples:,} examples allow {allowed}."
    if c.requirements.delta is not None:
        fails = (
            f"fails with probability at most {c.requirements.delta:.3g}"
            if c.requirements.delta < 1
            else "has no guarantee"
        )
        yield f"With the given M and N, an epsilon of {c.requirements.epsilon:g} {fails}."


def _settings(c: Calculation) -> Iterator[tuple[str, str]]:
    values = {"candidates, M": c.num_candidates, "examples, N": c.num_examples, "delta": c.delta, "score": c.score}
    for name, value in values.items():
        if value is not None:
            yield name, f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _count(count: float | None, one: str, many: str) -> str | None:
    return None if count is None else f"one {one}" if count == 1 else f"{count:,} {many}"
