"""The device and the precision."""

import pytest
import torch

from regard.errors import ConfigError, DeviceError
from regard.training.precision import choose_hardware, find_device, threads


def test_the_cpu_is_always_there():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("name", ["cuda:99", "cuda:12345678901234567890"])
def test_a_device_that_is_not_there(name: str):
    with pytest.raises(DeviceError, match=f"device {name} is not there"):
        find_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "", "mps"])
def test_a_name_that_is_no_device(name: str):
    with pytest.raises(ConfigError, match="a device is auto, cpu, cuda or cuda:N"):
        find_device(name)


def test_a_precision_that_is_asked_for_is_used_and_a_choice_is_explained():
    hardware = choose_hardware("cpu", "bfloat16", 22)
    assert (hardware.precision, hardware.reason) == ("bfloat16", "as set")
    with hardware.autocast():
        assert (torch.ones(3, 5, dtype=torch.float32) @ torch.ones(5, 2, dtype=torch.float32)).dtype == torch.bfloat16
    assert choose_hardware("cpu", "auto", 22).precision == "float32"
    assert "float32" in str(choose_hardware("cpu", "auto", 22))


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
