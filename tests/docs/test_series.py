"""The commands and the program of the page on series run as they stand there."""

import pytest

SMALL = "--set task.input_length=28 --set task.horizon=14"


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(series_page, run_inside, workplace, capsys):
    commands = series_page.short_commands()
    assert commands[0] == "regard data show sales --rows 4380 > sales.tsv"
    code, out, err = run_inside(commands[0].partition(" > ")[0])
    assert code == 0, err
    (workplace / "sales.tsv").write_text(out)
    for command in commands[1:]:
        is_training = " train " in command or " compare " in command
        code, out, err = run_inside(f"{command} {SMALL}" if is_training else command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    assert (workplace / "forecast.png").stat().st_size
    (program,) = series_page.blocks("python")
    exec(program, {})
    assert len(capsys.readouterr().out.splitlines()) == 4
