"""A signal at the end of training stops the run before its report."""

import os
import signal
from pathlib import Path

import pytest
import torch

import regard
from regard.errors import StoppedError

ROWS = [(f"{word} film number {number}", word) for number in range(40) for word in ("good", "bad")]
SMALL = {
    "model": {"num_layers": 1, "model_dim": 8, "num_heads": 1, "feedforward_dim": 11},
    "task": {"tokenizer": "characters", "ngrams": 0},
    "train": {"batch_tokens": 300, "precision": "float32", "device": "cpu", "max_steps": 3, "evaluate_every": 3},
}


def test_a_signal_at_the_last_evaluation_stops_the_run_and_resuming_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)
    out = tmp_path / "run"
    with pytest.raises(StoppedError, match="stopped at step 3"):
        regard.train(
            ROWS,
            out=out,
            settings=SMALL,
            show_progress=False,
            on_evaluation=lambda step, loss: os.kill(os.getpid(), signal.SIGTERM),
        )
    assert not (out / "report.html").exists()
    run = regard.train(ROWS, out=out, resume=True, show_progress=False)
    assert (out / "report.html").exists()
    assert [line["event"] for line in run.folder.read_ledger()] == ["sealed", "held out", "training", "report"]
