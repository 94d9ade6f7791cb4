"""The commands and the program of the page on events run as they stand there."""

import pytest


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(events_page, run_inside, workplace, capsys):
    commands = [command.replace("--rows 20000", "--rows 3000") for command in events_page.short_commands()]
    for command in commands:
        shown, _, path = command.partition(" > ")
        code, out, err = run_inside(shown)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
        if path:
            (workplace / path).write_text(out)
    assert (workplace / "risks.png").stat().st_size
    header, *rows = (workplace / "next.csv").read_text().splitlines()
    assert header.startswith("subject,observed_until,event,probability,time,time_lower,time_upper,risk_")
    assert len(rows) > 4
    (program,) = events_page.blocks("python")
    exec(program, {})
    assert len(capsys.readouterr().out.splitlines()) == 4
