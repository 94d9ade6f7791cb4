"""Norms, feed-forward networks, masks and the cache, against their formulas."""

import pytest
import torch
from torch import nn

from regard.nn.feedforward import FeedForward
from regard.nn.kv_cache import KVCache
from regard.nn.masks import causal_mask, padding_mask
from regard.nn.norms import Norm, make_norm

MODEL, WIDE = 11, 23


def test_layer_norm_centres_and_scales():
    norm = make_norm("layer", MODEL)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(3, 5, MODEL)
    centred = x - x.mean(-1, keepdim=True)
    expected = norm.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + norm.bias
    torch.testing.assert_close(norm(x), expected)


def test_rms_norm_only_scales():
    norm = make_norm("rms", MODEL)
    nn.init.normal_(norm.weight)
    x = torch.randn(3, 5, MODEL)
    torch.testing.assert_close(norm(x), norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())


def activations(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "relu": x.clamp(min=0),
        "squared-relu": x.clamp(min=0) ** 2,
        "gelu": x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    }


def test_feedforward_follows_the_formula():
    x = torch.randn(3, 5, MODEL)
    for name in ("relu", "squared-relu", "gelu"):
        layer = FeedForward(MODEL, WIDE, activation=name)
        hidden = x @ layer.input.weight.T + layer.input.bias
        expected = activations(hidden)[name] @ layer.output.weight.T + layer.output.bias
        torch.testing.assert_close(layer(x), expected)


def test_swiglu_gates():
    layer = FeedForward(MODEL, WIDE, activation="swiglu", bias=False)
    x = torch.randn(3, 5, MODEL)
    gate, value = x @ layer.gate.weight.T, x @ layer.input.weight.T
    torch.testing.assert_close(layer(x), (gate * torch.sigmoid(gate) * value) @ layer.output.weight.T)


def test_causal_mask_counts_from_the_last_key():
    mask = causal_mask(3, 5)[0, 0]
    assert mask.sum(-1).tolist() == [3, 4, 5]


def test_padding_mask_excludes_what_follows_the_end():
    assert padding_mask(torch.tensor([2, 5]), 5)[:, 0, 0].sum(-1).tolist() == [2, 5]


def test_a_cache_grows_without_losing_anything():
    cache = KVCache.empty(torch.empty(2, 3, 0, 5))
    k, v = torch.randn(2, 2, 3, 41, 5)
    for start in range(41):
        keys, values = cache.append(k[:, :, start : start + 1], v[:, :, start : start + 1])
    assert torch.equal(keys, k)
    assert torch.equal(values, v)


def test_selected_rows_of_a_cache_go_their_own_way():
    cache = KVCache.empty(torch.empty(2, 3, 0, 5))
    first, second = torch.randn(2, 2, 3, 1, 5)
    cache.append(first, first)
    chosen = cache.select(torch.tensor([1, 1, 0]))
    keys, _ = chosen.append(second[[1, 1, 0]], second[[1, 1, 0]])
    assert torch.equal(keys[:, :, 0], first[[1, 1, 0], :, 0])
    assert cache.length == 1


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_under_autocast_a_norm_keeps_the_precision_of_its_input(norm: Norm):
    layer = make_norm(norm, 7).float()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, mean=1.0)
    x = torch.randn(5, 7, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), layer(x.float()), atol=0.05, rtol=0.02)  # bfloat16 has 8 bits
