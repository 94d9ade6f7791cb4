"""Models in GGUF files, the format of llama.cpp, in the names of Hugging Face; and the way back.

The architecture called `llama` has the rows of queries and keys reordered, so
that rotary positions turn neighbors; see `regard.interop.llama2c`. Those of
Qwen have not.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError, DataError
from regard.interop.checkpoint import Foreign, hash_files
from regard.interop.gguf_file import GGUFFile
from regard.interop.gguf_tokenizer import tokenizer_from_metadata
from regard.interop.llama2c import halves_from_pairs
from regard.models.heads import Pooling
from regard.text.tokenizer import Tokenizer

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
_QWEN3 = {
    **_LLAMA,
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
_BERT = {
    "token_embd": "bert.embeddings.word_embeddings",
    "position_embd": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "token_embd_norm": "bert.embeddings.LayerNorm",
    "blk.{}.attn_q": "bert.encoder.layer.{}.attention.self.query",
    "blk.{}.attn_k": "bert.encoder.layer.{}.attention.self.key",
    "blk.{}.attn_v": "bert.encoder.layer.{}.attention.self.value",
    "blk.{}.attn_output": "bert.encoder.layer.{}.attention.output.dense",
    "blk.{}.attn_output_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "blk.{}.ffn_up": "bert.encoder.layer.{}.intermediate.dense",
    "blk.{}.ffn_down": "bert.encoder.layer.{}.output.dense",
    "blk.{}.layer_output_norm": "bert.encoder.layer.{}.output.LayerNorm",
}
NAMES = {"llama": _LLAMA, "qwen2": _LLAMA, "qwen3": _QWEN3, "gpt2": _GPT2, "bert": _BERT}
"""For each architecture the parts of a model: GGUF's name, and Hugging Face's."""

LLAMA_SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_GPT2_SETTINGS = {
    "n_embd": "embedding_length",
    "n_inner": "feed_forward_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
_BERT_SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "layer_norm_eps": "attention.layer_norm_epsilon",
}
_POOLINGS: dict[int, Pooling] = {1: "mean", 2: "first", 3: "last"}
_SPECIAL_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "pad_token": "padding",
    "cls_token": "cls",
    "sep_token": "seperator",
    "mask_token": "mask",
}
"""What tokens are for, in Hugging Face's words and in GGUF's spelling."""
FREQUENCIES = "rope_freqs.weight"
"""How many times slower each plane of rotary positions turns; a table, not a weight."""
STRETCHED_FROM = 8_192
"""The positions that the models which bring such a table were first trained for: no file says."""


def read_gguf(path: Path) -> Foreign:
    """The model in a GGUF file."""
    file = GGUFFile(path)
    return Foreign(
        name=path.stem,
        config=read_config(file),
        tensors=read_tensors(file),
        tokenizer=read_tokenizer(file).to_json(),
        content_hash=hash_files([path]),
        special_tokens=_special_tokens(file),
        chat_template=read_chat_template(file),
        pooling=_POOLINGS.get(file.metadata.get(f"{_architecture(file)}.pooling_type", 0)),
    )


def read_config(file: GGUFFile) -> dict[str, Any]:
    """The shape of the model in the names of Hugging Face's `config.json`."""
    architecture = _architecture(file)
    common = {
        "model_type": architecture,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **{f"{name}_id": file.metadata.get(_id_key(name)) for name in ("bos_token", "eos_token", "pad_token")},
    }
    if architecture == "bert":
        own = {name: _required(file, f"bert.{key}") for name, key in _BERT_SETTINGS.items()}
        segments = file.tensors.get("token_types.weight")
        return {**common, **own, "hidden_act": "gelu", "type_vocab_size": segments.shape[0] if segments else 0}
    if architecture == "gpt2":
        own = {name: _required(file, f"gpt2.{key}") for name, key in _GPT2_SETTINGS.items()}
        return {**common, **own, "activation_function": "gelu_new"}
    return {**common, **_llama_settings(file, architecture)}


def read_tensors(file: GGUFFile) -> Mapping[str, Float[Tensor, "..."]]:
    """The weights in Hugging Face's names and layout, in float32, each unpacked when it is asked for."""
    return _Unpacked(file, _architecture(file))


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    return tokenizer_from_metadata(file.metadata)


def read_chat_template(file: GGUFFile) -> str | None:
    template = file.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None


class _Unpacked(Mapping[str, Tensor]):
    """The weights of a file by their names in Hugging Face's layout."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file, self._architecture = file, architecture
        self._names = {_their_name(file, architecture, name): name for name in file.tensors if name != FREQUENCIES}
        heads = _required(file, f"{architecture}.attention.head_count")
        shared = file.metadata.get(f"{architecture}.attention.head_count_kv", heads)
        self._reordered = {"attn_q": heads, "attn_k": shared} if architecture == "llama" else {}

    def __getitem__(self, name: str) -> Tensor:
        theirs = self._names[name]
        tensor, part = self._file.read(theirs), theirs.split(".")[-2]
        if part in self._reordered:
            heads = self._reordered[part]
            if not isinstance(heads, int) or heads < 1 or len(tensor) % (2 * heads):
                raise DataError(
                    f"{self._file.path}: {theirs} has {len(tensor)} rows, which are not those of {heads} heads"
                )
            return halves_from_pairs(tensor, heads).contiguous()
        # GPT-2's own code has its matrices the other way round.
        is_turned = self._architecture == "gpt2" and theirs.startswith("blk.") and tensor.dim() == 2
        return tensor.T.contiguous() if is_turned else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


def _architecture(file: GGUFFile) -> str:
    architecture = file.metadata.get("general.architecture")
    if architecture not in NAMES:
        known = ", ".join(NAMES)
        raise ConfigError(f"{file.path}: models of the architecture {architecture!r} cannot be read; known: {known}")
    if file.metadata.get("split.count", 1) > 1:
        raise ConfigError(f"{file.path} is one of {file.metadata['split.count']} parts, only whole models can be read")
    if "token_embd.weight" not in file.tensors:
        raise DataError(f"{file.path} has no token_embd.weight, which every model has")
    return architecture


def _required(file: GGUFFile, key: str) -> Any:
    value = file.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        told = "has no" if value is None else "has no single number as"
        raise DataError(f"{file.path} {told} {key}, without which its shape is not known")
    return value


def _id_key(special_token: str) -> str:
    return f"tokenizer.ggml.{_SPECIAL_TOKENS[special_token]}_token_id"


def _special_tokens(file: GGUFFile) -> dict[str, str]:
    """The tokens that a file gives a role to, by Hugging Face's names of the roles."""
    tokens = file.metadata["tokenizer.ggml.tokens"]
    ids = {name: file.metadata.get(_id_key(name)) for name in _SPECIAL_TOKENS}
    return {name: tokens[index] for name, index in ids.items() if index is not None and index < len(tokens)}


def _llama_settings(file: GGUFFile, architecture: str) -> dict[str, Any]:
    found = {name: _required(file, f"{architecture}.{key}") for name, key in LLAMA_SETTINGS.items()}
    metadata = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items()}
    heads = found["num_attention_heads"]
    head_dim = metadata.get("attention.key_length", found["hidden_size"] // heads)
    for key, expected in {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.scaling.type": "none",
        "expert_count": 0,
    }.items():
        if metadata.get(key, expected) != expected:
            raise ConfigError(
                f"{file.path}: {architecture}.{key} must be {expected} for a model to be read, got {metadata[key]}"
            )
    base = float(metadata.get("rope.freq_base", 10_000.0))
    return {
        **found,
        "num_key_value_heads": metadata.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rope_theta": base,
        "rope_scaling": _rope_scaling(file, head_dim, base),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "sliding_window": metadata.get("attention.sliding_window"),
    }


def _rope_scaling(file: GGUFFile, head_dim: int, base: float) -> dict[str, Any] | None:
    """The setting that makes the table of frequencies in a file, where there is one."""
    if FREQUENCIES not in file.tensors:
        return None
    table = file.read(FREQUENCIES).double()
    factor = float(table.max())
    if table.shape != (head_dim // 2,) or not torch.allclose(
        table, slowdowns(head_dim, base, factor).double(), rtol=1e-4
    ):
        raise ConfigError(f"{file.path}: {FREQUENCIES} is not the table of a Llama 3 model, and no other is known")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": STRETCHED_FROM,
    }


def slowdowns(head_dim: int, base: float, factor: float) -> Float[Tensor, " half"]:
    """How many times slower each plane turns in a model of Llama 3's kind; see `regard.nn.positions.Rotary`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    num_turns = STRETCHED_FROM / (2 * math.pi * base**exponents)
    kept = ((num_turns - 1.0) / 3.0).clamp(0.0, 1.0)
    return 1.0 / (kept + (1.0 - kept) / factor)


def _their_name(file: GGUFFile, architecture: str, name: str) -> str:
    stem, _, end = name.rpartition(".")
    layer = re.search(r"\.(\d+)\.", name)
    part = stem if layer is None else stem.replace(layer[0], ".{}.", 1)
    theirs = NAMES[architecture].get(part)
    if theirs is None or end not in ("weight", "bias"):
        raise ConfigError(f"{file.path}: a model of the architecture {architecture!r} has no place for {name}")
    return f"{theirs.format(*layer.groups() if layer else ())}.{end}"
