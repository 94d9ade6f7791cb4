"""Tasks beyond text, by plain defaults: forecasts of ETTh1 and ETTh2, and control from episodes of medium quality.

    python benchmarks/beyond_text.py [--minutes 5] [--row etth1-96] [--seed 0] [--device cuda] [--json]

Each row is `regard.train(FILE, minutes=N)` with the horizon and the usual split, 12, 4 and 4 months of 30 days. The
score is the mean squared error of standardized values from every origin of the test part; coverage is that of 90 %
intervals. A row whose data is missing is not measured.

The rows `cartpole` and `acrobot` record episodes of medium quality (`common/episodes.py`), train a model with the
budget, and one without returns (behavior cloning) with the same. The return that it is told to reach and the
temperature are chosen by 20 episodes; the score is the mean return of 100 others.
"""

import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import regard
from common.harness import make_parser, parse, print_results
from regard.evaluation.intervals import mean_interval

DATA = Path(__file__).parents[2] / "shared" / "data" / "ett"
MONTH = 30 * 24
SPLIT = [12 * MONTH, 4 * MONTH, 4 * MONTH]
GOALS = {
    "etth1-96": 0.368, "etth1-192": 0.400, "etth1-336": 0.420, "etth1-720": 0.440,
    "etth2-96": 0.272, "etth2-192": 0.335, "etth2-336": 0.330, "etth2-720": 0.378,
}  # fmt: skip
"""The mean squared errors to reach."""
TINY_ROWS = ("etth1-96", "etth2-96", "cartpole")
CONTROL = {"cartpole": (500.0, 1_000.0), "acrobot": (None,)}
"""Returns that the model is told to reach, of which one is chosen; None for the best one of the episodes."""
TEMPERATURES = (0.0, 0.5, 1.0)
CARTPOLE_GOAL = 495.0
"""Of 500. That of Acrobot-v1 is the mean return of its episodes, from which the difference must be real."""
ROLLOUT_SEED = 1_000


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


def measure_control(
    row: str, folder: Path, seed: int, device: str, *, num_rollouts: int = 100, **budget: Any
) -> dict[str, Any]:
    """Train on episodes of medium quality with and without returns, and let both act."""
    from common.episodes import MEDIUM, record_medium  # imported here: gymnasium is an extra

    path, medium = folder / f"{row}.jsonl", MEDIUM[row]
    _, low, high = mean_interval(recorded := record_medium(path, medium, seed=seed))
    found: dict[str, Any] = {"row": row, "recorded": float(np.mean(recorded)), "recorded_interval": (low, high)}
    for name, targets, task in (("mean_return", CONTROL[row], {}), ("cloned", (None,), {"use_returns": False})):
        run = regard.train(
            path, out=folder / f"{row}-{name}", seed=seed, device=device, settings={"task": task}, show_progress=False,
            **budget,
        )  # fmt: skip

        def act(target: float | None, temperature: float, episodes: int, seed: int, run: regard.Run = run) -> Any:
            return run.rollout(
                medium.env, episodes=episodes, target_return=target, temperature=temperature, seed=seed
            )  # fmt: skip

        choices = list(product(targets, TEMPERATURES))
        trials = [act(*choice, max(2, num_rollouts // 5), ROLLOUT_SEED).mean_return for choice in choices]
        chosen = choices[int(np.argmax(trials))]
        acted = act(*chosen, num_rollouts, ROLLOUT_SEED + 1)
        found |= {name: acted.mean_return, "interval" if not task else "cloned_interval": acted.interval}
        found[f"{name}_chosen"] = {"target_return": chosen[0], "temperature": chosen[1]}
    goal = CARTPOLE_GOAL if row == "cartpole" else found["recorded"]
    return {**found, "goal": goal, "is_reached": found["mean_return"] >= goal and found["interval"][0] > high}


def print_control(found: dict[str, Any]) -> None:
    def shown(name: str, interval: str) -> str:
        return "{:.1f} [{:.1f}, {:.1f}]".format(found[name], *found[interval])

    print(
        f"{found['row']:10} return {shown('mean_return', 'interval')}, goal {found['goal']:.1f}, "
        f"behavior cloning {shown('cloned', 'cloned_interval')}, episodes {shown('recorded', 'recorded_interval')}",
        flush=True,
    )


def measure_all(options: Any) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for row in options.row or (TINY_ROWS if options.tiny else (*GOALS, *CONTROL)):
            if row in CONTROL:
                budget = {"steps": 2, "num_rollouts": 2} if options.tiny else {"minutes": options.minutes}
                found = measure_control(row, Path(folder), options.seed, options.device, **budget)
                if not options.json:
                    print_control(found)
                yield found
                continue
            if options.tiny:
                found = measure_tiny(row, Path(folder))
            else:
                found = measure(row, Path(folder), options.minutes, options.seed, options.device)
            if found is None:
                continue
            if not options.json:
                low, high = found["interval"] or (float("nan"),) * 2
                print(
                    f"{row:10} MSE {found['mse']:.4f} [{low:.4f}, {high:.4f}], goal {found['goal']:.3f}, "
                    f"coverage {found['coverage']:.3f}",
                    flush=True,
                )
            yield found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--row", action="append", choices=[*GOALS, *CONTROL], help="only this row; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, arguments)
    print_results(options, list(measure_all(options)))


if __name__ == "__main__":
    main()
