"""Dropout: in training each number is set to zero with some probability, and the others are enlarged to make up.

Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014).
https://jmlr.org/papers/v15/srivastava14a.html
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
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
