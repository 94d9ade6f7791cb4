"""The layout of sentence-transformers: an encoder, the pooling of its hidden states, and what follows.

modules.json                 the modules in their order
1_Pooling/config.json        the pooling
2_Dense/                     a linear layer with its activation, as config.json and model.safetensors; 3_Dense: another
2_Normalize                  scaling to length 1, of embeddings
sentence_bert_config.json    the maximum length

It represents every head on one vector of a text that transformers' own classes do not: these have no head on a mean.
`SentenceTransformer(folder).encode(texts)` then returns logits, or numbers, and `config.json` has the names of labels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from regard.errors import CheckpointError, DataError
from regard.files import load_json, require_inside, write_atomically
from regard.interop.hf.reading import POOLING_MODES, read_tensor
from regard.interop.model import ExportableModel, scaled_head
from regard.tasks.content import ExportSpec

SENTENCE_FILES = (
    "1_Pooling", "2_Normalize", "2_Dense", "3_Dense", "sentence_bert_config.json", "modules.json"
)  # fmt: skip
_ACTIVATIONS = {"hidden": "torch.nn.modules.activation.Tanh", "output": "torch.nn.modules.linear.Identity"}
"""The layers of a head in their order, and what follows each."""


def uses_sentence_layout(spec: ExportSpec) -> bool:
    """Whether a head is written in this layout: for embeddings, and for all but BERT's own head on one vector."""
    is_of_bert = spec.pooling == "first" and spec.has_hidden_layer
    return spec.head == "vector" or (spec.head in ("labels", "number") and not is_of_bert)


def sentence_files(model: ExportableModel) -> dict[str, Any]:
    """The content of each JSON file."""
    if not uses_sentence_layout(model.spec):
        return {}
    modes = {mode: pooling == model.spec.pooling for pooling, mode in POOLING_MODES.items()}
    layers = _layers(model)
    modules = {"": "Transformer", "1_Pooling": "Pooling"}
    modules |= dict.fromkeys(layers, "Dense") if layers else {"2_Normalize": "Normalize"}
    files: dict[str, Any] = {
        "1_Pooling/config.json": {"word_embedding_dimension": model.transformer_config.model_dim, **modes},
        "sentence_bert_config.json": {"max_seq_length": model.spec.max_length, "do_lower_case": False},
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules.items())
        ],
    }
    weights = scaled_head(model)
    for path, layer in layers.items():
        num_outputs, num_inputs = weights[f"head.{layer}.weight"].shape
        files[f"{path}/config.json"] = {
            "in_features": num_inputs,
            "out_features": num_outputs,
            "bias": True,
            "activation_function": _ACTIVATIONS[layer],
        }
    return files


def write_dense_layers(model: ExportableModel, folder: Path) -> None:
    """Write the weights of the head; a number is computed in the units of the data."""
    weights = scaled_head(model)
    for path, layer in _layers(model).items():
        (folder / path).mkdir(exist_ok=True)
        own = {f"linear.{kind}": weights[f"head.{layer}.{kind}"] for kind in ("weight", "bias")}
        tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in own.items()}
        write_atomically(folder / path / "model.safetensors", save(tensors, metadata={"format": "pt"}))


def read_dense_layers(model: ExportableModel, folder: Path) -> Mapping[str, Tensor]:
    """Read the weights of the head by our names; a number then is in the units of the data."""
    found: dict[str, Tensor] = {}
    for path, layer in _layers(model).items():
        try:
            tensors = load_file(folder / path / "model.safetensors")
        except FileNotFoundError:
            raise CheckpointError(f"{folder / path} has no weights") from None
        found |= {f"head.{layer}.{kind}": tensors[f"linear.{kind}"] for kind in ("weight", "bias")}
    return found


def read_sentence_head(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the head of a classifier beside an adapter, in the names of BERT's head; both may be empty."""
    described, paths = folder / "config.json", sorted(folder.glob("*_Dense/model.safetensors"))
    try:
        config = load_json(described.read_text(encoding="utf-8")) if described.is_file() else {}
    except (OSError, ValueError) as error:
        raise DataError(f"{described} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("id2label", {}), dict):
        raise DataError(f"{described} must contain an object, with an object id2label if it has one")
    if "problem_type" not in config or not paths:
        return config, {}
    names = dict(zip(reversed(paths), ("classifier", "bert.pooler.dense"), strict=False))
    return config, {
        f"{name}.{kind}": read_tensor(require_inside(path, folder), f"linear.{kind}")
        for path, name in names.items()
        for kind in ("weight", "bias")
    }


def _layers(model: ExportableModel) -> dict[str, str]:
    """The folders of the head's layers, and our names of those."""
    if model.spec.head == "vector" or not uses_sentence_layout(model.spec):
        return {}
    names = ["hidden", "output"] if model.spec.has_hidden_layer else ["output"]
    return {f"{number}_Dense": name for number, name in enumerate(names, start=2)}
