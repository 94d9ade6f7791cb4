"""EfficientNet-Lite0 files: every tensor is checked, and the real weights recognize dogs."""

import lzma
import os
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import regard
from regard.errors import CheckpointError, DataError
from regard.interop.efficientnet import IMAGE, foreign_name, read_efficientnet
from regard.interop.importing import find_importer
from regard.models.efficientnet import EfficientNet, EfficientNetConfig

NAMES = '["cat", "dog", "owl"]'
PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "flickr8k-1000"
REAL = os.environ.get("REGARD_EFFICIENTNET", "")
"""A file that `benchmarks/peers/efficientnet.py` has written."""


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Random weights of three labels, in the names of the file."""
    generator = torch.Generator().manual_seed(0)
    model = EfficientNet(EfficientNetConfig(), IMAGE)
    found = {foreign_name(name): tensor.float().contiguous() for name, tensor in model.state_dict().items()}
    head = {"_fc.weight": (3, 1_280), "_fc.bias": (3,)}
    return found | {name: torch.randn(*shape, generator=generator) for name, shape in head.items()}


def written(folder: Path, weights: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    path = folder / "net.safetensors"
    save_file(weights, path, metadata=metadata)
    return path


def test_a_file_becomes_a_run_that_predicts_its_labels(weights, tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    path = written(tmp_path, {**weights, "_bn0.num_batches_tracked": torch.tensor(3.0)}, {"labels": NAMES})
    assert find_importer(path).name == "efficientnet"
    run = regard.load(regard.import_model(path, tmp_path / "run"), device="cpu")
    assert run.task.name == "image-classification"
    assert run.settings.preset == "efficientnet-lite0"
    picture = tmp_path / "photo.png"
    Image.linear_gradient("L").resize((50, 40)).save(picture)
    found = run.predict_full([str(picture)])[0]
    assert set(found.probabilities or {}) == {"cat", "dog", "owl"}
    assert run.image_maps(picture).weights["grad-cam"].shape == (1, 1, 7, 7)


@pytest.mark.slow
def test_files_that_are_not_complete_are_rejected(weights, tmp_path: Path):
    without = {name: tensor for name, tensor in weights.items() if name != "_blocks.4._bn1.running_var"}
    with pytest.raises(CheckpointError, match=r"lacks the tensor _blocks\.4\._bn1\.running_var"):
        read_efficientnet(written(tmp_path, without))
    with pytest.raises(CheckpointError, match=r"_conv_stem\.weight must have the shape \(32, 3, 3, 3\), got \(8,"):
        read_efficientnet(written(tmp_path, {**weights, "_conv_stem.weight": torch.zeros(8, 3, 3, 3)}))
    with pytest.raises(CheckpointError, match=r"does not have: _blocks\.0\._se_reduce\.weight"):
        read_efficientnet(written(tmp_path, {**weights, "_blocks.0._se_reduce.weight": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"_fc must have 1,280 inputs and a bias for each label"):
        read_efficientnet(written(tmp_path, {**weights, "_fc.bias": torch.zeros(4)}))
    with pytest.raises(DataError, match="a name of its own for each of 3 labels, got 2 names"):
        read_efficientnet(written(tmp_path, weights, {"labels": '["a", "b", "b"]'}))
    with pytest.raises(DataError, match="must be a JSON list of names"):
        read_efficientnet(written(tmp_path, weights, {"labels": "a, b"}))


def test_labels_without_names_are_numbered(weights, tmp_path: Path):
    found = read_efficientnet(written(tmp_path, weights))
    assert found.labels == ("0", "1", "2")
    assert "numbered from 0" in found.notes[0]


@pytest.mark.slow
@pytest.mark.skipif(not (REAL and PHOTOS.is_dir()), reason="needs REGARD_EFFICIENTNET and the photographs")
def test_real_weights_recognize_dogs(tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    path = tmp_path / "numbered.safetensors"
    save_file(load_file(REAL), path)
    run = regard.load(regard.import_model(path, tmp_path / "run"), device="cpu")
    captions: dict[str, list[str]] = {}
    for line in lzma.open(PHOTOS / "captions1000.tsv.xz", "rt", encoding="utf-8").read().splitlines()[1:]:
        name, _, caption = line.split("\t")
        captions.setdefault(name, []).append(caption.lower())
    with tarfile.open(PHOTOS / "images96.tar") as archive:
        archive.extractall(tmp_path / "photos", filter="data")
    with_dogs = [name for name, all_of in captions.items() if all("dog" in caption for caption in all_of)]
    without = [name for name, all_of in captions.items() if not any("dog" in caption for caption in all_of)]
    shares = []
    for names in (with_dogs[:40], without[:40]):
        found = run.predict([str(tmp_path / "photos" / name) for name in names])
        # Classes 151 to 268 of ImageNet are breeds of dogs.
        shares.append(sum(151 <= int(str(label)) <= 268 for label in found) / len(names))
    assert shares[0] > 0.5
    assert shares[1] < 0.1
