"""BERT, RoBERTa and DistilBERT: encoders that read both ways.

Devlin et al., "BERT" (2018). https://arxiv.org/abs/1810.04805
Liu et al., "RoBERTa" (2019). https://arxiv.org/abs/1907.11692
Sanh et al., "DistilBERT" (2019). https://arxiv.org/abs/1910.01108

RoBERTa counts positions from the id of its padding token on, plus one: the rows
of its table before that have no meaning. Where all text is of one segment, its
vector is added to the positions.
"""

from typing import Any

from regard.errors import ConfigError
from regard.interop.fields import Config, activation, activation_name, count, layer_count, number, require
from regard.interop.names import Weight, layers
from regard.models.transformer_config import TransformerConfig

_SAME: dict[str, Any] = {
    "decoder_layers": 0,
    "block": "post-norm",
    "positions": "learned",
    "embedding_norm": True,
    "scale_embeddings": False,
    "initialization": "gpt2",
}
_BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feedforward.input": "intermediate.dense",
    "feedforward.output": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}
_DISTILBERT_LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feedforward.input": "ffn.lin1",
    "feedforward.output": "ffn.lin2",
    "feedforward_norm": "output_layer_norm",
}
_BLOCKS = "encoder.blocks.{}."
PASSED_OVER = (
    r"position_ids$",
    r"(^|\.)pooler\.",
    r"^cls\.",
    r"^lm_head\.",
    r"^vocab_",
    r"^(pre_)?classifier\.",
    r"^qa_outputs\.",
)
"""Tables that follow from the shape, and heads for tasks that are not this one's."""


def bert_settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` of BERT describes."""
    return _settings(config, skipped=0)


def roberta_settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` of RoBERTa describes."""
    return _settings(config, skipped=_skipped(config))


def distilbert_settings(config: Config) -> TransformerConfig:
    """The shape that a `config.json` of DistilBERT describes."""
    return TransformerConfig.read(
        {
            **_SAME,
            "num_layers": layer_count(config, "n_layers"),
            "model_dim": count(config, "dim"),
            "num_heads": count(config, "n_heads"),
            "feedforward_dim": count(config, "hidden_dim"),
            "activation": activation(config, "activation", "gelu"),
            "norm_epsilon": 1e-12,
            "context_length": count(config, "max_position_embeddings"),
            "dropout": number(config, "dropout", 0.1),
            "attention_dropout": number(config, "attention_dropout", 0.1),
        }
    )


def bert_config(shape: TransformerConfig) -> dict[str, Any]:
    """A `config.json` of BERT for this shape; where they differ, BERT has no other."""
    return {
        "model_type": "bert",
        "hidden_size": shape.model_dim,
        "num_hidden_layers": shape.encoder_depth or 1,
        "num_attention_heads": shape.num_heads,
        "intermediate_size": shape.feedforward_dim or 1,
        "hidden_act": activation_name(shape.activation) or "gelu",
        "layer_norm_eps": shape.norm_epsilon,
        "max_position_embeddings": shape.context_length,
        "type_vocab_size": shape.num_segments or 1,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.attention_dropout,
    }


def bert_names(config: Config) -> dict[str, Weight]:
    """Where each weight of BERT lies."""
    return _names("bert", config, bert_settings(config), skipped=0)


def roberta_names(config: Config) -> dict[str, Weight]:
    """Where each weight of RoBERTa lies."""
    return _names("roberta", config, roberta_settings(config), skipped=_skipped(config))


def distilbert_names(config: Config) -> dict[str, Weight]:
    """Where each weight of DistilBERT lies."""
    depth = distilbert_settings(config).encoder_depth
    return {
        **_embeddings("distilbert"),
        **layers(depth, _BLOCKS, "distilbert.transformer.layer.{}.", _DISTILBERT_LAYER),
    }


def bert_head(config: Config) -> dict[str, Weight]:
    """Where the head lies that says which token a position hides."""
    part = "cls.predictions."
    return _head(config, "hidden_act", f"{part}transform.dense", f"{part}transform.LayerNorm", f"{part}decoder",
                 f"{part}bias")  # fmt: skip


def roberta_head(config: Config) -> dict[str, Weight]:
    return _head(config, "hidden_act", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")


def distilbert_head(config: Config) -> dict[str, Weight]:
    return _head(config, "activation", "vocab_transform", "vocab_layer_norm", "vocab_projector")


def _settings(config: Config, *, skipped: int) -> TransformerConfig:
    require(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    num_rows = count(config, "max_position_embeddings")
    if num_rows <= skipped:
        raise ConfigError(
            f"config.json: max_position_embeddings must exceed pad_token_id + 1, got {num_rows} and {skipped - 1}"
        )
    return TransformerConfig.read(
        {
            **_SAME,
            "num_layers": layer_count(config, "num_hidden_layers"),
            "model_dim": count(config, "hidden_size"),
            "num_heads": count(config, "num_attention_heads"),
            "feedforward_dim": count(config, "intermediate_size"),
            "activation": activation(config, "hidden_act", "gelu"),
            "norm_epsilon": number(config, "layer_norm_eps", 1e-12),
            "context_length": num_rows - skipped,
            "num_segments": 0 if _num_segments(config) == 1 else _num_segments(config),
            "dropout": number(config, "hidden_dropout_prob", 0.1),
            "attention_dropout": number(config, "attention_probs_dropout_prob", 0.1),
        }
    )


def _names(model: str, config: Config, shape: TransformerConfig, *, skipped: int) -> dict[str, Weight]:
    result = {**_embeddings(model), **layers(shape.encoder_depth, _BLOCKS, model + ".encoder.layer.{}.", _BERT_LAYER)}
    table, segments = "encoder.positions.table.weight", f"{model}.embeddings.token_type_embeddings.weight"
    result[table] = result[table]._replace(skipped=skipped, plus=segments if _num_segments(config) == 1 else None)
    return {**result, "segments.weight": Weight(segments)} if shape.num_segments else result


def _embeddings(model: str) -> dict[str, Weight]:
    return {
        "embedding.weight": Weight(f"{model}.embeddings.word_embeddings.weight"),
        "encoder.positions.table.weight": Weight(f"{model}.embeddings.position_embeddings.weight"),
        "encoder.embedding_norm.weight": Weight(f"{model}.embeddings.LayerNorm.weight"),
        "encoder.embedding_norm.bias": Weight(f"{model}.embeddings.LayerNorm.bias"),
    }


def _head(config: Config, bend: str, transform: str, norm: str, output: str, *biases: str) -> dict[str, Weight]:
    if activation(config, bend, "gelu") != "gelu":
        raise ConfigError(f"config.json: {bend} must be 'gelu' for the head to be imported, got {config[bend]!r}")
    return {
        "transform.weight": Weight(f"{transform}.weight"),
        "transform.bias": Weight(f"{transform}.bias"),
        "norm.weight": Weight(f"{norm}.weight"),
        "norm.bias": Weight(f"{norm}.bias"),
        "output.weight": Weight(f"{output}.weight"),
        "output.bias": Weight(f"{output}.bias", biases),
    }


def _num_segments(config: Config) -> int:
    return 0 if config.get("type_vocab_size") == 0 else count(config, "type_vocab_size", 2)


def _skipped(config: Config) -> int:
    return 1 if config.get("pad_token_id") == 0 else 1 + count(config, "pad_token_id", 1)
