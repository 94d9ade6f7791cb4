"""GPT-2.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

Its matrices have a row for each input, where ours have one for each output, and
those of queries, keys and values lie side by side.
"""

from typing import Any

from regard.interop.fields import Config, activation, activation_name, count, flag, layer_count, number, require
from regard.interop.names import Weight, layers
from regard.models.transformer_config import TransformerConfig

_NORMS = {"attention_norm": "ln_1", "feedforward_norm": "ln_2"}
_LINEAR = {"attention.output": "attn.c_proj", "feedforward.input": "mlp.c_fc", "feedforward.output": "mlp.c_proj"}
_SIDE_BY_SIDE = ("query", "key", "value")
PASSED_OVER = (r"attn\.bias$", r"attn\.masked_bias$")


def settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` describes."""
    require(config, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False)
    model_dim = count(config, "n_embd")
    return TransformerConfig.read(
        {
            "encoder_layers": 0,
            "num_layers": layer_count(config, "n_layer"),
            "model_dim": model_dim,
            "num_heads": count(config, "n_head"),
            "feedforward_dim": count(config, "n_inner", 4 * model_dim),
            "activation": activation(config, "activation_function", "gelu_new"),
            "norm_epsilon": number(config, "layer_norm_epsilon", 1e-5),
            "block": "pre-norm",
            "positions": "learned",
            "context_length": count(config, "n_positions", 1_024),
            "dropout": number(config, "resid_pdrop", 0.1),
            "attention_dropout": number(config, "attn_pdrop", 0.1),
            "tie_embeddings": flag(config, "tie_word_embeddings", True),
            "scale_embeddings": False,
            "initialization": "gpt2",
        }
    )


def config_of(shape: TransformerConfig) -> dict[str, Any]:
    """A `config.json` for this shape; where they differ, GPT-2 has no other."""
    return {
        "model_type": "gpt2",
        "n_embd": shape.model_dim,
        "n_layer": shape.decoder_depth or 1,
        "n_head": shape.num_heads,
        "n_inner": shape.feedforward_dim or 1,
        "activation_function": activation_name(shape.activation) or "gelu_new",
        "layer_norm_epsilon": shape.norm_epsilon,
        "n_positions": shape.context_length,
        "resid_pdrop": shape.dropout,
        "embd_pdrop": shape.dropout,
        "attn_pdrop": shape.attention_dropout,
        "tie_word_embeddings": shape.tie_embeddings,
    }


def names(config: Config) -> dict[str, Weight]:
    """Where each weight lies."""
    depth, ours, theirs = settings(config).decoder_depth, "decoder.blocks.{}.", "transformer.h.{}."
    linear = {
        name: weight._replace(is_transposed=name.endswith(".weight"))
        for name, weight in layers(depth, ours, theirs, _LINEAR).items()
    }
    joined = {
        f"{ours.format(layer)}attention.{part}.{kind}": Weight(
            f"{theirs.format(layer)}attn.c_attn.{kind}",
            is_transposed=kind == "weight",
            part=(index, len(_SIDE_BY_SIDE)),
        )
        for layer in range(depth)
        for index, part in enumerate(_SIDE_BY_SIDE)
        for kind in ("weight", "bias")
    }
    return {
        "embedding.weight": Weight("transformer.wte.weight"),
        "decoder.positions.table.weight": Weight("transformer.wpe.weight"),
        **joined,
        **linear,
        **layers(depth, ours, theirs, _NORMS),
        "decoder.final_norm.weight": Weight("transformer.ln_f.weight"),
        "decoder.final_norm.bias": Weight("transformer.ln_f.bias"),
        "output.weight": Weight("lm_head.weight"),
    }
