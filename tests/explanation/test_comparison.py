"""A comparison on its page, in the terminal and as a figure."""

import copy
import html
import io
import json
import re
import shutil
import struct
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from rich.cells import cell_len
from rich.console import Console

from regard.errors import ConfigError
from regard.explanation.comparison import PALETTE, draw_comparison, draw_curves, write_comparison
from regard.explanation.comparison_words import digits_for, leaders, ranked, title_of, verdict_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed to draw the page")

SCORES = {"rnn": 0.41, "lstm": 0.67, "lstm-attention": 0.977, "transformer": 0.981}


def comparison_of(scores: dict[str, float], *, num_seeds: int = 2, metric: str = "exact_match") -> dict[str, Any]:
    """Models with these scores; a difference of more than a hundredth of the scale is real."""
    scale = 100.0 if metric == "bleu" else 1.0
    seeds = list(range(num_seeds))
    models = [model_of(name, value, number, seeds, scale) for number, (name, value) in enumerate(scores.items())]
    pairs = [
        {
            "a": a,
            "b": b,
            "difference": scores[a] - scores[b],
            "interval": [scores[a] - scores[b] - 0.013 * scale, scores[a] - scores[b] + 0.011 * scale],
            "p": 0.0004 if abs(scores[a] - scores[b]) > 0.01 * scale else 0.227,
            "p_uncorrected": 0.0001,
            "is_real": abs(scores[a] - scores[b]) > 0.01 * scale,
        }
        for a, b in combinations(scores, 2)
    ]
    return {
        "data": "dates",
        "task": "translation",
        "metric": metric,
        "budget": "1 minute a run",
        "seeds": seeds,
        "rows": 2003,
        "hardware": "CPU, 1 thread a run, 2 runs at a time, float32",
        "version": "0.1.0",
        "notes": ["the rnn stopped early"],
        "models": models,
        "pairs": pairs,
        "samples": [
            {"source": "4 mars 2025", "target": "2025-03-04", "outputs": dict.fromkeys(scores, "2025-03-04")},
            {
                "source": "٤ مارس ٢٠٢٥",
                "target": "2025-03-04",
                "outputs": {
                    name: "2025-03-04" if value > 0.5 * scale else "2025-04-03" for name, value in scores.items()
                },
            },
        ],
    }


def model_of(name: str, value: float, number: int, seeds: list[int], scale: float) -> dict[str, Any]:
    interval = [value - 0.011 * scale, min(scale, value + 0.009 * scale)]
    parts = [{"value": value, "interval": interval}, {"value": value * 0.9, "interval": [value * 0.8, value]}]
    losses = [(step, 3.0 / step + 0.1 * number) for step in range(1, 14)]
    return {
        "name": name,
        "description": f"model {number}, 128 wide",
        "score": {"value": value, "interval": interval, "signature": "n:2003|version:0.1.0"},
        "seed_scores": [value - 0.002 * scale * seed for seed in seeds],
        "params": 246_000 * (number + 1),
        "tokens_per_s": 10_234.0 / (number + 1),
        "seconds": 61.2,
        "steps": 903,
        "memory_mib": 512.0 * (number + 1),
        "scores": {"chrf": {"value": 99.1 - number, "interval": [97.2 - number, 99.4 - number], "signature": "nc:6"}},
        "by_length": [
            {"low": 3, "high": 9, "rows": 1009, **parts[0]},
            {"low": 10, "high": 31, "rows": 994, **parts[1]},
        ],
        "by_size": [{"rows": 1000, **parts[1]}, {"rows": 10_000, **parts[0]}],
        "curves": [
            {
                "seed": seed,
                "points": [
                    {"step": 100 * step, "seconds": 4.7 * step, "tokens": 9001 * step, "valid_loss": loss + 0.01 * seed}
                    for step, loss in losses
                ],
            }
            for seed in seeds
        ],
        "runs": [f"runs/compare/{name}-{seed}" for seed in seeds],
    }


@pytest.fixture
def comparison() -> dict[str, Any]:
    return comparison_of(SCORES)


@pytest.fixture
def crowd() -> dict[str, Any]:
    """Twelve models with names that differ at their ends, three seeds, another scale."""
    scores = {f"transformer-of-the-kind-{letter}": 30.0 + 0.7 * place for place, letter in enumerate("abcdefghijkl")}
    return comparison_of(scores, num_seeds=3, metric="bleu")


@pytest.fixture
def odd() -> dict[str, Any]:
    """All that can be missing is missing, and what can fail to be finite does."""
    odd = comparison_of({"lost": float("nan"), "alone": 0.5})
    odd |= {"notes": [], "samples": [{"source": "ROMEO:", "target": None, "outputs": {"alone": ""}}]}
    odd["pairs"] = [{**odd["pairs"][0], "difference": float("nan"), "interval": None, "p": float("nan")}]
    for model in odd["models"]:
        model |= {"description": "", "by_length": [], "by_size": [], "scores": {}, "runs": [], "memory_mib": None}
        model["score"] |= {"interval": None}
        model["curves"] = [{"seed": 0, "points": []}]
    odd["models"][0]["curves"][0]["points"] = [
        {"step": 1, "seconds": 1.0, "tokens": 5, "valid_loss": loss} for loss in (float("inf"), 0.0)
    ]
    return odd


def data_of(page: Path) -> Any:
    found = re.findall(r'<script type="application/json" id="page-data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def drawn(comparison: dict[str, Any], tmp_path: Path, *, then: str = "", width: int = 1000) -> str:
    """The page as the browser has drawn it, after the JavaScript `then`, without the style and the data in it."""
    assert BROWSER is not None
    page = tmp_path / "compare.html"
    write_comparison(page, comparison)
    late = f"<script>addEventListener('load', () => setTimeout(() => {{ {then} }}, 200))</script></body>"
    page.write_text(page.read_text().replace("</body>", late))
    quiet = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        f"--disable-component-update --disable-sync --virtual-time-budget=2000 --window-size={width},1000"
    )
    command = [BROWSER, *quiet.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    error = re.search(r'<html[^>]* data-error="([^"]*)"', done.stdout)
    assert error is None, error and error[1]
    return done.stdout.split("<body>")[1].split('id="page-data"')[0]


def printed(comparison: dict[str, Any], *, width: int = 80, color: bool = False, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    system = "truecolor" if color else None
    console = Console(file=file, width=width, force_terminal=color, color_system=system, legacy_windows=False)
    console.print(draw_comparison(comparison))
    file.flush()
    return raw.getvalue().decode(encoding)


def line_of(text: str, name: str) -> str:
    """The first line of a table that begins with the name, after the place of the star."""
    return next(line for line in text.splitlines() if line[2:].startswith(f"{name} "))


def test_the_best_model_and_what_cannot_be_told_apart_from_it_lead(comparison: dict[str, Any]):
    assert [model["name"] for model in ranked(comparison)] == ["transformer", "lstm-attention", "lstm", "rnn"]
    assert leaders(comparison) == ["transformer", "lstm-attention"]
    assert verdict_of(comparison).endswith("0.981 exact match, but cannot be told apart from lstm-attention.")
    comparison["pairs"][-1]["is_real"] = True
    assert leaders(comparison) == ["transformer"]
    assert verdict_of(comparison).endswith("its lead over each of the others is real.")
    comparison["pairs"].pop()
    assert leaders(comparison) == ["transformer"]
    assert verdict_of(comparison) == "transformer scores best, 0.981 exact match."


def test_of_perplexities_the_lowest_is_best(comparison: dict[str, Any]):
    assert leaders({**comparison, "metric": "perplexity"}) == ["rnn"]


def test_a_model_that_went_astray_comes_last(odd: dict[str, Any]):
    assert [model["name"] for model in ranked(odd)] == ["alone", "lost"]
    odd["pairs"][0]["is_real"] = False
    assert leaders(odd) == ["alone"]
    odd["models"].pop()
    odd["pairs"].clear()
    assert verdict_of(odd) == "No model has a finite score."
    draw_comparison(odd)


def test_the_title_names_few_models_and_counts_many(comparison: dict[str, Any], crowd: dict[str, Any]):
    assert title_of(comparison) == "rnn, lstm, lstm-attention and transformer on dates, 1 minute a run"
    assert title_of(crowd) == "12 models on dates, 1 minute a run"


def test_a_finer_interval_has_one_more_decimal(comparison: dict[str, Any], crowd: dict[str, Any]):
    assert (digits_for(comparison), digits_for(crowd)) == (3, 2)
    comparison["models"][0]["score"]["interval"] = [0.4099, 0.4101]
    assert digits_for(comparison) == 4


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
        draw_comparison(comparison)
    with pytest.raises(ConfigError, match=message):
        draw_curves(comparison, tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


def test_the_page_stands_alone_and_holds_the_comparison(comparison: dict[str, Any], tmp_path: Path):
    page = tmp_path / "compare.html"
    write_comparison(page, comparison)
    text = page.read_text()
    assert set(re.findall(r"https?://[^\"' )<]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\{\{\w+\}\}", text)
    targets = re.findall(r"(?:src|href)\s*=\s*[\"']([^\"']+)|url\(([^)]*)\)|@import\s+(\S+)", text)
    assert all("".join(target).startswith("data:") for target in targets)
    assert "default-src 'none'" in text
    assert [path.name for path in tmp_path.iterdir()] == ["compare.html"]
    data = data_of(page)
    assert {key: data[key] for key in comparison} == json.loads(json.dumps(comparison))


def test_numbers_of_numpy_and_numbers_that_are_not_finite_are_embedded(odd: dict[str, Any], tmp_path: Path):
    odd["models"][1]["score"]["value"] = np.float64(0.5)
    odd["pairs"][0]["is_real"] = np.bool_(False)
    write_comparison(tmp_path / "compare.html", odd)
    data = data_of(tmp_path / "compare.html")
    assert [model["score"]["value"] for model in data["models"]] == [None, 0.5]
    assert data["leaders"] == ["alone"]


def foreign(comparison: dict[str, Any], text: str) -> dict[str, Any]:
    """The comparison with every text in it replaced, all but the names of metrics."""
    names = {model["name"]: f"{text}{number}" for number, model in enumerate(comparison["models"])}
    foreign = copy.deepcopy(comparison)
    foreign |= dict.fromkeys(("data", "task", "budget", "hardware", "version"), text)
    foreign["notes"] = [text]
    for model in foreign["models"]:
        model["name"] = names[model["name"]]
        model |= {"description": text, "runs": [text]}
        model["score"]["signature"] = text
    for pair in foreign["pairs"]:
        pair |= {side: names[pair[side]] for side in "ab"}
    foreign["samples"] = [{"source": text, "target": text, "outputs": {name: text + name for name in names.values()}}]
    return foreign


def test_foreign_text_stays_text(comparison: dict[str, Any], tricky_text: str, tmp_path: Path):
    write_comparison(tmp_path / "compare.html", foreign(comparison, tricky_text))
    text = (tmp_path / "compare.html").read_text()
    assert tricky_text not in text
    assert "<b>" not in text
    assert text.count("</script>") == 2
    assert data_of(tmp_path / "compare.html")["models"][2]["name"] == f"{tricky_text}2"


@needs_browser
def test_foreign_text_is_shown_and_never_run(comparison: dict[str, Any], tricky_text: str, tmp_path: Path):
    dom = drawn(foreign(comparison, tricky_text), tmp_path)
    shown = html.escape(tricky_text, quote=False)
    assert f"<li>{shown}</li>" in dom
    assert f"<bdi>{shown}3</bdi>" in dom
    assert not re.search(r"<b>[^<]*\{\{", dom)


@pytest.fixture(scope="module")
def first_sight(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as it comes."""
    return drawn(comparison_of(SCORES), tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page after all samples, steps, the last order and the last score are chosen.

    A model is hidden, and the end of the learning curves pointed at.
    """
    choose = """
        const inputs = (section) => [...document.querySelectorAll(`${section} input`)];
        inputs('#samples')[1].click();
        inputs('#learning')[1].click();
        inputs('#scores').forEach((input) => input.click());
        document.querySelectorAll('#learning .model-legend button')[1].click();
        const chart = document.querySelector('#learning .chart');
        chart.dispatchEvent(new PointerEvent('pointermove', { clientX: chart.getBoundingClientRect().right - 14 }));
    """
    return drawn(comparison_of(SCORES), tmp_path_factory.mktemp("answered"), then=choose)


@needs_browser
def test_the_page_draws_every_section(first_sight: str):
    for part in ("scores", "pairs", "learning", "lengths", "sizes", "samples", "notes", "settings"):
        assert f'<section id="{part}">' in first_sight
    assert first_sight.count('class="curve"') == 2 * len(SCORES) + len(SCORES) + len(SCORES)
    assert first_sight.count('class="whisker"') == 2 * 2 * len(SCORES)
    assert first_sight.count(">real</span>") == 5
    assert first_sight.count(">cannot be told apart</span>") == 1
    assert "exact_match|n:2003|version:0.1.0" in first_sight
    assert "NaN" not in first_sight


@needs_browser
def test_each_model_has_its_interval_its_seeds_and_its_costs(first_sight: str):
    standings = re.search(r'<table class="standings">.*?</table>', first_sight, re.DOTALL)
    assert standings is not None
    assert standings[0].count('class="range"') == len(SCORES)
    assert standings[0].count('class="seed"') == 2 * len(SCORES)
    assert standings[0].count("among the best") == 2
    assert "246 k" in standings[0]
    assert "1.50 GiB" in standings[0]


@needs_browser
def test_samples_are_shown_where_outputs_differ_and_all_of_them_when_asked_for(first_sight: str, answered: str):
    assert first_sight.count('class="output"') == 1
    assert first_sight.count('<li class="right">') == 1
    assert first_sight.count('<li class="wrong">') == 1
    assert answered.count('class="output"') == 2


@needs_browser
def test_a_name_in_a_legend_hides_its_model_on_all_charts(answered: str):
    assert answered.count('class="curve"') == 4 * (len(SCORES) - 1)
    assert answered.count('aria-pressed="false"') == 3


@needs_browser
def test_pointing_at_a_curve_tells_its_values(answered: str):
    tip = re.search(r'<div class="chart-tip"[^>]*>(<b>step 1,300</b>.*?)</div>', answered, re.DOTALL)
    assert tip is not None
    assert "0.231 to 0.241" in tip[1]
    assert tip[1].index("rnn") < tip[1].index("transformer")
    assert "<bdi>lstm</bdi>" not in tip[1]


@needs_browser
def test_the_order_and_the_score_can_be_chosen(first_sight: str, answered: str):
    rows = r'<th scope="row"><div class="title-line">.*?<bdi>(.*?)</bdi>'
    assert re.findall(rows, first_sight) == list(SCORES)
    assert re.findall(rows, answered) == list(reversed(SCORES))
    assert "97.20 to 99.40" in answered


@needs_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_many_models_are_shown_as_a_matrix(crowd: dict[str, Any], tmp_path: Path, width: int):
    dom = drawn(crowd, tmp_path, then="document.querySelector('.pair-matrix td.worse').focus();", width=width)
    matrix = re.search(r'<table class="pair-matrix many">.*?</table>', dom, re.DOTALL)
    assert matrix is not None
    cells = {kind: matrix[0].count(f'<td class="{kind}"') for kind in ("better", "worse", "unsure", "self")}
    assert cells == {"better": 55, "worse": 55, "unsure": 22, "self": 12}
    assert "transformer-of-the-kind-a is really worse than transformer-of-the-kind-c: \N{MINUS SIGN}1.40" in dom


@needs_browser
def test_odd_numbers_do_not_stop_the_page(odd: dict[str, Any], tmp_path: Path):
    dom = drawn(odd, tmp_path, then="document.querySelectorAll('#learning input').forEach((input) => input.click());")
    assert "NaN" not in dom
    assert "Infinity" not in dom
    assert dom.count('class="seed"') == 2
    assert '<section id="lengths">' not in dom
    assert '<section id="notes">' not in dom


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
    assert sum(line.endswith("  real") or "  real " in line for line in lines) == 5
    (unsure,) = (line for line in lines if "not told apart" in line)
    assert " ".join(unsure.split()) == "transformer lstm-attention 0.004 [-0.007, 0.017] 0.227 not told apart"
    assert "on the same 2,003 rows" in text
    assert "Holm's method for the 6 pairs" in " ".join(text.split())


def test_bars_stand_on_one_axis(comparison: dict[str, Any]):
    text = printed(comparison, width=140)
    places = {name: line_of(text, name).index("●") for name in SCORES}
    low, high = 0.41 - 0.011, 0.981 + 0.009
    width = places["transformer"] - places["rnn"]
    for name, value in SCORES.items():
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
    assert "Not shown are 55 pairs of the others, 45 with a real difference" in " ".join(text.split())


def test_a_narrow_terminal_says_what_it_leaves_out(comparison: dict[str, Any]):
    text = printed(comparison, width=50)
    assert max(map(cell_len, text.splitlines())) <= 50
    assert "no room for memory, time, tokens/s" in " ".join(text.split())
    assert "memory" not in text.split("no room")[0]


def test_markup_in_names_is_printed_as_it_is(comparison: dict[str, Any], crowd: dict[str, Any]):
    text = printed(foreign(comparison, "[red]x[/]"), width=140, color=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "[red]x[/]3 scores best" in plain
    assert line_of(plain, "[red]x[/]0")
    assert line_of(printed(foreign(crowd, "[red]x[/]")), "[red]x[/]11 against")


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
def test_a_figure_is_written_and_not_blank(comparison: dict[str, Any], tmp_path: Path, suffix: str):
    path = tmp_path / f"curves.{suffix}"
    draw_curves(comparison, path)
    if suffix == "png":
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert min(struct.unpack(">II", data[16:24])) > 500
        pixels = (imread(path)[..., :3] * 255).round().astype(np.int64) @ [65536, 256, 1]
        for by_day, _ in PALETTE[: len(SCORES)]:
            assert (pixels == int(by_day[1:], 16)).sum() > 100
        return
    words = {"".join(text.itertext()) for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert {*SCORES, "validation loss", "exact match by source length", "exact match by training rows"} <= words
    assert {"3\N{EN DASH}9", "10\N{EN DASH}31", "1,000", "10,000", "seconds of training"} <= words


def test_a_figure_has_a_line_for_each_seed(comparison: dict[str, Any], tmp_path: Path):
    draw_curves(comparison, tmp_path / "with.svg")
    for model in comparison["models"]:
        model["curves"] = []
    draw_curves(comparison, tmp_path / "without.svg")
    texts = [(tmp_path / f"{name}.svg").read_text() for name in ("with", "without")]
    for by_day, _ in PALETTE[: len(SCORES)]:
        with_lines, without = (len(re.findall(f'd="M[^"]*L[^"]*"[^>]*stroke: {by_day}', text)) for text in texts)
        assert with_lines - without == 2


def test_a_figure_shows_only_what_there_is(odd: dict[str, Any], crowd: dict[str, Any], tmp_path: Path):
    draw_curves(odd, tmp_path / "odd.svg")
    assert "no validation was logged" in (tmp_path / "odd.svg").read_text()
    assert "training rows" not in (tmp_path / "odd.svg").read_text()
    draw_curves(foreign(crowd, "$x$ </script>"), tmp_path / "foreign.png")
    draw_curves(crowd, tmp_path / "crowd.svg")
    for by_day, _ in PALETTE:
        assert by_day in (tmp_path / "crowd.svg").read_text()


def test_only_png_and_svg_can_be_written(comparison: dict[str, Any], tmp_path: Path):
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg, got 'curves\.gif'"):
        draw_curves(comparison, tmp_path / "curves.gif")
