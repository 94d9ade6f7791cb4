"""What came out of a comparison: scores over rows and seeds, which differences are real, and where they lie."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.evaluation.paired import compare_all
from regard.evaluation.seeds import score_over_seeds
from regard.evaluation.tallies import Tally, tally
from regard.progress import say
from regard.runs.job import Job
from regard.runs.plan import Plan
from regard.text.tokenizer import Tokenizer
from regard.training.folder import RunFolder
from regard.version import version

_METRICS = ("exact_match", "bleu", "chrf")
_MEANS = ("tokens_per_s", "seconds", "steps", "memory_mib")
_NUM_BINS, _NUM_SAMPLES = 5, 40


def verdict(plan: Plan) -> dict[str, Any]:
    """The table of a comparison whose jobs are done, as `compare.json` holds it."""
    return _Verdict(plan).table()


class _Verdict:
    """The results of all jobs, side by side."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.results: dict[str, dict[str, Any]] = {job.path: job.result() for job in plan.jobs}
        first = self.results[plan.jobs[0].path]
        self.metric, self.role, self.hardware = first["metric"], first["set"], first["hardware"]
        self.rows = RunFolder(plan.jobs[0].path).read_held_out(self.role)
        self.targets = [row[-1] for row in self.rows]
        self.bins = _length_bins(plan.data.tokenizer, [row[0] for row in self.rows])

    def table(self) -> dict[str, Any]:
        plan, names = self.plan, [contender.name for contender in self.plan.contenders]
        say(f"testing {len(names) * (len(names) - 1) // 2} differences on {len(self.rows):,} {self.role} rows")
        pairs = compare_all({name: self._tallies(name, self.metric) for name in names})
        return {
            "data": ", ".join(Path(path).name for path in plan.jobs[0].data),
            "task": plan.contenders[0].resolved().task,
            "metric": self.metric,
            "budget": str(plan.budget),
            "seeds": list(plan.seeds),
            "rows": len(self.rows),
            "hardware": f"{self.hardware}, {plan.at_once} runs at a time",
            "version": version(),
            "notes": [
                *plan.data.notes,
                f"scores are on the {self.role} rows",
                f"sample outputs are of seed {plan.seeds[0]}",
            ],
            "models": [self._model(name) for name in names],
            "pairs": [
                {
                    "a": pair.a,
                    "b": pair.b,
                    "difference": pair.difference,
                    "interval": list(pair.interval),
                    "p": pair.p,
                    "p_uncorrected": pair.p_uncorrected,
                    "is_real": pair.is_real,
                    "signature": pair.signature,
                }
                for pair in pairs
            ],
            "samples": [self._sample(index) for index in range(min(_NUM_SAMPLES, len(self.rows)))],
        }

    def _model(self, name: str) -> dict[str, Any]:
        own, main = self._jobs(name), self._tallies(name, self.metric)
        found = [self.results[job.path] for job in own]
        score = score_over_seeds(main)
        others = [other for other in _METRICS if other != self.metric]
        sizes = [(rows, score_over_seeds(self._tallies(name, self.metric, rows))) for rows in self.plan.row_counts]
        sizes += [(len(self.plan.data.train), score)] if sizes else []
        return {
            "name": name,
            "description": _describe(own[0]),
            "score": score.to_json(),
            "seed_scores": [each.value for each in main],
            "scores": {other: score_over_seeds(self._tallies(name, other)).to_json() for other in others},
            "params": found[0]["params"],
            **{key: float(np.mean([each[key] for each in found])) for key in _MEANS},
            "by_length": [_bin_score(main, bounds, rows) for bounds, rows in self.bins],
            "by_size": [{"rows": rows, "value": each.value, "interval": each.interval} for rows, each in sizes],
            "curves": [{"seed": job.seed, "points": _curve(job)} for job in own],
            "runs": [job.path for job in own],
        }

    def _sample(self, index: int) -> dict[str, Any]:
        jobs = [job for job in self.plan.jobs if job.seed == self.plan.seeds[0] and job.train_rows is None]
        outputs = {job.model: self.results[job.path]["outputs"][index] for job in jobs}
        return {"source": self.rows[index][0], "target": self.targets[index], "outputs": outputs}

    def _jobs(self, name: str, train_rows: int | None = None) -> list[Job]:
        return [job for job in self.plan.jobs if job.model == name and job.train_rows == train_rows]

    def _tallies(self, name: str, metric: str, train_rows: int | None = None) -> list[Tally]:
        """One for each seed."""
        return [tally(metric, self.results[job.path]["outputs"], self.targets) for job in self._jobs(name, train_rows)]


def _describe(job: Job) -> str:
    settings = RunFolder(job.path).read_settings()
    config = settings.model
    parts = [f"{settings.preset}: {config.encoder_depth}+{config.decoder_depth} layers, {config.model_dim} wide"]
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


def _length_bins(tokenizer: Tokenizer, sources: Sequence[str]) -> list[tuple[tuple[int, int], list[int]]]:
    """Rows of like source length, in tokens, about as many in each bin."""
    lengths = np.array([len(ids) for ids in tokenizer.encode(list(sources))])
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _NUM_BINS + 1)[1:], method="higher"))
    bins, low = [], int(lengths.min())
    for edge in edges.astype(int).tolist():
        chosen = np.flatnonzero((lengths >= low) & (lengths <= edge)).tolist()
        if chosen:
            bins.append(((int(lengths[chosen].min()), edge), chosen))
        low = edge + 1
    return bins


def _bin_score(tallies: Sequence[Tally], bounds: tuple[int, int], rows: Sequence[int]) -> dict[str, Any]:
    score = score_over_seeds([each.subset(rows) for each in tallies])
    return {"low": bounds[0], "high": bounds[1], "rows": len(rows), "value": score.value, "interval": score.interval}
