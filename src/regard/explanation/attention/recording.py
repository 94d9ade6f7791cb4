"""Recording the attention weights of a model, and attention maps of what it reads and generates."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.explanation.attention.maps import AttentionMaps
from regard.explanation.graphs import lay_out
from regard.explanation.tokens import visible
from regard.nn.attention import Lookup
from regard.tasks.capabilities import GraphDrawing
from regard.text.tokenizer import Tokenizer


def model_attention_maps(
    model: nn.Module, text: str, *, tokenizer: Tokenizer, target: str | None = None
) -> AttentionMaps:
    """Returns the attention maps of an encoder-decoder, a decoder or an encoder.

    Args:
        model: A model with a `config`.
        text: The source of an encoder-decoder; otherwise the text that the model reads.
        tokenizer: The one that the model was trained with.
        target: For an encoder-decoder: the output whose attention is recorded, by teacher forcing.
    """
    config = cast(Any, model).config
    if config.encoder_depth and config.decoder_depth:
        if target is None:
            raise ConfigError("the attention maps of an encoder-decoder need a target, got none")
        return cross_attention_maps(model, tokenizer, text, target)
    if target is not None:
        raise ConfigError("only an encoder-decoder has a target beside its source")
    if config.decoder_depth:
        return causal_attention_maps(model, tokenizer, text)
    ids = torch.tensor([[tokenizer.start, *tokenizer.encode([text])[0], tokenizer.end]], device=_device(model))

    def encode() -> str:
        _with_attention(model).encode(ids)
        return ""

    return encoder_attention_maps(model, tokenizer, text, encode)


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Records the weights of each attention layer by the name of its module.

    The queries of later calls inside the context are appended to those of earlier ones.

    Example:
        with record_attention(model) as weights:
            model(tokens)
        weights["decoder.blocks.0.attention"].shape  # batch, heads, query, key
    """
    lookups = {name: module for name, module in model.named_modules() if isinstance(module, Lookup)}
    weights: dict[str, Tensor] = {}

    def record(name: str, new: Tensor) -> None:
        weights[name] = torch.cat([weights[name], new], dim=2) if name in weights else new

    for name, lookup in lookups.items():
        layer = ".".join(part for part in name.split(".") if part != "lookup")
        lookup.watcher = partial(record, layer)
    try:
        yield weights
    finally:
        for lookup in lookups.values():
            lookup.watcher = None


def has_attention(model: nn.Module) -> bool:
    """Returns whether the model has attention layers."""
    return any(isinstance(module, Lookup) for module in model.modules())


@torch.inference_mode()
def causal_attention_maps(model: nn.Module, tokenizer: Tokenizer, text: str) -> AttentionMaps:
    """Returns the maps of a decoder that reads `text`; rows are named for the token that follows."""
    decoder = _with_attention(model)
    ids = tokenizer.encode([text])[0]
    inputs, outputs = [tokenizer.start, *ids], [*ids, tokenizer.end]
    with record_attention(decoder) as weights:
        decoder.decode(torch.tensor([inputs], device=_device(decoder)))
    return AttentionMaps(
        source_tokens=(),
        target_tokens=_visible(tokenizer, outputs),
        target_inputs=_visible(tokenizer, inputs),
        weights={"decoder": _stacked(list(weights.values()))},
        source="",
        prediction=text,
    )


@torch.inference_mode()
def cross_attention_maps(
    model: nn.Module,
    tokenizer: Tokenizer,
    source: str,
    target: str,
    *,
    source_tokenizer: Tokenizer | None = None,
) -> AttentionMaps:
    """Returns the maps of an encoder-decoder that generates `target` from `source`, by teacher forcing.

    `source_tokenizer` is the tokenizer of the source where it is not that of the target.
    """
    both = _with_attention(model)
    reader = tokenizer if source_tokenizer is None else source_tokenizer
    source_ids = [*reader.opening, *reader.encode([source])[0], reader.end]
    ids = tokenizer.encode([target])[0]
    inputs, outputs = [tokenizer.start, *ids], [*ids, tokenizer.end]
    with record_attention(both) as weights:
        encoded = both.encode(torch.tensor([source_ids], device=_device(both)))
        both.decode(torch.tensor([inputs], device=_device(both)), encoded)
    layers: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}
    for name, found in weights.items():
        layers[_kind(name)].append(found)
    return AttentionMaps(
        source_tokens=_visible(reader, source_ids),
        target_tokens=_visible(tokenizer, outputs),
        target_inputs=_visible(tokenizer, inputs),
        weights={kind: _stacked(found) for kind, found in layers.items() if found},
        source=source,
        prediction=target,
    )


@torch.inference_mode()
def encoder_attention_maps(
    model: nn.Module, tokenizer: Tokenizer, text: str, predict: Callable[[], str]
) -> AttentionMaps:
    """Returns the maps of an encoder that reads `text` when `predict` is called; `predict` returns the output.

    The tokens are those that the encoder is given, with the special tokens that its task adds.
    """
    encoder = _with_attention(model)
    with record_attention(encoder) as weights, _record_tokens(encoder) as read:
        prediction = predict()
    rows = torch.cat([ids.flatten(0, -2) for ids in read])
    if len(rows) != 1:
        raise DataError(f"attention maps show one sequence, but this text is read in {len(rows)} windows")
    return AttentionMaps(
        source_tokens=_visible(tokenizer, rows[0].tolist()),
        target_tokens=(),
        target_inputs=(),
        weights={"encoder": _stacked(list(weights.values()))},
        source=text,
        prediction=prediction,
    )


@torch.inference_mode()
def graph_attention_maps(
    model: nn.Module, drawing: GraphDrawing, text: str, predict: Callable[[], str]
) -> AttentionMaps:
    """Returns the maps of an encoder that reads a graph when `predict` is called; `predict` returns the output.

    The first row and column are those of the whole graph.
    """
    encoder = _with_attention(model)
    with record_attention(encoder) as weights:
        prediction = predict()
    return AttentionMaps(
        source_tokens=("[graph]", *(f"{name}{place}" for place, name in enumerate(drawing.names))),
        target_tokens=(),
        target_inputs=(),
        weights={"encoder": _stacked(list(weights.values()))},
        source=text,
        prediction=prediction,
        drawing=replace(drawing, positions=lay_out(drawing)),
    )


@contextmanager
def _record_tokens(model: nn.Module) -> Iterator[list[Tensor]]:
    """Records the token ids that the model reads: the inputs of the embedding that is called first."""
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    calls: list[tuple[nn.Module, Tensor]] = []
    read: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Tensor]) -> None:
        calls.append((module, inputs[0]))

    hooks = [module.register_forward_pre_hook(record) for module in embeddings]
    try:
        yield read
    finally:
        for hook in hooks:
            hook.remove()
    read += [ids for module, ids in calls if module is calls[0][0]]


def _with_attention(model: nn.Module) -> Any:
    """Returns the model in evaluation mode; one without attention is an error.

    It is typed as Any, since an intersection of `nn.Module` with the protocols of encoders and decoders has no type.
    """
    if not has_attention(model):
        raise ConfigError(f"this model has no attention layers: {type(model).__name__}")
    return model.eval()


def _kind(name: str) -> str:
    """Returns the kind of the attention layer with this name in an encoder-decoder."""
    if name.startswith("encoder."):
        return "encoder"
    return "decoder" if name.endswith(".attention") else "cross"


def _stacked(weights: Sequence[Tensor]) -> np.ndarray:
    """Returns layers, heads, query, key of the only sequence of the batch."""
    return np.stack([layer[0].float().cpu().numpy() for layer in weights])


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _visible(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    return tuple(visible(piece) for piece in tokenizer.pieces(ids))
