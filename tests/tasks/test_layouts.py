"""Files in the layouts of public data sets are recognized and read without any setting."""

import logging
from pathlib import Path

import pytest
from tests.tasks.layouts import LAYOUTS, Layout

from regard.data.settings import DataConfig
from regard.errors import DataError
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
        with pytest.raises(DataError) as error:
            recognize_and_read(data)
        assert [part for part in layout.says if part not in str(error.value)] == []
        return
    name, rows = recognize_and_read(data, reads=layout.row is not None)
    assert name == layout.task, caplog.text
    if layout.row is not None:
        assert tuple(map(str, rows[0][: len(layout.row)])) == layout.row
    assert [part for part in layout.says if part not in caplog.text] == []


def recognize_and_read(data: list[str], *, reads: bool = True) -> tuple[str, list[tuple[str, ...]]]:
    """The name of the task, and its rows."""
    found = with_task({"data": {"train": data}})
    kind = find_task(found["task"]["name"])
    if not reads:
        return kind.name, []
    task = make_task(kind.Settings.draft(found["task"], section="task"))
    return kind.name, task.read(DataConfig.read(found["data"], section="data"))[0]
