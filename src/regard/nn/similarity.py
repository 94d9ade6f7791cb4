r"""How well a query fits a key: the functions that attention can score by.

    dot          $q \cdot k$                                            Luong et al. (2015), arXiv 1508.04025
    scaled-dot   $q \cdot k / \sqrt d$                                  Vaswani et al. (2017), arXiv 1706.03762
    bilinear     $q^\top W k$ ("general")                               Luong et al. (2015), section 3.1
    additive     $v^\top \tanh(W q + U k)$                              Bahdanau et al. (2014), arXiv 1409.0473, A.1.2
    cosine       $s \cos(q, k)$, with a learned $s$                     Henry et al. (2020), arXiv 2010.04245
    gaussian     $-\lVert q - k \rVert^2 / 2 \sqrt d$                   Nadaraya (1964), Watson (1964)
    mahalanobis  $-(q - k)^\top M (q - k) / 2 \sqrt d$, $M$ learned     Mahalanobis (1936)
    latent       $\log \sum_c p(c \mid q) \exp(s_c(q, k))$              a mixture over latent components

A score is the logarithm of a kernel: softmax over the keys makes the kernels
sum to one. The factor $\sqrt d$ keeps scores of random vectors of length
$\sqrt d$ at a size where softmax still has a slope.

A similarity is two functions: `prepare` does once what depends on the keys
alone, and calling it scores queries against prepared keys.

Dimensions: see `regard.nn.attention`; `shared` counts the key/value heads,
each of which has parameters of its own.
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
    """Queries and prepared keys in, scores out."""

    def prepare(self, k: Keys) -> Keys:
        """What the scores need of the keys; computed once for keys that are looked at again and again."""
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
    """A learned matrix between query and key; it starts as the scaled inner product."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1) / math.sqrt(head_dim))

    def prepare(self, k: Keys) -> Keys:
        return k @ self.weight.transpose(-2, -1)

    def forward(self, q: Queries, k: Keys) -> Scores:
        return q @ _for_each_query_head(k, q).transpose(-2, -1)


class Additive(Similarity):
    """A small network with one hidden layer, as wide as a head."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(_uniform(num_heads, head_dim, head_dim))
        self.key = nn.Parameter(_uniform(num_heads, head_dim, head_dim))
        self.output = nn.Parameter(_uniform(num_heads, head_dim, 1))

    def prepare(self, k: Keys) -> Keys:
        return k @ self.key

    def forward(self, q: Queries, k: Keys) -> Scores:
        weight, output = (_for_each_query_head(part[None], q)[0] for part in (self.query, self.output))
        # One hidden layer for each pair of a query and a key.
        hidden = ((q @ weight)[:, :, :, None] + _for_each_query_head(k, q)[:, :, None]).tanh()
        return (hidden @ output[:, None]).squeeze(-1)


class Cosine(Similarity):
    """The angle alone counts; its learned factor starts at 10, since a cosine never exceeds 1."""

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
    definite whatever is learned. It starts as the identity.
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
    r"""What fits depends on a latent choice that the query makes, and that is summed out.

    $$ \log \sum_c p(c \mid q) \exp(q^\top \mathrm{diag}(w_c)\, k / \sqrt d), \qquad
       p(c \mid q) = \mathrm{softmax}_c(g_c \cdot q) $$

    Each of the components weighs the coordinates in its own way.
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
    """The similarity of that name, for keys of `num_heads` heads of width `head_dim`."""
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
    """Each key/value head as often as there are query heads that share it."""
    return x if x.size(1) == q.size(1) else x.repeat_interleave(q.size(1) // x.size(1), dim=1)


def _uniform(num_heads: int, width: int, height: int) -> Float[Tensor, "shared width height"]:
    """Glorot's weights for each head."""
    bound = math.sqrt(6 / (width + height))
    return cast(Tensor, torch.empty(num_heads, width, height).uniform_(-bound, bound))
