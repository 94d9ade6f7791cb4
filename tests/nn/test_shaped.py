"""Shaped attention against its matrix, and as the identity that it starts as."""

from functools import partial
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from regard.explanation.attention.recording import record_attention
from regard.nn.attention import Lookup, MultiHeadAttention, Retrieval, ShapedLookup
from regard.nn.kv_cache import KVCache
from regard.nn.masks import causal_mask, padding_mask
from regard.nn.positions import ALiBi, PositionEncoding, RelativeBias, RelativeKeys, Rotary
from regard.nn.similarity import SimilarityName, make_similarity

BATCH, TIME, HEADS, HEAD = 3, 7, 2, 10
MODEL = HEADS * HEAD
LENGTHS = torch.tensor([7, 2, 5])
NAMES: tuple[SimilarityName, ...] = get_args(SimilarityName)
SCHEMES = {
    "none": None,
    "rotary": partial(Rotary, HEAD),
    "relative": partial(RelativeBias, HEADS),
    "alibi": partial(ALiBi, HEADS),
    "shaw": partial(RelativeKeys, HEAD, max_distance=3),
}


def shaped(
    similarity: SimilarityName = "scaled-dot",
    retrieval: Retrieval = "soft",
    *,
    temperature: float = 0.7,
    is_causal: bool = False,
    shared: int = HEADS,
) -> MultiHeadAttention:
    """Shaped self-attention that hands on what it finds, unprojected where each head has values of its own."""

    def make_lookup(head_dim: int, num_heads: int) -> ShapedLookup:
        made = make_similarity(similarity, head_dim, num_heads)
        for parameter in made.parameters():  # some start as identities, and identities hide mistakes
            nn.init.normal_(parameter, std=0.5)
        return ShapedLookup(Lookup(made, temperature=temperature, retrieval=retrieval, is_causal=is_causal), HEADS)

    return MultiHeadAttention(
        MODEL,
        HEADS,
        num_key_value_heads=shared,
        make_lookup=make_lookup,
        has_values=shared != HEADS,
        has_output=False,
    )


def without_queries(attention: MultiHeadAttention) -> MultiHeadAttention:
    nn.init.zeros_(attention.query.weight)
    nn.init.zeros_(attention.query.bias)
    return attention


def with_any_gains(attention: MultiHeadAttention) -> MultiHeadAttention:
    assert isinstance(attention.lookup, ShapedLookup)
    for gain in (attention.lookup.identity, attention.lookup.attention, attention.lookup.average):
        nn.init.normal_(gain)
    return attention


def place(scheme: str, start: int, end: int) -> PositionEncoding:
    torch.manual_seed(5)  # the same module each time
    make = SCHEMES[scheme]
    return PositionEncoding() if make is None else make()(torch.arange(start, end), torch.arange(end))


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("retrieval", get_args(Retrieval))
@pytest.mark.parametrize("similarity", NAMES)
def test_without_queries_it_is_the_identity(
    similarity: SimilarityName, retrieval: Retrieval, is_causal: bool, has_mask: bool
):
    attention = without_queries(shaped(similarity, retrieval, is_causal=is_causal))
    x = torch.randn(BATCH, TIME, MODEL)
    torch.testing.assert_close(attention(x, mask=padding_mask(LENGTHS, TIME) if has_mask else None), x)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("retrieval", get_args(Retrieval))
def test_positions_leave_it_the_identity(retrieval: Retrieval, scheme: str):
    attention = without_queries(shaped(retrieval=retrieval, is_causal=True))
    x = torch.randn(BATCH, TIME, MODEL)
    torch.testing.assert_close(attention(x, positions=place(scheme, 0, TIME)), x)


def test_with_queries_it_is_not():
    x = torch.randn(BATCH, TIME, MODEL)
    assert not torch.allclose(shaped()(x), x)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shared", [1, 2])
def test_it_is_the_matrix_of_the_paper(shared: int, is_causal: bool, has_bias: bool):
    attention = with_any_gains(shaped(is_causal=is_causal, shared=shared))
    x = torch.randn(BATCH, TIME, MODEL)
    mask = padding_mask(LENGTHS, TIME)
    bias = torch.randn(1, HEADS, TIME, TIME) if has_bias else None
    with record_attention(attention) as weights:
        mixed = attention(x, mask=mask, positions=PositionEncoding(bias=bias))

    visible = mask & causal_mask(TIME, TIME) if is_causal else mask.expand(-1, -1, TIME, -1)
    tilt = torch.zeros(1, HEADS, TIME, TIME) if bias is None else bias / 0.7
    average = visible * tilt.exp()
    average = average / average.sum(dim=-1, keepdim=True)
    shape = attention.lookup
    matrix = shape.identity * torch.eye(TIME) + shape.attention * weights[""] - shape.average * average
    values = attention.value(x).unflatten(-1, (shared, HEAD)).transpose(1, 2).repeat_interleave(HEADS // shared, dim=1)
    torch.testing.assert_close(mixed, (matrix @ values).transpose(1, 2).flatten(2))


def test_the_average_is_over_the_unmasked_positions():
    """Alone, the last term takes from each position the mean of those up to it."""
    attention = shaped(is_causal=True)
    nn.init.zeros_(attention.lookup.identity)
    nn.init.zeros_(attention.lookup.attention)
    x = torch.randn(BATCH, TIME, MODEL)
    means = torch.stack([x[:, : end + 1].mean(dim=1) for end in range(TIME)], dim=1)
    torch.testing.assert_close(attention(x), -means)


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_watcher_is_handed_the_attention_once(is_watched: bool):
    attention = shaped("gaussian")
    calls: list[Tensor] = []
    attention.lookup.lookup.watcher = calls.append if is_watched else None
    attention(torch.randn(BATCH, TIME, MODEL))
    assert len(calls) == is_watched


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("similarity", NAMES)
def test_a_cache_changes_nothing(similarity: SimilarityName, scheme: str):
    attention = with_any_gains(shaped(similarity, is_causal=True, shared=1))
    x = torch.randn(BATCH, TIME, MODEL)
    cache = KVCache.empty(x.new_empty(BATCH, 1, 0, HEAD))
    parts = [attention(x[:, a:b], positions=place(scheme, a, b), cache=cache) for a, b in pairwise([0, 3, 4, 7])]
    torch.testing.assert_close(torch.cat(parts, dim=1), attention(x, positions=place(scheme, 0, TIME)))


def test_a_cache_changes_nothing_for_hard_retrieval():
    attention = with_any_gains(shaped(retrieval="hard", is_causal=True))
    x = torch.randn(BATCH, TIME, MODEL)
    cache = KVCache.empty(x.new_empty(BATCH, HEADS, 0, HEAD))
    parts = [attention(x[:, a:b], cache=cache) for a, b in pairwise([0, 3, 4, 7])]
    torch.testing.assert_close(torch.cat(parts, dim=1), attention(x))
