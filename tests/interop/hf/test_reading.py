"""Hugging Face folders: what is read, and errors of one line."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from regard.errors import CheckpointError, DataError, RegardError
from regard.interop.hf.reading import read_checkpoint
from regard.text.tokenizer import train_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.json").write_text(train_tokenizer([], "bytes", 300).to_json())
    save_file({"a": torch.ones(3), "b": torch.zeros(2, 5)}, tmp_path / "model.safetensors")
    return tmp_path


def test_tensors_are_read_on_access(folder: Path):
    found = read_checkpoint(folder)
    assert sorted(found.tensors) == ["a", "b"]
    assert len(found.tensors) == 2
    assert "c" not in found.tensors
    assert torch.equal(found.tensors["a"], torch.ones(3, dtype=found.tensors["a"].dtype))
    assert found.name == folder.name
    assert found.chat_template is None


def test_special_tokens_are_read_as_strings_or_objects(folder: Path):
    table = {"eos_token": {"content": "</s>", "special": True}, "pad_token": "<pad>", "unk_token": None, "padding": "x"}
    (folder / "special_tokens_map.json").write_text(json.dumps(table))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "other", "bos_token": "<s>"}))
    expected = {"eos_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>"}
    assert read_checkpoint(folder).special_tokens == expected


def test_the_hash_is_that_of_the_weights(folder: Path):
    first = read_checkpoint(folder).content_hash
    (folder / "config.json").write_text(json.dumps({"model_type": "other"}))
    assert read_checkpoint(folder).content_hash == first
    save_file({"a": torch.zeros(3)}, folder / "model.safetensors")
    assert read_checkpoint(folder).content_hash != first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "is not the folder of a model: it has no config.json"),
        ("config.json", "{", "config.json is not JSON: "),
        ("config.json", "[1]", "config.json must contain an object, got list"),
        ("config.json", "[" * 100_000, "config.json is not JSON: "),
        ("config.json", b"\xff\xfe", "cannot read"),
        ("config.json", '{"quantization_config": {"bits": 4}}', "are quantized: only float16, bfloat16 and float32"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer_config.json", "nonsense", "tokenizer_config.json is not JSON"),
        ("model.safetensors", None, "has no weights: neither model.safetensors nor"),
        ("model.safetensors.index.json", "{}", "has no weight_map"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../model.safetensors"}}', "files of the same folder"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "files of the same folder, got 3"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "one.safetensors"}}', "no weights at"),
        ("model.safetensors.index.json", '{"weight_map": {"c": "model.safetensors"}}', "has no c, contrary to"),
    ],
)  # fmt: skip
def test_an_invalid_folder_is_an_error_of_one_line(folder: Path, name: str, content: str | bytes | None, message: str):
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RegardError) as error:
        read_checkpoint(folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_single_file_of_a_folder_is_an_error(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(DataError, match="is a file: a model is imported from the folder"):
        read_checkpoint(file)


def header(table: dict, size: int | None = None) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text


WHOLE = {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        header(WHOLE),
        header(WHOLE) + b"\x00" * 11,
        header(WHOLE, size=2**40) + b"\x00" * 12,
        header(WHOLE, size=2**63) + b"\x00" * 12,
        header(WHOLE, size=5) + b"\x00" * 12,
        header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}) + b"\x00" * 12,
        header({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 12]}}) + b"\x00" * 12,
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}) + b"\x00" * 12,
        header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [12, 0]}}) + b"\x00" * 12,
        header({"a": {"dtype": "F99", "shape": [3], "data_offsets": [0, 12]}}) + b"\x00" * 12,
        header({"a": {"dtype": "F32", "shape": [-3], "data_offsets": [0, 12]}}) + b"\x00" * 12,
        header({"a": 3}) + b"\x00" * 12,
        struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    ],
    ids=str,
)
def test_weights_with_an_invalid_header_or_truncated_are_damaged(folder: Path, content: bytes):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        dict(read_checkpoint(folder).tensors)
    assert "model.safetensors is damaged" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_changes_after_its_header_was_read_is_damaged(folder: Path):
    found = read_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(header(WHOLE))
    with pytest.raises(CheckpointError, match="damaged"):
        _ = found.tensors["a"]
    save_file({"c": torch.ones(3)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="damaged: a cannot be read"):
        _ = found.tensors["a"]
