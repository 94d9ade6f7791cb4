"""Attention to fewer keys, and by sums: the fast forms equal the masks and sums that specify them."""

import itertools
from typing import Any

import pytest
import torch
from tests.shape_checks import unchecked_shapes
from torch import Tensor
from torch._dynamo.exc import InternalTorchDynamoError
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import ConfigError
from regard.nn import sparse_attention
from regard.nn.attention import Lookup, ShapedLookup, attend
from regard.nn.kv_cache import LinearCache, SparseKVCache, SparseStaticKVCache
from regard.nn.linear_attention import LinearLookup
from regard.nn.masks import SparsePattern, padding_mask
from regard.nn.positions import Rotary, Rotation
from regard.nn.similarity import SimilarityName, make_similarity
from regard.nn.sparse_attention import LowRankLookup, SparseLookup, block_mask

BATCH, HEADS, SHARED, TIME, HEAD = 3, 4, 2, 37, 6
LENGTHS = torch.tensor([TIME, 23, 5])
PATTERNS = [
    SparsePattern(window, num_global, stride, is_causal)
    for window, (num_global, stride), is_causal in itertools.product(
        (1, 4, 11), ((0, None), (3, None), (0, 5), (2, 3)), (True, False)
    )
]


def tensors(time: int = TIME) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(BATCH, heads, time, HEAD, requires_grad=True) for heads in (HEADS, SHARED, SHARED))
    return q, k, v


def rotation(time: int = TIME) -> Rotation:
    found = Rotary(HEAD)(torch.arange(time), torch.arange(time)).rotation
    assert found is not None
    return found


def require_equal_with_gradients(found: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(found, expected)
    factors = torch.randn_like(found)
    pairs = zip(*(torch.autograd.grad((factors * each).sum(), inputs) for each in (found, expected)), strict=True)
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_mask_is_what_a_loop_over_queries_and_keys_says(pattern: SparsePattern):
    positions = torch.arange(13)
    found = pattern.mask(positions, positions)
    for query, key in itertools.product(range(13), range(13)):
        is_strided = pattern.stride is not None and key % pattern.stride == pattern.stride - 1
        is_global = key < pattern.num_global or query < pattern.num_global
        expected = abs(query - key) < pattern.window or is_global or is_strided
        assert bool(found[query, key]) == (expected and (key <= query or not pattern.is_causal))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_common_positions_are_those_that_every_later_query_attends_to(pattern: SparsePattern):
    for length in range(13):
        positions = torch.arange(length)
        common = pattern.common_positions(length)
        torch.testing.assert_close(common, positions[pattern.is_common(positions)])
        assert pattern.num_common(length) == len(common)


class CopyRecorder(TorchDispatchMode):
    """Counts copies of tensors from one device to another, which a CUDA graph cannot capture."""

    num_copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        is_copy = func is torch.ops.aten._to_copy.default and device is not None and device != args[0].device
        self.num_copies += is_copy
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_blocks_copy_nothing_between_devices(pattern: SparsePattern):
    lookup = SparseLookup(Lookup(make_similarity("scaled-dot", HEAD, SHARED)), pattern)
    lookup.block_length = 8
    q, k, v = (torch.empty(BATCH, heads, TIME, HEAD, device="meta") for heads in (HEADS, SHARED, SHARED))
    with CopyRecorder() as recorder:
        lookup(q, k, v)
        assert recorder.num_copies == 0
        torch.arange(3).to("meta")
        assert recorder.num_copies == 1


@pytest.mark.parametrize("has_padding", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_blocks_equal_the_mask_forward_and_backward(pattern: SparsePattern, has_padding: bool):
    lookup = SparseLookup(Lookup(make_similarity("scaled-dot", HEAD, SHARED)), pattern)
    lookup.block_length = 5
    q, k, v = tensors()
    mask = padding_mask(LENGTHS, TIME) if has_padding else None
    require_equal_with_gradients(lookup(q, k, v, mask), lookup.attend_densely(q, k, v, mask), (q, k, v))
    scores = q @ k.repeat_interleave(2, dim=1).transpose(2, 3) / HEAD**0.5
    positions = torch.arange(TIME)
    allowed = pattern.mask(positions, positions)[None, None]
    torch.testing.assert_close(lookup(q, k, v, mask), attend(scores, v, allowed if mask is None else allowed & mask)[0])


@pytest.mark.parametrize("length", [130, 256])
@pytest.mark.parametrize("pattern", [SparsePattern(100, 3, 64, causal) for causal in (True, False)], ids=str)
def test_the_tiles_of_a_pattern_are_those_of_pytorch(pattern: SparsePattern, length: int):
    found = block_mask(pattern, length, torch.device("cpu"))
    expected = create_block_mask(
        lambda batch, head, query, key: pattern.allows(query, key), None, None, length, length, device="cpu"
    )
    for name in ("kv", "full_kv", "q", "full_q"):
        counts, expected_counts = (getattr(each, f"{name}_num_blocks") for each in (found, expected))
        torch.testing.assert_close(counts, expected_counts)
        rows, expected_rows = (getattr(each, f"{name}_indices")[0, 0] for each in (found, expected))
        for row, expected_row, count in zip(rows, expected_rows, counts[0, 0], strict=True):
            assert set(row[:count].tolist()) == set(expected_row[:count].tolist())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("shared", [1, 2, 6], ids=["six to one", "three to one", "each its own"])
@pytest.mark.parametrize("pattern", [SparsePattern(40, 2, None, True), SparsePattern(25, 0, 9, False)], ids=str)
@unchecked_shapes()  # within what FlexAttention traces
def test_tiles_equal_the_mask(pattern: SparsePattern, shared: int):
    """Without gradients, which FlexAttention has on a GPU alone: benchmarks/gpu_check.py compares those."""
    lookup = SparseLookup(Lookup(make_similarity("scaled-dot", HEAD, shared), temperature=0.7), pattern)
    inputs = tuple(torch.randn(2, heads, 130, HEAD) for heads in (6, shared, shared))
    torch.testing.assert_close(lookup.attend_by_tiles(*inputs, flex_attention), lookup.attend_densely(*inputs))


def test_without_a_compiler_blocks_are_computed_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*inputs: Any) -> Any:
        raise InternalTorchDynamoError("no C compiler\nmore")

    monkeypatch.setattr(sparse_attention, "_FAILED", [])
    monkeypatch.setattr(SparseLookup, "_has_kernel", lambda *_: not sparse_attention._FAILED)
    monkeypatch.setattr(SparseLookup, "attend_by_tiles", fail)
    lookup = SparseLookup(Lookup(make_similarity("scaled-dot", HEAD, SHARED)), SparsePattern(4))
    lookup.block_length = 5
    q, k, v = tensors()
    for _ in range(2):
        torch.testing.assert_close(lookup(q, k, v), lookup.attend_densely(q, k, v))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "FlexAttention cannot be compiled, windows are computed in blocks, which is slower: no C compiler"
    ]

    def run_out_of_memory(*inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sparse_attention, "_FAILED", [])
    monkeypatch.setattr(SparseLookup, "attend_by_tiles", run_out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        lookup(q, k, v)


@pytest.mark.parametrize("similarity", ["gaussian", "additive"])
def test_blocks_equal_the_mask_with_a_bias_and_with_any_similarity(similarity: SimilarityName):
    pattern = SparsePattern(4, num_global=1, is_causal=True)
    inner = Lookup(make_similarity(similarity, HEAD, SHARED), temperature=0.7)
    lookup, shaped = SparseLookup(inner, pattern), ShapedLookup(SparseLookup(inner, pattern), HEADS)
    lookup.block_length = 5
    q, k, v = tensors()
    k, bias = lookup.prepare(k), torch.randn(1, HEADS, TIME, TIME)
    torch.testing.assert_close(lookup(q, k, v, None, bias), lookup.attend_densely(q, k, v, None, bias))
    centered = lookup.attend_densely(torch.zeros_like(q), k, v, None, bias)
    expected = v.repeat_interleave(2, dim=1) + lookup.attend_densely(q, k, v, None, bias) - centered
    torch.testing.assert_close(shaped(q, k, v, None, bias, own=v), expected)


def test_attention_in_blocks_computes_scores_in_proportion_to_the_length():
    """Each score is counted where the inner lookup computes it."""
    counts = {}
    for time in (512, 1024):
        lookup = SparseLookup(Counting(), SparsePattern(64, is_causal=True))
        q, k, v = (torch.zeros(1, 1, time, 2) for _ in range(3))
        lookup(q, k, v)
        counts[time] = lookup.lookup.num_scores
    assert counts[1024] < 2.2 * counts[512]
    assert counts[1024] < 0.25 * 1024**2


class Counting(Lookup):
    """Counts the scores that it computes."""

    def __init__(self) -> None:
        super().__init__(make_similarity("dot", 2, 1))
        self.num_scores = 0

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        self.num_scores += q.size(2) * k.size(2)
        return q


@pytest.mark.parametrize("has_padding", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("is_rotary", [False, True], ids=["plain", "rotary"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["encoder", "causal"])
def test_sums_equal_the_formula_forward_and_backward(is_causal: bool, is_rotary: bool, has_padding: bool):
    lookup = LinearLookup(is_causal=is_causal)
    lookup.chunk_length = 5
    q, k, v = tensors()
    turned = rotation() if is_rotary else None
    mask = padding_mask(LENGTHS, TIME) if has_padding else None
    found, weights = lookup(q, k, v, mask, rotation=turned), []
    lookup.watcher = weights.append
    require_equal_with_gradients(found, lookup(q, k, v, mask, rotation=turned), (q, k, v))
    torch.testing.assert_close(weights[0] @ v.repeat_interleave(2, dim=1), found)
    if not is_rotary:  # the weights are positive, and sum to one
        assert weights[0].min() >= 0
        torch.testing.assert_close(weights[0].sum(dim=-1), torch.ones(BATCH, HEADS, TIME))


@pytest.mark.parametrize("pieces", [[1] * TIME, [11, 7, 1, 18]])
def test_linear_attention_step_by_step_equals_all_at_once(pieces: list[int]):
    lookup = LinearLookup(is_causal=True)
    lookup.chunk_length = 5
    (q, k, v), turned = tensors(), rotation()
    cache, parts, start = LinearCache.zeros(k[:, :, :0]), [], 0
    for piece in pieces:
        new = slice(start, start + piece)
        own = Rotation(turned.cosine[new], turned.sine[new])
        parts.append(lookup(q[:, :, new], k[:, :, new], v[:, :, new], rotation=own, cache=cache))
        start += piece
    torch.testing.assert_close(torch.cat(parts, dim=2), lookup(q, k, v, rotation=turned))
    assert cache.length == TIME


@pytest.mark.parametrize("pattern", [each for each in PATTERNS if each.is_causal], ids=str)
def test_a_sparse_cache_keeps_what_is_needed_and_no_more(pattern: SparsePattern):
    k, positions = torch.randn(BATCH, SHARED, TIME, HEAD), torch.arange(TIME)
    cache = SparseKVCache.empty(k[:, :, :0], pattern)
    static = SparseStaticKVCache.zeros(k[:, :, :0], pattern, TIME)
    mask = pattern.mask(positions, positions)
    for place in range(TIME):
        if place == TIME // 2:  # continue from another cache of another capacity
            static = SparseStaticKVCache.zeros(k[:, :, :0], pattern, TIME + 7)
            static.put(torch.arange(BATCH), cache)
        new = k[:, :, place : place + 1]
        indices = torch.full((BATCH, 1), place)
        for keys, found in (
            (cache.key_positions(1).expand(BATCH, -1), cache.append(new, new)[0]),
            (static.at(indices).key_positions(), static.at(indices).append(new, new)[0]),
        ):
            for row in range(BATCH):
                is_used = keys[row] >= 0
                assert sorted(keys[row][is_used].tolist()) == positions[mask[place]].tolist()
                torch.testing.assert_close(found[row][:, is_used], k[row][:, keys[row][is_used]])
        assert len(cache.positions) <= pattern.window - 1 + int(pattern.is_common(positions).sum())


def test_low_rank_attention_ignores_padding_and_names_its_limits():
    lookup = LowRankLookup(3, TIME, scale=HEAD**-0.5)
    q, k, v = tensors()
    mask = padding_mask(LENGTHS, TIME)
    found = lookup(q, k, v, mask)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = [part[row : row + 1, :, :length] for part in (q, k, v)]
        torch.testing.assert_close(found[row : row + 1, :, :length], lookup(*alone))
    averaged = torch.einsum("rt,bhtd->bhrd", lookup.key_averages, k).repeat_interleave(2, dim=1)
    scores = q @ averaged.transpose(2, 3) / HEAD**0.5
    values = torch.einsum("rt,bhtd->bhrd", lookup.value_averages, v)
    torch.testing.assert_close(lookup(q, k, v), attend(scores, values)[0])
    with pytest.raises(ConfigError, match="up to context_length=37 positions, the sequence has 38"):
        lookup(*tensors(TIME + 1))
    with pytest.raises(ConfigError, match="cannot isolate documents"):
        lookup(q, k, v, torch.ones(BATCH, 1, TIME, TIME, dtype=torch.bool))
