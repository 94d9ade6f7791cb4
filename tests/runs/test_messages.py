"""What a Python program is told: reports reach it without any configuration of logging."""

import subprocess
import sys

import pytest

CODE = """
import sys
{setup}
import regard
rows = [(f"a {{word}} film {{i}}", label) for i in range(30) for word, label in (("fine", 1), ("poor", 0))]
settings = {{"model": {{"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1}}}}
run = regard.train(rows, out="run", steps=2, tokenizer="bytes", device="cpu", settings=settings, {options})
print(repr(run))
"""


def run_python(folder, setup: str = "", options: str = "") -> subprocess.CompletedProcess[str]:
    code = CODE.format(setup=setup, options=options)
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("options", ["", "show_progress=False"])
def test_reports_reach_a_program_that_has_not_configured_logging(tmp_path, options):
    done = run_python(tmp_path, options=options)
    for part in ("task text-classification, by the data", "54 for training", "report: run/report.html"):
        assert part in done.stderr
    assert done.stdout.startswith("Run('run', task='text-classification'")


def test_a_program_that_has_configured_logging_decides_itself(tmp_path):
    done = run_python(tmp_path, setup="import logging; logging.basicConfig(level=logging.WARNING)")
    assert "task text-classification" not in done.stderr
