"""Writing a Transformer as a Hugging Face folder; see `regard.interop.hf.reading` for its files.

A config becomes the first architecture that it fits. If there is none, the error
names the nearest and the settings in which it differs. A head on one vector that
is not BERT's own is written in the layout of sentence-transformers.
"""

import importlib.util
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from regard.errors import ConfigError
from regard.files import write_atomically
from regard.interop.hf.architectures import ARCHITECTURES, nearest_architecture
from regard.interop.hf.bert import BERT
from regard.interop.hf.config import HFConfig
from regard.interop.hf.conversion import convert_checkpoint
from regard.interop.hf.reading import POOLING_MODES, Checkpoint, read_checkpoint, read_pooling
from regard.interop.hf.sentences import (
    SENTENCE_FILES,
    read_dense_layers,
    sentence_files,
    uses_sentence_layout,
    write_dense_layers,
)
from regard.interop.hf.tokenizer import tokenizer_files
from regard.interop.hf.weights import ForeignWeight, WeightNames, foreign_weights, read_weight
from regard.interop.model import (
    GENERATING_HEADS,
    TOKENIZER_FILES,
    ExportableModel,
    Exporter,
    final_outputs,
    scaled_head,
    weights_with_position_tables,
    with_position_tables,
)
from regard.logging import log_info
from regard.models.heads import Pool
from regard.tasks.text import SEPARATOR
from regard.training.checkpoints import weights_of

_HEADS: dict[str | None, tuple[str, dict[str, str]]] = {
    "labels": ("BertForSequenceClassification", {"hidden": "bert.pooler.dense", "output": "classifier"}),
    "number": ("BertForSequenceClassification", {"hidden": "bert.pooler.dense", "output": "classifier"}),
    "tags": ("BertForTokenClassification", {"output": "classifier"}),
    "spans": ("BertForQuestionAnswering", {"output": "qa_outputs"}),
    "masked-tokens": ("BertForMaskedLM", {}),
    "vector": ("BertModel", {}),
}
"""For each head on an encoder the architecture, and the names of the head's layers."""
_BODY = "bert."


class HFModel(NamedTuple):
    """A model in the names of Hugging Face."""

    architecture: str
    config: dict[str, Any]
    weight_names: WeightNames
    """For each weight of the model, where it is stored."""


def write_hf(model: ExportableModel, folder: Path) -> str:
    """Write all files to an empty folder and return the name of the architecture."""
    hf_model = as_hf_model(model)
    log_info(f"writing a {hf_model.architecture}")
    write_dense_layers(model, folder)
    tensors = {name: tensor.detach().float().contiguous() for name, tensor in _tensors(model, hf_model).items()}
    write_atomically(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    write_json_files(folder, {"config.json": hf_model.config, **tokenizer_files(model), **sentence_files(model)})
    has_layers = uses_sentence_layout(model.spec) and model.spec.head != "vector"
    return hf_model.architecture + (f", {model.spec.pooling} pooling and a dense head" if has_layers else "")


def write_json_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Write strings as they are, and other content as JSON, by the names of the files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / name, text.encode())


def hf_outputs(model: ExportableModel, folder: Path) -> tuple[Tensor, Tensor]:
    """The outputs of the model in a folder, and those of the model that it was written from."""
    head = read_dense_layers(model, folder) if uses_sentence_layout(model.spec) else None
    return checkpoint_outputs(model, read_checkpoint(folder), head), model.outputs()


def checkpoint_outputs(
    model: ExportableModel, checkpoint: Checkpoint, head: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The outputs of a checkpoint that was written from `model`; unset, it contains the head."""
    imported = convert_checkpoint(checkpoint)
    assert imported.config is not None, "a checkpoint has a config"
    if head is None:
        head = read_head(model, checkpoint.tensors, checkpoint.config)
    rebuilt = model.rebuild(imported.config, {**imported.weights, **head})
    return model.outputs(rebuilt, is_scaled=True)


def hf_predictions(model: ExportableModel, folder: Path, inputs: Sequence[str]) -> Tensor | None:
    """The final outputs for texts by transformers, from the files alone; None where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        is_layered, spec = uses_sentence_layout(model.spec), model.spec
        kind = transformers.AutoModel if is_layered else transformers.AutoModelForSequenceClassification
        theirs: Any = kind.from_pretrained(folder, local_files_only=True).float().eval()
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        texts = [list(side) for side in zip(*(text.split(SEPARATOR) for text in inputs), strict=True)]
        encoded = tokenizer(*texts, truncation=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            outputs = theirs(**encoded)
    if not is_layered:
        return final_outputs(spec, outputs.logits)
    pooling = read_pooling(folder)
    assert pooling is not None, "it was just written"
    vectors = Pool(model.config.model_dim, pooling)(outputs.last_hidden_state, encoded["attention_mask"].bool())
    if spec.head == "vector":
        return F.normalize(vectors, dim=-1)
    head = read_dense_layers(model, folder)
    if spec.has_hidden_layer:
        vectors = F.linear(vectors, head["head.hidden.weight"], head["head.hidden.bias"]).tanh()
    return final_outputs(spec, F.linear(vectors, head["head.output.weight"], head["head.output.bias"]))


def as_hf_model(model: ExportableModel) -> HFModel:
    """The first architecture that the model's config and head fit."""
    own = with_position_tables(model.transformer_config)
    try:
        architecture, config = nearest_architecture(own)
    except ConfigError as error:
        raise ConfigError(f"{error}; onnx can represent every config") from None
    names = ARCHITECTURES[architecture].weight_names(config)
    head = model.spec.head
    if architecture == "BertModel":
        is_layered = uses_sentence_layout(model.spec)
        architecture = "BertModel" if is_layered else _HEADS[head][0]
        _require_head(model, architecture)
        names = {f"body.{name}": weight for name, weight in names.items()}
        names |= {} if is_layered else head_names(head, config)
        if architecture == "BertModel":
            names = {name: weight._replace(name=weight.name.removeprefix(_BODY)) for name, weight in names.items()}
    elif head not in GENERATING_HEADS:
        raise ConfigError(
            f"model.encoder_layers must not be 0 to export a model with the head {head}, got 0: "
            "no architecture of Hugging Face computes the same with a decoder"
        )
    config = {
        "architectures": [architecture],
        **config,
        "vocab_size": model.tokenizer.vocab_size,
        **_token_ids(model),
        **label_fields(model),
        "dtype": "float32",
    }
    return HFModel(architecture, config, names)


def head_tensors(model: ExportableModel, hf_model: HFModel) -> dict[str, Tensor]:
    """The weights of the head on its body in Hugging Face's names; a number is computed in the units of the data."""
    return foreign_weights(hf_model.weight_names, scaled_head(model))


def read_head(model: ExportableModel, tensors: Mapping[str, Tensor], config: HFConfig) -> dict[str, Tensor]:
    """Read the weights of the head from Hugging Face's names; a number then is in the units of the data."""
    names = head_names(model.spec.head, config)
    return {
        name: read_weight(names[name], tuple(weight.shape), tensors)
        for name, weight in weights_of(model.model).items()
        if name.startswith("head.")
    }


def _tensors(model: ExportableModel, hf_model: HFModel) -> dict[str, Tensor]:
    prefix = "" if model.body is model.model else "body."
    weights = {f"{prefix}{name}": weight for name, weight in weights_with_position_tables(model.body).items()}
    tensors = {**foreign_weights(hf_model.weight_names, weights), **head_tensors(model, hf_model)}
    if not hf_model.config.get("tie_word_embeddings", True):
        # transformers then reads each copy of the embedding.
        weight = hf_model.weight_names["embedding.weight"]
        tensors |= {alias: tensors[weight.name].clone() for alias in weight.aliases}
    if ARCHITECTURES[hf_model.architecture].read_config(hf_model.config).output_bias:
        tensors.setdefault("final_logits_bias", torch.zeros(1, model.tokenizer.vocab_size))
    if model.spec.head == "masked-tokens":
        # transformers ties the two biases and reads this one.
        tensors["cls.predictions.bias"] = tensors["cls.predictions.decoder.bias"].clone()
    return tensors


def head_names(head: str | None, config: HFConfig) -> WeightNames:
    """Where the weights of a head on an encoder are stored."""
    if head == "masked-tokens":
        assert BERT.head_names is not None, "BERT has a head for masked tokens"
        return {f"head.{name}": weight for name, weight in BERT.head_names(config).items()}
    _, layers = _HEADS.get(head, ("", {}))
    return {
        f"head.{ours}.{kind}": ForeignWeight(f"{theirs}.{kind}")
        for ours, theirs in layers.items()
        for kind in ("weight", "bias")
    }


def _require_head(model: ExportableModel, architecture: str) -> None:
    """Raise if the head of that architecture computes something else."""
    spec = model.spec
    if uses_sentence_layout(spec) and spec.pooling not in POOLING_MODES:
        raise ConfigError(
            f"head.pooling must be one of {', '.join(POOLING_MODES)} to be exported to hf or peft, got {spec.pooling}; "
            "onnx can represent every head"
        )
    expected: dict[str, tuple[Any, Any]] = {}
    if spec.head in ("tags", "spans"):
        expected["head.hidden_layer"] = (False, spec.has_hidden_layer)
    if spec.head == "masked-tokens":
        expected["model.activation"] = ("gelu", model.transformer_config.activation)
    lines = [f"{name} must be {_toml(want)}, got {_toml(got)}" for name, (want, got) in expected.items() if want != got]
    if lines:
        raise ConfigError(f"{architecture} computes something else: {'; '.join(lines)}; onnx can represent every head")


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _token_ids(model: ExportableModel) -> dict[str, Any]:
    tokenizer = model.tokenizer
    ids: dict[str, Any] = {"pad_token_id": tokenizer.pad}
    if model.spec.head in GENERATING_HEADS:
        ids |= {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}
    if model.spec.head == "target-tokens":
        # By default some architectures force the first or last token of generated text.
        ids |= {"decoder_start_token_id": tokenizer.start, "forced_bos_token_id": None, "forced_eos_token_id": None}
    return ids


def label_fields(model: ExportableModel) -> dict[str, Any]:
    """The names of the logits and the kind of problem."""
    spec = model.spec
    if spec.head == "number":
        return {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if spec.head not in ("labels", "tags"):
        return {}
    names = {
        "id2label": {str(number): label for number, label in enumerate(spec.labels)},
        "label2id": {label: number for number, label in enumerate(spec.labels)},
    }
    if spec.head == "tags":
        return names
    kind = "multi_label" if spec.is_multi_label else "single_label"
    return {**names, "problem_type": f"{kind}_classification"}


HUGGING_FACE_EXPORTER = Exporter(
    name="hf",
    write=write_hf,
    outputs=hf_outputs,
    predict=hf_predictions,
    files=("config.json", "model.safetensors", "generation_config.json", *TOKENIZER_FILES, *SENTENCE_FILES),
)
