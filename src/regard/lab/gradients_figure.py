"""The figure of the study of gradients: by distance, and with and without clipping.

Dimensions: `distance` from the last position.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.lab.drawing import COLORS, MUTED, label, legend, panels, smooth
from regard.lab.exercises import Course

Profile = Float[Tensor, " distance"]
"""The length of a gradient at each position."""


def compose(
    *,
    before: Mapping[str, Profile],
    after: Mapping[str, Profile],
    radii: Mapping[float, tuple[Profile, Profile]],
    free: Sequence[Course],
    clipped: Sequence[Course],
    clip_norm: float,
) -> Figure:
    """Draw all that was measured.

    Args:
        before: The profile of each model before training.
        after: And after it.
        radii: For each spectral radius the profiles of a linear network and of one with tanh.
        free: Trainings without clipping.
        clipped: The same trainings with it.
        clip_norm: The length to which gradients were clipped.
    """
    figure, (untrained, trained, recurrent, norms, losses) = panels(3, 2)
    _draw_models(untrained, before)
    _draw_models(trained, after)
    lowest = min(float((profile / profile[0]).min()) for profile in before.values())
    for axes in (untrained, trained):
        axes.set_ylim(max(lowest / 10, 1e-12), 30)
    _draw_radii(recurrent, radii)
    label_x, label_y = "distance from the last position", "gradient / that at the last position"
    label(untrained, "Untrained", label_x, label_y)
    label(trained, "Trained to recall the first symbol", label_x, label_y)
    label(recurrent, "A recurrent matrix: tanh; dotted, linear", label_x, label_y)
    legend(untrained, loc="lower left", fontsize=7.5)
    legend(recurrent, loc="lower left")
    _draw_norms(norms, free, clipped, clip_norm)
    _draw_losses(losses, {"without clipping": free, f"clipped to {clip_norm:g}": clipped})
    return figure


def _draw_models(axes: Axes, profiles: Mapping[str, Profile]) -> None:
    for i, (name, profile) in enumerate(profiles.items()):
        # Dashes, so that of two lines that run together both are seen.
        axes.semilogy(profile / profile[0], "-" if i % 2 == 0 else "--", color=COLORS[i], label=name)


def _draw_radii(axes: Axes, radii: Mapping[float, tuple[Profile, Profile]]) -> None:
    for color, (radius, (linear, tanh)) in zip((COLORS[1], COLORS[2], COLORS[0]), radii.items(), strict=True):
        axes.semilogy(linear / linear[0], ":", color=color)
        axes.semilogy(tanh / tanh[0], color=color, label=f"radius {radius:g}")


def _draw_norms(axes: Axes, free: Sequence[Course], clipped: Sequence[Course], clip_norm: float) -> None:
    """Histograms of the gradient's length, on a logarithmic axis."""
    without, before = (
        torch.tensor([norm for course in courses for norm in course.norms]).clamp(1e-4, 1e4)
        for courses in (free, clipped)
    )
    both = torch.cat([without, before]).log10()
    bins = torch.logspace(float(both.min()) - 0.1, float(both.max()) + 0.1, 45).tolist()
    axes.hist(without, bins=bins, color=COLORS[1], alpha=0.55, label="trained without clipping")
    axes.hist(before, bins=bins, color=COLORS[0], alpha=0.55, label="trained with it: before a gradient is clipped")
    after = before.clamp_max(clip_norm)
    axes.hist(after, bins=bins, histtype="step", color=COLORS[0], linewidth=1.2, label="... after")
    axes.set_xscale("log")
    axes.set_ylim(top=1.45 * axes.get_ylim()[1])
    label(axes, "Length of the gradient, step by step", "length of the whole gradient", "steps")
    legend(axes, loc="upper left")


def _draw_losses(axes: Axes, trainings: Mapping[str, Sequence[Course]]) -> None:
    for (name, courses), color in zip(trainings.items(), (COLORS[1], COLORS[0]), strict=True):
        steps, runs = smooth(torch.tensor([course.losses for course in courses]))
        for run in runs:
            axes.plot(steps, run, color=color, alpha=0.35, linewidth=0.9)
        axes.plot(steps, runs.mean(dim=0), color=color, label=name)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    label(axes, "Training by plain gradient descent", "step", "loss, nats")
    legend(axes, loc="upper right")
