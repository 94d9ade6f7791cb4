"""Each way of telling positions apart, against its formula or its defining property."""

import math

import pytest
import torch

from regard.errors import ConfigError
from regard.nn.attention import Lookup, MultiHeadAttention
from regard.nn.positions import (
    ALiBi,
    Learned,
    PositionEncoding,
    RelativeBias,
    RelativeKeys,
    Rotary,
    Sinusoidal,
    alibi_slopes,
    rotate,
)
from regard.nn.similarity import DotProduct

TIME, HEADS, HEAD = 7, 3, 10


@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_sinusoids_follow_the_formula(base: float):
    table = Sinusoidal(HEAD, base=base)(torch.arange(TIME), torch.arange(TIME)).embeddings
    for t in range(TIME):
        for i in range(HEAD // 2):
            angle = t / base ** (2 * i / HEAD)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle))
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle))


def test_a_rotated_score_depends_on_distance_alone():
    q, k = torch.randn(2, 1, HEADS, 1, HEAD)
    rotary = Rotary(HEAD)

    def score(i: int, j: int) -> torch.Tensor:
        turned = [rotate(x, rotary(torch.tensor([p]), torch.tensor([p])).rotation) for x, p in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum(-1)

    torch.testing.assert_close(score(3, 11), score(103, 111))
    assert not torch.allclose(score(3, 11), score(3, 12))


def test_a_rotation_keeps_lengths_and_leaves_position_zero_alone():
    x = torch.randn(2, HEADS, TIME, HEAD)
    turned = rotate(x, Rotary(HEAD)(torch.arange(TIME), torch.arange(TIME)).rotation)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_a_rotation_is_a_multiplication_of_complex_numbers():
    x = torch.randn(1, HEADS, TIME, HEAD)
    angles = torch.arange(TIME)[:, None] / 10_000 ** (torch.arange(0, HEAD, 2) / HEAD)
    first, second = x.chunk(2, dim=-1)
    expected = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    turned = rotate(x, Rotary(HEAD)(torch.arange(TIME), torch.arange(TIME)).rotation)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], dim=-1))


def test_alibi_slopes_of_powers_of_two_are_a_geometric_sequence():
    assert alibi_slopes(8) == [2.0**-h for h in range(1, 9)]


def test_alibi_slopes_of_other_counts_interleave():
    assert alibi_slopes(3) == [2**-4, 2**-8, 2**-2]


def test_alibi_falls_linearly_with_distance():
    bias = ALiBi(2)(torch.arange(2, 4), torch.arange(4)).bias
    assert bias.shape == (2, 2, 4)
    torch.testing.assert_close(bias[0, 1], -alibi_slopes(2)[0] * torch.tensor([3.0, 2.0, 1.0, 0.0]))


def test_relative_buckets_are_exact_when_near_and_shared_when_far():
    both = RelativeBias(HEADS, num_buckets=32, max_distance=128)
    offsets = torch.tensor([[-200, -128, -7, -1, 0, 1, 7, 128, 200]])
    assert both.bucket(offsets).tolist() == [[15, 15, 7, 1, 0, 17, 23, 31, 31]]
    causal = RelativeBias(HEADS, is_causal=True, num_buckets=32, max_distance=128)
    assert causal.bucket(torch.tensor([[-15, -3, 0, 4]])).tolist() == [[15, 3, 0, 0]]


def test_relative_buckets_never_shrink_with_distance():
    buckets = RelativeBias(HEADS, is_causal=True).bucket(-torch.arange(300)[None])[0]
    assert (buckets.diff() >= 0).all()
    assert buckets.max() == 31


def test_relative_bias_depends_on_the_offset_alone():
    scheme = RelativeBias(HEADS)
    near = scheme(torch.arange(5), torch.arange(5)).bias
    far = scheme(torch.arange(50, 55), torch.arange(50, 55)).bias
    torch.testing.assert_close(near, far)
    assert not torch.allclose(near[:, 0, 1], near[:, 1, 0])


def test_learned_positions_are_rows_of_a_table():
    scheme = Learned(11, HEAD)
    assert torch.equal(scheme(torch.tensor([3, 5]), torch.arange(6)).embeddings, scheme.table.weight[[3, 5]])


@pytest.mark.parametrize("max_distance", [1, 3, 100])
def test_relative_keys_follow_equation_5(max_distance: int):
    """Shaw et al. (2018): e_ij = q_i (k_j + a_ij) / sqrt(d), with a_ij clipped at the greatest distance."""
    scheme = RelativeKeys(HEAD, max_distance=max_distance)
    q, k = torch.randn(2, HEADS, 5, HEAD), torch.randn(2, HEADS, TIME, HEAD)
    encoding = scheme(torch.arange(2, TIME), torch.arange(TIME))
    scores = DotProduct(HEAD**-0.5)(q, k) + encoding.bias_for(q)
    for b in range(2):
        for h in range(HEADS):
            for i in range(5):
                for j in range(TIME):
                    offset = max(-max_distance, min(max_distance, j - (i + 2)))
                    a = scheme.table.weight[offset + max_distance]
                    expected = torch.dot(q[b, h, i], k[b, h, j] + a) / math.sqrt(HEAD)
                    torch.testing.assert_close(scores[b, h, i, j], expected)


def test_relative_keys_beyond_the_greatest_distance_are_one():
    keys = RelativeKeys(HEAD, max_distance=2)(torch.tensor([5]), torch.arange(11)).relative_keys[0]
    assert all(torch.equal(keys[j], keys[3]) for j in range(3))
    assert all(torch.equal(keys[j], keys[7]) for j in range(7, 11))
    assert len({tuple(key.tolist()) for key in keys}) == 5


def test_relative_keys_depend_on_the_offset_alone():
    scheme = RelativeKeys(HEAD, max_distance=3)
    near = scheme(torch.arange(5), torch.arange(5)).relative_keys
    assert torch.equal(near, scheme(torch.arange(50, 55), torch.arange(50, 55)).relative_keys)
    assert not torch.allclose(near[0, 1], near[1, 0])


def test_attention_by_relative_keys_does_not_depend_on_absolute_positions():
    """Masked positions before the sequence shift it and change nothing."""
    attention = MultiHeadAttention(HEADS * HEAD, HEADS)
    scheme = RelativeKeys(HEAD, max_distance=3)
    x = torch.randn(2, TIME, HEADS * HEAD)
    moved = torch.cat([torch.randn(2, 4, HEADS * HEAD), x], dim=1)
    mask = (torch.arange(TIME + 4) >= 4)[None, None, None]
    here = attention(x, positions=scheme(torch.arange(TIME), torch.arange(TIME)))
    there = attention(moved, mask=mask, positions=scheme(torch.arange(TIME + 4), torch.arange(TIME + 4)))
    torch.testing.assert_close(there[:, 4:], here)
    assert not torch.allclose(attention(x), here)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_relative_keys_and_a_bias_are_both_added_to_the_scores(temperature: float):
    q, k, v = torch.randn(2, HEADS, TIME, HEAD), *torch.randn(2, 2, HEADS, TIME, HEAD)
    relative, bias = torch.randn(TIME, TIME, HEAD), torch.randn(1, HEADS, TIME, TIME)
    scores = torch.einsum("bhqkd,bhqd->bhqk", k[:, :, None] + relative, q) / math.sqrt(HEAD) + bias
    lookup = Lookup(DotProduct(HEAD**-0.5), temperature=temperature)
    found = lookup(q, k, v, bias=PositionEncoding(bias=bias, relative_keys=relative).bias_for(q))
    torch.testing.assert_close(found, (scores / temperature).softmax(dim=-1) @ v)


@pytest.mark.parametrize("scheme", [Sinusoidal, Rotary])
def test_pairs_need_an_even_width(scheme):
    with pytest.raises(ConfigError, match="even"):
        scheme(7)
