"""Transformers as folders that CTranslate2 loads: encoder-decoders for its Translator, decoders for its Generator.

    model.bin                 the weights and the switches, see `regard.interop.ctranslate2_file`
    config.json               which tokens start and end, and what keeps a norm finite
    shared_vocabulary.json    the tokens in order; vocabulary.json where there is a decoder alone
    tokenizer.json            for whoever cuts the text: CTranslate2 is handed tokens by name

Linear layers that read the same lie one behind the other there: queries, keys and values of a self-attention.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import ConfigError
from regard.files import write_atomically
from regard.interop.ctranslate2_file import read_variables, write_variables
from regard.interop.trained import UNKNOWNS, Trained, token_names, weights_with_tables, with_tables
from regard.logging import log_info
from regard.models.transformer_config import TransformerConfig

_SPECIFICATIONS = {"translation": ("TransformerSpec", 7), "language": ("TransformerDecoderSpec", 8)}
"""By task what the format calls such a model, and the revision of its names."""
_ACTIVATIONS = {"relu": 0, "gelu-tanh": 1, "silu": 2, "gelu": 3, "geglu-tanh": 1, "swiglu": 2, "geglu": 3}
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "activation": tuple(_ACTIVATIONS),
    "norm": ("layer", "rms"),
    "block": ("pre-norm", "post-norm"),
    "similarity": ("scaled-dot", "dot"),
    "retrieval": ("soft",),
    "attention_temperature": (1.0,),
    "residual": (True,),
    "value_projection": (True,),
    "output_projection": (True,),
    "shaped_attention": (False,),
    "position_stretch": (1.0,),
    "num_segments": (0,),
}
"""What settings may be for the format to have a word for them; those that are not named may be anything."""
_POSITIONS = ("sinusoidal", "learned", "rotary", "relative", "none")
_TABLE, _BUCKETS = "position_encodings/encodings", "relative_attention_bias"
Parts = dict[str, list[str]]
"""By the name of a variable the weights of ours that lie in it, one behind the other."""


def write_ctranslate2(trained: Trained, folder: Path) -> str:
    """Fill an empty folder, and say what the model is called there."""
    shape = _known_shape(trained)
    name, revision = _SPECIFICATIONS[trained.task]
    log_info(f"writing a {name}")
    body: Any = trained.body
    weights = weights_with_tables(body)
    variables = {
        name: torch.cat([weights[each].detach().float() for each in ours]).numpy()
        for name, ours in _parts(with_tables(shape), weights).items()
    }
    aliases: dict[str, str] = {}
    for side in _sides(shape):
        more, others = _switches(shape, side)
        variables |= {f"{side}/{name}": value for name, value in more.items()}
        aliases |= {f"{side}/{name}": f"{side}/{other}" for name, other in others.items()}
    # One table for all that has a row for each token, under the first of its names.
    first, *others = [*(["encoder/embeddings_0"] if shape.encoder_depth else []), "decoder/embeddings"]
    others += ["decoder/projection"] if shape.tie_embeddings else []
    variables[f"{first}/weight"] = weights["embedding.weight"].detach().float().numpy()
    aliases |= {f"{other}/weight": f"{first}/weight" for other in others}
    write_variables(folder / "model.bin", name, revision, variables, aliases)
    vocabulary = "shared_vocabulary.json" if shape.encoder_depth else "vocabulary.json"
    for file, content in ((vocabulary, token_names(trained.tokenizer)), ("config.json", _config(trained, shape))):
        write_atomically(folder / file, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    write_atomically(folder / "tokenizer.json", trained.tokenizer.to_json().encode())
    return name


def read_ctranslate2(trained: Trained, folder: Path) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """What was written of a model: its shape, positions in tables, and its weights by our names."""
    shape = with_tables(_known_shape(trained))
    body: Any = trained.body
    own, stored = weights_with_tables(body), read_variables(folder / "model.bin").variables
    found: dict[str, Tensor] = {}
    parts = {**_parts(shape, own), "decoder/embeddings/weight": ["embedding.weight"]}
    for name, ours in parts.items():
        whole = torch.from_numpy(stored[name].copy())
        found |= dict(zip(ours, whole.split([own[each].size(0) for each in ours]), strict=True))
    return shape, found


def _known_shape(trained: Trained) -> TransformerConfig:
    """The shape, where the format has words for all of it."""
    shape = trained.shape
    if trained.task not in _SPECIFICATIONS:
        known = " or ".join(_SPECIFICATIONS)
        raise ConfigError(f"task must be {known} for CTranslate2, got {trained.task}: onnx has a place for any head")
    for name, allowed in _ALLOWED.items():
        if (value := getattr(shape, name)) not in allowed:
            raise ConfigError(f"model.{name} must be {_listed(allowed)} for CTranslate2, got {value}")
    for scheme in shape.position_schemes:
        if scheme not in _POSITIONS:
            raise ConfigError(f"model.positions must be {_listed(_POSITIONS)} for CTranslate2, got {scheme}")
    if shape.query_key_norm and shape.encoder_depth:
        # It would normalise what looks at the source, and not what is looked at.
        raise ConfigError("model.query_key_norm must be False for CTranslate2 where there is an encoder, got True")
    if not shape.feedforward_dim:
        raise ConfigError("model.feedforward_dim must not be 0 for CTranslate2, got 0")
    return shape


def _sides(shape: TransformerConfig) -> list[str]:
    return ["encoder", "decoder"] if shape.encoder_depth else ["decoder"]


def _parts(shape: TransformerConfig, weights: dict[str, Tensor]) -> Parts:
    """Where the weights of ours lie that are there; the embedding is no part of it."""
    norms = {"weight": "gamma", "bias": "beta"}
    parts: Parts = {}

    def add(theirs: str, *ours: str, kinds: dict[str, str] | None = None) -> None:
        for kind in ("weight", "bias"):
            there = [f"{each}.{kind}" for each in ours if f"{each}.{kind}" in weights]
            if there:
                parts[f"{theirs}/{(kinds or {}).get(kind, kind)}"] = there

    for side in _sides(shape):
        depth = shape.encoder_depth if side == "encoder" else shape.decoder_depth
        scheme = (shape.encoder_positions if side == "encoder" else shape.decoder_positions) or shape.positions
        add(f"{side}/layernorm_embedding", f"{side}.embedding_norm", kinds=norms)
        add(f"{side}/layer_norm", f"{side}.final_norm", kinds=norms)
        if scheme == "learned":
            parts[f"{side}/{_TABLE}"] = [f"{side}.positions.table.weight"]
        if scheme == "relative":
            parts[f"{side}/layer_0/self_attention/{_BUCKETS}"] = [f"{side}.positions.table.weight"]
        for layer in range(depth):
            ours, theirs = f"{side}.blocks.{layer}", f"{side}/layer_{layer}"
            own, other = f"{ours}.attention", f"{ours}.cross_attention"
            add(f"{theirs}/self_attention/linear_0", f"{own}.query", f"{own}.key", f"{own}.value")
            add(f"{theirs}/self_attention/linear_1", f"{own}.output")
            add(f"{theirs}/attention/linear_0", f"{other}.query")
            add(f"{theirs}/attention/linear_1", f"{other}.key", f"{other}.value")
            add(f"{theirs}/attention/linear_2", f"{other}.output")
            for place, attention in (("self_attention", own), ("attention", other)):
                add(f"{theirs}/{place}/layer_norm", f"{attention}_norm", kinds=norms)
                add(f"{theirs}/{place}/q_norm", f"{attention}.query_norm", kinds=norms)
                add(f"{theirs}/{place}/k_norm", f"{attention}.key_norm", kinds=norms)
            gate = f"{ours}.feedforward.gate"
            is_gated = f"{gate}.weight" in weights
            add(f"{theirs}/ffn/linear_0", gate if is_gated else f"{ours}.feedforward.input")
            if is_gated:
                add(f"{theirs}/ffn/linear_0_noact", f"{ours}.feedforward.input")
            add(f"{theirs}/ffn/linear_1", f"{ours}.feedforward.output")
            add(f"{theirs}/ffn/layer_norm", f"{ours}.feedforward_norm", kinds=norms)
    add("decoder/projection", "output")
    return parts


def _switches(shape: TransformerConfig, side: str) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    """What else a stack is told, and what of it stands for another variable."""
    is_decoder = side == "decoder"
    depth = shape.decoder_depth if is_decoder else shape.encoder_depth
    scheme = (shape.decoder_positions if is_decoder else shape.encoder_positions) or shape.positions
    found: dict[str, np.generic | NDArray[np.generic]] = {
        "num_heads": np.int16(shape.num_heads),
        "pre_norm": np.int8(shape.block == "pre-norm"),
        "activation": np.int8(_ACTIVATIONS[shape.activation]),
        "scale_embeddings": np.int8(shape.scale_embeddings),
    }
    if is_decoder:
        found |= {"alignment_layer": np.int16(-1), "alignment_heads": np.int16(1)}
        found |= {"start_from_zero_embedding": np.int8(0), "alibi": np.int8(0)}
        found |= {"scale_outputs": np.float32(shape.model_dim**-0.5)} if shape.scale_output else {}
    else:
        found["embeddings_merge"] = np.int8(0)
    if scheme == "none":
        found[_TABLE] = np.zeros((shape.context_length, shape.model_dim), np.float32)
    aliases: dict[str, str] = {}
    for layer in range(depth):
        own = f"layer_{layer}/self_attention"
        for place in (own, f"layer_{layer}/attention") if is_decoder and shape.encoder_depth else (own,):
            found[f"{place}/queries_scale"] = np.float32(1.0 if shape.similarity == "dot" else shape.head_dim**-0.5)
            found[f"{place}/head_dim"] = np.int32(shape.head_dim)
            if shape.num_key_value_heads not in (None, shape.num_heads):
                found[f"{place}/num_heads_kv"] = np.int32(shape.num_key_value_heads)
        if scheme == "rotary":
            found[f"{own}/rotary_dim"] = np.int32(0)
            found[f"{own}/rotary_interleave"] = np.int8(0)
            found[f"{own}/rotary_base"] = np.float32(shape.position_base)
        if scheme == "relative":
            found[f"{own}/relative_attention_max_distance"] = np.int32(shape.position_distance)
            if layer:
                aliases[f"{own}/{_BUCKETS}"] = f"layer_0/self_attention/{_BUCKETS}"
    return {name: np.asarray(value) for name, value in found.items()}, aliases


def _config(trained: Trained, shape: TransformerConfig) -> dict[str, Any]:
    names, tokenizer = token_names(trained.tokenizer), trained.tokenizer
    unknown = next((name for name in UNKNOWNS if name in names), "")
    config: dict[str, Any] = {
        "bos_token": names[tokenizer.start],
        "eos_token": names[tokenizer.end],
        "unk_token": unknown,
        "layer_norm_epsilon": shape.norm_epsilon,
        "multi_query_attention": shape.num_key_value_heads not in (None, shape.num_heads),
    }
    if trained.task == "translation":
        start = {"decoder_start_token": names[tokenizer.start]}
        config |= {**start, "add_source_bos": False, "add_source_eos": True}
    return config


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(map(str, values))
