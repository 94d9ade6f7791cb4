r"""Similarities: the functions by which attention scores a key for a query.

    dot          $q \cdot k$                                            Luong et al. (2015), arXiv 1508.04025
    scaled-dot   $q \cdot k / \sqrt d$                                  Vaswani et al. (2017), arXiv 1706.03762
    bilinear     $q^\top W k$ ("general")                               Luong et al. (2015), section 3.1
    additive     $v^\top \tanh(W q + U k)$                              Bahdanau et al. (2014), arXiv 1409.0473, A.1.2
    cosine       $s \cos(q, k)$, with a learned $s$                     Henry et al. (2020), arXiv 2010.04245
    gaussian     $-\lVert q - k \rVert^2 / 2 \sqrt d$                   Nadaraya (1964), Watson (1964)
    mahalanobis  $-(q - k)^\top M (q - k) / 2 \sqrt d$, $M$ learned     Mahalanobis (1936)
    latent       $\log \sum_c p(c \mid q) \exp(s_c(q, k))$              a mixture over latent components

A score is the logarithm of a kernel: softmax over the keys normalizes the kernels
to sum to one. The factor $\sqrt d$ keeps the scores of random vectors of length
$\sqrt d$ in the range where softmax has a useful gradient.

A similarity has two functions: `prepare` computes once what depends on the keys
alone, and `forward` scores queries against prepared keys.

Dimensions: see `regard.nn.attention`; `shared` counts the key/value heads,
each of which has its own parameters.
"""

import math
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

SimilarityName = Literal["dot", "scaled-dot", "bilinear", "additive", "cosine", "gaussian", "mahalanobis", "latent"]
Queries = Float[Tensor, "batch heads query head"]
Keys = Float[Tensor, "batch shared key head"]
Scores = Float[Tensor, "batch heads query key"]


class Similarity(nn.Module):
    """Scores each pair of a query and a prepared key."""

    def prepare(self, k: Keys) -> Keys:
        """Return what `forward` needs of the keys; computed once for keys that are used in several steps."""
        return k

    def forward(self, q: Queries, k: Keys) -> Scores:
        raise NotImplementedError


class DotProduct(Similarity):
    """`scale` times the inner product."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Queries, k: Keys) -> Scores:
        return self.scale * q @ _for_each_query_head(k, q).transpose(-2, -1)


class Bilinear(Similarity):
    """A learned matrix between query and key, initialized to the scaled inner product."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1) / math.sqrt(head_dim))

    def prepare(self, k: Keys) -> Keys:
        return k @ self.weight.transpose(-2, -1)

    def forward(self, q: Queries, k: Keys) -> Scores:
        return q @ _for_each_query_head(k, q).transpose(-2, -1)


class Additive(Similarity):
    """A network with one hidden layer of the width of a head."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(_uniform(num_heads, head_dim, head_dim))
        self.key = nn.Parameter(_uniform(num_heads, head_dim, head_dim))
        self.output = nn.Parameter(_uniform(num_heads, head_dim, 1))

    def prepare(self, k: Keys) -> Keys:
        return k @ self.key

    def forward(self, q: Queries, k: Keys) -> Scores:
        weight, output = (_for_each_query_head(part[None], q)[0] for part in (self.query, self.output))
        # batch heads query key head: a hidden layer for each pair.
        hidden = ((q @ weight)[:, :, :, None] + _for_each_query_head(k, q)[:, :, None]).tanh()
        return (hidden @ output[:, None]).squeeze(-1)


class Cosine(Similarity):
    """The cosine of the angle times a learned factor, initialized to 10 because a cosine never exceeds 1."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))

    def prepare(self, k: Keys) -> Keys:
        return F.normalize(k, dim=-1) * self.log_scale.exp()

    def forward(self, q: Queries, k: Keys) -> Scores:
        return F.normalize(q, dim=-1) @ _for_each_query_head(k, q).transpose(-2, -1)


class Gaussian(Similarity):
    r"""The logarithm of a Gaussian kernel of variance $\sqrt d$: attention becomes kernel regression."""

    def forward(self, q: Queries, k: Keys) -> Scores:
        k = _for_each_query_head(k, q)
        squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1)[:, :, None]
        return (q @ k.transpose(-2, -1) - squares / 2) / math.sqrt(q.size(-1))


class Mahalanobis(Similarity):
    r"""A Gaussian kernel under a learned metric $M = L L^\top$.

    $L$ is triangular and its diagonal an exponential, so that $M$ is positive
    definite for any parameters. It is initialized to the identity.
    """

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.below = nn.Parameter(torch.zeros(num_heads, head_dim, head_dim))
        self.log_diagonal = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.gaussian = Gaussian()

    @property
    def factor(self) -> Float[Tensor, "shared head head"]:
        """The triangular matrix L."""
        return self.below.tril(-1) + self.log_diagonal.exp().diag_embed()

    def prepare(self, k: Keys) -> Keys:
        return k @ self.factor

    def forward(self, q: Queries, k: Keys) -> Scores:
        return self.gaussian(q @ _for_each_query_head(self.factor[None], q)[0], k)


class Latent(Similarity):
    r"""A mixture of weighted inner products, whose latent component is chosen by the query and summed out.

    $$ \log \sum_c p(c \mid q) \exp(q^\top \mathrm{diag}(w_c)\, k / \sqrt d), \qquad
       p(c \mid q) = \mathrm{softmax}_c(g_c \cdot q) $$

    Each component $c$ has its own weights $w_c$ of the coordinates.
    """

    def __init__(self, head_dim: int, num_heads: int, num_components: int = 4) -> None:
        super().__init__()
        self.gate = nn.Parameter(_uniform(num_heads, head_dim, num_components))
        self.weights = nn.Parameter(1.0 + _uniform(num_heads, num_components, head_dim))

    def forward(self, q: Queries, k: Keys) -> Scores:
        gate, weights = (_for_each_query_head(part[None], q)[0] for part in (self.gate, self.weights))
        prior = (q @ gate).log_softmax(dim=-1).movedim(-1, 2)
        weighted = q[:, :, None] * weights[:, :, None] / math.sqrt(q.size(-1))
        scores = weighted @ _for_each_query_head(k, q)[:, :, None].transpose(-2, -1)
        return (prior[..., None] + scores).logsumexp(dim=2)


def make_similarity(name: SimilarityName, head_dim: int, num_heads: int) -> Similarity:
    """Return the similarity of that name, for keys of `num_heads` heads of width `head_dim`."""
    match name:
        case "dot":
            return DotProduct()
        case "scaled-dot":
            return DotProduct(head_dim**-0.5)
        case "bilinear":
            return Bilinear(head_dim, num_heads)
        case "additive":
            return Additive(head_dim, num_heads)
        case "cosine":
            return Cosine(num_heads)
        case "gaussian":
            return Gaussian()
        case "mahalanobis":
            return Mahalanobis(head_dim, num_heads)
        case "latent":
            return Latent(head_dim, num_heads)


def _for_each_query_head(x: Float[Tensor, "rows shared *rest"], q: Queries) -> Float[Tensor, "rows heads *rest"]:
    """Repeat each key/value head for the query heads that share it."""
    return x if x.size(1) == q.size(1) else x.repeat_interleave(q.size(1) // x.size(1), dim=1)


def _uniform(num_heads: int, width: int, height: int) -> Float[Tensor, "shared width height"]:
    """Glorot-uniform weights for each head."""
    bound = math.sqrt(6 / (width + height))
    return cast(Tensor, torch.empty(num_heads, width, height).uniform_(-bound, bound))
