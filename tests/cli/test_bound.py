"""`regard bound`: a calculator of what can still be said of a score that was chosen."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.selection.bounds import bernstein, binomial, bootstrap_estimate, chernoff, tightest_bound


def told(answer) -> dict:
    return json.loads(answer.succeeds().out.splitlines()[-1])


def test_the_lectures_example(regard):
    found = told(regard("bound", "--m", 1_000_000, "--n", 4_000, "--delta", 0.05, "--json"))
    assert found["epsilon"] == pytest.approx(0.0468, abs=1e-4)
    assert found["epsilon_one_sided"] == pytest.approx(math.sqrt(math.log(1e6 / 0.05) / 8_000))
    assert found["smallest_difference"] == pytest.approx(2 * found["epsilon"])
    assert found["num_fresh"] == 843
    assert [bound["name"] for bound in found["bounds"]] == ["Hoeffding"]
    assert found["requirements"] is None


def test_the_table_for_a_person(regard):
    answer = regard("bound", "--m", 1_000_000, "--n", 4_000, "--score", 0.93).succeeds()
    assert answer.err == ""
    assert "1,000,000 candidates on 4,000 examples, delta 0.05" in answer.out
    for part in ("0.8832 to 0.9768", "0.9036 to 0.9514", "0.9057 to 0.9500", "843 fresh examples", "before computing"):
        assert part in answer.out


def test_a_score_has_every_bound_that_holds_for_it(regard):
    found = told(regard("bound", "--m", 50, "--n", 300, "--score", 0.57, "--json"))
    bounds = {bound["name"]: (bound["lower"], bound["upper"]) for bound in found["bounds"]}
    options: Any = {"num_candidates": 50}
    assert bounds["Chernoff"] == pytest.approx(chernoff(0.57, 300, **options).interval)
    assert bounds["empirical Bernstein"] == pytest.approx(bernstein(0.57, 300, **options).interval)
    assert bounds["exact binomial"] == pytest.approx(binomial(171, 300, **options).interval)
    assert bounds["fresh examples, exact binomial"] == pytest.approx(binomial(171, 300).interval)
    lower = {bound["name"]: bound["lower"] for bound in found["lower_bounds"]}
    assert lower["exact binomial"] == pytest.approx(binomial(171, 300, side="lower", **options).lower)


@pytest.mark.parametrize(
    ("given", "part", "answers"),
    [
        (["--m", 200, "--epsilon", 0.02], "200 candidates need 11,234 examples", (11_234, None)),
        (["--n", 4_000, "--epsilon", 0.03], "4,000 examples allow 33 candidates", (None, 33)),
        (["--n", 4_000, "--epsilon", 0.02], "4,000 examples allow no candidate", (None, 0)),
        (
            ["--n", 4_000, "--epsilon", 0.9],
            "4,000 examples allow more candidates than can be counted",
            (None, None),
        ),
    ],
)
def test_what_is_left_open_is_answered(regard, given: list, part: str, answers: tuple):
    assert part in regard("bound", *given).succeeds().out
    found = told(regard("bound", *given, "--json"))["requirements"]
    assert (found["num_examples"], found["num_candidates"]) == answers


def test_with_all_three_the_chance_is_told(regard):
    found = told(regard("bound", "--m", 1_000_000, "--n", 4_000, "--epsilon", 0.05, "--json"))["requirements"]
    assert found["delta"] == pytest.approx(2e6 * math.exp(-20))
    assert "has no guarantee" in regard("bound", "--m", 1_000_000, "--n", 4_000, "--epsilon", 0.01).succeeds().out


def test_values_of_each_example(regard, tmp_path: Path):
    rng = np.random.default_rng(0)
    shares, losses = rng.beta(5, 2, size=101), rng.exponential(size=101)
    for name, values in (("shares", shares), ("losses", losses)):
        (tmp_path / name).write_text("\n".join(map(repr, values.tolist())) + "\n\n")
    found = told(regard("bound", "--m", 7, "--values", tmp_path / "shares", "--json"))
    assert found["num_examples"] == 101
    by_name = {bound["name"]: bound for bound in found["bounds"]}
    expected = bernstein(shares.mean(), 101, variance=shares.var(ddof=1), num_candidates=7)
    assert by_name["empirical Bernstein"]["epsilon"] == pytest.approx(expected.epsilon)
    assert "exact binomial" not in by_name
    narrowest = tightest_bound(shares, num_candidates=1)
    assert by_name[f"fresh examples, {narrowest.name}"]["lower"] == pytest.approx(narrowest.lower)
    found = told(regard("bound", "--m", 7, "--values", tmp_path / "losses", "--json"))
    assert all(bound["is_estimate"] for bound in found["bounds"])
    assert found["bounds"][0]["lower"] == pytest.approx(bootstrap_estimate(losses, num_candidates=7).lower)
    assert found["lower_bounds"][0]["upper"] is None
    answer = regard("bound", "--m", 7, "--values", tmp_path / "shares", "--unbounded").succeeds()
    assert "an estimate, not a bound" in answer.out
    assert "Hoeffding" not in answer.out


@pytest.mark.slow
@pytest.mark.parametrize("given", [["--m", 30, "--n", 500, "--score", 0.8], ["--n", 500, "--epsilon", 0.9]])
def test_pictures_and_a_page_by_their_ending(regard, tmp_path: Path, given: list):
    for ending in ("png", "svg", "html"):
        out = tmp_path / f"bound.{ending}"
        assert regard("bound", *given, "--out", out).succeeds().out.splitlines()[-1] == str(out)
    with Image.open(tmp_path / "bound.png") as picture:
        assert picture.size[0] > 1_000
    assert "<svg" in (tmp_path / "bound.svg").read_text(encoding="utf-8")
    page = (tmp_path / "bound.html").read_text(encoding="utf-8")
    assert "regard bound " + " ".join(map(str, given[:2])) in page
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--m", 0, "--n", 10], ["M, must be at least 1, got 0"]),
        (["--m", 10, "--n", 0], ["N, must be at least 1, got 0"]),
        (["--m", 10, "--n", -3, "--score", 0.5], ["N, must be at least 1, got -3"]),
        (["--m", 10, "--n", 10, "--delta", 0], ["delta must lie between 0 and 1, both excluded, got 0"]),
        (["--m", 10, "--n", 10, "--delta", 1], ["delta must lie between 0 and 1"]),
        (["--m", 10, "--n", 10, "--epsilon", 0], ["epsilon must be above 0, got 0"]),
        (["--m", 10, "--n", 10, "--score", 3.2], ["Hoeffding", "needs scores in [0, 1], got 3.2", "the bootstrap"]),
        (["--m", 10], ["two of M, N and epsilon must be given, got M = 10"]),
        ([], ["two of M, N and epsilon must be given, got none"]),
        (["--m", 10, "--epsilon", 0.1, "--score", 0.5], ["--score needs --n"]),
        (["--m", 10, "--n", 5, "--values", "x"], ["--values cannot be combined with --score and --n"]),
        (["--m", 10, "--n", 5, "--unbounded"], ["--unbounded needs --values"]),
        (["--m", 10, "--values", "nowhere.txt"], ["nowhere.txt"]),
        (["--m", 10, "--n", 5, "--out", "bound.pdf"], ["must end in .png, .svg or .html, got 'bound.pdf'"]),
        (["--m", "many", "--n", 5], ["--m", "integer"]),
    ],
)
def test_what_cannot_be_is_one_line(regard, tmp_path: Path, monkeypatch, given: list, parts: list[str]):
    monkeypatch.chdir(tmp_path)
    regard("bound", *given).fails_with(*parts)
    assert not list(tmp_path.iterdir())


def test_a_file_of_words_is_one_line(regard, tmp_path: Path):
    (tmp_path / "words").write_text("0.5\nhalf\n")
    regard("bound", "--m", 3, "--values", tmp_path / "words").fails_with("a number in each line, got 'half' in line 2")
    (tmp_path / "words").write_text("\n")
    regard("bound", "--m", 3, "--values", tmp_path / "words").fails_with("at least one")


def test_a_place_that_cannot_be_written_is_one_line(regard, tmp_path: Path):
    regard("bound", "--m", 3, "--n", 9, "--out", tmp_path / "no" / "b.png").fails_with("cannot write", "b.png")
