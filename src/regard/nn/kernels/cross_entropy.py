"""Kernels of `regard.nn.losses.linear_cross_entropy`."""

# pyright: basic, reportMissingParameterType=false
# ruff: noqa: N803  compile-time constants are in capitals

from typing import no_type_check

import triton.language as tl

from regard.nn.kernels import kernel


@kernel
@no_type_check
def losses_and_gradients(
    logits, targets, losses, gradients, num_tokens, smoothing, gradient_scale, BLOCK: tl.constexpr
):
    """One program per target; `gradients` may be the memory of `logits`.

    The loss lacks the term of the mean logit, and the gradient its constant part.
    """
    row = tl.program_id(0)
    begin = row.to(tl.int64) * num_tokens
    # Each lane sums its share of the logits; the lanes are combined once, after the loop.
    best = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, num_tokens, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        some = tl.load(logits + begin + tokens, mask=tokens < num_tokens, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(best, some)
        total = total * tl.exp(best - higher) + tl.exp(some - higher)
        best = higher
    highest = tl.max(best, axis=0)
    log_total = highest + tl.log(tl.sum(total * tl.exp(best - highest), axis=0))
    target = tl.load(targets + row)
    logit = tl.load(logits + begin + target).to(tl.float32)
    tl.store(losses + row, log_total - (1.0 - smoothing) * logit)
    tl.debug_barrier()  # the logit of the target is read before it is overwritten
    for start in range(0, num_tokens, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        some = tl.load(logits + begin + tokens, mask=tokens < num_tokens, other=-float("inf")).to(tl.float32)
        slope = tl.exp(some - log_total)
        slope = tl.where(tokens == target, slope - (1.0 - smoothing), slope) * gradient_scale
        tl.store(gradients + begin + tokens, slope.to(gradients.dtype.element_ty), mask=tokens < num_tokens)


@kernel
@no_type_check
def transpose_bytes(x, y, num_rows, num_columns, SIDE: tl.constexpr):
    """Transpose a matrix of bytes in square tiles."""
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    tile = tl.load(x + rows.to(tl.int64)[:, None] * num_columns + columns[None, :], mask=inside, other=0)
    inside = (columns < num_columns)[:, None] & (rows < num_rows)[None, :]
    tl.store(y + columns.to(tl.int64)[:, None] * num_rows + rows[None, :], tl.trans(tile), mask=inside)
