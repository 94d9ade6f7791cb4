r"""Shaped attention: attention that starts out as the identity, and so needs no skip connection around it.

Noci et al., "The Shaped Transformer" (2023). https://arxiv.org/abs/2306.17759
He & Hofmann, "Simplifying Transformer Blocks" (2023), equation 5. https://arxiv.org/abs/2311.01906

$$ \alpha I + \beta A - \gamma C $$

$A$ are the attention weights and $C$ is what they are while the queries are
zero: for an inner product the plain average over what a query may see, tilted
by the bias where positions have one. With the queries' projection zero at the
start, $A = C$, and with $\alpha = \beta = \gamma = 1$ each position hands on its
own value.

Dimensions: see `regard.nn.attention`.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention import Bias, Lookup, Mask


class ShapedLookup(nn.Module):
    """A look-up among one's own positions, shaped; three learned numbers for each head.

    `own` are the values of the positions that look. A watcher of
    the inner look-up is handed the weights $A$.
    """

    def __init__(self, lookup: Lookup, num_heads: int) -> None:
        super().__init__()
        self.lookup = lookup
        self.identity, self.attention, self.average = (nn.Parameter(torch.ones(num_heads, 1, 1)) for _ in range(3))

    def prepare(self, k: Float[Tensor, "batch shared key head"]) -> Float[Tensor, "batch shared key head"]:
        return self.lookup.prepare(k)

    def forward(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key head"],
        mask: Mask | None = None,
        bias: Bias | None = None,
        *,
        own: Float[Tensor, "batch shared query head"],
    ) -> Float[Tensor, "batch heads query head"]:
        own = own.repeat_interleave(q.size(1) // own.size(1), dim=1)
        found = self.lookup(q, k, v, mask, bias)
        unasked = self.lookup.find_unasked(q, k, v, mask, bias)
        return self.identity * own + self.attention * found - self.average * unasked
