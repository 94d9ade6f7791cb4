"""A comparison in words, in the terminal and as a figure."""

import io
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from rich.cells import cell_len
from rich.console import Console

from regard.errors import ConfigError
from regard.explanation.colors import PALETTE
from regard.explanation.report import ComparisonView, draw_curves, write_comparison


def printed(comparison: dict[str, Any], *, width: int = 80, color: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    system = "truecolor" if color else None
    console = Console(file=file, width=width, force_terminal=color, color_system=system, legacy_windows=False)
    console.print(ComparisonView(comparison))
    file.flush()
    return raw.getvalue().decode(encoding)


def line_of(text: str, name: str) -> str:
    """The first line of a table that begins with the name, after the place of the star."""
    return next(line for line in text.splitlines() if line[2:].startswith(f"{name} "))


def test_the_best_model_and_those_not_significantly_worse_lead(comparison: dict[str, Any]):
    assert [model["name"] for model in ComparisonView(comparison).ranking] == [
        "transformer",
        "lstm-attention",
        "lstm",
        "rnn",
    ]
    assert ComparisonView(comparison).leaders == ["transformer", "lstm-attention"]
    assert ComparisonView(comparison).verdict.endswith(
        "0.981 exact match, but not significantly better than lstm-attention."
    )
    comparison["pairs"][-1]["is_significant"] = True
    assert ComparisonView(comparison).leaders == ["transformer"]
    assert ComparisonView(comparison).verdict.endswith("its lead over each of the others is significant.")
    comparison["pairs"].pop()
    assert ComparisonView(comparison).leaders == ["transformer"]
    assert ComparisonView(comparison).verdict == "transformer scores best, 0.981 exact match."


@pytest.mark.parametrize("metric", ["perplexity", "bits_per_byte", "rmse", "calibration_error"])
def test_of_perplexities_bits_and_errors_the_lowest_is_best(comparison: dict[str, Any], metric: str):
    assert ComparisonView({**comparison, "metric": metric}).leaders == ["rnn"]
    assert [model["name"] for model in ComparisonView({**comparison, "metric": metric}).ranking][-1] == "transformer"


def test_scores_that_are_artifacts_of_the_metric_are_not_comparable(comparison: dict[str, Any]):
    pair = comparison["pairs"][-1] | {"is_significant": False, "not_comparable": "no 4-gram matches"}
    comparison["pairs"][-1] = pair
    verdict = ComparisonView(comparison).verdict
    assert verdict.endswith("but is not comparable with lstm-attention: no 4-gram matches.")
    assert printed(comparison, width=100).count("  not comparable") == 1


def test_of_text_the_words_say_that_lower_is_better(of_text: dict[str, Any]):
    assert ComparisonView(of_text).leaders == ["gpt", "llama"]
    assert ComparisonView(of_text).verdict == (
        "gpt scores best, with the lowest bits per byte, 2.300, but not significantly better than llama."
    )
    assert ComparisonView(of_text).subtitle == (
        "language, bits per byte (lower is better) on the same 97 text spans, 2 seeds per model"
    )
    assert "the same 97 text spans by a paired test of likelihoods" in ComparisonView(of_text).method
    assert "rows" not in ComparisonView(of_text).method + ComparisonView(of_text).subtitle


def test_of_text_the_terminal_says_by_how_much_the_better_one_is_lower(of_text: dict[str, Any]):
    text = printed(of_text, width=100)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith("model bits per byte") for line in lines)
    assert any(line.startswith("★ the best") and line.endswith("lower is better") for line in lines)
    assert line_of(text, "gpt").split()[1:5] == ["gpt", "2.300", "[2.250,", "2.350]"]
    assert f"{2**2.3:.2f}" in line_of(text, "gpt")
    assert "model vs. lower by p" in lines
    # Stored are scores of a less those of b: 2.71 less 2.3 is 0.41, with an interval from 0.397 to 0.421.
    assert "gpt lstm 0.410 [0.397, 0.421] <0.001 significant" in lines
    assert "gpt llama 0.007 [-0.006, 0.018] 0.227 not significant" in lines


def test_a_model_that_went_astray_comes_last(odd: dict[str, Any]):
    assert [model["name"] for model in ComparisonView(odd).ranking] == ["alone", "lost"]
    odd["pairs"][0]["is_significant"] = False
    assert ComparisonView(odd).leaders == ["alone"]
    odd["models"].pop()
    odd["pairs"].clear()
    assert ComparisonView(odd).verdict == "No model has a finite score."
    ComparisonView(odd)


def test_the_title_names_few_models_and_counts_many(comparison: dict[str, Any], crowd: dict[str, Any]):
    assert ComparisonView(comparison).title == "rnn, lstm, lstm-attention and transformer on dates, 1 minute a run"
    assert ComparisonView(crowd).title == "12 models on dates, 1 minute a run"


def test_a_finer_interval_has_one_more_decimal(comparison: dict[str, Any], crowd: dict[str, Any]):
    assert (ComparisonView(comparison).digits, ComparisonView(crowd).digits) == (3, 2)
    comparison["models"][0]["score"]["interval"] = [0.4099, 0.4101]
    assert ComparisonView(comparison).digits == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": []}, "at least one model, got none"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "must have different names, got a, a"),
        ({"models": [{"name": "a"}], "pairs": [{"a": "a", "b": "c"}]}, "a pair must be of a, got 'a' and 'c'"),
    ],
)
def test_what_does_not_hold_together_is_an_error(
    comparison: dict[str, Any], change: dict[str, Any], message: str, tmp_path: Path
):
    comparison |= change
    with pytest.raises(ConfigError, match=message):
        write_comparison(tmp_path / "compare.html", comparison)
    with pytest.raises(ConfigError, match=message):
        ComparisonView(comparison)
    with pytest.raises(ConfigError, match=message):
        draw_curves(comparison, tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_shows_each_model_and_each_pair(comparison: dict[str, Any], width: int):
    text = printed(comparison, width=width)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "\x1b" not in text
    assert line_of(text, "rnn").split()[:4] == ["rnn", "0.410", "[0.399,", "0.419]"]
    assert "246 k    10.2 k  61 s   512 MiB" in line_of(text, "rnn")
    assert [line[0] for line in lines[4:9] if "MiB" in line or "GiB" in line] == [" ", " ", "★", "★"]
    assert ("●" in line_of(text, "rnn")) == (width == 140)
    assert sum("<0.001  significant" in line for line in lines) == 5
    (unsure,) = (line for line in lines if "0.227" in line)
    assert " ".join(unsure.split()) == "transformer lstm-attention 0.004 [-0.007, 0.017] 0.227 not significant"
    assert "on the same 2,003 rows" in text
    assert "Holm's correction for 6 pairs" in " ".join(text.split())


def test_bars_stand_on_one_axis(comparison: dict[str, Any], scores: dict[str, float]):
    text = printed(comparison, width=140)
    places = {name: line_of(text, name).index("●") for name in scores}
    low, high = 0.41 - 0.011, 0.981 + 0.009
    width = places["transformer"] - places["rnn"]
    for name, value in scores.items():
        share = (value - 0.41) / (0.981 - 0.41)
        assert abs(places[name] - places["rnn"] - share * width) <= 1
    header = next(line for line in text.splitlines() if "parameters" in line)
    assert f"{low:.3f}" in header
    assert f"{high:.3f}" in header


def test_names_that_do_not_fit_stay_different(crowd: dict[str, Any]):
    text = printed(crowd, width=80)
    assert max(map(cell_len, text.splitlines())) <= 80
    names = [line[2:].split("  ")[0] for line in text.splitlines() if "MiB" in line or "GiB" in line]
    assert len(set(names)) == 12
    assert all("…" in name for name in names)
    assert "55 pairs of other models are not shown; 45 differ significantly." in " ".join(text.split())


def test_a_narrow_terminal_says_what_it_leaves_out(comparison: dict[str, Any]):
    text = printed(comparison, width=50)
    assert max(map(cell_len, text.splitlines())) <= 50
    assert "too narrow for memory, time, tokens/s" in " ".join(text.split())
    assert "memory" not in text.split("too narrow")[0]


def test_markup_in_names_is_printed_as_it_is(
    comparison: dict[str, Any], crowd: dict[str, Any], foreign: Callable[..., dict[str, Any]]
):
    text = printed(foreign(comparison, "[red]x[/]"), width=140, color=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "[red]x[/]3 scores best" in plain
    assert line_of(plain, "[red]x[/]0")
    assert line_of(printed(foreign(crowd, "[red]x[/]")), "[red]x[/]11")


def test_colours_add_nothing_that_is_not_said_without_them(comparison: dict[str, Any]):
    colored = printed(comparison, color=True)
    assert "\x1b[1m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == printed(comparison)


def test_a_terminal_of_plain_letters_is_served(comparison: dict[str, Any], odd: dict[str, Any]):
    text = printed(comparison, width=140, encoding="ascii")
    assert "* transformer" in text
    assert "o" in line_of(text, "rnn").split("[0.399, 0.419]")[1].split("to")[0]
    assert "lost" in printed(odd, encoding="ascii")


def test_what_is_missing_is_a_dash(odd: dict[str, Any]):
    assert line_of(printed(odd), "lost").split() == ["lost", "-", "-", "246", "k", "10.2", "k", "61", "s", "-"]


@pytest.mark.parametrize("suffix", ["png", "SVG"])
def test_a_figure_is_written_and_not_blank(
    comparison: dict[str, Any], tmp_path: Path, suffix: str, scores: dict[str, float]
):
    path = tmp_path / f"curves.{suffix}"
    draw_curves(comparison, path)
    if suffix == "png":
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert min(struct.unpack(">II", data[16:24])) > 500
        pixels = (imread(path)[..., :3] * 255).round().astype(np.int64) @ [65536, 256, 1]
        for by_day, _ in PALETTE[: len(scores)]:
            assert (pixels == int(by_day[1:], 16)).sum() > 100
        return
    words = {"".join(text.itertext()) for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert {*scores, "validation loss", "exact match by source length", "exact match by training rows"} <= words
    assert {
        "3\N{EN DASH}9",
        "10\N{EN DASH}31",
        "1,000",
        "10,000",
        "seconds of training; bands: range over seeds",
    } <= words


def test_a_figure_of_text_shows_bits_per_byte(of_text: dict[str, Any], tmp_path: Path):
    path = tmp_path / "curves.svg"
    draw_curves(of_text, path)
    words = {"".join(text.itertext()) for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert {"bits per byte (lower is better)", "bars: 95 % intervals; small dots: seeds"} <= words
    assert {"bits per byte (lower is better) by training documents", "training documents"} <= words
    assert not any("rows" in text for text in words)


def test_a_figure_has_a_line_for_each_seed(comparison: dict[str, Any], tmp_path: Path, scores: dict[str, float]):
    draw_curves(comparison, tmp_path / "with.svg")
    for model in comparison["models"]:
        model["curves"] = []
    draw_curves(comparison, tmp_path / "without.svg")
    texts = [(tmp_path / f"{name}.svg").read_text() for name in ("with", "without")]
    for by_day, _ in PALETTE[: len(scores)]:
        with_lines, without = (len(re.findall(f'd="M[^"]*L[^"]*"[^>]*stroke: {by_day}', text)) for text in texts)
        assert with_lines - without == 2


@pytest.mark.slow
def test_a_figure_shows_only_what_there_is(
    odd: dict[str, Any], crowd: dict[str, Any], tmp_path: Path, foreign: Callable[..., dict[str, Any]]
):
    draw_curves(odd, tmp_path / "odd.svg")
    assert "no validation loss was logged" in (tmp_path / "odd.svg").read_text()
    assert "training rows" not in (tmp_path / "odd.svg").read_text()
    draw_curves(foreign(crowd, "$x$ </script>"), tmp_path / "foreign.png")
    draw_curves(crowd, tmp_path / "crowd.svg")
    for by_day, _ in PALETTE:
        assert by_day in (tmp_path / "crowd.svg").read_text()


def test_only_png_and_svg_can_be_written(comparison: dict[str, Any], tmp_path: Path):
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg, got 'curves\.gif'"):
        draw_curves(comparison, tmp_path / "curves.gif")
