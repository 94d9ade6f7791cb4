r"""Softmax and its temperature, drawn.

$$ p_i = \frac{e^{s_i / T}}{\sum_j e^{s_j / T}} $$

As $T \to 0$ all the probability goes to the best score, in equal shares where
several are best; as $T \to \infty$ every choice gets the same. Between the two
stands $T = 1$, softmax itself. The entropy $H$ says how open the choice is:
$e^H$ equally likely choices would be as open.

For $n$ scores drawn from a standard normal distribution, $n$ large, the mean
entropy is near $\ln n - 1 / 2T^2$ as long as $T > 1 / \sqrt{2 \ln n}$, below which
few choices hold nearly all (Derrida, "Random-energy model", 1981, section III).

Dimensions: `choice`, `temperature`, `draw`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.lab import STUDIES
from regard.lab.drawing import COLORS, GRID, INK, MUTED, label, legend, panels
from regard.lab.study import Study, Table
from regard.logging import progress_bar
from regard.nn.attention import attend

SCORES = {
    "one best": (3.0, 2.0, 1.0, 0.0, -1.0),
    "two best": (2.0, 2.0, 0.0, -1.0, -2.0),
    "all near": (0.2, 0.1, 0.0, -0.1, -0.2),
}
SHOWN = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0)
"""Temperatures of the tables."""
BARS = (0.25, 0.5, 1.0, 2.0, 8.0)
"""Temperatures of the bars."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    num_temperatures: int
    num_choices: tuple[int, ...]
    """How many random scores there are."""
    num_draws: int


QUICK = Sizes(num_temperatures=81, num_choices=(10, 100, 1000), num_draws=50)
FULL = Sizes(num_temperatures=161, num_choices=(10, 100, 1000, 10_000, 100_000), num_draws=200)


@dataclass(frozen=True)
class Tempered:
    """What softmax makes of some scores at some temperatures."""

    probabilities: Float[Tensor, "temperature choice"]

    @property
    def entropy(self) -> Float[Tensor, " temperature"]:
        """In nats."""
        return entropy(self.probabilities)

    @property
    def largest(self) -> Float[Tensor, " temperature"]:
        return self.probabilities.amax(dim=-1)

    @property
    def choices(self) -> Float[Tensor, " temperature"]:
        """How many equally likely choices would be as open."""
        return self.entropy.exp()


def study(*, quick: bool, seed: int) -> Study:
    """Follow softmax from one end of its temperature to the other."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    grid = torch.logspace(-2, 2, sizes.num_temperatures, dtype=torch.float64)
    drawn = {name: temper(torch.tensor(scores, dtype=torch.float64), grid) for name, scores in SCORES.items()}
    rng = torch.Generator().manual_seed(seed)
    # Where random scores have something to show.
    warm = grid[(grid >= 0.2) & (grid <= 10)]
    random = {n: random_entropy(n, warm, num_draws=sizes.num_draws, rng=rng) for n in sizes.num_choices}
    return Study(
        name="softmax",
        title="Softmax and its temperature",
        claim=STUDIES["softmax"],
        findings=[*_findings(grid, drawn), _random_finding(warm, random)],
        tables=[*(_table(name, scores) for name, scores in SCORES.items()), _random_table(warm, random)],
        figure=_draw(grid, drawn, warm, random),
        settings=asdict(sizes),
    )


def temper(scores: Float[Tensor, " choice"], temperatures: Float[Tensor, " temperature"]) -> Tempered:
    """The attention weights of these scores at each temperature."""
    row = scores[None, None, None]
    nothing = scores.new_zeros(1, 1, len(scores), 1)
    weights = [attend(row, nothing, temperature=float(t))[1].flatten() for t in temperatures]
    return Tempered(torch.stack(weights))


def entropy(probabilities: Float[Tensor, "*batch choice"]) -> Float[Tensor, "*batch"]:
    r"""$-\sum_i p_i \ln p_i$, in nats."""
    return torch.special.entr(probabilities).sum(dim=-1)


def random_entropy(
    num_choices: int, temperatures: Float[Tensor, " temperature"], *, num_draws: int, rng: torch.Generator
) -> Float[Tensor, " temperature"]:
    """The mean entropy over draws of `num_choices` standard normal scores."""
    total = torch.zeros_like(temperatures)
    for _ in progress_bar(range(num_draws), f"{num_choices:,} random scores", total=num_draws):
        scores = torch.randn(num_choices, generator=rng, dtype=temperatures.dtype)
        total += torch.stack([entropy((scores / t).softmax(dim=-1)) for t in temperatures])
    return total / num_draws


def random_entropy_limit(
    num_choices: int, temperatures: Float[Tensor, " temperature"]
) -> Float[Tensor, " temperature"]:
    """What `random_entropy` is near for many choices; 0 where few of them hold nearly all."""
    melted = temperatures > 1 / math.sqrt(2 * math.log(num_choices))
    return torch.where(melted, math.log(num_choices) - 0.5 / temperatures**2, 0.0)


def _findings(grid: Tensor, drawn: Mapping[str, Tempered]) -> list[str]:
    one, tied = drawn["one best"], drawn["two best"]
    num_choices = one.probabilities.size(1)
    sure = grid[one.largest > 0.99]
    open_ = grid[one.entropy > 0.99 * math.log(num_choices)]
    at_one = temper(torch.tensor(SCORES["one best"], dtype=torch.float64), torch.ones(1))
    return [
        f"Cold: of the scores {_spell('one best')} the best has a probability above 0.99 at every temperature up to "
        f"{float(sure.max()):.2g}, and {float(one.largest[0]):.6g} at {float(grid[0]):.2g}.",
        f"Warm: from {float(open_.min()):.2g} on the entropy is above 99 % of ln {num_choices}; at "
        f"{float(grid[-1]):.3g} the largest probability is {float(one.largest[-1]):.4f}, beside "
        f"{1 / num_choices:.4f} for equal shares.",
        f"At 1 the best has {float(at_one.largest[0]):.3f}, and the choice is as open as one among "
        f"{float(at_one.choices[0]):.2f} equally likely ones.",
        f"Ties: of {_spell('two best')} at {float(grid[0]):.2g} there remain {float(tied.choices[0]):.4f} effective "
        f"choices, the likeliest with {float(tied.largest[0]):.4f}.",
        f"The entropy {'never falls' if _never_falls(drawn) else 'sometimes falls'} as the temperature rises, "
        f"for all {len(drawn)} sets of scores.",
    ]


def _random_finding(warm: Tensor, random: Mapping[int, Tensor]) -> str:
    most = max(random)
    freezing = 1 / math.sqrt(2 * math.log(most))
    above = warm > 1.5 * freezing
    left = float(random[most][(warm - freezing).abs().argmin()].exp())
    gap = float((random[most] - random_entropy_limit(most, warm))[above].abs().max())
    return (
        f"Of {most:,} random scores the mean entropy differs from ln n - 1/2T² by at most {gap:.3f} nats at "
        f"temperatures from {float(warm[above].min()):.2g} on; at 1/√(2 ln n) = {freezing:.2f}, where in theory the "
        f"choice freezes on few, {left:.1f} effective choices are left."
    )


def _never_falls(drawn: Mapping[str, Tempered]) -> bool:
    return all(bool((tempered.entropy.diff() > -1e-12).all()) for tempered in drawn.values())


def _spell(name: str) -> str:
    return "(" + ", ".join(f"{score:g}" for score in SCORES[name]) + ")"


def _table(name: str, scores: Sequence[float]) -> Table:
    tempered = temper(torch.tensor(scores, dtype=torch.float64), torch.tensor(SHOWN))
    columns = zip(SHOWN, tempered.entropy.tolist(), tempered.largest.tolist(), tempered.choices.tolist(), strict=True)
    return Table(
        name=f"{name}: scores {_spell(name)}",
        columns=["temperature", "entropy, nats", "largest probability", "effective choices"],
        rows=[list(row) for row in columns],
        note="Effective choices are the exponential of the entropy.",
    )


def _random_table(warm: Tensor, random: Mapping[int, Tensor]) -> Table:
    at = int((warm - 1).abs().argmin())
    rows = []
    for n, measured in random.items():
        limit = float(random_entropy_limit(n, warm)[at])
        rows.append([n, math.log(n), float(measured[at]), limit, float(measured[at].exp()) / n])
    return Table(
        name=f"random scores at temperature {float(warm[at]):.3g}",
        columns=["choices", "ln n", "mean entropy, nats", "ln n - 1/2T²", "effective share of the choices"],
        rows=rows,
    )


def _draw(grid: Tensor, drawn: Mapping[str, Tempered], warm: Tensor, random: Mapping[int, Tensor]) -> Figure:
    figure, (curves, bars, choices, normal) = panels(2, 2, height=3.6)
    _draw_curves(curves, grid, drawn["one best"])
    _draw_bars(bars)
    for color, (name, tempered) in zip(COLORS, drawn.items(), strict=False):
        choices.semilogx(grid, tempered.choices, color=color, label=f"{name}: {_spell(name)}")
    label(choices, "How open the choice is", "temperature", "effective choices, exp(entropy)")
    choices.set_ylim(0.5, 5.5)
    legend(choices, loc="lower right")
    nats = choices.secondary_yaxis("right", functions=(np.log, np.exp))
    nats.set_yticks([0.0, 0.5, 1.0, 1.5])
    nats.set_ylabel("entropy, nats", fontsize=9, color=MUTED)
    nats.tick_params(labelsize=8.5, labelcolor=MUTED, color=MUTED, length=3)
    nats.spines["right"].set_color(GRID)
    for color, (n, measured) in zip(COLORS, random.items(), strict=False):
        normal.semilogx(warm, measured / math.log(n), color=color, label=f"{n:,} scores")
        normal.semilogx(warm, random_entropy_limit(n, warm) / math.log(n), color=color, linestyle=":", linewidth=1.2)
    label(normal, "Random scores; dotted, ln n - 1/2T²", "temperature", "entropy / ln n")
    normal.set_ylim(-0.03, 1.03)
    legend(normal, loc="lower right")
    return figure


def _draw_curves(axes: Axes, grid: Tensor, tempered: Tempered) -> None:
    for i, (color, score) in enumerate(zip(COLORS, SCORES["one best"], strict=False)):
        axes.semilogx(grid, tempered.probabilities[:, i], color=color, label=f"score {score:g}")
    axes.axhline(1 / len(SCORES["one best"]), color=MUTED, linewidth=1, linestyle=":")
    axes.axvline(1.0, color=MUTED, linewidth=1, linestyle=":")
    label(axes, f"Softmax of {_spell('one best')}", "temperature", "probability")
    legend(axes, loc="upper right")


def _draw_bars(axes: Axes) -> None:
    scores = SCORES["one best"]
    tempered = temper(torch.tensor(scores, dtype=torch.float64), torch.tensor(BARS))
    width = 0.8 / len(scores)
    for i, (color, score) in enumerate(zip(COLORS, scores, strict=False)):
        places = [group + (i - (len(scores) - 1) / 2) * width for group in range(len(BARS))]
        axes.bar(places, tempered.probabilities[:, i].tolist(), width * 0.9, color=color, label=f"score {score:g}")
    for group, mass in enumerate(tempered.largest.tolist()):
        axes.text(group - 2 * width, mass + 0.02, f"{mass:.2f}", ha="center", fontsize=8.5, color=INK)
    axes.set_xticks(range(len(BARS)), labels=[f"{t:g}" for t in BARS])
    label(axes, "The same at five temperatures; above, the largest", "temperature", "probability")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.1)
