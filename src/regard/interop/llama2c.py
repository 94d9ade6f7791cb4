"""Models and vocabularies in the files of llama2.c (version 0, float32).

A file of weights is seven integers and then the tensors, each for all layers
at once. It says neither of which kind it is nor where it ends, so its size is
checked against what the integers ask for. https://github.com/karpathy/llama2.c

A file of a vocabulary is one integer, and for each token its score, its length
and its bytes; the first are the unknown token, the start, the end, and the 256
bytes.

Rotary positions turn neighboring coordinates (2i, 2i + 1) of a head here, as in
GGUF files, and coordinates (i, i + head/2) in Hugging Face's layout: rows of
the query and key matrices are reordered.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import DataError
from regard.interop.checkpoint import Foreign, hash_files
from regard.interop.gguf_tokenizer import Kind, Vocabulary, sentencepiece_tokenizer, started
from regard.text.tokenizer import END, START, UNKNOWN, Tokenizer

_NEWER = 0x616B3432
"""What files of version 1 and 2 begin with."""
_NUM_BYTES = 256


class Header(NamedTuple):
    """The seven integers; a negative `vocab_size` says that the output projection is a matrix of its own."""

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
"""A table that follows from the positions, and is passed over."""


def read_llama2c(path: Path, vocabulary: Path | None = None) -> Foreign:
    """The model in a file of weights, with the vocabulary in another; unset, the one beside it."""
    header = read_header(path)
    vocabulary = _vocabulary_beside(path) if vocabulary is None else vocabulary
    tokenizer = read_vocabulary(vocabulary)
    if tokenizer.vocab_size != abs(header.vocab_size):
        raise DataError(
            f"{vocabulary} does not belong to {path}: it has {tokenizer.vocab_size:,} tokens, "
            f"the model knows {abs(header.vocab_size):,}"
        )
    return Foreign(
        name=path.stem,
        config=read_config(path),
        tensors=read_tensors(path),
        tokenizer=tokenizer.to_json(),
        content_hash=hash_files([path]),
    )


def read_header(path: Path) -> Header:
    """The first seven integers, where they can be those of a model and the file is as long as they ask for."""
    try:
        with open(path, "rb") as file:
            begin = file.read(4 * len(Header._fields))
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if len(begin) >= 4 and struct.unpack("<I", begin[:4])[0] == _NEWER:
        raise DataError(f"{path} is a llama2.c file of a later version, only version 0 can be read")
    if len(begin) < 4 * len(Header._fields):
        raise DataError(f"{path} has {size} bytes, the header of a llama2.c file alone has {4 * len(Header._fields)}")
    header = Header(*struct.unpack(f"<{len(Header._fields)}i", begin))
    sizes = (*header[:5], abs(header.vocab_size), header.context_length)
    is_possible = min(sizes) > 0 and not header.model_dim % header.num_heads
    if not is_possible or header.head_dim % 2 or header.num_heads % header.num_key_value_heads:
        raise DataError(f"{path} is not a llama2.c file: it begins with {', '.join(map(str, header))}")
    expected = len(begin) + 4 * sum(int(np.prod(shape, dtype=object)) for _, shape in header.shapes())
    if size != expected:
        raise DataError(f"{path} is damaged: it has {size:,} bytes, its header asks for {expected:,}")
    return header


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The weights in Hugging Face's names and layout."""
    header = read_header(path)
    numbers = np.memmap(path, dtype="<f4", mode="r", offset=4 * len(header))
    tensors: dict[str, Tensor] = {}
    place = 0
    for name, shape in header.shapes():
        end = place + int(np.prod(shape))
        if name != _ROTATION:
            tensor = torch.from_numpy(np.array(numbers[place:end], np.float32).reshape(shape))
            rows = tensor if "{}" in name else tensor[None]
            for index, row in enumerate(rows):
                tensors[name.format(index)] = _turned(name, row, header).clone()
        place = end
    return tensors


def read_config(path: Path) -> dict[str, object]:
    """The shape of the model in the names of Hugging Face's `config.json`."""
    header = read_header(path)
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


def read_vocabulary(path: Path) -> Tokenizer:
    """The tokenizer in a `tokenizer.bin`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    tokens, scores, place = [], [], 4
    while place < len(content):
        score, length = struct.unpack_from("<fi", content, place) if place + 8 <= len(content) else (0.0, -1)
        place += 8
        if not 0 <= length <= len(content) - place:
            raise DataError(f"{path} is damaged: token {len(tokens)} is cut off at its {len(content):,} bytes")
        tokens.append(content[place : place + length].decode(errors="replace").replace(" ", "\u2581"))
        scores.append(score)
        place += length
    num_first = 3 + _NUM_BYTES
    byte_names = [f"<0x{byte:02X}>" for byte in range(_NUM_BYTES)]
    if tokens[3:num_first] != byte_names:
        raise DataError(f"{path} is not a llama2.c vocabulary: its tokens from the fourth on are not the 256 bytes")
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.BYTE] * _NUM_BYTES]
    kinds += [Kind.NORMAL] * (len(tokens) - num_first)
    named = [UNKNOWN, START, END, *tokens[3:]]
    inner = sentencepiece_tokenizer(Vocabulary(named, [int(kind) for kind in kinds], scores=scores))
    return Tokenizer(started(inner, START))


def halves_from_pairs(weight: Float[Tensor, "rows *columns"], num_heads: int) -> Float[Tensor, "rows *columns"]:
    """Rows of heads whose rotary planes are neighbors (2i, 2i + 1), with planes (i, i + head/2)."""
    return weight.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def pairs_from_halves(weight: Float[Tensor, "rows *columns"], num_heads: int) -> Float[Tensor, "rows *columns"]:
    """What undoes `halves_from_pairs`."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _vocabulary_beside(path: Path) -> Path:
    usual = path.with_name("tokenizer.bin")
    found = [usual] if usual.is_file() else sorted(path.parent.glob("tok*.bin"))
    if len(found) != 1:
        told = ", ".join(each.name for each in found) or "none"
        raise DataError(f"{path} needs its vocabulary beside it, as tokenizer.bin or as the only tok*.bin, got {told}")
    return found[0]


def _turned(name: str, weight: Tensor, header: Header) -> Tensor:
    if "q_proj" in name:
        return halves_from_pairs(weight, header.num_heads)
    if "k_proj" in name:
        return halves_from_pairs(weight, header.num_key_value_heads)
    return weight
