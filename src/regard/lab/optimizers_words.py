"""What the study of optimizers says: sentences and tables made from what was measured."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.evaluation.means import mean_interval
from regard.lab.optimizers_figure import Results, Tuned
from regard.lab.study import Cell, Table

_ROUNDING = 1e-16
"""Below this a loss that began at 1 is 0."""


def findings(results: Results, lengths: Mapping[str, Sequence[float]], *, chance: float) -> list[str]:
    along, turned, transformer = results.values()
    edges = [f"{name} ({task})" for task, tuned in results.items() for name, found in tuned.items() if found.is_at_edge]
    return [
        _order(transformer),
        _best_against_rest(transformer),
        _breadth(transformer, chance),
        _turning(along, turned),
        _correction(lengths),
        f"The best of the rates tried lies at an end of them, so that a better one may lie beyond, for: "
        f"{', '.join(edges) or 'none'}.",
    ]


def _order(tuned: Mapping[str, Tuned]) -> str:
    ordered = sorted(tuned, key=lambda name: float(tuned[name].ends.mean()))
    parts = [f"{name} {float(tuned[name].ends.mean()):.3g} (rate {tuned[name].rate:.2g})" for name in ordered]
    num_seeds, steps = next(iter(tuned.values())).losses.shape
    return f"The Transformer's loss after {steps} steps, in nats, mean of {num_seeds} seeds: {', '.join(parts)}."


def _best_against_rest(tuned: Mapping[str, Tuned]) -> str:
    best = min(tuned, key=lambda name: float(tuned[name].ends.mean()))
    beaten, open_ = [], []
    for name, found in tuned.items():
        if name != best:
            # Seed by seed: the same first weights and the same batches.
            _, low, high = mean_interval(found.ends - tuned[best].ends)
            (beaten if low > 0 else open_).append(f"{name} [{low:.2g}, {high:.2g}]")
    return (
        f"{best} has the lowest; seed by seed it is ahead by more than chance (95 % interval, nats) of "
        f"{', '.join(beaten) or 'none'}; undecided: {', '.join(open_) or 'none'}."
    )


def _breadth(tuned: Mapping[str, Tuned], chance: float) -> str:
    """How many rates come close to the best: half of what the best gains over chance."""
    parts = []
    for name, found in tuned.items():
        best = min(found.tried.values())
        near = sum(end <= (best + chance) / 2 for end in found.tried.values())
        parts.append(f"{name} {near}")
    count = len(next(iter(tuned.values())).tried)
    return f"Of {count} rates, so many reach at least half of what the best one gains over chance: {', '.join(parts)}."


def _turning(along: Mapping[str, Tuned], turned: Mapping[str, Tuned]) -> str:
    parts = []
    for name, found in along.items():
        before, after = (10 ** float(_powers(each).mean()) for each in (found, turned[name]))
        parts.append(f"{name} {before:.2g} and {after:.2g}")
    return (
        f"The loss at the end of the quadratic along the axes, and of the same turned (geometric means over seeds, the "
        f"first loss being 1): {', '.join(parts)}."
    )


def _powers(found: Tuned) -> Float[Tensor, " seed"]:
    """Losses at the end as powers of ten; those that only rounding can tell from 0 as that."""
    return found.ends.clamp(min=_ROUNDING).log10()


def _correction(lengths: Mapping[str, Sequence[float]]) -> str:
    plain, corrected = (torch.tensor(lengths[name]) for name in ("Adam, not corrected", "Adam"))
    return (
        f"Where every gradient is 1, Adam's updates lie between {float(corrected.min()):.3f} and "
        f"{float(corrected.max()):.3f} of its rate; without bias correction the first is {float(plain[0]):.2f}, the "
        f"largest {float(plain.max()):.2f} at step {int(plain.argmax()) + 1}. AdaGrad's step {len(plain):,} is "
        f"{lengths['AdaGrad'][-1]:.3f} of its first; RMSProp's first is {lengths['RMSProp'][0]:.1f}."
    )


def tables(results: Results) -> list[Table]:
    return [_table(task, tuned) for task, tuned in results.items()]


def _table(task: str, tuned: Mapping[str, Tuned]) -> Table:
    rows: list[list[Cell]] = []
    is_quadratic = task.startswith("quadratic")
    for name, found in tuned.items():
        end = mean_interval(_powers(found) if is_quadratic else found.ends)
        rows.append([name, found.rate, "yes" if found.is_at_edge else "no", end, min(found.tried.values())])
    unit = "loss at the end, as a power of ten" if is_quadratic else "loss at the end, nats"
    return Table(
        name=task,
        columns=["optimizer", "best rate", "at an end of the rates", unit, "when tuned"],
        rows=rows,
        note="In brackets the 95 % interval over seeds; the rate was chosen on another seed, whose loss is the last "
        "column's.",
    )
