"""The command of the page on faults continues a run, with the exit codes that it lists."""

import signal
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, Page

from regard.training.loop import _CHECKPOINT_STEPS
from regard.training.settings import TrainConfig


@pytest.mark.slow
def test_the_command_continues_a_run(workplace: Path, run_inside):
    page = Page(ROOT / "docs" / "faults.md")
    begin = "regard train pairs.tsv --steps 2 --no-baseline --model transformer-tiny --out runs/mine"
    code, _, err = run_inside(begin)
    assert code == 0, err
    (command,) = page.commands()
    code, _, err = run_inside(f"{command} --steps 3")
    assert code == 0, err
    assert "resuming from step 2" in err


def test_the_numbers_of_the_page_are_those_of_the_program():
    text = " ".join((ROOT / "docs" / "faults.md").read_text(encoding="utf-8").split())
    codes = [128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert "exits with {}, {} or {}".format(*codes) in text
    defaults = {name: field.default for name, field in TrainConfig.model_fields.items()}
    assert f"written every {_CHECKPOINT_STEPS} steps" in text
    assert f"`train.keep_checkpoints` are kept ({defaults['keep_checkpoints']})" in text
    assert f"at most `train.max_rollbacks` times ({defaults['max_rollbacks']})" in text
