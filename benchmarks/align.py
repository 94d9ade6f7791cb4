"""Preferences on `ratings`, whose true utility and noise are known.

    python benchmarks/align.py [--minutes 10] [--seed 0] [--json]

Every run has plain defaults; a row chooses the method, and the last one a penalty that is too small. Rows: the accuracy
of a reward model as a share of what the raters' noise allows; the true reward of the supervised model, and of models
aligned by DPO, and by PPO with the reward model, each with an interval and the paired difference from the supervised
one; and PPO with hardly any KL penalty, where the reward that is optimized and the true one part.

Steps beside those of trl are measured by `align_step.py`.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

import regard
from common.harness import make_parser, parse, print_results
from regard.data.builtin.ratings import generate_ratings, preference_ceiling, utility
from regard.evaluation.intervals import mean_interval
from regard.tasks.preference_optimization.progress import alignment_sections

SHARES = {"base": 0.15, "reward": 0.45, "dpo": 0.12, "ppo": 0.14, "over-optimized": 0.14}
"""Of the time."""
ALIGNED: dict[str, dict[str, Any]] = {
    "dpo": {"method": "dpo"},
    "ppo": {"method": "ppo"},
    "over-optimized": {"method": "ppo", "beta": 0.0005},
}
MAX_TOKENS = 24
"""Of the answers by which models are compared."""
TINY_MODEL = {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 16}
TINY_DATA = {"num_rows": 600}


def true_rewards(path: Path, prompts: Sequence[str], num_seeds: int) -> list[float]:
    """Of answers that a model samples; with the same random numbers for each model."""
    run = regard.load(path, device="cpu")
    found = []
    for seed in range(num_seeds):
        answers = run.predict(list(prompts), temperature=1.0, max_tokens=MAX_TOKENS, seed=seed)
        found += [utility(prompt, str(answer)) for prompt, answer in zip(prompts, answers, strict=True)]
    return found


def reward_row(path: Path) -> dict[str, Any]:
    """The accuracy on the test pairs, which selected nothing, and that of the better answer by true utility."""
    run = regard.load(path, device="cpu")
    evaluation = run.test()
    score, ceiling = evaluation.scores["accuracy"], preference_ceiling(evaluation.rows)
    return {"model": "reward model", "accuracy": score.value, "interval": score.interval, "ceiling": ceiling,
            "share": score.value / ceiling, "calibration_error": evaluation.scores["calibration_error"].value,
            "rows": len(evaluation.rows)}  # fmt: skip


def policy_rows(paths: dict[str, Path], prompts: Sequence[str], num_seeds: int) -> list[dict[str, Any]]:
    """The true reward of each model, and its difference from that of the supervised one, prompt by prompt."""
    found = {name: true_rewards(path, prompts, num_seeds) for name, path in paths.items()}
    rows = []
    for name, values in found.items():
        gains = np.subtract(values, found["supervised"])
        wins, losses = int((gains > 0).sum()), int((gains < 0).sum())
        mean, low, high = mean_interval(values)
        row: dict[str, Any] = {"model": name, "true_reward": mean, "interval": [low, high], "answers": len(values)}
        if name != "supervised":
            gain, gain_low, gain_high = mean_interval(gains)
            row |= {"gain": gain, "gain_interval": [gain_low, gain_high],
                    "wins": (wins + (len(gains) - wins - losses) / 2) / len(gains),
                    "p": float(binomtest(wins, max(1, wins + losses)).pvalue)}  # fmt: skip
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, has_device=False)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a folder for the runs, which are otherwise deleted")
    options = parse(parser, arguments)

    def given(name: str, **tiny: Any) -> dict[str, Any]:
        """The budget of a run, and for a tiny one its settings."""
        return (
            {"steps": 2, "settings": {"data": TINY_DATA, **tiny}}
            if options.tiny
            else {"minutes": SHARES[name] * options.minutes}
        )

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.out or temporary)
        shared: dict[str, Any] = {"device": "cpu", "seed": options.seed, "show_progress": False, "overwrite": True}
        base = regard.train("answers", out=folder / "base", baseline=False, **given("base", model=TINY_MODEL), **shared)
        reward = regard.finetune(base.path, "ratings", task="reward-modeling", out=folder / "reward", baseline=False,
                                 **given("reward"), **shared)  # fmt: skip
        paths, runs = {"supervised": base.path}, {}
        for name, chosen in ALIGNED.items():
            few = given(name, task={"evaluation_answers": 8})
            runs[name] = regard.align(base.path, "ratings", reward=reward.path, out=folder / name, **chosen, **few,
                                      **shared)  # fmt: skip
            paths[name] = runs[name].path
        prompts = sorted({row[0] for row in generate_ratings(600 if options.tiny else 6_000, 7)})
        [section] = alignment_sections(runs["over-optimized"].folder.read_metrics())
        rows = [
            reward_row(reward.path),
            *policy_rows(paths, prompts[:5] if options.tiny else prompts, 1 if options.tiny else 3),
        ]
        rows.append({"model": "over-optimized", "note": section.lead, "table": [section.columns, *section.rows]})
    if not options.json:
        for row in rows:
            print({name: value for name, value in row.items() if name != "table"})
        print("\n".join("  ".join(cells) for cells in [section.columns, *section.rows]))
    print_results(options, rows)


if __name__ == "__main__":
    main()
