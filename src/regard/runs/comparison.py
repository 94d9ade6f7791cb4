"""Models compared: the same data in the same order, the same budget, several seeds, and a test of each difference."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.sources import Rows
from regard.errors import DataError
from regard.explanation.comparison import draw_curves, write_comparison
from regard.files import write_atomically
from regard.logging import log_info
from regard.runs.kept_plan import keep_plan
from regard.runs.launch import with_task
from regard.runs.plan import Budget, Plan, make_plan, read_contenders, read_seeds
from regard.runs.pool import run_jobs
from regard.runs.verdict import verdict
from regard.selection.ledger import hypotheses
from regard.settings import merge
from regard.training.folder import RunFolder

_USUAL: dict[str, Any] = {"train": {"patience": 0}}
"""Every run uses its whole budget, unless the user wants otherwise."""


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

    Models of pairs are compared by their answers to the test rows, language models by how probable they
    hold the test text: in bits per byte, of which fewer are better.

    Args:
        data: As for `regard.train`.
        models: Names of presets, or paths of TOML files with a `[model]` table.
        minutes: The budget of each run.
        steps: The budget, in steps instead.
        flops: The budget, in operations instead.
        seeds: How many, or which; runs of one seed see the data in the same order.
        params: Make each model as wide as so many parameters allow.
        sizes: Also train on so many rows, or documents, only, to see what more data brings.
        settings: What all models share, nested as in `run.toml`.
        beam_size: Hypotheses of beam search when the test rows are answered; not for text.
        out: The folder of the comparison. One that was interrupted goes on.
        overwrite: Start anew.
        jobs: Runs at a time. Unset: one for each core, or one on a GPU.
        show_progress: Show progress bars on stderr.
    """
    budget, chosen = Budget(minutes, steps, flops), read_seeds(seeds)
    paths = _paths(data)
    folder = Path(out if out is not None else Path("runs") / f"compare-{_stem(paths)}")
    if not paths:
        paths = [str(_write_rows(folder, data))]
    shared = with_task(merge(_USUAL, merge(settings or {}, {"data": {"train": paths}})))
    plan = make_plan(
        Plan(
            folder=folder,
            contenders=read_contenders(models, shared),
            seeds=chosen,
            budget=budget,
            row_counts=list(sizes),
            generation={} if beam_size is None else {"beam_size": beam_size},
        ),
        params=params,
        at_once=jobs,
    )
    keep_plan(folder, plan.jobs, plan.data, what="comparison", is_cut_alike=True, overwrite=overwrite)
    log_info(f"{len(plan.jobs)} runs of {budget}, {plan.at_once} at a time, in {folder}")
    run_jobs(plan.jobs, num_at_once=plan.at_once, logs=folder / "logs", show_progress=show_progress)
    table = verdict(plan)
    _note_selection(plan)
    write_atomically(folder / "compare.json", json.dumps(table, ensure_ascii=False).encode())
    write_comparison(folder / "compare.html", table)
    draw_curves(table, folder / "compare.png")
    return Comparison(folder, table)


def _note_selection(plan: Plan) -> None:
    """Whoever takes the best of these runs has chosen among them: the ledger of each says so."""
    folders = [RunFolder(job.path) for job in plan.jobs]
    judged = sum(len(hypotheses(folder.read_looks())) for folder in folders)
    for folder in folders:
        folder.note_selection(by="test" if folder.has_test else "valid", models=len(folders), hypotheses=judged)


def _paths(data: Any) -> list[str]:
    """The files or the name that `data` is, or nothing where it is rows."""
    items = [data] if isinstance(data, str | os.PathLike) else list(data)
    return [str(item) for item in items] if all(isinstance(item, str | os.PathLike) for item in items) else []


def _stem(paths: Sequence[str]) -> str:
    return (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "rows"


def _write_rows(folder: Path, rows: Any) -> Path:
    """Rows in memory as a file that every run can read."""
    path = folder / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    names = ("text",) if all(len(row) == 1 for row in rows) else ("source", "target")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise DataError(f"rows must all be texts, or all be pairs, but row {number} has {len(row)} columns")
    lines = (json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows)
    write_atomically(path, "".join(line + "\n" for line in lines).encode())
    return path
