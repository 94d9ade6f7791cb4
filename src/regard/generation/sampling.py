"""Choosing the next token: greedy, or at random from a reshaped distribution.

Fan et al., "Hierarchical Neural Story Generation" (2018): top-k. https://arxiv.org/abs/1805.04833
Holtzman et al., "The Curious Case of Neural Text Degeneration" (2019): top-p. https://arxiv.org/abs/1904.09751
Nguyen et al., "Turning Up the Heat: Min-p Sampling" (2024). https://arxiv.org/abs/2407.01082

Dimensions: `batch` sequences, `vocab` tokens, `new` tokens read at once.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.generation.config import GenerationConfig
from regard.models.protocols import State, Stepper


def top_k(scores: Float[Tensor, "batch vocab"], k: int) -> Float[Tensor, "batch vocab"]:
    """Rule out all but the k best scores of each row; those equal to the k-th stay."""
    least = scores.topk(min(k, scores.size(-1)), dim=-1).values[:, -1:]
    return scores.masked_fill(scores < least, -torch.inf)


def top_p(scores: Float[Tensor, "batch vocab"], p: float) -> Float[Tensor, "batch vocab"]:
    """Rule out all but the fewest tokens whose probabilities sum to at least p."""
    ordered, order = scores.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    excluded = torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, before >= p)
    return scores.masked_fill(excluded, -torch.inf)


def min_p(scores: Float[Tensor, "batch vocab"], p: float) -> Float[Tensor, "batch vocab"]:
    """Rule out tokens less than p times as likely as the likeliest."""
    probabilities = scores.softmax(dim=-1)
    return scores.masked_fill(probabilities < p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


def distribution(scores: Float[Tensor, "batch vocab"], config: GenerationConfig) -> Float[Tensor, "batch vocab"]:
    """The probabilities that tokens are drawn with; greedy, all of it is the likeliest one's."""
    if config.temperature == 0:
        return torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
    scores = scores / config.temperature
    if config.top_k is not None:
        scores = top_k(scores, config.top_k)
    if config.top_p is not None:
        scores = top_p(scores, config.top_p)
    if config.min_p is not None:
        scores = min_p(scores, config.min_p)
    return scores.softmax(dim=-1)


def pick(probabilities: Float[Tensor, "batch vocab"], draws: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The token of each row at which the cumulative probability passes the row's draw, uniform on [0, 1)."""
    cumulative = probabilities.cumsum(dim=-1)
    # Rounding can leave the total just below 1: scale the draw to the total there is.
    total = cumulative[:, -1:].contiguous()
    passed = torch.searchsorted(cumulative, draws[:, None] * total, right=True)
    # A draw that was rounded up to 1 passes nothing: it takes the last token that has a probability.
    last_possible = torch.searchsorted(cumulative, total)
    return torch.minimum(passed, last_possible)[:, 0].clamp(max=probabilities.size(-1) - 1)


def choose(
    scores: Float[Tensor, "batch vocab"], config: GenerationConfig, draws: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The next token of each row; `draws` are uniform on [0, 1), one a row, and count for nothing when greedy."""
    if config.temperature == 0:
        return scores.argmax(dim=-1)
    return pick(distribution(precise(scores), config), draws)


def precise(scores: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows vocab"]:
    """Scores in a precision in which probabilities add up: at least float32."""
    return scores if scores.dtype == torch.float64 else scores.float()


@torch.inference_mode()
def sample(
    decoder: Stepper,
    state: State,
    prompt: Int[Tensor, "batch new"],
    *,
    end: int,
    limits: list[int],
    seeds: list[int],
    config: GenerationConfig,
) -> list[list[int]]:
    """Write token after token behind `prompt`, each row until `end` or its limit; neither is returned.

    Rows that are done leave the batch. Row i draws from a stream of its own,
    made from `seeds[i]`, so its text does not depend on the others.
    """
    written: list[list[int]] = [[] for _ in limits]
    streams = [np.random.Generator(np.random.Philox(seed)) for seed in seeds]
    live = list(range(len(limits)))
    tokens = prompt
    while live:
        scores, state = decoder.step(tokens, state)
        last = precise(scores[:, -1])
        uniform = [streams[row].random() if config.temperature > 0 else 0.0 for row in live]
        chosen = choose(last, config, torch.tensor(uniform, dtype=last.dtype, device=last.device))
        going = []
        for index, (row, token) in enumerate(zip(live, chosen.tolist(), strict=True)):
            if token != end:
                written[row].append(token)
                if len(written[row]) < limits[row]:
                    going.append(index)
        tokens = chosen[:, None]
        if len(going) < len(live):
            kept = torch.tensor(going, dtype=torch.long, device=tokens.device)
            live, tokens, state = [live[index] for index in going], tokens[kept], state.select(kept)
    return written
