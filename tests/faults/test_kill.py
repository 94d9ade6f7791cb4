"""Training that is stopped from outside goes on as if nothing had been."""

import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

STEPS = 40


@pytest.mark.slow
def test_ten_kills_change_nothing():
    script = Path(__file__).with_name("kill_at_random.py")
    ended = subprocess.run([sys.executable, script, "--kills", "10"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "10 kills; everything is the same"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_training_without_loss(killing: ModuleType, tmp_path: Path, number: signal.Signals, code: int):
    data = killing.write_data(tmp_path)
    killing.finish(killing.start(data, tmp_path / "undisturbed", STEPS))
    stopped = tmp_path / "stopped"
    process = killing.start(data, stopped, STEPS)
    assert killing.wait(process, killing.has_reached(stopped, 10))
    process.send_signal(number)
    out, err = process.communicate(timeout=killing.PATIENCE)
    assert process.returncode == code
    assert out == ""
    assert err.count("\n") == 1
    step = int(killing.newest_checkpoint(stopped).stem.removeprefix("step-"))
    assert 10 <= step < STEPS
    assert f"regard: stopped at step {step}; everything is saved in {stopped}" in err
    assert "--resume" in err
    killing.finish(killing.start(data, stopped, STEPS))
    assert killing.differences(tmp_path / "undisturbed", stopped) == []
