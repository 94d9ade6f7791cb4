"""Tables: every format, what is inferred, and invalid rows."""

import csv
import gzip
import json
import lzma
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from regard.data.formats.decimals import with_numbers
from regard.data.formats.tables import Table, TableRow, open_table, rows_hash, table_from_rows
from regard.errors import BadRowsError, ConfigError, DataError, RegardError

PAIRS = [("Hallo", "Hello"), ('Er sagte "ja"', "He said, yes"), ("Zeile\u2028zwei", "line\u0085two"), ("ß; ü | ö", "x")]
NAMES = ("source", "target")


def write(path: Path, content: str) -> Path:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8", newline="") as stream:
        stream.write(content)
    return path


def write_csv(path: Path, rows: Sequence[Sequence[str]], delimiter: str = ",", line_end: str = "\r\n") -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        # The writer takes "\r" for an end of line, to be quoted, only if its own ends have it.
        quoting = csv.QUOTE_MINIMAL if "\r" in line_end else csv.QUOTE_ALL
        csv.writer(stream, delimiter=delimiter, lineterminator=line_end, quoting=quoting).writerows(rows)
    return path


def write_parquet(path: Path, columns: dict[str, object]) -> Path:
    parquet.write_table(pyarrow.table(columns), path, row_group_size=3)
    return path


def values(table: Table) -> list[tuple[str, ...]]:
    return [row.values for row in table]


def refusal(path: Path | Sequence[Path], **options: object) -> str:
    """What reading the whole of a table ends with."""
    with pytest.raises(RegardError) as caught:
        open_table(path, **options).check()  # pyright: ignore[reportArgumentType]
    message = str(caught.value)
    assert "\n" not in message
    assert not message.endswith(".")
    return message


def tsv(rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def make(kind: str, folder: Path, pairs: Sequence[tuple[str, str]] = PAIRS) -> Path | list[Path]:
    """The pairs, written in one of the ways a table can be."""
    if kind.startswith("tsv"):
        return write(folder / f"pairs.{kind}", tsv([NAMES, *pairs]))
    if kind == "csv":
        return write_csv(folder / "pairs.csv", [NAMES, *pairs])
    if kind == "csv with ;":
        return write_csv(folder / "pairs.csv", [NAMES, *pairs], delimiter=";")
    if kind == "csv with |":
        return write_csv(folder / "pairs.csv", [NAMES, *pairs], delimiter="|")
    if kind == "jsonl":
        return write(
            folder / "pairs.jsonl", "".join(json.dumps(dict(zip(NAMES, p, strict=True))) + "\n" for p in pairs)
        )
    if kind == "nested jsonl":
        lines = [json.dumps({"id": 7, "translation": {"de": s, "en": t}}, ensure_ascii=False) + "\n" for s, t in pairs]
        return write(folder / "pairs.jsonl.xz", "".join(lines))
    if kind == "parquet":
        return write_parquet(folder / "pairs.parquet", {n: [p[i] for p in pairs] for i, n in enumerate(NAMES)})
    if kind == "nested parquet":
        rows = [{"de": source, "en": target} for source, target in pairs]
        return write_parquet(folder / "pairs.parquet", {"id": list(range(len(rows))), "translation": rows})
    assert kind == "aligned"
    return [write(folder / f"train.{n}.gz", "".join(p[i] + "\r\n" for p in pairs)) for i, n in enumerate(("de", "en"))]


KINDS = ["tsv", "tsv.gz", "csv", "csv with ;", "csv with |", "jsonl", "nested jsonl", "parquet", "nested parquet"]


@pytest.mark.parametrize("kind", [*KINDS, "aligned"])
def test_every_format_gives_the_rows_back_each_time(tmp_path: Path, kind: str):
    path = make(kind, tmp_path)
    table = open_table(path)
    assert values(table) == PAIRS
    assert values(table) == PAIRS
    assert table.check() == len(PAIRS)
    assert table.format == kind.removeprefix("nested ").partition(" ")[0].partition(".")[0]
    assert table.paths == (tuple(path) if isinstance(path, list) else (path,))
    assert len(table.inferred) == (0 if kind == "aligned" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_taken_by_name_and_by_position(tmp_path: Path, kind: str):
    path = make(kind, tmp_path)
    names = ("en", "translation.de") if "nested" in kind else ("target", "SOURCE")
    backwards = [pair[::-1] for pair in PAIRS]
    assert values(open_table(path, columns=names)) == backwards
    positions = ("3", "2") if "nested" in kind else ("2", "1")
    by_position = open_table(path, columns=positions)
    assert values(by_position) == backwards
    expected = ("translation.en", "translation.de") if "nested" in kind else ("target", "source")
    assert by_position.columns == expected


def test_a_table_can_be_sent_to_another_process(tmp_path: Path):
    table = open_table(make("csv", tmp_path))
    assert values(pickle.loads(pickle.dumps(table))) == PAIRS


def test_passes_over_one_table_do_not_disturb_each_other(tmp_path: Path):
    table = open_table(make("tsv", tmp_path))
    assert [first.values for first, _ in zip(table, table, strict=True)] == PAIRS


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), min_size=1).filter(str.strip)
LINE_CELL = CELL.filter(lambda cell: not set(cell) & set("\t\r\n"))


def rows_of(cell: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(cell, cell), min_size=1)


@settings(deadline=None)  # files, and a machine with other work
@given(rows=rows_of(CELL), delimiter=st.sampled_from(",;|"), line_end=st.sampled_from(["\n", "\r\n"]))
def test_csv_that_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], delimiter: str, line_end: str
):
    # The header settles which delimiter it is.
    path = write_csv(tmp_path_factory.getbasetemp() / "any.csv", [NAMES, *rows], delimiter, line_end)
    assert values(open_table(path)) == rows


@settings(deadline=None)  # files, and a machine with other work
@given(rows=rows_of(LINE_CELL))
def test_tsv_that_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]):
    path = write(tmp_path_factory.getbasetemp() / "any.tsv", tsv(rows))
    assert values(open_table(path, header=False)) == rows


@settings(deadline=None)  # files, and a machine with other work
@given(rows=rows_of(CELL), is_ascii=st.booleans())
def test_jsonl_that_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], is_ascii: bool
):
    lines = [json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=is_ascii) for row in rows]
    path = write(tmp_path_factory.getbasetemp() / "any.jsonl", "\n".join(lines))
    assert values(open_table(path)) == rows


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path):
    path = write(tmp_path / "pairs.csv", 'source,target\n\n"a\nb","""c"""\nd,"e\n\n"\nf,g\n')
    expected = [TableRow(3, ("a\nb", '"c"')), TableRow(5, ("d", "e\n\n")), TableRow(8, ("f", "g"))]
    assert list(open_table(path)) == expected


def test_a_csv_cell_may_be_longer_than_the_standard_library_allows(tmp_path: Path):
    article = "Satz, noch einer\n" * 20_000
    path = write_csv(tmp_path / "pairs.csv", [NAMES, (article, 'kurz "gut"')])
    assert values(open_table(path)) == [(article, 'kurz "gut"')]


def test_a_mark_and_carriage_returns_do_not_reach_the_names_or_values(tmp_path: Path):
    path = write(tmp_path / "pairs.tsv", "\ufeffsource\ttarget\r\na\tb\r\n")
    assert values(open_table(path, columns=("target", "source"))) == [("b", "a")]


def test_a_quotation_mark_in_tsv_is_a_character(tmp_path: Path):
    path = write(tmp_path / "pairs.tsv", '"a\tb"\n"c"\t"d\n')
    assert values(open_table(path)) == [('"a', 'b"'), ('"c"', '"d')]


@pytest.mark.parametrize(
    ("content", "roles", "format", "columns"),
    [
        ("Go.\tGeh.\tCC-BY\nHi, you\tHallo, du\tCC-BY\n", NAMES, "tsv", ("1", "2")),
        ('{"text": "a", "label": 1}\n', ("text", "label"), "jsonl", ("text", "label")),
        ("one;eins\ntwo;zwei\n", NAMES, "csv", ("1", "2")),
        ("Well, a comma\tand a tab\n", ("text",), "lines", ("1",)),
    ],
)
def test_the_format_is_sniffed_where_the_name_is_silent(
    tmp_path: Path, content: str, roles: tuple[str, ...], format: str, columns: tuple[str, ...]
):
    table = open_table(write(tmp_path / "data.txt", content), roles=roles)
    assert (table.format, table.columns) == (format, columns)
    assert len(table.inferred) == 1


@pytest.mark.parametrize(
    ("content", "guess"),
    [
        ("Hallo\tHello\n", "read data as TSV without a header; source = column 1, target = column 2"),
        ("de\ten\nHallo\tHello\n", "read data as TSV with a header; source = de, target = en"),
        ("label\tid\ttext\n0\t7\tgood\n", "read data as TSV with a header; source = text, target = label of 3 columns"),
        ("id;Answer;Question\n1;b;a\n", "read data as CSV separated by ';' with a header; source = Question, "
         "target = Answer of 3 columns"),
        ("Is it late?\tno\n", "read data as TSV without a header; source = column 1, target = column 2"),
        ("smiles,p_np\nCCO,1\nCO,0\nC,1\n", "read data as CSV with a header; source = smiles, target = p_np"),
        ("text\tsource\nx\ty\n", "read data as TSV with a header; source = source, target = text"),
        ('{"tgt": "b", "src": "a"}\n', "read data as JSON lines; source = src, target = tgt"),
    ],
)  # fmt: skip
def test_what_is_inferred_is_reported(tmp_path: Path, content: str, guess: str):
    assert open_table(write(tmp_path / "data", content)).inferred == [guess]


def test_many_columns_that_have_the_names_of_their_roles_are_named_once(tmp_path: Path):
    path = write(tmp_path / "data", "smiles,a,b,c\nCCO,1,2,3\nCO,4,5,6\n")
    table = open_table(path, roles=("molecule", "a", "b", "c"), columns=("smiles", "a", "b", "c"))
    assert table.inferred == ["read data as CSV with a header; molecule = smiles, a, b, c"]


def test_what_is_given_is_not_inferred(tmp_path: Path):
    path = write(tmp_path / "pairs.tsv", "alt\tneu\n1\t2\n")
    named = open_table(path, columns=("neu", "alt"))
    assert (values(named), named.inferred) == ([("2", "1")], [])
    positions = open_table(path, columns=("2", "1"), header=False)
    assert (values(positions), positions.inferred) == ([("neu", "alt"), ("2", "1")], [])
    as_lines = open_table(path, roles=("text",), format="lines")
    assert (values(as_lines), as_lines.inferred) == ([("alt\tneu",), ("1\t2",)], [])


def test_a_cell_that_is_a_digit_does_not_make_a_header(tmp_path: Path):
    path = write(tmp_path / "data.tsv", "1\tgood film\n2\tbad film\n")
    assert values(open_table(path, columns=("2", "1"))) == [("good film", "1"), ("bad film", "2")]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("p.tsv", "source\ttarget\na\tb\n", ("sorce", "target"),
         "p.tsv has no column 'sorce'; it has source, target; did you mean 'source'?"),
        ("p.tsv", "Tag\tday\n", ("de", "en"), "p.tsv has no column 'de'; its first row is not a header: Tag, day"),
        ("p.csv", "a,b\n", ("1", "3"), "p.csv has no column 3; it has 2 columns"),
        ("p.jsonl", '{"t": {"de": "a", "en": "b"}, "l": []}', ("de", "l"),
         "p.jsonl has no column 'l'; it has t.de, t.en"),
        ("p.tsv", "a\nb\n", None, "p.tsv has 1 column, but 2 are needed (source, target): "
         "separate columns by tabs, or give one aligned file for each"),
        ("p.txt", "a\nb\n", None, "p.txt has 1 column, but 2 are needed (source, target): "
         "separate columns by tabs, or give one aligned file for each"),
        ("p.jsonl", '{"text": "a"}\n', None, "p.jsonl has 1 column (text), but 2 are needed (source, target)"),
        ("p.json", '{\n  "a": "b"\n }\n', None,
         "p.json is not JSON lines: none of its first lines is an object, as {...} on one line"),
    ],
)  # fmt: skip
def test_columns_that_are_not_there_are_refused(
    tmp_path: Path, name: str, content: str, columns: tuple[str, ...] | None, message: str
):
    assert refusal(write(tmp_path / name, content), columns=columns) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["a"]}, "one column is needed for each of source, target, got 1 column (a)"),
        ({"columns": "ab"}, "columns must be a list of names, got the string 'ab'"),
        ({"roles": "text"}, "roles must be a list of names, got the string 'text'"),
        ({"roles": []}, "roles must be distinct and at least one, got ()"),
        ({"format": "xls"},
         "format must be one of tsv, csv, jsonl, parquet, xlsx, fasta, fasttext, aligned, lines, folders, semeval, "
         "semeval-terms, got 'xls'"),
        ({"format": "lines", "roles": ["text"], "header": True},
         "only TSV, CSV and Excel may have a header, got header=True for lines"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, object], message: str):
    path = write(tmp_path / "pairs.tsv", "a\tb\n")
    with pytest.raises(ConfigError):
        open_table(path, **options)  # pyright: ignore[reportArgumentType]
    assert refusal(path, **options) == message


def test_bad_rows_are_counted_and_reported_at_the_end_of_a_pass(tmp_path: Path):
    lines = [f"{number}\tx" for number in range(1_000)]
    lines[3] = lines[8] = lines[16] = "lonely"
    path = write(tmp_path / "pairs.tsv", "\n".join(lines))
    table = open_table(path)
    seen: list[TableRow] = []
    with pytest.raises(DataError) as caught:
        seen.extend(table)
    assert len(seen) == 997
    assert str(caught.value) == "3 of 1,000 rows of pairs.tsv have 1 column instead of 2: lines 4, 9, 17"
    assert refusal(path) == str(caught.value)


BAD = [
    ("p.tsv", "a\tb\nc\td\te\nf\tg\n", "1 of 3 rows of p.tsv has 3 columns instead of 2: line 2"),
    ("p.tsv", "broken\na\tb\nf\tg\n", "1 of 3 rows of p.tsv has 1 column instead of 2: line 1"),
    ("p.tsv", "source\ttarget\tid\na\tb\nf\tg\n", "2 of 2 rows of p.tsv have 2 columns instead of 3: lines 2, 3"),
    ("p.tsv", "a\tb\n \td\nf\t\n" + "\tx\n" * 6, "8 of 9 rows of p.tsv are bad: 7 have an empty source "
     "(lines 2, 4, 5, 6, 7, …); 1 has an empty target (line 3)"),
    ("p.csv", 'a,b\n"c"x,d\n', "1 of 2 rows of p.csv has text after a closing quote: line 2"),
    ("p.csv", 'a,b\nc,"d\n\ne,f\n', "the quote opened in line 2 of p.csv is not closed, so the 2 lines after it "
     "cannot be separated"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": "x"\n', "1 of 2 rows of p.jsonl has invalid JSON: line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n["x", "y"]\n',
     "1 of 2 rows of p.jsonl has a list or a single value instead of an object: line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": "x"}\n', "1 of 2 rows of p.jsonl has no field 'b': line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": null, "b": "y"}\n',
     "1 of 2 rows of p.jsonl has null in field 'a': line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": {}, "b": "y"}\n',
     "1 of 2 rows of p.jsonl has an object in field 'a': line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": [], "b": "y"}\n',
     "1 of 2 rows of p.jsonl has a list in field 'a': line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": NaN, "b": "y"}\n', "1 of 2 rows of p.jsonl has invalid JSON: line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": "\\ud800", "b": "y"}\n',
     "1 of 2 rows of p.jsonl has a NUL or half a surrogate pair in field 'a': line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n{"a": "\\u0000", "b": "y"}\n',
     "1 of 2 rows of p.jsonl has a NUL or half a surrogate pair in field 'a': line 2"),
    ("p.jsonl", '{"a": "x", "b": "y"}\n' + '{"a":' * 100_000, "1 of 2 rows of p.jsonl has invalid JSON: line 2"),
    ("p.tsv", "source\ttarget\n", "p.tsv has no rows"),
    ("p.csv", "source,target\n,\n\n", "p.csv has no rows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_each_kind_of_bad_row_is_an_error(tmp_path: Path, name: str, content: str, message: str):
    assert refusal(write(tmp_path / name, content)) == message


def test_bad_rows_can_be_skipped_and_are_reported(tmp_path: Path):
    path = write(tmp_path / "p.tsv", "a\tb\n\nc\n\td\ne\tf\n\t\n")
    table = open_table(path, skip_bad=True)
    assert str(table.bad_rows) == "no bad rows in p.tsv"
    assert list(table) == [TableRow(1, ("a", "b")), TableRow(5, ("e", "f"))]
    assert table.bad_rows.counts == {"1 column instead of 2": 1, "an empty source": 1}
    assert table.bad_rows.first_lines == {"1 column instead of 2": [3], "an empty source": [4]}
    assert (table.bad_rows.total, table.bad_rows.num_good) == (2, 2)
    assert str(table.bad_rows) == (
        "2 of 4 rows of p.tsv are bad: 1 has 1 column instead of 2 (line 3); 1 has an empty source (line 4)"
    )


def test_skipping_every_row_is_still_an_error(tmp_path: Path):
    path = write(tmp_path / "p.tsv", "source\ttarget\n\tb\nc\t\u00a0\n")
    assert refusal(path, skip_bad=True).startswith("2 of 2 rows of p.tsv are bad")


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl", "p.txt"])
def test_a_file_of_blank_lines_is_refused(tmp_path: Path, name: str):
    path = write(tmp_path / name, "\n  \n\r\n")
    assert refusal(path) == f"{path} has nothing but blank lines"


def test_numbers_and_truth_values_are_text_as_written(tmp_path: Path):
    path = write(tmp_path / "p.jsonl", '{"text": 1.50, "label": true}\n{"text": 123456789012345678901, "label": 0}\n')
    assert values(open_table(path, roles=("text", "label"))) == [("1.50", "true"), ("123456789012345678901", "0")]


def test_parquet_rows_without_text_are_reported_by_number(tmp_path: Path):
    path = write_parquet(tmp_path / "p.parquet", {"source": ["a", None, "c", "d"], "target": [1, 2, 3, None]})
    assert refusal(path) == (
        "2 of 4 rows of p.parquet are bad: 1 has null in field 'source' (row 2); 1 has null in field 'target' (row 4)"
    )
    assert list(open_table(path, skip_bad=True)) == [TableRow(1, ("a", "1")), TableRow(3, ("c", "3"))]


def test_parquet_that_is_damaged_or_wrapped_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_parquet(tmp_path / "p.parquet", {"source": ["a"], "target": ["b"], "words": [["c"]]})
    assert refusal(path, columns=("source", "words")) == "p.parquet has no column 'words'; it has source, target"
    wrapped = tmp_path / "p.parquet.gz"
    wrapped.write_bytes(gzip.compress(path.read_bytes()))
    assert refusal(wrapped).endswith(
        "is a compressed Parquet file; Parquet is compressed internally: decompress it first"
    )
    path.write_bytes(path.read_bytes()[:-5])
    assert refusal(path).startswith(f"{path} is damaged, or is not Parquet: ")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(path) == f"reading {path} needs the package pyarrow: install regard[parquet]"


def test_rows_in_memory_make_a_table(tmp_path: Path):
    table = table_from_rows(iter(PAIRS))
    assert values(table) == values(table) == PAIRS
    assert (table.paths, table.format, table.columns, table.inferred) == ((), "rows", ("1", "2"), [])
    assert values(table_from_rows(["ab", "cd"], ("text",))) == [("ab",), ("cd",)]


def test_bad_rows_in_memory_are_reported(tmp_path: Path):
    rows = [("a", "b"), "cd", ("e",), ("f", None), ("g", 7), ("h", " ")]
    with pytest.raises(DataError) as caught:
        table_from_rows(rows).check()  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        "4 of 6 rows of the table in memory are bad: 2 have 1 value instead of 2 (rows 2, 3); "
        "1 has null in column 2 (row 4); 1 has an empty target (row 6)"
    )
    with pytest.raises(DataError, match="the table in memory has no rows"):
        table_from_rows([]).check()


def test_the_hash_of_rows_sees_where_texts_and_rows_end():
    tables = [[("ab", "c")], [("a", "bc")], [("ab",), ("c",)], [("ab", "c"), ()], [("ab", "ç")], [("ab", "\ud800")]]
    assert len({rows_hash(rows) for rows in tables}) == len(tables)
    assert rows_hash([["ab", "c"]]) == rows_hash(iter([("ab", "c")]))


SENTENCES = [f"Satz Nummer {number} ist lang" for number in range(12)]


@pytest.mark.parametrize(
    ("rows", "has_header"),
    [
        ([("word", "pronunciation"), ("a", "AH"), ("be", "B IY")], True),
        ([("word", "Aussprache"), *((f"w{n}", f"AH {n}") for n in range(12))], True),
        ([("Tag", "day"), ("Nacht", "night")], False),
        ([("word", "Wort"), *((f"w{n}", f"v{n}x") for n in range(3))], False),
        ([("satz", "en"), *((text, text.upper()) for text in SENTENCES)], True),
        ([("Hallo", "Hello"), *((text, text) for text in SENTENCES)], False),
        ([("", "a", "b"), ("0", "x", "y"), ("1", "z", "w"), ("2", "v", "u")], True),
        ([("", "a", "b"), ("7", "x", "y"), ("9", "z", "w"), ("8", "v", "u")], True),
        ([("", "a", "b"), ("7", "x", "y"), ("7", "z", "w"), ("8", "v", "u")], False),
        ([("wann", "was"), ("2024-05-31", "x"), ("2024-06-01", "y"), ("2024-06-02", "z")], True),
        ([("was", "preis"), ("x", "3,5"), ("y", "n/a"), ("z", "1.234,5"), ("v", "7")], True),
        ([("Name", "the mean of what was measured in the year before"), ("x", "1"), ("y", "2"), ("z", "3")], True),
        ([("was", "3,5"), ("x", "3,5"), ("y", "2"), ("z", "4,25")], False),
        # A word among numbers is an error below a title; the same word twice is no title.
        ([("was", "preis"), ("x", "teuer"), *((f"v{n}", f"{n}") for n in range(12))], True),
        ([("was", "teuer"), ("x", "teuer"), *((f"v{n}", f"{n}") for n in range(12))], False),
        ([("was", "preis"), ("x", "teuer"), *((f"v{n}", f"{n}") for n in range(7))], False),
        ([("form", "lemma"), ("casas", "casa"), ("vino", "venir")], True),
        ([("definition", "category"), *((text, f"noun.{n}") for n, text in enumerate(SENTENCES))], True),
        ([("Frage", "gut"), *((text, f"w{n}") for n, text in enumerate(SENTENCES))], False),
        ([("wort_im_satz", "satz_davor"), *((f"w{n}", f"v{n}") for n in range(12))], True),
        ([("w_1", "v_1"), *((f"w_{n}", f"v_{n}") for n in range(2, 12))], False),
        ([("kanzi", "yomi"), *((chr(0x4E00 + n), f"v{n}x") for n in range(12))], True),
        ([("OK", "gut"), *((chr(0x4E00 + n), f"v{n}x") for n in range(9))], False),
        ([("anchor", "positive"), ("a cat", "a kitten"), ("a dog", "a puppy")], True),
        ([("fine", "positive"), ("a dog", "negative"), ("a long film", "positive")], False),
        ([("subject", "time"), ("p1", "later"), ("p2", "3")], True),
        # A single word above sentences, beside a word that is none of the labels below it.
        ([("Kommentar", "Bewertung"), *((text, "gut" if n % 3 else "übel") for n, text in enumerate(SENTENCES))], True),
        ([("Kommentar", "gut"), *((text, "gut" if n % 3 else "übel") for n, text in enumerate(SENTENCES))], False),
        ([("Kommentar", "Bewertung"), *((text, f"w{n}") for n, text in enumerate(SENTENCES))], False),
        (
            [("so ein Satz", "Bewertung"), *((text, "gut" if n % 3 else "übel") for n, text in enumerate(SENTENCES))],
            False,
        ),
    ],
)
def test_a_header_is_recognized_by_types_names_and_forms(tmp_path: Path, rows: list[tuple[str, ...]], has_header: bool):
    table = open_table(write(tmp_path / "data.tsv", tsv(rows)))
    assert ("with a header" in table.inferred[0]) is has_header
    assert sum(not fault for _, _, fault in table.read()) == len(rows) - has_header


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("header", [None, ("", "text", "label"), ("Unnamed: 0", "text", "label")])
def test_an_index_column_is_not_used_and_that_is_reported(tmp_path: Path, start: int, header: tuple[str, ...] | None):
    rows = [(str(number), f"text {number}", "ab"[number % 2]) for number in range(start, start + 9)]
    path = write(tmp_path / "data.tsv", tsv([*([header] if header else []), *rows]))
    table = open_table(path, roles=("text", "label"))
    assert values(table) == [row[1:] for row in rows]
    name = header[0] if header and header[0] else "column 1"
    assert table.inferred[1] == f"{name} of data.tsv numbers the rows, and is not used"
    assert values(open_table(path, roles=("text",), columns=("1",), format="tsv")) == [row[:1] for row in rows]


def test_the_index_of_a_shuffled_data_frame_is_not_used(tmp_path: Path):
    rows = [("", "comment", "stars"), *((str(n * 7 % 11), f"text {n}", str(n % 5)) for n in range(11))]
    table = open_table(write(tmp_path / "data.csv", "".join(",".join(row) + "\n" for row in rows)))
    assert table.columns == ("comment", "stars")
    assert table.inferred[1] == "column 1 of data.csv numbers the rows, and is not used"


def test_a_column_of_numbers_is_used_where_there_is_no_other(tmp_path: Path):
    rows = [(str(number), f"number {number}") for number in range(9)]
    table = open_table(write(tmp_path / "data.tsv", tsv(rows)))
    assert values(table) == rows
    assert len(table.inferred) == 1


def test_a_number_is_looked_for_among_numbers_and_a_text_among_others(tmp_path: Path):
    lines = [f"{n / 4},{'xy'[n % 2]},some text {n},{n * 7 % 5}" for n in range(9)]
    path = write(tmp_path / "data.csv", "\n".join(["weight,kind,remark,price", *lines]))
    assert open_table(path, roles=("text", "number")).columns == ("kind", "price")
    path = write(tmp_path / "other.csv", "\n".join(["weight,comment", *(line[:4] + ",text" for line in lines)]))
    assert open_table(path, roles=("text", "number")).columns == ("comment", "weight")


def numbers(path: Path, cells: Sequence[str]) -> Table:
    rows = [("text", "score"), *((f"text {place}", cell) for place, cell in enumerate(cells))]
    path = write(path, "".join(";".join(row) + "\n" for row in rows))
    return with_numbers(open_table(path, roles=("text", "number")))


def test_decimal_commas_are_read_and_reported(tmp_path: Path):
    table = numbers(tmp_path / "data.csv", ["3,5", "4", "-0,25", "1.234,5", "1e3"])
    assert [row.values[1] for row in table] == ["3.5", "4", "-0.25", "1234.5", "1e3"]
    assert table.inferred[-1] == "numbers in score have a decimal comma"
    table = numbers(tmp_path / "data.csv", ["3.5", "4", "1,234.5", "1,234"])
    assert [row.values[1] for row in table] == ["3.5", "4", "1234.5", "1234"]
    assert "comma" not in table.inferred[-1]
    assert [row.values[1] for row in numbers(tmp_path / "data.csv", ["1,234", "2,345"])] == ["1.234", "2.345"]


def test_mixed_decimal_marks_are_one_error_with_their_lines(tmp_path: Path):
    with pytest.raises(BadRowsError) as caught:
        numbers(tmp_path / "data.csv", ["3,5", "4,5", "3.5", "4", "1e999", "5,25", "2.75", "many"]).check()
    assert str(caught.value) == (
        "4 of 8 rows of data.csv are bad: 2 have a decimal point in score, where others have a decimal comma "
        "(lines 4, 8); 2 have no finite number in score (lines 6, 9)"
    )


def test_a_quote_that_is_never_closed_is_located_in_a_large_file(tmp_path: Path):
    lines = [f"a{number},b" for number in range(20_000)]
    lines[15_000] = '"open,b'
    path = write(tmp_path / "data.csv", "source,target\n" + "\n".join(lines))
    assert refusal(path).startswith("the quote opened in line 15,002 of data.csv is not closed")


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "aligned"])
def test_every_format_of_text_is_read_in_its_encoding(tmp_path: Path, kind: str):
    pairs = [(f"Bär {number}", f"café {number}") for number in range(9)]
    made = make(kind, tmp_path, pairs)
    for path in made if isinstance(made, list) else [made]:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as stream:
            text = stream.read().decode()
        with opener(path, "wb") as stream:
            stream.write(text.encode("utf-16"))
    table = open_table(made)
    assert values(table) == pairs == values(open_table(made, encoding="utf-16"))
    assert table.inferred[0].endswith(" is in UTF-16")
    assert not any("UTF-16" in sentence for sentence in open_table(made, encoding="utf-16").inferred)
