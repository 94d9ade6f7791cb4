"""BART and Marian: encoder-decoders that are normalised behind each sub-layer, as in the paper.

Lewis et al., "BART" (2019). https://arxiv.org/abs/1910.13461
Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++" (2018). https://arxiv.org/abs/1804.00344

The first two rows of BART's table of positions have no meaning. Marian's
positions are sinusoids whose sines all stand before their cosines: they come
over as a table.
"""

from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.interop.fields import Config, activation, activation_name, count, flag, layer_count, number, require
from regard.interop.names import Shape, Weight, layers
from regard.models.transformer_config import TransformerConfig

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
_LOOKS_AT_SOURCE = {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}
_BART_SKIPS = 2
_BASE = 10_000.0
PASSED_OVER = (r"(encoder|decoder)\.version$", r"^classification_head\.", r"^qa_outputs\.")


def bart_settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` of BART describes."""
    return _settings(config, embedding_norm=True)


def marian_settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` of Marian describes."""
    require(config, share_encoder_decoder_embeddings=True, static_position_embeddings=True)
    return _settings(config, embedding_norm=False)


def bart_config(shape: TransformerConfig) -> dict[str, Any]:
    """A `config.json` of BART for this shape; where they differ, BART has no other."""
    return {"model_type": "bart", **_config(shape)}


def marian_config(shape: TransformerConfig) -> dict[str, Any]:
    """A `config.json` of Marian for this shape; where they differ, Marian has no other."""
    same = {"share_encoder_decoder_embeddings": True, "static_position_embeddings": True}
    return {"model_type": "marian", **_config(shape), **same, "normalize_embedding": False}


def bart_names(config: Config) -> dict[str, Weight]:
    """Where each weight of BART lies."""
    result = _names(bart_settings(config))
    for side in ("encoder", "decoder"):
        place = f"model.{side}.embed_positions.weight"
        result[f"{side}.positions.table.weight"] = Weight(place, skipped=_BART_SKIPS)
        for kind in ("weight", "bias"):
            result[f"{side}.embedding_norm.{kind}"] = Weight(f"model.{side}.layernorm_embedding.{kind}")
    return result


def marian_names(config: Config) -> dict[str, Weight]:
    """Where each weight of Marian lies."""
    result = _names(marian_settings(config))
    for side in ("encoder", "decoder"):
        place = f"model.{side}.embed_positions.weight"
        result[f"{side}.positions.table.weight"] = Weight(place, otherwise=sinusoids)
    return result


def sinusoids(shape: Shape) -> Tensor:
    """Marian's positions: sines in the first half of the columns, cosines in the second."""
    num_positions, width = shape
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / _BASE**exponents
    return torch.cat([angles.sin(), angles[:, : width // 2].cos()], dim=1).float()


def _settings(config: Config, *, embedding_norm: bool) -> TransformerConfig:
    require(config, normalize_before=False, add_final_layer_norm=False, normalize_embedding=embedding_norm)
    for name in ("attention_heads", "ffn_dim"):
        sides = [count(config, f"{side}_{name}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise ConfigError(
                f"config.json: encoder_{name} and decoder_{name} must be the same to be imported, "
                f"got {sides[0]} and {sides[1]}"
            )
    return TransformerConfig.read(
        {
            "num_layers": layer_count(config, "encoder_layers"),
            "encoder_layers": layer_count(config, "encoder_layers"),
            "decoder_layers": layer_count(config, "decoder_layers"),
            "model_dim": count(config, "d_model"),
            "num_heads": count(config, "encoder_attention_heads"),
            "feedforward_dim": count(config, "encoder_ffn_dim"),
            "activation": activation(config, "activation_function", "gelu"),
            "block": "post-norm",
            "positions": "learned",
            "embedding_norm": embedding_norm,
            "context_length": count(config, "max_position_embeddings"),
            "dropout": number(config, "dropout", 0.1),
            "attention_dropout": number(config, "attention_dropout", 0.0),
            "tie_embeddings": flag(config, "tie_word_embeddings", True),
            "scale_embeddings": flag(config, "scale_embedding", False),
            "output_bias": True,
        }
    )


def _config(shape: TransformerConfig) -> dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", shape.num_heads), ("ffn_dim", shape.feedforward_dim or 1))
    }
    return {
        "d_model": shape.model_dim,
        "encoder_layers": shape.encoder_depth or 1,
        "decoder_layers": shape.decoder_depth or 1,
        **sides,
        "activation_function": activation_name(shape.activation) or "gelu",
        "max_position_embeddings": shape.context_length,
        "dropout": shape.dropout,
        "attention_dropout": shape.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": shape.scale_embeddings,
        "tie_word_embeddings": shape.tie_embeddings,
    }


def _names(shape: TransformerConfig) -> dict[str, Weight]:
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    return {
        "embedding.weight": Weight("model.shared.weight", copies),
        "output.weight": Weight("lm_head.weight"),
        "output.bias": Weight("final_logits_bias", is_flattened=True, otherwise=torch.zeros),
        **layers(shape.encoder_depth, "encoder.blocks.{}.", "model.encoder.layers.{}.", _LAYER),
        **layers(shape.decoder_depth, "decoder.blocks.{}.", "model.decoder.layers.{}.", {**_LAYER, **_LOOKS_AT_SOURCE}),
    }
