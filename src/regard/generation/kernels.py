"""What a step of decoding is made of on a GPU: few operations, because each launch costs as long as a small one works.

    embed     the rows of a table for the newest tokens, with what tells their places
    norm      a sum and its normalisation
    linear    a product, with the normalisation before it and the bend or the sum behind it
    attend    queries and keys normed and turned, keys and values put in their places, and the look at them all

`regard.generation.fused` strings them together, and `regard.kernels.decoding`
has their inner parts. Nothing here has a gradient.

Dimensions: `rows` of the batch, one new token each; otherwise see `regard.nn.attention`.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.decoding import attend_rows, embed_rows, join_parts, linear_few_rows, linear_one_row, norm_rows
from regard.nn.feedforward import Activation

_MANY_LOOKS = 1024
"""Queries that keep a large GPU busy, so that each may take its time: 32 keys at a time, by two warps. Where there are
fewer, 256 keys or as many as there is room for are scored at a time, by eight warps."""
_CHUNK = 512
"""Keys that one program looks at; where there is room for more, several share the work."""
_MANY = 264
"""Programs that keep the processors of a large GPU busy, two each."""
_COMMON_MEMORY = 99 << 10
_NORMS = {"none": 0, "layer": 1, "rms": 2}
_ACTIVATIONS: dict[Activation | None, int] = {
    None: 0, "relu": 1, "gelu": 2, "gelu-tanh": 3, "squared-relu": 4, "swiglu": 5
}  # fmt: skip


class NormWeights(NamedTuple):
    """A normalisation of rows; `kind` is layer or rms."""

    kind: str
    gain: Float[Tensor, " model"]
    shift: Float[Tensor, " model"] | None
    epsilon: float


class LinearWeights(NamedTuple):
    """A matrix, one row for each output, and what is added."""

    weight: Float[Tensor, "output input"]
    bias: Float[Tensor, " output"] | None


class HeadNorms(NamedTuple):
    """What the queries and keys of a head are normalised with."""

    query_gain: Float[Tensor, " head"]
    key_gain: Float[Tensor, " head"]
    epsilon: float


class Turning(NamedTuple):
    """By what the coordinates of a head are multiplied at each place, and by what those of its other half."""

    cosine: Float[Tensor, "capacity head"]
    sine: Float[Tensor, "capacity head"]


def embed(
    tokens: Int[Tensor, "rows 1"],
    lengths: Int[Tensor, " rows"],
    table: Float[Tensor, "vocab model"],
    added: Float[Tensor, "capacity model"] | None,
    *,
    scale: float,
    capacity: int,
) -> tuple[Float[Tensor, "rows model"], Int[Tensor, " rows"]]:
    """The newest tokens as vectors, and the places where they stand; `lengths` grows by one."""
    rows, width = tokens.size(0), table.size(1)
    x, places = table.new_empty(rows, width), torch.empty_like(lengths)
    embed_rows[(rows,)](
        tokens.contiguous(), lengths, table, table if added is None else added, x, places, scale, capacity,
        WIDTH=width, HAS_ADDED=added is not None, PADDED=triton.next_power_of_2(width),
    )  # fmt: skip
    return x, places


def norm(
    x: Float[Tensor, "rows model"], delta: Float[Tensor, "rows model"] | None, weights: NormWeights
) -> tuple[Float[Tensor, "rows model"], Float[Tensor, "rows model"]]:
    """The sum of `x` and `delta`, and its normalisation."""
    rows, width = x.shape
    total = x if delta is None else torch.empty_like(x)
    y = torch.empty_like(x)
    norm_rows[(rows,)](
        x, x if delta is None else delta, *_norm_arguments(weights, x), total, y, weights.epsilon,
        WIDTH=width, NORM=_NORMS[weights.kind], HAS_SHIFT=weights.shift is not None, HAS_DELTA=delta is not None,
        PADDED=triton.next_power_of_2(width),
    )  # fmt: skip
    return total, y


def linear(
    x: Float[Tensor, "rows input"],
    weights: LinearWeights,
    *,
    before: NormWeights | None = None,
    activation: Activation | None = None,
    residual: Float[Tensor, "rows output"] | None = None,
) -> Float[Tensor, "rows output"]:
    """`residual + activation(weight norm(x) + bias)` for few rows; whatever is not given is left out.

    Of a gated activation the weights have two halves: the gate, and what it lets through.
    """
    assert all(part.is_contiguous() for part in (x, weights.weight)), "kernels read rows one behind the other"
    rows, num_inputs = x.shape
    is_gated = activation == "swiglu"
    num_outputs = weights.weight.size(0) // (2 if is_gated else 1)
    y = x.new_empty(rows, num_outputs)
    switches = {
        "NUM_INPUTS": num_inputs,
        "HAS_BIAS": weights.bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "ACTIVATION": _ACTIVATIONS[activation],
        "IS_GATED": is_gated,
    }
    bias, residual = weights.weight if weights.bias is None else weights.bias, x if residual is None else residual
    if rows == 1:
        block = 4 if num_outputs <= 4 * _MANY else 8 if num_outputs <= 64 * _MANY else 16
        linear_one_row[(triton.cdiv(num_outputs, block),)](
            x, weights.weight, bias, *_norm_arguments(before, x), residual, y, num_outputs,
            0.0 if before is None else before.epsilon, **switches,
            NORM=_NORMS["none" if before is None else before.kind],
            HAS_SHIFT=before is not None and before.shift is not None,
            BLOCK_N=block, BLOCK_K=_divisor(num_inputs, most=1024), PADDED=triton.next_power_of_2(num_inputs),
        )  # fmt: skip
        return y
    if before is not None:
        _, x = norm(x, None, before)
    block = 16 if num_outputs <= 4 * _MANY else 32 if num_outputs <= 32 * _MANY else 64
    block_rows, depth = max(16, triton.next_power_of_2(min(rows, 64))), _divisor(num_inputs, most=128)
    tile = (block_rows + block * (2 if is_gated else 1)) * depth * x.element_size()
    linear_few_rows[(triton.cdiv(num_outputs, block), triton.cdiv(rows, block_rows))](
        x, weights.weight, bias, residual, y, rows, num_outputs, **switches,
        BLOCK_M=block_rows, BLOCK_N=block, BLOCK_K=depth, num_stages=min(4, max(1, _shared_memory(x.device) // tile)),
    )  # fmt: skip
    return y


def attend(
    heads: Float[Tensor, "rows numbers"],
    keys: Float[Tensor, "rooms shared capacity head"],
    values: Float[Tensor, "rooms shared capacity head"],
    *,
    num_heads: int,
    scale: float,
    places: Int[Tensor, " rows"] | None = None,
    mask: Bool[Tensor, "rooms some any capacity"] | None = None,
    norms: HeadNorms | None = None,
    turning: Turning | None = None,
) -> Float[Tensor, "rows model"]:
    """What each row's query finds.

    With `places`, `heads` holds queries, keys and values one behind the other:
    the keys and values go to the row's place, and its query looks at all up to
    there. Without, `heads` holds queries alone, which look at all there is.
    A `mask` says where they may look.

    Where there are fewer rooms than rows, several rows, standing together, share
    one, and take their places in it in turns: the hypotheses of a beam.
    """
    (rooms, shared, capacity, head_dim), device = keys.shape, keys.device
    rows = heads.size(0)
    num_parts = math.ceil(capacity / _CHUNK)
    found = heads.new_empty(rows, num_heads * head_dim)
    parts = found
    if num_parts > 1:
        parts = torch.empty(rows, num_heads, num_parts, head_dim + 2, device=device, dtype=torch.float32)
    anything = heads
    if rows * num_heads >= _MANY_LOOKS:
        block, num_warps = 32, max(2, head_dim // 32)
    else:
        block, num_warps = min(_CHUNK, (1 << 14) // head_dim, triton.next_power_of_2(capacity)), 8
    attend_rows[(rows, num_heads, num_parts)](
        heads, keys, values, found, parts,
        places if places is not None else anything,
        mask.view(torch.uint8) if mask is not None else anything,
        *((norms.query_gain, norms.key_gain, norms.epsilon) if norms is not None else (anything, anything, 0.0)),
        *(turning if turning is not None else (anything, anything)),
        scale, capacity, num_heads // shared, rows // rooms,
        NUM_HEADS=num_heads, NUM_SHARED=shared, HEAD_DIM=head_dim, NUM_PARTS=num_parts, CHUNK=_CHUNK,
        BLOCK=block, IS_OWN=places is not None, HAS_MASK=mask is not None, HAS_NORMS=norms is not None,
        IS_TURNED=turning is not None, num_warps=num_warps,
    )  # fmt: skip
    if num_parts > 1:
        join_parts[(rows, num_heads)](
            parts, found, HEAD_DIM=head_dim, NUM_PARTS=num_parts, PADDED=triton.next_power_of_2(num_parts)
        )
    return found


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have at hand; where the device does not say, those of a common GPU."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", _COMMON_MEMORY)


def _norm_arguments(weights: NormWeights | None, anything: Tensor) -> tuple[Tensor, Tensor]:
    if weights is None:
        return anything, anything
    return weights.gain, weights.gain if weights.shift is None else weights.shift


def _divisor(number: int, *, most: int) -> int:
    """The largest power of two that divides `number`, up to `most`; 64 where it would be less."""
    power = number & -number
    return max(64, min(power, most))
