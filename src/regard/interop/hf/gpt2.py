"""GPT-2.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

Its matrices have a row for each input, ours one for each output; those of queries,
keys and values are one matrix.
"""

from typing import Any

from regard.interop.hf.config import ConfigFields, HFArchitecture, HFConfig, hf_activation
from regard.interop.hf.weights import ForeignWeight, WeightNames, layer_names
from regard.models.transformer.config import TransformerConfig

_NORMS = {"attention_norm": "ln_1", "feedforward_norm": "ln_2"}
_LINEAR = {"attention.output": "attn.c_proj", "feedforward.input": "mlp.c_fc", "feedforward.output": "mlp.c_proj"}
_JOINED = ("query", "key", "value")
_IGNORED = (r"attn\.bias$", r"attn\.masked_bias$")


def _read_config(config: HFConfig) -> TransformerConfig:
    fields = ConfigFields(config)
    fields.require(scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False)
    model_dim = fields.integer("n_embd")
    return TransformerConfig.read(
        {
            "encoder_layers": 0,
            "num_layers": fields.depth("n_layer"),
            "model_dim": model_dim,
            "num_heads": fields.integer("n_head"),
            "feedforward_dim": fields.integer("n_inner", 4 * model_dim),
            "activation": fields.activation("activation_function", "gelu_new"),
            "norm_epsilon": fields.number("layer_norm_epsilon", 1e-5),
            "block": "pre-norm",
            "positions": "learned",
            "context_length": fields.integer("n_positions", 1_024),
            "dropout": fields.number("resid_pdrop", 0.1),
            "attention_dropout": fields.number("attn_pdrop", 0.1),
            "tie_embeddings": fields.boolean("tie_word_embeddings", True),
            "scale_embeddings": False,
            "initialization": "gpt2",
        }
    )


def _write_config(model: TransformerConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": model.model_dim,
        "n_layer": model.decoder_depth or 1,
        "n_head": model.num_heads,
        "n_inner": model.feedforward_dim or 1,
        "activation_function": hf_activation(model.activation) or "gelu_new",
        "layer_norm_epsilon": model.norm_epsilon,
        "n_positions": model.context_length,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
        "tie_word_embeddings": model.tie_embeddings,
    }


def _weight_names(config: HFConfig) -> WeightNames:
    depth, ours, theirs = _read_config(config).decoder_depth, "decoder.blocks.{}.", "transformer.h.{}."
    linear = {
        name: weight._replace(is_transposed=name.endswith(".weight"))
        for name, weight in layer_names(depth, ours, theirs, _LINEAR).items()
    }
    joined = {
        f"{ours.format(layer)}attention.{part}.{kind}": ForeignWeight(
            f"{theirs.format(layer)}attn.c_attn.{kind}",
            is_transposed=kind == "weight",
            part=(index, len(_JOINED)),
        )
        for layer in range(depth)
        for index, part in enumerate(_JOINED)
        for kind in ("weight", "bias")
    }
    return {
        "embedding.weight": ForeignWeight("transformer.wte.weight"),
        "decoder.positions.table.weight": ForeignWeight("transformer.wpe.weight"),
        **joined,
        **linear,
        **layer_names(depth, ours, theirs, _NORMS),
        "decoder.final_norm.weight": ForeignWeight("transformer.ln_f.weight"),
        "decoder.final_norm.bias": ForeignWeight("transformer.ln_f.bias"),
        "output.weight": ForeignWeight("lm_head.weight"),
    }


GPT2 = HFArchitecture("decoder", _read_config, _weight_names, _IGNORED, write_config=_write_config)
