r"""Softmax with a temperature, measured between its two limits.

$$ p_i = \frac{e^{s_i / T}}{\sum_j e^{s_j / T}} $$

As $T \to 0$ the probability concentrates on the largest score, in equal parts
where several are largest; as $T \to \infty$ it becomes uniform. $T = 1$ is softmax
itself. The exponential of the entropy, $e^H$, is the effective number of choices:
as many equally likely choices have the same entropy.

For $n$ scores drawn from a standard normal distribution, $n$ large, the mean
entropy is near $\ln n - 1 / 2T^2$ as long as $T > 1 / \sqrt{2 \ln n}$, below which
few choices have nearly all of the probability (Derrida, "Random-energy model",
1981, section III).

Dimensions: `choice`, `temperature`, `draw`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from regard.lab.drawing import COLORS, GRID, INK, MUTED, label_axes, make_panels
from regard.lab.softmax import SOFTMAX
from regard.lab.study import Study, StudyTable
from regard.logging import progress_bar
from regard.nn.attention import attend

SCORES = {
    "one maximum": (3.0, 2.0, 1.0, 0.0, -1.0),
    "two maxima": (2.0, 2.0, 0.0, -1.0, -2.0),
    "nearly equal": (0.2, 0.1, 0.0, -0.1, -0.2),
}
_TABLE_TEMPERATURES = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0)
_BAR_TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class SoftmaxSizes:
    """How much is measured; the defaults are those of a quick run."""

    num_temperatures: int = 81
    num_choices: tuple[int, ...] = (10, 100, 1000)
    """Numbers of random scores."""
    num_draws: int = 50


_FULL = SoftmaxSizes(num_temperatures=161, num_choices=(10, 100, 1000, 10_000, 100_000), num_draws=200)


def study_softmax(*, quick: bool = False, seed: int = 0, sizes: SoftmaxSizes | None = None) -> Study:
    """Measure softmax over a range of temperatures."""
    sizes = sizes or (SoftmaxSizes() if quick else _FULL)
    figure, axes = make_panels(2, 2, height=3.6)
    grid = torch.logspace(-2, 2, sizes.num_temperatures, dtype=torch.float64)
    findings = _given_scores(axes[0], axes[2], grid)
    _draw_bars(axes[1])
    finding, table = _random_scores(axes[3], grid, sizes, torch.Generator().manual_seed(seed))
    return SOFTMAX.result(sizes, [(findings, [*map(_table, SCORES)]), ([finding], [table])], figure)


def softmax_at(
    scores: Float[Tensor, " choice"] | Sequence[float], temperatures: Float[Tensor, " temperature"]
) -> Float[Tensor, "temperature choice"]:
    """The attention weights of these scores at each temperature."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    row = scores[None, None, None]
    values = scores.new_zeros(1, 1, len(scores), 1)
    weights = [attend(row, values, temperature=float(t))[1].flatten() for t in temperatures]
    return torch.stack(weights)


def categorical_entropy(probabilities: Float[Tensor, "*batch choice"]) -> Float[Tensor, "*batch"]:
    r"""$-\sum_i p_i \ln p_i$, in nats."""
    return torch.special.entr(probabilities).sum(dim=-1)


def random_entropy(
    num_choices: int, temperatures: Float[Tensor, " temperature"], *, num_draws: int, rng: torch.Generator
) -> Float[Tensor, " temperature"]:
    """The mean entropy over draws of `num_choices` standard normal scores."""
    total = torch.zeros_like(temperatures)
    for _ in progress_bar(range(num_draws), f"{num_choices:,} random scores", total=num_draws):
        scores = torch.randn(num_choices, generator=rng, dtype=temperatures.dtype)
        total += torch.stack([categorical_entropy((scores / t).softmax(dim=-1)) for t in temperatures])
    return total / num_draws


def random_entropy_limit(
    num_choices: int, temperatures: Float[Tensor, " temperature"]
) -> Float[Tensor, " temperature"]:
    """What `random_entropy` is near for many choices; 0 below the freezing temperature."""
    is_above = temperatures > _freezing_temperature(num_choices)
    return torch.where(is_above, math.log(num_choices) - 0.5 / temperatures**2, 0.0)


def _freezing_temperature(num_choices: int) -> float:
    return 1 / math.sqrt(2 * math.log(num_choices))


def _given_scores(curves: Axes, choices: Axes, grid: Tensor) -> list[str]:
    measured = {name: softmax_at(scores, grid) for name, scores in SCORES.items()}
    one, num_choices = measured["one maximum"], len(SCORES["one maximum"])
    for probabilities, color, score in zip(one.T, COLORS, SCORES["one maximum"], strict=False):
        curves.plot(grid, probabilities, color=color, label=f"score {score:g}")
    curves.axhline(1 / num_choices, color=MUTED, linewidth=1, linestyle=":")
    curves.axvline(1.0, color=MUTED, linewidth=1, linestyle=":")
    title = f"Softmax of {_spell('one maximum')}"
    label_axes(curves, title, "temperature", "probability", log="x", legend="upper right")
    for color, (name, found) in zip(COLORS, measured.items(), strict=False):
        choices.plot(grid, categorical_entropy(found).exp(), color=color, label=f"{name}: {_spell(name)}")
    choices.set_ylim(0.5, 5.5)
    title = "Effective number of choices"
    label_axes(choices, title, "temperature", "exp(entropy)", log="x", legend="lower right")
    nats = choices.secondary_yaxis("right", functions=(np.log, np.exp))
    nats.set_yticks([0.0, 0.5, 1.0, 1.5])
    nats.set_ylabel("entropy, nats", fontsize=9, color=MUTED)
    nats.tick_params(labelsize=8.5, labelcolor=MUTED, color=MUTED, length=3)
    nats.spines["right"].set_color(GRID)
    cold, warm = grid[one.amax(dim=-1) > 0.99], grid[categorical_entropy(one) > 0.99 * math.log(num_choices)]
    is_monotone = all(bool((categorical_entropy(each).diff() > -1e-12).all()) for each in measured.values())
    return [
        f"For the scores {_spell('one maximum')} the largest probability exceeds 0.99 at temperatures up to "
        f"{float(cold.max()):.2g}, and the entropy exceeds 99 % of ln {num_choices} from {float(warm.min()):.2g} on.",
        f"The entropy {'never decreases' if is_monotone else 'decreases at some point'} as the temperature increases, "
        f"for {'all' if is_monotone else 'some of the'} {len(measured)} sets of scores.",
    ]


def _draw_bars(axes: Axes) -> None:
    num_choices = len(SCORES["one maximum"])
    found = softmax_at(SCORES["one maximum"], torch.tensor(_BAR_TEMPERATURES))
    width = 0.8 / num_choices
    for i, (probabilities, color) in enumerate(zip(found.T, COLORS, strict=False)):
        places = [group + (i - (num_choices - 1) / 2) * width for group in range(len(_BAR_TEMPERATURES))]
        axes.bar(places, probabilities.tolist(), width * 0.9, color=color)
    for group, mass in enumerate(found.amax(dim=-1).tolist()):
        axes.text(group - 2 * width, mass + 0.02, f"{mass:.2f}", ha="center", fontsize=8.5, color=INK)
    axes.set_xticks(range(len(_BAR_TEMPERATURES)), labels=[f"{t:g}" for t in _BAR_TEMPERATURES])
    label_axes(axes, "The same at five temperatures", "temperature", "probability")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 1.1)


def _random_scores(axes: Axes, grid: Tensor, sizes: SoftmaxSizes, rng: torch.Generator) -> tuple[str, StudyTable]:
    # The range in which the entropy of random scores changes.
    grid = grid[(grid >= 0.2) & (grid <= 10)]
    at, rows = int((grid - 1).abs().argmin()), []
    measured = {n: random_entropy(n, grid, num_draws=sizes.num_draws, rng=rng) for n in sizes.num_choices}
    for (n, entropy), color in zip(measured.items(), COLORS, strict=False):
        limit = random_entropy_limit(n, grid)
        rows.append([n, math.log(n), float(entropy[at]), float(limit[at]), float(entropy[at].exp()) / n])
        axes.plot(grid, entropy / math.log(n), color=color, label=f"{n:,} scores")
        axes.plot(grid, limit / math.log(n), color=color, linestyle=":", linewidth=1.2)
    axes.set_ylim(-0.03, 1.03)
    title = "Random scores; dotted: ln n - 1/2T²"
    label_axes(axes, title, "temperature", "entropy / ln n", log="x", legend="lower right")
    most = max(measured)
    freezing = _freezing_temperature(most)
    above = grid > 1.5 * freezing
    left = float(measured[most][(grid - freezing).abs().argmin()].exp())
    gap = float((measured[most] - random_entropy_limit(most, grid))[above].abs().max())
    finding = (
        f"For {most:,} random scores the mean entropy differs from ln n - 1/2T² by at most {gap:.3f} nats at "
        f"temperatures from {float(grid[above].min()):.2g} on; at the freezing temperature 1/√(2 ln n) = "
        f"{freezing:.2f} the effective number of choices is {left:.1f}."
    )
    columns = ["choices n", "ln n", "mean entropy, nats", "ln n - 1/2T²", "effective choices / n"]
    return finding, StudyTable(f"random scores at temperature {float(grid[at]):.3g}", columns, rows)


def _table(name: str) -> StudyTable:
    found = softmax_at(SCORES[name], torch.tensor(_TABLE_TEMPERATURES))
    entropy = categorical_entropy(found)
    columns = (_TABLE_TEMPERATURES, entropy.tolist(), found.amax(dim=-1).tolist(), entropy.exp().tolist())
    return StudyTable(
        f"{name}: scores {_spell(name)}",
        ["temperature", "entropy, nats", "largest probability", "effective choices"],
        list(zip(*columns, strict=True)),
        "Effective choices: the exponential of the entropy.",
    )  # fmt: skip


def _spell(name: str) -> str:
    return "(" + ", ".join(f"{score:g}" for score in SCORES[name]) + ")"
