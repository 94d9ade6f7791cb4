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
             "task.image.size=8", "train.learning_rate=0.01"]  # fmt: skip
    options = [part for each in small for part in ("--set", each)]
    answer = regard("train", folder / "table.csv", "--model", "vit", "--out", path, "--steps", 30, *options).succeeds()
    assert answer.out == f"{path}\n"
    assert "task image-classification, by the data" in answer.err
    assert "images are resized to 8 x 8 pixels, 4 patches each" in answer.err
    return path


def test_labels_of_files_and_of_lines_that_name_them(regard, folder, run):
    paths = [str(folder / "0.png"), str(folder / "1.png")]
    assert regard("predict", run, *paths).succeeds().out == "dark\nbright\n"
    assert regard("predict", run, stdin="\n".join(paths)).succeeds().out == "dark\nbright\n"
    found = json.loads(regard("predict", run, *paths, "--json").succeeds().out)["predictions"]
    assert [each["input"] for each in found] == paths
    assert set(found[0]["probabilities"]) == {"dark", "bright"}
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1.0)


def test_a_table_of_paths_gets_labels(regard, folder, run, tmp_path):
    table, out = folder / "some.csv", tmp_path / "out.jsonl"
    table.write_text("label,image\n?,0.png\n?,1.png\n")
    assert "path = image" in regard("predict", run, "--file", table, "--out", out).succeeds().err
    assert [json.loads(line)["prediction"] for line in out.read_text().splitlines()] == ["dark", "bright"]


def test_it_is_judged_and_gives_vectors(regard, folder, run):
    scores = json.loads(regard("test", run, "--json").succeeds().out)
    assert scores["accuracy"]["value"] == 1.0
    vectors = json.loads(regard("embed", run, folder / "0.png", "--json").succeeds().out)["embeddings"]
    assert np.linalg.norm(vectors[0]["vector"]) == pytest.approx(1.0, abs=1e-5)


def test_bad_pictures_are_told_in_one_line(regard, run, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    regard("predict", run, tmp_path / "text.png").fails_with("text.png is not an image of a known format: PNG, JPEG")
    regard("predict", run, tmp_path / "none.png").fails_with("there is no file", "none.png")
    regard("predict", run, tmp_path).fails_with("is a folder, expected a file")
    regard("predict", run, stdin=f"{tmp_path / 'none.png'}\n").fails_with("there is no file")


def test_models_and_data_that_do_not_go_together_are_told(regard, folder, dates, run, tmp_path):
    table, quiet = folder / "table.csv", ("--out", tmp_path / "no", "--quiet", "--steps", 2)
    for name in ("lstm", "gpt"):
        regard("train", table, "--model", name, *quiet).fails_with("a model that reads pixels, such as vit-tiny")
    regard("train", table, "--set", "task.image.size=30", *quiet).fails_with("multiple of patch_size, got size=30")
    regard("train", dates, "--model", "vit-tiny", *quiet).fails_with("needs an encoder and a decoder")
    regard("finetune", run, dates, "--out", tmp_path / "no", "--quiet").fails_with("needs a model that reads tokens")
    regard("generate", run, "a").fails_with("generate is for language models")
    assert not (tmp_path / "no").exists()


def test_many_missing_pictures_stop_training_unless_they_are_to_be_skipped(regard, folder, tmp_path):
    table = folder / "broken.csv"
    table.write_text((folder / "table.csv").read_text() + "none.png,dark\n")
    options = ("--out", tmp_path / "run", "--steps", 1, "--device", "cpu", "--quiet", "--set", "task.image.size=8")
    regard("train", table, *options, "--no-skip-bad").fails_with("1 of 41 images cannot be read: there is no file")
    assert "run" in regard("train", table, *options).succeeds().out
    table.write_text((folder / "table.csv").read_text() + "none.png,dark\nno.png,dark\nmissing.png,dark\n")
    regard("train", table, *options, "--overwrite").fails_with("3 of 43 images cannot be read", "--skip-bad")
    regard("train", table, *options, "--overwrite", "--skip-bad").succeeds()


def test_a_convolutional_network_is_trained_by_its_name(regard, folder, tmp_path):
    path, small = tmp_path / "cnn", ["--set", "model.model_dim=16", "--set", "task.image.size=8"]
    answer = regard(
        "train", folder / "table.csv", "--model", "cnn", "--out", path, "--steps", 20, "--device", "cpu", *small
    ).succeeds()
    assert "images are mirrored in training: the images are photographs in color" in answer.err
    paths = [str(folder / "0.png"), str(folder / "1.png")]
    assert regard("predict", path, *paths).succeeds().out == "dark\nbright\n"
    assert "Grad-CAM" in regard("attention", path, paths[0]).succeeds().out
    size = ("--set", "task.image.size=9", "--set", "task.image.patch_size=3", "--out", tmp_path / "no", "--quiet")
    regard("train", folder / "table.csv", "--model", "cnn", *size).fails_with("patch_size must be a power of two")
    assert not (tmp_path / "no").exists()


def test_truncated_and_huge_pictures_are_refused_in_one_line(regard, run, folder, tmp_path):
    whole = tmp_path / "whole.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)).save(whole)
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(whole.read_bytes()[:500])
    regard("predict", run, cut).fails_with("cut.jpg is a damaged image")
    bomb = tmp_path / "bomb.png"
    Image.new("1", (20_000, 20_000)).save(bomb)
    regard("predict", run, bomb).fails_with("bomb.png has more than", "pixels, and is not read")


def test_attention_is_drawn_over_a_picture(regard, folder, run, tmp_path):
    picture = folder / "1.png"
    assert "Attention rollout" in regard("attention", run, picture).succeeds().out
    chosen = regard("attention", run, picture, "--layer", 1, "--head", 2).succeeds().out
    assert "Attention of the class token, layer 1, head 2" in chosen
    for name in ("maps.html", "maps.png"):
        assert regard("attention", run, picture, "--out", tmp_path / name).succeeds().out == f"{tmp_path / name}\n"
    found = json.loads(regard("attention", run, picture, "--json").succeeds().out)
    assert found["output"] == "bright"
    assert np.array(found["weights"]["attention"]).shape == (1, 2, 2, 2)
    regard("attention", run, picture, "--head", 3).fails_with("--head must be in 1 to 2 for attention, got 3")
    regard("attention", run, picture, "--beam", 2).fails_with("--beam has no effect")
    regard("attention", run, folder / "none.png").fails_with("there is no file")
    regard("attention", run, folder / "table.csv").fails_with("is not an image of a known format")
