"""Excel workbooks: the first sheet as a table, and what cannot be read in it."""

import datetime
import sys
from pathlib import Path

import pytest

from regard.data.formats import excel
from regard.data.formats.tables import open_table
from regard.errors import BadRowsError, DataError, RegardError

openpyxl = pytest.importorskip("openpyxl", reason="the extra regard[excel] is not installed")
ROLES = ("text", "label")


def write(path: Path, *sheets: list[list[object]]) -> Path:
    workbook = openpyxl.Workbook()
    workbook.active.title = "Ratings"
    for sheet, rows in zip([workbook.active, *(workbook.create_sheet() for _ in sheets[1:])], sheets, strict=True):
        for row in rows:
            sheet.append(row)
    workbook.save(path)
    return path


def refusal(path: Path, kind: type[RegardError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        open_table(path, roles=ROLES).check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_first_sheet_is_read_with_its_header(tmp_path: Path):
    rows = [[None, "Text", "Note"], [0, "gut", 1], [1, " schön ", 2.5], [None, None, None], [2, "öde", True]]
    path = write(tmp_path / "ratings.xlsx", rows, [["other"]])
    table = open_table(path, roles=ROLES)
    assert [(row.line, row.values) for row in table] == [
        (2, ("gut", "1")),
        (3, (" schön ", "2.5")),
        (5, ("öde", "true")),
    ]
    sheet = "Excel (sheet Ratings, the first of 2) with a header"
    index = "column 1 of ratings.xlsx numbers the rows, and is not used"
    assert table.inferred == [f"read ratings.xlsx as {sheet}; text = Text, label = Note of 3 columns", index]
    assert next(iter(open_table(path, roles=ROLES, columns=("3", "Text")))).values == ("1", "gut")


def test_an_index_and_a_missing_header_are_recognized(tmp_path: Path):
    path = write(tmp_path / "a.xlsx", [[number, f"text {number}", "ab"[number % 2]] for number in range(1, 30)])
    table = open_table(path, roles=ROLES)
    assert table.inferred[1] == "column 1 of a.xlsx numbers the rows, and is not used"
    assert "without a header; text = column 2, label = column 3" in table.inferred[0]
    assert table.check() == 29
    assert next(iter(open_table(path, roles=ROLES, header=True, columns=("2", "3")))).values == ("text 2", "a")


@pytest.mark.parametrize("is_merged", [False, True])
def test_the_title_of_a_sheet_is_not_a_row_of_its_table(tmp_path: Path, is_merged: bool):
    rows = [[f"the room {number} was as expected", "ab"[number % 2]] for number in range(20)]
    path = write(tmp_path / "a.xlsx", [["Survey of 2024"], [], ["Comment", "Rating"], *rows])
    if is_merged:
        workbook = openpyxl.load_workbook(path)
        workbook.active.merge_cells("A1:B1")
        workbook.save(path)
    table = open_table(path, roles=ROLES)
    assert table.columns == ("Comment", "Rating")
    assert [(row.line, list(row.values)) for row in table] == list(enumerate(rows, 4))


def test_a_title_above_a_table_without_a_header_is_not_a_row_of_it(tmp_path: Path):
    rows = [[f"the room {number} was as expected", "ab"[number % 2]] for number in range(20)]
    path = write(tmp_path / "a.xlsx", [["Survey of 2024"], *rows])
    assert [(row.line, list(row.values)) for row in open_table(path, roles=ROLES)] == list(enumerate(rows, 2))


def test_dates_are_written_as_in_iso_8601(tmp_path: Path):
    path = write(tmp_path / "a.xlsx", [["text", "label"], ["a", datetime.date(2024, 5, 31)]])
    assert next(iter(open_table(path, roles=ROLES))).values[1].startswith("2024-05-31")


def test_a_changed_file_is_read_again(tmp_path: Path):
    path = write(tmp_path / "a.xlsx", [["text", "label"], ["a", "x"]])
    assert open_table(path, roles=ROLES).check() == 1
    write(path, [["text", "label"], ["a", "x"], ["b", "y"]])
    assert open_table(path, roles=ROLES).check() == 2


def test_merged_cells_formulas_and_errors_are_counted_with_their_rows(tmp_path: Path):
    path = write(tmp_path / "a.xlsx", [["text", "label", "note"], *([f"text {n}", n, "-"] for n in range(2, 12))])
    workbook = openpyxl.load_workbook(path)
    sheet = workbook.active
    sheet.merge_cells("B3:B5")
    sheet.merge_cells("C7:C9")
    sheet["B8"] = "=A1&A2"
    sheet["B10"] = "#N/A"
    workbook.save(path)
    message = refusal(path, BadRowsError)
    assert message == (
        "4 of 10 rows of a.xlsx are bad: 2 have a merged cell in label (rows 4, 5); 1 has a formula without a stored "
        "value in label (row 8); 1 has the error #N/A in label (row 10)"
    )
    assert open_table(path, roles=ROLES, skip_bad=True).check() == 6
    sheet.merge_cells("A1:C1")
    workbook.save(path)
    assert refusal(path) == "the first row of a.xlsx has merged cells: A1:C1"


def test_what_is_no_workbook_is_an_error(tmp_path: Path):
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04 and nothing else")
    assert "a.xlsx is damaged, or is not an Excel workbook: " in refusal(tmp_path / "a.xlsx")
    (tmp_path / "a.xlsx").write_text("text,label\n")
    assert refusal(tmp_path / "a.xlsx").endswith(
        "a.xlsx is damaged, or is not an Excel workbook: it is not a ZIP archive"
    )
    assert refusal(write(tmp_path / "b.xlsx", [], [["text", "label"], ["a", "x"]])) == (
        "the sheet 'Ratings' of b.xlsx has no cells; only the first sheet is read"
    )
    (tmp_path / "a.xlsx.gz").write_bytes(b"\x1f\x8b")
    assert refusal(tmp_path / "a.xlsx.gz").endswith("decompress it first")
    assert refusal(write(tmp_path / "b.xlsx", [[]])) == "the sheet 'Ratings' of b.xlsx has no cells"


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "a.xlsx", [["text", "label"], ["a", "x"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    excel._load.cache_clear()
    assert refusal(path) == f"reading {path} needs the package openpyxl: install regard[excel]"
