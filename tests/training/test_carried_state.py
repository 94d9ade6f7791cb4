"""Training with a state that is carried from window to window."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.config import DataConfig
from regard.data.documents import open_texts
from regard.data.preparation import Prepared, prepare_text
from regard.errors import ConfigError
from regard.tasks import find_task
from regard.training.checkpoints import load_checkpoint, save_checkpoint
from regard.training.loop import Trainer
from regard.training.precision import choose_hardware
from regard.training.resolution import resolve
from regard.training.settings import RunSettings
from regard.training.update import Updater

TEXT = "".join(f"line {number} of {number % 7} and {number % 11}; " for number in range(90))
MODEL = {"family": "recurrent", "cell": "lstm", "num_layers": 2, "model_dim": 12, "hidden_dim": 17, "encoder_layers": 0,
         "bidirectional": False}  # fmt: skip
DROPPED = {"dropout": 0.2, "locked_dropout": True, "token_dropout": 0.1, "weight_dropout": 0.3}
TRAIN = {"max_steps": 20, "learning_rate": 0.003, "warmup_steps": 3, "batch_tokens": 120, "device": "cpu",
         "optimizer": "adamw", "label_smoothing": 0.0, "schedule": "cosine", "beta2": 0.98, "weight_decay": 0.01,
         "average": 0.9, "carry_state": True}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    config = DataConfig(tokenizer="characters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield prepare_text(open_texts(config, [(TEXT,)]), config)


@pytest.fixture
def make(text: Prepared) -> Callable[..., Trainer]:
    def make(*, model: dict[str, Any] | None = None, **settings: Any) -> Trainer:
        values = {"task": "language", "model": {**MODEL, "dropout": 0.0, **(model or {})}, "data": {"window": 17}}
        run = RunSettings.read({**values, "train": {**TRAIN, **settings}})
        torch.manual_seed(0)
        task = find_task("language")
        return Trainer(
            task.build_model(run.model, text.tokenizer), task, text, run, choose_hardware("cpu", "float32", 12)
        )

    return make


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("stop_at", [3, 11])
def test_a_run_stopped_between_windows_goes_on_bit_by_bit(make, watch, folder: Path, stop_at: int):
    settings = {"evaluate_every": 7, "window_jitter": 0.2, "model": DROPPED, "change_penalty": 0.5}
    whole, first, second = (make(**settings) for _ in range(3))
    assert stop_at % whole.batches.per_epoch, "this would be the end of an epoch"
    watch().fit(whole)

    def save(trainer: Trainer) -> None:
        save_checkpoint(folder, trainer.progress.step, trainer.tensors(), trainer.note())

    watch(stop_at=stop_at).fit(first, save=save)
    found = load_checkpoint(folder)
    assert found is not None
    assert sum(name.startswith("carried:") for name in found[0]) == 4
    second.restore(*found)
    watch().fit(second)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_the_state_is_that_of_the_last_batch_and_starts_anew_in_each_epoch(make):
    """With a rate of zero the model stays as it is, so that what it should carry can be read off it."""
    trainer = make(learning_rate=1e-30)
    model, number = trainer.model, trainer.batches.per_epoch
    for step in range(1, number + 2):
        trainer._step(step)
        since = number if step > number else 0
        tokens = torch.cat([trainer.batches.batch(each).tokens for each in range(since, step)], dim=1)
        _, state = model.running_states(tokens, None)
        torch.testing.assert_close(trainer.updater.carried[0], state.tensors())


def test_accumulated_batches_go_on_from_one_another(make):
    trainer = make(learning_rate=1e-30, accumulate=2)
    trainer._step(1)
    tokens = torch.cat([trainer.batches.batch(each).tokens for each in range(2)], dim=1)
    torch.testing.assert_close(trainer.updater.carried[0], trainer.model.running_states(tokens, None)[1].tensors())


def test_batches_read_in_parts_carry_a_state_for_each_part(make):
    whole, parted = (make(epsilon=1e-3) for _ in range(2))
    parted.updater.num_pieces = 2
    for step in range(1, 4):
        torch.testing.assert_close(whole._step(step)[0], parted._step(step)[0])
    for a, b in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert not any(name.startswith("carried:") for name in parted.tensors())


def test_where_memory_runs_out_states_start_anew(make):
    trainer = make()
    trainer._step(1)

    class Narrow:
        def __init__(self, task: Any) -> None:
            self.task = task

        def __getattr__(self, name: str) -> Any:
            return getattr(self.task, name)

        def running_loss(self, model: Any, batch: Any, carried: Any, *more: Any) -> Any:
            if batch.tokens.size(0) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            assert carried is None
            return self.task.running_loss(model, batch, carried, *more)

    narrow: Any = Narrow(trainer.task)
    updater = Updater(trainer.model, narrow, trainer.optimizer, trainer.average, trainer.config, trainer.hardware)
    updater.carried = trainer.updater.carried
    updater.update([trainer.batches.batch(1)], rate=1e-3, decay=0.5)
    assert (updater.num_pieces, sorted(updater.carried)) == (2, [0, 1])


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_it_learns_with_everything_dropped(make, watch):
    trainer, seen = make(max_steps=120, learning_rate=0.02, evaluate_every=40, model=DROPPED), watch()
    seen.fit(trainer)
    losses = [line["valid_loss"] for line in seen.lines if "valid_loss" in line]
    assert losses[-1] < losses[0] < 3.0


TRANSFORMER = {"family": "transformer", "encoder_layers": 0, "num_layers": 1, "model_dim": 12, "num_heads": 2}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"model": TRANSFORMER, "train": {"carry_state": True}},
            "train.carry_state is for recurrent language models, ",
        ),
        ({"model": MODEL, "train": {"compile": "always"}}, "the kernels of recurrent networks cannot be compiled: "),
        ({"task": "translation", "train": {"change_penalty": 1.0}}, "are for language models, got task=translation"),
    ],
)
def test_what_makes_no_sense_is_told(text: Prepared, values: dict, words: str):
    settings = RunSettings.read({"task": "language", **values})
    with pytest.raises(ConfigError, match=words):
        resolve(settings, text)


def test_cuts_are_moved_only_where_the_state_is_carried():
    with pytest.raises(ConfigError, match=r"set train\.carry_state to true, got self\.window_jitter=0\.1"):
        RunSettings.read({"train": {"window_jitter": 0.1}})
    with pytest.raises(ConfigError, match=r"train\.window_jitter: input should be less than 0\.5, got 0\.5"):
        RunSettings.read({"train": {"window_jitter": 0.5, "carry_state": True}})
    with pytest.raises(ConfigError, match=r"train\.activation_penalty: input should be greater than or equal to 0"):
        RunSettings.read({"train": {"activation_penalty": -1.0}})


def test_a_recurrent_model_is_not_compiled_unless_asked(text: Prepared):
    train = {"minutes": 30.0, "device": "cpu"}
    settings = RunSettings.read({"task": "language", "model": MODEL, "train": train})
    assert resolve(settings, text).train.compile == "never"
