"""The page of a comparison: it stands alone, keeps foreign text harmless, and draws itself in a browser."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.explanation.report import write_comparison

Draw = Callable[..., str]
Compare = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def draw(drawn: Draw, tmp_path_factory: pytest.TempPathFactory) -> Draw:
    """Write the page of a comparison, and give back what the browser draws of it; once for all tests that ask."""
    pages: dict[str, str] = {}

    def draw(comparison: dict[str, Any], **options: Any) -> str:
        wanted = json.dumps([comparison, options])
        if wanted not in pages:
            page = tmp_path_factory.mktemp("drawn") / "compare.html"
            write_comparison(page, comparison)
            pages[wanted] = drawn(page, **options)
        return pages[wanted]

    return draw


@pytest.fixture(scope="module")
def first_sight(draw: Draw, make_comparison: Compare, scores: dict[str, float]) -> str:
    """The page as it comes."""
    return draw(make_comparison(scores))


@pytest.fixture(scope="module")
def answered(draw: Draw, make_comparison: Compare, scores: dict[str, float]) -> str:
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
    return draw(make_comparison(scores), then=choose)


def test_the_page_stands_alone_and_holds_the_comparison(
    comparison: dict[str, Any], tmp_path: Path, data_of: Callable[[Path], Any]
):
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


def test_numbers_of_numpy_and_numbers_that_are_not_finite_are_embedded(
    odd: dict[str, Any], tmp_path: Path, data_of: Callable[[Path], Any]
):
    odd["models"][1]["score"]["value"] = np.float64(0.5)
    odd["pairs"][0]["is_significant"] = np.bool_(False)
    write_comparison(tmp_path / "compare.html", odd)
    data = data_of(tmp_path / "compare.html")
    assert [model["score"]["value"] for model in data["models"]] == [None, 0.5]
    assert data["leaders"] == ["alone"]


def test_foreign_text_stays_text(
    comparison: dict[str, Any],
    tricky_text: str,
    tmp_path: Path,
    data_of: Callable[[Path], Any],
    foreign: Callable[..., dict[str, Any]],
):
    write_comparison(tmp_path / "compare.html", foreign(comparison, tricky_text))
    text = (tmp_path / "compare.html").read_text()
    assert tricky_text not in text
    assert "<b>" not in text
    assert text.count("</script>") == 2
    assert data_of(tmp_path / "compare.html")["models"][2]["name"] == f"{tricky_text}2"


@pytest.mark.slow
def test_foreign_text_is_shown_and_never_run(
    comparison: dict[str, Any], tricky_text: str, foreign: Callable[..., dict[str, Any]], draw: Draw
):
    dom = draw(foreign(comparison, tricky_text))
    shown = html.escape(tricky_text, quote=False)
    assert f"<li>{shown}</li>" in dom
    assert f"<bdi>{shown}3</bdi>" in dom
    assert not re.search(r"<b>[^<]*\{\{", dom)


def test_the_page_draws_every_section(first_sight: str, scores: dict[str, float]):
    for part in ("scores", "pairs", "learning", "lengths", "sizes", "samples", "notes", "settings"):
        assert f'<section id="{part}">' in first_sight
    assert first_sight.count('class="curve"') == 2 * len(scores) + len(scores) + len(scores)
    assert first_sight.count('class="whisker"') == 2 * 2 * len(scores)
    assert first_sight.count(">significant</span>") == 5
    assert first_sight.count(">not significant</span>") == 1
    assert "exact_match|n:2003|version:0.1.0" in first_sight
    assert "NaN" not in first_sight


def test_each_model_has_its_interval_its_seeds_and_its_costs(first_sight: str, scores: dict[str, float]):
    standings = re.search(r'<table class="standings">.*?</table>', first_sight, re.DOTALL)
    assert standings is not None
    assert standings[0].count('class="range"') == len(scores)
    assert standings[0].count('class="seed"') == 2 * len(scores)
    assert standings[0].count("among the best") == 2
    assert "246 k" in standings[0]
    assert "1.50 GiB" in standings[0]


def test_samples_are_shown_where_outputs_differ_and_all_of_them_when_asked_for(first_sight: str, answered: str):
    assert first_sight.count('class="output"') == 1
    assert first_sight.count('<li class="right">') == 1
    assert first_sight.count('<li class="wrong">') == 1
    assert answered.count('class="output"') == 2


def test_a_name_in_a_legend_hides_its_model_on_all_charts(answered: str, scores: dict[str, float]):
    assert answered.count('class="curve"') == 4 * (len(scores) - 1)
    assert answered.count('aria-pressed="false"') == 3


def test_pointing_at_a_curve_tells_its_values(answered: str):
    tip = re.search(r'<div class="chart-tip"[^>]*>(<b>step 1,300</b>.*?)</div>', answered, re.DOTALL)
    assert tip is not None
    assert "0.231 to 0.241" in tip[1]
    assert tip[1].index("rnn") < tip[1].index("transformer")
    assert "<bdi>lstm</bdi>" not in tip[1]


def test_the_order_and_the_score_can_be_chosen(first_sight: str, answered: str, scores: dict[str, float]):
    rows = r'<th scope="row"><div class="title-line">.*?<bdi>(.*?)</bdi>'
    assert re.findall(rows, first_sight) == list(scores)
    assert re.findall(rows, answered) == list(reversed(scores))
    assert "97.20 to 99.40" in answered


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1200])
def test_many_models_are_shown_as_a_matrix(crowd: dict[str, Any], width: int, draw: Draw):
    dom = draw(crowd, then="document.querySelector('.pair-matrix td.worse').focus();", width=width)
    matrix = re.search(r'<table class="pair-matrix many">.*?</table>', dom, re.DOTALL)
    assert matrix is not None
    cells = {kind: matrix[0].count(f'<td class="{kind}"') for kind in ("better", "worse", "unsure", "self")}
    assert cells == {"better": 55, "worse": 55, "unsure": 22, "self": 12}
    assert "transformer-of-the-kind-a is significantly worse than transformer-of-the-kind-c: \N{MINUS SIGN}1.40" in dom


@pytest.mark.slow
def test_the_page_of_text_cannot_be_read_the_wrong_way_round(of_text: dict[str, Any], draw: Draw):
    choose = "document.querySelectorAll('#pairs input')[1].click(); document.querySelector('td.worse').focus();"
    first, table = draw(of_text), draw(of_text, then=choose)
    assert first.count('<div class="better-way">lower is better</div>') == 1
    assert '<b>0.410 lower</b><div class="between">0.397 to 0.421 lower</div>' in first
    assert '<b>0.007 lower</b><div class="between">0.006 higher to 0.018 lower</div>' in first
    assert "lstm is significantly worse than llama: 0.403 higher (0.390 to 0.414 higher)" in table
    assert "95 % intervals over text spans" in first
    assert "training documents" in first
    assert "Perplexity" in first
    assert "rows" not in re.sub(r"<[^>]*>", " ", first)


def test_a_lead_lies_right_of_nothing_whichever_way_is_better(
    of_text: dict[str, Any], comparison: dict[str, Any], draw: Draw
):
    for dom, num_pairs in ((draw(of_text), 3), (draw(comparison), 6)):
        plots = re.findall(r'class="zero" x1="([\d.]+)".*?class="point" cx="([\d.]+)"', dom, re.DOTALL)
        assert len(plots) == num_pairs
        assert all(float(lead) > float(zero) for zero, lead in plots)


def test_continuations_are_neither_right_nor_wrong(of_text: dict[str, Any], draw: Draw):
    dom = draw(of_text)
    assert "Continuations" in dom
    assert dom.count('class="output continued"') == 1
    assert not re.search('<li class="(right|wrong)">|<mark>', dom)


def test_odd_numbers_do_not_stop_the_page(odd: dict[str, Any], draw: Draw):
    dom = draw(odd, then="document.querySelectorAll('#learning input').forEach((input) => input.click());")
    assert "NaN" not in dom
    assert "Infinity" not in dom
    assert dom.count('class="seed"') == 2
    assert '<section id="lengths">' not in dom
    assert '<section id="notes">' not in dom
