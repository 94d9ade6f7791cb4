"""Ctrl-C, SIGTERM and SIGHUP, sent to this very process."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from regard.errors import StoppedError
from regard.runs.train import train
from regard.training.interruption import listen

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_a_ctrl_c_after_it_obeyed(number: signal.Signals):
    before = [signal.getsignal(each) for each in SIGNALS]
    with listen() as interruption:
        assert not interruption
        os.kill(os.getpid(), number)
        assert interruption
        assert interruption.signal == number
        for again in (signal.SIGTERM, signal.SIGHUP):  # a scheduler may not wait for the first one's effect
            os.kill(os.getpid(), again)
            assert interruption.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listen() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interruption
    finally:
        signal.signal(signal.SIGHUP, before)


def test_elsewhere_than_in_the_main_thread_nothing_is_listened_for():
    found = []

    def work() -> None:
        with listen() as interruption:
            found.append(bool(interruption))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_training_saves_and_stops_and_goes_on(tmp_path: Path, monkeypatch, number: signal.Signals, code: int):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    rows = [(f"in {i}", f"out {i}") for i in range(40)]
    settings = {
        "task": {"tokenizer": "bytes"},
        "model": {"model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "num_layers": 1},
        "train": {"max_steps": 12, "evaluate_every": 5, "device": "cpu", "batch_tokens": 100},
    }
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(rows, out=whole, settings=settings, show_progress=False)
    from regard.training.loop import Trainer

    real = Trainer._step

    def step(self, number_of_step):
        if number_of_step == 7:
            os.kill(os.getpid(), number)
        return real(self, number_of_step)

    monkeypatch.setattr(Trainer, "_step", step)
    with pytest.raises(StoppedError, match="stopped at step 7; the state is saved") as caught:
        train(rows, out=stopped, settings=settings, show_progress=False)
    assert caught.value.exit_code == code
    monkeypatch.setattr(Trainer, "_step", real)
    train(rows, out=stopped, resume=True, show_progress=False)
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
