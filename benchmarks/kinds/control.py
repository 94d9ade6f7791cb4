"""Control: `cartpole` and `acrobot`.

Episodes of medium quality are recorded (`common/episodes.py`); a model is trained on them with the budget, and one
without returns (behavior cloning) with the same. The return that it is told to reach and the temperature are chosen by
20 episodes; the score is the mean return of 100 others.
"""

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard.evaluation.intervals import mean_interval

TARGETS = {"cartpole": (500.0, 1_000.0), "acrobot": (None,)}
"""Returns that the model is told to reach, of which one is chosen; None for the best one of the episodes."""
ROWS = tuple(TARGETS)
TINY_ROWS = ("cartpole",) if find_spec("gymnasium") else ()
TEMPERATURES = (0.0, 0.5, 1.0)
CARTPOLE_GOAL = 495.0
"""Of 500. That of Acrobot-v1 is the mean return of its episodes, from which the difference must be real."""
ROLLOUT_SEED = 1_000


def measure(row: str, folder: Path, options: Any) -> dict[str, Any] | None:
    if find_spec("gymnasium") is None:
        return None
    budget = {"steps": 2, "num_rollouts": 2} if options.tiny else {"minutes": options.minutes}
    return measure_control(row, folder, options.seed, options.device, **budget)


def measure_control(
    row: str, folder: Path, seed: int, device: str, *, num_rollouts: int = 100, **budget: Any
) -> dict[str, Any]:
    """Train on episodes of medium quality with and without returns, and let both act."""
    from common.episodes import MEDIUM, record_medium  # imported here: gymnasium is an extra

    path, medium = folder / f"{row}.jsonl", MEDIUM[row]
    _, low, high = mean_interval(recorded := record_medium(path, medium, seed=seed))
    found: dict[str, Any] = {"row": row, "recorded": float(np.mean(recorded)), "recorded_interval": (low, high)}
    for name, targets, task in (("mean_return", TARGETS[row], {}), ("cloned", (None,), {"use_returns": False})):
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


def row_text(found: dict[str, Any]) -> str:
    def shown(name: str, interval: str) -> str:
        return "{:.1f} [{:.1f}, {:.1f}]".format(found[name], *found[interval])

    return (
        f"{found['row']:10} return {shown('mean_return', 'interval')}, goal {found['goal']:.1f}, "
        f"behavior cloning {shown('cloned', 'cloned_interval')}, episodes {shown('recorded', 'recorded_interval')}"
    )
