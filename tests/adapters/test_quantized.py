"""Frozen weights in 8 or 4 bits."""

import pytest
import torch
from torch import Tensor, nn

from regard.adapters.lora import LoraConfig, add_lora, merge_lora, quantize_body
from regard.adapters.quantized import Bits, QuantizedLinear, quantize_layers
from regard.errors import ConfigError

INPUT, OUTPUT = 149, 31
"""Two groups of 64 and a part of a third."""


def make_linear(*, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(INPUT, OUTPUT, bias=bias)
    nn.init.normal_(linear.weight)
    linear.weight.data[5] *= 1000.0
    linear.weight.data[7] = 0.0
    linear.weight.data[11].abs_()
    linear.weight.data[13, 64:128] = -3.0
    return linear


def scales_of(layer: QuantizedLinear) -> Tensor:
    """The scale of each weight."""
    if layer.bits == 8:
        return layer.scales[:, None].expand(OUTPUT, INPUT)
    return layer.scales.repeat_interleave(64, dim=1)[:, :INPUT]


@pytest.fixture(params=[8, 4])
def bits(request: pytest.FixtureRequest) -> Bits:
    return request.param


def test_no_weight_moves_by_more_than_half_its_scale(bits: Bits):
    linear = make_linear()
    layer = QuantizedLinear(linear, bits=bits)
    moved = (layer.matrix() - linear.weight.detach()).abs()
    assert (moved <= scales_of(layer) * (0.5 + 1e-9)).all()


def test_the_grid_is_as_fine_as_its_bits_allow(bits: Bits):
    linear = make_linear()
    layer = QuantizedLinear(linear, bits=bits)
    weight = linear.weight.detach()
    if bits == 8:
        torch.testing.assert_close(layer.scales * 127, weight.abs().amax(dim=1))
        return
    for group in range(3):
        part = weight[:, 64 * group : 64 * (group + 1)]
        spread = part.amax(dim=1).clamp(min=0.0) - part.amin(dim=1).clamp(max=0.0)
        torch.testing.assert_close(layer.scales[:, group] * 15, spread)


def test_every_weight_is_rounded_to_the_nearest_level():
    linear = make_linear()
    layer = QuantizedLinear(linear, bits=4)
    assert layer.zeros is not None
    zeros = layer.zeros.repeat_interleave(64, dim=1)[:, :INPUT]
    grid = (torch.arange(16)[:, None, None] - zeros.double()) * scales_of(layer)
    nearest = (grid - linear.weight.detach()).abs().amin(dim=0)
    torch.testing.assert_close((layer.matrix() - linear.weight.detach()).abs(), nearest)


def test_zeros_stay_zeros(bits: Bits):
    linear = make_linear()
    linear.weight.data[:, 3] = 0.0
    matrix = QuantizedLinear(linear, bits=bits).matrix()
    assert (matrix[:, 3] == 0).all()
    assert (matrix[7] == 0).all()


def test_packing_twice_changes_nothing_more(bits: Bits):
    layer = QuantizedLinear(make_linear(), bits=bits)
    again = QuantizedLinear(layer.dequantized(), bits=bits)
    if bits == 8:
        torch.testing.assert_close(again.matrix(), layer.matrix())
    else:
        assert ((again.matrix() - layer.matrix()).abs() <= scales_of(again) * (0.5 + 1e-9)).all()


@pytest.mark.parametrize("bias", [True, False])
def test_product_and_gradient_are_those_of_the_matrix(bits: Bits, bias: bool):
    layer = QuantizedLinear(make_linear(bias=bias), bits=bits)
    x = torch.randn(3, 5, INPUT, requires_grad=True)
    gradient = torch.randn(3, 5, OUTPUT)
    plain = layer.dequantized()
    for found, expected in zip(
        (layer(x), *torch.autograd.grad(layer(x), x, gradient)),
        (plain(x), *torch.autograd.grad(plain(x), x, gradient)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


def test_the_matrix_is_not_kept_between_the_passes(bits: Bits):
    layer = QuantizedLinear(make_linear(), bits=bits)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(torch.randn(5, INPUT, requires_grad=True))
    assert kept == []


def test_what_a_layer_takes_in_bytes():
    """Of float32: four bytes a weight, one, and a half; with the scales, the zero points and the bias."""
    num_inputs, num_outputs = 384, 1536
    linear = nn.Linear(num_inputs, num_outputs).float()
    whole = num_inputs * num_outputs
    groups = whole // 64
    bias = 4 * num_outputs
    assert _num_bytes(linear) == 4 * whole + bias
    assert _num_bytes(QuantizedLinear(linear, bits=8)) == whole + 4 * num_outputs + bias
    assert _num_bytes(QuantizedLinear(linear, bits=4)) == whole // 2 + (4 + 1) * groups + bias


def _num_bytes(layer: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*layer.parameters(), *layer.buffers()))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(INPUT, INPUT) for _ in range(2)])
        self.head = nn.Linear(INPUT, 3)


def test_the_body_is_packed_and_the_head_is_not():
    model = Stack()
    add_lora(model, LoraConfig(rank=2, targets=["blocks.1"], bits=4))
    assert isinstance(model.blocks[0], QuantizedLinear)
    assert isinstance(model.get_submodule("blocks.1.base"), QuantizedLinear)
    assert type(model.head) is nn.Linear
    merge_lora(model)
    assert [type(block) for block in model.blocks] == [nn.Linear, nn.Linear]


def test_layers_outside_the_body_are_packed_where_they_are_adapted():
    model = Stack()
    add_lora(model, LoraConfig(rank=2, targets=["head"], bits=8))
    assert isinstance(model.get_submodule("head.base"), QuantizedLinear)


def test_other_bits_than_there_are_are_refused():
    model = Stack()
    quantize_body(model, bits=8)
    quantize_layers(model, ["blocks.0"], bits=8)
    with pytest.raises(ConfigError, match=r"blocks\.0 is quantized to 8 bits already, got bits=4"):
        quantize_layers(model, ["blocks.0"], bits=4)


def test_a_packed_layer_survives_a_state_dict(bits: Bits):
    layer, other = QuantizedLinear(make_linear(), bits=bits), QuantizedLinear(make_linear(), bits=bits)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.matrix(), layer.matrix())
