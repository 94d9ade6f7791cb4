"""A process of the package runs its module as Python would, and collects garbage rarely."""

import os
import subprocess
import sys

import pytest

MODULE = """
import gc, sys

class Cycle:
    def __del__(self):
        print("collected")

generations = set()
gc.callbacks.append(lambda phase, info: generations.add(info["generation"]))
kept = [[] for _ in range(300_000)]
gc.callbacks.clear()
print(__name__, sys.argv[0] == __file__, 2 in generations, sys.stdin.read())
cycle = Cycle()
cycle.itself = cycle
sys.exit(3)
"""
COMMAND = """
import sys
from regard.cli.main import main
sys.argv[1:] = ["--version"]
try:
    main()
except SystemExit:
    import given
"""


def run(folder, *words: str) -> tuple[int, str, str]:
    (folder / "given.py").write_text(MODULE)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *words], input="a request", env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "printed"), [([], "True a request\ncollected\n"), (["regard.startup"], "False a request\n")]
)
def test_a_module_is_run_as_by_python_and_its_old_objects_are_not_collected(tmp_path, words, printed):
    assert run(tmp_path, "-m", *words, "given") == (3, f"__main__ True {printed}", "")


def test_the_command_line_collects_rarely(tmp_path):
    code, printed, _ = run(tmp_path, "-c", COMMAND)
    assert (code, printed.splitlines()[1:]) == (3, ["given False False a request"])
