"""The commands and the program of the page on checks run as they stand there."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page


@pytest.mark.slow
def test_the_commands_and_the_program_run(workplace: Path, run_inside, run):
    """In processes of their own: exports to ONNX cannot trace functions whose types are checked."""
    page = Page(ROOT / "docs" / "check.md")
    code, _, err = run_inside("regard train pairs.tsv --steps 2 --no-baseline --model transformer-tiny --out runs/mine")
    assert code == 0, err
    first, second = page.commands()
    assert first == "regard check runs/mine"
    arguments, _, name = second.partition(" > ")
    done = run([sys.executable, "-m", *shlex.split(arguments)])
    assert done.returncode == 0, done.stderr
    (workplace / name).write_text(done.stdout)
    found = json.loads((workplace / name).read_text())
    assert found["holds"]
    (program,) = page.blocks("python")
    done = run([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    assert [line.split(" holds ")[0] for line in done.stdout.splitlines() if " holds " in line] == [
        each["name"] for each in found["equalities"] if each["verdict"] == "holds"
    ]
