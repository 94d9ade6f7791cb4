"""Forecasts of ETTh1 and ETTh2, and the speed of a PatchTST.

Each row of data is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days.
The score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals.

Three rows are of speed: `training`, windows of a PatchTST (3 layers, 128 wide, 512 steps in, 96 out) that are trained
on in a second; `forecasting`, the time to forecast 10,000 series of 512 steps by the same model on a CPU; and the same
with a model of the size that `regard train` chooses for the data on a CPU.

neuralforecast's PatchTST is measured in the same run where it is installed, on the same rows and split.
"""

import json
import lzma
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import regard
from peers import neuralforecast_patchtst as peer

DATA = Path(__file__).parents[3] / "shared" / "data" / "ett"
MONTH = 30 * 24
SPLIT = [12 * MONTH, 4 * MONTH, 4 * MONTH]
GOALS = {
    "etth1-96": 0.368, "etth1-192": 0.400, "etth1-336": 0.420, "etth1-720": 0.440,
    "etth2-96": 0.272, "etth2-192": 0.335, "etth2-336": 0.330, "etth2-720": 0.378,
}  # fmt: skip
"""The mean squared errors to reach."""
SPEED_GOALS = {"training": 2.0, "forecasting": 3.0, "forecasting-by-defaults": 3.0}
"""How many times as fast as neuralforecast."""
SPEED = tuple(SPEED_GOALS)
ROWS = (*GOALS, *SPEED)
TINY_ROWS = ("etth1-96", "etth2-96", *SPEED)
SHAPE = {"horizon": 96, "input_length": 512}


def add_options(parser: Any) -> None:
    parser.add_argument("--peer-steps", type=int, default=1000, help="training steps of neuralforecast; 0 for none")


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    """Train on a row's data and open its test part, or measure a speed."""
    if row in SPEED:
        return measure_speed(row, folder, device=options.device, is_tiny=options.tiny)
    return measure_tiny(row, folder) if options.tiny else measure_errors(row, folder, options)


def measure_errors(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    """Train on a row's data, and open its test part."""
    name, horizon = row.split("-")
    path = DATA / f"{name.replace('etth', 'ETTh')}.csv.xz"
    if not path.exists():
        return None
    settings = {"task": {"horizon": int(horizon), "split_rows": SPLIT}}
    run = regard.train(
        path, out=folder / row, minutes=options.minutes, seed=options.seed, device=options.device, settings=settings,
        show_progress=False,
    )  # fmt: skip
    error = None
    if options.peer_steps and peer.is_installed():
        lines = lzma.open(path, "rt").read().splitlines()[1:]
        values = np.array([line.split(",")[1:] for line in lines], np.float64)
        error = peer.squared_error(
            values, horizon=int(horizon), split=SPLIT, steps=options.peer_steps, seed=options.seed,
            device=options.device,
        )  # fmt: skip
    return {**describe(row, run), "neuralforecast": error}


def measure_speed(row: str, folder: Path, *, device: str, is_tiny: bool) -> dict[str, Any]:
    """The speed of a PatchTST, and of neuralforecast's where it is installed."""
    shape = {"horizon": 4, "input_length": 32} if is_tiny else SHAPE
    windows, steps, num_series = (8, 4, 5) if is_tiny else (1024, 40 if device == "cuda" else 8, 10_000)
    values = np.random.default_rng(0).normal(size=(shape["input_length"] * 6, 8)).cumsum(axis=0)
    if row == "training":
        ours = our_training_rate(values, folder / row, shape, windows=windows, steps=steps, device=device)
        theirs = None
        if peer.is_installed():
            theirs = peer.training_rate(values, windows=windows, steps=steps, device=device, **shape)
        unit, speedup = "windows_per_s", None if theirs is None else ours / theirs
    else:
        series = np.random.default_rng(1).normal(size=(num_series, shape["input_length"])).cumsum(axis=1)
        preset = "patchtst-small" if row == "forecasting" else "patchtst"
        ours = our_forecasting_seconds(values, series, folder / row, shape, preset)
        theirs = peer.forecasting_seconds(series, horizon=shape["horizon"]) if peer.is_installed() else None
        unit, speedup = "seconds", None if theirs is None else theirs / ours
    return {
        "row": row, unit: ours, "neuralforecast": theirs, "speedup": speedup, "goal": SPEED_GOALS[row],
        "num_series": num_series,
    }  # fmt: skip


def train_on(
    values: Any, out: Path, shape: dict[str, int], *, preset: str = "patchtst-small", **more: Any
) -> regard.Run:
    """A PatchTST, trained on the columns of an array as the columns of a table."""
    names = [f"column {number}" for number in range(values.shape[1])]
    hours = np.datetime64("2020-01-01T00") + np.arange(len(values))
    rows = [
        {"ds": str(hour), **dict(zip(names, row, strict=True))}
        for hour, row in zip(hours, values.tolist(), strict=True)
    ]
    settings = {"preset": preset, "task": {**shape, "calendar": False}, **more.pop("settings", {})}
    return regard.train(rows, out=out, settings=settings, show_progress=False, **more)


def our_training_rate(
    values: Any, out: Path, shape: dict[str, int], *, windows: int, steps: int, device: str
) -> float:  # fmt: skip
    """Windows of one column that are trained on in a second: the median over the lines of the log after the first."""
    settings = {"train": {"batch_tokens": windows * shape["input_length"]}}
    run = train_on(values, out, shape, steps=max(steps, 30), device=device, settings=settings)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return statistics.median(rates[1:] or rates) / shape["input_length"]


def our_forecasting_seconds(values: Any, series: Any, out: Path, shape: dict[str, int], preset: str) -> float:
    """The time to forecast all series, each a row, from columns in memory."""
    path = train_on(values[:, :1], out, shape, steps=1, device="cpu", preset=preset).path
    run = regard.load(path, device="cpu")
    length = series.shape[1]
    table = {
        "unique_id": np.repeat([f"series {number}" for number in range(len(series))], length),
        "ds": np.tile(np.datetime64("2020-01-01T00") + np.arange(length), len(series)),
        "column 0": series.reshape(-1),
    }
    began = time.perf_counter()
    run.forecast(table)
    return time.perf_counter() - began


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


def row_text(found: dict[str, Any]) -> str:
    """A row as it is printed."""
    theirs = found.get("neuralforecast")
    if found["row"] in SPEED:
        what = f"{found['windows_per_s']:,.0f} windows/s" if "windows_per_s" in found else f"{found['seconds']:.1f} s"
        ratio = "neuralforecast is not installed" if theirs is None else (
            f"neuralforecast {theirs:,.1f}: {found['speedup']:.2f} times as fast"
        )  # fmt: skip
        return f"{found['row']:11} {what}, {ratio}, goal {found['goal']:g}"
    low, high = found["interval"] or (float("nan"),) * 2
    beside = "" if theirs is None else f", neuralforecast {theirs:.4f}"
    return (
        f"{found['row']:11} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
        f"coverage {found['coverage']:.3f}{beside}"
    )
