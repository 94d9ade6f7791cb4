"""What came out of a comparison: scores over examples and seeds, which differences are real, and where they lie."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.evaluation.paired import ComparedPair, compare_all
from regard.evaluation.scores import Score
from regard.evaluation.seeds import score_over_seeds
from regard.evaluation.tallies import Tally
from regard.logging import log_info
from regard.runs.evidence import gather
from regard.runs.job import Job
from regard.runs.plan import Plan
from regard.tasks import find_task
from regard.training.folder import RunFolder
from regard.version import version

_MEANS = ("tokens_per_s", "seconds", "steps", "memory_mib")


def verdict(plan: Plan) -> dict[str, Any]:
    """The table of a comparison whose jobs are done, as `compare.json` holds it."""
    return _Verdict(plan).table()


class _Verdict:
    """The results of all jobs, side by side."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.results: dict[str, dict[str, Any]] = {job.path: job.result() for job in plan.jobs}
        self.evidence = gather(plan, self.results)
        self.metric, *self.others = self.evidence.metrics

    def table(self) -> dict[str, Any]:
        plan, names = self.plan, [contender.name for contender in self.plan.contenders]
        task = find_task(plan.contenders[0].resolved().task)
        unit = "rows" if task.has_answers else "stretches of text"
        log_info(f"testing {len(names) * (len(names) - 1) // 2} differences on {self.evidence.num_examples:,} {unit}")
        pairs = compare_all({name: self.evidence.tallies(self._jobs(name), self.metric) for name in names})
        first_jobs = [job for name in names for job in self._jobs(name) if job.seed == plan.seeds[0]]
        return {
            "data": ", ".join(Path(path).name for path in plan.jobs[0].data),
            "task": task.name,
            "is_text": not task.has_answers,
            "metric": self.metric,
            "budget": str(plan.budget),
            "seeds": list(plan.seeds),
            "rows": self.evidence.num_examples,
            "hardware": f"{self.results[plan.jobs[0].path]['hardware']}, {plan.at_once} runs at a time",
            "version": version(),
            "notes": [
                *plan.data.notes,
                *self.evidence.notes(),
                f"what the models wrote is of seed {plan.seeds[0]}",
            ],
            "models": [self._model(name) for name in names],
            "pairs": [self._pair(pair) for pair in pairs],
            "samples": self.evidence.samples(first_jobs),
        }

    def _model(self, name: str) -> dict[str, Any]:
        own = self._jobs(name)
        found = [self.results[job.path] for job in own]
        tallies = self.evidence.tallies(own, self.metric)
        score = self._score(own, tallies)
        return {
            "name": name,
            "description": _describe(own[0]),
            "score": score.to_json(),
            "seed_scores": [each.value for each in tallies],
            "scores": {other: self._score(own, self.evidence.tallies(own, other)).to_json() for other in self.others},
            "params": found[0]["params"],
            **{key: float(np.mean([each[key] for each in found])) for key in _MEANS},
            "by_length": self.evidence.by_length(tallies),
            "by_size": self._by_size(name, score),
            "curves": [{"seed": job.seed, "points": _curve(job)} for job in own],
            "runs": [job.path for job in own],
        }

    def _by_size(self, name: str, score: Score) -> list[dict[str, Any]]:
        """The scores from smaller training sets and, where there are any, that from all of it."""
        sizes: list[tuple[int, Score]] = []
        for rows in self.plan.row_counts:
            jobs = self._jobs(name, rows)
            sizes.append((rows, self._score(jobs, self.evidence.tallies(jobs, self.metric))))
        sizes += [(self.evidence.num_training, score)] if sizes else []
        return [{"rows": rows, "value": each.value, "interval": each.interval} for rows, each in sizes]

    def _pair(self, pair: ComparedPair) -> dict[str, Any]:
        how = self.evidence.circumstances([*self._jobs(pair.a), *self._jobs(pair.b)])
        return {
            "a": pair.a,
            "b": pair.b,
            "difference": pair.difference,
            "interval": list(pair.interval),
            "p": pair.p,
            "p_uncorrected": pair.p_uncorrected,
            "is_real": pair.is_real,
            "signature": replace(pair, settings={**pair.settings, **how}).signature,
        }

    def _score(self, jobs: Sequence[Job], tallies: Sequence[Tally]) -> Score:
        """Over the seeds of one model."""
        score = score_over_seeds(tallies)
        return replace(score, settings={**score.settings, **self.evidence.circumstances(jobs)})

    def _jobs(self, name: str, train_rows: int | None = None) -> list[Job]:
        """One for each seed."""
        return [job for job in self.plan.jobs if job.model == name and job.train_rows == train_rows]


def _describe(job: Job) -> str:
    settings = RunFolder(job.path).read_settings()
    config = settings.model
    depth = f"{config.encoder_depth}+{config.decoder_depth}" if config.encoder_depth else str(config.decoder_depth)
    parts = [f"{settings.preset}: {depth} layers, {config.model_dim} wide"]
    attention = getattr(config, "attention", None)
    return ", ".join([*parts, f"{attention} attention"] if attention not in (None, "none") else parts)


def _curve(job: Job) -> list[dict[str, float]]:
    """The validation loss over steps, seconds and tokens."""
    points, seconds, tokens, before = [], 0.0, 0.0, 0.0
    for line in RunFolder(job.path).read_metrics():
        if "loss" in line:
            tokens += line["tokens_per_second"] * max(0.0, line["seconds"] - before)
            seconds = before = line["seconds"]
        if "valid_loss" in line:
            points.append(
                {"step": line["step"], "seconds": seconds, "tokens": tokens, "valid_loss": line["valid_loss"]}
            )
    return points
