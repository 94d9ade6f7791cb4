"""The commands, the program and the messages of the page on long contexts are those of the package."""

import pytest

SMALL = "--set model.num_layers=2 --set model.model_dim=32 --set model.num_heads=2"


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(long_page, run_inside, capsys):
    commands = [command for command in long_page.short_commands() if " lab " not in command]
    assert len(commands) == 8
    for command in commands:
        code, out, err = run_inside(f"{command} {SMALL}" if " train " in command else command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    (program,) = long_page.blocks("python")
    exec(program, {})
    first, second, shape = capsys.readouterr().out.splitlines()
    assert first.split()[1] == second.split()[1]
    assert "300, 97" in shape


@pytest.mark.slow
def test_the_messages_are_those_of_the_page(long_page, run_inside):
    page = " ".join(long_page.text.split())
    for settings, message in {
        "model.attention=widow": "unknown kind of attention 'widow'; did you mean window?",
        "model.attention=[]":
            "a list of kinds of attention is repeated over the layers and must have 1 to 4 kinds, got 0",
        "model.attention=low-rank": "low-rank attention averages all positions, later ones too, and is for encoders, ",
        "model.attention=window --set model.window=4096 --set task.window=128":
            "model.window must be at most the longest input of 128 positions, ",
        "model.window=12": "window is for window and strided attention, ",
    }.items():  # fmt: skip
        code, _, err = run_inside(f"regard train text.txt --model gpt-tiny --steps 2 --set {settings}")
        assert code == 2, err
        assert message in err
        assert message in page
