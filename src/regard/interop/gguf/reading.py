"""Reading GGUF files, the format of llama.cpp, in the names of Hugging Face.

The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2
and 3. The header is parsed here and not by the `gguf` package, whose reader does not
check the length of a file, so that one damaged length makes it loop forever, and
which takes seconds for a vocabulary. The package decodes the blocks of quantized
weights.

In the architecture `llama` the rows of queries and keys are reordered, so that rotary
positions rotate adjacent coordinates; see `halves_from_pairs`. In those of Qwen
they are not.
"""

import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError, DataError
from regard.interop.gguf.tokenizer import tokenizer_from_metadata
from regard.interop.hf.conversion import convert_checkpoint
from regard.interop.hf.llama import halves_from_pairs
from regard.interop.hf.reading import Checkpoint, LazyTensors, hash_files
from regard.interop.model import ImportedModel, optional_package
from regard.models.heads import Pooling

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NAME_LENGTH = 64
_STRING, _ARRAY = 8, 9
_NUMBER_TYPES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The types of numbers in metadata, as `struct` formats."""


class StoredTensor(NamedTuple):
    """The position of a tensor in a file."""

    shape: tuple[int, ...]
    """In PyTorch's order; GGUF lists the dimensions in reverse."""
    type_number: int
    """The number of its type in ggml."""
    start: int
    num_bytes: int


class GGUFFile:
    """A GGUF file: its `metadata` by name, and the positions of its `tensors`, which are read on access."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._package = optional_package("gguf", extra="gguf")
        try:
            with open(path, "rb") as file:
                self._check_version(file.read(8))
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        self._offset = 8
        try:
            num_tensors, num_entries = self._number("Q"), self._number("Q")
            self.metadata: dict[str, Any] = dict(self._entry() for _ in range(num_entries))
            headers = [self._tensor_header() for _ in range(num_tensors)]
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is damaged: a string in it is not UTF-8 ({error.reason})") from None
        self.tensors = self._locate(headers)

    def read(self, name: str) -> Float[Tensor, "..."]:
        """Read a tensor in float32, whatever its type in the file."""
        stored = self.tensors[name]
        kind = self._package.GGMLQuantizationType(stored.type_number)
        rows = np.frombuffer(self._content, np.uint8, stored.num_bytes, stored.start)
        rows = rows.reshape(*stored.shape[:-1], -1)
        try:
            numbers = self._package.dequantize(rows, kind)
        except NotImplementedError:
            raise ConfigError(f"{self.path}: {name} has the type {kind.name}, which cannot be read") from None
        return torch.from_numpy(np.array(numbers, np.float32)).reshape(stored.shape)

    def _check_version(self, begin: bytes) -> None:
        if begin[:4] != _MAGIC:
            raise DataError(f"{self.path} is not a GGUF file: it begins with {begin[:4]!r}, not {_MAGIC!r}")
        if len(begin) < 8:
            raise DataError(f"{self.path} is truncated: it has {len(begin)} bytes")
        version = struct.unpack("<I", begin[4:])[0]
        if version not in _VERSIONS and struct.unpack(">I", begin[4:])[0] in _VERSIONS:
            raise DataError(f"{self.path} is a big-endian GGUF file, only little-endian ones can be read")
        if version not in _VERSIONS:
            raise DataError(
                f"{self.path} has GGUF version {version}, versions {_VERSIONS[0]} and {_VERSIONS[1]} can be read"
            )

    def _read_bytes(self, num_bytes: int) -> bytes:
        end = self._offset + num_bytes
        self._require_length(end)
        content = self._content[self._offset : end]
        self._offset = end
        return content

    def _require_length(self, end: int) -> None:
        if end > len(self._content):
            raise DataError(
                f"{self.path} is truncated or damaged: it has {len(self._content):,} bytes, its header requires {end:,}"
            )

    def _number(self, kind: str) -> Any:
        number = struct.unpack(f"<{kind}", self._read_bytes(struct.calcsize(kind)))[0]
        # The shortest decimal that rounds to this float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(number))) if kind == "f" else number

    def _text(self) -> str:
        return self._read_bytes(self._number("Q")).decode()

    def _entry(self) -> tuple[str, Any]:
        name = self._text()
        return name, self._value(self._number("I"), name)

    def _value(self, kind: int, name: str) -> Any:
        if kind == _STRING:
            return self._text()
        if kind in _NUMBER_TYPES:
            return self._number(_NUMBER_TYPES[kind])
        inner, length = (self._number("I"), self._number("Q")) if kind == _ARRAY else (kind, 0)
        if kind == _ARRAY and inner == _STRING:
            return [self._text() for _ in range(length)]
        if kind == _ARRAY and inner in _NUMBER_TYPES:
            dtype = np.dtype(f"<{_NUMBER_TYPES[inner]}")
            return np.frombuffer(self._read_bytes(length * dtype.itemsize), dtype).tolist()
        raise DataError(f"{self.path} is damaged: {_short(name)} has the unknown value type {inner}")

    def _tensor_header(self) -> tuple[str, StoredTensor]:
        """A tensor as the header describes it: its start is relative to the data section."""
        name, num_dimensions = self._text(), self._number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise DataError(f"{self.path} is damaged: {_short(name)} has {num_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(num_dimensions))[::-1]
        number, offset = self._number("I"), self._number("Q")
        try:
            kind = self._package.GGMLQuantizationType(number)
            block_length, block_bytes = self._package.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ConfigError(f"{self.path}: {_short(name)} has the unknown type number {number}") from None
        if min(shape) < 1:
            raise DataError(f"{self.path} is damaged: {_short(name)} has the shape {shape}")
        if shape[-1] % block_length:
            raise DataError(
                f"{self.path} is damaged: {_short(name)} has rows of {shape[-1]} numbers, "
                f"not a multiple of the blocks of {block_length} of {kind.name}"
            )
        return name, StoredTensor(shape, number, offset, math.prod(shape) // block_length * block_bytes)

    def _locate(self, headers: list[tuple[str, StoredTensor]]) -> dict[str, StoredTensor]:
        """The tensors with absolute positions: the data section starts at the next multiple of the alignment."""
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise DataError(f"{self.path} is damaged: its alignment is {alignment}")
        begin = -(-self._offset // alignment) * alignment
        tensors = {name: stored._replace(start=begin + stored.start) for name, stored in headers}
        if len(tensors) < len(headers):
            raise DataError(f"{self.path} is damaged: two of its tensors have the same name")
        for stored in tensors.values():
            self._require_length(stored.start + stored.num_bytes)
        # Tensors that share their bytes could have far more numbers together than the file.
        self._require_length(sum(stored.num_bytes for stored in tensors.values()))
        return tensors


def _short(name: str) -> str:
    """A name that can be printed: in a damaged file it may be anything."""
    return name if name.isprintable() and len(name) <= _MAX_NAME_LENGTH else repr(name[:_MAX_NAME_LENGTH])


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
GGUF_NAMES = {"llama": _LLAMA, "qwen2": _LLAMA, "qwen3": _QWEN3, "gpt2": _GPT2, "bert": _BERT}
"""For each architecture GGUF's names of the parts of a model, and Hugging Face's."""

LLAMA_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_GPT2_FIELDS = {
    "n_embd": "embedding_length",
    "n_inner": "feed_forward_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
_BERT_FIELDS = {
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
"""The roles of tokens in Hugging Face's names and in GGUF's spelling."""
ROPE_FACTORS = "rope_freqs.weight"
"""The factors by which the wavelengths of rotary positions are extended; a table, not a weight."""
ROPE_ORIGINAL_LENGTH = 8_192
"""The context length before the extension, in all models with such a table; the files do not contain it."""


def recognizes_gguf(path: Path) -> bool:
    """Whether a file has the suffix or the first bytes of GGUF."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return path.suffix.lower() == ".gguf" or file.read(len(_MAGIC)) == _MAGIC


def read_gguf(path: Path) -> ImportedModel:
    """Read the model in a GGUF file."""
    return convert_checkpoint(read_gguf_checkpoint(path))


def read_gguf_checkpoint(path: Path) -> Checkpoint:
    """Read a GGUF file in the names of Hugging Face; its weights are dequantized to float32 on access."""
    file = GGUFFile(path)
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        name=path.stem,
        config=_config(file),
        tensors=_tensors(file, _architecture(file)),
        tokenizer=tokenizer_from_metadata(file.metadata).to_json(),
        content_hash=hash_files([path]),
        special_tokens=_special_tokens(file),
        chat_template=template if isinstance(template, str) else None,
        pooling=_pooling(file),
    )


def _config(file: GGUFFile) -> dict[str, Any]:
    architecture = _architecture(file)
    common = {
        "model_type": architecture,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **{f"{name}_id": file.metadata.get(_id_key(name)) for name in ("bos_token", "eos_token", "pad_token")},
    }
    if architecture == "bert":
        own = {name: _required(file, f"bert.{key}") for name, key in _BERT_FIELDS.items()}
        segments = file.tensors.get("token_types.weight")
        return {**common, **own, "hidden_act": "gelu", "type_vocab_size": segments.shape[0] if segments else 0}
    if architecture == "gpt2":
        own = {name: _required(file, f"gpt2.{key}") for name, key in _GPT2_FIELDS.items()}
        return {**common, **own, "activation_function": "gelu_new"}
    return {**common, **_llama_config(file, architecture)}


def _tensors(file: GGUFFile, architecture: str) -> LazyTensors:
    """The weights in Hugging Face's names and layout."""
    names = {_hf_name(file, architecture, name): name for name in file.tensors if name != ROPE_FACTORS}
    heads = _required(file, f"{architecture}.attention.head_count")
    kv_heads = file.metadata.get(f"{architecture}.attention.head_count_kv", heads)
    num_heads = {"attn_q": heads, "attn_k": kv_heads} if architecture == "llama" else {}

    def read(name: str) -> Tensor:
        stored = names[name]
        tensor, part = file.read(stored), stored.split(".")[-2]
        if part in num_heads:
            count = num_heads[part]
            if not isinstance(count, int) or count < 1 or len(tensor) % (2 * count):
                raise DataError(f"{file.path}: {stored} has {len(tensor)} rows, which {count} heads cannot have")
            return halves_from_pairs(tensor, count).contiguous()
        # Hugging Face's GPT-2 has its matrices transposed.
        is_transposed = architecture == "gpt2" and stored.startswith("blk.") and tensor.dim() == 2
        return tensor.T.contiguous() if is_transposed else tensor

    return LazyTensors(names, read)


def _architecture(file: GGUFFile) -> str:
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_NAMES:
        known = ", ".join(GGUF_NAMES)
        raise ConfigError(f"{file.path}: the architecture {architecture!r} cannot be imported; known: {known}")
    if (parts := file.metadata.get("split.count", 1)) not in (0, 1):
        raise ConfigError(f"{file.path} is one of {parts} parts: only models in one file can be imported")
    if "token_embd.weight" not in file.tensors:
        raise DataError(f"{file.path} has no token_embd.weight, which every model needs")
    return architecture


def _required(file: GGUFFile, key: str) -> Any:
    value = file.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "no value" if value is None else "no single number"
        raise DataError(f"{file.path} has {found} for {key}, which the model config requires")
    return value


def _id_key(special_token: str) -> str:
    return f"tokenizer.ggml.{_SPECIAL_TOKENS[special_token]}_token_id"


def _pooling(file: GGUFFile) -> Pooling | None:
    kind = file.metadata.get(f"{_architecture(file)}.pooling_type", 0)
    return _POOLINGS.get(kind) if isinstance(kind, int) else None


def _special_tokens(file: GGUFFile) -> dict[str, str]:
    """The tokens with a role, by Hugging Face's names of the roles."""
    tokens = file.metadata["tokenizer.ggml.tokens"]
    ids = {name: file.metadata.get(_id_key(name)) for name in _SPECIAL_TOKENS}
    return {name: tokens[index] for name, index in ids.items() if isinstance(index, int) and 0 <= index < len(tokens)}


def _llama_config(file: GGUFFile, architecture: str) -> dict[str, Any]:
    found = {name: _required(file, f"{architecture}.{key}") for name, key in LLAMA_FIELDS.items()}
    metadata = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items()}
    heads = found["num_attention_heads"]
    if heads < 1:
        raise DataError(f"{file.path}: {architecture}.attention.head_count must be at least 1, got {heads}")
    head_dim = metadata.get("attention.key_length", found["hidden_size"] // heads)
    if not isinstance(head_dim, int) or not 0 < head_dim <= found["hidden_size"] * heads:
        raise DataError(f"{file.path}: {architecture}.attention.key_length must be the width of a head, got {head_dim}")
    for key, expected in {
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.scaling.type": "none",
        "expert_count": 0,
    }.items():
        if metadata.get(key, expected) != expected:
            raise ConfigError(
                f"{file.path}: {architecture}.{key} must be {expected} to be imported, got {metadata[key]}"
            )
    base = metadata.get("rope.freq_base", 10_000.0)
    if isinstance(base, bool) or not isinstance(base, int | float) or not base > 0:
        raise DataError(f"{file.path}: {architecture}.rope.freq_base must be a number above 0, got {base}")
    base = float(base)
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
    """The setting that reproduces the table of factors in a file, if there is one."""
    if ROPE_FACTORS not in file.tensors:
        return None
    table = file.read(ROPE_FACTORS).double()
    factor = float(table.max())
    if table.shape != (head_dim // 2,) or not torch.allclose(
        table, rope_factors(head_dim, base, factor).double(), rtol=1e-4
    ):
        raise ConfigError(
            f"{file.path}: {ROPE_FACTORS} is not the table of a Llama 3 model, the only one that can be imported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ROPE_ORIGINAL_LENGTH,
    }


def rope_factors(head_dim: int, base: float, factor: float) -> Float[Tensor, " half"]:
    """The factor for each wavelength of Llama 3's rotary positions; see `regard.nn.positions.Rotary`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    num_turns = ROPE_ORIGINAL_LENGTH / (2 * math.pi * base**exponents)
    kept = ((num_turns - 1.0) / 3.0).clamp(0.0, 1.0)
    return 1.0 / (kept + (1.0 - kept) / factor)


def _hf_name(file: GGUFFile, architecture: str, name: str) -> str:
    stem, _, end = name.rpartition(".")
    layer = re.search(r"\.(\d+)\.", name)
    part = stem if layer is None else stem.replace(layer[0], ".{}.", 1)
    theirs = GGUF_NAMES[architecture].get(part)
    if theirs is None or end not in ("weight", "bias"):
        raise ConfigError(f"{file.path}: the architecture {architecture!r} has no weight {name}")
    return f"{theirs.format(*layer.groups() if layer else ())}.{end}"
