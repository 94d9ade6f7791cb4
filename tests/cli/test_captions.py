"""Captions on the command line: from the built-in scenes, or a table, to a run; what is wrong is told in one line."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.builtin.scenes import generate_scenes

SMALL = ["--set", "task.image.size=16", "--set", "model.model_dim=16", "--set", "model.num_layers=1",
         "--set", "task.decoder_dim=16", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty scenes as files, and a table of two captions of each."""
    folder = tmp_path_factory.mktemp("scenes")
    rows = list(generate_scenes(80, 0))
    lines = ["file,caption"]
    for number, (image, caption, _) in enumerate(rows):
        name = f"{number // 2}.png"
        (folder / name).write_bytes(base64.b64decode(image.partition(",")[2]))
        lines.append(f"{name},{caption}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(regard, folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "captions"
    answer = regard("train", folder / "captions.csv", "--out", path, "--steps", 6, *SMALL,
                    "--set", "data.splits=[0.6,0.2,0.2]").succeeds()  # fmt: skip
    assert "task captioning, by the data: images and a text about each" in answer.err
    assert "16 x 16 pixels, 16 cells each" in answer.err
    return path


def test_a_caption_is_predicted_evaluated_and_tested(regard, folder, run, tmp_path):
    picture = folder / "0.png"
    out = regard("predict", run, picture, "--beam", 2).succeeds().out
    assert len(out.splitlines()) == 1
    uri = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    assert regard("predict", run, uri, "--beam", 2).succeeds().out == out
    scores = json.loads(regard("evaluate", run, folder / "captions.csv", "--json").succeeds().out)
    assert {"exact_match", "bleu", "bleu1", "bleu2", "bleu3", "chrf", "cider", "perplexity"} <= scores.keys()
    assert "pointing" not in scores
    assert json.loads(regard("test", run, "--json").succeeds().out)["rows"] > 1
    table = tmp_path / "out.csv"
    regard("predict", run, "--file", folder / "captions.csv", "--out", table).succeeds()
    assert len(table.read_text().splitlines()) == 81
    regard("export", run, "--to", "hf", "--out", tmp_path / "exported").fails_with(
        "hf has models of texts, and this one reads pixels, input_ids: onnx can represent it"
    )


def test_maps_over_the_picture_are_printed_and_written(regard, folder, run, tmp_path):
    picture = folder / "0.png"
    printed = regard("attention", run, picture).succeeds().out
    assert "Cross attention" in printed
    for suffix in ("html", "png", "svg", "json"):
        regard("attention", run, picture, "--out", tmp_path / f"a.{suffix}").succeeds()
        assert (tmp_path / f"a.{suffix}").stat().st_size > 1_000
    found = json.loads((tmp_path / "a.json").read_text())
    weights = np.array(found["weights"]["cross"])
    assert weights.shape[2:] == (len(found["target_tokens"]), 16)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-4)
    regard("attention", run, picture, "--layer", 9).fails_with("--layer must be in 1 to 1")


def test_scenes_are_scored_by_where_their_words_point(regard, tmp_path):
    shown = regard("data", "show", "scenes", "--rows", 2).succeeds().out.splitlines()
    assert shown[0] == "image\tcaption\tgrounding"
    answer = regard("train", "scenes", "--out", tmp_path / "run", "--steps", 2, "--json", *SMALL,
                    "--set", "data.num_rows=200").succeeds()  # fmt: skip
    found = json.loads(answer.out)
    assert 0.0 < found["pointing"]["value"] < 1.0
    assert found["baseline"]["name"] == "caption of the nearest training image"
    assert (tmp_path / "run" / "report.html").read_text().count("data:image/png;base64") > 2


def test_a_decoder_without_attention_has_no_maps(regard, folder, tmp_path):
    options = [*SMALL, "--set", "task.memory=mean", "--set", "task.decoder=lstm", "--set", "data.splits=[0.6,0.2,0.2]"]
    regard("train", folder / "captions.csv", "--out", tmp_path / "one", "--steps", 2, *options).succeeds()
    regard("attention", tmp_path / "one", folder / "0.png").fails_with("its decoder reads one vector")


def test_what_is_wrong_with_pictures_is_one_line_and_nothing_is_written(regard, folder, run, tmp_path, monkeypatch):
    table = tmp_path / "captions.csv"
    whole = (folder / "captions.csv").read_text().replace("\n", f"\n{folder}/").removesuffix(f"{folder}/")
    out = ("--out", tmp_path / "no", "--quiet", "--steps", 2, *SMALL, "--set", "data.outside_images=true")

    strict = "--no-skip-bad"

    def fails(name: str, *parts: str) -> None:
        table.write_text(f"{whole}{tmp_path / name},a dog on a beach\n")
        regard("train", table, *out, strict).fails_with("1 of 41 images cannot be read", name, *parts)
        assert not (tmp_path / "no").exists()

    fails("missing.png", "there is no file")
    (tmp_path / "text.png").write_text("no picture")
    fails("text.png", "is not an image of a known format")
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    fails("cut.jpg", "is a damaged image")
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 1_500)
        fails("whole.jpg", "has more than 1,500 pixels, and is not read")
        regard("predict", run, tmp_path / "whole.jpg").fails_with("has more than 1,500 pixels")
    regard("train", table, *out, "--set", "task.decoder=vit").fails_with("task.decoder must be a preset with a decoder")
    regard("train", table, *out, "--model", "lstm").fails_with("a model that reads pixels")
    table.write_text(whole.replace("a ", "", 1) + f"{tmp_path / 'missing.png'},a dog\n")
    regard("train", table, *out[:1], tmp_path / "some", *out[2:], "--skip-bad").succeeds()
    regard("train", table, *out[:1], tmp_path / "few", *out[2:]).succeeds()
