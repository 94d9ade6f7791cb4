"""The commands and the program of the page on control run as they stand there."""

from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(run_inside, workplace: Path, capsys):
    pytest.importorskip("gymnasium")
    page = Page(ROOT / "docs" / "control.md")
    for command in page.short_commands():
        is_training = " train " in command or " compare " in command
        short = command.replace("--episodes 200", "--episodes 40").replace("--episodes 100", "--episodes 4")
        code, out, err = run_inside(f"{short} --set task.window=5" if is_training else short)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    assert (workplace / "cartpole.gif").stat().st_size
    (program,) = page.blocks("python")
    exec(program.replace("episodes=20", "episodes=3"), {})
    assert capsys.readouterr().out.splitlines()[-1] in ("0", "1")
