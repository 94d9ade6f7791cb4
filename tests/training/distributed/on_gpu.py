"""Sharding in a world of one on a GPU: its weights are those of a whole model, which continues its checkpoints.

    PYTHONPATH=src python -m tests.training.distributed.on_gpu [--device cpu]

It needs no pytest. In float32, whose sums a GPU adds in any order; SGD, since Adam divides small differences by
themselves. The exit code is 1 where a difference is too large.
"""

import argparse
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import regard
from regard.training.checkpoints import checkpoint_paths, read_state

SETTINGS: dict[str, Any] = {
    "task": {"tokenizer": "bytes"},
    "data": {"num_rows": 400},
    "model": {"model_dim": 64, "num_heads": 4, "feedforward_dim": 128, "num_layers": 2, "dropout": 0.0},
    "head": {"dropout": 0.0},
}
TRAIN = {"precision": "float32", "optimizer": "sgd", "batch_tokens": 2_000, "patience": 0, "evaluate_every": 20,
         "baseline": False, "cuda_graphs": False, "learning_rate": 0.1, "schedule": "constant",
         "warmup_steps": 3}  # fmt: skip
MOST = 1e-4
"""Of a relative difference after 20 steps."""


def train(out: Path, device: str, steps: int, *, resume: bool = False, **changes: Any) -> None:
    """Train, or continue, a small model."""
    settings = {"train": changes} if resume else {**SETTINGS, "train": {**TRAIN, **changes}}
    regard.train(None if resume else "dates", task=None if resume else "seq2seq", steps=steps, resume=resume,
                 model=None if resume else "transformer-tiny", out=out, device=device, settings=settings,
                 show_progress=False)  # fmt: skip


def last(out: Path) -> dict[str, torch.Tensor]:
    """The state of the last checkpoint."""
    return read_state(checkpoint_paths(out / "checkpoints")[-1])[0]


def difference(one: Path, other: Path) -> float:
    """The largest relative difference of two last states."""
    expected, found = last(one), last(other)
    assert expected.keys() == found.keys()
    return max(
        float((found[name].double() - tensor.double()).abs().max() / tensor.double().abs().max().clamp(min=1e-3))
        for name, tensor in expected.items()
        if tensor.numel()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    logging.getLogger("regard").setLevel(logging.ERROR)
    found: dict[str, float] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        train(folder / "whole", device, 20)
        train(folder / "sharded", device, 20, sharding="full")
        found["sharded beside whole"] = difference(folder / "whole", folder / "sharded")
        train(folder / "resumed", device, 10, sharding="full")
        train(folder / "resumed", device, 20, resume=True, sharding="none")
        found["sharded for 10 steps, then whole"] = difference(folder / "whole", folder / "resumed")
        for optimizer in ("muon", "adamw"):  # that they run; their steps enlarge rounding
            changes = {"optimizer": optimizer, "learning_rate": 0.01, "activation_checkpointing": True}
            train(folder / optimizer, device, 6, sharding="full", precision="bfloat16", **changes)
        train(folder / "adamw", device, 8, resume=True, sharding="full")
        (folder / "dates.tsv").write_text("".join(f"{day} May 2020\t2020-05-{day:02}\n" for day in range(1, 29)) * 4)
        regard.finetune(folder / "whole", folder / "dates.tsv", out=folder / "lora", method="lora", steps=6,
                        settings={"train": {"sharding": "full", "baseline": False, "device": device}},
                        show_progress=False)  # fmt: skip
    for what, value in found.items():
        print(f"{what}: largest relative difference {value:.1e}, allowed {MOST:.0e}")
    sys.exit(any(not value <= MOST for value in found.values()))


if __name__ == "__main__":
    main()
