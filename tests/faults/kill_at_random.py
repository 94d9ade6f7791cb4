"""Kill training at random moments, resume it each time, and compare it with training that was left alone.

    python tests/faults/kill_at_random.py --kills 50 --seed 0 [--sharded]

A third of the kills come a little after a line of figures, a third at the sight
of a file that is being written, a third after some time, whatever the process is
doing then; if it has ended by then, another run begins. The moment of each
kill is drawn from the seed and its number, which are printed. After each, every
file that was there before must be there and complete; in the end of each run the
weights, the checkpoint and the figures must be those of a run that was left alone.

With --sharded, two processes train and write checkpoints in shards, and one of them, at random, is killed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from regard.data.builtin import find_builtin

PATIENCE = 300.0
"""Seconds after which a process that shows no progress is taken for hung."""
KILLS_OF_A_RUN = 25
"""About as many, if there are as many: then another run begins."""
SETTINGS = {
    "model.model_dim": 22, "model.num_heads": 1, "model.feedforward_dim": 31, "model.num_layers": 1,
    "model.dropout": 0.1, "task.tokenizer": "bytes", "train.batch_tokens": 512, "train.accumulate": 2,
    "train.checkpoint_every": 7, "train.evaluate_every": 10, "train.patience": 0, "train.device": "cpu",
}  # fmt: skip


def write_data(folder: Path) -> Path:
    """A table small enough for many epochs."""
    path = folder / "dates.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in find_builtin("dates").generate(300, 0)), encoding="utf-8")
    return path


def start(data: Path, run: Path, steps: int, *, is_sharded: bool = False) -> subprocess.Popen[str]:
    """Begin training, or go on with it where there is a run."""
    given = {**SETTINGS, "train.sharding": "full"} if is_sharded else SETTINGS
    settings = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    settings += ["--processes", "2"] if is_sharded else []
    resumed = ["--resume"] if (run / "run.toml").exists() else []
    command = [sys.executable, "-m", "regard", "train", str(data), "--out", str(run), "--steps", str(steps), "--quiet"]
    return subprocess.Popen(
        [*command, *settings, *resumed],
        env={**os.environ, "REGARD_CACHE": str(data.parent / "cache"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must end well; returns what it printed."""
    out, err = process.communicate(timeout=PATIENCE)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {err}")
    return out


def lines(run: Path) -> list[dict]:
    """The figures, but for a line that is being written."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def newest_checkpoint(run: Path) -> Path | None:
    from regard.training.checkpoints import checkpoint_paths

    return next(reversed(checkpoint_paths(run / "checkpoints")), None)


def wait(process: subprocess.Popen[str], is_time: Callable[[], bool], pause: float = 0.005) -> bool:
    """Look again and again until it is time, or the process has ended; whether it runs still."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None:
        if is_time():
            return True
        if time.monotonic() > end:
            process.kill()
            raise RuntimeError("no progress was made")
        time.sleep(pause)
    return False


def has_reached(run: Path, step: int) -> Callable[[], bool]:
    """Whether a process begun after this call has come to `step`.

    Resuming rewrites the file of figures, so those of the process before do not count.
    """
    metrics = run / "metrics.jsonl"
    before = metrics.stat().st_ino if metrics.exists() else None

    def check() -> bool:
        if not metrics.exists() or metrics.stat().st_ino == before:
            return False
        found = lines(run)
        return bool(found) and found[-1]["step"] >= step

    return check


def kill_sometime(
    process: subprocess.Popen[str], run: Path, kind: str, step: int, seconds: float, rng: random.Random
) -> bool:
    """Send SIGKILL at a moment of this kind, about when `step` is reached; whether the process was still running.

    Where it has started others, it is one of them that is killed, and all must end.
    """
    if kind == "sometime":
        moment = time.monotonic() + rng.uniform(0.0, seconds)
        wait(process, lambda: time.monotonic() > moment)
    else:
        wait(process, has_reached(run, step))
    if kind == "writing":
        folder = rng.choice([run, run / "checkpoints"])
        before = unfinished(folder)
        wait(process, lambda: bool(unfinished(folder) - before), pause=0.0002)  # a file is written in a millisecond
    else:
        time.sleep(rng.uniform(0.0, 0.1))
    if others := children_of(process):
        with suppress(ProcessLookupError):
            os.kill(rng.choice(others), signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        return process.returncode != 0
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a process has started; none where it has ended."""
    try:
        text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(number) for number in text.split()]


def complete_files(run: Path) -> set[str]:
    """The files of a run that are never removed while it trains, each of which can be read as a whole."""
    from regard.runs.folder import RunFolder
    from regard.training.checkpoints import load_checkpoint, read_tensors

    folder, found = RunFolder(run), set()
    if folder.exists:
        folder.read_settings()
        found = {path.relative_to(run).as_posix() for part in ("codecs", "held_out") for path in (run / part).iterdir()}
        found |= {"run.toml"}
    if folder.read_ledger():
        found |= {"ledger.jsonl"}
    if folder.read_metrics():
        found |= {"metrics.jsonl"}
    if folder.model_path.exists():
        read_tensors(folder.model_path)
        found |= {"model.safetensors"}
    if load_checkpoint(folder.checkpoints) is not None:
        found |= {"checkpoints"}
    return {name for name in found if not name.endswith(".part")}


def differences(one: Path, two: Path) -> list[str]:
    """What is not the same in two runs that should not differ."""
    from regard.training.checkpoints import read_state, step_of

    found = []
    if (one / "model.safetensors").read_bytes() != (two / "model.safetensors").read_bytes():
        found.append("the weights differ")
    if [(line["step"], line.get("loss"), line.get("valid_loss")) for line in lines(one)] != [
        (line["step"], line.get("loss"), line.get("valid_loss")) for line in lines(two)
    ]:
        found.append("the figures differ")
    paths = [newest_checkpoint(one), newest_checkpoint(two)]
    if len({step_of(path) for path in paths if path is not None}) != 1 or None in paths:
        return [*found, f"the last checkpoints are {paths}"]
    first, second = (read_state(path)[0] for path in paths if path is not None)
    if first.keys() != second.keys() or any(first[name].ne(second[name]).any() for name in first):
        found.append("the last checkpoints differ")
    if leftovers := [str(path) for path in two.rglob("*.part")]:
        found.append(f"left behind: {leftovers}")
    return found


def unfinished(folder: Path) -> set[tuple[Path, int]]:
    """The files being written, or left so by a process that was killed; one begun anew has another time."""
    found = set()
    for path in folder.glob("*.part"):
        with suppress(FileNotFoundError):  # it was finished in the meantime
            found.add((path, path.stat().st_mtime_ns))
    return found


def describe(run: Path) -> str:
    checkpoint, found = newest_checkpoint(run), lines(run)
    parts = [path.name for path in run.rglob("*.part")]
    steps = f"figures to step {found[-1]['step'] if found else 0}, {checkpoint.stem if checkpoint else 'no checkpoint'}"
    return ", ".join([steps, *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--sharded", action="store_true", help="two processes, each of which writes a part")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, undisturbed = write_data(folder), folder / "undisturbed"
        begun = time.monotonic()
        finish(start(data, undisturbed, options.steps, is_sharded=options.sharded))
        seconds = (time.monotonic() - begun) / 2
        num_kills = num_runs = 0
        found: list[str] = []
        while num_kills < options.kills and not found:
            num_runs, killed = num_runs + 1, folder / f"killed-{num_runs}"
            num_kills = kill_run(data, killed, num_kills, options, seconds)
            finish(start(data, killed, options.steps, is_sharded=options.sharded))
            found = differences(undisturbed, killed)
    print(f"{num_kills} kills of {num_runs} runs, seed {options.seed}; {'; '.join(found) or 'everything is the same'}")
    sys.exit(bool(found))


def kill_run(data: Path, run: Path, num_kills: int, options: argparse.Namespace, seconds: float) -> int:
    """Kill a new run again and again, until it has ended or there were enough kills; returns their number."""
    first, complete = num_kills, set()
    while num_kills < options.kills:
        kind, seed = ("figures", "writing", "sometime")[num_kills % 3], f"{options.seed}-{num_kills}"
        goal = options.steps * (num_kills - first) // min(options.kills, KILLS_OF_A_RUN)
        process = start(data, run, options.steps, is_sharded=options.sharded)
        if not kill_sometime(process, run, kind, goal, seconds, random.Random(seed)):
            break
        num_kills += 1
        print(f"kill {num_kills} ({kind}, seed {seed}): {describe(run)}", flush=True)
        before, complete = complete, complete_files(run)
        if lost := before - complete:
            sys.exit(f"lost: {', '.join(sorted(lost))}")
    return num_kills


if __name__ == "__main__":
    main()
