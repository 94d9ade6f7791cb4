r"""Mixtures of discretized logistic distributions, for numbers of a few ordered levels, such as pixels.

Salimans et al., "PixelCNN++: Improving the PixelCNN with Discretized Logistic Mixture Likelihood and Other
Modifications" (2017), section 2.1. https://arxiv.org/abs/1701.05517

Level $v$ of $L$ is the number $x = 2 v / (L - 1) - 1$. Its probability is that of the interval between the middles to
its neighbors; the first and the last interval have no outer end, so that the probabilities of all levels sum to 1:

$$ p(v) = \sum_k \pi_k \left[ \sigma\left(\frac{x + h - \mu_k}{s_k}\right)
          - \sigma\left(\frac{x - h - \mu_k}{s_k}\right) \right], \quad h = \frac{1}{L - 1} $$

Dimensions: `components` of a mixture, `levels`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def scale_levels(levels: Int[Tensor, "*shape"], num_levels: int) -> Float[Tensor, "*shape"]:
    """Return levels as numbers from -1 to 1.

    Example:
        >>> scale_levels(torch.tensor([0, 1, 4]), 5).tolist()
        [-1.0, -0.5, 1.0]
    """
    return levels.to(torch.get_default_dtype()) * (2.0 / (num_levels - 1)) - 1.0


def mixture_log_probs(
    levels: Int[Tensor, "*shape"],
    weights: Float[Tensor, "*shape components"],
    means: Float[Tensor, "*shape components"],
    log_scales: Float[Tensor, "*shape components"],
    num_levels: int,
) -> Float[Tensor, "*shape"]:
    """Return the log-probability of each level; `weights` are logits of the components."""
    x = scale_levels(levels, num_levels)[..., None]
    half, precisions = 1.0 / (num_levels - 1), (-log_scales).exp()
    upper, lower = (x - means + half) * precisions, (x - means - half) * precisions
    # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)), which loses no digits where both are near 1.
    # By softplus: as an ONNX graph, logsigmoid is the logarithm of a sigmoid that may be 0.
    below, above = -F.softplus(-upper), -F.softplus(lower)
    within = below + above + (-torch.expm1(-2.0 * half * precisions)).log()
    is_first, is_last = (levels == 0)[..., None], (levels == num_levels - 1)[..., None]
    found = torch.where(is_first, below, torch.where(is_last, above, within))
    return (weights.log_softmax(dim=-1) + found).logsumexp(dim=-1)


def mixture_distribution(
    weights: Float[Tensor, "*shape components"],
    means: Float[Tensor, "*shape components"],
    log_scales: Float[Tensor, "*shape components"],
    num_levels: int,
) -> Float[Tensor, "*shape levels"]:
    """Return the log-probabilities of all levels."""
    levels = torch.arange(num_levels, device=weights.device).expand(*weights.shape[:-1], num_levels)
    weights, means, log_scales = (part[..., None, :].expand(*levels.shape, -1) for part in (weights, means, log_scales))
    return mixture_log_probs(levels, weights, means, log_scales, num_levels)
