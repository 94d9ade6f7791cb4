"""Choosing the number of threads, on simulated machines; and how threads wait."""

from collections.abc import Callable

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
