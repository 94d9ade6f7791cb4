"""Attention against PyTorch's own, and against its own readable form."""

from functools import partial
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.explanation.attention.recording import record_attention
from regard.nn.attention import Lookup, MultiHeadAttention, Retrieval, attend, attend_fused
from regard.nn.kv_cache import KVCache
from regard.nn.positions import ALiBi, PositionEncoding, RelativeBias, RelativeKeys, Rotary
from regard.nn.similarity import SimilarityName, make_similarity

# Every size is a different prime, so that no transposition passes unseen.
BATCH, QUERY, KEY, HEADS, HEAD = 3, 5, 7, 2, 11
MODEL = HEADS * HEAD

NAMES: tuple[SimilarityName, ...] = get_args(SimilarityName)
LOOKUPS: list[tuple[SimilarityName, Retrieval]] = [*((name, "soft") for name in NAMES), ("scaled-dot", "hard")]
NOT_FUSED = [(name, retrieval) for name, retrieval in LOOKUPS if "dot" not in name or retrieval == "hard"]


def lookup(head_dim: int, num_heads: int, similarity: SimilarityName = "scaled-dot", **options: Any) -> Lookup:
    made = make_similarity(similarity, head_dim, num_heads)
    for parameter in made.parameters():  # some start as identities, and identities hide mistakes
        nn.init.normal_(parameter, std=0.5)
    return Lookup(made, **options)


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
def test_fused_and_plain_agree_even_for_a_fully_masked_query(has_bias: bool, shared: int):
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


def test_attention_in_bfloat16_rounds_once_and_not_within():
    """On a CPU, short sequences are computed in float32 from their rounded queries, keys and values."""
    lengths = (QUERY, KEY, KEY)
    rounded = [torch.randn(BATCH, HEADS, n, HEAD, dtype=torch.bfloat16, requires_grad=True) for n in lengths]
    exact = [part.detach().float().requires_grad_() for part in rounded]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = attend_fused(*rounded)
    theirs = attend_fused(*exact)
    assert ours.dtype == torch.bfloat16
    gradients = zip(
        torch.autograd.grad(ours.float().square().sum(), rounded),
        torch.autograd.grad(theirs.bfloat16().float().square().sum(), exact),
        strict=True,
    )
    assert torch.equal(ours, theirs.bfloat16())
    for mine, reference in gradients:
        assert torch.equal(mine, reference.bfloat16())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 7.0])
@pytest.mark.parametrize("similarity", ["dot", "scaled-dot"])
def test_a_watched_lookup_computes_what_the_fused_one_does(
    similarity: SimilarityName, temperature: float, has_bias: bool, has_mask: bool, is_causal: bool
):
    look = lookup(HEAD, 1, similarity, temperature=temperature, is_causal=is_causal)
    q, (k, v) = torch.randn(BATCH, HEADS, QUERY, HEAD), torch.randn(2, BATCH, 1, KEY, HEAD)
    bias = torch.randn(1, HEADS, QUERY, KEY) if has_bias else None
    mask = torch.rand(BATCH, 1, 1, KEY) > 0.5 if has_mask else None
    fused = look(q, k, v, mask, bias)
    look.watcher = lambda _: None
    torch.testing.assert_close(look(q, k, v, mask, bias), fused)


@pytest.mark.parametrize(("similarity", "retrieval"), LOOKUPS)
def test_the_weights_that_are_watched_sum_to_one_and_make_the_output(similarity: SimilarityName, retrieval: Retrieval):
    look = lookup(HEAD, 1, similarity, retrieval=retrieval, temperature=0.7)
    q, k, v = torch.randn(BATCH, HEADS, QUERY, HEAD), torch.randn(BATCH, 1, KEY, HEAD), torch.randn(BATCH, 1, KEY, 13)
    mask = torch.rand(BATCH, 1, QUERY, KEY) > 0.3
    mask[..., 0] = True
    k = look.prepare(k)
    unwatched = look(q, k, v, mask)
    watched: list[torch.Tensor] = []
    look.watcher = watched.append
    torch.testing.assert_close(look(q, k, v, mask), unwatched)
    (weights,) = watched
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, QUERY))
    assert (weights >= 0).all()
    assert (weights.masked_select(~mask) == 0).all()
    torch.testing.assert_close(weights @ v, unwatched)


@pytest.mark.parametrize("retrieval", get_args(Retrieval))
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_a_fully_masked_query_makes_no_nan_in_values_or_gradients(retrieval: Retrieval, temperature: float):
    scores = torch.randn(BATCH, HEADS, QUERY, KEY, requires_grad=True)
    v = torch.randn(BATCH, 1, KEY, 13, requires_grad=True)
    mask = torch.rand(BATCH, 1, QUERY, KEY) > 0.5
    mask[0] = False
    with torch.autograd.set_detect_anomaly(True):
        found, weights = attend(scores, v, mask, retrieval=retrieval, temperature=temperature)
        found.square().sum().backward()
    assert (found[0] == 0).all()
    assert (weights[0] == 0).all()
    assert scores.grad is not None
    assert (scores.grad[0] == 0).all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("similarity", ["scaled-dot", "gaussian"])
def test_a_bias_in_full_precision_serves_half_precision_too(similarity: SimilarityName, is_watched: bool):
    look = lookup(HEAD, HEADS, similarity)
    q, k, v = torch.randn(3, BATCH, HEADS, KEY, HEAD)
    bias = torch.randn(1, HEADS, KEY, KEY)
    expected = look(q, k, v, bias=bias)
    look.watcher = (lambda _: None) if is_watched else None
    found = look(q.bfloat16(), k.bfloat16(), v.bfloat16(), bias=bias)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=0.05)  # bfloat16 has eight bits


def spread_scores() -> torch.Tensor:
    """Scores in steps of a tenth, in any order, so that there is a best one by some distance."""
    return 0.1 * torch.rand(BATCH, HEADS, QUERY, KEY).argsort(dim=-1)


@pytest.mark.parametrize("has_mask", [False, True])
def test_hard_retrieval_is_the_limit_of_cold_attention(has_mask: bool):
    scores, v = spread_scores(), torch.randn(BATCH, 1, KEY, 13)
    mask = torch.rand(BATCH, 1, QUERY, KEY) > 0.5 if has_mask else None
    hard, _ = attend(scores, v, mask, retrieval="hard")
    distances = [(attend(scores, v, mask, temperature=10.0**-n)[0] - hard).abs().max().item() for n in range(4)]
    assert all(warm > cold for warm, cold in pairwise(distances)), distances
    torch.testing.assert_close(attend(scores, v, mask, temperature=1e-3)[0], hard)


def test_hard_retrieval_picks_one_value_to_the_last_bit():
    scores, v = torch.randn(BATCH, HEADS, QUERY, 101), torch.randn(BATCH, HEADS, 101, 13)
    found, weights = attend(scores, v, retrieval="hard")
    best = scores.argmax(dim=-1)
    assert torch.equal(found, v.gather(2, best[..., None].expand(-1, -1, -1, 13)))
    assert torch.equal(weights, nn.functional.one_hot(best, 101).to(weights))


def test_hard_retrieval_does_not_depend_on_the_temperature():
    scores, v = spread_scores(), torch.randn(BATCH, HEADS, KEY, 13)
    hard = [attend(scores, v, retrieval="hard", temperature=temperature)[0] for temperature in (0.1, 1.0, 10.0)]
    assert torch.equal(hard[0], hard[1])
    assert torch.equal(hard[0], hard[2])


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_hard_retrieval_learns_by_the_gradient_of_the_soft_one(temperature: float):
    scores, v = torch.randn(BATCH, HEADS, QUERY, KEY, requires_grad=True), torch.randn(BATCH, 1, KEY, 13)
    mask = torch.rand(BATCH, 1, QUERY, KEY) > 0.3
    slope = torch.randn(BATCH, HEADS, QUERY, 13)
    soft, hard = (
        torch.autograd.grad(attend(scores, v, mask, retrieval=kind, temperature=temperature)[0], scores, slope)[0]
        for kind in ("soft", "hard")
    )
    torch.testing.assert_close(hard, soft)
    assert (soft != 0).any()


def test_values_learn_from_hard_retrieval_only_where_they_were_picked():
    scores, v = torch.randn(BATCH, 1, QUERY, KEY), torch.randn(BATCH, 1, KEY, 13, requires_grad=True)
    found, weights = attend(scores, v, retrieval="hard")
    found.sum().backward()
    assert v.grad is not None
    torch.testing.assert_close(v.grad, weights.sum(dim=2)[..., None].expand_as(v))


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

    def place(start: int, end: int) -> PositionEncoding:
        return PositionEncoding() if module is None else module(torch.arange(start, end), torch.arange(end))

    x = torch.randn(BATCH, 13, 2 * MODEL)
    whole = attention(x, positions=place(0, 13))
    cache = KVCache.empty(x.new_empty(BATCH, 1, 0, MODEL))
    edges = [0, 5, 6, 7, 13]
    parts = [attention(x[:, a:b], positions=place(a, b), cache=cache) for a, b in pairwise(edges)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize(("similarity", "retrieval"), LOOKUPS)
def test_a_cache_changes_nothing_for_any_similarity(similarity: SimilarityName, retrieval: Retrieval):
    make_lookup = partial(lookup, similarity=similarity, retrieval=retrieval, temperature=0.7, is_causal=True)
    attention = MultiHeadAttention(MODEL, HEADS, num_key_value_heads=1, make_lookup=make_lookup)
    x = torch.randn(BATCH, 13, MODEL)
    cache = KVCache.empty(x.new_empty(BATCH, 1, 0, HEAD))
    parts = [attention(x[:, a:b], cache=cache) for a, b in pairwise([0, 5, 6, 7, 13])]
    torch.testing.assert_close(torch.cat(parts, dim=1), attention(x))


@pytest.mark.parametrize(("similarity", "retrieval"), LOOKUPS)
def test_projecting_the_memory_once_changes_nothing(similarity: SimilarityName, retrieval: Retrieval):
    make_lookup = partial(lookup, similarity=similarity, retrieval=retrieval)
    attention = MultiHeadAttention(MODEL, HEADS, make_lookup=make_lookup)
    x, memory = torch.randn(BATCH, QUERY, MODEL), torch.randn(BATCH, KEY, MODEL)
    mask = torch.rand(BATCH, 1, 1, KEY) > 0.3
    torch.testing.assert_close(
        attention.cross_attend(x, attention.project_memory(memory, mask)), attention(x, memory, mask)
    )


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


@pytest.mark.parametrize(("similarity", "retrieval"), NOT_FUSED)
def test_dropout_only_while_training_where_weights_are_formed(similarity: SimilarityName, retrieval: Retrieval):
    attention = MultiHeadAttention(
        MODEL, HEADS, make_lookup=partial(lookup, similarity=similarity, retrieval=retrieval, dropout=0.5)
    )
    x = torch.randn(BATCH, QUERY, MODEL)
    assert not torch.equal(attention(x), attention(x))
    torch.manual_seed(1)
    unwatched = attention(x)
    torch.manual_seed(1)
    with record_attention(attention):
        torch.testing.assert_close(attention(x), unwatched)
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_weights_that_are_not_dropped_are_enlarged():
    scores, v = torch.randn(BATCH, HEADS, QUERY, 101), torch.randn(BATCH, HEADS, 101, 13)
    _, whole = attend(scores, v)
    found, weights = attend(scores, v, dropout=0.25)
    kept = weights != 0
    assert 0.7 < kept.double().mean() < 0.8
    torch.testing.assert_close(weights, torch.where(kept, whole / 0.75, 0.0))
    torch.testing.assert_close(found, weights @ v)


@pytest.mark.parametrize(("has_values", "has_output"), [(False, True), (True, False), (False, False)])
def test_what_is_not_projected_is_handed_on_as_it_is(has_values: bool, has_output: bool):
    whole = MultiHeadAttention(MODEL, HEADS)
    for layer, is_there in ((whole.value, has_values), (whole.output, has_output)):
        if not is_there:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
    less = MultiHeadAttention(MODEL, HEADS, has_values=has_values, has_output=has_output)
    less.load_state_dict({name: whole.state_dict()[name] for name in less.state_dict()})
    x, memory = torch.randn(BATCH, QUERY, MODEL), torch.randn(BATCH, KEY, MODEL)
    torch.testing.assert_close(less(x, memory), whole(x, memory))
    assert len(less.state_dict()) == len(whole.state_dict()) - 2 * ((not has_values) + (not has_output))


def test_shared_heads_need_values_of_their_own():
    with pytest.raises(ConfigError, match=r"must equal num_heads, got num_heads=2 and num_key_value_heads=1"):
        MultiHeadAttention(MODEL, HEADS, num_key_value_heads=1, has_values=False)


@pytest.mark.parametrize(("heads", "shared"), [(5, None), (2, 3)])
def test_heads_must_divide(heads: int, shared: int | None):
    with pytest.raises(ConfigError, match=f"num_heads={heads}"):
        MultiHeadAttention(MODEL, heads, num_key_value_heads=shared)
