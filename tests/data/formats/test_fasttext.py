"""The format of fastText: labels with a prefix before each text."""

from pathlib import Path

import pytest

from regard.data.formats.tables import open_table
from regard.errors import BadRowsError

LINES = [f"__label__{'ham' if n % 2 else 'spam'} a text , number {n}" for n in range(40)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in (*LINES, *lines)))
    return path


@pytest.mark.parametrize("name", ["train.txt", "cooking.train", "train"])
def test_labels_and_texts_are_columns(tmp_path: Path, name: str):
    table = open_table(write(tmp_path / name, "", "__label__a  __label__b\tc __label__d"), roles=("text", "label"))
    rows = [row.values for row in table]
    assert rows[:2] == [("a text , number 0", "spam"), ("a text , number 1", "ham")]
    assert rows[-1] == ("__label__d", "a b\tc") or rows[-1] == ("c __label__d", "a b")
    assert table.inferred == [f"read {name} as fastText; text = text, label = label"]


def test_a_line_without_a_label_or_a_text_is_a_bad_row(tmp_path: Path):
    path = write(tmp_path / "train.txt", "nothing", "__label__ham")
    with pytest.raises(BadRowsError) as caught:
        open_table(path, roles=("text", "label")).check()
    assert str(caught.value) == (
        "2 of 42 rows of train.txt are bad: 1 has no __label__ at its beginning (line 41); "
        "1 has an empty text (line 42)"
    )


def test_running_text_that_quotes_the_prefix_is_not_this_format(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("__label__x is a label\n" + "and this is text\n" * 9)
    assert open_table(path, roles=("text",)).format == "lines"
