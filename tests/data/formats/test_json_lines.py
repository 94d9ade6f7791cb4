"""JSON lines and JSON arrays: their elements, the lines on which these begin, and what is wrong with them."""

import json
from pathlib import Path

import pytest

from regard.data.formats.json_lines import is_json_array, iter_json_lines, sample_json_lines
from regard.data.formats.tables import open_table
from regard.errors import DataError

RECORDS = [{"de": "eins, [zwei]", "en": 'one "}"'}, {"de": "drei\n", "en": "\u00fcber 1.50"}, {"de": "x", "en": "{y"}]


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_an_array_has_the_rows_of_json_lines(tmp_path: Path, indent: int | None, ending: str):
    lines, array = tmp_path / "lines.json", tmp_path / "array.json"
    lines.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    array.write_text("\n " + json.dumps(RECORDS, indent=indent) + "\n", newline=ending)
    assert not is_json_array(lines)
    assert is_json_array(array)
    rows = [row.values for row in open_table(array, columns=("de", "en"))]
    assert rows == [row.values for row in open_table(lines, columns=("de", "en"))]
    assert rows == [(record["de"], record["en"]) for record in RECORDS]


def test_an_element_has_the_line_on_which_it_begins(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text('[\n{"a": "b",\n "c": "d"},\n\n{"a": "e"}, {"a": 1}]')
    assert list(iter_json_lines(path)) == ["", '{"a": "b",\n "c": "d"}', "", "", '{"a": "e"}', '{"a": 1}']
    with pytest.raises(DataError, match=r"2 of 3 rows of a\.json have no field 'c': lines 5, 6"):
        open_table(path, columns=("a", "c")).check()


def test_lines_that_are_lists_are_not_an_array(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text('["a", "b"]\n["c", "d"]\n')
    assert not is_json_array(path)
    path.write_text('[["a", "b"],\n["c", "d"]]\n')
    assert is_json_array(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"a": "b"},\n{"a": ]', r"a\.json is an array that is not JSON: line 3: ']' is not expected there"),
        ('[{"a": "b"},\n{"a": "c"}', r"line 2: it ends early"),
        ('[{"a": "b"},\n\n{"a": "c', "line 3: it ends early"),
        ("[]", "has an array without elements"),
        ('[{"a": NaN}]', "line 1: NaN is not JSON"),
        ('[\n{"a": "b"}\n]\n\n{"a": "c"}\n', "line 5: there is more text after the end of the array"),
        ('[{"a": "b"} {"a": "c"}]', "line 1: an element is followed by neither a comma nor the end"),
        ('[{"a": "b"},\n,\n{"a": "c"}]', "line 2: ',' is not expected there"),
        ("[" * 10_000, "levels deep"),
    ],
)
def test_a_broken_array_is_an_error_with_its_line(tmp_path: Path, text: str, message: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        sample_json_lines(tmp_path / "a.json", 100)
