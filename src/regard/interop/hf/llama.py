"""Llama and its relatives: SmolLM, Mistral, Qwen 2 and Qwen 3.

Touvron et al., "LLaMA" (2023). https://arxiv.org/abs/2302.13971
Dubey et al., "The Llama 3 Herd of Models" (2024). https://arxiv.org/abs/2407.21783
Yang et al., "Qwen2 Technical Report" (2024). https://arxiv.org/abs/2407.10671
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError
from regard.interop.hf.config import ConfigFields, HFArchitecture, HFConfig, hf_activation
from regard.interop.hf.weights import ForeignWeight, WeightNames, layer_names
from regard.models.transformer.config import TransformerConfig

_BASE = 10_000.0
_FULL, _SLIDING = "full_attention", "sliding_attention"
_PROJECTIONS = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
}
_OUTPUT = {"attention.output": "self_attn.o_proj"}
_NETWORK = {
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.input": "mlp.up_proj",
    "feedforward.output": "mlp.down_proj",
}
_NORMS = {"attention_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
_IGNORED = (r"rotary_emb\.inv_freq$",)


def _read_config(config: HFConfig) -> TransformerConfig:
    fields = ConfigFields(config)
    model_dim, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", max(1, model_dim // num_heads))
    bias = _biases(config)
    depth = fields.depth("num_hidden_layers")
    return TransformerConfig.read(
        {
            "encoder_layers": 0,
            "num_layers": depth,
            "model_dim": model_dim,
            "num_heads": num_heads,
            "num_key_value_heads": fields.integer("num_key_value_heads", num_heads),
            "query_width": None if head_dim * num_heads == model_dim else head_dim * num_heads,
            "feedforward_dim": fields.integer("intermediate_size"),
            "activation": fields.activation("hidden_act", "silu", is_gated=True),
            "norm": "rms",
            "norm_epsilon": fields.number("rms_norm_eps", 1e-6),
            "block": "pre-norm",
            "positions": "rotary",
            **_rotation(config),
            **_windows(config, depth),
            "context_length": fields.integer("max_position_embeddings", 2_048),
            "dropout": 0.0,
            "attention_dropout": fields.number("attention_dropout", 0.0),
            **bias,
            "query_key_norm": config.get("model_type") == "qwen3",
            "tie_embeddings": fields.boolean("tie_word_embeddings", False),
            "scale_embeddings": False,
            "initialization": "gpt2",
        }
    )


def _write_config(model: TransformerConfig) -> dict[str, Any]:
    """The `config.json` of Llama, of Mistral, which has windows, or of Qwen 2 or 3, with other biases and norms."""
    has_own_bias = model.attention_bias not in (None, model.bias)
    kinds = model.attention_kinds(model.decoder_depth, is_causal=True)
    plain = "mistral" if {*kinds} == {"window"} else "llama"
    model_type = "qwen3" if model.query_key_norm else "qwen2" if has_own_bias else plain
    scaling = _written_scaling(model)
    return {
        "model_type": model_type,
        "hidden_size": model.model_dim,
        "intermediate_size": model.feedforward_dim or 1,
        "hidden_act": hf_activation(model.activation, is_gated=True) or "silu",
        "num_hidden_layers": model.decoder_depth or 1,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_key_value_heads or model.num_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.context_length,
        "rms_norm_eps": model.norm_epsilon,
        # transformers 5 reads the last of the three, earlier versions the other two.
        "rope_theta": model.position_base,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_theta": model.position_base, **(scaling or {"rope_type": "default"})},
        "attention_dropout": model.attention_dropout,
        "attention_bias": model.bias and model_type == "llama",
        "mlp_bias": model.bias and model_type == "llama",
        "tie_word_embeddings": model.tie_embeddings,
        **_written_windows(model, model_type),
    }


def _weight_names(config: HFConfig) -> WeightNames:
    model = _read_config(config)
    ours, theirs, depth = "decoder.blocks.{}.", "model.layers.{}.", model.decoder_depth
    has_projection_bias = model.bias if model.attention_bias is None else model.attention_bias
    norms = {**_NORMS, **(_HEAD_NORMS if model.query_key_norm else {})}
    return {
        "embedding.weight": ForeignWeight("model.embed_tokens.weight"),
        **layer_names(depth, ours, theirs, _PROJECTIONS, has_bias=has_projection_bias),
        **layer_names(depth, ours, theirs, {**_OUTPUT, **_NETWORK}, has_bias=model.bias),
        **layer_names(depth, ours, theirs, norms, has_bias=False),
        "decoder.final_norm.weight": ForeignWeight("model.norm.weight"),
        "output.weight": ForeignWeight("lm_head.weight"),
    }


LLAMA = HFArchitecture("decoder", _read_config, _weight_names, _IGNORED, write_config=_write_config)


def halves_from_pairs(weight: Float[Tensor, "rows *columns"], num_heads: int) -> Float[Tensor, "rows *columns"]:
    """Reorder the rows of queries or keys whose rotary positions rotate coordinates (2i, 2i + 1) of a head.

    In the result they rotate (i, i + head/2), as in Hugging Face's layout and in ours.
    """
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def pairs_from_halves(weight: Float[Tensor, "rows *columns"], num_heads: int) -> Float[Tensor, "rows *columns"]:
    """The inverse of `halves_from_pairs`."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _biases(config: HFConfig) -> dict[str, bool]:
    """Which linear layers have a bias: none, all, or only those of queries, keys and values."""
    fields = ConfigFields(config)
    if config.get("model_type") == "qwen2":
        return {"bias": False, "attention_bias": True}
    attention, network = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    if attention != network:
        raise ConfigError(
            "config.json: attention_bias and mlp_bias must be equal to be imported, "
            f"got attention_bias={attention} and mlp_bias={network}"
        )
    return {"bias": attention}


def _windows(config: HFConfig, num_layers: int) -> dict[str, Any]:
    """The settings of sliding windows: those of Mistral in all layers, those of Qwen 2 and 3 in some."""
    fields, model_type = ConfigFields(config), config.get("model_type")
    window, reach = config.get("sliding_window"), config.get("max_position_embeddings")
    has_switch = model_type in ("qwen2", "qwen3")
    if window is None or not fields.boolean("use_sliding_window", not has_switch):
        return {}
    window = fields.integer("sliding_window")
    if reach is not None and window >= reach:
        return {}
    if model_type not in ("mistral", "qwen2", "qwen3"):
        raise ConfigError(
            f"config.json: sliding_window is for mistral, qwen2 and qwen3 to be imported, got {window} for {model_type}"
        )
    if not has_switch:
        return {"attention": "window", "window": window}
    types = config.get("layer_types")
    if types is None:
        first = fields.integer("max_window_layers", num_layers)
        types = [_FULL if layer < first else _SLIDING for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or not {*types} <= {_FULL, _SLIDING}:
        raise ConfigError(
            f"config.json: layer_types must be {_FULL} or {_SLIDING} for each of {num_layers} layers, got {types!r}"
        )
    kinds = ["window" if each == _SLIDING else "full" for each in types]
    if "window" not in kinds:
        return {}
    return {"attention": kinds[0] if len({*kinds}) == 1 else kinds, "window": window}


def _written_windows(model: TransformerConfig, model_type: str) -> dict[str, Any]:
    kinds = model.attention_kinds(model.decoder_depth, is_causal=True)
    has_window = "window" in kinds
    if model_type == "mistral":
        return {"sliding_window": model.window_length}
    if model_type == "llama":
        return {}
    return {
        "use_sliding_window": has_window,
        "sliding_window": model.window_length if has_window else None,
        "max_window_layers": next((i for i, kind in enumerate(kinds) if kind == "window"), len(kinds)),
        "layer_types": [_SLIDING if kind == "window" else _FULL for kind in kinds],
    }


def _rotation(config: HFConfig) -> dict[str, Any]:
    """The settings of rotary positions."""
    fields = ConfigFields(config)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"config.json: rope_scaling must be an object, got {scaling!r}")
    scaled = ConfigFields(scaling)
    base = scaled.number("rope_theta", fields.number("rope_theta", _BASE))
    fields.require(partial_rotary_factor=1.0)
    scaled.require(partial_rotary_factor=1.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaled.number("factor", 1.0)
    if kind == "default" or (kind in ("linear", "yarn") and factor == 1.0):
        return {"position_base": base}
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(
            f"config.json: the rope_type must be default, linear, yarn or llama3 to be imported, got {kind!r}"
        )
    found = {"position_base": base, "position_stretch": factor}
    if kind == "linear":
        return {**found, "position_stretch_by": "linear"}
    if kind == "llama3":
        scaled.require(low_freq_factor=1.0, high_freq_factor=4.0)
        return {**found, "position_stretch_from": scaled.integer("original_max_position_embeddings")}
    scaled.require(beta_fast=32, beta_slow=1, truncate=True, attention_factor=0.1 * math.log(factor) + 1.0)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        raise ConfigError("config.json: mscale and mscale_all_dim of yarn must not be set to be imported")
    reach = fields.integer("max_position_embeddings", 2_048)
    length = scaled.integer("original_max_position_embeddings", reach)
    return {**found, "position_stretch_by": "yarn", "position_stretch_from": length}


def _written_scaling(model: TransformerConfig) -> dict[str, Any]:
    """The `rope_scaling` of a model; empty without one."""
    original = {"original_max_position_embeddings": model.position_stretch_from}
    own = {"factor": model.position_stretch}
    if model.position_stretch == 1.0:
        return {}
    match model.position_stretch_by:
        case "linear":
            return {"rope_type": "linear", **own}
        case "yarn":
            return {"rope_type": "yarn", **own, **original}
        case "ntk":  # transformers has the dynamic form only, whose base depends on the length of the input
            return {}
        case _:
            return {"rope_type": "llama3", **own, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original}
