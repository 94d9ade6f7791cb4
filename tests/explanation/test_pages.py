"""Pages that stand alone, keep foreign text harmless, and draw themselves in a browser."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import ConfigError
from regard.explanation import AttentionMaps, Report, Summary, SummaryTable, write_report
from regard.explanation.attention import write_attention_page
from regard.explanation.report import update_report
from regard.tasks.content import Drawing, Section


@pytest.fixture
def report(maps: AttentionMaps) -> Report:
    steps = range(10, 810, 10)
    trained = [{"step": step, "loss": 30 / step, "learning_rate": 1e-3, "seconds": step / 7} for step in steps]
    checked = [{"step": step, "valid_loss": 40 / step, "valid_perplexity": 1.1} for step in range(200, 801, 200)]
    return Report(
        title="dates: source to target",
        summary={"model": "transformer", "parameters": "1,204,352"},
        scores={
            "exact_match": {"value": np.float64(0.993), "interval": (0.9885, 0.996), "signature": "n:2000|seed:7"},
            "bleu": {"value": 97.31},
        },
        num_rows=2000,
        curves=[*trained, *checked],
        settings='[model]\nmodel_dim = 128  # wide\npreset = "transformer"\n',
        samples=[
            {"source": "4 mars 2025", "target": "2025-03-04", "prediction": "2025-03-04", "right": True},
            {"source": "٤ مارس ٢٠٢٥", "target": "2025-03-04", "prediction": "2025-04-03", "right": False},
        ],
        attention=[maps],
        notes=["the task was read off the data"],
    )


@pytest.fixture(params=["attention", "report"])
def page(request: pytest.FixtureRequest, maps: AttentionMaps, report: Report, tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    if request.param == "attention":
        write_attention_page([maps, maps], path)
    else:
        write_report(path, report)
    return path


def test_a_page_stands_alone(page: Path):
    text = page.read_text()
    assert set(re.findall(r"https?://[^\"' )<]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\{\{\w+\}\}", text)
    targets = re.findall(r"(?:src|href)\s*=\s*[\"']([^\"']+)|url\(([^)]*)\)|@import\s+(\S+)", text)
    assert all("".join(target).startswith("data:") for target in targets)
    assert "default-src 'none'" in text
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]


def test_an_attention_page_needs_an_example(tmp_path: Path):
    with pytest.raises(ConfigError, match="at least one prediction"):
        write_attention_page([], tmp_path / "page.html")


def tricky_report(make_maps: Callable[[str, str], AttentionMaps], text: str) -> Report:
    return Report(
        title=text,
        summary={text: text},
        scores={text: {"value": 0.5, "interval": [0.4, 0.6], "signature": text}},
        curves=[{"step": 1, "loss": 1.0}],
        settings=text,
        samples=[{"source": text, "target": text, "prediction": text + "x", "right": False}],
        attention=[make_maps(text, text)],
        notes=[text],
    )


def test_foreign_text_stays_text_and_comes_back(
    make_maps: Callable[[str, str], AttentionMaps], tricky_text: str, tmp_path: Path, data_of: Callable[[Path], Any]
):
    write_report(tmp_path / "page.html", tricky_report(make_maps, tricky_text))
    text = (tmp_path / "page.html").read_text()
    assert tricky_text not in text
    assert "<b>" not in text
    assert text.count("</script>") == 2
    assert f"<title>{html.escape(tricky_text)}</title>" in text
    data = data_of(tmp_path / "page.html")
    assert data["title"] == data["notes"][0] == data["settings"] == data["samples"][0]["source"] == tricky_text
    assert data["scores"][0]["signature"] == tricky_text
    assert data["summary"] == [[tricky_text, tricky_text]]
    assert data["attention"][0]["input"] == tricky_text


def test_a_resumed_run_has_one_line_per_step_and_the_later_one_holds(tmp_path: Path, data_of: Callable[[Path], Any]):
    lines = [
        {"step": 2, "loss": 1.0},
        {"step": 3, "loss": 0.5},
        {"step": 2, "loss": 0.9},
        {"step": 2, "valid_loss": float("nan")},
    ]
    write_report(tmp_path / "page.html", Report(title="resumed", curves=lines))
    expected = [{"step": 2, "loss": 0.9, "valid_loss": None}, {"step": 3, "loss": 0.5}]
    assert data_of(tmp_path / "page.html")["curves"] == expected


def test_a_score_needs_a_value(tmp_path: Path):
    with pytest.raises(ConfigError, match="a score must have a value, got 'BLEU' with signature"):
        write_report(tmp_path / "page.html", Report(title="no value", scores={"BLEU": {"signature": "x"}}))


def test_a_line_of_curves_needs_a_step(tmp_path: Path):
    with pytest.raises(ConfigError, match="a line of curves must have a step, got loss, seconds"):
        write_report(tmp_path / "page.html", Report(title="no step", curves=[{"loss": 1.0, "seconds": 3}]))


def test_the_attention_page_draws_itself_and_answers(maps: AttentionMaps, tmp_path: Path, drawn: Callable[..., str]):
    write_attention_page([maps, maps], tmp_path / "page.html")
    choose = "document.querySelectorAll('.attention-grid button')[4].click();"
    walk = """
        const map = document.querySelector('.attention-scroll');
        for (const key of ['ArrowDown', 'ArrowDown', 'ArrowUp', 'ArrowRight'])
            map.dispatchEvent(new KeyboardEvent('keydown', { key }));
    """
    dom = drawn(tmp_path / "page.html", then=choose + walk)
    assert f'data-cells="{11 * 12}"' in dom
    assert dom.count('aria-label="layer ') == 6
    assert re.search(r'aria-label="layer 2, head 2" aria-pressed="true"', dom)
    weights = maps.average("cross", layer=1, head=1)
    tip = re.search(r'class="attention-tip"[^>]*>(.*?)</div>', dom)
    place = re.search(r'data-row="(\d+)" data-column="(\d+)"', dom)
    assert tip is not None
    assert place is not None
    row, column = int(place[1]), int(place[2])
    assert row == 1
    assert tip[1].endswith(f"{weights[row, column]:.3f}")
    for weight in sorted(weights[row])[-3:]:
        assert f"({weight:.3f})</span>" in dom


def test_the_report_draws_every_section_that_has_something_to_show(
    report: Report, tmp_path: Path, drawn: Callable[..., str]
):
    write_report(tmp_path / "page.html", report)
    dom = drawn(tmp_path / "page.html")
    for part in ("notes", "learning", "samples", "attention", "settings"):
        assert f'<section id="{part}">' in dom
    assert dom.count('class="interval"') == 1
    assert ">0.993<" in dom
    assert ">97.31<" in dom
    assert ">Validation exact match (2,000 rows)<" in dom
    assert ">BLEU<" in dom
    assert '<g class="line valid_loss"><path class="curve" d="M' in dom
    assert '<g class="line learning_rate"><path class="curve" d="M' in dom
    assert "<mark>" in dom
    assert '<span class="toml-table">[model]</span>' in dom
    assert f'data-cells="{11 * 12}"' in dom


def test_the_report_draws_the_score_and_marks_the_kept_weights(
    report: Report, tmp_path: Path, drawn: Callable[..., str]
):
    scores = [{"step": step, "valid_score": 0.8 + step / 8000, "valid_metric": "accuracy"} for step in (200, 400, 600)]
    write_report(tmp_path / "page.html", replace(report, curves=[*report.curves, *scores], kept_step=400))
    dom = drawn(tmp_path / "page.html")
    assert "Accuracy on validation rows, kept: 0.85" in dom
    curve = dom.partition('<g class="line valid_score">')[2].partition("</g>")[0]
    assert curve.count('class="mark"') == 3
    assert curve.count('class="ring"') == 1
    at = re.search(r'class="ring" cx="([\d.]+)"', dom.partition('<g class="line valid_loss">')[2])
    assert at is not None
    assert f'class="ring" cx="{at[1]}"' in curve, "both rings are at the kept step"


def test_a_drawing_of_a_task_is_an_image_with_its_caption(tmp_path: Path, drawn: Callable[..., str]):
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><text>sea & <sky></text></svg>'
    section = Section("Trees", drawings=[Drawing("1. predicted", svg)])
    write_report(tmp_path / "page.html", Report(title="parser", sections=[section]))
    page = drawn(tmp_path / "page.html")
    assert "<figcaption>1. predicted</figcaption>" in page
    assert "data:image/svg+xml;charset=utf-8,%3Csvg" in page


def test_the_smallest_report_has_no_empty_section(tmp_path: Path, drawn: Callable[..., str]):
    write_report(tmp_path / "page.html", Report(title="nothing yet"))
    dom = drawn(tmp_path / "page.html")
    assert "<section" not in dom
    assert "nothing yet</h1>" in dom


def test_odd_numbers_do_not_stop_the_report(report: Report, tmp_path: Path, drawn: Callable[..., str]):
    odd = replace(
        report,
        curves=[{"step": 1, "loss": float("inf")}, {"step": 1, "valid_loss": 0.0}, {"step": 1, "learning_rate": 0.0}],
        scores={"zero": {"value": 0.0, "interval": [0.0, 0.0]}, "lost": {"value": float("nan")}},
        samples=[{"source": "ROMEO:", "prediction": ""}],
    )
    write_report(tmp_path / "page.html", odd)
    choose = "document.querySelectorAll('#learning input').forEach((input) => input.click());"
    dom = drawn(tmp_path / "page.html", then=choose)
    assert "NaN" not in dom
    assert "not finite" in dom


def test_a_continuation_is_neither_right_nor_wrong(tmp_path: Path, drawn: Callable[..., str]):
    samples = [{"source": "But soft, what", "target": " light through", "prediction": " lamp"}]
    names = ("text", "continuation", "generated")
    write_report(tmp_path / "page.html", Report(title="a text", samples=samples, sample_names=names))
    dom = drawn(tmp_path / "page.html")
    assert all(f"<dt>{name}</dt>" in dom for name in names)
    assert " light through" in dom
    assert "<mark" not in dom


def test_a_graph_is_drawn_and_its_json_is_folded(tmp_path: Path, drawn: Callable[..., str]):
    samples = [
        {"source": source, "svg": '<svg xmlns="http://www.w3.org/2000/svg"/>', "prediction": "1"}
        for source in ("{}", "CCO")
    ]
    write_report(tmp_path / "page.html", Report(title="graphs", samples=samples))
    dom = drawn(tmp_path / "page.html")
    assert dom.count('class="structure"') == 2
    assert "<details><summary>JSON</summary>{}</details>" in dom
    assert "<span>CCO</span>" in dom


@pytest.mark.slow
def test_foreign_text_is_shown_and_never_run(
    make_maps: Callable[[str, str], AttentionMaps], tricky_text: str, tmp_path: Path, drawn: Callable[..., str]
):
    write_report(tmp_path / "page.html", tricky_report(make_maps, tricky_text))
    dom = drawn(tmp_path / "page.html")
    assert "<b>" not in dom.replace("<b>step", "")
    assert f"<li>{html.escape(tricky_text, quote=False)}</li>" in dom


def test_many_scores_are_a_table_and_an_interval_without_width_is_left_out(tmp_path: Path, drawn: Callable[..., str]):
    scores = {f"entity_f1_{number}": {"value": 1.0, "interval": [1.0, 1.0]} for number in range(9)}
    write_report(tmp_path / "page.html", Report(title="tags", scores=scores))
    dom = drawn(tmp_path / "page.html")
    assert dom.count("<dt>Entity F1 ") == 8
    assert "1.000 to 1.000" not in dom
    assert 'class="interval"' not in dom


def test_tags_are_shown_with_their_words(tmp_path: Path, drawn: Callable[..., str]):
    tags = {"target": "B-PER I-PER O", "prediction": "B-PER O O", "right": False, "kind": "tags"}
    write_report(tmp_path / "page.html", Report(title="tags", samples=[{"source": "Ada Smith ran", **tags}]))
    dom = drawn(tmp_path / "page.html")
    assert re.search(r"<dt>expected</dt>.*?Ada Smith<small>PER</small>", dom)
    assert re.search(r"<dt>predicted</dt>.*?Ada<small>PER</small>", dom)


def test_the_certificate_and_the_commands_of_a_report_are_replaced_and_nothing_else(
    report: Report, tmp_path: Path, data_of: Callable[[Path], Any]
):
    table = SummaryTable(name="bounds", columns=["bound", "lower"], rows=[["Hoeffding", "0.9"]], bold=[0])
    first, second = (
        Summary(title="run", subtitle="", findings=[sentence], tables=[table]) for sentence in ("sealed", "opened once")
    )
    path = tmp_path / "report.html"
    write_report(path, replace(report, certificate=first))
    before = data_of(path)
    update_report(path, certificate=second, commands=[("regard evaluate run FILE", "scores")])
    after = data_of(path)
    assert after.pop("commands") == [["regard evaluate run FILE", "scores"]] != before.pop("commands")
    assert after.pop("certificate") == {**before.pop("certificate"), "findings": ["opened once"]}
    assert after == before
    path.write_text("my own notes")
    update_report(path, certificate=second, commands=[])
    assert path.read_text() == "my own notes"
    update_report(tmp_path / "none.html", certificate=second, commands=[])
    assert not (tmp_path / "none.html").exists()


def test_a_single_logged_step_is_a_point_and_no_empty_panel(tmp_path: Path, drawn: Callable[..., str]):
    curves = [
        {"step": 8, "loss": 1.2, "learning_rate": 0.0},
        {"step": 0, "valid_loss": 1.1},
        {"step": 8, "valid_loss": 1},
    ]
    write_report(tmp_path / "page.html", Report(title="short", curves=curves))
    dom = drawn(tmp_path / "page.html")
    line = dom.partition('<g class="line loss">')[2].partition("</g>")[0]
    assert line.count('class="mark"') == 1
    assert "learning_rate" not in dom


def test_white_space_that_differs_is_visible_and_the_parts_of_an_input_are_lines(
    tmp_path: Path, drawn: Callable[..., str]
):
    sample = {"source": "who?\tAda ran", "target": "the end", "prediction": "the\nend", "right": False}
    write_report(tmp_path / "page.html", Report(title="text", samples=[sample]))
    dom = drawn(tmp_path / "page.html")
    assert "<mark>\N{OPEN BOX}</mark>" in dom
    assert "<mark>\N{RETURN SYMBOL}</mark>" in dom
    assert "who?\nAda ran" in dom
