"""Gated convolution against its loop and against `F.conv1d`."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.convolution import GatedConvolution

# Every size is a different prime, so that no transposition passes unseen.
BATCH, TIME, MODEL = 3, 11, 7
EVERY_WINDOW = [
    (kernel_size, dilation, is_causal)
    for kernel_size in (1, 2, 3, 5)
    for dilation in (1, 2, 3)
    for is_causal in (True, False)
    if is_causal or kernel_size % 2
]
every_window = pytest.mark.parametrize(("kernel_size", "dilation", "is_causal"), EVERY_WINDOW)
every_causal_window = pytest.mark.parametrize(
    ("kernel_size", "dilation"), [window[:2] for window in EVERY_WINDOW if window[2]]
)


def make(kernel_size: int, dilation: int, *, is_causal: bool) -> GatedConvolution:
    return GatedConvolution(MODEL, kernel_size, is_causal=is_causal, dilation=dilation)


def kernel_of(layer: GatedConvolution) -> Tensor:
    """The weights in PyTorch's layout: outputs, inputs, kernel."""
    return layer.linear.weight.unflatten(1, (MODEL, -1))


def written_out(layer: GatedConvolution, x: Tensor) -> Tensor:
    """The definition, one place of one window at a time."""
    weight, outputs = kernel_of(layer), []
    kernel_size = weight.size(2)
    center = kernel_size - 1 if layer.is_causal else (kernel_size - 1) // 2
    for row in x:
        for t in range(len(row)):
            total = layer.linear.bias
            for place in range(kernel_size):
                position = t + (place - center) * layer.dilation
                if 0 <= position < len(row):
                    total = total + weight[:, :, place] @ row[position]
            passed, gate = total[:MODEL], total[MODEL:]
            outputs.append(passed / (1 + torch.exp(-gate)))
    return torch.stack(outputs).view(x.shape)


@every_window
def test_it_equals_its_loop(kernel_size: int, dilation: int, is_causal: bool):
    layer = make(kernel_size, dilation, is_causal=is_causal)
    x = torch.randn(BATCH, TIME, MODEL)
    torch.testing.assert_close(layer(x), written_out(layer, x))


@every_window
def test_it_matches_torch(kernel_size: int, dilation: int, is_causal: bool):
    layer = make(kernel_size, dilation, is_causal=is_causal)
    x = torch.randn(BATCH, TIME, MODEL)
    reach = (kernel_size - 1) * dilation
    sides = (reach, 0) if is_causal else (reach // 2, reach // 2)
    convolved = F.conv1d(F.pad(x.mT, sides), kernel_of(layer), layer.linear.bias, dilation=dilation)
    torch.testing.assert_close(layer(x), F.glu(convolved, dim=1).mT)


@every_window
def test_a_position_depends_on_its_window_only(kernel_size: int, dilation: int, is_causal: bool):
    layer = make(kernel_size, dilation, is_causal=is_causal)
    x = torch.randn(BATCH, TIME, MODEL, requires_grad=True)
    layer(x)[:, 5].sum().backward()
    center = kernel_size - 1 if is_causal else (kernel_size - 1) // 2
    window = {5 + (place - center) * dilation for place in range(kernel_size)}
    assert x.grad is not None
    for position in range(TIME):
        reached = x.grad[:, position] != 0
        assert reached.all() if position in window else not reached.any()


@every_causal_window
@pytest.mark.parametrize("pieces", [[1] * TIME, [2, 9], [5, 1, 1, 4], [TIME]])
def test_step_by_step_equals_all_at_once(kernel_size: int, dilation: int, pieces: list[int]):
    layer = make(kernel_size, dilation, is_causal=True)
    x = torch.randn(BATCH, TIME, MODEL)
    cache = layer.initial_cache(x)
    parts = [layer(piece, cache=cache) for piece in x.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x))
    assert cache.inputs.shape == (BATCH, (kernel_size - 1) * dilation, MODEL)


def test_a_selected_cache_continues_its_rows():
    layer = make(5, 2, is_causal=True)
    x, rows = torch.randn(BATCH, TIME, MODEL), torch.tensor([2, 0, 2, 1])
    cache = layer.initial_cache(x)
    layer(x[:, :7], cache=cache)
    torch.testing.assert_close(layer(x[rows, 7:], cache=cache.select(rows)), layer(x)[rows, 7:])


@every_window
def test_padding_changes_nothing(kernel_size: int, dilation: int, is_causal: bool):
    layer = make(kernel_size, dilation, is_causal=is_causal)
    x, lengths = torch.randn(BATCH, TIME, MODEL), [11, 2, 5]
    mask = torch.arange(TIME) < torch.tensor(lengths)[:, None]
    padded = layer(x, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(padded[row, :length], layer(x[row : row + 1, :length])[0])


def test_every_parameter_gets_a_gradient():
    layer = make(3, 2, is_causal=False)
    layer(torch.randn(BATCH, TIME, MODEL)).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert (parameter.grad != 0).all()


def test_a_centered_window_is_odd_and_cannot_go_step_by_step():
    with pytest.raises(ConfigError, match="kernel_size must be odd for a centered window, got 4"):
        make(4, 1, is_causal=False)
    with pytest.raises(AssertionError, match="centered"):
        make(3, 1, is_causal=False).initial_cache(torch.zeros(BATCH, 0, MODEL))


def test_a_gate_wide_open_leaves_a_linear_convolution():
    layer = make(3, 1, is_causal=True)
    nn.init.zeros_(layer.linear.weight[MODEL:].detach())
    nn.init.constant_(layer.linear.bias[MODEL:].detach(), 50.0)
    x, y = torch.randn(2, BATCH, TIME, MODEL)
    nn.init.zeros_(layer.linear.bias[:MODEL].detach())
    torch.testing.assert_close(layer(x + y), layer(x) + layer(y))
