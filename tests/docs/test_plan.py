"""The commands and the program on memory and time are those of the package, and so are the stated shares."""

from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page

from regard.training.plan import ACCELERATORS


@pytest.fixture
def scale_section() -> str:
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    return text[text.index("## How much memory and time") :]


@pytest.mark.slow
def test_the_commands_and_the_program_run(scale_section: str, run_inside, tmp_path: Path, capsys):
    path = tmp_path / "section.md"
    path.write_text(scale_section, encoding="utf-8")
    commands = [command for command in Page(path).commands() if command.startswith("regard plan")]
    assert len(commands) == 3
    for command in commands:
        code, out, err = run_inside(command)
        assert code == 0, f"{command}\n{err}"
        assert "peak" in out
    exec(Page(path).blocks("python")[0], {})
    assert capsys.readouterr().out.split()[-1] in ("compute", "memory")


def test_the_stated_shares_are_those_of_the_table(scale_section: str):
    cells = [line.split("|") for line in scale_section.splitlines() if line.count("|") >= 4]
    rows = {each[1].strip(): each[2].strip() for each in cells}
    h200 = ACCELERATORS["h200"]
    assert float(rows["products"]) == h200.product_share
    assert f"{h200.attention_share:g}\\, T / (T + {h200.attention_half})" in rows["attention"]
    assert rows["other operations"].split()[0] == f"{h200.bandwidth_share:g}"
    for name in ACCELERATORS:
        assert name in scale_section
