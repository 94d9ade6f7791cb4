"""Our Vision Transformer against transformers' ViT, on random weights and tiny sizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from regard.data.formats.images import ImageConfig, read_image
from regard.interop.hf.vit import VIT, image_labels, image_preprocessing
from regard.interop.hf.weights import foreign_weights, read_weight
from regard.models.heads import HeadConfig
from regard.models.vision import normalize_pixels
from regard.tasks.image_classification import ImageClassifier
from regard.training.checkpoints import load_weights, weights_of

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 22, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 29, "image_size": 15,
    "patch_size": 5, "num_labels": 7,
}  # fmt: skip
PROCESSOR: dict[str, Any] = {
    "size": {"height": 15, "width": 15}, "image_mean": [0.1, 0.5, 0.7], "image_std": [0.3, 0.6, 0.2],
}  # fmt: skip
PIXELS = torch.randint(256, (4, 3, 15, 15), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def ours_from(theirs: nn.Module, processor: dict[str, Any]) -> ImageClassifier:
    """Our model with the weights of a foreign one, by the names of `regard.interop`."""
    config, tensors = theirs.config.to_dict(), theirs.state_dict()
    assert VIT.head_names is not None
    has_head = "classifier.weight" in tensors
    names = {f"body.{name}": weight for name, weight in VIT.weight_names(config).items()}
    names |= {f"head.{name}": weight for name, weight in VIT.head_names(config).items()}
    picture = image_preprocessing(config, processor)
    num_labels = len(image_labels(config)) if has_head else 0
    ours = ImageClassifier(VIT.read_config(config), picture, HeadConfig(pooling="first"), num_labels).eval()
    own = weights_of(ours)
    load_weights(ours, {name: read_weight(names[name], tuple(own[name].shape), tensors) for name in own})
    return ours


def normalized(pixels: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(PROCESSOR[name])[:, None, None] for name in ("image_mean", "image_std"))
    return (pixels / 255 - mean) / std


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": False, "hidden_act": "gelu_new"}, {"patch_size": 3}])
@torch.no_grad()
def test_same_states(randomized, changes: dict[str, Any]):
    theirs = randomized(transformers.ViTModel(transformers.ViTConfig(**{**SIZES, **changes})))
    ours = ours_from(theirs, PROCESSOR)

    expected = theirs(normalized(PIXELS)).last_hidden_state

    assert expected.shape[1] == 1 + (15 // theirs.config.patch_size) ** 2
    torch.testing.assert_close(ours.body.encode(PIXELS).hidden_states, expected)


@torch.no_grad()
def test_same_scores_for_labels(randomized):
    theirs = randomized(transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES)))
    ours = ours_from(theirs, PROCESSOR)

    torch.testing.assert_close(ours(PIXELS), theirs(normalized(PIXELS)).logits)


@torch.no_grad()
def test_weights_go_back_as_they_came(randomized):
    theirs = randomized(transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES)))
    config, tensors = theirs.config.to_dict(), theirs.state_dict()
    ours, names = ours_from(theirs, PROCESSOR), VIT.weight_names(config)

    back = foreign_weights(names, {name.removeprefix("body."): each for name, each in weights_of(ours).items()})

    for weight in names.values():
        found = next(name for name in (weight.name, *weight.aliases) if name in tensors)
        assert torch.equal(back[weight.name], tensors[found])


def draw(path: Path, size: tuple[int, int], mode: str = "RGB") -> Path:
    """A picture with edges, slopes and noise."""
    numbers = np.random.default_rng(3)
    width, height = size
    slope = np.linspace(0, 200, width)[None, :, None] + np.linspace(0, 55, height)[:, None, None]
    noise = numbers.integers(0, 80, (height, width, 3))
    noise[height // 3 :, width // 2 :] += 90
    Image.fromarray(np.clip(slope + noise - 20, 0, 255).astype(np.uint8)).convert(mode).save(path)
    return path


@pytest.mark.parametrize("changes", [
    {}, {"resample": 3}, {"resample": 0}, {"do_normalize": False}, {"do_rescale": False}, {"rescale_factor": 1 / 127.5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [(37, 23), (15, 15), (7, 11)], ids=str)
@torch.no_grad()
def test_pictures_are_brought_into_the_form_that_transformers_brings_them_into(tmp_path, size, changes: dict[str, Any]):
    path = draw(tmp_path / "picture.png", size)
    processor = transformers.ViTImageProcessorPil(**{**PROCESSOR, **changes})
    with Image.open(path) as image:
        expected = processor(image, return_tensors="pt")["pixel_values"].double()

    config = image_preprocessing(SIZES, json.loads(processor.to_json_string()))
    found = normalize_pixels(torch.from_numpy(read_image(path, config))[None], config, torch.float64)

    # The pixels are the same; transformers divides and subtracts them in float32, whose error is relative to the
    # largest number on the way: 255 where pixels are not rescaled.
    largest = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * max(1.0, largest))


def test_a_camera_that_was_held_upright_is_heeded_and_transparency_is_dropped(tmp_path):
    path = draw(tmp_path / "picture.png", (12, 8))
    with Image.open(path) as image:
        upright = np.asarray(image.rotate(-90, expand=True))
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(tmp_path / "held.png", exif=exif)
        image.putalpha(100)
        image.save(tmp_path / "faint.png")
    config = ImageConfig(size=12, patch_size=4, resampling="nearest")
    Image.fromarray(upright).save(tmp_path / "upright.png")
    assert np.array_equal(read_image(tmp_path / "held.png", config), read_image(tmp_path / "upright.png", config))
    assert np.array_equal(read_image(tmp_path / "faint.png", config), read_image(path, config))
