"""The results of a comparison: scores over examples and seeds, and the paired test of each difference."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.evaluation.counts import Counts
from regard.evaluation.examples import Examples
from regard.evaluation.paired import ComparedPair, compare_all
from regard.evaluation.registry import find_metric
from regard.evaluation.scores import Score
from regard.evaluation.seeds import mean_score, score_over_seeds
from regard.experiments.compare.plan import ComparisonPlan
from regard.experiments.jobs import Job
from regard.logging import log_info
from regard.runs.baseline import compare_with_baseline
from regard.runs.folder import RunFolder
from regard.tasks.registry import make_task
from regard.tasks.task import ComparedRun, Task
from regard.version import version

_NUM_BINS, _MAX_SAMPLES = 5, 40
_MEANS = ("tokens_per_s", "seconds", "steps", "memory_mib")


def comparison_table(plan: ComparisonPlan) -> dict[str, Any]:
    """The table of a comparison whose jobs are done: the content of `compare.json`."""
    return _Results(plan).table()


def aligned_examples(task: Task[Any], results: Sequence[dict[str, Any]]) -> list[Examples]:
    """The examples that finished jobs wrote, made comparable one by one."""
    return task.align([Examples.from_json(result["examples"]) for result in results])


class _Results:
    """The results of all jobs."""

    def __init__(self, plan: ComparisonPlan) -> None:
        folder = RunFolder(plan.jobs[0].path)
        settings = folder.read_settings()
        self.plan, self.task = plan, make_task(settings.task, folder.read_codecs(settings))
        self.results: dict[str, dict[str, Any]] = {job.path: job.result() for job in plan.jobs}
        first = self.results[plan.jobs[0].path]
        self.role, (self.metric, *self.others) = first["set"], first["metrics"]
        self.rows = folder.read_rows(self.role)
        self.names = [candidate.name for candidate in plan.candidates]
        self.examples = self._align()
        self.num_examples = len(self._counts(self._jobs(self.names[0])[:1], self.metric)[0])
        sources = self.task.sources(self.rows)
        codec = self.task.codecs.get("source", self.task.codecs.get("text"))
        self.bins = _length_bins([len(ids) for ids in codec.encode(sources)] if sources and codec is not None else [])

    def _align(self) -> dict[str, Examples]:
        """Those of all runs on the whole training set together; of a smaller one, those of each model.

        Another training set may have another tokenizer, so their examples need not be comparable.
        """
        groups = [[job for job in self.plan.jobs if job.train_rows is None]]
        groups += [self._jobs(name, size) for name in self.names for size in self.plan.train_sizes]
        examples: dict[str, Examples] = {}
        for jobs in groups:
            found = aligned_examples(self.task, [self.results[job.path] for job in jobs])
            examples |= {job.path: each for job, each in zip(jobs, found, strict=True)}
        return examples

    def table(self) -> dict[str, Any]:
        plan, names = self.plan, self.names
        num_pairs = len(names) * (len(names) - 1) // 2
        log_info(f"testing {num_pairs} difference{'' if num_pairs == 1 else 's'} on {self.num_examples:,} examples")
        pairs = compare_all({name: self._counts(self._jobs(name), self.metric) for name in names})
        first_jobs = [job for name in names for job in self._jobs(name) if job.seed == plan.seeds[0]]
        return {
            "data": ", ".join(Path(path).name for path in plan.jobs[0].data),
            "task": self.task.name,
            "is_text": self.task.unit == "document",
            "metric": self.metric,
            "budget": str(plan.budget),
            "seeds": list(plan.seeds),
            "rows": self.num_examples,
            "hardware": f"{self.results[plan.jobs[0].path]['hardware']}, {plan.num_parallel} runs at a time",
            "version": version(),
            "notes": [
                *plan.data.notes,
                *self.task.comparison_notes([self._run(job) for job in plan.jobs]),
                f"samples are of seed {plan.seeds[0]}",
            ],
            "models": [self._model(name) for name in names],
            "pairs": [self._pair(pair) for pair in pairs],
            "baseline": self._baseline(),
            "samples": self._samples(first_jobs),
        }

    def _run(self, job: Job) -> ComparedRun:
        folder = RunFolder(job.path)
        settings = folder.read_settings()
        return ComparedRun(
            name=job.label,
            train_rows=job.train_rows,
            task=make_task(settings.task, folder.read_codecs(settings)),
            model=settings.model,
            role=self.role,
            rows=self.rows,
            examples=self.examples[job.path],
        )

    def _model(self, name: str) -> dict[str, Any]:
        jobs = self._jobs(name)
        found = [self.results[job.path] for job in jobs]
        counts = self._counts(jobs, self.metric)
        score = self._score(jobs, self.metric)
        return {
            "name": name,
            "description": _describe(jobs[0]),
            "score": score.to_json(),
            "seed_scores": [each.value for each in counts],
            "scores": {other: self._score(jobs, other).to_json() for other in self.others},
            "params": found[0]["params"],
            **{key: float(np.mean([each[key] for each in found])) for key in _MEANS},
            "by_length": [_bin_score(counts, bounds, rows) for bounds, rows in self.bins],
            "by_size": self._by_size(name, score),
            "curves": [{"seed": job.seed, "points": _curve(job)} for job in jobs],
            "runs": [job.path for job in jobs],
        }

    def _by_size(self, name: str, score: Score) -> list[dict[str, Any]]:
        """The scores on smaller training sets and, where there are any, on all of it."""
        sizes = [(size, self._score(self._jobs(name, size), self.metric)) for size in self.plan.train_sizes]
        sizes += [(self.task.train_size(self.plan.data), score)] if sizes else []
        return [{"rows": size, "value": each.value, "interval": each.interval} for size, each in sizes]

    def _pair(self, pair: ComparedPair) -> dict[str, Any]:
        settings = self._settings([*self._jobs(pair.a), *self._jobs(pair.b)])
        return {
            "a": pair.a,
            "b": pair.b,
            "difference": pair.difference,
            "interval": list(pair.interval),
            "p": pair.p,
            "p_uncorrected": pair.p_uncorrected,
            "is_significant": pair.is_significant,
            "not_comparable": pair.not_comparable,
            "signature": replace(pair, settings={**pair.settings, **settings}).signature,
        }

    def _baseline(self) -> dict[str, Any] | None:
        """The baseline, fitted on the whole training set, and the test of the best model against it."""
        if self.plan.jobs[0].settings.get("train", {}).get("baseline") is False:
            return None
        metric = find_metric(self.metric)
        values = {name: mean_score(self._counts(self._jobs(name), self.metric)) for name in self.names}
        best = (max if metric.higher_is_better else min)(values, key=lambda name: values[name])
        examples = [self.examples[job.path] for job in self._jobs(best)]
        found = compare_with_baseline(self.task, self.plan.data, self.rows, examples, self.metric)
        if found is None:
            return None
        # Without its time, so that a comparison that is only read again has the same table.
        return {"model": best} | {name: value for name, value in found.to_json().items() if name != "seconds"}

    def _samples(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """The inputs that all of these runs have, each with the output of every model."""
        samples = {job.label: self.results[job.path]["samples"] for job in jobs}
        outputs = {name: {each["source"]: each["prediction"] for each in some} for name, some in samples.items()}
        return [
            {
                "source": each["source"],
                "target": each["target"],
                "outputs": {name: some[each["source"]] for name, some in outputs.items()},
            }
            for each in samples[jobs[0].label][:_MAX_SAMPLES]
            if all(each["source"] in some for some in outputs.values())
        ]

    def _counts(self, jobs: Sequence[Job], metric: str) -> list[Counts]:
        return [find_metric(metric).count(self.examples[job.path]) for job in jobs]

    def _score(self, jobs: Sequence[Job], metric: str) -> Score:
        """Over the seeds of one model."""
        score = score_over_seeds(self._counts(jobs, metric))
        return replace(score, settings={**score.settings, **self._settings(jobs)})

    def _settings(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """What the scores of these runs depend on beside the examples; several values where they differ."""
        each = [self.examples[job.path].settings for job in jobs]
        names = dict.fromkeys(name for settings in each for name in settings)
        found = {name: list(dict.fromkeys(settings.get(name, "none") for settings in each)) for name in names}
        return {name: some[0] if len(some) == 1 else ",".join(map(str, some)) for name, some in found.items()}

    def _jobs(self, name: str, size: int | None = None) -> list[Job]:
        """One for each seed."""
        return [job for job in self.plan.jobs if job.label == name and job.train_rows == size]


def _length_bins(lengths: Sequence[int]) -> list[tuple[tuple[int, int], list[int]]]:
    """Bins of about equally many rows with sources of similar length, in tokens; each as its range and its rows."""
    if not lengths:
        return []
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, _NUM_BINS + 1)[1:], method="higher"))
    bins, low, values = [], min(lengths), np.array(lengths)
    for edge in edges.astype(int).tolist():
        chosen = np.flatnonzero((values >= low) & (values <= edge)).tolist()
        if chosen:
            bins.append(((int(values[chosen].min()), edge), chosen))
        low = edge + 1
    return bins


def _bin_score(counts: Sequence[Counts], bounds: tuple[int, int], rows: Sequence[int]) -> dict[str, Any]:
    """The mean score over seeds on some rows; several seeds on a single row have no interval."""
    some = [each.subset(rows) for each in counts]
    found = {"low": bounds[0], "high": bounds[1], "rows": len(rows)}
    if len(rows) == 1 and len(some) > 1:
        return {**found, "value": float(np.mean([each.value for each in some])), "interval": None}
    score = score_over_seeds(some)
    return {**found, "value": score.value, "interval": score.interval}


def _describe(job: Job) -> str:
    settings = RunFolder(job.path).read_settings()
    config = settings.model
    depth = f"{config.encoder_depth}+{config.decoder_depth}" if config.encoder_depth else str(config.decoder_depth)
    parts = [f"{settings.preset}: {depth} layers, {config.model_dim} wide"]
    attention = config.model_dump().get("attention")
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
