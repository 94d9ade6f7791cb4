"""Transformers as folders in the layout of Hugging Face; see `regard.interop.checkpoint` for its files.

A shape becomes the first architecture that can have it. Where none can, the
nearest is named, and what stands in its way.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from regard.errors import ConfigError
from regard.files import write_atomically
from regard.interop import bart, bert, gpt2, llama, t5
from regard.interop.equivalence import Differences, differences, told
from regard.interop.hf_tokenizer import tokenizer_files
from regard.interop.names import Weight, given_back, taken
from regard.interop.shapes import SHAPES
from regard.interop.trained import Trained, weights_with_tables, with_tables
from regard.logging import log_info
from regard.models.heads import usual_pooling
from regard.models.transformer_config import TransformerConfig
from regard.training.checkpoints import weights_of

_LLAMAS = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_CONFIGS: dict[str, Callable[[TransformerConfig], dict[str, Any]]] = {
    "BertModel": bert.bert_config,
    "GPT2LMHeadModel": gpt2.config_of,
    "LlamaForCausalLM": llama.config_of,
    "MarianMTModel": bart.marian_config,
    "BartForConditionalGeneration": bart.bart_config,
    "T5ForConditionalGeneration": t5.config_of,
}
"""By architecture what makes its `config.json`; of several that can have a shape the first is taken."""
_HEADS = {
    "classification": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "answering": "BertForQuestionAnswering",
    "masked": "BertForMaskedLM",
}
"""What stands on the body, by task."""
_BODY = "bert."
_POOLINGS = {"mean": "mean_tokens", "first": "cls_token", "max": "max_tokens", "last": "lasttoken"}


class Words(NamedTuple):
    """A model in the words of Hugging Face."""

    architecture: str
    config: dict[str, Any]
    names: dict[str, Weight]
    """Where each weight of the run lies."""


def write_hf(trained: Trained, folder: Path) -> str:
    """Fill an empty folder, and say which architecture the model has become."""
    words = words_for(trained)
    log_info(f"writing a {words.architecture}")
    tensors = {name: tensor.detach().float().contiguous() for name, tensor in tensors_of(trained, words).items()}
    write_atomically(folder / "model.safetensors", save(tensors, metadata={"format": "pt"}))
    files = {"config.json": words.config, **tokenizer_files(trained), **_sentence_files(trained)}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / name, text.encode())
    return words.architecture


def words_for(trained: Trained) -> Words:
    """The first architecture that can have the model's shape and its head."""
    architecture, config = nearest_architecture(with_tables(trained.shape))
    names = SHAPES[architecture].names(config)
    if architecture == "BertModel":
        names = {f"body.{name}": weight for name, weight in names.items()}
        if trained.task == "embedding":
            _require_pooling(trained)
            names = {name: weight._replace(name=weight.name.removeprefix(_BODY)) for name, weight in names.items()}
        else:
            architecture = _HEADS[trained.task]
            _require_head(trained, architecture)
            names |= head_names(trained.task, config)
    elif trained.task not in ("language", "translation"):
        raise ConfigError(
            f"model.encoder_layers must not be 0 for a model of {trained.task} to be exported, got 0: "
            "a head on a decoder alone has no counterpart that computes the same"
        )
    config = {
        "architectures": [architecture],
        **config,
        "vocab_size": trained.tokenizer.vocab_size,
        **_token_ids(trained),
        **_labels(trained),
        "dtype": "float32",
    }
    return Words(architecture, config, names)


def tensors_of(trained: Trained, words: Words) -> dict[str, Tensor]:
    """The weights of a model in these words."""
    body: Any = trained.body
    prefix = "" if body is trained.model else "body."
    weights = {f"{prefix}{name}": weight for name, weight in weights_with_tables(body).items()}
    tensors = given_back(words.names, {**weights, **head_weights(trained)})
    if not words.config.get("tie_word_embeddings", True):
        # Readers that tie nothing look for each of the copies.
        weight = words.names["embedding.weight"]
        tensors |= {other: tensors[weight.name].clone() for other in weight.others}
    if SHAPES[words.architecture].settings(words.config).output_bias:
        tensors.setdefault("final_logits_bias", torch.zeros(1, trained.tokenizer.vocab_size))
    if trained.task == "masked":
        # Its code ties the two, and looks for this one.
        tensors["cls.predictions.bias"] = tensors["cls.predictions.decoder.bias"].clone()
    return tensors


def head_weights(trained: Trained) -> dict[str, Tensor]:
    """The weights of the head, so that a number comes out in the units of the data."""
    found = {name: weight for name, weight in weights_of(trained.model).items() if name.startswith("head.")}
    if trained.task == "regression":
        data = trained.settings.data
        found["head.output.weight"] = found["head.output.weight"] * data.spread
        found["head.output.bias"] = found["head.output.bias"] * data.spread + data.center
    return found


def read_head(trained: Trained, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of the head out of a foreign file, as the run has them."""
    wanted = {name: weight for name, weight in weights_of(trained.model).items() if name.startswith("head.")}
    names = head_names(trained.task, config)
    found = {name: taken(names[name], tuple(weight.shape), tensors) for name, weight in wanted.items()}
    if trained.task == "regression":
        data = trained.settings.data
        found["head.output.weight"] = found["head.output.weight"] / data.spread
        found["head.output.bias"] = (found["head.output.bias"] - data.center) / data.spread
    return found


def nearest_architecture(shape: TransformerConfig) -> tuple[str, dict[str, Any]]:
    """The architecture that has this shape and its `config.json`, or an error that names what keeps the nearest."""
    missed: dict[str, Differences] = {}
    for candidate, config_of in _CONFIGS.items():
        config = config_of(shape)
        architecture = _LLAMAS.get(config["model_type"], candidate)
        try:
            known = SHAPES[architecture].settings(config)
        except ConfigError:  # such as heads of an odd width, which no model with rotary positions has
            continue
        found = differences(known, shape)
        if known.output_bias:  # one of zeros is none
            found.pop("output_bias", None)
        if not found:
            return architecture, config
        missed[architecture] = found
    # What has not the same stacks is not near, however alike the rest.
    stacks = ("encoder_layers", "decoder_layers")
    nearest = min(missed, key=lambda each: (any(name in missed[each] for name in stacks), len(missed[each])))
    raise ConfigError(
        f"no architecture of Hugging Face has this shape, the nearest is {nearest}: {told(missed[nearest])}"
    )


def head_names(task: str, config: Mapping[str, Any]) -> dict[str, Weight]:
    """Where the weights of a head lie."""
    if task == "masked":
        return {f"head.{name}": weight for name, weight in bert.bert_head(config).items()}
    layers = {
        "classification": {"hidden": "bert.pooler.dense", "output": "classifier"},
        "regression": {"hidden": "bert.pooler.dense", "output": "classifier"},
        "tagging": {"output": "classifier"},
        "answering": {"output": "qa_outputs"},
    }[task]
    return {
        f"head.{ours}.{kind}": Weight(f"{theirs}.{kind}")
        for ours, theirs in layers.items()
        for kind in ("weight", "bias")
    }


def _require_pooling(trained: Trained) -> None:
    if trained.settings.head.pooling == "attention":
        raise ConfigError(f"head.pooling must be one of {', '.join(_POOLINGS)} to be exported, got attention")


def _require_head(trained: Trained, architecture: str) -> None:
    """Raise where the head of that architecture computes something else."""
    head, is_classifier = trained.settings.head, trained.task in ("classification", "regression")
    wanted: dict[str, tuple[Any, Any]] = {"head.hidden": (is_classifier, head.hidden)}
    if is_classifier:
        wanted["head.pooling"] = ("first", head.pooling or usual_pooling(trained.shape))
    if trained.task == "tagging":
        wanted |= {"head.crf": (False, head.crf), "head.capitals": (False, bool(head.capitals))}
    if trained.task == "masked":
        wanted = {"model.activation": ("gelu", trained.shape.activation)}
    others = {name: values for name, values in wanted.items() if values[0] != values[1]}
    lines = [f"{name} must be {_spelled(want)}, got {_spelled(got)}" for name, (want, got) in others.items()]
    if lines:
        raise ConfigError(f"{architecture} computes something else: {'; '.join(lines)}; onnx has a place for any head")


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _token_ids(trained: Trained) -> dict[str, Any]:
    tokenizer = trained.tokenizer
    ids: dict[str, Any] = {"pad_token_id": tokenizer.pad}
    if trained.task in ("language", "translation"):
        ids |= {"bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}
    if trained.task == "translation":
        # What some of these would otherwise force their code to write.
        ids |= {"decoder_start_token_id": tokenizer.start, "forced_bos_token_id": None, "forced_eos_token_id": None}
    return ids


def _labels(trained: Trained) -> dict[str, Any]:
    """What the scores are called, and how they are told apart."""
    data = trained.settings.data
    if trained.task == "regression":
        return {"num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if trained.task not in ("classification", "tagging"):
        return {}
    names = {
        "id2label": {str(number): label for number, label in enumerate(data.labels)},
        "label2id": {label: number for number, label in enumerate(data.labels)},
    }
    if trained.task == "tagging":
        return names
    kind = "single_label" if data.label_separator is None else "multi_label"
    return {**names, "problem_type": f"{kind}_classification"}


def _sentence_files(trained: Trained) -> dict[str, Any]:
    """How the states of a text become one vector, as sentence-transformers reads it."""
    if trained.task != "embedding":
        return {}
    pooling = trained.settings.head.pooling or "mean"
    modes = {f"pooling_mode_{theirs}": ours == pooling for ours, theirs in _POOLINGS.items()}
    parts = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    return {
        "1_Pooling/config.json": {"word_embedding_dimension": trained.shape.model_dim, **modes},
        "sentence_bert_config.json": {"max_seq_length": trained.settings.data.max_length, "do_lower_case": False},
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(parts.items())
        ],
    }
