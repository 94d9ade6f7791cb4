"""The commands and the program of the page on graphs run as they stand there."""

import json
from itertools import product

import pytest

SMALL = "--set model.num_layers=2 --set model.model_dim=16"
FEW = "--set data.num_rows=120"


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(graphs_page, run_inside, workplace, capsys):
    pytest.importorskip("rdkit")
    rows = [(f"{'C' * one}{middle}{'C' * other}O", one + 0.37 * other)
            for one, other, middle in product(range(1, 6), range(1, 6), ("", "N", "c1ccccc1"))]  # fmt: skip
    (workplace / "molecules.csv").write_text(
        "smiles,solubility\n" + "".join(f"{smiles},{number}\n" for smiles, number in rows)
    )
    (workplace / "measured.jsonl").write_text(
        "".join(
            json.dumps(
                {"nodes": ["C"] * size, "edges": [[0, size - 1]], "weight": size / 3, "depth": size if odd else None}
            )
            + "\n"
            for size, odd in product(range(2, 22), (0, 1))
        )
    )
    for command in graphs_page.short_commands():
        if " train " in command or " compare " in command:
            command = f"{command} {SMALL}" + (f" {FEW}" if " rings " in command else "")
        code, out, err = run_inside(command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    for name in ("attention.html", "head.png", "predicted.csv"):
        assert (workplace / name).stat().st_size
    (program,) = graphs_page.blocks("python")
    exec(program, {})
    assert capsys.readouterr().out.strip() in ("fused", "joined")
