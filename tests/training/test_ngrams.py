"""Training a network that is mixed with n-grams: as without them, evaluated as a mixture, resumed bit for bit."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import Tiny, tiny

from regard.tasks import make_task
from regard.training.checkpoints import load_checkpoint, save_checkpoint
from regard.training.loop import Trainer
from regard.training.precision import choose_hardware

WORDS = ["the", "cat", "and", "dog", "see", "hear", "a", "red", "big", "mat", "on", "under"]
TEXT = " ".join(random.Random(0).choices(WORDS, weights=range(1, len(WORDS) + 1), k=900))
TRAIN = {"max_steps": 12, "learning_rate": 0.01, "warmup_steps": 2, "batch_tokens": 120, "evaluate_every": 4}


@pytest.fixture(scope="module")
def text(cache: None) -> Tiny:
    return tiny("language-modeling", [(TEXT,)], preset="gpt-tiny", tokenizer="words", window=17, train=TRAIN)


@pytest.fixture
def make(text: Tiny) -> Callable[[int], Trainer]:
    def make(ngrams: int) -> Trainer:
        settings = text.settings.changed(task={**text.settings.task.model_dump(), "ngrams": ngrams})
        torch.manual_seed(0)
        task = make_task(settings.task, text.data.codecs)
        built = task.build(settings.model, settings.head)
        return Trainer(built, task, text.data, settings, choose_hardware("cpu", "float32", 12))

    return make


@pytest.mark.usefixtures("single_precision")
def test_the_network_is_trained_as_without_ngrams_and_the_mixture_is_better(make, recorder):
    alone, mixed = make(0), make(3)
    lines = {name: recorder() for name in ("alone", "mixed")}
    lines["alone"].fit(alone)
    lines["mixed"].fit(mixed)
    own: Any = mixed.model
    for name, parameter in alone.model.named_parameters():
        assert torch.equal(own.body.get_parameter(name), parameter), name
    losses = {name: {step: loss for step, _, loss in each.losses if loss is not None} for name, each in lines.items()}
    assert list(losses["alone"]) == [4, 8, 12]
    assert list(losses["mixed"]) == [0, 4, 8, 12], "the n-grams are the first candidate"
    assert all(losses["mixed"][step] < losses["alone"][step] for step in (4, 8, 12))


@pytest.mark.usefixtures("single_precision")
def test_a_stopped_run_resumes_with_the_same_ngrams_bit_for_bit(make, recorder, folder: Path):
    whole, first, second = (make(3) for _ in range(3))
    recorder().fit(whole)

    def save(trainer: Trainer) -> None:
        save_checkpoint(folder, trainer.progress.step, trainer.tensors(), trainer.progress_note())

    recorder(stop_at=6).fit(first, save=save)
    found = load_checkpoint(folder)
    assert found is not None
    second.restore(*found)
    recorder().fit(second)
    assert whole.tensors().keys() == second.tensors().keys()
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_fewer_tokens_are_counted_where_there_is_little_time(make, text: Tiny):
    trainer = make(2)
    sizes = []
    for seconds in (None, 1e-9):
        assert trainer.task.solve(trainer.model, text.data, seconds=seconds)
        sizes.append(len(trainer.model.get_buffer("tables.keys_2")))
    assert sizes[1] <= 2 < sizes[0]
    assert not make(0).task.solve(make(0).model, text.data)
