"""`compare`: plan, train, test the differences, and write `compare.json`, `compare.html` and `compare.png`."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.sources import Rows
from regard.experiments.compare.plan import Budget, ComparisonPlan, plan_comparison, read_candidates
from regard.experiments.compare.results import comparison_table
from regard.experiments.jobs import read_seeds, run_jobs
from regard.experiments.manifest import default_folder, shared_values, with_data, write_manifest
from regard.explanation.report.comparison import draw_curves, write_comparison
from regard.files import write_atomically
from regard.logging import log_info
from regard.runs.folder import RunFolder
from regard.selection.ledger import candidates_in
from regard.settings import merge_tables

_DEFAULTS: dict[str, Any] = {"train": {"patience": 0}}
"""No early stopping: every run uses its whole budget, unless the user sets another patience."""


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: `table` is the content of compare.json, `page` the HTML page."""

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
    task: str | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    beam_size: int | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    jobs: int | None = None,
    show_progress: bool = True,
) -> Comparison:
    """Train each model with each seed under one budget, and test which differences are significant.

    Models with outputs are compared by their outputs for the test rows, language models by the likelihood of the test
    text, in bits per byte (lower is better).

    Args:
        data: As for `regard.train`.
        models: Names of presets, or paths of TOML files with a `[model]` table.
        minutes: The budget of each run, in minutes of training.
        steps: The budget in steps instead.
        flops: The budget in floating-point operations instead.
        seeds: Their number, or a list of them; runs of one seed read the data in the same order.
        params: The number of parameters; the width of each model is chosen accordingly.
        sizes: Sizes of smaller training sets, in rows or documents, on which each model is trained too.
        task: The name of a task; unset, it is detected from the data.
        columns: The columns to use, by name or by position from 1.
        encoding: The encoding of text files, such as windows-1252; unset, it is detected.
        tokenizer: bpe, unigram, characters, bytes, words, wordpunct, or the path of a tokenizer.json.
        device: auto, cpu, cuda or cuda:N.
        settings: What all models share, nested as in `run.toml`.
        beam_size: The beam size for the test rows; not for text.
        out: The folder of the comparison. An interrupted comparison is continued.
        overwrite: Replace the comparison in `out`.
        jobs: Runs at a time. Unset: one for each core, or one on a GPU.
        show_progress: Show progress bars on stderr.

    Example:
        found = regard.compare("pairs.tsv", ["lstm-attention", "transformer"], minutes=5, seeds=3)
        found.table["pairs"][0]["is_significant"]
    """
    budget, chosen = Budget(minutes, steps, flops), read_seeds(seeds)
    folder = Path(out if out is not None else default_folder("compare", data))
    given = shared_values(task=task, columns=columns, encoding=encoding, tokenizer=tokenizer, device=device)
    values = merge_tables(merge_tables(_DEFAULTS, settings or {}), given)
    shared = with_data(values, data, folder, what="comparison", overwrite=overwrite)
    plan = plan_comparison(
        ComparisonPlan(
            folder=folder,
            candidates=read_candidates(models, shared),
            seeds=chosen,
            budget=budget,
            train_sizes=list(sizes),
            generation={} if beam_size is None else {"beam_size": beam_size},
        ),
        params=params,
        num_parallel=jobs,
    )
    write_manifest(folder, plan.jobs, plan.data, what="comparison", shares_tokenizer=True, overwrite=overwrite)
    log_info(f"{len(plan.jobs)} runs of {budget}, {plan.num_parallel} at a time, in {folder}")
    run_jobs(plan.jobs, folder=folder, num_parallel=plan.num_parallel, show_progress=show_progress)
    table = comparison_table(plan)
    _record_selection(plan)
    write_atomically(folder / "compare.json", json.dumps(table, ensure_ascii=False).encode())
    write_comparison(folder / "compare.html", table)
    draw_curves(table, folder / "compare.png")
    return Comparison(folder, table)


def _record_selection(plan: ComparisonPlan) -> None:
    """Write to the ledger of each run that it is one of several: taking the best of them is a selection."""
    folders = [RunFolder(job.path) for job in plan.jobs]
    judged = sum(len(candidates_in(folder.read_ledger())) for folder in folders)
    for folder in folders:
        folder.record_selection(by="test" if folder.has_test else "valid", models=len(folders), candidates=judged)
