"""A cache of its own for every test, and data prepared by a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.tasks import find_task


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prepare() -> Callable[..., Prepared[Any]]:
    """Prepares a file, several files or rows; settings are those of the data or of the task."""

    def prepare(task: str, data: Any, **settings: Any) -> Prepared[Any]:
        rows = data if isinstance(data, list) and not all(isinstance(each, Path) for each in data) else None
        paths = (
            ["(rows in memory)"] if rows is not None else [str(p) for p in (data if isinstance(data, list) else [data])]
        )
        own = {name: settings.pop(name) for name in list(settings) if name not in DataConfig.model_fields}
        found = find_task(task)
        if "tokenizer" in found.Settings.model_fields:
            own.setdefault("tokenizer", "characters")
        config = DataConfig.read({"train": paths, **settings})
        return found(found.Settings.draft({"name": task, **own})).prepare(config, rows)

    return prepare
