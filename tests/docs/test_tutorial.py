"""The commands of the tutorial run, and print the choices that it shows."""

import re
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page

COMPARED = "regard compare "
"""The README has the same command, with its test."""


@pytest.fixture
def tutorial(workplace: Path) -> Page:
    """The page, and beside its pairs the other files that it names."""
    pairs = [line.split("\t") for line in (workplace / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    for name, rows in (("train", pairs[:300]), ("val", pairs[300:])):
        for suffix, texts in zip(("de", "en"), zip(*rows, strict=True), strict=True):
            (workplace / f"{name}.{suffix}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    reviews = [
        f"{'good' if n % 3 else 'bad'} film {n},{n % 3 > 0},author {n % 40},2021-{n // 20 + 1:02}-01"
        for n in range(200)
    ]
    (workplace / "reviews.csv").write_text("\n".join(["text,label,author,date", *reviews]) + "\n")
    return Page(ROOT / "docs" / "tutorial.md")


@pytest.mark.slow
def test_the_commands_run_in_the_order_they_stand_in(tutorial: Page, run_inside):
    said = {}
    for command in (each for each in tutorial.commands() if not each.startswith(COMPARED)):
        short = re.sub(r"--minutes \d+", "--minutes 0.02", re.sub(r" > \S+| --epochs \d+", "", command))
        if " train " in short and not re.search("--minutes|--resume", short):
            short += " --steps 2"
        code, out, said[command] = run_inside(short)
        assert code == 0, f"{command}\n{said[command]}"
        assert out.strip(), f"{command} printed nothing"
    shown = next(block for block in tutorial.blocks("text") if block.startswith("task "))
    choices = [line for line in shown.splitlines() if not re.search(r"\d", line)]
    assert len(choices) >= 3
    for line in choices:
        assert line in said["regard train pairs.tsv --minutes 5 --out runs/mine"]
