"""The plan of several runs, kept in their folder: the same command goes on with it, another one is refused."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.data.preparation import Prepared
from regard.errors import RunError, RunExistsError
from regard.files import write_atomically
from regard.runs.job import Job
from regard.training.folder import RunFolder


def keep_plan(
    folder: Path, jobs: Sequence[Job], data: Prepared, *, what: str, is_cut_alike: bool, overwrite: bool
) -> None:
    """Write down what `folder` is to hold, or raise if it holds something else; more runs may join it.

    `what` is what the runs are together, such as a comparison. With `is_cut_alike`
    those of all training rows have one tokenizer.
    """
    path = folder / "plan.json"
    wanted: dict[str, Any] = {Path(job.path).name: [job.settings, job.generation] for job in jobs}
    wanted = json.loads(json.dumps(wanted))  # as it will be read again
    before = read_kept(path)
    if before is not None and overwrite:
        for name in before:
            shutil.rmtree(folder / name, ignore_errors=True)
    elif before is not None:
        changed = [name for name, settings in wanted.items() if before.get(name, settings) != settings]
        if changed:
            raise RunExistsError(
                f"{folder} holds a {what} with other settings (of {changed[0]}): overwrite it, or name another folder"
            )
        _require_same_data(jobs, data, what=what, is_cut_alike=is_cut_alike)
        wanted = {**before, **wanted}
    elif folder.is_dir() and any((folder / name).exists() for name in wanted):
        raise RunError(f"{folder} holds something that is not a {what}: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(wanted, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write a {what} to {folder}: {error.strerror or error}") from None


def _require_same_data(jobs: Sequence[Job], data: Prepared, *, what: str, is_cut_alike: bool) -> None:
    """Runs that are there were trained on the data as it is now, or they would be judged by other examples."""
    for job in jobs:
        run = RunFolder(job.path)
        if not run.exists:
            continue
        record = run.read_settings().record
        assert record is not None, "a run folder has a record"
        is_same = record.data_hash == data.content_hash
        if is_same and is_cut_alike and job.train_rows is None:
            is_same = run.read_tokenizer().to_json() == data.tokenizer.to_json()
        if not is_same:
            raise RunExistsError(
                f"{run.path.parent} holds a {what} on other data (of {run.path.name}): "
                "overwrite it, or name another folder"
            )


def read_kept(path: Path) -> dict[str, Any] | None:
    """What was asked for in a folder of several runs before; None where nothing was."""
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; name another folder") from None
