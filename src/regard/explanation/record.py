"""Watching a model attend."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.explanation.maps import AttentionMaps, visible
from regard.models.families import AnyModel
from regard.nn.attention import Lookup
from regard.text.tokenizer import Tokenizer


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the weights of each attention, by the name of the module that looks.

    The queries of later calls inside the block stand behind those of earlier ones.

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
        looker = ".".join(part for part in name.split(".") if part != "lookup")
        lookup.watcher = partial(record, looker)
    try:
        yield weights
    finally:
        for lookup in lookups.values():
            lookup.watcher = None


def attends(model: nn.Module) -> bool:
    """Whether there is any attention in the model to be watched."""
    return any(isinstance(module, Lookup) for module in model.modules())


@torch.inference_mode()
def explain_text(model: AnyModel, tokenizer: Tokenizer, text: str) -> AttentionMaps:
    """Who looked at whom while a language model read `text`; rows are named for the token that came next."""
    _require_attention(model)
    device = next(model.parameters()).device
    ids = tokenizer.encode([text])[0]
    inputs, outputs = [tokenizer.start, *ids], [*ids, tokenizer.end]
    with record_attention(model.eval()) as weights:
        model(torch.tensor([inputs], device=device))
    return AttentionMaps(
        source_tokens=(),
        target_tokens=_visible(tokenizer, outputs),
        target_inputs=_visible(tokenizer, inputs),
        weights={"decoder": np.stack([found[0].float().cpu().numpy() for found in weights.values()])},
        source="",
        prediction=text,
    )


@torch.inference_mode()
def explain_pair(model: AnyModel, tokenizer: Tokenizer, source: str, prediction: str) -> AttentionMaps:
    """Who looked at whom while `prediction` was written for `source`."""
    _require_attention(model)
    device = next(model.parameters()).device
    read, written = tokenizer.encode([source, prediction])
    source_ids = [*tokenizer.opening, *read, tokenizer.end]
    inputs, outputs = [tokenizer.start, *written], [*written, tokenizer.end]
    with record_attention(model.eval()) as weights:
        model(torch.tensor([inputs], device=device), torch.tensor([source_ids], device=device))
    layers: dict[str, list[np.ndarray]] = {"encoder": [], "decoder": [], "cross": []}
    for name, found in weights.items():
        layers[_kind(name)].append(found[0].float().cpu().numpy())
    return AttentionMaps(
        source_tokens=_visible(tokenizer, source_ids),
        target_tokens=_visible(tokenizer, outputs),
        target_inputs=_visible(tokenizer, inputs),
        weights={kind: np.stack(maps) for kind, maps in layers.items() if maps},
        source=source,
        prediction=prediction,
    )


@torch.inference_mode()
def explain_reading(body: AnyModel, tokenizer: Tokenizer, text: str, answer: Callable[[], str]) -> AttentionMaps:
    """Who looked at whom while the body of a model read `text`; `answer` has the model do so, and says what came out.

    The tokens are those that the model was given, with whatever its task puts around a text.
    """
    _require_attention(body)
    read: list[Tensor] = []
    hook = body.embedding.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    try:
        with record_attention(body) as weights:
            prediction = answer()
    finally:
        hook.remove()
    rows = torch.cat([ids.flatten(0, -2) for ids in read])
    if len(rows) != 1:
        raise DataError(f"attention is drawn for what is read at once, but this is read in {len(rows)} parts")
    tokens = _visible(tokenizer, rows[0].tolist())
    return AttentionMaps(
        source_tokens=tokens,
        target_tokens=(),
        target_inputs=(),
        weights={"encoder": np.stack([found[0].float().cpu().numpy() for found in weights.values()])},
        source=text,
        prediction=prediction,
    )


def _require_attention(model: AnyModel) -> None:
    if not attends(model):
        raise ConfigError(f"there is no attention to look at in this model: it is of family {model.config.family}")


def _kind(name: str) -> str:
    """What the attention at this place of an encoder-decoder looks at."""
    if name.startswith("encoder."):
        return "encoder"
    return "decoder" if name.endswith(".attention") else "cross"


def _visible(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    return tuple(visible(piece) for piece in tokenizer.pieces(ids))
