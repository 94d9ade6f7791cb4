"""The commands and the program of the page on chat run as they stand there."""

import json

import pytest
from tests.docs.conftest import ROOT, Page

SMALL = "--set model.num_layers=1 --set model.model_dim=16 --set model.num_heads=2 --set task.max_length=128"


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(pretrained, run_inside, capsys):
    page = Page(ROOT / "docs" / "chat.md")
    talks = [
        [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": "odd" if n % 2 else "even"}]
        for n in range(60)
    ]
    (pretrained / "chats.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    (pretrained / "words.csv").write_text("english,german\n" + "".join(f"w{n},W{n}\n" for n in range(60)))
    (pretrained / "messages.txt").write_text("What is 3?\nWhat is 4?\n/save talk.jsonl\n")
    (toml,) = page.blocks("toml")
    (pretrained / "german.toml").write_text(toml)
    template = "{% for m in messages %}{{ m.role }}> {{ m.content }}{{ eos_token }}{% endfor %}"
    (pretrained / "turns.jinja").write_text(template + "{% if add_generation_prompt %}assistant> {% endif %}")
    for command in page.short_commands():
        if " train " in command:
            command += f" {SMALL}"
        code, out, err = run_inside(command.replace("--steps 20", "--steps 2"))
        assert code == 0, f"{command}\n{err}"
        assert out, f"{command} printed nothing"
    assert json.loads((pretrained / "talk.jsonl").read_text())["messages"][0]["content"] == "What is 3?"
    (program,) = page.blocks("python")
    exec(program, {})
    assert capsys.readouterr().out
