"""The device and the precision."""

import os

import pytest
import torch

from regard.errors import ConfigError, DeviceError
from regard.nn.precision import cpu_has_bfloat16
from regard.training.precision import choose_hardware, choose_threads, find_device, num_cores, threads


def test_the_cpu_is_always_found():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("name", ["cuda:99", "cuda:12345678901234567890"])
def test_a_missing_device_is_an_error(name: str):
    with pytest.raises(DeviceError, match=name):
        find_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "", "mps"])
def test_an_invalid_device_name_is_an_error(name: str):
    with pytest.raises(ConfigError, match="a device is auto, cpu, cuda or cuda:N"):
        find_device(name)


def test_the_error_names_the_devices_of_the_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(
        ConfigError, match=r"got 'mps'; this machine has cpu \(mps is not supported\), and auto is cpu$"
    ):
        find_device("mps")
    with pytest.raises(DeviceError, match="device cuda does not exist: this machine has cpu "):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        DeviceError, match=r"cuda:2 does not exist: this machine has cpu and cuda:0 to cuda:1 .* auto is cuda$"
    ):
        find_device("cuda:2")


def test_in_float64_nothing_is_cast():
    """As in a check of accumulated batches, whose model may be one that is trained in bfloat16."""
    assert torch.get_default_dtype() == torch.float64
    assert choose_hardware("cpu", "auto", 1024).precision == "float32"
    with choose_hardware("cpu", "bfloat16", 22).autocast():
        assert (torch.ones(3, 5) @ torch.ones(5, 2)).dtype == torch.float64


@pytest.mark.usefixtures("single_precision")
def test_a_precision_that_is_set_is_used_and_a_choice_has_a_reason():
    hardware = choose_hardware("cpu", "bfloat16", 22)
    assert hardware.precision == "bfloat16"
    with hardware.autocast():
        assert (torch.ones(3, 5, dtype=torch.float32) @ torch.ones(5, 2, dtype=torch.float32)).dtype == torch.bfloat16
    assert choose_hardware("cpu", "auto", 22).precision == "float32"
    assert "float32" in str(choose_hardware("cpu", "auto", 22))
    assert choose_hardware("cpu", "auto", 64).precision == ("bfloat16" if cpu_has_bfloat16() else "float32")


def test_threads_are_chosen_within_the_cores_of_this_process():
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
    assert choose_threads() == (1, "")  # tests have one thread
    with threads(2):
        number, reason = choose_threads()
    assert 1 <= number <= 2
    assert bool(reason) == (number == 1)


def test_a_number_of_threads_is_part_of_the_hardware():
    assert "CPU, 3 threads" in str(choose_hardware("cpu", "auto", 22, threads=3))


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
