"""Characters of Shakespeare: how long from the start of the process to a validation loss, and how low it gets.

    python benchmarks/shakespeare.py [TEXT] [--device cpu|cuda] [--seeds 5] [--json]

TEXT is tinyshakespeare (1,115,394 characters; unset, that of the shared data
beside this project): the first 90 % are trained on, the last 10 % validated on,
in windows side by side, as nanoGPT does in expectation. The clock starts with the process, so importing, preparing,
compiling and validating all count.

Seen elsewhere: nanoGPT reaches 1.468 in 77 s on one H200 (26 s of it before the
first step), and 1.886 in 79 s on two CPU cores.
"""

import argparse
import json
import logging
import subprocess
import sys
import time
from pathlib import Path

TEXT = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare" / "input.txt"
GOALS = {"cpu": 1.886, "cuda": 1.468}
RECIPES: dict[str, tuple[float, list[str]]] = {
    # minutes of training, and settings beyond the defaults
    "cpu quick": (0.255, ["model.num_layers=2", "model.dropout=0", "data.window=64", "train.learning_rate=0.009",
                          "train.warmup_steps=10", "train.evaluate_every=1000"]),
    "cpu": (2.8, []),
    "cuda quick": (0.2, ["train.evaluate_every=50"]),
    "cuda": (1.0, ["train.evaluate_every=100"]),
}  # fmt: skip


def train(text: str, device: str, recipe: str, seed: int) -> None:
    """One run in this process; prints its looks as JSON."""
    start = time.perf_counter()
    from regard.runs.launch import set_up
    from regard.settings import override

    minutes, settings = RECIPES[recipe]
    values = override(
        {
            "task": "language",
            "data": {"train": [text], "tokenizer": "characters", "splits": [0.9, 0.1, 0.0]},
            "train": {"device": device, "minutes": minutes, "seed": seed, "patience": 0},
        },
        settings,
    )
    _, settings_used, trainer = set_up(values)
    looks: list[tuple[int, float, float]] = []

    def observe(line: dict) -> None:
        if "valid_loss" in line:
            looks.append((line["step"], time.perf_counter() - start, line["valid_loss"]))

    trainer.fit(observe, save=lambda _: None, save_best=lambda _: None, should_stop=lambda: False)
    shape = settings_used.model.model_dump(include={"num_layers", "model_dim"})
    print(json.dumps({"looks": looks, "shape": shape, "steps": trainer.progress.step}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, default=TEXT, help="the file")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--recipe", choices=list(RECIPES), help="run one recipe in this process, for one seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.text.exists():
        print(f"left out: there is no text at {options.text.name}")
        return
    if options.recipe:
        logging.basicConfig(level=logging.ERROR)
        train(str(options.text), options.device, options.recipe, options.seed)
        return
    results = []
    for recipe in (f"{options.device} quick", options.device):
        for seed in range(options.seeds):
            command = [sys.executable, __file__, str(options.text), "--device", options.device]
            begun = time.perf_counter()
            done = subprocess.run(
                [*command, "--recipe", recipe, "--seed", str(seed)], check=True, capture_output=True, text=True
            )
            wall = time.perf_counter() - begun
            found = json.loads(done.stdout.splitlines()[-1])
            # What passed before the first line of this script ran, and what came after the last look.
            before = wall - found["looks"][-1][1]
            goal = GOALS[options.device]
            reached = next((seconds + before for _, seconds, loss in found["looks"] if loss <= goal), None)
            best = min(loss for _, _, loss in found["looks"])
            results.append({"recipe": recipe, "seed": seed, "wall_s": wall, "goal": goal, "reached_s": reached,
                            "best": best, **found})  # fmt: skip
            if not options.json:
                told = f"{goal} after {reached:.1f} s" if reached else f"{goal} not reached"
                print(f"{recipe}, seed {seed}: {told}; best {best:.4f}; {wall:.1f} s in all, {found['steps']:,} steps")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
