"""Plots that a task describes: curves with bands, marks above them, one legend for all panels."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import ConfigError
from regard.explanation.panels import draw_plot, save_plot
from regard.explanation.report import Report, write_report
from regard.tasks.capabilities import SeriesForecast, forecast_plot
from regard.tasks.content import Attribution, Curve, DrawnImage, Panel, Plot, Section, image_section

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="


def test_a_forecast_is_drawn_after_what_was_observed():
    times = [f"day {n}" for n in range(5)]
    found = SeriesForecast("a", "x", times[3:], [4.0, 5.0], [3.0, 3.0], [5.0, 7.0], times[:3], [1.0, None, 3.0],
                           [4.5, 4.0], coverage=0.8)  # fmt: skip
    figure = draw_plot(forecast_plot([found, found, found]))
    assert len(figure.axes) == 3
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "a · x"
    assert [list(line.get_xdata()) for line in axes.lines] == [[0, 1, 2], [3, 4], [3, 4]]
    assert axes.get_legend_handles_labels()[1] == ["observed", "forecast", "80 % interval"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["day\n0", "day\n1", "day\n3", "day\n4"]


def test_marks_are_above_the_curves_of_all_panels_and_have_their_colors():
    panels = [
        Panel(name, [Curve("visit", [0, 2, 7], [0.1, high, 0.2])], {"visit": [1.0, 5.0]}, end=7.0)
        for name, high in (("one", 0.3), ("other", 0.45))
    ]
    figure = draw_plot(Plot(panels))
    for axes in figure.axes:
        curve, marks, _ = axes.lines
        assert curve.get_color() == marks.get_color()
        assert min(marks.get_ydata()) > 0.45
        assert axes.get_ylim() == figure.axes[0].get_ylim()
        assert axes.get_xlim() == (0.0, 7.0)


def test_of_many_curves_the_highest_are_drawn_and_of_many_panels_the_first():
    curves = [Curve(f"event {n}", [0, 1], [0.0, (n + 1) / 13]) for n in range(11)]
    figure = draw_plot(Plot([Panel(str(n), curves) for n in range(17)]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [str(n) for n in range(12)]
    assert figure.axes[0].get_legend_handles_labels()[1] == [f"event {n}" for n in range(3, 11)]


def test_a_plot_is_written_by_its_suffix(tmp_path: Path):
    plot = Plot([Panel("one", [Curve("x", [0, 1], [0.0, 1.0])])])
    save_plot(plot, tmp_path / "plot.svg")
    assert re.search("<svg", (tmp_path / "plot.svg").read_text())
    for name, reason in (("plot.gif", "must end in .png or .svg"), ("none/plot.png", "there is no folder")):
        with pytest.raises(ConfigError, match=reason):
            save_plot(plot, tmp_path / name)


def test_a_page_shows_the_sections_of_a_task(tmp_path: Path, drawn: Callable[..., str]):
    words = Attribution("food", "good", {"good": 1.0}, [("good", 0.7), ("soup", 0.3)])
    image = DrawnImage(_PNG, "c", nearest=[DrawnImage(_PNG, "d", 1.25)])
    plot = Plot([Panel("one", [Curve("x", [0, 1], [0.0, 1.0])])], description="one curve")
    sections = [
        Section("A <b>plot</b>", "above", plot, columns=("name", "count"), rows=[("first", "17")], note="below"),
        image_section([image]),
        Section("Words", texts=[("good soup", [words])]),
    ]
    write_report(tmp_path / "page.html", Report(title="run", sections=sections))
    page = drawn(tmp_path / "page.html")
    for shown in ("A &lt;b&gt;plot&lt;/b&gt;", "above", "below", 'alt="one curve"', "17", "d · 1.3", "soup"):
        assert shown in page
    assert page.count("<img") == 3
