"""Training with a recurrent state that is carried from window to window."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import Tiny, tiny

from regard.errors import ConfigError
from regard.tasks import make_task
from regard.training.checkpoints import load_checkpoint, save_checkpoint
from regard.training.loop import Trainer
from regard.training.precision import choose_hardware
from regard.training.update import Updater

TEXT = "".join(f"line {number} of {number % 7} and {number % 11}; " for number in range(90))
MODEL = {"cell": "lstm", "num_layers": 2, "model_dim": 12, "hidden_dim": 17, "bidirectional": False, "dropout": 0.0}
DROPOUT = {"dropout": 0.2, "locked_dropout": True, "token_dropout": 0.1, "weight_dropout": 0.3}
TRAIN = {"max_steps": 20, "learning_rate": 0.003, "warmup_steps": 3, "batch_tokens": 120, "ema_decay": 0.9}
TASK = {"tokenizer": "characters", "window": 17}


def text_task(preset: str = "lstm-tiny", model: dict[str, Any] = MODEL, **sections: Any) -> Tiny:
    return tiny("language-modeling", [(TEXT,)], preset=preset, model=model, **{**TASK, **sections})


@pytest.fixture(scope="module")
def text(cache: None) -> Tiny:
    return text_task(train=TRAIN, carry_state=True)


@pytest.fixture
def make(text: Tiny) -> Callable[..., Trainer]:
    def make(*, model: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **train: Any) -> Trainer:
        before = text.settings
        settings = before.changed(
            model={**before.model.model_dump(), **(model or {})},
            task={**before.task.model_dump(), **(task or {})},
            train={**before.train.model_dump(), **train},
        )
        torch.manual_seed(0)
        made = make_task(settings.task, text.data.codecs)
        built = made.build(settings.model, settings.head)
        return Trainer(built, made, text.data, settings, choose_hardware("cpu", "float32", 12))

    return make


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("stop_at", [3, 11])
def test_a_run_stopped_between_windows_resumes_bit_for_bit(make, recorder, folder: Path, stop_at: int):
    settings = {"evaluate_every": 7, "model": DROPOUT, "task": {"window_jitter": 0.2, "change_penalty": 0.5}}
    whole, first, second = (make(**settings) for _ in range(3))
    assert stop_at % whole.batches.per_epoch, "this would be the end of an epoch"
    recorder().fit(whole)

    def save(trainer: Trainer) -> None:
        save_checkpoint(folder, trainer.progress.step, trainer.tensors(), trainer.progress_note())

    recorder(stop_at=stop_at).fit(first, save=save)
    found = load_checkpoint(folder)
    assert found is not None
    assert sum(name.startswith("state:") for name in found[0]) == 4
    second.restore(*found)
    recorder().fit(second)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, second.tensors()[name]), name


def test_the_state_is_that_of_the_last_batch_and_is_reset_at_each_epoch(make):
    """With a learning rate of zero the model does not change, so the state can be computed from the text."""
    trainer = make(learning_rate=1e-30)
    model, number = trainer.model, trainer.batches.per_epoch
    for step in range(1, number + 2):
        trainer._step(step)
        since = number if step > number else 0
        tokens = torch.cat([trainer.batches.batch(each).tokens for each in range(since, step)], dim=1)
        _, state = model.hidden_states_from(tokens, None)
        torch.testing.assert_close(trainer.updater.carried[0], state.tensors())


def test_accumulated_batches_continue_one_another(make):
    trainer = make(learning_rate=1e-30, accumulate=2)
    trainer._step(1)
    tokens = torch.cat([trainer.batches.batch(each).tokens for each in range(2)], dim=1)
    torch.testing.assert_close(trainer.updater.carried[0], trainer.model.hidden_states_from(tokens, None)[1].tensors())


def test_each_part_of_a_split_batch_has_a_state(make):
    whole, split = (make(epsilon=1e-3) for _ in range(2))
    split.updater.num_pieces = 2
    for step in range(1, 4):
        torch.testing.assert_close(whole._step(step)[0], split._step(step)[0])
    for a, b in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert not any(name.startswith("state:") for name in split.tensors())


def test_states_are_reset_where_memory_runs_out(make):
    trainer = make()
    trainer._step(1)

    class Narrow:
        def __init__(self, task: Any) -> None:
            self.task = task

        def __getattr__(self, name: str) -> Any:
            return getattr(self.task, name)

        def stateful_loss(self, model: Any, batch: Any, state: Any, *more: Any) -> Any:
            if batch.tokens.size(0) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            assert state is None
            return self.task.stateful_loss(model, batch, state, *more)

    narrow: Any = Narrow(trainer.task)
    updater = Updater(trainer.model, narrow, trainer.optimizer, trainer.ema, trainer.settings, trainer.hardware)
    updater.carried = trainer.updater.carried
    updater.update([trainer.batches.batch(1)], learning_rate=1e-3, decay=0.5)
    assert (updater.num_pieces, sorted(updater.carried)) == (2, [0, 1])


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
def test_the_loss_decreases_with_every_kind_of_dropout(make, recorder):
    trainer, found = make(max_steps=80, learning_rate=0.02, evaluate_every=40, model=DROPOUT), recorder()
    found.fit(trainer)
    losses = [line["valid_loss"] for line in found.lines if "valid_loss" in line]
    assert losses[-1] < losses[0] < 3.0


@pytest.mark.usefixtures("cache")
def test_settings_that_cannot_be_combined_are_errors():
    gpt = {"num_layers": 1, "model_dim": 12, "num_heads": 2}
    with pytest.raises(ConfigError, match=r"task\.carry_state .*transformer"):
        text_task("gpt-tiny", gpt, carry_state=True)
    with pytest.raises(ConfigError, match=r"recurrent .*train\.compile"):
        text_task(train={"compile": "always"})
    with pytest.raises(ConfigError, match=r"task\.window_jitter .*task\.carry_state.*0\.1"):
        text_task(window_jitter=0.1)
    with pytest.raises(ConfigError, match=r"task\.window_jitter.*0\.5"):
        text_task(window_jitter=0.5, carry_state=True)
    with pytest.raises(ConfigError, match=r"task\.activation_penalty.*-1\.0"):
        text_task(activation_penalty=-1.0)
    with pytest.raises(ConfigError, match=r"task\.change_penalty"):
        tiny("seq2seq", [("a", "b")] * 30, change_penalty=1.0)


def test_a_recurrent_model_is_not_compiled_by_default(text: Tiny):
    assert text_task(train={"max_steps": None, "minutes": 30.0}).settings.train.compile == "never"
