"""What targets cost, and the gradient by their scores, in two looks at the scores. In Triton; see `decoding`."""

# pyright: basic, reportMissingParameterType=false
# ruff: noqa: N803  what is known to the compiler is in capitals

import triton.language as tl

from regard.kernels.jit import kernel


@kernel
def losses_and_gradients(scores, goals, losses, gradients, num_tokens, smoothing, enlarged, BLOCK: tl.constexpr):
    """One program for each target, whose `gradients` may lie where its `scores` are.

    The loss lacks the mean score, and the gradient its constant part.
    """
    row = tl.program_id(0)
    begin = row.to(tl.int64) * num_tokens
    # Each lane has a sum of its own over its share of the scores: lanes meet only once, behind the loop.
    best = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, num_tokens, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        some = tl.load(scores + begin + tokens, mask=tokens < num_tokens, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(best, some)
        total = total * tl.exp(best - higher) + tl.exp(some - higher)
        best = higher
    highest = tl.max(best, axis=0)
    log_total = highest + tl.log(tl.sum(total * tl.exp(best - highest), axis=0))
    goal = tl.load(goals + row)
    score = tl.load(scores + begin + goal).to(tl.float32)
    tl.store(losses + row, log_total - (1.0 - smoothing) * score)
    tl.debug_barrier()  # the goal's score is read before anything is written over it
    for start in range(0, num_tokens, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        some = tl.load(scores + begin + tokens, mask=tokens < num_tokens, other=-float("inf")).to(tl.float32)
        slope = tl.exp(some - log_total)
        slope = tl.where(tokens == goal, slope - (1.0 - smoothing), slope) * enlarged
        tl.store(gradients + begin + tokens, slope.to(gradients.dtype.element_ty), mask=tokens < num_tokens)
