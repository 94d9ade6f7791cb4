"""`regard embed`: vectors on stdout or in a file, and the lines of a file that are most like a text."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.runs.run import load

TEXTS = ["4 March 2025", "5 May 1999", "4 March 2025"]


@pytest.fixture(scope="module")
def embedder(regard, tiny, dates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps on pairs of dates."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("runs") / "embedder"
    regard("train", dates, "--task", "sentence-embedding", "--out", folder, "--steps", 5, *tiny, "--quiet").succeeds()
    return folder


def table(text: str) -> np.ndarray:
    return np.array([[float(number) for number in line.split("\t")] for line in text.splitlines()])


def test_arguments_and_lines_have_the_same_vectors(regard, embedder: Path):
    from_arguments = regard("embed", embedder, *TEXTS).succeeds()
    from_lines = regard("embed", embedder, stdin="\n".join(TEXTS) + "\n").succeeds()
    assert from_arguments.out == from_lines.out
    found = table(from_arguments.out)
    assert found.shape == (3, 22)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-4)
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any()
    np.testing.assert_allclose(load(embedder, device="cpu").embed(TEXTS), found, rtol=1e-4, atol=1e-6)


def test_json_is_one_object(regard, embedder: Path):
    rows = json.loads(regard("embed", embedder, *TEXTS, "--json").succeeds().out)["embeddings"]
    assert [row["text"] for row in rows] == TEXTS
    assert {len(row["vector"]) for row in rows} == {22}


def test_vectors_go_to_a_file_that_needs_no_pickle(regard, embedder: Path, tmp_path: Path):
    file = tmp_path / "vectors.npz"
    assert regard("embed", embedder, *TEXTS, "--to", file).succeeds().out == f"{file}\n"
    with np.load(file, allow_pickle=False) as found:
        assert found.files == ["embeddings"]
        assert found["embeddings"].dtype == np.float32
        np.testing.assert_allclose(found["embeddings"], table(regard("embed", embedder, *TEXTS).out), rtol=1e-4)
    answer = json.loads(regard("embed", embedder, *TEXTS, "--to", file, "--json").succeeds().out)
    assert answer == {"file": str(file), "texts": 3, "model_dim": 22}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors.npz"]


def test_a_search_finds_the_same_text_first(regard, embedder: Path, tmp_path: Path):
    file = tmp_path / "lines.txt"
    lines = ["5 May 1999", "", *(f"{day} June 20{day}" for day in range(10, 30)), "4 March 2025", "  "]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = regard("embed", embedder, "--search", file, "--top", 3, "4 March 2025").succeeds()
    rows = [line.split("\t") for line in found.out.splitlines()]
    assert len(rows) == 3
    assert rows[0] == ["1.0000", "23", "4 March 2025"]
    assert [float(row[0]) for row in rows] == sorted((float(row[0]) for row in rows), reverse=True)
    for _, number, text in rows:
        assert lines[int(number) - 1] == text
    several = regard("embed", embedder, "--search", file, "--top", 1, stdin="4 March 2025\n5 May 1999\n").succeeds()
    assert [line.split("\t")[::3] for line in several.out.splitlines()] == [[text, text] for text in TEXTS[:2]]
    answer = json.loads(regard("embed", embedder, "--search", file, "4 March 2025", "--json").succeeds().out)
    (result,) = answer["results"]
    assert result["query"] == "4 March 2025"
    assert [hit["line"] for hit in result["found"]][:1] == [23]
    assert len(result["found"]) == 5


def test_a_search_finds_no_more_than_there_is(regard, embedder: Path, tmp_path: Path):
    file = tmp_path / "lines.txt"
    file.write_text("5 May 1999\n", encoding="utf-8")
    answer = regard("embed", embedder, "--search", file, "--top", 7, "4 March 2025").succeeds()
    assert len(answer.out.splitlines()) == 1


def test_what_cannot_be_is_told_in_one_line(regard, embedder: Path, trained: Path, tmp_path: Path):
    blank = tmp_path / "blank.txt"
    blank.write_text(" \n\n", encoding="utf-8")
    regard("embed", embedder).fails_with("there is no text to embed")
    regard("embed", embedder, "4 March", " ").fails_with("input 2 is empty")
    regard("embed", embedder, "a", "--to", tmp_path / "vectors.csv").fails_with("end in .npz", "vectors.csv")
    regard("embed", embedder, "a", "--to", "x.npz", "--search", blank).fails_with(
        "--to and --search cannot be combined"
    )
    regard("embed", embedder, "a", "--to", tmp_path / "none" / "x.npz").fails_with("cannot write")
    regard("embed", embedder, "a", "--search", blank).fails_with("has only blank lines")
    regard("embed", embedder, "a", "--search", tmp_path / "none.txt").fails_with("none.txt")
    regard("embed", trained, "a").fails_with("embeddings are for models that read")


def test_the_help_has_examples(regard):
    answer = regard("embed", "--help").succeeds()
    assert "regard embed runs/minilm --search" in answer.out
