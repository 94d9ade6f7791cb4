"""Splits of text: whole documents by content, contiguous text by position."""

import json
from collections import Counter
from pathlib import Path

import pytest

import regard.data.formats.plain_text
import regard.data.splits.by_position
from regard.data.formats.plain_text import join_pieces
from regard.data.settings import DataConfig
from regard.data.splits.by_position import TextSplit, split_text
from regard.data.text_sources import open_texts
from regard.errors import DataError, RegardError

TEXT = "".join(f"line {i} of a play\n" for i in range(997))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(regard.data.formats.plain_text, "_PIECE_LENGTH", 101)


def split(*paths: Path, rows=None, **settings) -> TextSplit:
    own = {name: settings.pop(name) for name in ("documents", "isolate") if name in settings}
    config = DataConfig.read({"train": [str(path) for path in paths], **settings})
    source = open_texts(config, rows, **own)
    has_valid, has_test = source.valid is not None, source.test is not None
    return split_text(source.train, config, is_isolated=source.is_isolated, has_valid=has_valid, has_test=has_test)


def parts(found: TextSplit) -> dict[str, list[str]]:
    """The documents, or parts of documents, of each set."""
    pieces = list(found.pieces())
    return {
        role: list(join_pieces(piece for some, piece in pieces if some == role))
        for role in ("train", "valid", "test", "unused")
    }


def refusal(*paths: Path, **settings) -> str:
    with pytest.raises(RegardError) as caught:
        split(*paths, **settings)
    return str(caught.value)


def files(folder: Path, texts: list[str]) -> list[Path]:
    paths = [folder / f"{i:03d}.txt" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


@pytest.mark.parametrize(
    "shares", [[0.9, 0.1, 0.0], [0.7, 0.2, 0.1], [0.9, 0.05, 0.05], [0.8999999, 0.1, 0.0], [1 / 3, 1 / 3, 1 / 3]]
)
@pytest.mark.parametrize("length", [23, 101, 1_010, 8_191])
def test_running_text_is_cut_at_exact_characters(tmp_path: Path, shares: list[float], length: int):
    text = TEXT[:length]
    found = split(*files(tmp_path, [text]), splits=shares)
    first = int(shares[0] * length)
    second = int((shares[0] + shares[1]) * length) if shares[2] else length
    expected = {"train": text[:first], "valid": text[first:second], "test": text[second:]}
    assert parts(found) == {"unused": [], **{role: [part] if part else [] for role, part in expected.items()}}
    assert (found.num_documents, found.num_characters) == (1, length)
    assert list(join_pieces(found.training_pieces())) == [text[:first]]


def test_each_file_of_running_text_is_cut_by_itself(tmp_path: Path):
    texts = ["a" * 200, "b" * 100, "c" * 3]
    found = parts(split(*files(tmp_path, texts), isolate=False, splits=[0.8, 0.1, 0.1]))
    assert found["train"] == ["a" * 160, "b" * 80, "c" * 2]
    assert found["valid"] == ["a" * 20, "b" * 10]
    assert found["test"] == ["a" * 20, "b" * 10, "c"]


def test_running_lines_and_rows_stay_whole(tmp_path: Path):
    lines = [f"{i} " + "word " * (i % 7) * 9 for i in range(61)]
    path = files(tmp_path, ["\n\n".join(lines)])[0]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    for found in (
        split(path, documents="lines", splits=[0.8, 0.1, 0.1]),
        split(table, isolate=False, splits=[0.8, 0.1, 0.1]),
    ):
        assert parts(found) == {"train": lines[:48], "valid": lines[48:54], "test": lines[54:], "unused": []}
        assert found.num_documents == 61


def test_a_twentieth_each_or_a_million_characters(tmp_path: Path, monkeypatch):
    found = parts(split(*files(tmp_path, [TEXT])))
    assert [len(found[role][0]) / len(TEXT) for role in ("valid", "test")] == pytest.approx([0.05, 0.05], abs=1e-3)
    assert regard.data.splits.by_position._MAX_HELD_OUT == 1_000_000
    monkeypatch.setattr(regard.data.splits.by_position, "_MAX_HELD_OUT", 211)
    found = parts(split(*files(tmp_path, [TEXT, TEXT]), isolate=False))
    assert [sum(map(len, found[role])) for role in ("valid", "test")] == pytest.approx([211, 211], abs=3)
    assert [found["train"][i] + found["valid"][i] + found["test"][i] for i in (0, 1)] == [TEXT, TEXT]


def test_many_independent_documents_are_assigned_whole(tmp_path: Path):
    texts = [f"essay {i}: " + "word " * 41 for i in range(101)]
    paths = files(tmp_path, texts)
    by_file, by_row = parts(split(*paths)), parts(split(rows=texts))
    assert by_file == by_row
    assert {role: len(some) for role, some in by_file.items()} == {"train": 81, "valid": 10, "test": 10, "unused": 0}
    assert Counter(text for some in by_file.values() for text in some) == Counter(texts)
    backwards = parts(split(*reversed(paths)))
    assert {role: set(some) for role, some in backwards.items()} == {role: set(some) for role, some in by_file.items()}
    few = parts(split(rows=texts, train_rows=7))
    assert (len(few["train"]), len(few["unused"])) == (7, 74)
    assert set(few["train"]) < set(by_row["train"])


@pytest.mark.parametrize(("number", "is_whole"), [(39, False), (40, True)])
def test_each_of_few_documents_is_cut(tmp_path: Path, number: int, is_whole: bool):
    texts = [f"{i:03d}" * 100 for i in range(number)]
    for found in (split(*files(tmp_path, texts)), split(rows=texts)):
        valid = parts(found)["valid"]
        assert [len(part) for part in valid] == ([300] * 4 if is_whole else [15] * number)
        assert found.num_documents == number


def test_separate_files_replace_a_split(tmp_path: Path):
    running, extra, *essays = files(tmp_path, [TEXT, "extra", *(f"essay {i}" for i in range(43))])
    given = {"valid": [str(extra)]}
    for paths in ((running,), tuple(essays), tuple(essays[:3])):
        found = parts(split(*paths, **given))
        assert found["train"] == [path.read_text() for path in paths]
        assert not found["valid"] + found["test"]
        found = parts(split(*paths, test=[str(extra)]))
        assert found["valid"]
        assert not found["test"]
    found = parts(split(running, test=[str(extra)], splits=[0.8, 0.1, 0.1]))
    assert found["train"] == [TEXT[: int(0.9 * len(TEXT))]]


def test_a_text_too_short_to_split_is_an_error(tmp_path: Path):
    short, long = files(tmp_path, ["seven c", TEXT])
    assert "a text of 7 characters is too short to hold out a part for validation" in refusal(short)
    assert "data.splits must leave text for validation, got [1.0, 0.0, 0.0]" in refusal(long, splits=[1.0, 0.0, 0.0])
    rows = [f"row {i}" for i in range(50)]
    splits = [0.9, 0.0, 0.1]
    assert f"data.splits must leave text for validation, got {splits}" in refusal(rows=rows, splits=splits)
    assert "too short for a training share of 0.1" in refusal(short, splits=[0.1, 0.9, 0.0])
    assert "got 3 for contiguous text" in refusal(long, train_rows=3)
    with pytest.raises(DataError, match="all 50 rows have the same source"):
        split(rows=["the same"] * 50)
