"""What the page on bounds shows runs, and says what it is said to say."""

import re
from pathlib import Path

import pytest

from regard.selection.bounds import equivalent_fresh_examples, hoeffding_epsilon

PAGE = Path(__file__).parents[3] / "docs" / "bounds.md"


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]):
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    exec(program, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "exact binomial 0.9057 0.95"
    assert [line.split()[-1] for line in lines[3:6]] == ["False"] * 3


def test_the_figures_of_the_page_are_those_of_the_functions():
    text = PAGE.read_text(encoding="utf-8")
    assert f"{hoeffding_epsilon(4_000, num_candidates=1_000_000):.4f}" in text
    assert f"{equivalent_fresh_examples(4_000, num_candidates=1_000_000)} instead of 4,000 for a million" in text
