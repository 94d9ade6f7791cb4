"""BART and Marian: post-norm encoder-decoders.

Lewis et al., "BART" (2019). https://arxiv.org/abs/1910.13461
Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++" (2018). https://arxiv.org/abs/1804.00344

The first two rows of BART's position table are not used. Marian's positions are
sinusoids with all sines before all cosines: they are imported as a table.
"""

from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.interop.hf.config import ConfigFields, HFArchitecture, HFConfig, hf_activation
from regard.interop.hf.weights import ForeignWeight, WeightNames, layer_names
from regard.models.transformer.config import TransformerConfig

_LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "feedforward.input": "fc1",
    "feedforward.output": "fc2",
    "feedforward_norm": "final_layer_norm",
}
_CROSS_ATTENTION = {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}
_BART_OFFSET = 2
_BASE = 10_000.0
_IGNORED = (r"(encoder|decoder)\.version$", r"^classification_head\.", r"^qa_outputs\.")


def _read_bart(config: HFConfig) -> TransformerConfig:
    return _read_config(config, embedding_norm=True)


def _read_marian(config: HFConfig) -> TransformerConfig:
    ConfigFields(config).require(share_encoder_decoder_embeddings=True, static_position_embeddings=True)
    return _read_config(config, embedding_norm=False)


def _write_bart(model: TransformerConfig) -> dict[str, Any]:
    return {"model_type": "bart", **_write_config(model)}


def _write_marian(model: TransformerConfig) -> dict[str, Any]:
    fixed = {"share_encoder_decoder_embeddings": True, "static_position_embeddings": True}
    return {"model_type": "marian", **_write_config(model), **fixed, "normalize_embedding": False}


def _bart_names(config: HFConfig) -> WeightNames:
    result = _names(_read_bart(config))
    for side in ("encoder", "decoder"):
        table = f"model.{side}.embed_positions.weight"
        result[f"{side}.positions.table.weight"] = ForeignWeight(table, skipped=_BART_OFFSET)
        for kind in ("weight", "bias"):
            result[f"{side}.embedding_norm.{kind}"] = ForeignWeight(f"model.{side}.layernorm_embedding.{kind}")
    return result


def _marian_names(config: HFConfig) -> WeightNames:
    result = _names(_read_marian(config))
    for side in ("encoder", "decoder"):
        table = f"model.{side}.embed_positions.weight"
        result[f"{side}.positions.table.weight"] = ForeignWeight(table, default=_sinusoids)
    return result


BART = HFArchitecture("encoder-decoder", _read_bart, _bart_names, _IGNORED, write_config=_write_bart)
MARIAN = HFArchitecture("encoder-decoder", _read_marian, _marian_names, _IGNORED, write_config=_write_marian)


def _sinusoids(shape: tuple[int, ...]) -> Tensor:
    """Marian's positions: sines in the first half of the columns, cosines in the second half."""
    num_positions, width = shape
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / _BASE**exponents
    return torch.cat([angles.sin(), angles[:, : width // 2].cos()], dim=1).float()


def _read_config(config: HFConfig, *, embedding_norm: bool) -> TransformerConfig:
    fields = ConfigFields(config)
    fields.require(normalize_before=False, add_final_layer_norm=False, normalize_embedding=embedding_norm)
    for name in ("attention_heads", "ffn_dim"):
        sides = [fields.integer(f"{side}_{name}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise ConfigError(
                f"config.json: encoder_{name} and decoder_{name} must be equal to be imported, "
                f"got {sides[0]} and {sides[1]}"
            )
    return TransformerConfig.read(
        {
            "num_layers": fields.depth("encoder_layers"),
            "encoder_layers": fields.depth("encoder_layers"),
            "decoder_layers": fields.depth("decoder_layers"),
            "model_dim": fields.integer("d_model"),
            "num_heads": fields.integer("encoder_attention_heads"),
            "feedforward_dim": fields.integer("encoder_ffn_dim"),
            "activation": fields.activation("activation_function", "gelu"),
            "block": "post-norm",
            "positions": "learned",
            "embedding_norm": embedding_norm,
            "context_length": fields.integer("max_position_embeddings"),
            "dropout": fields.number("dropout", 0.1),
            "attention_dropout": fields.number("attention_dropout", 0.0),
            "tie_embeddings": fields.boolean("tie_word_embeddings", True),
            "scale_embeddings": fields.boolean("scale_embedding", False),
            "output_bias": True,
        }
    )


def _write_config(model: TransformerConfig) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", model.num_heads), ("ffn_dim", model.feedforward_dim or 1))
    }
    return {
        "d_model": model.model_dim,
        "encoder_layers": model.encoder_depth or 1,
        "decoder_layers": model.decoder_depth or 1,
        **sides,
        "activation_function": hf_activation(model.activation) or "gelu",
        "max_position_embeddings": model.context_length,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": model.scale_embeddings,
        "tie_word_embeddings": model.tie_embeddings,
    }


def _names(model: TransformerConfig) -> WeightNames:
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    return {
        "embedding.weight": ForeignWeight("model.shared.weight", copies),
        "output.weight": ForeignWeight("lm_head.weight"),
        "output.bias": ForeignWeight("final_logits_bias", is_flattened=True, default=torch.zeros),
        **layer_names(model.encoder_depth, "encoder.blocks.{}.", "model.encoder.layers.{}.", _LAYER),
        **layer_names(
            model.decoder_depth, "decoder.blocks.{}.", "model.decoder.layers.{}.", {**_LAYER, **_CROSS_ATTENTION}
        ),
    }
