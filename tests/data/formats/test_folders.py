"""Aligned files, and folders with a data set that is already split."""

import lzma
from collections.abc import Sequence
from pathlib import Path

import pytest

from regard.data.formats.folders import files_by_split, label_folders_by_split
from regard.data.formats.tables import TableRow, open_table
from regard.errors import RegardError


def make(folder: Path, names: str) -> Path:
    """A folder of files, each of two lines with its name."""
    for name in names.split():
        line = f"{name.removesuffix('.xz')} 1\n".replace(" ", "\t" if ".tsv" in name else " ")
        data = (line + line.replace("1", "2")).encode()
        (folder / name).write_bytes(lzma.compress(data) if name.endswith(".xz") else data)
    return folder


def refusal(path: Path | Sequence[Path], **options: object) -> str:
    with pytest.raises(RegardError) as caught:
        open_table(path, **options).check()  # pyright: ignore[reportArgumentType]
    return str(caught.value)


def names_in(folder: Path, columns: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    return {split: tuple(path.name for path in paths) for split, paths in files_by_split(folder, columns).items()}


MULTI30K = """train.de.xz train.en.xz train.fr.xz val.de.xz val.en.xz val.fr.xz val.lc.norm.tok.de.xz
    val.lc.norm.tok.en.xz test_2017_flickr.de.xz test_2017_flickr.en.xz test_2016_flickr.de.xz
    test_2016_flickr.en.xz test_2016_flickr.lc.norm.tok.de.xz test_2016_flickr.lc.norm.tok.en.xz test.tok.de.xz
    test.tok.en.xz README.md"""


def test_splits_of_aligned_files_are_found(tmp_path: Path):
    folder = make(tmp_path, MULTI30K)
    assert names_in(folder, ("en", "de")) == {
        "train": ("train.en.xz", "train.de.xz"),
        "valid": ("val.en.xz", "val.de.xz"),
        "test": ("test_2016_flickr.en.xz", "test_2016_flickr.de.xz"),
    }
    assert names_in(folder, ("de", "fr")) == {
        "train": ("train.de.xz", "train.fr.xz"),
        "valid": ("val.de.xz", "val.fr.xz"),
    }


def test_a_folder_with_columns_is_a_table(tmp_path: Path):
    table = open_table(make(tmp_path, MULTI30K), columns=("en", "de"))
    assert list(table) == [TableRow(1, ("train.en 1", "train.de 1")), TableRow(2, ("train.en 2", "train.de 2"))]
    assert (table.format, table.columns, table.inferred) == ("aligned", ("en", "de"), [])
    one = open_table(tmp_path, columns=("fr",), roles=("text",))
    assert [row.values for row in one] == [("train.fr 1",), ("train.fr 2",)]


def test_two_suffixes_are_taken_by_alphabet_and_reported(tmp_path: Path):
    table = open_table(make(tmp_path, "train.en train.de"))
    assert table.columns == ("de", "en")
    what = f"read train.de and train.en from the folder {tmp_path.name} as aligned lines, by alphabet"
    assert table.inferred == [f"{what}; source = de, target = en"]


@pytest.mark.parametrize("stem", ["valid", "val", "dev", "validation"])
def test_splits_of_tables_are_found(tmp_path: Path, stem: str):
    folder = make(tmp_path, f"train.tsv.xz {stem}.tsv test.tsv test_a.tsv notes.txt")
    assert names_in(folder) == {"train": ("train.tsv.xz",), "valid": (f"{stem}.tsv",), "test": ("test.tsv",)}
    table = open_table(folder)
    assert [row.values for row in table] == [("train.tsv", "1"), ("train.tsv", "2")]
    assert table.inferred[0] == f"took train.tsv.xz from the folder {tmp_path.name}"


def test_a_file_is_taken_before_its_compressed_copy(tmp_path: Path):
    assert names_in(make(tmp_path, "train.txt train.txt.xz")) == {"train": ("train.txt",)}


@pytest.mark.parametrize(
    ("names", "columns", "message"),
    [
        ("train.de train.en train.fr", None, "has 3 files to train on and the columns are not specified: de, en, fr"),
        ("train.de train.en", ("de", "es"), "has no train.es; it has train.de, train.en"),
        ("train.tsv train.csv", None, "has more than one table to train on: train.csv, train.tsv"),
        ("test.de test.en", ("de", "en"), "has nothing to train on: it needs train.tsv, .csv, .jsonl, .parquet or "
         ".txt, one file for each column, such as train.de and train.en, or a folder of images or of texts for "
         "each label"),
    ],
)  # fmt: skip
def test_a_folder_that_can_be_seen_in_no_way_or_in_several_is_refused(
    tmp_path: Path, names: str, columns: tuple[str, ...] | None, message: str
):
    assert refusal(make(tmp_path, names), columns=columns) == f"{tmp_path} {message}"


def test_what_is_no_folder_is_refused(tmp_path: Path):
    with pytest.raises(RegardError, match=r"cannot read the folder .*: No such file or directory"):
        files_by_split(tmp_path / "none")


def test_aligned_files_are_in_the_order_of_the_columns(tmp_path: Path):
    paths = [make(tmp_path, "a.de a.en") / name for name in ("a.de", "a.en")]
    given, turned = open_table(paths), open_table(paths, columns=("en", "1"))
    assert (given.columns, turned.columns) == (("de", "en"), ("en", "de"))
    assert next(iter(given)).values == next(iter(turned)).values[::-1] == ("a.de 1", "a.en 1")
    assert turned.paths == (paths[1], paths[0])
    assert open_table([paths[0], paths[0]]).columns == ("1", "2")


@pytest.mark.parametrize("longer", [0, 1])
def test_aligned_files_of_unequal_length_are_refused_with_both_counts(tmp_path: Path, longer: int):
    paths = [tmp_path / "a.de", tmp_path / "a.en"]
    for index, path in enumerate(paths):
        path.write_text("x\n" * (1_007 if index == longer else 3))
    counts = ("1,007", "3") if longer == 0 else ("3", "1,007")
    assert refusal(paths) == (
        f"aligned files must have the same number of lines, but a.de has {counts[0]} lines, a.en has {counts[1]} lines"
    )


def test_a_line_that_is_blank_on_one_side_is_bad_and_on_both_is_passed_over(tmp_path: Path):
    paths = [tmp_path / "a.de", tmp_path / "a.en"]
    paths[0].write_text("a\n\nb\n \n")
    paths[1].write_text("c\nd\ne\n\n")
    assert refusal(paths) == "1 of 3 rows of a.de and a.en has an empty source: line 2"
    table = open_table(paths, skip_bad=True)
    assert table.check() == 2
    assert table.bad_rows.counts == {"an empty source": 1}


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("a.de", {"format": "aligned"}, "aligned lines need a file for each of source, target, got only {folder}/a.de"),
        ("a.de a.en a.fr", {}, "one file is needed for each of source, target, got a.de and a.en and a.fr"),
        ("a.tsv b.tsv", {}, "several files are read line by line, one for each role, but a.tsv is a table"),
        ("a.de a.en", {"format": "tsv"}, "several files are read as aligned lines, got format 'tsv' for a.de and a.en"),
        ("a.de a.en", {"columns": ("de", "fr")}, "the set of a.de and a.en has no column 'fr'; it has de, en"),
        ("", {}, "one file is needed for each of source, target, got none"),
    ],
)
def test_files_that_do_not_fit_the_roles_are_refused(
    tmp_path: Path, names: str, options: dict[str, object], message: str
):
    make(tmp_path, names)
    paths = [tmp_path / name for name in names.split()]
    assert refusal(paths, **options) == message.format(folder=tmp_path)


def test_a_missing_aligned_file_is_named_at_once(tmp_path: Path):
    make(tmp_path, "a.de")
    assert refusal([tmp_path / "a.de", tmp_path / "a.en"]) == f"there is no file {tmp_path / 'a.en'}"


def write_texts(folder: Path, *names: str, number: int = 6) -> Path:
    """Folders of texts, each of which is its place in the folder."""
    for name in names:
        for place in range(number):
            path = folder / name / f"{place}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} {place}\n")
    return folder


def test_a_folder_of_texts_for_each_label_is_a_table(tmp_path: Path):
    folder = write_texts(tmp_path / "mail", "ham", "spam")
    (folder / "spam" / "5.txt").write_bytes(b"caf\xe9")
    (folder / "README").write_text("about")
    table = open_table(folder, roles=("text", "label"))
    assert list(table)[::6] == [TableRow(1, ("ham 0", "ham")), TableRow(7, ("spam 0", "spam"))]
    assert [row.values for row in table][-1] == ("caf\u00e9", "spam")
    assert (table.name, table.format, len(table.paths)) == ("mail", "folders", 12)
    assert table.inferred == ["read the texts in the folders of mail, which are labels: ham, spam"]


def test_the_label_of_a_text_is_part_of_the_hash(tmp_path: Path):
    folder = write_texts(tmp_path / "mail", "ham", "spam")
    before = open_table(folder, roles=("text", "label")).content_hash()
    (folder / "spam" / "0.txt").rename(folder / "ham" / "6.txt")  # in the same place among all texts
    assert open_table(folder, roles=("text", "label")).content_hash() != before


def test_texts_without_a_label_are_left_out(tmp_path: Path):
    folder = write_texts(tmp_path, "train/pos", "train/neg", "train/unsup", "test/pos", "test/neg")
    table = open_table(folder, roles=("text", "label"))
    assert {row.values[1] for row in table} == {"pos", "neg"}
    assert table.inferred[1:] == ["unsup of train is not used: its texts have no label"]
    assert files_by_split(folder) == {"train": (folder / "train",), "test": (folder / "test",)}


def test_an_unreadable_text_is_a_bad_row_with_its_path(tmp_path: Path):
    folder = write_texts(tmp_path / "mail", "ham", "spam")
    (folder / "spam" / "3.txt").write_bytes(b"\0\1")
    (folder / "spam" / "4.txt").write_bytes(b"")
    assert refusal(folder, roles=("text", "label")) == (
        "2 of 12 rows of mail are bad: 1 has a file that is not text (spam/3.txt) (row 10); "
        "1 has an empty text (row 11)"
    )


@pytest.mark.parametrize(
    "names", [("one",), ("train", "test"), ("train/a", "test/a", "test/b")], ids=["one label", "splits", "one of train"]
)
def test_other_folders_of_texts_have_no_labels(tmp_path: Path, names: tuple[str, ...]):
    assert label_folders_by_split(write_texts(tmp_path, *names)) == {}


def test_few_texts_beside_other_files_are_no_data_set(tmp_path: Path):
    folder = write_texts(tmp_path, "src", "docs")
    assert label_folders_by_split(folder) == {"train": folder}
    for place in range(2):
        (folder / "src" / f"{place}.py").write_text("pass")
    assert label_folders_by_split(folder) == {}


def test_a_link_out_of_a_folder_of_texts_is_refused(tmp_path: Path):
    folder = write_texts(tmp_path / "mail", "ham", "spam")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "ham" / "9.txt").symlink_to(tmp_path / "secret.txt")
    assert "leads out of" in refusal(folder, roles=("text", "label"))
