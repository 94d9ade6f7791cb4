"""What the study of optimizers has measured, and its figure: five panels."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.lab.drawing import COLORS, INK, MUTED, label, legend, panels, smooth

_COLORS = (*COLORS[:6], COLORS[9])
"""Of the optimizers; the next of the palette is too near to the first."""


@dataclass(frozen=True)
class Tuned:
    """An optimizer on one task: the rates tried, and the runs at the best of them."""

    rate: float
    """The best."""
    tried: Mapping[float, float]
    """The loss at the end of each rate that was tried, from one seed."""
    losses: Float[Tensor, "seed step"]
    """At the best rate, from other seeds."""

    @property
    def ends(self) -> Float[Tensor, " seed"]:
        """The mean over the last tenth of the steps."""
        return self.losses[:, -max(1, self.losses.size(1) // 10) :].mean(dim=1)

    @property
    def is_at_edge(self) -> bool:
        """Whether a rate beyond those tried might have been better."""
        return self.rate in (min(self.tried), max(self.tried))


Results = Mapping[str, Mapping[str, Tuned]]
"""By task and optimizer."""


def compose(results: Results, lengths: Mapping[str, list[float]], *, chance: float) -> Figure:
    figure, axes = panels(2, 3, height=3.6)
    along, turned, transformer = results.values()
    _draw_losses(axes[0], transformer)
    axes[0].axhline(chance, color=MUTED, linewidth=1, linestyle=":")
    axes[0].set_ylim(bottom=0)
    label(axes[0], "Transformer, each at its best rate; bands: range of the seeds", "step", "loss, nats")
    _draw_rates(axes[1], transformer, chance)
    for panel, tuned, name in ((axes[2], along, "along the axes"), (axes[3], turned, "turned")):
        _draw_losses(panel, tuned)
        panel.set_yscale("log")
        label(panel, f"Quadratic {name}", "step", "loss, relative")
    low = min(panel.get_ylim()[0] for panel in axes[2:4])
    for panel in axes[2:4]:
        panel.set_ylim(max(low, 1e-12), 3)
    _draw_lengths(axes[4], lengths)
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=len(names), frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _draw_losses(axes: Axes, tuned: Mapping[str, Tuned]) -> None:
    for (name, found), color in zip(tuned.items(), _COLORS, strict=False):
        steps, runs = smooth(found.losses, num_points=50)
        axes.plot(steps, runs.mean(dim=0), color=color, linewidth=1.5, label=name)
        axes.fill_between(steps.tolist(), runs.amin(dim=0).tolist(), runs.amax(dim=0).tolist(), color=color, alpha=0.15,
                          linewidth=0)  # fmt: skip


def _draw_rates(axes: Axes, tuned: Mapping[str, Tuned], chance: float) -> None:
    for (_, found), color in zip(tuned.items(), _COLORS, strict=False):
        # What has exploded is drawn at the upper edge.
        ends = [min(end, 1.5 * chance) for end in found.tried.values()]
        axes.semilogx(list(found.tried), ends, color=color, marker="o", markersize=3, linewidth=1.2)
    axes.axhline(chance, color=MUTED, linewidth=1, linestyle=":")
    axes.set_ylim(0, 1.53 * chance)
    label(axes, "Transformer: the rates tried; dotted, chance", "rate", "loss at the end, nats")


def _draw_lengths(axes: Axes, lengths: Mapping[str, list[float]]) -> None:
    colors = {"AdaGrad": COLORS[2], "RMSProp": COLORS[3], "Adam": COLORS[4], "Adam, not corrected": COLORS[8]}
    for name, values in lengths.items():
        steps = torch.arange(1, len(values) + 1)
        axes.loglog(steps, values, color=colors[name], label=name, linestyle="--" if "not" in name else "-")
    label(axes, "Updates when every gradient is 1", "step", "update / rate")
    axes.set_ylim(top=300)
    legend(axes, loc="upper right")
