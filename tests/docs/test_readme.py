"""What the README shows can be typed: its program, its commands and its errors."""

import subprocess
import sys
from pathlib import Path

import pytest

MOST_LINES = 10


def test_the_program_is_short(readme):
    assert len(readme.blocks("python")[0].splitlines()) <= MOST_LINES


@pytest.mark.slow
def test_the_program_runs(readme, workplace: Path, environment: dict[str, str]):
    program = readme.blocks("python")[0]
    done = run([sys.executable, "-W", "error", "-c", program], workplace, environment)
    assert done.returncode == 0, done.stderr
    assert "exact_match|" in done.stdout
    assert (workplace / "runs" / "mine" / "report.html").stat().st_size > 0
    assert (workplace / "attention.html").stat().st_size > 0


@pytest.mark.slow
def test_the_commands_run_in_the_order_they_stand_in(readme, workplace: Path, environment: dict[str, str]):
    commands = readme.commands()
    assert commands[0] == "regard train pairs.tsv --minutes 5 --out runs/mine"
    commands[0] = commands[0].replace("--minutes 5", "--steps 5")
    for command in (each.replace("--minutes 2.5 --seeds 3", "--steps 2") for each in commands):
        done = run(["sh", "-c", command], workplace, environment)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), f"{command} printed nothing"
    assert (workplace / "attention.html").stat().st_size > 0
    made = {path.name for path in (workplace / "runs" / "mine").iterdir()}
    told = {line.split("`")[1].rstrip("/") for line in table_under(readme.text, "## What a run folder holds")}
    assert made == told


@pytest.mark.slow
def test_the_errors_are_those_that_are_shown(readme, workplace: Path, environment: dict[str, str]):
    pairs = workplace / "pairs.tsv"
    lines = pairs.read_text(encoding="utf-8").splitlines(keepends=True)[:50]
    pairs.write_text("".join([*lines, "one column only\n", "no target\t\n"]), encoding="utf-8")
    shown = readme.blocks("text")[0].strip().splitlines()
    examples = [(line.removeprefix("$ "), shown[i + 1]) for i, line in enumerate(shown) if line.startswith("$ ")]
    assert len(examples) == 2
    for command, message in examples:
        done = run(["sh", "-c", command], workplace, environment)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == message


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300, check=False
    )


def table_under(text: str, heading: str) -> list[str]:
    """The rows of the first table under a heading."""
    lines = text.partition(f"{heading}\n")[2].lstrip("\n").splitlines()
    return [line for line in lines[2:10] if line.startswith("| `")]
