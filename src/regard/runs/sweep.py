"""Settings searched: many trials under one budget, the winner trained anew, and a count of every look.

    sweep.json           what was asked; space.toml: where it searches
    study.db             the trials, in Optuna's storage, unless another is named
    trials/0000 ...      a run folder each
    again/1 ...          the winner's settings with other seeds
    ledger.jsonl         each look at the validation rows, of all of them
    result.json          what came out; sweep.html and sweep.png: to look at

The best of many trials is the best by skill and by luck. So its settings are trained again with seeds that had no
part in the choice, and what they reach is shown beside what won; and M, the number of looks that one was chosen
among, is read off the ledger for the bound.
"""

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.data.sources import Rows
from regard.errors import ConfigError, DataError, RunError, RunExistsError
from regard.files import write_atomically
from regard.logging import log_info
from regard.runs.kept_plan import read_kept
from regard.runs.launch import find_hardware, flat, paths_or_rows
from regard.runs.sweep_plan import SweepPlan, Wishes, forewarning, make_plan
from regard.runs.sweep_worker import Order, open_study
from regard.selection.ledger import Ledger, hypotheses
from regard.selection.space import nested
from regard.settings import merge, to_toml
from regard.training.folder import RunFolder
from regard.training.resolution import usual_preset, with_preset

_OWN = ("study.db", "space.toml", "trials", "again", "ledger.jsonl", "ledger.head", "result.json", "sweep.html",
        "sweep.png", "logs", "sweep.json")  # fmt: skip
"""What a sweep makes in its folder; what says that it is one comes last."""
_COLUMNS = {1: ("text",), 2: ("text", "label"), 3: ("text1", "text2", "label")}


@dataclass(frozen=True)
class Sweep:
    """What came out: `table` is result.json, `page` a page to look at."""

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
    settings: Mapping[str, Any] | None = None,
    again: int = 3,
    seed: int = 0,
    storage: str | None = None,
    workers: int | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
) -> Sweep:
    """Search settings: train trials under one budget, train the winner anew, and say what can be said of it.

    Args:
        data: As for `regard.train`.
        space: A TOML file, or the tables of one: for each setting a range or choices.
        trials: How many in all. Unset: 50, or each point of a grid. A sweep that is there may be given more.
        sampler: random, tpe (near what did well), or grid.
        pruner: none, or hyperband: ends trials early that fall behind.
        objectives: Names of scores, or loss, parameters, seconds. Unset: the task's first score, or the loss.
        minutes: The budget of each trial. Trials by time are not the same on another machine.
        steps: The budget, in steps instead. Unset: 160 on a CPU, 2,000 on a GPU.
        model: The name of a preset.
        settings: What all trials share, nested as in `run.toml`.
        again: How often the winner's settings are trained with other seeds.
        seed: Of the proposals.
        storage: The URL of a database that several machines share, each with a folder of its own.
        workers: Processes that train at a time, a thread each. Unset: one for each core, or one on a GPU.
        out: The folder of the sweep. One that was interrupted goes on.
        overwrite: Start anew.
        show_progress: Show progress bars on stderr.
    """
    paths, rows = paths_or_rows(data)
    if not paths and not rows:
        raise DataError("no data to learn from: name a file, a folder, or hand in rows")
    if workers is not None and workers < 1:
        raise ConfigError(f"a sweep needs at least one worker, got {workers}")
    if overwrite and storage is not None:
        raise ConfigError(
            "a storage that others may use is not overwritten: give another seed, and it is another sweep"
        )
    folder = Path(out if out is not None else _usual_folder(paths))
    given = dict(settings or {}) | ({} if model is None else {"preset": model})
    wishes = Wishes(settings=given, space=space, trials=trials, sampler=sampler, pruner=pruner, objectives=objectives,
                    minutes=minutes, steps=steps, again=again, seed=seed)  # fmt: skip
    plan = make_plan(folder, wishes, paths or [str(folder / "rows.jsonl")], rows)
    if rows is not None:
        plan = replace(plan, settings=merge(plan.settings, {"data": {"columns": _columns(rows)}}))
    plan = _keep(plan, storage, rows, overwrite=overwrite)
    return _run(plan, workers=workers or _usual_workers(plan), show_progress=show_progress)


def _run(plan: SweepPlan, *, workers: int, show_progress: bool) -> Sweep:
    # Imported here, since they load Optuna, which a bad wish need not wait for.
    from regard.explanation.sweep import draw_sweep, write_sweep
    from regard.runs.sweep_pool import held, note_again, run_again, run_search
    from regard.runs.sweep_study import left_behind
    from regard.runs.sweep_verdict import find_winner, verdict

    with held(plan.path) as lock:
        study = open_study(plan)
        unfinished = left_behind(study, plan.owner)
        at_once = min(workers, plan.num_trials)
        log_info(f"{plan.num_trials} trials of {plan.budget}, {at_once} at a time, in {plan.path}")
        log_info(forewarning(plan))
        if unfinished:
            log_info(f"taking up {len(unfinished)} trials that were left behind")
        run_search(study, plan, unfinished, lock=lock, workers=at_once, show_progress=show_progress)
        winner = find_winner(study, plan)
        _require_same_winner(plan, winner.number)
        again = [
            (str(plan.again_path(number)), plan.again_settings(nested(winner.params), number))
            for number in range(1, plan.again + 1)
        ]
        at_once = min(workers, len(again))
        orders = [Order(plan.to_json(), is_searching=False, again=again[part::at_once]) for part in range(at_once)]
        if orders:
            log_info(f"trial {winner.number} won: training its settings again with {len(again)} other seeds")
            run_again(plan, orders, lock=lock, show_progress=show_progress)
        note_again(plan, winner.number)
        table = verdict(study, plan)
        _note_selection(plan, winner.number)
    write_atomically(plan.path / "result.json", json.dumps(table, ensure_ascii=False).encode())
    draw_sweep(table, plan.path / "sweep.png")
    write_sweep(plan.path / "sweep.html", table)
    return Sweep(plan.path, table)


def _keep(plan: SweepPlan, storage: str | None, rows: Rows | None, *, overwrite: bool) -> SweepPlan:
    """Write down what the folder is to hold, or raise if it holds something else; more trials may join it."""
    from regard.runs.sweep_study import open_storage, without_password

    folder, path = plan.path, plan.path / "sweep.json"
    before = read_kept(path)
    shown = None if storage is None else without_password(storage)
    if before is not None and not overwrite:
        if (difference := _difference(before["asked"], {**plan.asked, "storage": shown})) is not None:
            raise RunExistsError(f"{folder} holds another sweep: {difference}; overwrite it, or name another folder")
        if plan.num_trials < before["trials"]:
            raise ConfigError(f"{folder} holds a sweep of {before['trials']} trials, and cannot have {plan.num_trials}")
    elif before is None and any((folder / name).exists() for name in _OWN):
        raise RunError(f"{folder} holds something that is not a sweep: name another folder")
    if storage is not None:
        open_storage(storage)  # before anything is written
    owner = before["owner"] if before is not None and not overwrite else uuid.uuid4().hex
    try:
        if overwrite:
            _remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if rows is not None:
            _write_rows(folder, rows)
        kept = {"asked": {**plan.asked, "storage": shown}, "trials": plan.num_trials, "owner": owner, "data": plan.data}
        write_atomically(folder / "space.toml", to_toml(nested(plan.space)).encode())
        write_atomically(path, json.dumps(kept, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write a sweep to {folder}: {error.strerror or error}") from None
    return replace(plan, owner=owner, storage=storage or f"sqlite:///{(folder / 'study.db').absolute()}")


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first thing in which two sweeps differ, in words."""
    old, new = ({**flat(asked.pop("settings")), **asked} for asked in (dict(before), dict(after)))
    for name in [*new, *old]:
        if old.get(name) != new.get(name):
            is_short = name not in ("data_hash", "space")
            what = {"data_hash": "its data", "space": "its space"}.get(name, name)
            return f"{what} was {old.get(name)!r}, and would be {new.get(name)!r}" if is_short else f"{what} is another"
    return None


def _note_selection(plan: SweepPlan, winner: int) -> None:
    """The certificate of the winner, and of those trained like it, is to know from how many it was chosen."""
    judged = len(hypotheses(Ledger(plan.path / "ledger.jsonl").read()))
    paths = [plan.trial_path(winner), *(plan.again_path(number) for number in range(1, plan.again + 1))]
    for folder in map(RunFolder, paths):
        if folder.exists:  # the winner of several machines may lie on another one
            folder.note_selection(by="valid", models=plan.num_trials, hypotheses=judged)


def _require_same_winner(plan: SweepPlan, number: int) -> None:
    """The runs of an earlier winner make room, where more trials have found a better one."""
    note = plan.path / "again" / "winner.json"
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) != number:
        shutil.rmtree(plan.path / "again")
    note.parent.mkdir(exist_ok=True)
    write_atomically(note, json.dumps(number).encode())


def _remove(folder: Path) -> None:
    """Take away what a sweep made, and nothing else that lies here."""
    if not (folder / "sweep.json").is_file():
        return
    for name in _OWN:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _columns(rows: Rows) -> list[str]:
    """What the columns of rows in memory are called once they are in a file, by how many they are."""
    width = len(rows[0])
    if width not in _COLUMNS or any(len(row) != width for row in rows):
        raise DataError("rows must all be a text, or one or two texts and what belongs to them behind")
    return list(_COLUMNS[width])


def _write_rows(folder: Path, rows: Rows) -> None:
    """Rows in memory as a file that every worker can read."""
    names = _columns(rows)
    lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    write_atomically(folder / "rows.jsonl", "".join(lines).encode())


def _usual_workers(plan: SweepPlan) -> int:
    values = plan.settings
    device = find_hardware(with_preset(values, usual_preset(values))).device.type
    return 1 if device == "cuda" else os.cpu_count() or 1


def _usual_folder(paths: Sequence[str]) -> Path:
    stem = (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "rows"
    return Path("runs") / f"sweep-{stem}"
