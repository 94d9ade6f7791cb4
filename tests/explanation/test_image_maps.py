"""Maps over images: rollout against a direct computation, Grad-CAM against class activation maps, pages and figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.tiny import tiny

from regard.data.formats.images import ImageConfig, read_image
from regard.errors import ConfigError
from regard.explanation.image_maps import ImageMaps, attention_rollout, image_maps
from regard.explanation.pages import page_data

IMAGE = ImageConfig(size=12, patch_size=4)
VIT = {"num_layers": 3, "model_dim": 14, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0}


@pytest.fixture
def picture(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    path = tmp_path / "photo.png"
    Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for label in ("cat", "dog", "owl"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / label / f"{number}.png")
    return tmp_path / "data"


def classifier(folder: Path, preset: str, shape: dict[str, Any], **head: Any) -> Any:
    made = tiny("image-classification", folder, preset=preset, image=IMAGE.model_dump(), flips=False, model=shape)
    return made.build(std=0.3, **head)


def test_rollout_is_the_product_of_the_layers_with_their_residual_connections():
    weights = torch.randn(3, 2, 5, 5).softmax(dim=-1)
    found = attention_rollout(weights.numpy())
    # The attention of one position through each layer: half of it stays, half is distributed by the layer.
    for position in range(5):
        flow = torch.eye(5)[position]
        for layer in reversed(range(3)):
            flow = 0.5 * flow + 0.5 * sum(flow @ weights[layer, head] for head in range(2)) / 2
        np.testing.assert_allclose(found[position], flow.numpy(), rtol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-6)


def test_attention_is_that_of_the_class_token_over_the_patches(folder: Path, picture: str):
    model = classifier(folder, "vit-tiny", VIT)
    maps = image_maps(model, picture, IMAGE, prediction="dog", label=1)
    assert maps.kinds == ("attention", "rollout")
    assert maps.weights["attention"].shape == (3, 2, 3, 3)
    assert maps.weights["rollout"].shape == (1, 1, 3, 3)
    rest = 1.0 - maps.weights["attention"].sum(axis=(2, 3))  # on the class token itself
    assert ((rest > 0.0) & (rest < 1.0)).all()
    assert maps.picture.shape == (30, 30, 3)
    assert maps.aspect == pytest.approx(1.5)
    assert not maps.is_pooled
    assert maps.describe("attention", 1) == "Attention of the class token, layer 2, mean of all heads"
    averaged = classifier(folder, "vit-tiny", VIT, pooling="mean")
    pooled = image_maps(averaged, picture, IMAGE, prediction="dog", label=1)
    assert pooled.describe("attention", 0, 0) == "Attention, averaged over all positions, layer 1, head 1"


def test_grad_cam_of_a_linear_head_is_the_class_activation_map(folder: Path, picture: str):
    model = classifier(folder, "cnn-tiny", {"num_layers": 1, "model_dim": 12})
    with torch.no_grad():
        cells = model.body.encode(torch.from_numpy(read_image(picture, IMAGE))[None]).hidden_states[0]
        by_label = (cells @ model.head.output.weight.T).clamp(min=0.0).T.reshape(3, 3, 3)
    label = int(by_label.amax(dim=(1, 2)).argmax())
    expected = by_label[label]
    assert expected.max() > 0.0
    maps = image_maps(model, picture, IMAGE, prediction="dog", label=label)
    np.testing.assert_allclose(maps.weights["grad-cam"][0, 0], expected / expected.max(), rtol=1e-5, atol=1e-6)


def test_maps_are_saved_as_pages_figures_and_json(folder: Path, picture: str, tmp_path: Path):
    maps = image_maps(classifier(folder, "vit-tiny", VIT), picture, IMAGE, prediction="<b>", label=1)
    for name in ("maps.html", "maps.png", "maps.svg", "maps.json"):
        maps.save(tmp_path / name, kind="attention", layer=1)
    data = page_data(tmp_path / "maps.html")
    assert data["weights"]["attention"]["shape"] == [3, 2, 3, 3]
    assert data["output"] == "<b>"
    with Image.open(tmp_path / "maps.png") as drawn:
        assert drawn.width > drawn.height
    assert "layer 2" in (tmp_path / "maps.svg").read_text()
    with pytest.raises(ConfigError, match="no maps of kind 'cross', it has attention, rollout"):
        maps.save(tmp_path / "other.png", kind="cross")
    with pytest.raises(ConfigError, match="layer must be in 0 to 2 for attention, got 3"):
        maps.average("attention", 3)


def test_a_map_of_zeros_is_drawn(tmp_path: Path):
    picture = np.zeros((4, 4, 3), np.uint8)
    ImageMaps("a.png", "cat", picture, 1.0, {"grad-cam": np.zeros((1, 1, 2, 2), np.float32)}).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").is_file()
