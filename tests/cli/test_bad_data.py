"""Data that cannot be used: one line that says where and what, and nothing left behind."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = [f"ein {number}\tone {number}\n" for number in range(60)]


def rows(*changes: tuple[int, bytes]) -> bytes:
    """Sixty good rows, with some of them (counted from 1) replaced."""
    lines = [line.encode() for line in GOOD]
    for number, line in changes:
        lines[number - 1] = line
    return b"".join(lines)


@pytest.fixture
def refused(regard, tiny, cache: Path, tmp_path: Path) -> Callable[..., None]:
    """Train on these bytes or paths; the run is refused in one line, and nothing is written."""

    def attempt(data: bytes | list[Path], *options: object, parts: tuple[str, ...] = ()) -> None:
        if isinstance(data, bytes):
            (tmp_path / "pairs.tsv").write_bytes(data)
            data = [tmp_path / "pairs.tsv"]
        before = sorted(cache.rglob("*"))
        answer = regard("train", *data, "--out", tmp_path / "run", "--steps", 1, *tiny, "--quiet", *options)
        answer.fails_with(*parts)
        assert not (tmp_path / "run").exists()
        assert sorted(cache.rglob("*")) == before

    return attempt


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        pytest.param(b"", ["pairs.tsv is empty"], id="an empty file"),
        pytest.param(b"a\nb\nc\n", ["pairs.tsv", "1 column"], id="one column"),
        pytest.param(b"\n\n  \n", ["nothing but blank lines"], id="blank lines"),
        pytest.param(b"\t\n \t \na\t\n", ["pairs.tsv", "has an empty target", "line 3"], id="empty texts"),
        pytest.param(b"a\tb\n", ["1 row is", "too few"], id="one row"),
        pytest.param(b"a\tb\nc\td\n", ["2 rows", "too few"], id="two rows"),
        pytest.param(b"a\tb\n" * 50, ["all 50 rows have the same source", "add rows with other"], id="one source"),
        pytest.param(
            b"text\tlabel\n" + b"one text\tyes\none text\tno\n" * 30,
            ["all 60 rows have the same source", "add rows with other sources, or a validation file"],
            id="one source with both labels",
        ),
        pytest.param(
            rows((7, b"ein \xe9\tx\n"), (9, "zw\u00f6lf \u00e9\tx\n".encode())),
            ["not UTF-8", "line 7, byte 5 is 0xe9", "--encoding"],
            id="two encodings",
        ),
        pytest.param(
            b"text\tlabel\n" + b"".join(b"text %d\tyes\n" % number for number in range(60)),
            ["a classifier needs at least two labels: all 48 rows have 'yes'"],
            id="one label",
        ),
        pytest.param(
            b"text\tscore\n"
            + b"".join(b"text %d\t%d,5\n" % (number, number) for number in range(60))
            + b"a\t3.5\n" * 4,
            ["4 of 64 rows of pairs.tsv have a decimal point in score, where others have a decimal comma: lines 62"],
            id="mixed decimal marks",
        ),
        pytest.param(
            b"x\ty\tz\n" + b"".join(b"%d\t%d\t%d\n" % (n % 7, n % 5, n % 3) for n in range(60)),
            ["pairs.tsv has numbers (x, y, z); no task recognizes this", "the options are --columns and --task"],
            id="a table of numbers",
        ),
        pytest.param(rows((9, b"a\0b\tx\n")), ["not text", "line 9, byte 2 is NUL"], id="NUL"),
        pytest.param(b"%PDF-1.4\n" + rows(), ["pairs.tsv is not text (looks like a PDF document"], id="a PDF document"),
        pytest.param(
            rows(*((number, b"alone\n") for number in (4, 17, 30, 43))),
            ["4 of 60 rows of pairs.tsv have 1 column instead of 2: lines 4, 17, 30, 43", "--skip-bad"],
            id="too few columns",
        ),
        pytest.param(
            rows(*((number, b"a\tb\tc\n") for number in range(4, 14))),
            ["10 of 60 rows of pairs.tsv have 3 columns instead of 2: lines 4, 5, 6, 7, 8, …", "--skip-bad"],
            id="too many columns",
        ),
        pytest.param(
            rows(*((number, b"a\t \n") for number in range(57, 61))), ["an empty target: lines 57"], id="empty targets"
        ),
    ],
)
def test_a_bad_file_is_told_where(refused, data: bytes, parts: list[str]):
    refused(data, parts=parts)


def test_three_rows_are_enough(regard, tiny, tmp_path: Path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\ne\tf\n")
    answer = regard("train", tmp_path / "pairs.tsv", "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    assert "3 rows: 1 for training, 1 for validation, 1 for the test" in answer.err


def test_a_few_bad_rows_are_skipped_with_a_warning(regard, tiny, tmp_path: Path):
    data = [tmp_path / "pairs.tsv", "--out", tmp_path / "run", "--steps", 1, *tiny]
    few = [(4, b"alone\n"), (17, b"a\tb\tc\n"), (60, b"a\t\n")]
    data[0].write_bytes(rows(*few))
    answer = regard("train", *data).succeeds()
    assert "warning: skipped: 3 of 60 rows of pairs.tsv are bad: " in answer.err
    for part in ("1 column instead of 2 (line 4)", "3 columns instead of 2 (line 17)", "an empty target (line 60)"):
        assert part in answer.err
    assert "57 rows:" in answer.err
    assert "skipped: 3 of 60 rows" in (tmp_path / "run" / "report.html").read_text()
    regard("train", *data, "--overwrite", "--quiet", "--no-skip-bad").fails_with(
        "3 of 60 rows of pairs.tsv are bad", "line 17"
    )
    data[0].write_bytes(rows(*few, (18, b"alone\n")))
    regard("train", *data, "--overwrite", "--quiet").fails_with("4 of 60 rows of pairs.tsv are bad", "--skip-bad")
    assert "56 rows:" in regard("train", *data, "--overwrite", "--skip-bad").succeeds().err


def test_bad_rows_of_an_evaluated_file_follow_the_same_rule(regard, tiny, tmp_path: Path):
    (tmp_path / "pairs.tsv").write_bytes(rows())
    regard("train", tmp_path / "pairs.tsv", "--out", tmp_path / "run", "--steps", 1, *tiny).succeeds()
    (tmp_path / "more.tsv").write_bytes(rows((3, b"alone\n")))
    evaluate = ["evaluate", tmp_path / "run", tmp_path / "more.tsv"]
    assert (
        "warning: skipped: 1 of 60 rows of more.tsv has 1 column instead of 2: line 3"
        in regard(*evaluate).succeeds().err
    )
    regard(*evaluate, "--quiet", "--no-skip-bad").fails_with("1 of 60 rows of more.tsv has 1 column")
    (tmp_path / "more.tsv").write_bytes(rows(*((number, b"alone\n") for number in range(1, 9))))
    regard(*evaluate, "--quiet").fails_with("8 of 60 rows of more.tsv have 1 column", "--skip-bad")


def test_bad_rows_of_a_validation_file_are_told_too(regard, tiny, tmp_path: Path):
    (tmp_path / "pairs.tsv").write_bytes(rows())
    (tmp_path / "valid.tsv").write_bytes(rows(*((number, b"alone\n") for number in range(3, 7))))
    options = ["--valid", tmp_path / "valid.tsv", "--out", tmp_path / "run", "--steps", 1, *tiny]
    answer = regard("train", tmp_path / "pairs.tsv", *options, "--quiet")
    answer.fails_with("4 of 60 rows of valid.tsv have 1 column instead of 2: lines 3, 4, 5, 6", "--skip-bad")
    answer = regard("train", tmp_path / "pairs.tsv", *options, "--skip-bad").succeeds()
    assert "warning: skipped: 4 of 60 rows of valid.tsv" in answer.err


def test_skipping_does_not_help_where_no_row_is_good(refused):
    refused(b"a\t\nb\t\n", "--skip-bad", parts=("2 of 2 rows of pairs.tsv have an empty target",))


def test_a_missing_file_is_told_with_the_sets_that_are_there(refused, tmp_path: Path):
    refused([tmp_path / "none.tsv"], parts=("there is no file", "none.tsv", "built-in data sets: answers, dates"))
    refused(rows(), "--valid", tmp_path / "none.tsv", parts=("there is no file", "none.tsv"))


def test_names_that_are_none(refused, regard, tmp_path: Path):
    refused([tmp_path / ("x" * 300)], parts=("xxx", "File name too long"))
    refused([""], parts=("the name of a file of data is empty",))
    refused(rows(), "--valid", "", parts=("the name of a file of data is empty",))
    (tmp_path / "rings").mkdir()
    (tmp_path / "rings" / "run.toml").touch()
    refused([tmp_path / "rings"], parts=("rings is the folder of a run, not of data",))
    out = tmp_path / ("x" * 300)
    regard("train", tmp_path / "none.tsv", "--out", out, "--quiet").fails_with("cannot write to", "File name too long")


def test_of_columns_with_one_name_the_first_has_it(regard, tiny, tmp_path: Path):
    table = "".join(f"a text {number},{number % 3},{'ab'[number % 2]}\n" for number in range(60))
    (tmp_path / "a.csv").write_text(f"text,label,label\n{table}")
    options = ["--steps", 1, *tiny, "--set", "data.splits=[0.9,0.05,0.05]"]
    answer = regard("train", tmp_path / "a.csv", "--out", tmp_path / "run", *options).succeeds()
    assert "text = text, label = label of 3 columns" in answer.err
    assert "60 rows:" in answer.err
    assert "3 labels: 0 (" in answer.err


def test_no_data_at_all(regard, tmp_path: Path):
    regard("train", "--out", tmp_path / "run", "--quiet").fails_with("no training data")


def test_aligned_files_must_have_as_many_lines(refused, tmp_path: Path):
    (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "a.en").write_text("one\ntwo\n")
    refused([tmp_path / "a.de", tmp_path / "a.en"], parts=("a.de", "a.en", "2"))


def test_a_cut_compressed_file(refused, tmp_path: Path):
    import gzip

    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(rows())[:-20])
    refused([tmp_path / "cut.tsv.gz"], parts=("cut.tsv.gz is truncated",))


def test_a_folder_without_training_files(refused, tmp_path: Path):
    (tmp_path / "corpus").mkdir()
    refused([tmp_path / "corpus"], parts=("corpus has nothing to train on",))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--columns", "de,en"], ["no column 'de'"]),
        (["--columns", "1,7"], ["column", "7"]),
        (["--columns", "1"], ["one column is needed for each of source, target"]),
        (["--set", "task.max_length=2"], ["max_length=2"]),
        (["--set", "data.splits=[0.9, 0.2, 0.1]"], ["data.splits must be three shares that sum to 1"]),
        (["--set", "data.splits=[1.0, 0.0, 0.0]"], ["no validation rows", "data.splits"]),
        (["--encoding", "utf-16"], ["pairs.tsv is not UTF-16: it has no byte order mark"]),
        (["--encoding", "utf-32"], ["pairs.tsv is not UTF-32: line 1 has 0x65", "--encoding names another"]),
        (["--encoding", "idna"], ["unknown encoding 'idna'"]),
        (["--set", "data.format=xml"], ["format must be one of", "'xml'"]),
        (["--tokenizer", "bpee"], ["unknown kind of tokenizer 'bpee'", "bpe"]),
        (["--tokenizer", "none.json"], ["there is no tokenizer none.json"]),
        (["--tokenizer", "bpe", "--set", "task.vocab_size=100"], ["vocab_size", "at least 260", "got 100"]),
        (["--set", "task.vocab_size=4"], ["task.vocab_size", "greater than or equal to 5", "got 4"]),
    ],
)
def test_options_that_do_not_fit_the_data(refused, options: list[str], parts: list[str]):
    refused(rows(), *options, parts=parts)


def test_a_tokenizer_file_that_is_none(refused, tmp_path: Path):
    (tmp_path / "mine.json").write_text('{"model": ')
    refused(rows(), "--tokenizer", tmp_path / "mine.json", parts=("mine.json is not a tokenizer",))


def test_a_quote_that_is_never_closed_is_located(refused, tmp_path: Path):
    lines = [f"text {number},{number % 2}" for number in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines, '"open,1', *lines]))
    refused([tmp_path / "a.csv"], parts=("the quote opened in line 62 of a.csv is not closed, so the 60 lines",))
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines, '"open,1']))
    refused([tmp_path / "a.csv"], parts=("the quote opened in line 62 of a.csv is not closed\n",))


def test_a_line_of_more_than_the_limit_is_not_read(refused, tmp_path: Path):
    with open(tmp_path / "a.tsv", "wb") as file:
        file.write(b"source\ttarget\n")
        for _ in range(129):
            file.write(b"x" * (1 << 20))
    refused([tmp_path / "a.tsv"], parts=("line 2 of", "a.tsv is longer than 128 MiB, and is not read"))


def test_an_out_that_cannot_be_used_is_found_before_the_data_is_read(regard, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"")
    for out, parts in [
        (tmp_path / "file" / "run", ["cannot write to", "run", "Not a directory"]),
        (tmp_path / "file", ["file is a file, and a run needs a folder"]),
        (tmp_path / "photos", ["photos is neither empty nor a run folder, it has cat.png: name another"]),
    ]:
        regard("train", tmp_path / "none.tsv", "--out", out, "--quiet").fails_with(*parts)
        regard("train", tmp_path / "none.tsv", "--out", out, "--overwrite", "--quiet").fails_with(*parts)
    out = tmp_path / "file" / "runs"
    regard("compare", tmp_path / "none.tsv", "--models", "gru,lstm", "--steps", 1, "--out", out, "-q").fails_with(
        "cannot write to"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cat.png", "file", "photos"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_the_right_to_write_is_found_before_the_data_is_read(regard, tmp_path: Path):
    (tmp_path / "mine").mkdir(mode=0o500)
    out = tmp_path / "mine" / "run"
    regard("train", tmp_path / "none.tsv", "--out", out, "-q").fails_with("cannot write to", "Permission denied")
