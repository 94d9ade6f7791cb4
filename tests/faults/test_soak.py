"""The memory of a process that trains, evaluates and generates again and again."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults import soak


@pytest.mark.slow
def test_memory_is_flat_over_some_rounds():
    """Fewer rounds vary more: the program itself requires 1 % over an hour."""
    options = ["--minutes", "0", "--rounds", "6", "--steps", "10", "--tolerance", "0.03"]
    ended = subprocess.run(
        [sys.executable, Path(soak.__file__), *options], capture_output=True, text=True, check=False, timeout=900
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("6 rounds; megabytes ")


def test_memory_that_grows_after_the_warm_up_is_noticed():
    flat = [{"objects": 100.0 + (50 if n > 2 else 0)} for n in range(9)]
    assert soak.growth(flat, "objects") == 0.0
    leaking = [{"objects": 100.0 + 2 * n} for n in range(9)]
    assert soak.growth(leaking, "objects") > soak.TOLERANCE
