"""The commands and the program of the page on parsing run as they stand there."""

from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page

NOUNS = ("cat", "dog", "sea", "boy", "park", "man", "bird")
SMALL = "--set model.num_layers=1 --set model.model_dim=16 --device cpu"


def write_trees(path: Path) -> None:
    trees = [
        f"( (S (NP-SBJ (DT the) (NN {one})) (VP (VBD saw) (NP (DT a) (NN {other}))) (. .)))" for one in NOUNS
        for other in NOUNS
    ]  # fmt: skip
    path.write_text("\n".join(trees) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(run_inside, workplace, capsys):
    page = Page(ROOT / "docs" / "parsing.md")
    write_trees(workplace / "trees.mrg")
    for command in page.short_commands():
        if " finetune " in command:
            continue  # needs an imported model: tests/benchmarks fine-tunes one
        if " train " in command or " compare " in command:
            command = f"{command} {SMALL}"
        code, out, err = run_inside(command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    assert (workplace / "tree.svg").read_text(encoding="utf-8").startswith("<svg")
    (program,) = page.blocks("python")
    exec(program, {})
    assert capsys.readouterr().out.startswith("(")
