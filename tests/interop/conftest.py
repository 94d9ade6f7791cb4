"""Tiny GGUF files, written by the package that llama.cpp's own converter writes with."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from regard.data.codecs import Codec, NumberCodec
from regard.interop.hf.architectures import ARCHITECTURES, architecture_name
from regard.interop.hf.weights import read_weight
from regard.interop.model import ExportableModel
from regard.models.transformer import Transformer
from regard.runs.export import exportable_model
from regard.tasks.choices import READING_DEFAULTS
from regard.tasks.registry import make_task, task_for_head
from regard.tasks.task import ImportedCodecs
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.checkpoints import load_weights, weights_of
from regard.training.settings import ResolvedSettings

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "\u0120 w", "o r", "\u0120w or", "1 2", "12 3", "' s", "' S"]


@pytest.fixture
def byte_level() -> dict[str, Any]:
    """A byte-level tokenizer of 269 tokens: three that mark, the bytes, and what the merges make."""
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }


@pytest.fixture
def write_file(tmp_path: Path, byte_level: dict[str, Any]) -> Callable[..., Path]:
    """Write metadata and tensors; a tensor may be packed already, and then comes with its type.

    Where the metadata has no tokenizer, it is the byte-level one.
    """
    gguf = pytest.importorskip("gguf")

    def write(
        architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], *, types: Mapping[str, str] = {}
    ) -> Path:
        path = tmp_path / f"{architecture}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        own = {} if "tokenizer.ggml.model" in metadata else byte_level
        for key, value in {**own, **metadata}.items():
            kind = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind)
        for name, tensor in tensors.items():
            kind = gguf.GGMLQuantizationType[types.get(name, "F32")]
            packed = tensor if tensor.dtype == np.uint8 else gguf.quantize(np.asarray(tensor, np.float32), kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def transformer_from() -> Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Transformer]:
    """Our model with the weights of a checkpoint."""

    def build(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Transformer:
        architecture = ARCHITECTURES[architecture_name(config)]
        model = Transformer(architecture.read_config(config), config["vocab_size"])
        own, names = weights_of(model), architecture.weight_names(config)
        load_weights(model, {name: read_weight(names[name], tuple(own[name].shape), tensors) for name in own})
        return model.eval()

    return build


@pytest.fixture
def shuffled() -> Callable[[np.ndarray, int], np.ndarray]:
    """Rows in llama.cpp's order: row i of the first half of a head comes to 2i, of the second to 2i + 1."""

    def shuffle(weight: np.ndarray, heads: int) -> np.ndarray:
        found = np.empty_like(weight)
        size = len(weight) // heads
        for head in range(heads):
            for row in range(size // 2):
                found[head * size + 2 * row] = weight[head * size + row]
                found[head * size + 2 * row + 1] = weight[head * size + size // 2 + row]
        return found

    return shuffle


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["the heather there", "in the other theatre 123"] * 20, "bpe", 290)


@pytest.fixture
def settings_with() -> Callable[..., ResolvedSettings]:
    """Settings of a run whose model has this head."""

    def make(kind: Any, model: Mapping[str, Any], *, head: Any = None, task: Any = None) -> ResolvedSettings:
        of_task = task_for_head(kind)
        values = {
            "preset": "tiny",
            "task": {"name": of_task.name, **of_task.imported_settings(max_length=13, window=13), **(task or {})},
            "model": dict(model),
            "head": {"pooling": "mean", **(head or {})},
            "data": {},
            "train": {**READING_DEFAULTS, "batch_tokens": 100, "learning_rate": 0.001, "max_steps": 1},
        }
        return ResolvedSettings.read(values)

    return make


@pytest.fixture
def codecs_with(tokenizer: Tokenizer) -> Callable[[Any], dict[str, Codec]]:
    """The codecs of a run whose model has this head: three labels, or numbers of mean 3 and standard deviation 2."""

    def make(kind: Any) -> dict[str, Codec]:
        codecs = task_for_head(kind).imported_codecs(ImportedCodecs(tokenizer, ("a", "b", "c")))
        return {**codecs, "label": NumberCodec(3.0, 2.0)} if kind == "number" else codecs

    return make


@pytest.fixture
def exportable(
    settings_with: Callable[..., ResolvedSettings], codecs_with: Callable[[Any], dict[str, Codec]]
) -> Callable[..., ExportableModel]:
    """A model with this head and config, with random weights, of which none is zero."""

    def make(kind: str, model: Mapping[str, Any], *, head: Any = None, task: Any = None, **more: Any) -> Any:
        settings = settings_with(kind, model, head=head, task=task)
        bound = make_task(settings.task, codecs_with(kind))
        made = bound.build(settings.model, settings.head)
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return exportable_model(settings, bound, made.float().eval(), **more)

    return make
