"""Generated images on the command line: a folder of images to a run, grids, a page, and scores."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.golden.data import lines

SMALL = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "task.size=6"]
HEADS = ["--set", "model.num_heads=2", "--set", "model.feedforward_dim=24"]
TASK = ["--task", "image-generation", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lines(tmp_path_factory.mktemp("drawn"), 30)


@pytest.fixture(scope="module")
def run(regard, folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "lines"
    answer = regard("train", folder, "--out", path, "--steps", 40, *TASK, *SMALL, *HEADS).succeeds()
    assert answer.out == f"{path}\n"
    assert "images of 6 x 6 pixels in gray, 36 values of 256 levels" in answer.err
    assert "images are not mirrored in training" in answer.err
    assert "histograms" in answer.err
    assert "next:\n  regard generate" in answer.err
    assert '"images":[{"png":"' in (path / "report.html").read_text()
    return path


def test_a_grid_of_a_class_is_drawn(regard, run, tmp_path):
    one, two, other = tmp_path / "one.png", tmp_path / "two.png", tmp_path / "other.png"
    assert regard("generate", run, "--class", "bars", "--count", 5, "--out", one).succeeds().out == f"{one}\n"
    with Image.open(one) as grid:
        assert grid.size == (3 * 68 + 2, 2 * 68 + 2)
    regard("generate", run, "--class", "bars", "--count", 5, "--out", two).succeeds()
    assert one.read_bytes() == two.read_bytes()
    answer = regard("generate", run, "--count", 5, "--seed", 3, "--out", other, "--json").succeeds()
    assert json.loads(answer.out) == {"out": str(other), "class": None, "count": 5}
    assert one.read_bytes() != other.read_bytes()


def test_a_run_without_its_weights_uses_a_checkpoint_with_the_buffers_of_the_model(regard, run, folder, tmp_path):
    half = shutil.copytree(run, tmp_path / "half")
    (half / "model.safetensors").unlink()
    picture = folder / "bars" / "0.png"
    answer = regard("predict", half, picture).succeeds()
    assert "using the newest complete checkpoint, of step 40" in answer.err
    assert float(answer.out) == pytest.approx(float(regard("predict", run, picture).succeeds().out), abs=0.5)


def test_a_page_has_the_nearest_training_images(regard, run, tmp_path):
    page = tmp_path / "page.html"
    regard("generate", run, "--count", 2, "--out", page).succeeds()
    assert page.read_text().count('"distance":null') == 2
    assert '"nearest":[{"png":"' in page.read_text()


def test_images_are_scored_in_bits_per_dimension(regard, folder, run, tmp_path):
    """What is unlike the training images needs more bits."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 6)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    usual, unusual = regard("predict", run, folder / "bars" / "0.png", tmp_path / "noise.png").succeeds().out.split()
    assert float(usual) < float(unusual)
    scores = json.loads(regard("evaluate", run, folder, "--json").succeeds().out)
    assert scores["bits_per_dimension"]["value"] < 8.5
    assert "bits:8" in scores["bits_per_dimension"]["signature"]
    assert "bits_per_dimension" in json.loads(regard("test", run, "--json").succeeds().out)
    assert "certificate" in regard("certificate", run).succeeds().out.lower()


@pytest.mark.slow
def test_two_families_are_compared(regard, folder, tmp_path):
    answer = regard(
        "compare", folder, "--models", "pixel-gpt-tiny,pixel-lstm-tiny", "--steps", 3, "--seeds", 1, "--out",
        tmp_path / "compared", "--json", *TASK, *SMALL,
    ).succeeds()  # fmt: skip
    found = json.dumps(json.loads(answer.out))
    assert "pixel-gpt-tiny" in found
    assert "bits_per_dimension" in found


def test_what_cannot_be_drawn_is_told_in_one_line(regard, run, dates, tmp_path):
    out = tmp_path / "grid.png"
    regard("generate", run, "--class", "bar", "--out", out).fails_with("no class is called 'bar'; did you mean bars?")
    regard("generate", run, "--count", 0, "--out", out).fails_with("number of images must be at least 1, got 0")
    regard("generate", run, "--out", tmp_path / "grid.gif").fails_with("a grid (.png) or as a page (.html)")
    regard("generate", run, "--out", tmp_path / "no" / "grid.png").fails_with("there is no folder")
    regard("generate", run).fails_with("images are written to a file: --out grid.png")
    regard("generate", run, "a prompt", "--out", out).fails_with("an image has no prompt")
    assert not out.exists()
    regard("attention", run, "a").fails_with("which has no attention maps")
    regard("export", run, "--to", "gguf", "--out", tmp_path / "m.gguf").fails_with("onnx can represent it")
