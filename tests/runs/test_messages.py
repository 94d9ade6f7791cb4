"""What a Python program is told: reports reach it without any configuration of logging."""

import logging
import subprocess
import sys

import pytest

from regard.logging import log_info, log_warning, quiet_logs, recorded_messages

CODE = """
import sys
{setup}
import regard
rows = [(f"a {{word}} film {{i}}", label) for i in range(30) for word, label in (("fine", 1), ("poor", 0))]
settings = {{"model": {{"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1}}}}
for name, shown in (("run", True), ("other", False)):
    run = regard.train(
        rows, out=name, steps=2, tokenizer="bytes", device="cpu", settings=settings, show_progress=shown
    )
    print(repr(run))
"""


def run_python(folder, setup: str = "") -> subprocess.CompletedProcess[str]:
    code = CODE.format(setup=setup)
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)


@pytest.mark.slow
@pytest.mark.slow
def test_reports_reach_a_program_that_has_not_configured_logging(tmp_path):
    done = run_python(tmp_path)
    for part in ("task text-classification, by the data", "48 for training"):
        assert done.stderr.count(part) == 2
    for name, shown in zip(("run", "other"), done.stdout.splitlines(), strict=True):
        assert f"report: {name}/report.html" in done.stderr
        assert shown.startswith(f"Run('{name}', task='text-classification'")


@pytest.mark.slow
@pytest.mark.slow
def test_a_program_that_has_configured_logging_decides_itself(tmp_path):
    done = run_python(tmp_path, setup="import logging; logging.basicConfig(level=logging.WARNING)")
    assert "task text-classification" not in done.stderr


def test_messages_are_recorded_once_whether_or_not_they_are_printed(caplog):
    with caplog.at_level(logging.WARNING, logger="regard"), recorded_messages() as found:
        log_info("chosen")
        log_info("chosen")
        log_warning("odd")
        with quiet_logs():
            log_info("a trial")
        with recorded_messages() as inner:
            log_info("inside")
    log_info("after")
    assert (found, inner) == (["chosen", "odd"], ["inside"])
