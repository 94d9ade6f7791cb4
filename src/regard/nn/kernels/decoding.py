"""The operations of a decoding step as fused kernels: the time of a small operation is mostly that of its launch.

    fused_embed     token embeddings plus position embeddings
    fused_norm      a sum and its normalization
    fused_linear    a product, with the norm before it and the activation or the residual sum after it
    fused_attend    query-key norms, rotary positions, the update of the KV cache and attention

`regard.models.transformer.inference` combines them into a step. Nothing here has a
gradient.

Dimensions: `rows` of the batch, with one new token each; `cached` rows of the KV
cache, which divides `rows`; otherwise see `regard.nn.attention`.
"""

# pyright: basic, reportMissingParameterType=false
# ruff: noqa: N803, SIM102  compile-time constants are in capitals, and are tested before values at run time

import math
from functools import cache
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.nn.feedforward import Activation
from regard.nn.kernels import kernel

_MANY_QUERIES = 1024
"""Queries that occupy a large GPU, so that each may be processed 32 keys at a time by two warps. With fewer, up to 256
keys are processed at a time by eight warps."""
_CHUNK = 512
"""Keys that one program attends to; a longer cache is split among several."""
_MANY_PROGRAMS = 264
"""Programs that occupy the multiprocessors of a large GPU, two each."""
_COMMON_SHARED_MEMORY = 99 << 10
_NORMS = {"none": 0, "layer": 1, "rms": 2}
_ACTIVATIONS: dict[Activation | None, int] = {
    None: 0, "relu": 1, "gelu": 2, "gelu-tanh": 3, "squared-relu": 4, "swiglu": 5
}  # fmt: skip


class NormWeights(NamedTuple):
    """The parameters of a normalization; `kind` is layer or rms."""

    kind: str
    gain: Float[Tensor, " model"]
    shift: Float[Tensor, " model"] | None
    epsilon: float


class LinearWeights(NamedTuple):
    """The parameters of a linear layer."""

    weight: Float[Tensor, "output input"]
    bias: Float[Tensor, " output"] | None


def fused_embed(
    tokens: Int[Tensor, "rows 1"],
    lengths: Int[Tensor, " rows"],
    table: Float[Tensor, "vocab model"],
    position_table: Float[Tensor, "capacity model"] | None,
    *,
    scale: float,
    capacity: int,
) -> tuple[Float[Tensor, "rows model"], Int[Tensor, " rows"]]:
    """Return the embeddings of the newest tokens and their positions; increments `lengths`."""
    rows, width = tokens.size(0), table.size(1)
    x, positions = table.new_empty(rows, width), torch.empty_like(lengths)
    embed_kernel[(rows,)](
        tokens.contiguous(), lengths, table, table if position_table is None else position_table, x, positions, scale,
        capacity, WIDTH=width, HAS_POSITIONS=position_table is not None, PADDED=triton.next_power_of_2(width),
    )  # fmt: skip
    return x, positions


def fused_norm(
    x: Float[Tensor, "rows model"], delta: Float[Tensor, "rows model"] | None, weights: NormWeights
) -> tuple[Float[Tensor, "rows model"], Float[Tensor, "rows model"]]:
    """Return the sum of `x` and `delta`, and its normalization."""
    rows, width = x.shape
    total = x if delta is None else torch.empty_like(x)
    y = torch.empty_like(x)
    norm_kernel[(rows,)](
        x, x if delta is None else delta, *_norm_arguments(weights, x), total, y, weights.epsilon,
        WIDTH=width, NORM=_NORMS[weights.kind], HAS_SHIFT=weights.shift is not None, HAS_DELTA=delta is not None,
        PADDED=triton.next_power_of_2(width),
    )  # fmt: skip
    return total, y


def fused_linear(
    x: Float[Tensor, "rows input"],
    weights: LinearWeights,
    *,
    norm: NormWeights | None = None,
    activation: Activation | None = None,
    residual: Float[Tensor, "rows output"] | None = None,
) -> Float[Tensor, "rows output"]:
    """Return `residual + activation(weight norm(x) + bias)` for few rows; what is None is left out.

    For a gated activation the weight has two halves: the gate, and what it multiplies.
    """
    assert all(part.is_contiguous() for part in (x, weights.weight)), "the kernels read contiguous rows"
    rows, num_inputs = x.shape
    is_gated = activation == "swiglu"
    num_outputs = weights.weight.size(0) // (2 if is_gated else 1)
    y = x.new_empty(rows, num_outputs)
    options = {
        "NUM_INPUTS": num_inputs,
        "HAS_BIAS": weights.bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "ACTIVATION": _ACTIVATIONS[activation],
        "IS_GATED": is_gated,
    }
    bias, residual = weights.weight if weights.bias is None else weights.bias, x if residual is None else residual
    if rows == 1:
        block = 4 if num_outputs <= 4 * _MANY_PROGRAMS else 8 if num_outputs <= 64 * _MANY_PROGRAMS else 16
        linear_one_row_kernel[(triton.cdiv(num_outputs, block),)](
            x, weights.weight, bias, *_norm_arguments(norm, x), residual, y, num_outputs,
            0.0 if norm is None else norm.epsilon, **options,
            NORM=_NORMS["none" if norm is None else norm.kind],
            HAS_SHIFT=norm is not None and norm.shift is not None,
            BLOCK_N=block, BLOCK_K=_divisor(num_inputs, most=1024), PADDED=triton.next_power_of_2(num_inputs),
        )  # fmt: skip
        return y
    if norm is not None:
        _, x = fused_norm(x, None, norm)
    block = 16 if num_outputs <= 4 * _MANY_PROGRAMS else 32 if num_outputs <= 32 * _MANY_PROGRAMS else 64
    block_rows, depth = max(16, triton.next_power_of_2(min(rows, 64))), _divisor(num_inputs, most=128)
    tile = (block_rows + block * (2 if is_gated else 1)) * depth * x.element_size()
    linear_few_rows_kernel[(triton.cdiv(num_outputs, block), triton.cdiv(rows, block_rows))](
        x, weights.weight, bias, residual, y, rows, num_outputs, **options,
        BLOCK_M=block_rows, BLOCK_N=block, BLOCK_K=depth, num_stages=min(4, max(1, _shared_memory(x.device) // tile)),
    )  # fmt: skip
    return y


def fused_attend(
    heads: Float[Tensor, "rows numbers"],
    keys: Float[Tensor, "cached shared capacity head"],
    values: Float[Tensor, "cached shared capacity head"],
    *,
    num_heads: int,
    scale: float,
    positions: Int[Tensor, " rows"] | None = None,
    mask: Bool[Tensor, "cached some any capacity"] | None = None,
    norms: tuple[Tensor, Tensor, float] | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "rows model"]:
    """Return the attention of one query per row and head.

    With `positions` (self-attention), `heads` contains queries, keys and values: the
    keys and values are stored in the cache at this index of the row, and the query
    attends to the entries up to it, where `mask` is True. Without (cross-attention), `heads` contains
    queries only, which attend to the whole cache, where `mask` is True.

    `norms` are the gains of queries and of keys and the epsilon of query-key
    normalization; `rotary` the factors of each coordinate of a head, and of the other
    coordinate of its plane, at each position. With fewer cache rows than rows,
    consecutive rows share one and store their positions in it alternately: the
    hypotheses of a beam.
    """
    (cached, shared, capacity, head_dim), device = keys.shape, keys.device
    rows = heads.size(0)
    num_parts = math.ceil(capacity / _CHUNK)
    out = heads.new_empty(rows, num_heads * head_dim)
    parts = out
    if num_parts > 1:
        parts = torch.empty(rows, num_heads, num_parts, head_dim + 2, device=device, dtype=torch.float32)
    unused = heads
    if rows * num_heads >= _MANY_QUERIES:
        block, num_warps = 32, max(2, head_dim // 32)
    else:
        block, num_warps = min(_CHUNK, (1 << 14) // head_dim, triton.next_power_of_2(capacity)), 8
    attend_kernel[(rows, num_heads, num_parts)](
        heads, keys, values, out, parts,
        positions if positions is not None else unused,
        mask.view(torch.uint8) if mask is not None else unused,
        *(norms if norms is not None else (unused, unused, 0.0)),
        *(rotary if rotary is not None else (unused, unused)),
        scale, capacity, num_heads // shared, rows // cached,
        NUM_HEADS=num_heads, NUM_SHARED=shared, HEAD_DIM=head_dim, NUM_PARTS=num_parts, CHUNK=_CHUNK,
        BLOCK=block, IS_SELF=positions is not None, HAS_MASK=mask is not None, HAS_NORMS=norms is not None,
        IS_ROTATED=rotary is not None, num_warps=num_warps,
    )  # fmt: skip
    if num_parts > 1:
        combine_parts_kernel[(rows, num_heads)](
            parts, out, HEAD_DIM=head_dim, NUM_PARTS=num_parts, PADDED=triton.next_power_of_2(num_parts)
        )
    return out


@cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory of a program; where PyTorch does not report them, those of a common GPU."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", _COMMON_SHARED_MEMORY)


def _norm_arguments(weights: NormWeights | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    if weights is None:
        return unused, unused
    return weights.gain, weights.gain if weights.shift is None else weights.shift


def _divisor(number: int, *, most: int) -> int:
    """Return the largest power of two that divides `number`, up to `most`; at least 64."""
    power = number & -number
    return max(64, min(power, most))


@kernel
@no_type_check
def embed_kernel(
    tokens, lengths, table, position_table, x, positions, scale, capacity,
    WIDTH: tl.constexpr, HAS_POSITIONS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, PADDED)
    length = tl.load(lengths + row)
    position = tl.minimum(length, capacity - 1)
    tl.store(positions + row, position)
    tl.store(lengths + row, position + 1)
    token = tl.load(tokens + row)
    vector = tl.load(table + token * WIDTH + columns, mask=columns < WIDTH).to(tl.float32) * scale
    if HAS_POSITIONS:
        vector += tl.load(position_table + position * WIDTH + columns, mask=columns < WIDTH).to(tl.float32)
    tl.store(x + row * WIDTH + columns, vector.to(x.dtype.element_ty), mask=columns < WIDTH)


@kernel
@no_type_check
def norm_kernel(
    x, delta, gain, shift, total, y, epsilon,
    WIDTH: tl.constexpr, NORM: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_DELTA: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    first = tl.program_id(0) * WIDTH
    vector = tl.load(x + first + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        vector += tl.load(delta + first + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + first + columns, vector.to(total.dtype.element_ty), mask=inside)
    if NORM == 1:
        vector = tl.where(inside, vector - tl.sum(vector) / WIDTH, 0.0)
    vector = vector * tl.rsqrt(tl.sum(vector * vector) / WIDTH + epsilon)
    vector *= tl.load(gain + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_SHIFT:
        vector += tl.load(shift + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + first + columns, vector.to(y.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _activate(output, gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        output = tl.maximum(output, 0.0)
    elif ACTIVATION == 2:
        output = 0.5 * output * (1.0 + tl.erf(output * 0.7071067811865476))
    elif ACTIVATION == 3:
        # tanh by sigmoid: 0.5 (1 + tanh(z)) = sigmoid(2 z)
        output = output * tl.sigmoid(1.5957691216057308 * (output + 0.044715 * output * output * output))
    elif ACTIVATION == 4:
        output = tl.maximum(output, 0.0)
        output = output * output
    elif ACTIVATION == 5:
        output = output * gate * tl.sigmoid(gate)
    return output


@kernel
@no_type_check
def linear_one_row_kernel(
    x, weight, bias, gain, shift, residual, y, num_outputs, epsilon,
    NUM_INPUTS: tl.constexpr, NORM: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = outputs < num_outputs
    mean, scale = 0.0, 1.0
    if NORM != 0:
        columns = tl.arange(0, PADDED)
        vector = tl.load(x + columns, mask=columns < NUM_INPUTS, other=0.0).to(tl.float32)
        if NORM == 1:
            mean = tl.sum(vector) / NUM_INPUTS
            vector = tl.where(columns < NUM_INPUTS, vector - mean, 0.0)
        scale = tl.rsqrt(tl.sum(vector * vector) / NUM_INPUTS + epsilon)
    sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    gates = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for start in tl.static_range(0, NUM_INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        inside = inputs < NUM_INPUTS
        vector = tl.load(x + inputs, mask=inside, other=0.0).to(tl.float32)
        if NORM != 0:
            vector = (vector - mean) * scale * tl.load(gain + inputs, mask=inside, other=0.0).to(tl.float32)
            if HAS_SHIFT:
                vector += tl.load(shift + inputs, mask=inside, other=0.0).to(tl.float32)
        index = outputs.to(tl.int64)[:, None] * NUM_INPUTS + inputs[None, :]
        both = is_output[:, None] & inside[None, :]
        if IS_GATED:
            gates += tl.load(weight + index, mask=both, other=0.0).to(tl.float32) * vector[None, :]
            index += num_outputs * NUM_INPUTS
        sums += tl.load(weight + index, mask=both, other=0.0).to(tl.float32) * vector[None, :]
    output = tl.sum(sums, axis=1)
    gate = tl.sum(gates, axis=1)
    if HAS_BIAS:
        if IS_GATED:
            gate += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
            output += tl.load(bias + num_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)
        else:
            output += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
    output = _activate(output, gate, ACTIVATION)
    if HAS_RESIDUAL:
        output += tl.load(residual + outputs, mask=is_output, other=0.0).to(tl.float32)
    tl.store(y + outputs, output.to(y.dtype.element_ty), mask=is_output)


@kernel
@no_type_check
def linear_few_rows_kernel(
    x, weight, bias, residual, y, num_rows, num_outputs,
    NUM_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_output, is_row = outputs < num_outputs, rows < num_rows
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    gates = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, NUM_INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        inside = inputs < NUM_INPUTS
        both = is_row[:, None] & inside[None, :]
        vectors = tl.load(x + rows[:, None] * NUM_INPUTS + inputs[None, :], mask=both, other=0.0)
        index = outputs.to(tl.int64)[None, :] * NUM_INPUTS + inputs[:, None]
        is_weight = inside[:, None] & is_output[None, :]
        if IS_GATED:
            gates = tl.dot(vectors, tl.load(weight + index, mask=is_weight, other=0.0), gates, input_precision="ieee")
            index += num_outputs * NUM_INPUTS
        sums = tl.dot(vectors, tl.load(weight + index, mask=is_weight, other=0.0), sums, input_precision="ieee")
    if HAS_BIAS:
        if IS_GATED:
            gates += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
            sums += tl.load(bias + num_outputs + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        else:
            sums += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    sums = _activate(sums, gates, ACTIVATION)
    index = rows[:, None] * num_outputs + outputs[None, :]
    both = is_row[:, None] & is_output[None, :]
    if HAS_RESIDUAL:
        sums += tl.load(residual + index, mask=both, other=0.0).to(tl.float32)
    tl.store(y + index, sums.to(y.dtype.element_ty), mask=both)


@triton.jit
@no_type_check
def _head(
    heads, gain, cosine, sine, index, position, epsilon,
    HEAD_DIM: tl.constexpr, HAS_NORMS: tl.constexpr, IS_ROTATED: tl.constexpr,
):  # fmt: skip
    """Load the query or key that begins at `index`, normalized and rotated by its position."""
    columns = tl.arange(0, HEAD_DIM)
    vector = tl.load(heads + index + columns).to(tl.float32)
    scale = 1.0
    if HAS_NORMS:
        scale = tl.rsqrt(tl.sum(vector * vector) / HEAD_DIM + epsilon)
        vector *= scale * tl.load(gain + columns).to(tl.float32)
    if IS_ROTATED:
        others = (columns + HEAD_DIM // 2) % HEAD_DIM
        other = tl.load(heads + index + others).to(tl.float32)
        if HAS_NORMS:
            other *= scale * tl.load(gain + others).to(tl.float32)
        angles = position * HEAD_DIM + columns
        vector = vector * tl.load(cosine + angles).to(tl.float32) + other * tl.load(sine + angles).to(tl.float32)
    return vector


@kernel
@no_type_check
def attend_kernel(
    heads, keys, values, out, parts, positions, mask, query_gain, key_gain, epsilon, cosine, sine,
    scale, capacity, num_sharing, width,
    NUM_HEADS: tl.constexpr, NUM_SHARED: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_PARTS: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, IS_SELF: tl.constexpr, HAS_MASK: tl.constexpr, HAS_NORMS: tl.constexpr,
    IS_ROTATED: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared = head // num_sharing
    columns = tl.arange(0, HEAD_DIM)
    cache_row = ((row // width).to(tl.int64) * NUM_SHARED + shared) * capacity * HEAD_DIM
    own = row * (NUM_HEADS + 2 * NUM_SHARED if IS_SELF else NUM_HEADS) * HEAD_DIM
    position = tl.load(positions + row) if IS_SELF else capacity
    depth = position // width
    end = depth * width if IS_SELF else capacity
    allowed = mask + (row if IS_SELF else row // width) * capacity
    q = _head(
        heads, query_gain, cosine, sine, own + head * HEAD_DIM, depth, epsilon, HEAD_DIM, HAS_NORMS, IS_ROTATED
    ) * scale  # fmt: skip
    # Each lane computes a softmax over its share of the keys; the lanes are combined once, after the loop.
    best = tl.full((BLOCK,), -1e30, tl.float32)
    weight = tl.zeros((BLOCK,), dtype=tl.float32)
    sums = tl.zeros((BLOCK, HEAD_DIM), dtype=tl.float32)
    first = part * CHUNK
    last = tl.minimum(first + CHUNK, end)
    for start in range(first, last, BLOCK):
        numbers = start + tl.arange(0, BLOCK)
        inside = numbers < last
        index = cache_row + numbers[:, None] * HEAD_DIM + columns[None, :]
        k = tl.load(keys + index, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + index, mask=inside[:, None], other=0.0).to(tl.float32)
        if HAS_MASK:
            inside = inside & (tl.load(allowed + numbers, mask=inside, other=0) != 0)
        scores = tl.where(inside, tl.sum(k * q[None, :], axis=1), -1e30)
        higher = tl.maximum(best, scores)
        exps = tl.where(inside, tl.exp(scores - higher), 0.0)
        decay = tl.exp(best - higher)
        weight = weight * decay + exps
        sums = sums * decay[:, None] + exps[:, None] * v
        best = higher
    highest = tl.max(best, axis=0)
    factors = tl.exp(best - highest)
    all_weight = tl.sum(weight * factors, axis=0)
    all_sums = tl.sum(sums * factors[:, None], axis=0)
    if IS_SELF:
        # The newest position is not in the cache yet: each program computes it from the projection.
        if (position >= first) & (position < first + CHUNK):
            index = own + (NUM_HEADS + shared) * HEAD_DIM
            new_k = _head(heads, key_gain, cosine, sine, index, depth, epsilon, HEAD_DIM, HAS_NORMS, IS_ROTATED)
            new_k = new_k.to(keys.dtype.element_ty)
            new_v = tl.load(heads + index + NUM_SHARED * HEAD_DIM + columns)
            if head % num_sharing == 0:
                tl.store(keys + cache_row + position * HEAD_DIM + columns, new_k)
                tl.store(values + cache_row + position * HEAD_DIM + columns, new_v.to(values.dtype.element_ty))
            score = tl.sum(new_k.to(tl.float32) * q, axis=0)
            before = highest
            highest = tl.maximum(before, score)
            factor, exp = tl.exp(before - highest), tl.exp(score - highest)
            all_weight = all_weight * factor + exp
            all_sums = all_sums * factor + exp * new_v.to(tl.float32)
    index = row * NUM_HEADS + head
    if NUM_PARTS == 1:
        tl.store(out + index * HEAD_DIM + columns, (all_sums / tl.maximum(all_weight, 1e-30)).to(out.dtype.element_ty))
    else:
        begin = parts + (index.to(tl.int64) * NUM_PARTS + part) * (HEAD_DIM + 2)
        tl.store(begin + columns, all_sums)
        tl.store(begin + HEAD_DIM, all_weight)
        tl.store(begin + HEAD_DIM + 1, highest)


@kernel
@no_type_check
def combine_parts_kernel(parts, out, HEAD_DIM: tl.constexpr, NUM_PARTS: tl.constexpr, PADDED: tl.constexpr):
    """Combine the averages of a query over the parts of the cache."""
    index = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    numbers, columns = tl.arange(0, PADDED), tl.arange(0, HEAD_DIM)
    inside = numbers < NUM_PARTS
    begins = parts + (index.to(tl.int64) * NUM_PARTS + numbers) * (HEAD_DIM + 2)
    best = tl.load(begins + HEAD_DIM + 1, mask=inside, other=-1e30)
    decay = tl.exp(best - tl.max(best, axis=0))
    weight = tl.sum(tl.load(begins + HEAD_DIM, mask=inside, other=0.0) * decay, axis=0)
    sums = tl.load(begins[:, None] + columns[None, :], mask=inside[:, None], other=0.0)
    output = tl.sum(sums * decay[:, None], axis=0) / tl.maximum(weight, 1e-30)
    tl.store(out + index * HEAD_DIM + columns, output.to(out.dtype.element_ty))
