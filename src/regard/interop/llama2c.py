"""Reading models and vocabularies of llama2.c, version 0, in float32.

https://github.com/karpathy/llama2.c

A model file is seven integers and then the tensors, each for all layers. It has
neither a magic number nor a length, so its size is checked against the integers.

A vocabulary file is one integer, and for each token its score, its length and its
bytes; the first tokens are the unknown token, the start, the end, and the 256 bytes.

Rotary positions rotate adjacent coordinates of a head, as in GGUF files: the rows of
queries and keys are reordered.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import DataError
from regard.interop.gguf.reading import recognizes_gguf
from regard.interop.gguf.tokenizer import GGUFVocabulary, TokenType, sentencepiece_tokenizer, with_start_token
from regard.interop.hf.conversion import convert_checkpoint
from regard.interop.hf.llama import halves_from_pairs
from regard.interop.hf.reading import Checkpoint, hash_files, is_pickle
from regard.interop.importing import Importer
from regard.interop.model import ImportedModel
from regard.text.tokenizer import END, START, UNKNOWN, Tokenizer

_LATER_MAGIC = 0x616B3432
"""The first integer of versions 1 and 2."""
_NUM_BYTES = 256


class _Header(NamedTuple):
    """The seven integers; with a negative `vocab_size` the output projection is not tied to the embedding."""

    model_dim: int
    feedforward_dim: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    vocab_size: int
    context_length: int

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads

    @property
    def tie_embeddings(self) -> bool:
        return self.vocab_size > 0

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The tensors in the order of the file, in Hugging Face's names; `{}` is the number of a layer."""
        layers, model, hidden = self.num_layers, self.model_dim, self.feedforward_dim
        vocab, shared = abs(self.vocab_size), self.num_key_value_heads * self.head_dim
        yield "model.embed_tokens.weight", (vocab, model)
        yield "model.layers.{}.input_layernorm.weight", (layers, model)
        yield "model.layers.{}.self_attn.q_proj.weight", (layers, model, model)
        yield "model.layers.{}.self_attn.k_proj.weight", (layers, shared, model)
        yield "model.layers.{}.self_attn.v_proj.weight", (layers, shared, model)
        yield "model.layers.{}.self_attn.o_proj.weight", (layers, model, model)
        yield "model.layers.{}.post_attention_layernorm.weight", (layers, model)
        yield "model.layers.{}.mlp.gate_proj.weight", (layers, hidden, model)
        yield "model.layers.{}.mlp.down_proj.weight", (layers, model, hidden)
        yield "model.layers.{}.mlp.up_proj.weight", (layers, hidden, model)
        yield "model.norm.weight", (model,)
        yield _ROTATION, (2, self.context_length, self.head_dim // 2)
        if not self.tie_embeddings:
            yield "lm_head.weight", (vocab, model)


_ROTATION = "cosines and sines"
"""A table that follows from the positions and is not read."""


def recognizes_llama2c(path: Path) -> bool:
    """Whether a file has the suffix .bin and is neither a pickle nor a GGUF file."""
    return path.is_file() and path.suffix.lower() == ".bin" and not is_pickle(path) and not recognizes_gguf(path)


def read_llama2c(path: Path) -> ImportedModel:
    """Read a model file, with the vocabulary file in the same folder."""
    return convert_checkpoint(read_llama2c_checkpoint(path))


LLAMA2C = Importer(
    name="llama2c",
    description="a model file of llama2.c (.bin) with its tokenizer.bin in the same folder",
    recognizes=recognizes_llama2c,
    read=read_llama2c,
)


def read_llama2c_checkpoint(path: Path, vocabulary: Path | None = None) -> Checkpoint:
    """Read a model file and a vocabulary file, by default the one in the same folder."""
    header = _read_header(path)
    vocabulary = _find_vocabulary(path) if vocabulary is None else vocabulary
    tokenizer = _read_vocabulary(vocabulary)
    if tokenizer.vocab_size != abs(header.vocab_size):
        raise DataError(
            f"{vocabulary} does not belong to {path}: it has {tokenizer.vocab_size:,} tokens, "
            f"the model has {abs(header.vocab_size):,}"
        )
    return Checkpoint(
        name=path.stem,
        config=_config(header),
        tensors=_read_tensors(path, header),
        tokenizer=tokenizer.to_json(),
        content_hash=hash_files([path]),
    )


def _read_header(path: Path) -> _Header:
    """The first seven integers, if they can be those of a model and the file has the length that they imply."""
    try:
        with open(path, "rb") as file:
            begin = file.read(4 * len(_Header._fields))
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if len(begin) >= 4 and struct.unpack("<I", begin[:4])[0] == _LATER_MAGIC:
        raise DataError(f"{path} is a llama2.c file of a later version: only version 0 can be imported")
    if len(begin) < 4 * len(_Header._fields):
        raise DataError(
            f"{path} has {size} bytes, fewer than the header of a llama2.c file ({4 * len(_Header._fields)})"
        )
    header = _Header(*struct.unpack(f"<{len(_Header._fields)}i", begin))
    sizes = (*header[:5], abs(header.vocab_size), header.context_length)
    is_possible = min(sizes) > 0 and not header.model_dim % header.num_heads
    if not is_possible or header.head_dim % 2 or header.num_heads % header.num_key_value_heads:
        raise DataError(f"{path} is not a llama2.c file: it begins with {', '.join(map(str, header))}")
    expected = len(begin) + 4 * sum(int(np.prod(shape, dtype=object)) for _, shape in header.shapes())
    if size != expected:
        raise DataError(f"{path} is damaged: it has {size:,} bytes, its header requires {expected:,}")
    return header


def _read_tensors(path: Path, header: _Header) -> dict[str, Tensor]:
    numbers = np.memmap(path, dtype="<f4", mode="r", offset=4 * len(header))
    tensors: dict[str, Tensor] = {}
    start = 0
    for name, shape in header.shapes():
        end = start + int(np.prod(shape))
        if name != _ROTATION:
            tensor = torch.from_numpy(np.array(numbers[start:end], np.float32).reshape(shape))
            rows = tensor if "{}" in name else tensor[None]
            for index, row in enumerate(rows):
                tensors[name.format(index)] = _reordered(name, row, header).clone()
        start = end
    return tensors


def _config(header: _Header) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": header.model_dim,
        "intermediate_size": header.feedforward_dim,
        "num_hidden_layers": header.num_layers,
        "num_attention_heads": header.num_heads,
        "num_key_value_heads": header.num_key_value_heads,
        "max_position_embeddings": header.context_length,
        "vocab_size": abs(header.vocab_size),
        "tie_word_embeddings": header.tie_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _read_vocabulary(path: Path) -> Tokenizer:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    tokens, scores, offset = [], [], 4
    while offset < len(content):
        score, length = struct.unpack_from("<fi", content, offset) if offset + 8 <= len(content) else (0.0, -1)
        offset += 8
        if not 0 <= length <= len(content) - offset:
            raise DataError(f"{path} is damaged: it ends within token {len(tokens)}, at {len(content):,} bytes")
        tokens.append(content[offset : offset + length].decode(errors="replace").replace(" ", "\u2581"))
        scores.append(score)
        offset += length
    num_first = 3 + _NUM_BYTES
    byte_names = [f"<0x{byte:02X}>" for byte in range(_NUM_BYTES)]
    if tokens[3:num_first] != byte_names:
        raise DataError(f"{path} is not a llama2.c vocabulary: its fourth and following tokens are not the 256 bytes")
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * _NUM_BYTES]
    kinds += [TokenType.NORMAL] * (len(tokens) - num_first)
    named = [UNKNOWN, START, END, *tokens[3:]]
    inner = sentencepiece_tokenizer(GGUFVocabulary(named, [int(kind) for kind in kinds], scores=scores))
    return Tokenizer(with_start_token(inner, START))


def _find_vocabulary(path: Path) -> Path:
    default = path.with_name("tokenizer.bin")
    found = [default] if default.is_file() else sorted(path.parent.glob("tok*.bin"))
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise DataError(
            f"{path} needs its vocabulary in the same folder, as tokenizer.bin or as the only tok*.bin, got {names}"
        )
    return found[0]


def _reordered(name: str, weight: Tensor, header: _Header) -> Tensor:
    if "q_proj" in name:
        return halves_from_pairs(weight, header.num_heads)
    if "k_proj" in name:
        return halves_from_pairs(weight, header.num_key_value_heads)
    return weight
