"""T5, in its first version and in 1.1, which FLAN-T5 and mT5 share.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
Text-to-Text Transformer" (2020). https://arxiv.org/abs/1910.10683

Attention is not scaled, and the heads together may be wider or narrower than the
model. The first version ties its output projection to the embeddings, and scales
the hidden states before that projection.
"""

from typing import Any

from regard.interop.hf.config import ConfigFields, HFArchitecture, HFConfig, hf_activation
from regard.interop.hf.weights import ForeignWeight, WeightNames, layer_names
from regard.models.transformer.config import TransformerConfig

_NETWORK, _GATED = "feed_forward_proj", "gated-"
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
_IGNORED = (r"EncDecAttention\.relative_attention_bias\.weight$",)


def _read_config(config: HFConfig) -> TransformerConfig:
    fields = ConfigFields(config)
    num_layers = fields.depth("num_layers")
    num_heads, model_dim = fields.integer("num_heads"), fields.integer("d_model")
    width = fields.integer("d_kv") * num_heads
    network = str(config.get(_NETWORK, "relu"))
    is_gated = network.startswith(_GATED)
    function = network.removeprefix(_GATED)
    # A gated "gelu" is the tanh approximation; otherwise it is exact.
    function = "gelu_new" if is_gated and function == "gelu" else function
    is_tied = fields.boolean("tie_word_embeddings", True)
    return TransformerConfig.read(
        {
            "encoder_layers": num_layers,
            "decoder_layers": fields.depth("num_decoder_layers", num_layers),
            "num_layers": num_layers,
            "model_dim": model_dim,
            "num_heads": num_heads,
            "query_width": None if width == model_dim else width,
            "feedforward_dim": fields.integer("d_ff"),
            "activation": ConfigFields({_NETWORK: function}).activation(_NETWORK, "relu", is_gated=is_gated),
            "norm": "rms",
            "norm_epsilon": fields.number("layer_norm_epsilon", 1e-6),
            "block": "pre-norm",
            "similarity": "dot",
            "positions": "relative",
            "position_buckets": fields.integer("relative_attention_num_buckets", 32),
            "position_distance": fields.integer("relative_attention_max_distance", 128),
            "context_length": fields.integer("n_positions", 512),
            "dropout": fields.number("dropout_rate", 0.1),
            "attention_dropout": fields.number("dropout_rate", 0.1),
            "bias": False,
            "tie_embeddings": is_tied,
            "scale_embeddings": False,
            "scale_output": fields.boolean("scale_decoder_outputs", is_tied),
        }
    )


def _write_config(model: TransformerConfig) -> dict[str, Any]:
    gate = hf_activation(model.activation, is_gated=True)
    gated = {"gelu_new": "gelu", "silu": "silu"}.get(gate or "")
    return {
        "model_type": "t5",
        "d_model": model.model_dim,
        "d_kv": model.head_dim,
        "d_ff": model.feedforward_dim or 1,
        "num_layers": model.encoder_depth or 1,
        "num_decoder_layers": model.decoder_depth or 1,
        "num_heads": model.num_heads,
        "feed_forward_proj": f"{_GATED}{gated}" if gated else hf_activation(model.activation) or "relu",
        "relative_attention_num_buckets": model.position_buckets,
        "relative_attention_max_distance": model.position_distance,
        "layer_norm_epsilon": model.norm_epsilon,
        "n_positions": model.context_length,
        "dropout_rate": model.dropout,
        "tie_word_embeddings": model.tie_embeddings,
    }


def _weight_names(config: HFConfig) -> WeightNames:
    model = _read_config(config)
    is_gated = model.activation in ("swiglu", "geglu", "geglu-tanh")
    network = {"gate": "wi_0", "input": "wi_1", "output": "wo"} if is_gated else {"input": "wi", "output": "wo"}
    result = {
        "embedding.weight": ForeignWeight(
            "shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        ),
        "output.weight": ForeignWeight("lm_head.weight"),
    }
    for side, depth in (("encoder", model.encoder_depth), ("decoder", model.decoder_depth)):
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
        result |= layer_names(depth, f"{side}.blocks.{{}}.", f"{side}.block.{{}}.layer.", parts, has_bias=False)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        result[f"{side}.positions.table.weight"] = ForeignWeight(bias)
        result[f"{side}.final_norm.weight"] = ForeignWeight(f"{side}.final_layer_norm.weight")
    return result


T5 = HFArchitecture("encoder-decoder", _read_config, _weight_names, _IGNORED, write_config=_write_config)
