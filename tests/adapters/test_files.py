"""Adapters on disk."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.adapters.files import load_adapter, read_adapter, save_adapter, weights_hash
from regard.adapters.lora import LoraConfig, LoRALinear, add_lora, lora_parameters, lora_tensors, merge_lora
from regard.adapters.quantized import PackedLinear
from regard.errors import CheckpointError, ConfigError, DeviceError

INPUT, HIDDEN, OUTPUT = 7, 13, 5
KINDS: list[dict[str, Any]] = [{}, {"dora": True, "rank_stabilized": True, "dropout": 0.1}, {"bits": 4}, {"bits": 8}]


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(INPUT, HIDDEN), nn.Linear(HIDDEN, OUTPUT)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return x


@pytest.fixture(params=KINDS, ids=str)
def config(request: pytest.FixtureRequest) -> LoraConfig:
    return LoraConfig(rank=3, alpha=5.0, **request.param)


def saved(folder: Path, config: LoraConfig, **others: Any) -> tuple[Stack, Stack]:
    """A base, and a copy of it with an adapter, which lies in `folder`."""
    base = Stack()
    model = copy.deepcopy(base)
    add_lora(model, config)
    for parameter in lora_parameters(model):
        nn.init.normal_(parameter)
    save_adapter(folder, model, config, base=weights_hash(base), **others)
    return base, model.eval()


def test_a_saved_adapter_gives_the_same_outputs(config: LoraConfig, tmp_path: Path):
    base, model = saved(tmp_path / "new" / "folder", config)
    found = load_adapter(tmp_path / "new" / "folder", base)
    x = torch.randn(11, INPUT)
    assert torch.equal(base.eval()(x), model(x))
    assert found.config == config
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["adapter.safetensors", "adapter.toml"]


def test_a_head_and_labels_ride_along(tmp_path: Path):
    head = torch.randn(3, OUTPUT)
    note = {"labels": ["good", "bad"], "task": "classification", "head": {"pooling": "mean"}}
    saved(tmp_path, LoraConfig(), extras={"head.weight": head}, note=note)
    found = read_adapter(tmp_path)
    assert torch.equal(found.extras["head.weight"], head)
    assert found.note == note
    assert not any(name.startswith("head") for name in found.tensors)


def test_another_base_is_refused_with_both_hashes(tmp_path: Path):
    base, _ = saved(tmp_path, LoraConfig())
    other = Stack()
    mine, theirs = weights_hash(base)[:12], weights_hash(other)[:12]
    with pytest.raises(CheckpointError, match=f"trained beside weights {mine}, and these are {theirs}$"):
        load_adapter(tmp_path, other)
    assert not any(isinstance(module, LoRALinear) for module in other.modules())
    load_adapter(tmp_path, other, base=weights_hash(base))


def test_the_hash_is_that_of_the_weights_and_of_nothing_else():
    base = Stack()
    expected = weights_hash(base)
    model = copy.deepcopy(base)
    add_lora(model, LoraConfig(dora=True))
    assert weights_hash(model) == expected
    for parameter in lora_parameters(model):
        nn.init.normal_(parameter)
    assert weights_hash(model) == expected
    merge_lora(model)
    assert weights_hash(model) != expected
    assert weights_hash(base.float()) != expected
    base.double().get_parameter("blocks.0.weight").data[2, 3] += 1.0
    assert weights_hash(base) != expected


def test_packed_weights_have_no_hash():
    model = Stack()
    add_lora(model, LoraConfig(bits=4))
    with pytest.raises(ConfigError, match=r"before they are packed, got blocks\.0\.base in 4 bits"):
        weights_hash(model)


def test_a_changed_byte_is_noticed(tmp_path: Path):
    base, _ = saved(tmp_path, LoraConfig())
    path = tmp_path / "adapter.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged or another's"):
        load_adapter(tmp_path, base)


def test_what_is_missing_is_said(tmp_path: Path):
    base, _ = saved(tmp_path, LoraConfig())
    (tmp_path / "adapter.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*adapter\.safetensors"):
        load_adapter(tmp_path, base)
    (tmp_path / "adapter.toml").unlink()
    with pytest.raises(CheckpointError, match=r"has no adapter\.toml"):
        load_adapter(tmp_path, base)


def test_a_setting_that_is_not_known_is_named(tmp_path: Path):
    saved(tmp_path, LoraConfig())
    path = tmp_path / "adapter.toml"
    path.write_text(path.read_text().replace("rank =", "ranks ="))
    with pytest.raises(ConfigError, match=r"adapter\.toml: unknown setting lora\.ranks; did you mean lora\.rank"):
        read_adapter(tmp_path)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base, model = saved(tmp_path, LoraConfig())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(DeviceError, match="No space left on device"):
        save_adapter(tmp_path, model, LoraConfig(), base=weights_hash(base))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_adapter_is_small(tmp_path: Path):
    _, model = saved(tmp_path, LoraConfig(rank=1))
    learned = sum(tensor.numel() * tensor.element_size() for tensor in lora_tensors(model).values())
    assert (tmp_path / "adapter.safetensors").stat().st_size < learned + 1000
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
