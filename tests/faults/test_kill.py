"""Training that is stopped from outside is resumed without a difference."""

import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

STEPS = 60


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--sharded", "--steps", "60")])
def test_kills_at_random_moments_change_nothing(more: tuple[str, ...]):
    script, number = Path(__file__).with_name("kill_at_random.py"), 2 if more else 6
    command = [sys.executable, script, "--kills", str(number), *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].endswith("everything is the same")
    assert ended.stdout.startswith("kill 1 (figures, seed 0-0)")
    assert f"\n{number} kills of " in ended.stdout


@pytest.mark.slow
def test_signals_stop_training_without_loss(killing: ModuleType, tmp_path: Path):
    data = killing.write_data(tmp_path)
    killing.finish(killing.start(data, tmp_path / "undisturbed", STEPS))
    stopped = tmp_path / "stopped"
    for number, code, earliest in ((signal.SIGINT, 130, 10), (signal.SIGTERM, 143, 30)):
        has_reached = killing.has_reached(stopped, earliest)
        process = killing.start(data, stopped, STEPS)
        assert killing.wait(process, has_reached)
        process.send_signal(number)
        out, err = process.communicate(timeout=killing.PATIENCE)
        assert process.returncode == code
        assert out == ""
        assert err.count("\n") == 1
        step = int(killing.newest_checkpoint(stopped).stem.removeprefix("step-"))
        assert earliest <= step < STEPS
        assert f"regard: stopped at step {step}" in err
        assert str(stopped) in err
        assert "--resume" in err
    killing.finish(killing.start(data, stopped, STEPS))
    assert killing.differences(tmp_path / "undisturbed", stopped) == []
