"""Plots of event histories: the events of each subject, and the predicted risk of the next ones over time.

Importing this module imports matplotlib, so callers import it where a figure is drawn.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.explanation.colors import INK, MUTED
from regard.tasks.task import EventTimeline

_COLORS = ("#3b55bd", "#d2691e", "#2e8b57", "#a0307d", "#8a7a00", "#1a9bb0", "#7a4a2a", "#606470")
_MOST_DRAWN, _MOST_EVENTS = 12, 8


def plot_timelines(timelines: Sequence[EventTimeline]) -> Figure:
    """Draw each subject on axes of its own, at most 12; at most 8 kinds of events, those of the highest risks."""
    shown = timelines[:_MOST_DRAWN]
    highest = {event: max(max(each.risks[event]) for each in shown) for event in shown[0].risks}
    events = sorted(sorted(highest, key=lambda event: -highest[event])[:_MOST_EVENTS], key=list(highest).index)
    top = math.ceil(10 * max(highest.values())) / 10 or 0.1
    figure = Figure(figsize=(10.4, 2.3 * len(shown)), layout="constrained")
    for number, timeline in enumerate(shown, start=1):
        _draw(figure.add_subplot(len(shown), 1, number), timeline, events, top)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=8, frameon=False, loc="outside lower center", ncols=len(events), labelcolor=MUTED)
    return figure


def _draw(axes: Axes, timeline: EventTimeline, events: Sequence[str], top: float) -> None:
    unit = f" {timeline.unit}".rstrip()
    for color, event in zip(_COLORS, events, strict=False):
        axes.plot(timeline.risk_times, timeline.risks[event], color=color, linewidth=1.2, label=event)
        times = [time for time, name in zip(timeline.times, timeline.events, strict=True) if name == event]
        axes.plot(times, [1.12 * top] * len(times), "|", color=color, markersize=9, markeredgewidth=1.6)
    axes.axvline(timeline.end, color=MUTED, linewidth=0.8, linestyle=":")
    axes.set_ylim(0.0, 1.24 * top)  # events are above the risks
    axes.set_yticks([0.0, top / 2, top])
    axes.set_xlim(timeline.risk_times[0], timeline.end or 1.0)
    axes.set_ylabel(f"risk within {timeline.horizon:g}{unit}", fontsize=7, color=MUTED)
    axes.set_xlabel(f"time since the start{f' ({timeline.unit})' if timeline.unit else ''}", fontsize=7, color=MUTED)
    axes.tick_params(labelsize=7, labelcolor=MUTED)
    axes.set_title(timeline.subject, fontsize=9, loc="left", color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
