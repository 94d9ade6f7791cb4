"""Models compared: the same data in the same order, the same budget, several seeds, and a test of each difference."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.config import merge
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows, open_source
from regard.errors import ConfigError, RunError, RunExistsError
from regard.evaluation.paired import compare_all, score_over_seeds
from regard.evaluation.tallies import Tally, tally
from regard.explanation.comparison import draw_curves, write_comparison
from regard.progress import say
from regard.runs.job import Job
from regard.runs.plan import (
    Budget,
    Contender,
    fit_parameters,
    read_contenders,
    read_seeds,
    require_buildable,
    steps_for,
)
from regard.runs.pool import run_jobs
from regard.tasks import find_task
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoints import write_atomically
from regard.training.folder import RunFolder
from regard.training.precision import find_device
from regard.training.resolution import choose_size
from regard.version import version

_USUAL: dict[str, Any] = {"train": {"patience": 0}}
"""Every run uses its whole budget, unless the user wants otherwise."""
_NUM_BINS, _NUM_SAMPLES = 5, 40


@dataclass(frozen=True)
class Comparison:
    """What came out: `table` is compare.json, `page` a page to look at."""

    path: Path
    table: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.path / "compare.html"


def compare(
    data: str | os.PathLike[str] | Sequence[str] | Rows,
    models: Sequence[str],
    *,
    minutes: float | None = None,
    steps: int | None = None,
    flops: float | None = None,
    seeds: int | Sequence[int] = 1,
    params: int | None = None,
    sizes: Sequence[int] = (),
    settings: Mapping[str, Any] | None = None,
    beam_size: int | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    show_progress: bool = True,
) -> Comparison:
    """Train each model with each seed under one budget, and say which differences are real.

    Args:
        data: As for `regard.train`.
        models: Names of presets, or paths of TOML files with a `[model]` table.
        minutes: The budget of each run.
        steps: The budget, in steps instead.
        flops: The budget, in operations instead.
        seeds: How many, or which; runs of one seed see the data in the same order.
        params: Make each model as wide as so many parameters allow.
        sizes: Also train on so many rows only, to see what more data brings.
        settings: What all models share, nested as in `run.toml`.
        beam_size: Hypotheses of beam search when the test rows are answered.
        out: The folder of the comparison. One that was interrupted goes on.
        overwrite: Start anew.
        jobs: Runs at a time. Unset: one for each core, or one on a GPU.
        show_progress: Show progress bars on stderr.
    """
    budget = Budget(minutes, steps, flops)
    chosen = read_seeds(seeds)
    paths = [
        str(item) for item in ([data] if isinstance(data, str | os.PathLike) else data) if not isinstance(item, tuple)
    ]
    folder = Path(out if out is not None else Path("runs") / f"compare-{_stem(paths)}")
    if not paths:
        paths = [str(_write_rows(folder, data))]
    shared = merge(_USUAL, merge(settings or {}, {"data": {"train": paths}}))
    contenders = read_contenders(models, shared)
    first = contenders[0].resolved()
    task = find_task(first.task)
    prepared = prepare(open_source(first.data, task.roles), first.data, task.roles)
    device = find_device(first.train.device).type
    size = choose_size(len(prepared.train), has_gpu=device == "cuda")
    for rows in sizes:
        if not 1 <= rows <= len(prepared.train):
            raise ConfigError(f"a training set can have 1 to {len(prepared.train):,} rows here, got {rows:,}")
    if params is not None:
        contenders = [fit_parameters(contender, size, prepared, params) for contender in contenders]
    for contender in contenders:
        require_buildable(contender, size, prepared)
    at_once = jobs or (1 if device == "cuda" else os.cpu_count() or 1)
    planned = _plan(folder, contenders, chosen, budget, (size, prepared), [*sizes, None], beam_size, at_once)
    at_once = min(at_once, len(planned))
    _require_same_plan(folder, planned, overwrite=overwrite)
    say(f"{len(planned)} runs of {budget}, {at_once} at a time, in {folder}")
    run_jobs(planned, num_at_once=at_once, logs=folder / "logs", show_progress=show_progress)
    table = _table(contenders, planned, paths, budget, chosen, prepared, at_once)
    write_atomically(folder / "compare.json", json.dumps(table, ensure_ascii=False).encode())
    write_comparison(folder / "compare.html", table)
    draw_curves(table, folder / "compare.png")
    return Comparison(folder, table)


def _plan(
    folder: Path,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    budget: Budget,
    known: tuple[Any, Prepared],
    sizes: Sequence[int | None],
    beam_size: int | None,
    at_once: int,
) -> list[Job]:
    """The jobs, seed by seed, so that an interrupted comparison has something to compare."""
    size, prepared = known
    threads = max(1, (os.cpu_count() or 1) // at_once)
    limits: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        if budget.flops is not None:
            limits[contender.name] = {"max_steps": steps_for(contender, size, prepared, budget.flops)}
        else:
            given = {"minutes": budget.minutes, "max_steps": budget.steps}
            limits[contender.name] = {name: value for name, value in given.items() if value is not None}
    jobs = []
    for seed in seeds:
        for rows in sizes:
            for contender in contenders:
                full_name = contender.resolved(size).preset
                own = {"preset": full_name, "train": {**limits[contender.name], "seed": seed}}
                if rows is not None:
                    own["data"] = {"train_rows": rows}
                name = f"{contender.name}-{seed}" + ("" if rows is None else f"-{rows}")
                jobs.append(
                    Job(
                        model=contender.name,
                        seed=seed,
                        path=str(folder / name),
                        data=list(contender.settings["data"]["train"]),
                        settings=merge(contender.settings, own),
                        threads=threads,
                        train_rows=rows,
                        generation={} if beam_size is None else {"beam_size": beam_size},
                    )
                )
    return jobs


def _require_same_plan(folder: Path, jobs: Sequence[Job], *, overwrite: bool) -> None:
    """A folder goes on with the comparison it holds; more models or seeds may join it."""
    path = folder / "plan.json"
    plan = {Path(job.path).name: [job.settings, job.generation] for job in jobs}
    if path.is_file() and overwrite:
        for name in json.loads(path.read_text(encoding="utf-8")):
            shutil.rmtree(folder / name, ignore_errors=True)
    elif path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            name for name, wanted in plan.items() if name in before and before[name] != json.loads(json.dumps(wanted))
        ]
        if changed:
            raise RunExistsError(
                f"{folder} holds a comparison with other settings (of {changed[0]}): "
                "overwrite it, or name another folder"
            )
        plan = {**before, **plan}
    elif folder.is_dir() and any((folder / name).exists() for name in plan):
        raise RunError(f"{folder} holds something that is not a comparison: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(plan, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write a comparison to {folder}: {error.strerror or error}") from None


def _table(
    contenders: Sequence[Contender],
    jobs: Sequence[Job],
    paths: Sequence[str],
    budget: Budget,
    seeds: Sequence[int],
    prepared: Prepared,
    at_once: int,
) -> dict[str, Any]:
    results = {Path(job.path).name: job.result() for job in jobs}
    first = results[Path(jobs[0].path).name]
    metric, role = first["metric"], first["set"]
    rows = RunFolder(jobs[0].path).read_held_out(role)
    targets = [row[-1] for row in rows]

    def tallies(name: str, what: str, train_rows: int | None = None) -> list[Tally]:
        chosen = [job for job in jobs if job.model == name and job.train_rows == train_rows]
        return [tally(what, results[Path(job.path).name]["outputs"], targets) for job in chosen]

    names = [contender.name for contender in contenders]
    main = {name: tallies(name, metric) for name in names}
    bins = _length_bins(prepared.tokenizer, [row[0] for row in rows])
    sizes = sorted({job.train_rows for job in jobs if job.train_rows is not None})
    say(f"testing {len(names) * (len(names) - 1) // 2} differences on {len(rows):,} {role} rows")
    models = []
    for name in names:
        own = [job for job in jobs if job.model == name and job.train_rows is None]
        found = [results[Path(job.path).name] for job in own]
        others = [other for other in ("exact_match", "bleu", "chrf") if other != metric]
        by_size = [(size, score_over_seeds(tallies(name, metric, size))) for size in sizes]
        whole = score_over_seeds(main[name])
        if by_size:
            by_size.append((len(prepared.train), whole))
        models.append(
            {
                "name": name,
                "description": _describe(own[0]),
                "score": whole.to_json(),
                "seed_scores": [each.value for each in main[name]],
                "scores": {other: score_over_seeds(tallies(name, other)).to_json() for other in others},
                "params": found[0]["params"],
                **{
                    key: float(np.mean([each[key] for each in found]))
                    for key in ("tokens_per_s", "seconds", "steps", "memory_mib")
                },
                "by_length": [_bin_score(main[name], bounds, chosen) for bounds, chosen in bins],
                "by_size": [
                    {"rows": size, "value": score.value, "interval": score.interval} for size, score in by_size
                ],
                "curves": [{"seed": job.seed, "points": _curve(job)} for job in own],
                "runs": [job.path for job in own],
            }
        )
    return {
        "data": ", ".join(Path(path).name for path in paths),
        "task": contenders[0].resolved().task,
        "metric": metric,
        "budget": str(budget),
        "seeds": list(seeds),
        "rows": len(rows),
        "hardware": f"{first['hardware']}, {at_once} runs at a time",
        "version": version(),
        "notes": [*prepared.notes, f"scores are on the {role} rows", f"sample outputs are of seed {seeds[0]}"],
        "models": models,
        "pairs": [
            {
                "a": pair.a,
                "b": pair.b,
                "difference": pair.difference,
                "interval": list(pair.interval),
                "p": pair.p,
                "p_uncorrected": pair.p_uncorrected,
                "is_real": pair.is_real,
            }
            for pair in compare_all(main)
        ],
        "samples": [
            {
                "source": rows[index][0],
                "target": targets[index],
                "outputs": {
                    job.model: results[Path(job.path).name]["outputs"][index]
                    for job in jobs
                    if job.seed == seeds[0] and job.train_rows is None
                },
            }
            for index in range(min(_NUM_SAMPLES, len(rows)))
        ],
    }


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


def _stem(paths: Sequence[str]) -> str:
    return (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "rows"


def _write_rows(folder: Path, rows: Any) -> Path:
    """Rows in memory as a file that every run can read."""
    path = folder / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"source": row[0], "target": row[1]}, ensure_ascii=False) for row in rows)
    write_atomically(path, "".join(line + "\n" for line in lines).encode())
    return path
