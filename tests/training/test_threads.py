"""Choosing the number of threads, on simulated machines; and how threads wait."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from regard.training.precision import ThreadChooser


def simulate(speed: Callable[[int, int], float], num_steps: int, most: int = 4) -> list[int]:
    """The number of threads at each step of a machine whose speed is `speed(step, threads)`."""
    chosen = [1]
    chooser = ThreadChooser(most, set_threads=lambda number: chosen.append(number))
    used = []
    for step in range(num_steps):
        used.append(chosen[-1])
        chooser.note(1000, 1000 / speed(step, chosen[-1]))
    return used


def share(used: list[int], number: int) -> float:
    return used.count(number) / len(used)


def test_a_quiet_machine_uses_all_threads_except_for_a_few_steps():
    used = simulate(lambda step, threads: 100.0 * threads, 1000)
    assert share(used, 4) > 0.95
    assert used[-1] == 4


def test_one_thread_is_used_soon_after_another_program_starts():
    used = simulate(lambda step, threads: 90.0 if threads == 1 else (400.0 if step < 300 else 5.0), 1000)
    assert share(used[:300], 4) > 0.9
    assert used[306:].count(4) <= 2


def test_all_threads_are_used_again_after_the_other_program_ends():
    used = simulate(lambda step, threads: 90.0 if threads == 1 else (5.0 if step < 300 else 400.0), 1000)
    assert used[:300].count(4) <= 2
    assert used[-1] == 4
    assert share(used[700:], 4) > 0.9


def test_a_machine_with_one_core_has_one_thread():
    assert simulate(lambda step, threads: 100.0, 500, most=1) == [1] * 500


@pytest.mark.parametrize(("given", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_has_set_otherwise(given: dict[str, str], expected: str):
    """As OpenMP itself reports it, when torch loads it after regard is imported."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    found = subprocess.run(
        [sys.executable, "-c", "import regard, os; os.environ['OMP_DISPLAY_ENV'] = 'true'; import torch"],
        env={**env, **given}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"OMP_WAIT_POLICY = '{expected}'" in found.stderr
