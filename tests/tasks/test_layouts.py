"""Files in the layouts of public data sets are recognized and read without any setting."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.layouts import LAYOUTS, Layout

from regard.data.settings import DataConfig
from regard.errors import ConfigError, DataError
from regard.runs.train import with_task
from regard.tasks.registry import find_task, make_task


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_recognized_and_read(layout: Layout, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="regard")
    if any(name.endswith(".parquet") for name in layout.files):
        pytest.importorskip("pyarrow")
    if layout.task == "molecule-properties":
        pytest.importorskip("rdkit")
    data = layout.write(tmp_path)
    if layout.task is None:
        with pytest.raises((ConfigError, DataError)) as error:
            recognize_and_read(data)
        assert [part for part in layout.says if part not in str(error.value)] == []
        return
    settings, rows = recognize_and_read(data, reads=layout.row is not None)
    assert settings["name"] == layout.task, caplog.text
    assert dict(layout.settings).items() <= settings.items()
    if layout.row is not None:
        assert tuple(map(str, rows[0][: len(layout.row)])) == layout.row
    assert [part for part in layout.says if part not in caplog.text] == []


def recognize_and_read(data: list[str], *, reads: bool = True) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """The settings of the task, and its rows."""
    found = with_task({"data": {"train": data}})
    settings = found["task"]
    if not reads:
        return settings, []
    task = make_task(find_task(settings["name"]).Settings.draft(settings, section="task"))
    return settings, task.read(DataConfig.read(found["data"], section="data"))[0]
