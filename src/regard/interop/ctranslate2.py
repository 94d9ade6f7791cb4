"""Writing Transformers for CTranslate2: encoder-decoders for its Translator, decoders for its Generator.

The `ctranslate2` package writes the files from its own specification of a model:

    model.bin                 the weights and the settings
    config.json               the start and end tokens, and the epsilon of norms
    shared_vocabulary.json    the tokens in order; vocabulary.json for a decoder-only model
    tokenizer.json            splits a text into tokens, which CTranslate2 takes by name
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.files import write_atomically
from regard.interop.model import (
    TOKENIZER_FILES,
    UNKNOWN_TOKENS,
    ExportableModel,
    Exporter,
    optional_package,
    token_names,
    weights_with_position_tables,
    with_position_tables,
)
from regard.logging import log_info
from regard.models.transformer.config import TransformerConfig

_HEADS = ("target-tokens", "next-token")
_ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH", "geglu": "GELU",
    "geglu-tanh": "GELUTanh", "swiglu": "SWISH",
}  # fmt: skip
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation": tuple(_ACTIVATIONS),
    "norm": ("layer", "rms"),
    "block": ("pre-norm", "post-norm"),
    "similarity": ("scaled-dot", "dot"),
    "retrieval": ("soft",),
    "attention_temperature": (1.0,),
    "residual": (True,),
    "value_projection": (True,),
    "output_projection": (True,),
    "shaped_attention": (False,),
    "position_stretch": (1.0,),
    "attention": ("full",),
    "encoder_attention": (None, "full"),
    "num_segments": (0,),
}
"""The values that the format can represent; settings that are not listed may have any value."""
_POSITIONS = ("sinusoidal", "learned", "rotary", "relative", "none")
_Weights = dict[str, Tensor]


def write_ctranslate2(model: ExportableModel, folder: Path) -> str:
    """Write all files to an empty folder and return the name of the model's specification."""
    config, specs = _supported_config(model), optional_package("ctranslate2.specs", extra="ctranslate2")
    weights = {name: weight.detach().float() for name, weight in weights_with_position_tables(model.body).items()}
    decoder = _stack(specs, config, "decoder", weights)
    names = token_names(model.tokenizer)
    if config.encoder_depth:
        spec = specs.TransformerSpec(_stack(specs, config, "encoder", weights), decoder)
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        start = {"decoder_start_token": names[model.tokenizer.start], "add_source_bos": False, "add_source_eos": True}
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(names)
        start = {}
    values = {
        "bos_token": names[model.tokenizer.start],
        "eos_token": names[model.tokenizer.end],
        "unk_token": next((name for name in UNKNOWN_TOKENS if name in names), ""),
        "layer_norm_epsilon": config.norm_epsilon,
        "multi_query_attention": config.num_key_value_heads not in (None, config.num_heads),
        **start,
    }
    for name, value in values.items():
        spec.config.add_attribute(name, value)
    log_info(f"writing a {spec.name}")
    spec.validate()
    spec.optimize()  # writes tied weights once
    spec.save(str(folder))
    write_atomically(folder / "tokenizer.json", model.tokenizer.to_json().encode())
    return spec.name


@torch.no_grad()
def ctranslate2_outputs(model: ExportableModel, folder: Path) -> tuple[Tensor, Tensor]:
    """The outputs of CTranslate2 for a folder, and those of the model that it was written from.

    A Generator returns logits; a Translator returns log-probabilities of the tokens of a target.
    """
    package = optional_package("ctranslate2", extra="ctranslate2")
    options: dict[str, Any] = {"device": "cpu", "compute_type": "float32", "intra_threads": 1}
    names, tokenizer = token_names(model.tokenizer), model.tokenizer
    tokens = model.example_tokens()[:, : model.transformer_config.context_length]
    if model.spec.head == "next-token":
        found = package.Generator(str(folder), **options).forward_batch(_named(tokens, names))
        return torch.from_numpy(np.array(found)), model.outputs()[:, : tokens.size(1)]
    # One token shorter: the Translator adds the end to the source, and the start and the end to the target.
    target, source = tokens[:, 1:], tokens[:, 1:].flip(1)
    scored = package.Translator(str(folder), **options).score_batch(_named(source, names), _named(target, names))
    start, end = (torch.full_like(tokens[:, :1], token) for token in (tokenizer.start, tokenizer.end))
    logits = model.model(torch.cat([start, target], dim=1), torch.cat([source, end], dim=1))
    expected = logits.log_softmax(dim=-1).gather(2, torch.cat([target, end], dim=1)[..., None])[..., 0]
    return torch.tensor([each.log_probs for each in scored]), expected


def _named(tokens: Tensor, names: list[str]) -> list[list[str]]:
    return [[names[token] for token in row] for row in tokens.tolist()]


def _supported_config(model: ExportableModel) -> TransformerConfig:
    """The config with positions as tables, if the format can represent all of it."""
    config = model.transformer_config
    if model.spec.head not in _HEADS:
        raise ConfigError(
            f"CTranslate2 needs a model with the head {' or '.join(_HEADS)}, got {model.spec.head}: "
            "onnx can represent every head"
        )
    for name, allowed in _SUPPORTED.items():
        if (value := getattr(config, name)) not in allowed:
            raise ConfigError(f"model.{name} must be {_listed(allowed)} for CTranslate2, got {value}")
    for scheme in config.position_schemes:
        if scheme not in _POSITIONS:
            raise ConfigError(f"model.positions must be {_listed(_POSITIONS)} for CTranslate2, got {scheme}")
    if config.query_key_norm and config.encoder_depth:
        # In cross-attention CTranslate2 would normalize the queries and not the keys.
        raise ConfigError("model.query_key_norm must be False for CTranslate2 in a model with an encoder, got True")
    if not config.feedforward_dim:
        raise ConfigError("model.feedforward_dim must not be 0 for CTranslate2, got 0")
    return with_position_tables(config)


def _stack(specs: Any, config: TransformerConfig, side: str, weights: _Weights) -> Any:
    """The specification of the encoder or the decoder, with its weights."""
    is_decoder = side == "decoder"
    positions = (config.decoder_positions if is_decoder else config.encoder_positions) or config.positions
    kind = specs.TransformerDecoderSpec if is_decoder else specs.TransformerEncoderSpec
    is_grouped = config.num_key_value_heads not in (None, config.num_heads)
    rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.position_base}
    stack = kind(
        config.decoder_depth if is_decoder else config.encoder_depth,
        config.num_heads,
        pre_norm=config.block == "pre-norm",
        activation=specs.Activation[_ACTIVATIONS[config.activation]],
        layernorm_embedding=config.embedding_norm,
        relative_attention_bias=positions == "relative",
        ffn_glu=f"{side}.blocks.0.feedforward.gate.weight" in weights,
        rms_norm=config.norm == "rms",
        num_heads_kv=config.num_key_value_heads if is_grouped else None,
        head_dim=config.head_dim,
        qk_norm=config.query_key_norm,
        **(rotary if positions == "rotary" else {}),
        **({"with_encoder_attention": bool(config.encoder_depth)} if is_decoder else {}),
    )
    stack.scale_embeddings = config.scale_embeddings
    (stack.embeddings if is_decoder else stack.embeddings[0]).weight = weights["embedding.weight"]
    if positions in ("learned", "none"):
        shape = (config.context_length, config.model_dim)
        table = (
            weights[f"{side}.positions.table.weight"]
            if positions == "learned"
            else torch.zeros(shape, dtype=torch.float32)
        )
        stack.position_encodings.encodings = table
    if config.embedding_norm:
        _set_norm(stack.layernorm_embedding, f"{side}.embedding_norm", weights)
    if config.block == "pre-norm":
        _set_norm(stack.layer_norm, f"{side}.final_norm", weights)
    if is_decoder:
        _set_linear(stack.projection, ["embedding" if config.tie_embeddings else "output"], weights)
        if config.output_bias:
            stack.projection.bias = weights["output.bias"]
        if config.scale_output:
            stack.scale_outputs = config.model_dim**-0.5
    for number, layer in enumerate(stack.layer):
        _set_layer(layer, f"{side}.blocks.{number}", config, weights)
        if positions == "relative":
            layer.self_attention.relative_attention_bias = weights[f"{side}.positions.table.weight"]
            layer.self_attention.relative_attention_max_distance = np.int32(config.position_distance)
    return stack


def _set_layer(layer: Any, block: str, config: TransformerConfig, weights: _Weights) -> None:
    """Set the weights of one layer; linear layers with the same input are one there."""
    attentions = [("attention", layer.self_attention)]
    attentions += [("cross_attention", layer.attention)] if f"{block}.cross_attention_norm.weight" in weights else []
    for name, spec in attentions:
        query, key, value, output = (f"{block}.{name}.{part}" for part in ("query", "key", "value", "output"))
        joined = [[query, key, value], [output]] if name == "attention" else [[query], [key, value], [output]]
        for linear, ours in zip(spec.linear, joined, strict=True):
            _set_linear(linear, ours, weights)
        _set_norm(spec.layer_norm, f"{block}.{name}_norm", weights)
        if config.query_key_norm:
            _set_norm(spec.q_norm, f"{block}.{name}.query_norm", weights)
            _set_norm(spec.k_norm, f"{block}.{name}.key_norm", weights)
        spec.queries_scale = 1.0 if config.similarity == "dot" else config.head_dim**-0.5
    feedforward, gate = f"{block}.feedforward", f"{block}.feedforward.gate"
    is_gated = f"{gate}.weight" in weights
    _set_linear(layer.ffn.linear_0, [gate if is_gated else f"{feedforward}.input"], weights)
    if is_gated:
        _set_linear(layer.ffn.linear_0_noact, [f"{feedforward}.input"], weights)
    _set_linear(layer.ffn.linear_1, [f"{feedforward}.output"], weights)
    _set_norm(layer.ffn.layer_norm, f"{block}.feedforward_norm", weights)


def _set_linear(spec: Any, layers: list[str], weights: _Weights) -> None:
    spec.weight = torch.cat([weights[f"{layer}.weight"] for layer in layers])
    biases = [weights.get(f"{layer}.bias") for layer in layers]
    found = [bias for bias in biases if bias is not None]
    assert len(found) in (0, len(layers)), f"all or none of {layers} have a bias"
    if found:
        spec.bias = torch.cat(found)


def _set_norm(spec: Any, norm: str, weights: _Weights) -> None:
    spec.gamma = weights[f"{norm}.weight"]
    if f"{norm}.bias" in weights:
        spec.beta = weights[f"{norm}.bias"]


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(map(str, values))


CTRANSLATE2 = Exporter(
    name="ctranslate2",
    write=write_ctranslate2,
    outputs=ctranslate2_outputs,
    files=("model.bin", "config.json", "vocabulary.json", "shared_vocabulary.json", *TOKENIZER_FILES),
)
