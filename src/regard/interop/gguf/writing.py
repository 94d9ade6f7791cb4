"""Writing Transformers with the configs of Llama, Qwen 2 and Qwen 3 as GGUF files, for llama.cpp."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor

from regard.errors import ConfigError, DeviceError
from regard.files import partial_path
from regard.interop.gguf.reading import (
    GGUF_NAMES,
    LLAMA_FIELDS,
    ROPE_FACTORS,
    ROPE_ORIGINAL_LENGTH,
    read_gguf_checkpoint,
    rope_factors,
)
from regard.interop.gguf.tokenizer import metadata_from_tokenizer
from regard.interop.hf.architectures import config_differences
from regard.interop.hf.llama import LLAMA, pairs_from_halves
from regard.interop.hf.weights import foreign_weights
from regard.interop.hf.writing import checkpoint_outputs
from regard.interop.model import EXPORT_TOLERANCE, ExportableModel, Exporter, optional_package
from regard.logging import log_info
from regard.models.transformer import Transformer
from regard.models.transformer.config import TransformerConfig
from regard.settings import nearest
from regard.text.tokenizer import Tokenizer

NumberType = Literal["F32", "F16", "Q8_0"]
"""The type of matrices: 32 bits, 16 bits, or 8 bits with a scale for each 32 numbers."""
_FILE_TYPES: dict[NumberType, str] = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0"}
_BLOCK_LENGTH = 32


def write_gguf(
    path: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    chat_template: str | None = None,
    number_type: NumberType = "F16",
    adds_start: bool = True,
) -> None:
    """Write a decoder-only Transformer; a setting that the format cannot represent is a ConfigError.

    Matrices are written as `number_type`, vectors in float32. With `adds_start`
    readers add the start token before a text.
    """
    gguf = optional_package("gguf", extra="gguf")
    config = gguf_config(model.config, vocab_size=model.embedding.num_embeddings)
    tensors = _gguf_tensors(config, foreign_weights(LLAMA.weight_names(config), model.state_dict()))
    _require_blocks(number_type, tensors)
    metadata = {
        **_config_metadata(config),
        **metadata_from_tokenizer(tokenizer, adds_start=adds_start),
        **({} if chat_template is None else {"tokenizer.chat_template": chat_template}),
        "general.file_type": int(gguf.LlamaFileType[_FILE_TYPES[number_type]]),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
    }
    writer = gguf.GGUFWriter(partial_path(path), config["model_type"])
    for key, value in metadata.items():
        # Readers expect unsigned counts and ids.
        kind = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for name, numbers in tensors.items():
        kind = gguf.GGMLQuantizationType[number_type if numbers.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)
    _write(writer, path)


def export_gguf(model: ExportableModel, path: Path, *, number_type: NumberType = "F16") -> str:
    """Write a model as a GGUF file and return the name of its architecture and type."""
    if model.spec.head != "next-token":
        raise ConfigError(f"a GGUF file needs a model with the head next-token, got {model.spec.head}")
    config = gguf_config(model.transformer_config, vocab_size=model.tokenizer.vocab_size)
    log_info(f"writing the architecture {config['model_type']} with matrices in {number_type}")
    write_gguf(path, model.body, model.tokenizer, chat_template=model.chat_template, number_type=number_type)
    return f"{config['model_type']}, {number_type}"


def gguf_outputs(model: ExportableModel, path: Path) -> tuple[Tensor, Tensor]:
    """The outputs of the model in a file, and those of the model that it was written from."""
    return checkpoint_outputs(model, read_gguf_checkpoint(path)), model.outputs()


def gguf_config(model: TransformerConfig, *, vocab_size: int) -> dict[str, Any]:
    """The config in the names of Hugging Face, if it is one of Llama or Qwen."""
    assert LLAMA.write_config is not None, "Llama is exported"
    # The format has no field for the activation.
    config = {**LLAMA.write_config(model), "vocab_size": vocab_size, "hidden_act": "silu"}
    if "rotary" not in model.position_schemes and model.head_dim % 2:
        raise ConfigError(f"model.positions must be rotary for a GGUF file, got {model.positions}")
    if {*model.attention_kinds(model.decoder_depth, is_causal=True)} - {"full"}:
        raise ConfigError(f"model.attention must be full for a GGUF file, got {model.attention}")
    if model.position_stretch != 1.0 and model.position_stretch_by not in (None, "llama3"):
        raise ConfigError(f"model.position_stretch_by must be llama3 for a GGUF file, got {model.position_stretch_by}")
    if found := config_differences(LLAMA.read_config(config), model):
        name, (wanted, got) = next(iter(found.items()))
        raise ConfigError(f"model.{name} must be {wanted} for a GGUF file, got {got}")
    if model.position_stretch != 1.0 and model.position_stretch_from != ROPE_ORIGINAL_LENGTH:
        raise ConfigError(
            f"model.position_stretch_from must be {ROPE_ORIGINAL_LENGTH} for a GGUF file, "
            f"got {model.position_stretch_from}"
        )
    return config


def _config_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: config[name] for name, key in LLAMA_FIELDS.items()}
    found |= {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": config["rope_theta"],
        "vocab_size": config["vocab_size"],
    }
    return {f"{config['model_type']}.{key}": value for key, value in found.items()}


def _gguf_tensors(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The weights in GGUF's names and order of rows."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found: dict[str, Tensor] = {}
    for name, other in GGUF_NAMES[config["model_type"]].items():
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
    if (scaling := config["rope_scaling"]) is not None:
        found[ROPE_FACTORS] = rope_factors(config["head_dim"], config["rope_theta"], scaling["factor"])
    return {name: tensor.detach().cpu().float().contiguous().numpy() for name, tensor in found.items()}


def require_number_type(number_type: str) -> None:
    """Raise if no number type has this name."""
    if number_type not in _FILE_TYPES:
        raise ConfigError(f"unknown number type {number_type!r}{nearest(number_type, get_args(NumberType))}")


def _require_blocks(number_type: str, tensors: Mapping[str, np.ndarray]) -> None:
    require_number_type(number_type)
    for name, numbers in tensors.items():
        if number_type == "Q8_0" and numbers.ndim > 1 and numbers.shape[-1] % _BLOCK_LENGTH:
            raise ConfigError(
                f"Q8_0 needs rows of a multiple of {_BLOCK_LENGTH} numbers, {name} has rows of {numbers.shape[-1]}"
            )


def _write(writer: Any, path: Path) -> None:
    """Write the file atomically."""
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
            raise DeviceError(
                f"cannot write {path}: {error.strerror or error}; the existing file is unchanged"
            ) from None
        raise


GGUF_EXPORTER = Exporter(
    name="gguf",
    write=export_gguf,
    outputs=gguf_outputs,
    suffix=".gguf",
    number_types={"F16": 0.03, "F32": EXPORT_TOLERANCE, "Q8_0": 0.3},
)
