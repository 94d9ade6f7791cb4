"""Exercises for small models, drawn batch by batch, and the loop that trains on them.

    look back   at each position, name the token that stood `distance` places before it
    recall      at the last position, name the first token, whatever stood between

A batch comes from PyTorch's generator, so whoever seeds it draws the same one again.

Dimensions: `batch` sequences of `time` positions, `vocab` tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.logging import progress_bar

NOT_ASKED = -100
"""The target of a position at which nothing is asked; what `F.cross_entropy` passes over."""
WARMUP = 0.1
"""Share of the steps in which the learning rate rises to its peak; then it falls to 0."""


class Batch(NamedTuple):
    """What is read, and what is to be named at each position."""

    inputs: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch time"]


@dataclass(frozen=True)
class Course:
    """How a training went, step by step."""

    losses: list[float]
    norms: list[float]
    """Length of the whole gradient, before it was clipped."""


def look_back(num_rows: int, length: int, *, distance: int, vocab_size: int) -> Batch:
    """Random tokens; each is to be named again `distance` places later."""
    tokens = torch.randint(vocab_size, (num_rows, length))
    targets = tokens.roll(distance, dims=1)
    targets[:, :distance] = NOT_ASKED
    return Batch(tokens, targets)


def recall(num_rows: int, length: int, *, num_symbols: int) -> Batch:
    """One of `num_symbols` symbols, then random ones of as many others; at the end the first is asked for."""
    tokens = torch.randint(num_symbols, 2 * num_symbols, (num_rows, length))
    tokens[:, 0] -= num_symbols
    targets = torch.full_like(tokens, NOT_ASKED)
    targets[:, -1] = tokens[:, 0]
    return Batch(tokens, targets)


def loss_of(model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
    """Cross-entropy in nats, averaged over the positions at which something is asked."""
    scores: Float[Tensor, "batch time vocab"] = model(batch.inputs)
    return F.cross_entropy(scores.flatten(0, 1), batch.targets.flatten(), ignore_index=NOT_ASKED)


@torch.inference_mode()
def count_right(model: nn.Module, batch: Batch) -> int:
    """How many sequences are answered rightly at their last position: one answer each, so all are independent."""
    return int((model(batch.inputs)[:, -1].argmax(dim=-1) == batch.targets[:, -1]).sum())


def fit(
    model: nn.Module,
    draw: Callable[[], Batch],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    clip_norm: float = math.inf,
    what: str = "training",
) -> Course:
    """Train for `steps` fresh batches; a gradient longer than `clip_norm` is shortened to it."""
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _share_of_peak(step, steps))
    losses, norms = [], []
    for _ in progress_bar(range(steps), what, total=steps):
        loss = loss_of(model, draw())
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm)))
        optimizer.step()
        rate.step()
        losses.append(loss.item())
    return Course(losses, norms)


def _share_of_peak(step: int, steps: int) -> float:
    warmup = max(1, round(WARMUP * steps))
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
