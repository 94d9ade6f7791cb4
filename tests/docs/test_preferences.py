"""The commands and the program of the page on preferences run as they stand there."""

import pytest
from tests.docs.conftest import ROOT, Page

from regard.data.builtin.ratings import generate_ratings

SMALL = "--set model.num_layers=1 --set model.model_dim=16 --set model.num_heads=2 --set model.feedforward_dim=16"
ROWS = "--set data.num_rows=600"


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(workplace, run_inside):
    page = Page(ROOT / "docs" / "preferences.md")
    prompts = dict.fromkeys(row[0] for row in generate_ratings(200, 5))
    (workplace / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
    for command in page.short_commands():
        command = command.replace("--steps 5", "--steps 2")
        if " train " in command:
            command += f" {SMALL} {ROWS}"
        elif " ratings " in command and " data " not in command:
            command += f" {ROWS}"
        code, out, err = run_inside(command)
        assert code == 0, f"{command}\n{err}"
        assert out, f"{command} printed nothing"
    (program,) = page.blocks("python")
    small = 'settings={"data": {"num_rows": 600}}, steps=2, show_progress=False'
    exec(program.replace("steps=5", small), {})
    assert "Rewards against the KL divergence" in (workplace / "runs/ppo/report.html").read_text()
