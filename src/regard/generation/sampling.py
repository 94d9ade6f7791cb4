"""Choosing the next token: greedy, or by sampling from a truncated distribution.

Fan et al., "Hierarchical Neural Story Generation" (2018): top-k. https://arxiv.org/abs/1805.04833
Holtzman et al., "The Curious Case of Neural Text Degeneration" (2019): top-p. https://arxiv.org/abs/1904.09751
Nguyen et al., "Turning Up the Heat: Min-p Sampling" (2024). https://arxiv.org/abs/2407.01082

Dimensions: `batch` sequences, `vocab` tokens, `new` tokens of a step.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.generation.config import GenerationConfig
from regard.models.protocols import Decoder, DecoderState


@runtime_checkable
class Constraint(Protocol):
    """Which tokens may come next in each of several sequences, given those that were chosen before.

    An instance is the state after some prefixes, one for each row, and is not changed.
    """

    def allowed(self) -> Bool[Tensor, "rows vocab"]:
        """Return which tokens may come next; at least one in each row that is not complete."""
        ...

    def advance(self, tokens: Int[Tensor, " rows"]) -> "Constraint":
        """Return the state after one more token of each row."""
        ...

    def select(self, rows: Int[Tensor, " chosen"]) -> "Constraint":
        """Return the state of these rows, in this order; a row may occur twice."""
        ...


def top_k(logits: Float[Tensor, "batch vocab"], k: int) -> Float[Tensor, "batch vocab"]:
    """Set all but the k highest logits of each row to -inf; those equal to the k-th are kept."""
    least = logits.topk(min(k, logits.size(-1)), dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def top_p(logits: Float[Tensor, "batch vocab"], p: float) -> Float[Tensor, "batch vocab"]:
    """Set all but the fewest tokens whose probabilities sum to at least p to -inf."""
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    excluded = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= p)
    return logits.masked_fill(excluded, -torch.inf)


def min_p(logits: Float[Tensor, "batch vocab"], p: float) -> Float[Tensor, "batch vocab"]:
    """Set tokens with less than p times the highest probability to -inf."""
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


def distribution(logits: Float[Tensor, "batch vocab"], config: GenerationConfig) -> Float[Tensor, "batch vocab"]:
    """Return the probabilities from which tokens are sampled; one-hot for greedy decoding."""
    if config.temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    logits = logits / config.temperature
    if config.top_k is not None:
        logits = top_k(logits, config.top_k)
    if config.top_p is not None:
        logits = top_p(logits, config.top_p)
    if config.min_p is not None:
        logits = min_p(logits, config.min_p)
    return logits.softmax(dim=-1)


def pick(probabilities: Float[Tensor, "batch vocab"], draws: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Return the token of each row at which the cumulative probability exceeds the draw, uniform on [0, 1)."""
    cumulative = probabilities.cumsum(dim=-1)
    # Rounding can leave the total just below 1, so the draw is scaled to the total.
    total = cumulative[:, -1:].contiguous()
    exceeded = torch.searchsorted(cumulative, draws[:, None] * total, right=True)
    # A draw that was rounded up to 1 exceeds every token: it gets the last one with a probability above 0.
    last_possible = torch.searchsorted(cumulative, total)
    return torch.minimum(exceeded, last_possible)[:, 0].clamp(max=probabilities.size(-1) - 1)


def choose_tokens(
    logits: Float[Tensor, "batch vocab"], config: GenerationConfig, draws: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """Return the next token of each row; `draws` are uniform on [0, 1) and unused by greedy decoding."""
    if config.temperature == 0:
        return logits.argmax(dim=-1)
    return pick(distribution(at_least_float32(logits), config), draws)


def suppress_tokens(
    logits: Float[Tensor, "batch vocab"], ids: Int[Tensor, " suppressed"] | None
) -> Float[Tensor, "batch vocab"]:
    """Set the logits of these tokens to -inf, in place: a copy of the vocabulary for each row would take time."""
    return logits if ids is None else logits.index_fill_(-1, ids, -torch.inf)


def at_least_float32(logits: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
    """Return the logits in a dtype in which probabilities sum to 1."""
    return logits if logits.dtype == torch.float64 else logits.float()


@torch.inference_mode()
def sample(
    decoder: Decoder,
    state: DecoderState,
    prompt: Int[Tensor, "batch new"],
    *,
    end: int,
    limits: list[int],
    seeds: list[int],
    config: GenerationConfig,
    suppress: Sequence[int] = (),
    constraint: Constraint | None = None,
) -> list[list[int]]:
    """Return the tokens generated after `prompt`, of each row up to `end`, which is not returned, or its limit.

    Finished rows leave the batch. Row i samples from its own random stream, created
    from `seeds[i]`, so that its tokens do not depend on the other rows. Tokens in
    `suppress` are never generated, nor are those that `constraint` does not allow.

    Without a constraint, this is the specification of `regard.generation.engine.Engine`.
    """
    generated: list[list[int]] = [[] for _ in limits]
    streams = [np.random.Generator(np.random.Philox(seed)) for seed in seeds]
    suppressed = torch.tensor(suppress, device=prompt.device) if suppress else None
    live = list(range(len(limits)))
    tokens = prompt
    while live:
        logits, state = decoder.step(tokens, state)
        last = at_least_float32(suppress_tokens(logits[:, -1], suppressed))
        if constraint is not None:
            last = last.masked_fill(~constraint.allowed(), -torch.inf)
        uniform = [streams[row].random() if config.temperature > 0 else 0.0 for row in live]
        chosen = choose_tokens(last, config, torch.tensor(uniform, dtype=last.dtype, device=last.device))
        unfinished = []
        for index, (row, token) in enumerate(zip(live, chosen.tolist(), strict=True)):
            if token != end:
                generated[row].append(token)
                if len(generated[row]) < limits[row]:
                    unfinished.append(index)
        tokens = chosen[:, None]
        constraint = None if constraint is None else constraint.advance(chosen)
        if len(unfinished) < len(live):
            kept = torch.tensor(unfinished, dtype=torch.long, device=tokens.device)
            live, tokens, state = [live[index] for index in unfinished], tokens[kept], state.select(kept)
            constraint = None if constraint is None else constraint.select(kept)
    return generated
