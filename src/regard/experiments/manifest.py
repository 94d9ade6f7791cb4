"""The folder of an experiment: its manifest, and data in memory as a file.

The manifest, `manifest.json`, lists the runs of the experiment with their settings. The same command continues an
interrupted experiment; a command with other settings, or on other data, is refused.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.formats.messages import format_names
from regard.data.prepare import Prepared
from regard.data.sources import NamedRows, Rows
from regard.errors import DataError, RunError, RunExistsError
from regard.experiments.jobs import Job
from regard.files import load_json, require_writable, write_atomically
from regard.runs.folder import RunFolder
from regard.runs.run import split_paths_and_rows
from regard.runs.train import given_values, with_choices, with_task
from regard.settings import merge_tables

MANIFEST = "manifest.json"
_ROWS = "rows.jsonl"
_COLUMNS = {1: ("text",), 2: ("source", "target"), 3: ("text1", "text2", "label")}
"""The names of the columns of rows in memory once they are in a file, by their number."""


def default_folder(kind: str, data: Any, suffix: str = "") -> Path:
    """The folder of an experiment that the user has not named: `runs/compare-pairs` for the data `pairs.tsv`."""
    paths, _ = split_paths_and_rows(data)
    stem = (Path(paths[0]).absolute().name.split(".")[0] if paths else "") or "rows"
    return Path("runs") / f"{kind}-{stem}{suffix}"


def shared_values(
    *,
    task: str | None,
    columns: Sequence[str] | None,
    encoding: str | None,
    tokenizer: str | None,
    device: str | None,
) -> dict[str, Any]:
    """The options that the runs of an experiment share, as settings."""
    return given_values(
        task={"name": task, "tokenizer": tokenizer},
        data={"columns": None if columns is None else list(columns), "encoding": encoding},
        train={"device": device},
    )


def with_data(
    settings: Mapping[str, Any],
    data: str | os.PathLike[str] | Sequence[str] | Rows,
    folder: Path,
    *,
    what: str,
    overwrite: bool,
    mark: str = MANIFEST,
    is_tuned: bool = False,
) -> dict[str, Any]:
    """The settings with the paths of the data, its task, and what the task chooses for it.

    Rows in memory become a file that every run can read. A model that is fine-tuned has a tokenizer, and `is_tuned`.
    A folder that is not empty must have the file `mark` of an earlier experiment.
    """
    _require_vacant(folder, what, mark)
    paths, rows = split_paths_and_rows(data)
    if not paths and not rows:
        raise DataError("no data: name a file, a folder or a built-in data set, or pass rows")
    if rows is None:
        found = with_task(merge_tables(settings, {"data": {"train": paths}}))
        return found if is_tuned else with_choices(found)
    has_names = isinstance(rows, NamedRows)
    columns = rows.names if has_names else _COLUMNS.get(len(rows[0]), ())
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns) or not columns:
            raise DataError(
                f"rows must all have 1, 2 or 3 columns, got {len(rows[0])} in row 1 and {len(row)} in row {number}"
            )
    found = with_task(settings, rows)
    found = found if is_tuned else with_choices(found, rows)
    path = folder / _ROWS
    lines = "".join(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    if path.exists() and path.read_bytes() != lines.encode() and not overwrite:
        raise RunExistsError(f"{folder} contains a {what} on other rows: overwrite it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lines.encode())
    chosen = {} if has_names else {"columns": list(columns)}
    return merge_tables(found, {"data": {"train": [str(path)], **chosen}})


def write_manifest(
    folder: Path, jobs: Sequence[Job], data: Prepared, *, what: str, shares_tokenizer: bool, overwrite: bool
) -> None:
    """Write the manifest of `jobs`, or raise if the folder contains something else; more runs may be added.

    `what` names the experiment in messages. With `shares_tokenizer`, all runs on the whole training set have one
    tokenizer, which is checked too.
    """
    path = folder / MANIFEST
    wanted: dict[str, Any] = {Path(job.path).name: [job.settings, job.generation] for job in jobs}
    wanted = load_json(json.dumps(wanted))  # as it will be read
    before = read_manifest(path)
    if before is not None and overwrite:
        for name in before:
            shutil.rmtree(folder / name, ignore_errors=True)
    elif before is not None:
        changed = [name for name, settings in wanted.items() if before.get(name, settings) != settings]
        if changed:
            raise RunExistsError(
                f"{folder} contains a {what} with other settings (of {changed[0]}): overwrite it, "
                "or name another folder"
            )
        _check_same_data(jobs, data, what=what, shares_tokenizer=shares_tokenizer)
        wanted = {**before, **wanted}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(wanted, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"cannot write a {what} to {folder}: {error.strerror or error}") from None


def _require_vacant(folder: Path, what: str, mark: str) -> None:
    """Raise if the folder has files of others; what an interrupted command left is no obstacle."""
    if folder.is_dir() and not (folder / mark).exists():
        found = sorted(path.name for path in folder.iterdir() if path.name != _ROWS and not path.name.startswith("."))
        if found:
            raise RunError(f"{folder} is neither empty nor a {what}, it has {format_names(found)}: name another folder")
    require_writable(folder)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """What an earlier command wrote; None where there was none."""
    if not path.is_file():
        return None
    try:
        return dict(load_json(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; name another folder") from None


def _check_same_data(jobs: Sequence[Job], data: Prepared, *, what: str, shares_tokenizer: bool) -> None:
    """Finished runs must have been trained on the present data, otherwise they are scored on other examples."""
    for job in jobs:
        run = RunFolder(job.path)
        if not run.exists:
            continue
        is_same = run.read_provenance().data_hash == data.content_hash
        if is_same and shares_tokenizer and job.train_rows is None:
            stored = run.read_codecs(run.read_settings())
            is_same = all(codec.to_json() == data.codecs[name].to_json() for name, codec in stored.items())
        if not is_same:
            raise RunExistsError(
                f"{run.path.parent} contains a {what} on other data (of {run.path.name}): "
                "overwrite it, or name another folder"
            )
