"""Llama and its relatives: SmolLM, Mistral, Qwen 2 and Qwen 3.

Touvron et al., "LLaMA" (2023). https://arxiv.org/abs/2302.13971
Dubey et al., "The Llama 3 Herd of Models" (2024). https://arxiv.org/abs/2407.21783
Yang et al., "Qwen2 Technical Report" (2024). https://arxiv.org/abs/2407.10671
"""

from collections.abc import Mapping
from typing import Any

from regard.errors import ConfigError
from regard.interop.fields import Config, activation, activation_name, count, flag, layer_count, number, require
from regard.interop.names import Weight, layers
from regard.models.transformer_config import TransformerConfig

_BASE = 10_000.0
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
PASSED_OVER = (r"rotary_emb\.inv_freq$",)


def settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` describes."""
    model_dim, num_heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    head_dim = count(config, "head_dim", max(1, model_dim // num_heads))
    bias = _biases(config)
    _require_all_positions(config)
    return TransformerConfig.read(
        {
            "encoder_layers": 0,
            "num_layers": layer_count(config, "num_hidden_layers"),
            "model_dim": model_dim,
            "num_heads": num_heads,
            "num_key_value_heads": count(config, "num_key_value_heads", num_heads),
            "query_width": None if head_dim * num_heads == model_dim else head_dim * num_heads,
            "feedforward_dim": count(config, "intermediate_size"),
            "activation": activation(config, "hidden_act", "silu", is_gated=True),
            "norm": "rms",
            "norm_epsilon": number(config, "rms_norm_eps", 1e-6),
            "block": "pre-norm",
            "positions": "rotary",
            **_rotation(config),
            "context_length": count(config, "max_position_embeddings", 2_048),
            "dropout": 0.0,
            "attention_dropout": number(config, "attention_dropout", 0.0),
            **bias,
            "query_key_norm": config.get("model_type") == "qwen3",
            "tie_embeddings": flag(config, "tie_word_embeddings", False),
            "scale_embeddings": False,
            "initialization": "gpt2",
        }
    )


def config_of(shape: TransformerConfig) -> dict[str, Any]:
    """A `config.json` of Llama, Qwen 2 or Qwen 3 for this shape; where they differ, none of them has it."""
    has_own_bias = shape.attention_bias not in (None, shape.bias)
    kind = "qwen3" if shape.query_key_norm else "qwen2" if has_own_bias else "llama"
    stretch = {
        "rope_type": "llama3",
        "factor": shape.position_stretch,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": shape.position_stretch_from,
    }
    is_stretched = shape.position_stretch != 1.0
    return {
        "model_type": kind,
        "hidden_size": shape.model_dim,
        "intermediate_size": shape.feedforward_dim or 1,
        "hidden_act": activation_name(shape.activation, is_gated=True) or "silu",
        "num_hidden_layers": shape.decoder_depth or 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_key_value_heads or shape.num_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": shape.norm_epsilon,
        # Newer readers look for the last of the three, older ones for the others.
        "rope_theta": shape.position_base,
        "rope_scaling": stretch if is_stretched else None,
        "rope_parameters": {
            "rope_theta": shape.position_base,
            **(stretch if is_stretched else {"rope_type": "default"}),
        },
        "attention_dropout": shape.attention_dropout,
        "attention_bias": shape.bias and kind == "llama",
        "mlp_bias": shape.bias and kind == "llama",
        "tie_word_embeddings": shape.tie_embeddings,
    }


def names(config: Config) -> dict[str, Weight]:
    """Where each weight lies."""
    shape = settings(config)
    ours, theirs, depth = "decoder.blocks.{}.", "model.layers.{}.", shape.decoder_depth
    has_projection_bias = shape.bias if shape.attention_bias is None else shape.attention_bias
    norms = {**_NORMS, **(_HEAD_NORMS if shape.query_key_norm else {})}
    return {
        "embedding.weight": Weight("model.embed_tokens.weight"),
        **layers(depth, ours, theirs, _PROJECTIONS, has_bias=has_projection_bias),
        **layers(depth, ours, theirs, {**_OUTPUT, **_NETWORK}, has_bias=shape.bias),
        **layers(depth, ours, theirs, norms, has_bias=False),
        "decoder.final_norm.weight": Weight("model.norm.weight"),
        "output.weight": Weight("lm_head.weight"),
    }


def _biases(config: Config) -> dict[str, bool]:
    """Which linear layers have a bias: none, all, or queries, keys and values alone."""
    if config.get("model_type") == "qwen2":
        return {"bias": False, "attention_bias": True}
    attention, network = flag(config, "attention_bias", False), flag(config, "mlp_bias", False)
    if attention != network:
        raise ConfigError(
            "config.json: attention_bias and mlp_bias must be the same to be imported, "
            f"got attention_bias={attention} and mlp_bias={network}"
        )
    return {"bias": attention}


def _require_all_positions(config: Config) -> None:
    """Refuse models that look at the nearest positions only."""
    window, reach = config.get("sliding_window"), config.get("max_position_embeddings")
    is_used = flag(config, "use_sliding_window", config.get("model_type") not in ("qwen2", "qwen3"))
    if is_used and window is not None and (reach is None or window < reach):
        raise ConfigError(
            "config.json: sliding_window must be null to be imported, "
            f"got sliding_window={window} for max_position_embeddings={reach}"
        )


def _rotation(config: Config) -> dict[str, Any]:
    """The base of rotary positions, and how they are stretched."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"config.json: rope_scaling must be a table, got {scaling!r}")
    base = number(scaling, "rope_theta", number(config, "rope_theta", _BASE))
    require(config, partial_rotary_factor=1.0)
    require(scaling, partial_rotary_factor=1.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return {"position_base": base}
    if kind != "llama3":
        raise ConfigError(f"config.json: the rope_type must be default or llama3 to be imported, got {kind!r}")
    require(scaling, low_freq_factor=1.0, high_freq_factor=4.0)
    return {
        "position_base": base,
        "position_stretch": number(scaling, "factor", 1.0),
        "position_stretch_from": count(scaling, "original_max_position_embeddings"),
    }
