"""One run of several, in a process of its own: `python -m regard.runs.job`, with the job on stdin.

A process of its own has its own peak of memory and its own threads, and takes
nothing with it when it fails. When the process that started it goes away, stdin
ends, and the run saves its state and leaves.
"""

import json
import logging
import os
import resource
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.runs.run import Evaluation, Run


@dataclass(frozen=True)
class Job:
    """What is to be trained, and where it goes."""

    model: str
    """What it is called among the others."""
    seed: int
    path: str
    data: list[str]
    settings: dict[str, Any]
    threads: int
    train_rows: int | None = None
    """So many training rows, or documents, only; None for all."""
    generation: dict[str, Any] = field(default_factory=dict)
    base: str | None = None
    """The run folder to go on from; None to start from scratch."""

    @property
    def name(self) -> str:
        unit = "documents" if self.settings.get("task") == "language" else "rows"
        rows = "" if self.train_rows is None else f", {self.train_rows:,} {unit}"
        return f"{self.model}, seed {self.seed}{rows}"

    @property
    def result_path(self) -> Path:
        return Path(self.path) / "result.json"

    @property
    def is_done(self) -> bool:
        return self.result_path.is_file()

    def result(self) -> dict[str, Any]:
        """What the finished job wrote."""
        return json.loads(self.result_path.read_text(encoding="utf-8"))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def run_job(job: Job) -> None:
    """Train, or go on training; then answer the test rows, or read the test text, and write down what came out."""
    import torch

    from regard.files import write_atomically
    from regard.runs.finetune import finetune
    from regard.runs.launch import train
    from regard.training.folder import RunFolder

    torch.set_num_threads(job.threads)
    folder = RunFolder(job.path)
    if folder.exists:
        run = train(out=job.path, resume=True, show_progress=False)
    elif job.base is not None:
        run = finetune(job.base, job.data, out=job.path, settings=job.settings, show_progress=False)
    else:
        run = train(job.data, out=job.path, settings=job.settings, show_progress=False)
    role = "test" if run.folder.has_test else "valid"
    evaluation = run.test(why="comparison", **job.generation) if role == "test" else run.evaluate(**job.generation)
    lines = [line for line in run.folder.read_metrics() if "loss" in line]
    speeds = sorted(line["tokens_per_second"] for line in lines)
    assert run.settings.record is not None, "a run folder has a record"
    result = {
        "set": role,
        "scores": {name: score.to_json() for name, score in evaluation.scores.items()},
        **_evidence(run, evaluation),
        "params": run.settings.record.num_parameters,
        "hardware": run.settings.record.hardware,
        "preset": run.settings.preset,
        "train_rows": job.train_rows,
        "steps": lines[-1]["step"],
        "seconds": lines[-1]["seconds"],
        "tokens_per_s": speeds[len(speeds) // 2],
        "memory_mib": _peak_memory(run.device.type) / 2**20,
    }
    write_atomically(job.result_path, json.dumps(result, ensure_ascii=False).encode())


def _evidence(run: "Run", evaluation: "Evaluation") -> dict[str, Any]:
    """What a comparison counts by, and the score that it compares."""
    if run.task.has_answers:
        return {"metric": evaluation.headline, "outputs": evaluation.outputs}
    from regard.runs.reporting import continuations
    from regard.tasks.masked import Masked, MaskedLikelihoods

    likelihoods = evaluation.likelihoods
    if isinstance(run.task, Masked):
        assert isinstance(likelihoods, MaskedLikelihoods)
        model: Any = run.model
        how = evaluation.scores["masked_accuracy"].settings
        return {
            "metric": "pseudo_perplexity",
            "circumstances": {name: how[name] for name in ("window", "hidden", "units")},
            "losses": likelihoods.losses,
            "counts": likelihoods.counts,
            "right": likelihoods.right,
            "samples": run.task.samples(model, run.tokenizer, evaluation.rows, run.settings.data),
        }
    settings = evaluation.scores["bits_per_byte"].settings
    return {
        # Not perplexity, which holds for one vocabulary, and fewer documents give another.
        "metric": "bits_per_byte",
        "circumstances": {name: settings[name] for name in ("window", "stride", "state") if name in settings},
        "losses": likelihoods.losses,
        "counts": likelihoods.counts,
        "continuations": continuations(run, evaluation.rows),
    }


def _peak_memory(device: str) -> int:
    """The most that was held at once: of the GPU's memory where one is used, or else of the machine's."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _leave_with_the_parent() -> None:
    """Wait for the end of stdin, which comes when the process that started this one is gone."""
    while sys.stdin.readline():
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    try:
        run_job(job)
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
