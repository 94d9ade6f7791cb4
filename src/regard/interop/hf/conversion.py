"""Converting a checkpoint in the names of Hugging Face to a model in ours.

The config decides which weights there are: a missing weight, one of another
shape, and one that is neither used nor known to be unnecessary are errors.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import CheckpointError
from regard.interop.hf.architectures import ARCHITECTURES, architecture_name
from regard.interop.hf.config import ConfigFields, HFArchitecture
from regard.interop.hf.reading import Checkpoint
from regard.interop.hf.tokenizer import read_tokenizer
from regard.interop.hf.vit import image_labels, image_preprocessing
from regard.interop.hf.weights import ForeignWeight, WeightNames, read_weight, stored_names
from regard.interop.model import ImportedModel
from regard.models.heads import MaskedHead
from regard.models.transformer import Transformer
from regard.models.transformer.config import TransformerConfig
from regard.models.vision import VisionTransformer, VisionTransformerConfig
from regard.training.checkpoints import weights_of

_VOCABULARY_WEIGHTS = ("embedding.weight", "output.weight", "output.bias")
"""Weights with a row for each token."""
_BANNED_LOGIT = -1e4
"""The output bias of a token that must not be generated."""
_NUM_LISTED = 3


def convert_checkpoint(checkpoint: Checkpoint) -> ImportedModel:
    """Convert a checkpoint; whatever does not fit its config is an error."""
    name = architecture_name(checkpoint.config)
    architecture = ARCHITECTURES[name]
    convert = _convert_image_encoder if architecture.stacks == "image-encoder" else _convert_text_model
    return ImportedModel(
        name=checkpoint.name,
        architecture=name,
        content_hash=checkpoint.content_hash,
        model_type=str(checkpoint.config.get("model_type", name)),
        chat_template=checkpoint.chat_template,
        max_length=checkpoint.max_length,
        **convert(checkpoint, architecture),
    )


def _convert_text_model(checkpoint: Checkpoint, architecture: HFArchitecture) -> dict[str, Any]:
    tokenizer = read_tokenizer(checkpoint, architecture.stacks)
    config, weights, notes = _text_weights(checkpoint, architecture, tokenizer.vocab_size)
    notes += [f"not used: {', '.join(checkpoint.dense_layers)}"] if checkpoint.dense_layers else []
    heads: dict[str, str] = {"decoder": "next-token", "encoder-decoder": "target-tokens"}
    encoder_head: str = "masked-tokens" if _has_masked_head(checkpoint, architecture) else "vector"
    return {
        "head": heads.get(architecture.stacks, encoder_head),
        "config": config,
        "weights": weights,
        "tokenizer": tokenizer,
        "context_length": config.context_length,
        "pooling": checkpoint.pooling,
        "notes": tuple(notes),
    }


def _text_weights(
    checkpoint: Checkpoint, architecture: HFArchitecture, vocab_size: int
) -> tuple[TransformerConfig, dict[str, Tensor], list[str]]:
    """The config, the weights and notes; an encoder is the body of the model."""
    hf_config, tensors = checkpoint.config, checkpoint.tensors
    model, names = architecture.read_config(hf_config), architecture.weight_names(hf_config)
    notes: list[str] = []
    if model.decoder_depth and model.tie_embeddings and not _is_tied(names["output.weight"], names, tensors):
        model = model.changed(tie_embeddings=False)
        notes.append("the output projection is not tied to the embedding, contrary to config.json")
    num_rows = _num_rows(checkpoint, vocab_size)
    with torch.device("meta"):
        shapes = _shapes(Transformer(model, num_rows))
    body, used = _read_weights(names, shapes, tensors)
    prefix = "body." if architecture.stacks == "encoder" else ""
    weights = {prefix + name: weight for name, weight in body.items()}
    if architecture.head_names is not None and _has_masked_head(checkpoint, architecture):
        head = architecture.head_names(hf_config)
        if not _is_tied(head["output.weight"], names, tensors):
            raise CheckpointError(f"{head['output.weight'].name} must equal the embedding, but is another matrix")
        with torch.device("meta"):
            shapes = _shapes(MaskedHead(nn.Embedding(num_rows, model.model_dim)))
        found, more = _read_weights(head, {name: shapes[name] for name in head if name != "output.weight"}, tensors)
        weights |= {f"head.{name}": weight for name, weight in found.items()}
        used |= more
    notes += _unused(tensors, used, architecture)
    _apply_banned_tokens(weights, checkpoint)
    if model.output_bias and not weights["output.bias"].any():
        model = model.changed(output_bias=False)
        del weights["output.bias"]
    if num_rows > vocab_size:
        notes.append(f"not used: the last {num_rows - vocab_size:,} rows of the embedding, which have no token")
    cut = {prefix + name for name in _VOCABULARY_WEIGHTS} | {f"head.{name}" for name in _VOCABULARY_WEIGHTS}
    return model, {name: each[:vocab_size] if name in cut else each for name, each in weights.items()}, notes


def _convert_image_encoder(checkpoint: Checkpoint, architecture: HFArchitecture) -> dict[str, Any]:
    """An image encoder; its labels, if it has a head, are those of its config."""
    hf_config, tensors = checkpoint.config, checkpoint.tensors
    assert architecture.head_names is not None, "an image encoder can have a head"
    head = architecture.head_names(hf_config)
    has_head = bool(stored_names(head["output.weight"], tensors))
    labels = image_labels(hf_config) if has_head else []
    model, image = architecture.read_config(hf_config), image_preprocessing(hf_config, checkpoint.processor)
    assert isinstance(model, VisionTransformerConfig), "an image encoder has the settings of one"
    with torch.device("meta"):
        shapes = {f"body.{name}": shape for name, shape in _shapes(VisionTransformer(model, image)).items()}
    names = {f"body.{name}": weight for name, weight in architecture.weight_names(hf_config).items()}
    notes = [] if has_head else ["the model has no classification head: it has to be fine-tuned"]
    if has_head:
        names |= {f"head.{name}": weight for name, weight in head.items()}
        shapes |= {"head.output.weight": (len(labels), model.model_dim), "head.output.bias": (len(labels),)}
    weights, used = _read_weights(names, shapes, tensors)
    if not checkpoint.processor:
        notes.append("there is no preprocessor_config.json: images are preprocessed by the defaults of ViT")
    return {
        "head": "image-labels",
        "config": model,
        "weights": weights,
        "labels": tuple(labels),
        "pooling": "first",
        "image": image,
        "notes": (*notes, *_unused(tensors, used, architecture)),
    }


def _has_masked_head(checkpoint: Checkpoint, architecture: HFArchitecture) -> bool:
    if architecture.head_names is None:
        return False
    first = next(iter(architecture.head_names({}).values()))
    return bool(stored_names(first, checkpoint.tensors))


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights_of(model).items()}


def _read_weights(
    names: WeightNames, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], set[str]]:
    """The weights of these shapes in float32, and all names in the checkpoint that belong to `names`."""
    unknown = sorted(shapes.keys() - names.keys())
    assert not unknown, f"no foreign name is known for {unknown}"
    found = {name: read_weight(names[name], shape, tensors).float() for name, shape in shapes.items()}
    return found, {name for weight in names.values() for name in stored_names(weight, tensors)}


def _is_tied(output: ForeignWeight, names: WeightNames, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the output projection is the embedding: it is absent, or has the same values."""
    own, embedding = (stored_names(weight, tensors) for weight in (output, names["embedding.weight"]))
    return not own or not embedding or torch.equal(tensors[own[0]], tensors[embedding[0]])


def _num_rows(checkpoint: Checkpoint, vocab_size: int) -> int:
    """Rows of the embedding: those of the tokens, and possibly padding."""
    num_rows = ConfigFields(checkpoint.config).integer("vocab_size")
    if num_rows < vocab_size:
        raise CheckpointError(f"the tokenizer has {vocab_size:,} tokens, the embedding of the model only {num_rows:,}")
    return num_rows


def _unused(tensors: Mapping[str, Tensor], used: set[str], architecture: HFArchitecture) -> list[str]:
    """A note on weights that are not used; an error if they are not known to be unnecessary."""
    rest = [name for name in tensors if name not in used]
    ignored = [name for name in rest if any(re.search(pattern, name) for pattern in architecture.ignored)]
    unexpected = sorted(set(rest) - set(ignored))
    if unexpected:
        raise CheckpointError(
            f"the checkpoint has {len(unexpected)} weights that config.json does not describe: {_listed(unexpected)}"
        )
    return [f"not used: {_listed(sorted(ignored))}"] if ignored else []


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NUM_LISTED]) + (", ..." if len(names) > _NUM_LISTED else "")


def _apply_banned_tokens(weights: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    """Lower the output bias, if there is one, of the tokens in `bad_words_ids`."""
    banned = {**checkpoint.config, **checkpoint.generation}.get("bad_words_ids")
    if "output.bias" in weights and isinstance(banned, list):
        bias = weights["output.bias"] = weights["output.bias"].clone()
        for word in banned:
            if isinstance(word, list) and len(word) == 1 and word[0] in range(len(bias)):
                bias[word[0]] = _BANNED_LOGIT
