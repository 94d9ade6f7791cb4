"""Files in the layouts of public data sets: the task that is recognized, and the first row as it reads it."""

from pathlib import Path

import pytest
from tests.tasks.layouts import LAYOUTS, Layout

from regard.data.settings import DataConfig
from regard.errors import ConfigError, DataError
from regard.tasks import find_task, make_task
from regard.tasks.registry import recognize

OPEN = {
    "imdb as folders": "a folder of texts for each label",
    "newsgroups as folders": "a folder of texts for each label",
    "trec": "a label before the first space",
    "lists of labels": "lists of labels beside a text",
    "cmudict": "two spaces between columns",
    "chats of sharegpt": "roles that are called human and gpt",
    "enzymes": "the format of TU Dortmund",
}
"""Layouts that are not read, with what is missing; one that is read is taken off this list."""


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(
            layout,
            id=layout.name,
            marks=[pytest.mark.xfail(reason=OPEN[layout.name], strict=True)] if layout.name in OPEN else [],
        )
        for layout in LAYOUTS
    ],
)
def test_a_public_layout_is_recognized_and_read(tmp_path: Path, layout: Layout):
    config = DataConfig(train=layout.write(tmp_path))
    if layout.task is None:
        with pytest.raises((ConfigError, DataError)) as caught:
            recognize(config)
        assert all(part in str(caught.value) for part in layout.says)
        return
    task, found = recognize(config)
    assert task == layout.task
    assert dict(layout.settings).items() <= dict(found.settings).items()
    if layout.row is None:
        assert all(part in found.reason for part in layout.says)
        return
    settings = find_task(task).Settings.draft({"name": task, **found.settings}, section="task")
    source = make_task(settings).open(config.changed(columns=list(found.columns)) if found.columns else config)
    row = next(iter(source.train))
    assert row.values[: len(layout.row)] == layout.row
    assert all(part in f"{found.reason} {source.inferred}" for part in layout.says)
