"""What the processes of a test compute: trainings in float64, each described by a name, with results in a file."""

import json
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.contracts.test_tasks import CASES
from tests.tiny import Tiny, tiny

from regard.data.permutation import mix
from regard.errors import RegardError
from regard.training.checkpoints import load_checkpoint, save_checkpoint, write_tensors
from regard.training.distributed import joined, processes
from regard.training.loop import Trainer
from regard.training.precision import choose_hardware

STEPS = {
    "max_steps": 6,
    "evaluate_every": 3,
    "patience": 0,
    "select_by": "score",
    "clip_norm": 0.1,
    "ema_decay": 0.9,
    "epsilon": 1e-3,
}
"""With a small epsilon, Adam would divide gradients that are 0 but for rounding by their own size."""
ROWS = [(f"{'abc' * (number % 13)}{number}", f"{number}{'x' * (number % 7)}") for number in range(60)]
PLAIN = {"learning_rate": 0.01, "warmup_steps": 1, "batch_tokens": 200, "label_smoothing": 0.0, "weight_decay": 0.1}


def pairs(model: dict[str, Any] | None = None, **train: Any) -> Tiny:
    data = {"splits": [0.9, 0.05, 0.05]}
    return tiny("seq2seq", ROWS, tokenizer="bytes", model=model or {}, data=data, train={**STEPS, **PLAIN, **train})


def make_trainer(made: Tiny, **more: Any) -> Trainer:
    settings = made.settings.changed(train={**made.settings.train.model_dump(), **more})
    torch.manual_seed(0)
    model = made.task.build(settings.model, settings.head)
    return Trainer(model, made.task, made.data, settings, choose_hardware("cpu", settings.train.precision, 12))


TRAININGS: dict[str, dict[str, Any]] = {
    "adamw": {"accumulate": 2},
    "muon": {"optimizer": "muon"},
    "fewer rows than processes": {"batch_tokens": 1},
    "split rows": {},
    "sharded adamw": {"accumulate": 2, "sharding": "full"},
    "sharded float32": {"sharding": "full", "optimizer": "muon"},
    "sharded bfloat16": {"sharding": "full", "precision": "bfloat16"},
    "sharded muon": {"optimizer": "muon", "sharding": "full", "activation_checkpointing": True},
    "divided adamw": {"accumulate": 2, "tensor_parallel": 2},
    "divided muon": {"optimizer": "muon", "tensor_parallel": 2, "activation_checkpointing": True},
    "divided dropout": {"tensor_parallel": 2, "max_steps": 4},
    "divided bfloat16": {"tensor_parallel": 2, "precision": "bfloat16"},
    "divided and sharded adamw": {"tensor_parallel": 2, "sharding": "full", "accumulate": 2},
    "divided and sharded muon": {"tensor_parallel": 2, "sharding": "full", "optimizer": "muon"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "divided dropout": {"num_heads": 2, "feedforward_dim": 22, "dropout": 0.2},
    "divided": {"num_heads": 2, "feedforward_dim": 22},
    "divided muon": {"num_heads": 4, "num_key_value_heads": 2, "model_dim": 16, "feedforward_dim": 22,
                     "query_key_norm": True, "activation": "swiglu", "positions": "relative", "bias": False},
    "divided and sharded muon": {"num_heads": 4, "feedforward_dim": 22, "query_key_norm": True, "positions": "shaw",
                                 "block": "parallel"},
}  # fmt: skip
"""What the shape of the tiny model is changed to, by the name of a training or how it begins."""


def trainer_of(name: str, changes: dict[str, Any]) -> Trainer:
    shape = SHAPES.get(name) or next((each for begin, each in SHAPES.items() if name.startswith(begin)), None)
    trainer = make_trainer(pairs(shape, **{**TRAININGS[name], **changes}))
    if name == "split rows":  # as if the second process had run out of memory
        trainer.updater.num_pieces = 1 + processes().rank
    return trainer


def contract_case(name: str, folder: Path) -> Trainer:
    """The trainer of a registered task; where its predictions cannot be scored, weights are selected by loss."""
    case = CASES[name]
    place = folder / name / str(processes().rank)
    place.mkdir(parents=True, exist_ok=True)
    data = case.rows(place)
    made = tiny(case.task, data, preset=case.preset, **case.settings)
    changes = {
        "max_steps": 3,
        "evaluate_every": 2,
        "patience": 0,
        "batch_tokens": 400,
        "ema_decay": 0.9,
        "epsilon": 1e-3,
        "rdrop": 0.0,
    }
    trainer = make_trainer(made, **changes, select_by="score" if made.task.selects_by_score("cpu") else "loss")
    for module in trainer.model.modules():  # the numbers of a process are its own
        if type(module).__module__ == "regard.nn.dropout":
            vars(module)["training"] = False
            module.train = lambda mode=True, module=module: module
    return trainer


def train_all(
    names: list[str], folder: str, *, joins: bool = True, changes: Any = None, tensor_parallel: int = 1
) -> dict[str, Any]:
    """Train each; writes the states of the trainings, and returns their figures, or why they cannot be trained."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    group = joined("cpu", is_group_of_one=joins, tensor_parallel=tensor_parallel) if joins else nullcontext()
    with group, TemporaryDirectory() as made:
        for name in names:
            torch.set_default_dtype(torch.float32 if name.endswith(("float32", "bfloat16")) else torch.float64)
            try:
                trainer = trainer_of(name, changes or {}) if name in TRAININGS else contract_case(name, Path(made))
            except RegardError as error:
                found[name] = str(error)
                continue
            found[name] = fit(trainer)
            tensors = trainer.tensors()
            if trainer.processes.is_first:
                write_tensors(Path(folder) / f"{name}.safetensors", tensors, {})
    return json.loads(json.dumps(found))


def fit(trainer: Trainer) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    trainer.fit(lambda line: lines.append(dict(line)))
    timed = ("seconds", "tokens_per_second")
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def rows_of_each_step(folder: str, size: int, stop_at: int) -> list[list[list[list[int]]]]:
    """For each step the rows that each process computes, of which a checkpoint is written at `stop_at`, or read."""
    torch.set_default_dtype(torch.float64)
    with joined("cpu") if size > 1 else nullcontext():
        trainer = make_trainer(pairs())
        if (state := load_checkpoint(Path(folder))) is not None:
            trainer.restore(*state)
        seen: list[list[list[list[int]]]] = []
        own: list[list[int]] = []
        loss = trainer.updater._loss

        def remember(model: Any, batch: Any, *rest: Any) -> Any:
            own.extend(batch.source.tolist())
            return loss(model, batch, *rest)

        trainer.updater._loss = remember
        while trainer.progress.step < stop_at:
            own.clear()
            trainer.advance()
            seen.append(trainer.processes.gather(list(own)))
        tensors, note = trainer.tensors(), trainer.progress_note()
        if trainer.processes.is_first:
            save_checkpoint(Path(folder), trainer.progress.step, tensors, note)
        return seen


def dropout_of_each_process(size: int) -> list[float]:
    """The first random number of each process in a step."""
    with joined("cpu"):
        trainer = make_trainer(pairs())
        found: list[float] = []
        trainer.updater.update = lambda *args, **options: found.append(float(torch.rand(()))) or torch.zeros(())  # pyright: ignore
        trainer.advance()
        assert size == trainer.processes.size
        assert mix(0, 1) != mix(0, 1, 1)
        return trainer.processes.gather(found[0])


def continue_training(
    name: str, folder: str, stop_at: int, *, joins: bool = True, changes: Any = None, tensor_parallel: int = 1
) -> int:
    """Continue from the checkpoint in a folder, if there is one, and write one there; returns the step it began at."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with joined("cpu", tensor_parallel=tensor_parallel) if joins else nullcontext():
        trainer = trainer_of(name, {**(changes or {}), "tensor_parallel": tensor_parallel})
        group = trainer.processes
        if (state := load_checkpoint(Path(folder), cut=trainer.cut, group=group)) is not None:
            trainer.restore(*state)
        start = trainer.progress.step
        while trainer.progress.step < stop_at:
            trainer.advance()
        parts = trainer.shard("0123abcd")
        tensors, shard = (trainer.tensors(), None) if parts is None else parts
        if group.is_first or shard is not None:
            save_checkpoint(Path(folder), trainer.progress.step, tensors, trainer.progress_note(), keep=9, shard=shard)
        group.wait()
        return start
