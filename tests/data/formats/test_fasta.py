"""FASTA files, plain and compressed, with records that cannot be used."""

import gzip
from pathlib import Path

import pytest

from regard.data.formats.tables import open_table
from regard.errors import BadRowsError, DataError

TEXT = ">one first protein\nMKVL\naag\n\n>two\nMKVLAAGW*\n;a comment\n"


@pytest.mark.parametrize("name", ["proteins.fasta", "proteins.fa.gz"])
def test_records_are_rows_with_a_name_and_a_sequence(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    table = open_table(path, roles=("name", "sequence"))
    assert table.format == "fasta"
    assert [(row.line, *row.values) for row in table] == [(1, "one", "MKVLAAG"), (5, "two", "MKVLAAGW")]


def test_a_text_is_the_sequence(tmp_path: Path):
    (tmp_path / "a.fna").write_text(TEXT)
    assert [row.values for row in open_table(tmp_path / "a.fna", roles=("text",))] == [("MKVLAAG",), ("MKVLAAGW",)]


def test_records_without_a_sequence_and_unknown_letters_are_reported_with_their_lines(tmp_path: Path):
    path = tmp_path / "bad.fasta"
    path.write_text(f"{TEXT}>three\n>four\nMK1?\n")
    with pytest.raises(BadRowsError, match=r"a name without a sequence \(line 8\).*letters .*\(1 \?\) \(line 9\)"):
        list(open_table(path, roles=("text",)))
    assert len(list(open_table(path, roles=("text",), skip_bad=True))) == 2


def test_another_file_is_not_fasta(tmp_path: Path):
    (tmp_path / "a.fasta").write_text("MKVL\n>one\nMK\n")
    with pytest.raises(DataError, match="line 1 comes before"):
        list(open_table(tmp_path / "a.fasta", roles=("text",)))
