"""Importing ViT: a folder of transformers becomes a run with the same predictions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import regard
from regard.errors import CheckpointError, ConfigError, RunError
from regard.runs.folder import RunFolder
from regard.runs.importing import import_model

transformers = pytest.importorskip("transformers")

LABELS = ["cat", "dog", "crane", "crane", "fish"]
SIZES: dict[str, Any] = {
    "hidden_size": 22, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 29, "image_size": 15,
    "patch_size": 5, "id2label": dict(enumerate(LABELS)),
}  # fmt: skip
Make = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Make:
    """Save a foreign model with random weights and the way it prepares pictures."""

    def save(architecture: str = "ViTForImageClassification", **more: Any) -> Path:
        folder = tmp_path / "theirs"
        theirs = getattr(transformers, architecture)(transformers.ViTConfig(**{**SIZES, **more})).float()
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.3)
        theirs.save_pretrained(folder)
        processor = transformers.ViTImageProcessorPil(
            size={"height": 15, "width": 15}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4], resample=3
        )
        processor.save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    """Pictures of several formats and sizes."""
    numbers, paths = np.random.default_rng(0), []
    for name, (height, width) in {"a.png": (31, 17), "b.jpg": (15, 15), "c.webp": (7, 40)}.items():
        paths.append(str(tmp_path / name))
        Image.fromarray(numbers.integers(0, 256, (height, width, 3)).astype(np.uint8)).save(paths[-1])
    return paths


@torch.no_grad()
def test_an_imported_model_has_the_predictions_of_transformers(saved, pictures, tmp_path):
    folder = saved()
    run = regard.load(import_model(folder, tmp_path / "run"), device="cpu")
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    processor = transformers.ViTImageProcessorPil.from_pretrained(folder)
    images = [Image.open(path) for path in pictures]
    expected = theirs(**processor(images, return_tensors="pt")).logits.softmax(dim=-1)
    for image in images:
        image.close()

    found = run.predict_full(pictures)

    assert [each.input for each in found] == pictures
    assert list(found[0].probabilities or ()) == ["cat", "dog", "crane", "crane (3)", "fish"]
    # Both compute in float32, each in an order of its own.
    chances = torch.tensor([list((each.probabilities or {}).values()) for each in found])
    torch.testing.assert_close(chances, expected.double(), rtol=1e-4, atol=1e-5)
    assert [list(each.probabilities or ()).index(each.output) for each in found] == expected.argmax(dim=-1).tolist()


def test_a_run_records_what_it_was_imported_from(saved, tmp_path):
    folder = RunFolder(import_model(saved(), tmp_path / "run"))
    task = folder.read_settings().task.model_dump()
    assert task["name"] == "image-classification"
    assert folder.read_provenance().notes == ["imported from theirs (ViTForImageClassification)"]
    image = task["image"]
    assert (image["size"], image["patch_size"], image["resampling"]) == (15, 5, "bicubic")
    assert image["std"] == [0.2, 0.3, 0.4]


@torch.no_grad()
def test_a_body_without_a_head_computes_embeddings(saved, pictures, tmp_path):
    folder = saved("ViTModel")
    (folder / "preprocessor_config.json").unlink()
    run = regard.load(import_model(folder, tmp_path / "run"), device="cpu")
    assert run.folder.read_provenance().notes[1:] == [
        "the model has no classification head: it has to be fine-tuned",
        "there is no preprocessor_config.json: images are preprocessed by the defaults of ViT",
        "not used: pooler.dense.bias, pooler.dense.weight",
    ]
    with pytest.raises(RunError, match="this model has no labels"):
        run.predict(pictures[0])
    theirs = transformers.ViTModel.from_pretrained(folder).eval()
    processor = transformers.ViTImageProcessorPil(size={"height": 15, "width": 15})
    with Image.open(pictures[0]) as image:
        first = theirs(**processor(image, return_tensors="pt")).last_hidden_state[0, 0]
    vector = torch.from_numpy(run.embed(pictures[0]))
    # Both compute in float32, each in an order of its own.
    torch.testing.assert_close(vector.float(), (first / first.norm()).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("config.json", {"image_size": 16}, "the image size must be a multiple of patch_size"),
        ("config.json", {"image_size": [15, 15]}, "config.json: image_size must be an integer"),
        ("config.json", {"num_channels": 4}, "channels"),
        ("config.json", {"hidden_act": "tanh"}, "hidden_act must be one of"),
        ("config.json", {"id2label": {"0": "cat", "2": "dog"}}, "id2label must have a label for each number from 0 on"),
        ("config.json", {"id2label": {}}, "id2label must not be empty"),
        ("config.json", {"problem_type": "multi_label_classification"}, "problem_type"),
        ("preprocessor_config.json", {"do_resize": False}, "preprocessor_config.json: do_resize must be True"),
        ("preprocessor_config.json", {"do_center_crop": True}, "do_center_crop must be False"),
        ("preprocessor_config.json", {"size": {"height": 15, "width": 20}}, "size must be the image_size of 15"),
        ("preprocessor_config.json", {"size": {"shortest_edge": 15}}, "size must be the image_size of 15"),
        ("preprocessor_config.json", {"resample": 9}, "resample must be one of 0, 1, 2, 3, 4, 5, got 9"),
        ("preprocessor_config.json", {"rescale_factor": 0}, "rescale_factor must be above 0"),
        ("preprocessor_config.json", {"image_mean": [0.5, 0.5]}, "mean must be one finite number for all channels"),
        ("preprocessor_config.json", {"image_std": "large"}, "image_std must be a number"),
    ],
)
def test_values_that_cannot_be_imported_are_errors_and_nothing_is_written(
    saved, tmp_path, file, changes: dict, words: str
):
    folder = saved()
    table = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**table, **changes}))
    with pytest.raises(ConfigError) as error:
        import_model(folder, tmp_path / "run")
    assert words in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("vit.embeddings.position_embeddings", (1, 9, 22), "has the shape 1x9x22, config.json requires 1x10x22"),
        ("vit.embeddings.cls_token", (22,), "cls_token has the shape 22, config.json requires 1x1x22"),
        ("classifier.weight", (4, 22), "classifier.weight has the shape 4x22, config.json requires 5x22"),
        ("vit.embeddings.patch_embeddings.projection.weight", None, "has no vit.embeddings.patch_embeddings"),
        ("vit.more", (3,), "has 1 weights that config.json does not describe: vit.more"),
    ],
)  # fmt: skip
def test_weights_of_the_wrong_shape_are_errors(saved, tmp_path, name: str, shape, words: str):
    folder = saved()
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors | ({} if shape is None else {name: torch.zeros(shape)}), folder / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        import_model(folder, tmp_path / "run")
    assert words in str(error.value)
