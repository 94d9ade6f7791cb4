"""Synthetic token tasks for small models, generated batch by batch, and the loop that trains on them.

    delayed copy         at each position, the target is the token `distance` positions earlier
    first-token recall   at the last position, the target is the first token

Batches are drawn from PyTorch's global generator: seed it to draw the same ones again.

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
from regard.nn.losses import IGNORED

_WARMUP = 0.1
"""Fraction of the steps in which the learning rate rises linearly to its peak, before it falls linearly to 0."""


class TokenBatch(NamedTuple):
    """Input tokens, and the target at each position."""

    inputs: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch time"]


@dataclass(frozen=True)
class TrainingCurve:
    """Loss and gradient norm of each step."""

    losses: list[float]
    grad_norms: list[float]
    """L2 norm of the whole gradient, before clipping."""


def draw_delayed_copy(num_rows: int, length: int, *, distance: int, vocab_size: int) -> TokenBatch:
    """Returns random tokens; the target at each position is the token `distance` positions earlier."""
    tokens = torch.randint(vocab_size, (num_rows, length))
    targets = tokens.roll(distance, dims=1)
    targets[:, :distance] = IGNORED
    return TokenBatch(tokens, targets)


def draw_first_token_recall(num_rows: int, length: int, *, num_symbols: int) -> TokenBatch:
    """Returns one of `num_symbols` symbols, then random ones of as many others; the last target is the first symbol."""
    tokens = torch.randint(num_symbols, 2 * num_symbols, (num_rows, length))
    tokens[:, 0] -= num_symbols
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -1] = tokens[:, 0]
    return TokenBatch(tokens, targets)


def token_loss(model: nn.Module, batch: TokenBatch) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over the positions that have a target."""
    logits: Float[Tensor, "batch time vocab"] = model(batch.inputs)
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)


@torch.inference_mode()
def count_correct_ends(model: nn.Module, batch: TokenBatch) -> int:
    """Number of sequences whose last target is predicted; one prediction per sequence, so all are independent."""
    return int((model(batch.inputs)[:, -1].argmax(dim=-1) == batch.targets[:, -1]).sum())


def train_on_batches(
    model: nn.Module,
    draw: Callable[[], TokenBatch],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    clip_norm: float = math.inf,
    description: str = "training",
) -> TrainingCurve:
    """Train on `steps` fresh batches with linear warmup and decay; gradients are clipped to a norm of `clip_norm`."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _linear_schedule(step, steps))
    losses, norms = [], []
    for _ in progress_bar(range(steps), description, total=steps):
        loss = token_loss(model, draw())
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm)))
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return TrainingCurve(losses, norms)


def _linear_schedule(step: int, steps: int) -> float:
    warmup = max(1, round(_WARMUP * steps))
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
