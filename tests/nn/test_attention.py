"""Attention against PyTorch's own, and against its own readable form."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.explanation.record import record_attention
from regard.nn.attention import Lookup, attend, attend_fused
from regard.nn.cache import KeyValues
from regard.nn.multihead import MultiHeadAttention
from regard.nn.positions import ALiBi, Placement, RelativeBias, RelativeKeys, Rotary
from regard.nn.similarity import make_similarity

# Every size is a different prime, so that no transposition passes unseen.
BATCH, QUERY, KEY, HEADS, HEAD = 3, 5, 7, 2, 11
MODEL = HEADS * HEAD


def lookup(head_dim: int, num_heads: int, **options: Any) -> Lookup:
    return Lookup(make_similarity("scaled-dot", head_dim, num_heads), **options)


def reference_for(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's own attention, carrying our weights."""
    for parameter in ours.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.5)
    theirs = nn.MultiheadAttention(MODEL, HEADS, batch_first=True)
    projections = (ours.query, ours.key, ours.value)
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([p.weight for p in projections]),
            "in_proj_bias": torch.cat([p.bias for p in projections]),
            "out_proj.weight": ours.output.weight,
            "out_proj.bias": ours.output.bias,
        }
    )
    return theirs


def test_matches_torch_cross_attention():
    ours = MultiHeadAttention(MODEL, HEADS)
    theirs = reference_for(ours)
    x, memory = torch.randn(BATCH, QUERY, MODEL), torch.randn(BATCH, KEY, MODEL)
    mask = torch.rand(BATCH, 1, QUERY, KEY) > 0.3
    mask[..., 0] = True
    expected, expected_weights = theirs(
        x, memory, memory, attn_mask=~mask.repeat_interleave(HEADS, dim=1).flatten(0, 1), average_attn_weights=False
    )
    torch.testing.assert_close(ours(x, memory, mask), expected)
    with record_attention(ours) as weights:
        torch.testing.assert_close(ours(x, memory, mask), expected)
    torch.testing.assert_close(weights[""], expected_weights)


def test_matches_torch_causal_self_attention():
    ours = MultiHeadAttention(MODEL, HEADS, make_lookup=partial(lookup, is_causal=True))
    theirs = reference_for(ours)
    x = torch.randn(BATCH, QUERY, MODEL)
    future = torch.ones(QUERY, QUERY, dtype=torch.bool).triu(diagonal=1)
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=future, need_weights=False)[0])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shared", [1, 2])
def test_fused_and_plain_agree_even_where_a_query_sees_nothing(has_bias: bool, shared: int):
    q = torch.randn(BATCH, HEADS, QUERY, HEAD)
    k, v = torch.randn(2, BATCH, shared, KEY, HEAD)
    mask = torch.rand(BATCH, 1, QUERY, KEY) > 0.5
    mask[0] = False
    bias = torch.randn(1, HEADS, QUERY, KEY) if has_bias else None
    scores = make_similarity("scaled-dot", HEAD, shared)(q, k)
    mixed, weights = attend(scores if bias is None else scores + bias, v, mask)
    torch.testing.assert_close(attend_fused(q, k, v, mask, bias), mixed)
    assert (mixed[0] == 0).all()
    torch.testing.assert_close(weights[1:].sum(-1), mask[1:].any(-1).double().expand(-1, HEADS, -1))


def test_the_future_cannot_reach_the_past():
    attention = MultiHeadAttention(MODEL, HEADS, make_lookup=partial(lookup, is_causal=True))
    x = torch.randn(BATCH, QUERY, MODEL, requires_grad=True)
    attention(x)[:, 2].sum().backward()
    assert x.grad is not None
    assert (x.grad[:, :3] != 0).all()
    assert (x.grad[:, 3:] == 0).all()


@pytest.mark.parametrize("scheme", ["rotary", "relative", "alibi", "shaw", "none"])
def test_a_cache_changes_nothing(scheme: str):
    attention = MultiHeadAttention(MODEL * 2, HEADS, num_key_value_heads=1, make_lookup=partial(lookup, is_causal=True))
    schemes = {
        "rotary": Rotary(MODEL),
        "relative": RelativeBias(HEADS, is_causal=True),
        "alibi": ALiBi(HEADS),
        "shaw": RelativeKeys(MODEL, max_distance=3),
    }
    module = schemes.get(scheme)

    def place(start: int, end: int) -> Placement:
        return Placement() if module is None else module(torch.arange(start, end), torch.arange(end))

    x = torch.randn(BATCH, 13, 2 * MODEL)
    whole = attention(x, placement=place(0, 13))
    cache = KeyValues.empty(x.new_empty(BATCH, 1, 0, MODEL))
    edges = [0, 5, 6, 7, 13]
    parts = [attention(x[:, a:b], placement=place(a, b), cache=cache) for a, b in pairwise(edges)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_as_many_shared_heads_as_heads_is_plain_attention():
    grouped = MultiHeadAttention(MODEL, HEADS, num_key_value_heads=1)
    plain = MultiHeadAttention(MODEL, HEADS)
    state = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        state[name] = torch.cat([state[name]] * HEADS)
    plain.load_state_dict(state)
    x = torch.randn(BATCH, QUERY, MODEL)
    torch.testing.assert_close(grouped(x), plain(x))


def test_dropout_only_while_training():
    attention = MultiHeadAttention(MODEL, HEADS, make_lookup=partial(lookup, dropout=0.5))
    x = torch.randn(BATCH, QUERY, MODEL)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


@pytest.mark.parametrize(("heads", "shared"), [(5, None), (2, 3)])
def test_heads_must_divide(heads: int, shared: int | None):
    with pytest.raises(ConfigError, match=f"num_heads={heads}"):
        MultiHeadAttention(MODEL, heads, num_key_value_heads=shared)
