r"""Losses of models that learn from preferences and rewards.

    bradley_terry_losses     rewards of pairs          Bradley & Terry (1952); Christiano et al. (2017), 1706.03741
    dpo_losses               pairs, with a reference   Rafailov et al. (2023), arXiv 2305.18290, equation 7
    ipo_losses               pairs, with a reference   Azar et al. (2023), arXiv 2310.12036, equation 17
    simpo_losses             pairs, without one        Meng et al. (2024), arXiv 2405.14734, equation 6
    orpo_losses              pairs, without one        Hong et al. (2024), arXiv 2403.07691, equations 4 to 7
    policy_gradient_losses   sampled texts             Williams (1992), REINFORCE
    clipped_losses           sampled texts, reused     Schulman et al. (2017), PPO, arXiv 1707.06347, equation 7

and what the last two need: `leave_one_out` (Kool et al., 2019; Ahmadian et al., 2024, arXiv 2402.14740),
`group_advantages` (GRPO: Shao et al., 2024, arXiv 2402.03300, section 4.1), `generalized_advantages` (Schulman et al.,
2015, arXiv 1506.02438, equation 16), and estimates of the KL divergence from a reference.

A log-probability of a text is the sum over its answer's tokens, each given all before it; the prompt does not count.
All functions return a loss for each row or token, which the caller sums or averages.

Dimensions: `batch` rows, `time` positions of an answer, `prompts` and `samples` of each.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

_EPSILON = 1e-4
"""Added to the standard deviation of the rewards of a group, which is 0 where all are equal."""
_LEAST_VARIANCE = 1e-8


def bradley_terry_losses(chosen: Float[Tensor, " batch"], rejected: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    r"""$-\log \sigma(r_w - r_l)$: the negative log-likelihood of preferring the first under rewards $r$."""
    return -F.logsigmoid(chosen - rejected)


def dpo_losses(
    chosen: Float[Tensor, " batch"],
    rejected: Float[Tensor, " batch"],
    reference_chosen: Float[Tensor, " batch"],
    reference_rejected: Float[Tensor, " batch"],
    *,
    beta: float,
) -> Float[Tensor, " batch"]:
    r"""$-\log \sigma\big(\beta \log \frac{\pi(y_w)}{\pi_0(y_w)} - \beta \log \frac{\pi(y_l)}{\pi_0(y_l)}\big)$.

    The arguments are log-probabilities of whole answers. The optimum is that of a reward model by Bradley and Terry,
    and a policy that maximizes its reward minus $\beta$ times the KL divergence from the reference.
    """
    return -F.logsigmoid(beta * ((chosen - reference_chosen) - (rejected - reference_rejected)))


def ipo_losses(
    chosen: Float[Tensor, " batch"],
    rejected: Float[Tensor, " batch"],
    reference_chosen: Float[Tensor, " batch"],
    reference_rejected: Float[Tensor, " batch"],
    *,
    beta: float,
) -> Float[Tensor, " batch"]:
    r"""$\big(\log \frac{\pi(y_w)}{\pi_0(y_w)} - \log \frac{\pi(y_l)}{\pi_0(y_l)} - \frac{1}{2\beta}\big)^2$.

    A margin to be reached rather than maximized, so that sure preferences do not drive the policy away from its
    reference. The arguments are means over the tokens of an answer, as in the paper's experiments.
    """
    return ((chosen - reference_chosen) - (rejected - reference_rejected) - 1 / (2 * beta)).square()


def simpo_losses(
    chosen: Float[Tensor, " batch"], rejected: Float[Tensor, " batch"], *, beta: float, margin: float
) -> Float[Tensor, " batch"]:
    r"""$-\log \sigma(\beta \bar\ell_w - \beta \bar\ell_l - \gamma)$ of mean log-probabilities: no reference."""
    return -F.logsigmoid(beta * (chosen - rejected) - margin)


def orpo_losses(
    chosen: Float[Tensor, " batch"], rejected: Float[Tensor, " batch"], *, beta: float
) -> Float[Tensor, " batch"]:
    r"""$-\bar\ell_w - \beta \log \sigma\big(\log \frac{o_w}{o_l}\big)$, odds $o = p / (1 - p)$ of $p = e^{\bar\ell}$.

    The first term is the cross-entropy of the chosen answer: supervised learning and preferences in one step. The
    arguments are means over the tokens of an answer.
    """
    log_odds = (chosen - rejected) - (_log_complement(chosen) - _log_complement(rejected))
    return -chosen - beta * F.logsigmoid(log_odds)


def policy_gradient_losses(
    log_probs: Float[Tensor, " batch"], advantages: Float[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    r"""$-A \log \pi(y)$, whose gradient is that of $-\mathbb{E}[r]$ for $y \sim \pi$ and $A = r - b$.

    Any baseline $b$ that does not depend on $y$ leaves the expectation as it is and reduces the variance.
    """
    return -advantages * log_probs


def clipped_losses(
    log_probs: Float[Tensor, "batch time"],
    old_log_probs: Float[Tensor, "batch time"],
    advantages: Float[Tensor, "batch time"],
    *,
    clip: float,
) -> Float[Tensor, "batch time"]:
    r"""$-\min(\rho A, \operatorname{clip}(\rho, 1-\epsilon, 1+\epsilon) A)$, $\rho = \pi(y_t) / \pi_\text{old}(y_t)$.

    Texts sampled by $\pi_\text{old}$ are used for several updates; a token whose probability has changed by more than
    a share $\epsilon$ in the direction of its advantage has no gradient.
    """
    ratios = (log_probs - old_log_probs).exp()
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages)


def leave_one_out(rewards: Float[Tensor, "prompts samples"]) -> Float[Tensor, "prompts samples"]:
    """Rewards minus the mean of the other samples of the same prompt: an unbiased baseline."""
    samples = rewards.size(1)
    return (rewards - rewards.mean(dim=1, keepdim=True)) * (samples / (samples - 1))


def group_advantages(rewards: Float[Tensor, "prompts samples"]) -> Float[Tensor, "prompts samples"]:
    """Rewards, standardized among the samples of the same prompt (GRPO)."""
    mean, std = rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, keepdim=True)
    return (rewards - mean) / (std + _EPSILON)


def generalized_advantages(
    rewards: Float[Tensor, "batch time"],
    values: Float[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
    *,
    smoothing: float,
) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
    r"""$A_t = \sum_k \lambda^k \delta_{t+k}$ with $\delta_t = r_t + V_{t+1} - V_t$, and the returns $A_t + V_t$.

    Rewards are not discounted. After the last token of an answer, where `mask` ends, the value is 0. With
    $\lambda = 1$ the advantages are the sums of the rewards to come minus the values.
    """
    values, rewards = values * mask, rewards * mask
    advantages, running = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    following = F.pad(values[:, 1:], (0, 1))
    for place in reversed(range(values.size(1))):
        change = rewards[:, place] + following[:, place] - values[:, place]
        running = change + smoothing * running
        advantages[:, place] = running
    return advantages * mask, (advantages + values) * mask


def whiten(x: Float[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]) -> Float[Tensor, "batch time"]:
    """Mean 0 and variance 1 over what counts; 0 elsewhere."""
    count = mask.sum().clamp(min=1)
    mean = (x * mask).sum() / count
    variance = ((x - mean).square() * mask).sum() / count
    return (x - mean) * (variance + _LEAST_VARIANCE).rsqrt() * mask


def kl_terms(
    log_probs: Float[Tensor, "batch time"], reference: Float[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    r"""$\pi_0 / \pi - \log(\pi_0 / \pi) - 1$: an unbiased, non-negative estimate of the KL divergence from $\pi_0$.

    For tokens sampled by $\pi$. Schulman, "Approximating KL Divergence" (2020), the estimator k3.
    """
    log_ratios = reference - log_probs
    return log_ratios.exp() - log_ratios - 1


def _log_complement(log_p: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    r"""$\log(1 - e^x)$ for $x < 0$, by whichever form keeps its digits."""
    is_small = log_p > -0.693
    near, far = log_p.where(is_small, -1.0), log_p.where(~is_small, -1.0)
    return torch.where(is_small, torch.log(-torch.expm1(near)), torch.log1p(-torch.exp(far)))
