"""Position encodings: attention by itself does not depend on the order of its inputs.

    sinusoidal  sines and cosines added to the embeddings    Vaswani et al. (2017), section 3.5
    learned     one vector for each position, added          Gehring et al. (2017), arXiv 1705.03122
    rotary      queries and keys rotated by their position   Su et al. (2021), arXiv 2104.09864
    relative    a learned bias for each distance and head    Raffel et al. (2020), arXiv 1910.10683, section 2.1
    alibi       a fixed, linear penalty on distance          Press et al. (2022), arXiv 2108.12409
    shaw        a learned vector for each distance, added    Shaw et al. (2018), arXiv 1803.02155
                to the keys

Each scheme is a module that returns, for the positions of the queries and of the
keys, a `PositionEncoding`: embeddings, a rotation or a bias. The positions are
the same for all rows of a batch or, in two dimensions, given for each row.

Dimensions: see `regard.nn.attention`; `*rows` is empty, or the batch.
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError

Positions = Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "shaw", "none"]
Stretching = Literal["llama3", "linear", "ntk", "yarn"]

_LLAMA_TURNS, _YARN_TURNS = (1.0, 4.0), (1.0, 32.0)
"""Turns of a plane within the original context: below the first it is stretched fully, above the second not at all."""


class Rotation(NamedTuple):
    """The cosine and the sine of each position's angles."""

    cosine: Float[Tensor, "*rows time half"]
    sine: Float[Tensor, "*rows time half"]


class PositionEncoding(NamedTuple):
    """The encoding of some positions; what a scheme does not use is None."""

    embeddings: Float[Tensor, "*rows query model"] | None = None
    rotation: Rotation | None = None
    bias: Float[Tensor, "*rows heads query key"] | None = None
    relative_keys: Float[Tensor, "*rows query key head"] | None = None

    def bias_for(self, q: Float[Tensor, "batch heads query head"]) -> Float[Tensor, "#batch heads query key"] | None:
        """Return what is added to the attention scores of these queries."""
        bias = self.bias[None] if self.bias is not None and self.bias.dim() == 3 else self.bias
        if self.relative_keys is None:
            return bias
        relative_keys = self.relative_keys.to(q.dtype)
        rows = "b" if relative_keys.dim() == 4 else ""
        scores = torch.einsum(f"bhqd,{rows}qkd->bhqk", q, relative_keys) / math.sqrt(q.size(-1))
        return scores if bias is None else scores + bias


class Sinusoidal(nn.Module):
    r"""Sines and cosines of geometrically increasing wavelengths, added to the embeddings.

    $$ P_{t,2i} = \sin(t / L^{2i/d}), \quad P_{t,2i+1} = \cos(t / L^{2i/d}) $$

    The base $L$ sets the longest wavelength, $2\pi L$.
    """

    def __init__(self, model_dim: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        _require_even("model_dim", model_dim)
        self.model_dim, self.base = model_dim, base

    def forward(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> PositionEncoding:
        angles = _angles(query_positions, self.model_dim, self.base)
        return PositionEncoding(embeddings=torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2))


class Learned(nn.Module):
    """One learned vector for each of `context_length` positions, added to the embeddings."""

    def __init__(self, context_length: int, model_dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(context_length, model_dim)

    def forward(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> PositionEncoding:
        return PositionEncoding(embeddings=self.table(query_positions))


class Rotary(nn.Module):
    r"""Queries and keys rotated by angles proportional to their position.

    Coordinates $i$ and $i + d/2$ of a head form a plane; position $t$ rotates it
    by $t / L^{2i/d}$. The score of a query and a key then depends on their
    distance and not on their absolute positions.

    A `stretch` extends a model beyond the `stretch_from` positions of its original
    training context:

        linear   every plane rotates that many times slower (Chen et al., 2023, arXiv 2306.15595)
        ntk      a larger base, by which the slowest plane rotates that many times slower and the fastest as before
        llama3   planes that make less than one turn within the original context rotate that many times slower, those
                 that make more than four are unchanged, and those between are interpolated by their number of turns
                 (Dubey et al., "The Llama 3 Herd of Models", 2024, arXiv 2407.21783)
        yarn     the same from one to 32 turns, interpolated by the number of the plane, and queries and keys are
                 multiplied by 0.1 ln(stretch) + 1 (Peng et al., "YaRN", 2023, arXiv 2309.00071, sections 3.2 and 3.4)
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        stretch: float = 1.0,
        stretch_from: int = 8_192,
        stretch_by: Stretching = "llama3",
    ) -> None:
        super().__init__()
        _require_even("head_dim", head_dim)
        self.head_dim, self.base = head_dim, base
        self.stretch, self.stretch_from = stretch, stretch_from
        self.stretch_by: Stretching = stretch_by

    def forward(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> PositionEncoding:
        angles = _angles(query_positions, self.head_dim, self.base)
        if self.stretch != 1.0:
            angles = angles * self._speeds(angles)
        cosine, sine = angles.cos(), angles.sin()
        if self.stretch != 1.0 and self.stretch_by == "yarn":
            factor = 0.1 * math.log(self.stretch) + 1.0
            cosine, sine = factor * cosine, factor * sine
        return PositionEncoding(rotation=Rotation(cosine, sine))

    def _speeds(self, like: Float[Tensor, "*rows time half"]) -> Float[Tensor, " half"]:
        """Return the rotation speed of each plane relative to that without a stretch."""
        exponents = torch.arange(0, self.head_dim, 2, device=like.device) / self.head_dim
        match self.stretch_by:
            case "linear":
                return torch.full_like(exponents, 1.0 / self.stretch)
            case "ntk":
                # The base is multiplied by stretch^(d / (d - 2)): the last exponent is (d - 2) / d.
                return self.stretch ** (-exponents * self.head_dim / max(1, self.head_dim - 2))
            case "llama3":
                slow, fast = _LLAMA_TURNS
                num_turns = self.stretch_from / (2 * math.pi * self.base**exponents)
                kept = ((num_turns - slow) / (fast - slow)).clamp(0.0, 1.0)
            case "yarn":
                slow, fast = (self._plane_with(turns) for turns in _YARN_TURNS)
                first, last = max(0, math.floor(fast)), min(self.head_dim - 1, math.ceil(slow))
                planes = torch.arange(self.head_dim // 2, device=like.device)
                # The small number: of two equal ends, one plane is kept.
                kept = 1.0 - ((planes - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
        return kept + (1.0 - kept) / self.stretch

    def _plane_with(self, num_turns: float) -> float:
        """Return the number of the plane, in fractions, that makes so many turns within the original context."""
        wavelength = self.stretch_from / num_turns
        return self.head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(self.base))


class RelativeBias(nn.Module):
    """A learned bias for each head and each bucket of distances, added to the scores.

    Short distances have one bucket each; longer ones share buckets that widen
    with the logarithm of the distance, up to `max_distance`, beyond which all
    share one. With causal attention there are no buckets for later positions.
    """

    def __init__(
        self, num_heads: int, *, is_causal: bool = False, num_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        self.is_causal, self.num_buckets, self.max_distance = is_causal, num_buckets, max_distance
        self.table = nn.Embedding(num_buckets, num_heads)

    def forward(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> PositionEncoding:
        buckets = self.bucket(_offsets(query_positions, key_positions))
        return PositionEncoding(bias=self.table(buckets).movedim(-1, -3))

    def bucket(self, offset: Int[Tensor, "*rows query key"]) -> Int[Tensor, "*rows query key"]:
        """Return the bucket of each offset, key position minus query position."""
        num_buckets = self.num_buckets
        if self.is_causal:
            first, distance = torch.zeros_like(offset), (-offset).clamp(min=0)
        else:
            num_buckets //= 2
            first, distance = (offset > 0).long() * num_buckets, offset.abs()
        exact = num_buckets // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(self.max_distance / exact)
        wide = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
        return first + torch.where(distance < exact, distance, wide)


class ALiBi(nn.Module):
    """A linear penalty on distance with a fixed slope for each head; it has no parameters.

    With n heads, n a power of two, head h of 1..n is penalized by 2^(-8h/n) per
    position of distance. Other counts interleave the slopes of the powers of two
    below and above, as the authors' code does.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> PositionEncoding:
        distance = _offsets(query_positions, key_positions).abs()
        slopes = torch.tensor(alibi_slopes(self.num_heads), device=distance.device)
        return PositionEncoding(bias=-slopes[:, None, None] * distance[..., None, :, :])


class RelativeKeys(nn.Module):
    """A learned vector for each distance, clipped at `max_distance`, shared by the heads.

    The inner product of the query and the vector of its distance to the key is
    added to their score (Shaw et al., equation 5; their vectors for the values are
    not implemented).
    """

    def __init__(self, head_dim: int, *, max_distance: int = 16) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Embedding(2 * max_distance + 1, head_dim)

    def forward(
        self, query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
    ) -> PositionEncoding:
        offset = _offsets(query_positions, key_positions)
        return PositionEncoding(
            relative_keys=self.table(offset.clamp(-self.max_distance, self.max_distance) + self.max_distance)
        )


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head's penalty.

    Example:
        >>> alibi_slopes(4)
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    below = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / below) for head in range(1, below + 1)]
    between = [2 ** (-8 * head / (2 * below)) for head in range(1, 2 * below + 1, 2)]
    return slopes + between[: num_heads - below]


def rotate(x: Float[Tensor, "batch heads time head"], rotation: Rotation) -> Float[Tensor, "batch heads time head"]:
    """Rotate each plane (i, i + head/2) of `x` by the angle of its position."""
    # One more dimension in front of the positions: the rotation is the same for every head.
    cosine, sine = (torch.cat([part, part], dim=-1).to(x.dtype).unsqueeze(-3) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cosine, torch.cat([-second, first], dim=-1), sine)


def _offsets(
    query_positions: Int[Tensor, "*rows query"], key_positions: Int[Tensor, "*rows key"]
) -> Int[Tensor, "*rows query key"]:
    return key_positions[..., None, :] - query_positions[..., :, None]


def _angles(positions: Int[Tensor, "*rows time"], dim: int, base: float) -> Float[Tensor, "*rows time half"]:
    # In the default dtype, not that of the weights: in bfloat16 position 257 would equal 256.
    exponents = torch.arange(0, dim, 2, device=positions.device) / dim
    return positions[..., None] / base**exponents


def _require_even(name: str, value: int) -> None:
    if value % 2:
        raise ConfigError(f"{name} must be even for sinusoidal and rotary positions, got {value}")
