"""Pictures on the command line: a table of them to a run, and labels for files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures, dark and bright, and a table of them."""
    folder = tmp_path_factory.mktemp("pictures")
    rows = ["image,label"]
    for number in range(40):
        label, shade = (("dark", 20), ("bright", 220))[number % 2]
        pixels = np.random.default_rng(number).integers(shade - 20, shade + 20, (9, 7, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{label}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(regard, folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "shades"
    small = ["model.num_layers=1", "model.model_dim=16", "model.num_heads=2", "model.feedforward_dim=24",
             "data.picture.size=8", "train.learning_rate=0.01"]  # fmt: skip
    options = [part for each in small for part in ("--set", each)]
    answer = regard("train", folder / "table.csv", "--out", path, "--steps", 30, "--device", "cpu", *options).is_well()
    assert answer.out == f"{path}\n"
    assert "task recognition: which label a picture has" in answer.err
    assert "each is brought to 8 x 8 pixels, and read in 4 patches" in answer.err
    return path


def test_labels_of_files_and_of_lines_that_name_them(regard, folder, run):
    paths = [str(folder / "0.png"), str(folder / "1.png")]
    assert regard("predict", run, *paths).is_well().out == "dark\nbright\n"
    assert regard("predict", run, stdin="\n".join(paths)).is_well().out == "dark\nbright\n"
    found = json.loads(regard("predict", run, *paths, "--json").is_well().out)["predictions"]
    assert [each["input"] for each in found] == paths
    assert set(found[0]["probabilities"]) == {"dark", "bright"}
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1.0)


def test_it_is_judged_and_gives_vectors(regard, folder, run):
    scores = json.loads(regard("test", run, "--json").is_well().out)
    assert scores["accuracy"]["value"] == 1.0
    vectors = json.loads(regard("embed", run, folder / "0.png", "--json").is_well().out)["embeddings"]
    assert np.linalg.norm(vectors[0]["vector"]) == pytest.approx(1.0, abs=1e-5)


def test_bad_pictures_are_told_in_one_line(regard, run, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    regard("predict", run, tmp_path / "text.png").says_no("text.png is no picture of a known format: PNG, JPEG")
    regard("predict", run, tmp_path / "none.png").says_no("there is no file", "none.png")
    regard("predict", run, tmp_path).says_no("is a folder, expected a file")
    regard("predict", run, stdin=f"{tmp_path / 'none.png'}\n").says_no("there is no file")


def test_models_and_data_that_do_not_go_together_are_told(regard, folder, dates, run, tmp_path):
    quiet = ("--out", tmp_path / "no", "--quiet", "--steps", 2)
    regard("train", folder / "table.csv", "--model", "lstm", *quiet).says_no("by a Transformer, such as vit-tiny")
    regard("train", folder / "table.csv", "--model", "gpt", *quiet).says_no("by an encoder, such as vit-tiny")
    regard("train", folder / "table.csv", "--set", "data.picture.size=30", *quiet).says_no("data.picture.size must be")
    regard("train", dates, "--model", "vit-tiny", *quiet).says_no("translation needs an encoder and a decoder")
    regard("finetune", run, dates, "--out", tmp_path / "no").says_no("translation needs")
    regard("generate", run, "a").says_no("only a language model can generate")
    regard("attention", run, "a").says_no("is for recognition")
    assert not (tmp_path / "no").exists()


def test_pictures_that_are_missing_stop_training_unless_they_are_to_be_skipped(regard, folder, tmp_path):
    table = folder / "broken.csv"
    table.write_text((folder / "table.csv").read_text() + "none.png,dark\n")
    options = ("--out", tmp_path / "run", "--steps", 1, "--device", "cpu", "--quiet", "--set", "data.picture.size=8")
    regard("train", table, *options).says_no("1 of 41 pictures cannot be read: there is no file", "--skip-bad")
    assert "run" in regard("train", table, *options, "--skip-bad").is_well().out
