"""Dropout: in training each number is set to zero with some probability, and the others are enlarged to make up.

Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).
https://jmlr.org/papers/v15/srivastava14a.html
Gal & Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks" (2016), for masks that
hold for a whole sequence, and for whole words. https://arxiv.org/abs/1512.05287

Dimensions: `batch` sequences, `time` positions, `model` width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

_LEVELS = 1 << 16
_LOWEST = -(1 << 15)


class Dropout(nn.Module):
    """`nn.Dropout`, with a third of its time on a CPU.

    There the time goes into random numbers, and a number of 64 random bits
    decides about four places, 16 bits each: `probability` is rounded to a
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
    """Dropout that drops the same numbers at all positions of a sequence, and others in each sequence.

    A state that is carried on cannot learn to see through it, as it can where each
    position draws anew: what is dropped once is not to be had a position later.
    """

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(probability)

    def forward(self, x: Float[Tensor, "batch time model"]) -> Float[Tensor, "batch time model"]:
        if not self.training or self.dropout.probability == 0.0:
            return x
        return x * self.dropout(x.new_ones(x.size(0), 1, x.size(2)))


class TokenDropout(nn.Module):
    """Dropout of whole tokens of the vocabulary: one that is dropped reads as zeros wherever it stands in the batch.

    Gal & Ghahramani (2016), section 4.2; Merity et al. (2017), section 4.3, arXiv 1708.02182.
    """

    def __init__(self, vocab_size: int, probability: float = 0.0) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.dropout = Dropout(probability)

    def forward(
        self, x: Float[Tensor, "batch time model"], tokens: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time model"]:
        """The embeddings `x` of `tokens`, less those that are dropped."""
        if not self.training or self.dropout.probability == 0.0:
            return x
        return x * self.dropout(x.new_ones(self.vocab_size, 1))[tokens]


def make_dropout(probability: float, *, is_locked: bool) -> Dropout | LockedDropout:
    """Dropout of either kind."""
    return LockedDropout(probability) if is_locked else Dropout(probability)
