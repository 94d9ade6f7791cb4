"""Transformers of Llama's, Qwen 2's and Qwen 3's shape as GGUF files, for llama.cpp and its kin."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from regard.errors import ConfigError, DeviceError
from regard.files import partial_path
from regard.interop import llama
from regard.interop.equivalence import differences
from regard.interop.gguf import FREQUENCIES, LLAMA_SETTINGS, NAMES, STRETCHED_FROM, slowdowns
from regard.interop.gguf_file import require_gguf
from regard.interop.gguf_tokenizer import metadata_from_tokenizer
from regard.interop.llama2c import pairs_from_halves
from regard.interop.names import given_back
from regard.models.transformer import Transformer
from regard.models.transformer_config import TransformerConfig
from regard.settings import nearest
from regard.text.tokenizer import Tokenizer

NumberType = Literal["F32", "F16", "Q8_0"]
"""How the numbers of matrices are written: in 32 bits, in 16, or in 8 with a scale for each 32 of them."""
_FILE_TYPES: dict[NumberType, str] = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}
_BLOCK_LENGTH = 32


def write_gguf(
    path: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    chat_template: str | None = None,
    number_type: NumberType = "F16",
    starts_texts: bool = True,
) -> None:
    """Write a decoder alone; a setting that the format has no word for is refused.

    Matrices are written as `number_type`, vectors in float32. With `starts_texts`
    a reader is told to put the start token before a text.
    """
    gguf = require_gguf()
    config = config_of(model.config, vocab_size=model.embedding.num_embeddings)
    tensors = _their_tensors(config, given_back(llama.names(config), model.state_dict()))
    _require_blocks(number_type, tensors)
    metadata = {
        **_shape(config),
        **metadata_from_tokenizer(tokenizer, starts_texts=starts_texts),
        **({} if chat_template is None else {"tokenizer.chat_template": chat_template}),
        "general.file_type": int(gguf.LlamaFileType[_FILE_TYPES[number_type]]),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
    }
    writer = gguf.GGUFWriter(partial_path(path), config["model_type"])
    for key, value in metadata.items():
        # Readers expect counts and ids without a sign.
        kind = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for name, numbers in tensors.items():
        kind = gguf.GGMLQuantizationType[number_type if numbers.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)
    _put(writer, path)


def config_of(shape: TransformerConfig, *, vocab_size: int) -> dict[str, Any]:
    """The shape in the names of Hugging Face's `config.json`, where it is one that Llama's or Qwen's code can have."""
    # The format has no word for another activation.
    config = {**llama.config_of(shape), "vocab_size": vocab_size, "hidden_act": "silu"}
    if "rotary" not in shape.position_schemes and shape.head_dim % 2:
        raise ConfigError(f"model.positions must be rotary for a GGUF file, got {shape.positions}")
    if found := differences(llama.settings(config), shape):
        name, (wanted, got) = next(iter(found.items()))
        raise ConfigError(f"model.{name} must be {wanted} for a GGUF file, got {got}")
    if shape.position_stretch != 1.0 and shape.position_stretch_from != STRETCHED_FROM:
        raise ConfigError(
            f"model.position_stretch_from must be {STRETCHED_FROM} for a GGUF file, got {shape.position_stretch_from}"
        )
    return config


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of the model as GGUF has it."""
    found = {key: config[name] for name, key in LLAMA_SETTINGS.items()}
    found |= {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": config["rope_theta"],
        "vocab_size": config["vocab_size"],
    }
    return {f"{config['model_type']}.{key}": value for key, value in found.items()}


def _their_tensors(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The weights in GGUF's names and order of rows."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found: dict[str, Tensor] = {}
    for name, other in NAMES[config["model_type"]].items():
        for layer in range(config["num_hidden_layers"] if "{}" in name else 1):
            for end in ("weight", "bias"):
                tensor = tensors.get(f"{other.format(layer)}.{end}")
                part = name.rpartition(".")[2]
                if tensor is not None and config["model_type"] == "llama" and part in heads:
                    tensor = pairs_from_halves(tensor, heads[part])
                if tensor is not None:
                    found[f"{name.format(layer)}.{end}"] = tensor
    if config["tie_word_embeddings"]:
        found.pop("output.weight", None)
    if (stretch := config["rope_scaling"]) is not None:
        found[FREQUENCIES] = slowdowns(config["head_dim"], config["rope_theta"], stretch["factor"])
    return {name: tensor.detach().cpu().float().contiguous().numpy() for name, tensor in found.items()}


def require_number_type(number_type: str) -> None:
    """Raise where no type of numbers has this name."""
    if number_type not in _FILE_TYPES:
        raise ConfigError(f"no type of numbers is called {number_type!r}{nearest(number_type, get_args(NumberType))}")


def _require_blocks(number_type: str, tensors: Mapping[str, np.ndarray]) -> None:
    require_number_type(number_type)
    for name, numbers in tensors.items():
        if number_type == "Q8_0" and numbers.ndim > 1 and numbers.shape[-1] % _BLOCK_LENGTH:
            raise ConfigError(
                f"Q8_0 packs {_BLOCK_LENGTH} numbers of a row together, {name} has rows of {numbers.shape[-1]}"
            )


def _put(writer: Any, path: Path) -> None:
    """Let the file appear whole or not at all."""
    part = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, path)
    except BaseException as error:
        writer.close()
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DeviceError(f"cannot write {path}: {error.strerror or error}; the existing file is unchanged") from None
        raise
