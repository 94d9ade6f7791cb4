"""The commands that are suggested after training: each has a purpose of its task, and its placeholders are accepted."""

import shlex

import pytest

from regard.runs.commands import next_commands
from regard.runs.run import load
from regard.runs.train import train
from regard.tasks.registry import TASKS

SMALL = {
    "preset": "tiny",
    "model": {"num_layers": 1, "model_dim": 16, "num_heads": 2},
    "train": {"max_steps": 1, "baseline": False},
}


@pytest.mark.parametrize("task", [each for each in TASKS if each.next_command], ids=lambda task: task.name)
def test_a_command_of_a_task_has_a_purpose(task):
    assert task.output_description
    assert "{run}" in task.next_command


def test_the_command_of_a_masked_language_model_runs_as_printed(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat, and the dog sat on the rug. " * 60)
    settings = {**SMALL, "task": {"name": "masked-language-modeling", "window": 16}}
    train(text, out=tmp_path / "run", settings=settings, show_progress=False)
    run = load(tmp_path / "run")
    (command, purpose), *_ = next_commands(run)
    *verb, _, given = shlex.split(command)
    assert verb == ["regard", "predict"]
    assert "[MASK]" in given
    assert run.predict(given)
    assert purpose == "the most probable token at [MASK]"


def test_the_output_of_regression_is_a_number_and_of_classification_a_label(tmp_path):
    labeled = [
        (f"a {'good' if number % 2 else 'bad'} film {number}", "+" if number % 2 else "-") for number in range(60)
    ]
    measured = [(text, f"{number / 7:.2f}") for number, (text, _) in enumerate(labeled)]
    for name, rows, purpose in (("a", labeled, "the predicted label"), ("b", measured, "the predicted number")):
        run = train(rows, out=tmp_path / name, settings=SMALL, show_progress=False)
        assert next_commands(run)[0] == (f"regard predict {tmp_path / name} TEXT", purpose)
