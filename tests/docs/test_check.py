"""The commands and the program of the page on checks run as they stand there."""

import json
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page
from tests.shape_checks import unchecked_shapes


@pytest.mark.slow
def test_the_commands_and_the_program_run(workplace: Path, run_inside, capsys):
    page = Page(ROOT / "docs" / "check.md")
    code, _, err = run_inside("regard train pairs.tsv --steps 2 --no-baseline --model transformer-tiny --out runs/mine")
    assert code == 0, err
    first, second = page.commands()
    assert first == "regard check runs/mine"
    command, _, name = second.partition(" > ")
    (program,) = page.blocks("python")
    with unchecked_shapes():
        code, out, err = run_inside(command)
        assert code == 0, err
        exec(program, {})
    (workplace / name).write_text(out)
    found = json.loads((workplace / name).read_text())
    assert found["holds"]
    assert [line.split(" holds ")[0] for line in capsys.readouterr().out.splitlines() if " holds " in line] == [
        each["name"] for each in found["equalities"] if each["verdict"] == "holds"
    ]
