"""The program, the commands and the errors of the README run as shown."""

import importlib
import sys
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path

import pytest
from tests.shape_checks import unchecked_shapes

MOST_LINES = 10


def test_the_program_is_short(readme):
    assert len(readme.blocks("python")[0].splitlines()) <= MOST_LINES


def test_the_table_of_defaults_has_the_figures_of_the_benchmark(readme, monkeypatch):
    root = readme.path.parent
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    tables = importlib.import_module("common.readme")
    shown = readme.text.partition(tables.BEGIN)[2].partition(tables.END)[0]
    wanted = tables.summarize((root / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8"))
    assert shown.strip() == wanted.strip(), "python benchmarks/common/readme.py writes it"


@pytest.mark.slow
def test_the_program_runs(readme, workplace: Path, run):
    done = run([sys.executable, "-W", "error", "-c", readme.blocks("python")[0]])
    assert done.returncode == 0, done.stderr
    assert "exact_match|" in done.stdout
    assert (workplace / "runs" / "mine" / "report.html").stat().st_size > 0
    assert (workplace / "attention.html").stat().st_size > 0


@pytest.mark.slow
def test_the_commands_run_in_the_order_they_stand_in(readme, pretrained: Path, workplace: Path, run_inside):
    assert readme.commands()[0] == "regard train pairs.tsv --minutes 5 --out runs/mine"
    for command in readme.short_commands():
        with unchecked_shapes() if " check " in command else nullcontext():  # a check exports to ONNX
            code, out, err = run_inside(command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    assert (workplace / "attention.html").stat().st_size > 0
    told = {line.split("`")[1].rstrip("/") for line in table_under(readme.text, "## What a run folder contains")}
    for name in ("mine", "text"):
        assert {path.name for path in (workplace / "runs" / name).iterdir()} == told


@pytest.mark.slow
def test_the_errors_are_those_that_are_shown(readme, workplace: Path, run_inside):
    pairs = workplace / "pairs.tsv"
    lines = pairs.read_text(encoding="utf-8").splitlines(keepends=True)[:51]
    for number in (9, 12, 18, 27, 31, 36, 40, 44):
        lines[number - 1] = "one column only\n"
    pairs.write_text("".join([*lines, "no target\t\n"]), encoding="utf-8")
    shown = readme.blocks("text")[0].strip().splitlines()
    examples = [(line.removeprefix("$ "), shown[i + 1]) for i, line in enumerate(shown) if line.startswith("$ ")]
    assert len(examples) == 2
    for command, message in examples:
        code, _, err = run_inside(command)
        assert code == 2
        assert err.splitlines()[-1] == message


def table_under(text: str, heading: str) -> list[str]:
    """The rows of the first table under a heading."""
    lines = text.partition(f"{heading}\n")[2].lstrip("\n").splitlines()
    return list(takewhile(lambda line: line.startswith("| `"), lines[2:]))
