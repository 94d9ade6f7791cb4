r"""Linear attention: the softmax is replaced by a product of features, so that the cost is linear in the length.

Katharopoulos et al., "Transformers are RNNs" (2020), equations 4 to 9 and 16 to 20. https://arxiv.org/abs/2006.16236
Su et al., "RoFormer" (2021), equation 19: rotary positions in linear attention. https://arxiv.org/abs/2104.09864

$$ o_t = \frac{\sum_s \langle R_t \phi(q_t), R_s \phi(k_s) \rangle v_s}{\sum_s \langle \phi(q_t), \phi(k_s) \rangle},
   \qquad \phi(x) = \mathrm{elu}(x) + 1 $$

Without rotary positions $R$ is the identity. The sums over $s$ do not depend on the
query, so that a causal model needs to store nothing else: it is a recurrent network
whose state is $\sum_s R_s \phi(k_s) v_s^\top$ and $\sum_s \phi(k_s)$.

Dimensions: see `regard.nn.attention`; `group` query heads of a key/value head, `chunks` of positions.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.nn.kv_cache import LinearCache
from regard.nn.masks import causal_mask
from regard.nn.positions import Rotation, rotate

_CHUNK = 64
"""Positions whose scores are computed directly: about the width of a head, so that both parts cost the same."""


class LinearLookup(nn.Module):
    """Attention by sums of features instead of a softmax; of a causal one the sums can be kept in a cache.

    If `watcher` is set, it is called with the attention weights of each forward pass
    without a cache. With rotary positions weights can be negative.
    """

    def __init__(self, *, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal, self.chunk_length = is_causal, _CHUNK
        self.watcher: Callable[[Tensor], None] | None = None

    def prepare(self, k: Float[Tensor, "batch shared key head"]) -> Float[Tensor, "batch shared key head"]:
        return k

    def forward(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared query head"],
        v: Float[Tensor, "batch shared query value"],
        mask: Bool[Tensor, "#batch 1 #query query"] | None = None,
        *,
        rotation: Rotation | None = None,
        cache: LinearCache | None = None,
    ) -> Float[Tensor, "batch heads query value"]:
        """Return the average of the values for each query; `q` and `k` are not rotated yet.

        `mask` marks padding or, with one row per query, is complete.
        """
        dtype = v.dtype
        # Sums over many positions: at least in float32.
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (part.to(torch.promote_types(dtype, torch.float32)) for part in (q, k, v))
            q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
            rotated = (q, k) if rotation is None else (rotate(q, rotation), rotate(k, rotation))
            has_rows = mask is not None and mask.size(2) > 1
            if cache is None and (self.watcher is not None or has_rows or torch.compiler.is_exporting()):
                return self.attend_directly(q, k, v, mask, rotated).to(dtype)
            if mask is not None:
                is_key = mask.transpose(2, 3).to(k.dtype)
                k, rotated = k * is_key, (rotated[0], rotated[1] * is_key)
            shared = k.size(1)
            # A dimension of `group`, along which the query heads of a key/value head are.
            q, rotated_q = (part.unflatten(1, (shared, -1)) for part in (q, rotated[0]))
            attend = self._attend_causally if self.is_causal else self._attend_to_all
            return attend(q, k, v, (rotated_q, rotated[1]), cache).flatten(1, 2).to(dtype)

    def attend_directly(
        self,
        q: Float[Tensor, "batch heads query head"],
        k: Float[Tensor, "batch shared key head"],
        v: Float[Tensor, "batch shared key value"],
        mask: Bool[Tensor, "#batch 1 #query key"] | None,
        rotated: tuple[Tensor, Tensor],
    ) -> Float[Tensor, "batch heads query value"]:
        """Compute the sums as the formula has them, with a cost that is quadratic in the length."""
        num_sharing = q.size(1) // k.size(1)
        if self.is_causal and (mask is None or mask.size(2) == 1):
            causal = causal_mask(q.size(2), k.size(2), q.device)
            mask = causal if mask is None else mask & causal
        k, rotated_k, v = (part.repeat_interleave(num_sharing, dim=1) for part in (k, rotated[1], v))
        kernels, signed = q @ k.transpose(2, 3), rotated[0] @ rotated_k.transpose(2, 3)
        if mask is not None:
            kernels, signed = kernels.masked_fill(~mask, 0.0), signed.masked_fill(~mask, 0.0)
        weights = _divide(signed, kernels.sum(dim=-1, keepdim=True))
        if self.watcher is not None:
            self.watcher(weights)
        return weights @ v

    def _attend_to_all(
        self, q: Tensor, k: Tensor, v: Tensor, rotated: tuple[Tensor, Tensor], cache: LinearCache | None
    ) -> Float[Tensor, "batch shared group query value"]:
        sums = rotated[1].transpose(2, 3) @ v
        totals = k.sum(dim=2)
        return _divide(rotated[0] @ sums[:, :, None], q @ totals[:, :, None, :, None])

    def _attend_causally(
        self,
        q: Float[Tensor, "batch shared group query head"],
        k: Float[Tensor, "batch shared query head"],
        v: Float[Tensor, "batch shared query value"],
        rotated: tuple[Tensor, Tensor],
        cache: LinearCache | None,
    ) -> Float[Tensor, "batch shared group query value"]:
        """Within a chunk the scores are computed directly; those before it are in the sums up to its start."""
        length = min(self.chunk_length, k.size(2))
        num_chunks = -(-k.size(2) // length)
        num_new, rest = k.size(2), num_chunks * length - k.size(2)
        # Features of zero after the end change no sum.
        q, k, v, rotated_q, rotated_k = (F.pad(part, (0, 0, 0, rest)) for part in (q, k, v, *rotated))
        k, v, rotated_k = (part.unflatten(2, (num_chunks, length)) for part in (k, v, rotated_k))
        q, rotated_q = (part.unflatten(3, (num_chunks, length)) for part in (q, rotated_q))
        sums = (rotated_k.transpose(3, 4) @ v).cumsum(dim=2)
        totals = k.sum(dim=3).cumsum(dim=2)
        first_sums, first_totals = torch.zeros_like(sums[:, :, 0]), torch.zeros_like(totals[:, :, 0])
        if cache is not None:
            first_sums, first_totals = cache.sums.to(sums.dtype).clone(), cache.totals.to(sums.dtype).clone()
            cache.update(first_sums + sums[:, :, -1], first_totals + totals[:, :, -1], num_new)
        before = torch.cat([first_sums[:, :, None], first_sums[:, :, None] + sums[:, :, :-1]], dim=2)
        before_totals = torch.cat([first_totals[:, :, None], first_totals[:, :, None] + totals[:, :, :-1]], dim=2)
        signed = (rotated_q @ rotated_k[:, :, None].transpose(4, 5)).tril()
        kernels = (q @ k[:, :, None].transpose(4, 5)).tril()
        averaged = signed @ v[:, :, None] + rotated_q @ before[:, :, None]
        normalizers = kernels.sum(dim=-1, keepdim=True) + q @ before_totals[:, :, None, :, :, None]
        return _divide(averaged, normalizers).flatten(3, 4)[:, :, :, :num_new]


def _divide(x: Tensor, normalizers: Tensor) -> Tensor:
    # A query without any key returns zeros rather than NaN.
    return x / normalizers.clamp(min=torch.finfo(normalizers.dtype).tiny)
