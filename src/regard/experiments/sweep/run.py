"""`sweep`: start workers, follow their trials, train the winner's settings again, and write the results."""

import json
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.progress import Progress, TaskID

from regard.data.sources import Rows
from regard.errors import ConfigError, RunError, RunExistsError
from regard.evaluation.intervals import mean_interval
from regard.evaluation.registry import score_label
from regard.experiments.jobs import Job, budget_fraction, run_jobs
from regard.experiments.manifest import default_folder, read_manifest, shared_values, with_data
from regard.experiments.processes import (
    ProcessPool,
    folder_lock,
    last_log_line,
    process_pool,
    progress_bars,
    split_cores,
)
from regard.experiments.sweep.objectives import SweepObjective, best_loss, correct_rows, evaluations_of, measure_run
from regard.experiments.sweep.plan import SweepOptions, SweepPlan, plan_sweep
from regard.experiments.sweep.study import (
    HEARTBEAT_SECONDS,
    TrialKey,
    close_storage,
    has_ended,
    importance_of,
    open_storage,
    open_study,
    record_heartbeats,
    reported_errors,
    retry_lost,
    retry_stale,
    trials_of,
    without_password,
)
from regard.explanation.report.sweep import draw_sweep, write_sweep
from regard.files import load_json, write_atomically
from regard.logging import format_duration, log_info
from regard.runs.folder import RunFolder
from regard.runs.train import flatten, given_values, read_step
from regard.selection.bounds import DELTA, Bound, smallest_difference, tightest_bound
from regard.selection.ledger import Ledger, candidates_in
from regard.selection.releases import MECHANISMS, bound_released, read_release
from regard.selection.space import nested
from regard.settings import merge_tables, to_toml
from regard.version import version

_FILES = ("study.db", "space.toml", "trials", "repeats", "ledger.jsonl", "ledger.head", "releases.jsonl", "result.json",
          "sweep.html", "sweep.png", "logs", "sweep.json")  # fmt: skip
"""What a sweep writes to its folder; the file that identifies it is the last."""
_STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: `table` is the content of result.json, `page` the HTML page."""

    path: Path
    table: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.path / "sweep.html"


def sweep(
    data: str | os.PathLike[str] | Sequence[str] | Rows,
    space: str | os.PathLike[str] | Mapping[str, Any],
    *,
    trials: int | None = None,
    sampler: str = "tpe",
    pruner: str = "none",
    objectives: Sequence[str] = (),
    minutes: float | None = None,
    steps: int | None = None,
    model: str | None = None,
    task: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    repeats: int | None = None,
    ladder: float | bool | None = None,
    thresholdout: float | bool | None = None,
    seed: int = 0,
    storage: str | None = None,
    workers: int | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
) -> Sweep:
    """Search settings: train trials under one budget, then the best settings again with other seeds.

    Args:
        data: As for `regard.train`.
        space: A TOML file, or its tables: for each setting a range or choices.
        trials: The number of trials. Unset: 50, or each point of a grid. An existing sweep can be given more.
        sampler: random, tpe (near good trials), or grid.
        pruner: none, or hyperband, which ends bad trials early.
        objectives: Names of scores, or loss, parameters, seconds. Unset: the task's first score, or the loss.
        minutes: The budget of each trial. Trials by time differ from machine to machine.
        steps: The budget in steps instead. Unset: 160 on a CPU, 2,000 on a GPU.
        model: The name of a preset.
        task: The name of a task; unset, it is detected from the data.
        columns: The columns to use, by name or by position from 1.
        encoding: The encoding of text files, such as windows-1252; unset, it is detected.
        tokenizer: bpe, unigram, characters, bytes, words, wordpunct, or the path of a tokenizer.json.
        device: auto, cpu, cuda or cuda:N.
        settings: What all trials share, nested as in `run.toml`.
        repeats: With how many other seeds the winner's settings are trained again. Unset: 3, or 0 with a mechanism.
        ladder: Show and use only scores that a Ladder with this step, which all trials share, releases: the bound on
            the winner's score then holds although scores decide what is tried next. True chooses the step.
        thresholdout: The same by Thresholdout with this threshold.
        seed: Of the sampler.
        storage: The URL of a database that several machines share, each with a folder of its own.
        workers: Trials at a time, with one thread each. Unset: one for each core, or one on a GPU.
        out: The folder of the sweep. An interrupted sweep is continued.
        overwrite: Replace the sweep in `out`.
        show_progress: Show progress bars on stderr.

    Example:
        space = {"train": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}}
        found = regard.sweep("pairs.tsv", space, trials=20)
        found.table["winner"]["settings"]
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"a sweep needs at least one worker, got {workers}")
    if overwrite and storage is not None:
        raise ConfigError("a shared storage is not overwritten: another seed makes another sweep in it")
    options = SweepOptions(
        space=space,
        trials=trials,
        sampler=sampler,
        pruner=pruner,
        objectives=objectives,
        minutes=minutes,
        steps=steps,
        repeats=repeats,
        seed=seed,
    )
    options.check()
    folder = Path(out if out is not None else default_folder("sweep", data))
    options_given = shared_values(task=task, columns=columns, encoding=encoding, tokenizer=tokenizer, device=device)
    released = given_values(train={"ladder": read_step(ladder), "thresholdout": read_step(thresholdout)})
    given = merge_tables(settings or {}, merge_tables(options_given, released))
    given |= {} if model is None else {"preset": model}
    if storage is not None and any(given.get("train", {}).get(name) is not None for name in MECHANISMS):
        raise ConfigError("machines that share a storage do not share the record of released scores: omit the storage")
    values = with_data(given, data, folder, what="sweep", overwrite=overwrite, mark=_FILES[-1])
    plan = plan_sweep(folder, options, values)
    plan = _write_request(plan, storage, overwrite=overwrite)
    num_parallel, _ = split_cores(plan.num_trials, plan.device, workers)
    return _run(plan, num_workers=num_parallel, show_progress=show_progress)


def _run(plan: SweepPlan, *, num_workers: int, show_progress: bool) -> Sweep:
    with reported_errors(plan.storage), folder_lock(plan.path) as lock:
        storage = open_storage(plan.storage)
        study = open_study(plan, storage)
        log_info(f"{plan.num_trials} trials of {plan.budget}, {num_workers} at a time, in {plan.path}")
        log_info(plan.sensitivity)
        if num_lost := retry_lost(study, plan.owner):
            log_info(f"resuming {num_lost} interrupted trials")
        _search(study, storage, plan, num_workers=num_workers, lock=lock, show_progress=show_progress)
        winner = find_winner(study, plan)
        _keep_repeats_of(plan, winner)
        jobs = _repeat_jobs(plan, winner, trials_of(study)[winner].params)
        if any(not job.is_done for job in jobs):
            log_info(f"trial {winner} is the best: training its settings with {len(jobs)} other seeds")
            run_jobs(jobs, folder=plan.path, num_parallel=num_workers, show_progress=show_progress, lock=lock)
        ledger = _SweepLedger(plan.path)
        for job in jobs:
            ledger.add(f"{job.label}, repeat {Path(job.path).name}", evaluations_of(RunFolder(job.path)))
        table = sweep_table(study, plan)
        _record_selection(plan, winner)
        close_storage(storage)
    write_atomically(plan.path / "result.json", json.dumps(table, ensure_ascii=False).encode())
    draw_sweep(table, plan.path / "sweep.png")
    write_sweep(plan.path / "sweep.html", table)
    return Sweep(plan.path, table)


def _write_request(plan: SweepPlan, storage: str | None, *, overwrite: bool) -> SweepPlan:
    """Write what the folder contains, or raise if it contains something else; more trials may be added."""
    folder, path = plan.path, plan.path / _FILES[-1]
    before = read_manifest(path)
    identity = {**plan.identity, "storage": None if storage is None else without_password(storage)}
    if before is not None and not overwrite:
        if (difference := _difference(before["identity"], identity)) is not None:
            raise RunExistsError(f"{folder} contains another sweep: {difference}; overwrite it, or name another folder")
        if plan.num_trials < before["trials"]:
            raise ConfigError(
                f"{folder} has {before['trials']} trials, so trials must be at least that, got {plan.num_trials}"
            )
    if storage is not None:
        close_storage(open_storage(storage))  # raises, before anything is written, if it cannot be reached
    owner = before["owner"] if before is not None and not overwrite else uuid.uuid4().hex
    try:
        if overwrite and before is not None:
            _remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        request = {"identity": identity, "trials": plan.num_trials, "owner": owner, "data": plan.data}
        write_atomically(folder / "space.toml", to_toml(nested(plan.space)).encode())
        write_atomically(path, json.dumps(request, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write a sweep to {folder}: {error.strerror or error}") from None
    return replace(plan, owner=owner, storage=storage or f"sqlite:///{(folder / 'study.db').absolute()}")


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first difference between two sweeps, in words."""
    old, new = ({**flatten(identity.pop("settings")), **identity} for identity in (dict(before), dict(after)))
    for name in [*new, *old]:
        if old.get(name) != new.get(name):
            if name in ("data_hash", "space"):
                return f"its {name.removesuffix('_hash')} is another"
            return f"{name} was {old.get(name)!r}, and is now {new.get(name)!r}"
    return None


def _remove(folder: Path) -> None:
    """Remove what a sweep wrote, and nothing else."""
    for path in (folder / name for name in _FILES):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def start_worker(pool: ProcessPool, plan: SweepPlan, log: Path) -> None:
    """Start a process that trains trials of the plan."""
    pool.start("regard.experiments.sweep.worker", plan.to_json(), log, threads=1)


def _search(
    study: Study, storage: RDBStorage, plan: SweepPlan, *, num_workers: int, lock: int, show_progress: bool
) -> None:
    """Finish all trials; raises if a worker fails, or if the user stops them, with all state saved."""
    logs = [plan.path / "logs" / f"worker-{number}.log" for number in range(num_workers)]
    with process_pool(lock) as pool, progress_bars(is_shown=show_progress) as progress:
        monitor = _Monitor(study, storage, plan, progress)
        while not monitor.is_finished:
            for log in logs:
                start_worker(pool, plan, log)
            while any(process.poll() is None for process in pool.processes):
                pool.wait()
                monitor.update()
            for process, log in zip(pool.processes, logs, strict=False):
                if process.returncode != 0:
                    raise RunError(f"a worker failed: {last_log_line(log)}")
            pool.stop()
            monitor.update()
            if not monitor.is_finished:
                log_info("waiting for trials that run on other machines")
            while not (monitor.is_finished or monitor.has_queue):
                pool.wait()
                retry_stale(study, storage, plan.owner)
                monitor.update()


class _Monitor:
    """Follows the trials of a study: logs each that ends, copies its evaluations to the ledger, shows progress."""

    def __init__(self, study: Study, storage: RDBStorage, plan: SweepPlan, progress: Progress) -> None:
        self._study, self._storage, self._plan, self._progress = study, storage, plan, progress
        self._ledger = _SweepLedger(plan.path)
        self._total = progress.add_task("trials", total=plan.num_trials)
        self._bars: dict[int, TaskID] = {}
        self._ended: set[int] = set()
        self._last_heartbeat = time.monotonic()
        self.has_queue = False
        """Whether an interrupted trial is to be trained again."""
        self.update(is_logged=False)
        if self._ended:
            log_info(f"{len(self._ended)} of {plan.num_trials} trials are already finished")

    @property
    def is_finished(self) -> bool:
        return len(self._ended) >= self._plan.num_trials

    def update(self, *, is_logged: bool = True) -> None:
        """Read the trials, and record the heartbeat of those that this folder trains."""
        trials = trials_of(self._study)
        for index, trial in trials.items():
            if has_ended(trial) and index not in self._ended:
                self._ended.add(index)
                self._ledger.add(f"trial {index}", trial.user_attrs.get(TrialKey.EVALUATIONS, []))
                if is_logged:
                    log_info(describe_trial(index, trial, self._plan))
        self.has_queue = any(trial.state == TrialState.WAITING for trial in trials.values())
        running = [index for index, trial in trials.items() if self._is_running_here(trial)]
        if time.monotonic() - self._last_heartbeat >= HEARTBEAT_SECONDS:
            self._last_heartbeat = time.monotonic()
            record_heartbeats(self._study, self._storage, self._plan.owner)
        train = self._plan.settings["train"]
        self._show({index: budget_fraction(self._plan.trial_path(index), train) for index in running})

    def _is_running_here(self, trial: FrozenTrial) -> bool:
        return trial.state == TrialState.RUNNING and trial.user_attrs.get(TrialKey.OWNER) == self._plan.owner

    def _show(self, fractions: Mapping[int, float]) -> None:
        for index in [index for index in self._bars if index not in fractions]:
            self._progress.remove_task(self._bars.pop(index))
        for index, fraction in fractions.items():
            if index not in self._bars:
                self._bars[index] = self._progress.add_task(f"trial {index}", total=1.0)
            self._progress.update(self._bars[index], completed=fraction)
        self._progress.update(self._total, completed=len(self._ended) + sum(fractions.values()))


class _SweepLedger:
    """The ledger of the sweep, with the evaluations of all its runs, each once."""

    def __init__(self, folder: Path) -> None:
        self._ledger = Ledger(folder / "ledger.jsonl")
        self._known = {(line["event"], line["candidate"]) for line in self._ledger.read()}

    def add(self, run: str, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Copy the evaluations of one run."""
        for each in evaluations:
            key = each["event"], f"{run}, {each['candidate']}"
            if key not in self._known:
                more = {"release": each["release"]} if "release" in each else {}
                self._ledger.add("valid", *key, each["scores"], evaluated=each["time"], **more)
                self._known.add(key)


def describe_trial(index: int, trial: FrozenTrial, plan: SweepPlan) -> str:
    """The result of a trial, in a line."""
    attributes = trial.user_attrs
    values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in trial.params.items()}
    settings = ", ".join(f"{name} {value}" for name, value in values.items())
    if TrialKey.FAILURE in attributes:
        return f"trial {index} failed: {attributes[TrialKey.FAILURE]} ({settings})"
    if TrialKey.VALUES not in attributes:
        loss = best_loss(attributes.get(TrialKey.EVALUATIONS, []))
        return f"trial {index}: pruned at step {attributes.get(TrialKey.STEPS, 0):,}, loss {loss:.4g} ({settings})"
    found = attributes[TrialKey.VALUES]
    reached = ", ".join(
        f"{score_label(each.name)} "
        + ("no better than the released one" if (value := found[each.name]) is None else f"{value:.4g}")
        for each in plan.objectives
    )
    return f"trial {index}: {reached} after {format_duration(found['seconds'])} ({settings})"


def _repeat_jobs(plan: SweepPlan, winner: int, params: Mapping[str, Any]) -> list[Job]:
    """The winner's settings with other seeds; their test rows stay sealed."""
    jobs = []
    for number in range(1, plan.repeats + 1):
        settings = plan.repeat_settings(nested(params), number)
        seed, path = settings["train"]["seed"], str(plan.repeat_path(number))
        jobs.append(
            Job(label=f"trial {winner}", seed=seed, path=path, data=plan.data, settings=settings, threads=1,
                is_evaluated=False)
        )  # fmt: skip
    return jobs


def _keep_repeats_of(plan: SweepPlan, winner: int) -> None:
    """Remove the repeats of an earlier winner, where more trials have found a better one."""
    note = plan.path / "repeats" / "winner.json"
    if note.is_file() and load_json(note.read_text(encoding="utf-8")) != winner:
        shutil.rmtree(note.parent)
    note.parent.mkdir(exist_ok=True)
    write_atomically(note, json.dumps(winner).encode())


def _record_selection(plan: SweepPlan, winner: int) -> None:
    """Write to the ledgers of the winner and of its repeats how many models it was selected from, for certificates."""
    judged = len(candidates_in(Ledger(plan.path / "ledger.jsonl").read()))
    paths = [plan.trial_path(winner), *(plan.repeat_path(number) for number in range(1, plan.repeats + 1))]
    for folder in map(RunFolder, paths):
        if folder.exists:  # the winner may be on another machine
            folder.record_selection(by="valid", models=plan.num_trials, candidates=judged)


def find_winner(study: Study, plan: SweepPlan) -> int:
    """The index of the best finished trial by the first objective; of several objectives it is Pareto-optimal."""
    trials = trials_of(study)
    finished = [index for index, trial in trials.items() if trial.state == TrialState.COMPLETE]
    if not finished:
        reasons = [
            trial.user_attrs[TrialKey.FAILURE] for trial in trials.values() if TrialKey.FAILURE in trial.user_attrs
        ]
        raise RunError(f"no trial was finished: {reasons[-1] if reasons else 'all were pruned'}")
    return min(finished, key=lambda index: _rank(index, trials[index], plan.objectives))


def sweep_table(study: Study, plan: SweepPlan) -> dict[str, Any]:
    """The table of a finished sweep: the content of `result.json`."""
    number, trials = find_winner(study, plan), trials_of(study)
    winner, ledger = trials[number], Ledger(plan.path / "ledger.jsonl")
    num_hypotheses = len(candidates_in(ledger.read()))
    done = {index: trial for index, trial in trials.items() if has_ended(trial)}
    ranked = sorted(done, key=lambda index: _rank(index, done[index], plan.objectives))
    optimal = pareto_front(done, plan.objectives)
    rows, bound = _bound(winner, plan, num_hypotheses)
    return {
        "data": ", ".join(Path(name).name for name in plan.data),
        "task": plan.task,
        "model": plan.preset,
        "objectives": [{"name": each.name, "direction": each.direction} for each in plan.objectives],
        "sampler": plan.sampler,
        "pruner": plan.pruner,
        "seed": plan.seed,
        "budget": plan.budget,
        "space": plan.space,
        "num_trials": len(done),
        "trials": [_describe(index, done[index], plan, is_optimal=index in optimal) for index in ranked],
        "winner": _describe_winner(number, winner, plan, is_proportion=bound is not None),
        "importance": importance_of(study, is_maximized=plan.objectives[0].is_maximized),
        "rows": rows,
        "hypotheses": num_hypotheses,
        "smallest_difference": smallest_difference(rows, num_candidates=max(2, num_hypotheses)),
        "bound": None if bound is None else bound.to_json(),
        "release": winner.user_attrs[TrialKey.REPORT].get("release"),
        "ledger": ledger.head,
        "paths": plan.data,
        "shared": {name: value for name, value in flatten(plan.settings).items() if name != "data.train"},
        "version": version(),
    }


def _rank(index: int, trial: FrozenTrial, objectives: Sequence[SweepObjective]) -> tuple[int, float, float, int]:
    """Finished trials by the first objective, ties by loss; then pruned ones, longest first; then others."""
    loss = best_loss(trial.user_attrs.get(TrialKey.EVALUATIONS, []))
    if trial.state == TrialState.COMPLETE:
        return 0, objectives[0].sign * trial.values[0], loss, index
    kind = 1 if trial.state == TrialState.PRUNED else 2
    return kind, -float(trial.user_attrs.get(TrialKey.STEPS, 0)), loss, index


def pareto_front(trials: dict[int, FrozenTrial], objectives: Sequence[SweepObjective]) -> set[int]:
    """The indices of finished trials that no other dominates: none is better in one objective and worse in no other."""
    points = {
        index: [objective.sign * value for objective, value in zip(objectives, trial.values, strict=True)]
        for index, trial in trials.items()
        if trial.state == TrialState.COMPLETE
    }

    def dominates(one: list[float], other: list[float]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    return {index for index, point in points.items() if not any(dominates(other, point) for other in points.values())}


def _describe(index: int, trial: FrozenTrial, plan: SweepPlan, *, is_optimal: bool) -> dict[str, Any]:
    values, evaluations = trial.user_attrs.get(TrialKey.VALUES, {}), trial.user_attrs.get(TrialKey.EVALUATIONS, [])
    losses = [line["scores"]["loss"] for line in evaluations if "loss" in line["scores"]]
    return {
        "number": index,
        "state": _STATES[trial.state],
        "settings": dict(trial.params),
        "values": {objective.name: values.get(objective.name) for objective in plan.objectives},
        "is_pareto_optimal": is_optimal,
        "loss": min(losses, default=None),
        "steps": trial.user_attrs.get(TrialKey.STEPS, 0),
        "seconds": values.get("seconds"),
        "parameters": values.get("parameters"),
        "evaluations": len({line["candidate"] for line in evaluations}),
        "failure": trial.user_attrs.get(TrialKey.FAILURE),
        "run": str(plan.trial_path(index)),
    }


def _describe_winner(index: int, winner: FrozenTrial, plan: SweepPlan, *, is_proportion: bool) -> dict[str, Any]:
    """The winner, and the values of its settings with other seeds; `optimism` is the difference."""
    objective = plan.objectives[0]
    value = winner.user_attrs[TrialKey.VALUES][objective.name]
    if value is None:  # the trials with a released score have failed
        value = winner.user_attrs[TrialKey.REPORT]["scores"][objective.name]["value"]
    folders = [RunFolder(plan.repeat_path(number)) for number in range(1, plan.repeats + 1)]
    repeats = [float(measure_run(folder)[objective.name] or 0.0) for folder in folders]
    mean = statistics.fmean(repeats) if repeats else None
    interval = list(mean_interval(repeats)[1:]) if len(repeats) > 1 else None
    if is_proportion and interval is not None:
        interval = [min(1.0, max(0.0, end)) for end in interval]
    return {
        "number": index,
        "settings": dict(winner.params),
        "value": value,
        "repeats": repeats,
        "mean": mean,
        "interval": interval,
        "optimism": None if mean is None else objective.sign * (mean - value),
        "runs": [str(folder.path) for folder in folders],
    }


def _bound(winner: FrozenTrial, plan: SweepPlan, num_hypotheses: int) -> tuple[int, Bound | None]:
    """N, and the bounds of the winner's true score, where it is a proportion of rows."""
    report = winner.user_attrs[TrialKey.REPORT]
    if (release := report.get("release")) is not None:
        is_proportion = release["kind"] == "proportion"
        return release["examples"], bound_released(
            read_release(release), release["examples"], is_proportion=is_proportion, delta=DELTA
        )
    scores, rows = correct_rows(report, plan.objectives[0].name), int(report["rows"])
    return rows, None if scores is None else tightest_bound(scores, num_candidates=max(1, num_hypotheses), delta=DELTA)
