"""Dropout: in training each number is set to zero with probability p, and the others are divided by 1 - p.

Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).
https://jmlr.org/papers/v15/srivastava14a.html
Gal & Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks" (2016), for masks
shared by all positions of a sequence, and for whole tokens. https://arxiv.org/abs/1512.05287

Huang et al., "Deep Networks with Stochastic Depth" (2016), for whole residual branches. https://arxiv.org/abs/1603.09382

Dimensions: `batch` sequences, `time` positions, `model` width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

_LEVELS = 1 << 16
_LOWEST = -(1 << 15)


class Dropout(nn.Module):
    """`nn.Dropout` that takes a third of its time on a CPU.

    Most of that time is spent on random numbers. Here one 64-bit random integer
    decides about four elements, 16 bits each: `probability` is rounded to a
    multiple of 1/65536.
    """

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.probability == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.probability)
        dropped = round(self.probability * _LEVELS)
        count = x.numel()
        bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        kept = bits.view(torch.int16)[:count].view(x.shape) >= _LOWEST + dropped
        return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))

    def extra_repr(self) -> str:
        return f"{self.probability}"


class LockedDropout(nn.Module):
    """Variational dropout: one mask for all positions of a sequence, another for each sequence.

    With a new mask at each position a recurrent state could recover a dropped
    number from the position before; here it stays dropped.
    """

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(probability)

    def forward(self, x: Float[Tensor, "batch time model"]) -> Float[Tensor, "batch time model"]:
        if not self.training or self.dropout.probability == 0.0:
            return x
        return x * self.dropout(x.new_ones(x.size(0), 1, x.size(2)))


class TokenDropout(nn.Module):
    """Dropout of whole tokens: the embedding of a dropped token is zero at each of its occurrences in the batch.

    Gal & Ghahramani (2016), section 4.2; Merity et al. (2017), section 4.3, arXiv 1708.02182.
    """

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(probability)

    def forward(
        self, x: Float[Tensor, "batch time model"], tokens: Int[Tensor, "batch time"], vocab_size: int
    ) -> Float[Tensor, "batch time model"]:
        """Return the embeddings `x` of `tokens`, with zeros for the dropped tokens."""
        if not self.training or self.dropout.probability == 0.0:
            return x
        return x * self.dropout(x.new_ones(vocab_size, 1))[tokens]


class StochasticDepth(nn.Module):
    """Dropout of a residual branch: in training its output is zero for some of the sequences or images of a batch."""

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        if not self.training or self.probability == 0.0:
            return x
        kept = torch.rand(x.size(0), *[1] * (x.dim() - 1), device=x.device) >= self.probability
        return x * (kept.to(x.dtype) / (1.0 - self.probability))


def branch_probabilities(last: float, num_layers: int) -> list[float]:
    """The probability of dropping the branches of each layer: linear in depth, from 0 to `last`.

    Example:
        >>> branch_probabilities(0.2, 3)
        [0.0, 0.1, 0.2]
    """
    return [last * layer / max(1, num_layers - 1) for layer in range(num_layers)]


def make_dropout(probability: float, *, is_locked: bool) -> Dropout | LockedDropout:
    """Return `LockedDropout` or `Dropout`."""
    return LockedDropout(probability) if is_locked else Dropout(probability)
