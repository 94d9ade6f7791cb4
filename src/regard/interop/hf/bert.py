"""BERT, RoBERTa and DistilBERT: bidirectional encoders.

Devlin et al., "BERT" (2018). https://arxiv.org/abs/1810.04805
Liu et al., "RoBERTa" (2019). https://arxiv.org/abs/1907.11692
Sanh et al., "DistilBERT" (2019). https://arxiv.org/abs/1910.01108

RoBERTa counts positions from the id of its padding token plus one: earlier rows of
its table are not used. If there is only one segment, its embedding is added to the
positions.
"""

from typing import Any

from regard.errors import ConfigError
from regard.interop.hf.config import ConfigFields, HFArchitecture, HFConfig, hf_activation
from regard.interop.hf.weights import ForeignWeight, WeightNames, layer_names
from regard.models.transformer.config import TransformerConfig

_FIXED: dict[str, Any] = {
    "decoder_layers": 0, "block": "post-norm", "positions": "learned", "embedding_norm": True,
    "scale_embeddings": False, "initialization": "gpt2",
}  # fmt: skip
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
_IGNORED = (r"position_ids$", r"(^|\.)pooler\.", r"^cls\.", r"^lm_head\.", r"^vocab_", r"^(pre_)?classifier\.",
            r"^qa_outputs\.")  # fmt: skip
"""Tables that follow from the config, and heads that are not imported."""


def _read_bert(config: HFConfig) -> TransformerConfig:
    return _read_config(config, skipped=0)


def _read_roberta(config: HFConfig) -> TransformerConfig:
    return _read_config(config, skipped=_skipped(config))


def _read_distilbert(config: HFConfig) -> TransformerConfig:
    fields = ConfigFields(config)
    return TransformerConfig.read(
        {
            **_FIXED,
            "num_layers": fields.depth("n_layers"),
            "model_dim": fields.integer("dim"),
            "num_heads": fields.integer("n_heads"),
            "feedforward_dim": fields.integer("hidden_dim"),
            "activation": fields.activation("activation", "gelu"),
            "norm_epsilon": 1e-12,
            "context_length": fields.integer("max_position_embeddings"),
            "dropout": fields.number("dropout", 0.1),
            "attention_dropout": fields.number("attention_dropout", 0.1),
        }
    )


def _write_bert(model: TransformerConfig) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "hidden_size": model.model_dim,
        "num_hidden_layers": model.encoder_depth or 1,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.feedforward_dim or 1,
        "hidden_act": hf_activation(model.activation) or "gelu",
        "layer_norm_eps": model.norm_epsilon,
        "max_position_embeddings": model.context_length,
        "type_vocab_size": model.num_segments or 1,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }


def _bert_names(config: HFConfig) -> WeightNames:
    return _names("bert", config, _read_bert(config), skipped=0)


def _roberta_names(config: HFConfig) -> WeightNames:
    return _names("roberta", config, _read_roberta(config), skipped=_skipped(config))


def _distilbert_names(config: HFConfig) -> WeightNames:
    depth = _read_distilbert(config).encoder_depth
    return {
        **_embeddings("distilbert"),
        **layer_names(depth, _BLOCKS, "distilbert.transformer.layer.{}.", _DISTILBERT_LAYER),
    }


def _bert_head(config: HFConfig) -> WeightNames:
    part = "cls.predictions."
    return _head(config, "hidden_act", f"{part}transform.dense", f"{part}transform.LayerNorm", f"{part}decoder",
                 f"{part}bias")  # fmt: skip


def _roberta_head(config: HFConfig) -> WeightNames:
    return _head(config, "hidden_act", "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")


def _distilbert_head(config: HFConfig) -> WeightNames:
    return _head(config, "activation", "vocab_transform", "vocab_layer_norm", "vocab_projector")


BERT = HFArchitecture("encoder", _read_bert, _bert_names, _IGNORED, _bert_head, _write_bert)
ROBERTA = HFArchitecture("encoder", _read_roberta, _roberta_names, _IGNORED, _roberta_head)
DISTILBERT = HFArchitecture("encoder", _read_distilbert, _distilbert_names, _IGNORED, _distilbert_head)


def _read_config(config: HFConfig, *, skipped: int) -> TransformerConfig:
    fields = ConfigFields(config)
    fields.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    num_rows = fields.integer("max_position_embeddings")
    if num_rows <= skipped:
        raise ConfigError(
            f"config.json: max_position_embeddings must exceed pad_token_id + 1, got {num_rows} and {skipped - 1}"
        )
    return TransformerConfig.read(
        {
            **_FIXED,
            "num_layers": fields.depth("num_hidden_layers"),
            "model_dim": fields.integer("hidden_size"),
            "num_heads": fields.integer("num_attention_heads"),
            "feedforward_dim": fields.integer("intermediate_size"),
            "activation": fields.activation("hidden_act", "gelu"),
            "norm_epsilon": fields.number("layer_norm_eps", 1e-12),
            "context_length": num_rows - skipped,
            "num_segments": 0 if _num_segments(config) == 1 else _num_segments(config),
            "dropout": fields.number("hidden_dropout_prob", 0.1),
            "attention_dropout": fields.number("attention_probs_dropout_prob", 0.1),
        }
    )


def _names(prefix: str, config: HFConfig, model: TransformerConfig, *, skipped: int) -> WeightNames:
    blocks = layer_names(model.encoder_depth, _BLOCKS, prefix + ".encoder.layer.{}.", _BERT_LAYER)
    result = {**_embeddings(prefix), **blocks}
    table, segments = "encoder.positions.table.weight", f"{prefix}.embeddings.token_type_embeddings.weight"
    result[table] = result[table]._replace(skipped=skipped, plus=segments if _num_segments(config) == 1 else None)
    return {**result, "segments.weight": ForeignWeight(segments)} if model.num_segments else result


def _embeddings(prefix: str) -> WeightNames:
    return {
        "embedding.weight": ForeignWeight(f"{prefix}.embeddings.word_embeddings.weight"),
        "encoder.positions.table.weight": ForeignWeight(f"{prefix}.embeddings.position_embeddings.weight"),
        "encoder.embedding_norm.weight": ForeignWeight(f"{prefix}.embeddings.LayerNorm.weight"),
        "encoder.embedding_norm.bias": ForeignWeight(f"{prefix}.embeddings.LayerNorm.bias"),
    }


def _head(config: HFConfig, field: str, transform: str, norm: str, output: str, *biases: str) -> WeightNames:
    """The head for masked tokens, whose activation is in `field`."""
    if ConfigFields(config).activation(field, "gelu") != "gelu":
        raise ConfigError(f"config.json: {field} must be 'gelu' for the head to be imported, got {config[field]!r}")
    return {
        "transform.weight": ForeignWeight(f"{transform}.weight"),
        "transform.bias": ForeignWeight(f"{transform}.bias"),
        "norm.weight": ForeignWeight(f"{norm}.weight"),
        "norm.bias": ForeignWeight(f"{norm}.bias"),
        "output.weight": ForeignWeight(f"{output}.weight"),
        "output.bias": ForeignWeight(f"{output}.bias", biases),
    }


def _num_segments(config: HFConfig) -> int:
    return 0 if config.get("type_vocab_size") == 0 else ConfigFields(config).integer("type_vocab_size", 2)


def _skipped(config: HFConfig) -> int:
    return 1 if config.get("pad_token_id") == 0 else 1 + ConfigFields(config).integer("pad_token_id", 1)
