"""The inner parts of `regard.generation.kernels`, in Triton.

Tillet et al., "Triton" (2019). https://www.eecs.harvard.edu/~htk/publication/2019-mapl-tillet-kung-cox.pdf

They run on a GPU; with TRITON_INTERPRET=1 in the environment also, slowly, on
a CPU, which is how they are tested. Names in capitals are known when a kernel
is compiled. Sums are taken in float32.
"""

# pyright: basic, reportMissingParameterType=false
# ruff: noqa: N803, SIM102  what is known to the compiler is in capitals, and asked for before what is not

import triton
import triton.language as tl

from regard.kernels.jit import kernel


@kernel
def embed_rows(
    tokens, lengths, table, added, x, places, scale, capacity,
    WIDTH: tl.constexpr, HAS_ADDED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, PADDED)
    length = tl.load(lengths + row)
    place = tl.minimum(length, capacity - 1)
    tl.store(places + row, place)
    tl.store(lengths + row, place + 1)
    token = tl.load(tokens + row)
    vector = tl.load(table + token * WIDTH + columns, mask=columns < WIDTH).to(tl.float32) * scale
    if HAS_ADDED:
        vector += tl.load(added + place * WIDTH + columns, mask=columns < WIDTH).to(tl.float32)
    tl.store(x + row * WIDTH + columns, vector.to(x.dtype.element_ty), mask=columns < WIDTH)


@kernel
def norm_rows(
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
def _bent(made, gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        made = tl.maximum(made, 0.0)
    elif ACTIVATION == 2:
        made = 0.5 * made * (1.0 + tl.erf(made * 0.7071067811865476))
    elif ACTIVATION == 3:
        # tanh by sigmoid: 0.5 (1 + tanh(z)) = sigmoid(2 z)
        made = made * tl.sigmoid(1.5957691216057308 * (made + 0.044715 * made * made * made))
    elif ACTIVATION == 4:
        made = tl.maximum(made, 0.0)
        made = made * made
    elif ACTIVATION == 5:
        made = made * gate * tl.sigmoid(gate)
    return made


@kernel
def linear_one_row(
    x, weight, bias, gain, shift, residual, y, num_outputs, epsilon,
    NUM_INPUTS: tl.constexpr, NORM: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, IS_GATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted = outputs < num_outputs
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
        at = outputs.to(tl.int64)[:, None] * NUM_INPUTS + inputs[None, :]
        both = wanted[:, None] & inside[None, :]
        if IS_GATED:
            gates += tl.load(weight + at, mask=both, other=0.0).to(tl.float32) * vector[None, :]
            at += num_outputs * NUM_INPUTS
        sums += tl.load(weight + at, mask=both, other=0.0).to(tl.float32) * vector[None, :]
    made = tl.sum(sums, axis=1)
    gate = tl.sum(gates, axis=1)
    if HAS_BIAS:
        if IS_GATED:
            gate += tl.load(bias + outputs, mask=wanted, other=0.0).to(tl.float32)
            made += tl.load(bias + num_outputs + outputs, mask=wanted, other=0.0).to(tl.float32)
        else:
            made += tl.load(bias + outputs, mask=wanted, other=0.0).to(tl.float32)
    made = _bent(made, gate, ACTIVATION)
    if HAS_RESIDUAL:
        made += tl.load(residual + outputs, mask=wanted, other=0.0).to(tl.float32)
    tl.store(y + outputs, made.to(y.dtype.element_ty), mask=wanted)


@kernel
def linear_few_rows(
    x, weight, bias, residual, y, num_rows, num_outputs,
    NUM_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    wanted, there = outputs < num_outputs, rows < num_rows
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    gates = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, NUM_INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        inside = inputs < NUM_INPUTS
        both = there[:, None] & inside[None, :]
        vectors = tl.load(x + rows[:, None] * NUM_INPUTS + inputs[None, :], mask=both, other=0.0)
        at = outputs.to(tl.int64)[None, :] * NUM_INPUTS + inputs[:, None]
        known = inside[:, None] & wanted[None, :]
        if IS_GATED:
            gates = tl.dot(vectors, tl.load(weight + at, mask=known, other=0.0), gates, input_precision="ieee")
            at += num_outputs * NUM_INPUTS
        sums = tl.dot(vectors, tl.load(weight + at, mask=known, other=0.0), sums, input_precision="ieee")
    if HAS_BIAS:
        if IS_GATED:
            gates += tl.load(bias + outputs, mask=wanted, other=0.0).to(tl.float32)[None, :]
            sums += tl.load(bias + num_outputs + outputs, mask=wanted, other=0.0).to(tl.float32)[None, :]
        else:
            sums += tl.load(bias + outputs, mask=wanted, other=0.0).to(tl.float32)[None, :]
    sums = _bent(sums, gates, ACTIVATION)
    at = rows[:, None] * num_outputs + outputs[None, :]
    both = there[:, None] & wanted[None, :]
    if HAS_RESIDUAL:
        sums += tl.load(residual + at, mask=both, other=0.0).to(tl.float32)
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=both)


@triton.jit
def _head(
    heads, gain, cosine, sine, at, place, epsilon,
    HEAD_DIM: tl.constexpr, HAS_NORMS: tl.constexpr, IS_TURNED: tl.constexpr,
):  # fmt: skip
    """A query or a key: the head that begins at `at`, normed and turned by its place."""
    columns = tl.arange(0, HEAD_DIM)
    vector = tl.load(heads + at + columns).to(tl.float32)
    scale = 1.0
    if HAS_NORMS:
        scale = tl.rsqrt(tl.sum(vector * vector) / HEAD_DIM + epsilon)
        vector *= scale * tl.load(gain + columns).to(tl.float32)
    if IS_TURNED:
        others = (columns + HEAD_DIM // 2) % HEAD_DIM
        other = tl.load(heads + at + others).to(tl.float32)
        if HAS_NORMS:
            other *= scale * tl.load(gain + others).to(tl.float32)
        turns = place * HEAD_DIM + columns
        vector = vector * tl.load(cosine + turns).to(tl.float32) + other * tl.load(sine + turns).to(tl.float32)
    return vector


@kernel
def attend_rows(
    heads, keys, values, found, parts, places, mask, query_gain, key_gain, epsilon, cosine, sine,
    scale, capacity, num_sharing, width,
    NUM_HEADS: tl.constexpr, NUM_SHARED: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_PARTS: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, IS_OWN: tl.constexpr, HAS_MASK: tl.constexpr, HAS_NORMS: tl.constexpr,
    IS_TURNED: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared = head // num_sharing
    columns = tl.arange(0, HEAD_DIM)
    room = ((row // width).to(tl.int64) * NUM_SHARED + shared) * capacity * HEAD_DIM
    own = row * (NUM_HEADS + 2 * NUM_SHARED if IS_OWN else NUM_HEADS) * HEAD_DIM
    place = tl.load(places + row) if IS_OWN else capacity
    depth = place // width
    end = depth * width if IS_OWN else capacity
    allowed = mask + (row if IS_OWN else row // width) * capacity
    q = _head(
        heads, query_gain, cosine, sine, own + head * HEAD_DIM, depth, epsilon, HEAD_DIM, HAS_NORMS, IS_TURNED
    ) * scale  # fmt: skip
    # Each lane has a softmax of its own over its share of the keys: lanes meet only once, behind the loop.
    best = tl.full((BLOCK,), -1e30, tl.float32)
    weight = tl.zeros((BLOCK,), dtype=tl.float32)
    sums = tl.zeros((BLOCK, HEAD_DIM), dtype=tl.float32)
    first = part * CHUNK
    last = tl.minimum(first + CHUNK, end)
    for start in range(first, last, BLOCK):
        numbers = start + tl.arange(0, BLOCK)
        inside = numbers < last
        at = room + numbers[:, None] * HEAD_DIM + columns[None, :]
        k = tl.load(keys + at, mask=inside[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=inside[:, None], other=0.0).to(tl.float32)
        if HAS_MASK:
            inside = inside & (tl.load(allowed + numbers, mask=inside, other=0) != 0)
        scores = tl.where(inside, tl.sum(k * q[None, :], axis=1), -1e30)
        higher = tl.maximum(best, scores)
        powers = tl.where(inside, tl.exp(scores - higher), 0.0)
        fading = tl.exp(best - higher)
        weight = weight * fading + powers
        sums = sums * fading[:, None] + powers[:, None] * v
        best = higher
    highest = tl.max(best, axis=0)
    shares = tl.exp(best - highest)
    all_weight = tl.sum(weight * shares, axis=0)
    all_sums = tl.sum(sums * shares[:, None], axis=0)
    if IS_OWN:
        # The newest position is in nobody's room yet: each program has it from the projection.
        if (place >= first) & (place < first + CHUNK):
            at = own + (NUM_HEADS + shared) * HEAD_DIM
            new_k = _head(heads, key_gain, cosine, sine, at, depth, epsilon, HEAD_DIM, HAS_NORMS, IS_TURNED)
            new_k = new_k.to(keys.dtype.element_ty)
            new_v = tl.load(heads + at + NUM_SHARED * HEAD_DIM + columns)
            if head % num_sharing == 0:
                tl.store(keys + room + place * HEAD_DIM + columns, new_k)
                tl.store(values + room + place * HEAD_DIM + columns, new_v.to(values.dtype.element_ty))
            score = tl.sum(new_k.to(tl.float32) * q, axis=0)
            before = highest
            highest = tl.maximum(before, score)
            share, power = tl.exp(before - highest), tl.exp(score - highest)
            all_weight = all_weight * share + power
            all_sums = all_sums * share + power * new_v.to(tl.float32)
    at = row * NUM_HEADS + head
    if NUM_PARTS == 1:
        tl.store(found + at * HEAD_DIM + columns, (all_sums / tl.maximum(all_weight, 1e-30)).to(found.dtype.element_ty))
    else:
        begin = parts + (at.to(tl.int64) * NUM_PARTS + part) * (HEAD_DIM + 2)
        tl.store(begin + columns, all_sums)
        tl.store(begin + HEAD_DIM, all_weight)
        tl.store(begin + HEAD_DIM + 1, highest)


@kernel
def join_parts(parts, found, HEAD_DIM: tl.constexpr, NUM_PARTS: tl.constexpr, PADDED: tl.constexpr):
    """What a query has found in all parts of the room."""
    at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    numbers, columns = tl.arange(0, PADDED), tl.arange(0, HEAD_DIM)
    inside = numbers < NUM_PARTS
    begins = parts + (at.to(tl.int64) * NUM_PARTS + numbers) * (HEAD_DIM + 2)
    best = tl.load(begins + HEAD_DIM + 1, mask=inside, other=-1e30)
    fading = tl.exp(best - tl.max(best, axis=0))
    weight = tl.sum(tl.load(begins + HEAD_DIM, mask=inside, other=0.0) * fading, axis=0)
    sums = tl.load(begins[:, None] + columns[None, :], mask=inside[:, None], other=0.0)
    made = tl.sum(sums * fading[:, None], axis=0) / tl.maximum(weight, 1e-30)
    tl.store(found + at * HEAD_DIM + columns, made.to(found.dtype.element_ty))
