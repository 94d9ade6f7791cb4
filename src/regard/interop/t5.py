"""T5, in its first version and in 1.1, which FLAN-T5 and mT5 share.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
Text-to-Text Transformer" (2020). https://arxiv.org/abs/1910.10683

Attention has no scale of its own, and its heads together need not be as wide as
the model. The first version ties its output projection to the embeddings, and
scales down what scores are computed from.
"""

from typing import Any

from regard.interop.fields import Config, activation, activation_name, count, flag, layer_count, number
from regard.interop.names import Weight, layers
from regard.models.transformer_config import TransformerConfig

_GATED = "gated-"
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
PASSED_OVER = (r"EncDecAttention\.relative_attention_bias\.weight$",)


def settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` describes."""
    num_layers = layer_count(config, "num_layers")
    num_heads, model_dim = count(config, "num_heads"), count(config, "d_model")
    width = count(config, "d_kv") * num_heads
    network = str(config.get("feed_forward_proj", "relu"))
    is_gated = network.startswith(_GATED)
    bend = network.removeprefix(_GATED)
    # What is called gelu here is its approximation, but only where it gates.
    bend = "gelu_new" if is_gated and bend == "gelu" else bend
    is_tied = flag(config, "tie_word_embeddings", True)
    return TransformerConfig.read(
        {
            "encoder_layers": num_layers,
            "decoder_layers": layer_count(config, "num_decoder_layers", num_layers),
            "num_layers": num_layers,
            "model_dim": model_dim,
            "num_heads": num_heads,
            "query_width": None if width == model_dim else width,
            "feedforward_dim": count(config, "d_ff"),
            "activation": activation({"feed_forward_proj": bend}, "feed_forward_proj", "relu", is_gated=is_gated),
            "norm": "rms",
            "norm_epsilon": number(config, "layer_norm_epsilon", 1e-6),
            "block": "pre-norm",
            "similarity": "dot",
            "positions": "relative",
            "position_buckets": count(config, "relative_attention_num_buckets", 32),
            "position_distance": count(config, "relative_attention_max_distance", 128),
            "context_length": count(config, "n_positions", 512),
            "dropout": number(config, "dropout_rate", 0.1),
            "attention_dropout": number(config, "dropout_rate", 0.1),
            "bias": False,
            "tie_embeddings": is_tied,
            "scale_embeddings": False,
            "scale_output": flag(config, "scale_decoder_outputs", is_tied),
        }
    )


def config_of(shape: TransformerConfig) -> dict[str, Any]:
    """A `config.json` for this shape; where they differ, T5 has no other."""
    gate = activation_name(shape.activation, is_gated=True)
    # Its code takes "gated-gelu" for the approximation.
    gated = {"gelu_new": "gelu", "silu": "silu"}.get(gate or "")
    return {
        "model_type": "t5",
        "d_model": shape.model_dim,
        "d_kv": shape.head_dim,
        "d_ff": shape.feedforward_dim or 1,
        "num_layers": shape.encoder_depth or 1,
        "num_decoder_layers": shape.decoder_depth or 1,
        "num_heads": shape.num_heads,
        "feed_forward_proj": f"{_GATED}{gated}" if gated else activation_name(shape.activation) or "relu",
        "relative_attention_num_buckets": shape.position_buckets,
        "relative_attention_max_distance": shape.position_distance,
        "layer_norm_epsilon": shape.norm_epsilon,
        "n_positions": shape.context_length,
        "dropout_rate": shape.dropout,
        "tie_word_embeddings": shape.tie_embeddings,
    }


def names(config: Config) -> dict[str, Weight]:
    """Where each weight lies."""
    shape = settings(config)
    is_gated = shape.activation in ("swiglu", "geglu", "geglu-tanh")
    network = {"gate": "wi_0", "input": "wi_1", "output": "wo"} if is_gated else {"input": "wi", "output": "wo"}
    result = {
        "embedding.weight": Weight("shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")),
        "output.weight": Weight("lm_head.weight"),
    }
    for side, depth in (("encoder", shape.encoder_depth), ("decoder", shape.decoder_depth)):
        last = 2 if side == "decoder" else 1
        parts = {
            **{f"attention.{ours}": f"0.SelfAttention.{theirs}" for ours, theirs in _PROJECTIONS.items()},
            "attention_norm": "0.layer_norm",
            **{f"feedforward.{ours}": f"{last}.DenseReluDense.{theirs}" for ours, theirs in network.items()},
            "feedforward_norm": f"{last}.layer_norm",
        }
        if side == "decoder":
            parts |= {f"cross_attention.{ours}": f"1.EncDecAttention.{theirs}" for ours, theirs in _PROJECTIONS.items()}
            parts["cross_attention_norm"] = "1.layer_norm"
        result |= layers(depth, f"{side}.blocks.{{}}.", f"{side}.block.{{}}.layer.", parts, has_bias=False)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        result[f"{side}.positions.table.weight"] = Weight(bias)
        result[f"{side}.final_norm.weight"] = Weight(f"{side}.final_layer_norm.weight")
    return result
