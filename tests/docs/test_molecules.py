"""The commands and the program of the page on molecules run as they stand there."""

import pytest

SMALL = "--set task.spellings=2 --set task.averaged=1"


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(molecules_page, run_inside, workplace, capsys):
    pytest.importorskip("rdkit")
    commands = molecules_page.short_commands()
    assert commands[0] == "regard data show molecules --rows 400 > molecules.tsv"
    code, out, err = run_inside("regard data show molecules --rows 90")
    assert code == 0, err
    (workplace / "molecules.tsv").write_text(out)
    letters = "ACDEFGHIKLMNPQRSTVWY"
    records = [
        f">p{row}\n{''.join(letters[(row * place + place) % 20] for place in range(1, 40))}" for row in range(60)
    ]
    (workplace / "proteins.fasta").write_text("\n".join(records))
    for command in commands[1:]:
        has_spellings = (
            any(f" {name} " in command for name in ("train", "compare", "finetune")) and "--task" not in command
        )
        is_sequence = ".fasta" in command
        code, out, err = run_inside(f"{command} {SMALL}" if has_spellings and not is_sequence else command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
        if command.endswith("--metrics"):
            assert "validity" in out
    (program,) = molecules_page.blocks("python")
    exec(program, {})
    one, other = capsys.readouterr().out.splitlines()
    assert one.partition(" ")[2] == other.partition(" ")[2], "two spellings of one molecule"
