"""Losses of preferences by hand, and policy gradients against the exact ones, by summing over all texts."""

import math
from itertools import product

import pytest
import torch
from torch import nn

from regard.nn.preferences import (
    bradley_terry_losses,
    clipped_losses,
    dpo_losses,
    generalized_advantages,
    group_advantages,
    ipo_losses,
    kl_terms,
    leave_one_out,
    orpo_losses,
    policy_gradient_losses,
    simpo_losses,
    whiten,
)

VOCAB, LENGTH = 3, 3


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_losses_of_pairs_by_hand():
    chosen, rejected, first, second = (torch.tensor([x]) for x in (-1.7, -2.9, -2.3, -1.1))
    gap = (-1.7 + 2.3) - (-2.9 + 1.1)
    odds = math.log(math.exp(-1.7) / (1 - math.exp(-1.7))) - math.log(math.exp(-2.9) / (1 - math.exp(-2.9)))

    assert bradley_terry_losses(chosen, rejected).item() == pytest.approx(-math.log(sigmoid(1.2)))
    assert dpo_losses(chosen, rejected, first, second, beta=0.7).item() == pytest.approx(-math.log(sigmoid(0.7 * gap)))
    assert ipo_losses(chosen, rejected, first, second, beta=0.7).item() == pytest.approx((gap - 1 / 1.4) ** 2)
    assert simpo_losses(chosen, rejected, beta=2.0, margin=0.3).item() == pytest.approx(-math.log(sigmoid(2.1)))
    assert orpo_losses(chosen, rejected, beta=0.7).item() == pytest.approx(1.7 - 0.7 * math.log(sigmoid(odds)))


def test_a_preference_raises_the_chosen_answer_and_lowers_the_rejected_one():
    for losses in (
        lambda x, y: bradley_terry_losses(x, y),
        lambda x, y: dpo_losses(x, y, torch.zeros(1), torch.zeros(1), beta=0.3),
        lambda x, y: simpo_losses(x, y, beta=2.0, margin=0.5),
        lambda x, y: orpo_losses(x, y, beta=0.3),
    ):
        chosen, rejected = torch.tensor([-1.3], requires_grad=True), torch.tensor([-1.1], requires_grad=True)
        losses(chosen, rejected).sum().backward()
        assert chosen.grad is not None
        assert chosen.grad < 0 < rejected.grad


class Policy(nn.Module):
    """A table of logits for each prefix: every distribution over texts of this length."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        prefixes = [prefix for length in range(LENGTH) for prefix in product(range(VOCAB), repeat=length)]
        self.rows = {prefix: row for row, prefix in enumerate(prefixes)}
        self.table = nn.Parameter(torch.randn(len(prefixes), VOCAB, generator=rng))

    def log_probs(self, texts: list[tuple[int, ...]]) -> torch.Tensor:
        """Of each token of each text."""
        table = self.table.log_softmax(-1)
        return torch.stack(
            [torch.stack([table[self.rows[text[:place]], text[place]] for place in range(LENGTH)]) for text in texts]
        )


TEXTS = list(product(range(VOCAB), repeat=LENGTH))


def exact_gradient(policy: Policy, objective) -> torch.Tensor:
    """The gradient of an expectation, as a sum over all texts."""
    [gradient] = torch.autograd.grad(objective(policy.log_probs(TEXTS)), [policy.table])
    return gradient


@pytest.mark.parametrize("baseline", [0.0, 1.7])
def test_the_expected_gradient_of_reinforce_is_exact(baseline):
    """Of the reward minus the KL penalty, for any baseline."""
    policy, reference = Policy(0), Policy(1)
    rewards, beta = torch.randn(len(TEXTS)), 0.3
    others = reference.log_probs(TEXTS).sum(dim=1).detach()

    def objective(log_probs):
        total = log_probs.sum(dim=1)
        return (total.exp() * (rewards - beta * (total - others))).sum()

    log_probs = policy.log_probs(TEXTS).sum(dim=1)
    worth = rewards - beta * (log_probs.detach() - others)
    losses = policy_gradient_losses(log_probs, worth - baseline)
    [found] = torch.autograd.grad((log_probs.detach().exp() * losses).sum(), [policy.table])

    torch.testing.assert_close(-found, exact_gradient(policy, objective))


def test_the_expected_gradient_of_leave_one_out_is_exact():
    """Over all pairs of texts that could be sampled for a prompt."""
    policy, rewards = Policy(0), torch.randn(len(TEXTS))
    log_probs = policy.log_probs(TEXTS).sum(dim=1)
    pairs = torch.cartesian_prod(torch.arange(len(TEXTS)), torch.arange(len(TEXTS)))
    chances = log_probs.detach()[pairs].sum(dim=1).exp()
    losses = policy_gradient_losses(log_probs[pairs].flatten(), leave_one_out(rewards[pairs]).flatten())
    [found] = torch.autograd.grad((chances * losses.view(-1, 2).mean(dim=1)).sum(), [policy.table])

    torch.testing.assert_close(-found, exact_gradient(policy, lambda each: (each.sum(1).exp() * rewards).sum()))


def test_the_expected_gradient_of_ppo_is_exact_at_the_policy_that_sampled():
    """With advantages by generalized estimation, lambda 1 and any values: the values are a baseline."""
    policy, rewards = Policy(0), torch.randn(len(TEXTS))
    by_token = torch.zeros(len(TEXTS), LENGTH)
    by_token[:, -1] = rewards
    values = torch.stack([Policy(2).table[policy.rows[t[:p]], 0] for t in TEXTS for p in range(LENGTH)]).detach()
    mask = torch.ones(len(TEXTS), LENGTH, dtype=torch.bool)
    advantages, _ = generalized_advantages(by_token, values.view(-1, LENGTH), mask, smoothing=1.0)
    log_probs = policy.log_probs(TEXTS)
    chances = log_probs.detach().sum(dim=1).exp()
    losses = clipped_losses(log_probs, log_probs.detach(), advantages, clip=0.2).sum(dim=1)
    [found] = torch.autograd.grad((chances * losses).sum(), [policy.table])

    torch.testing.assert_close(-found, exact_gradient(policy, lambda each: (each.sum(1).exp() * rewards).sum()))


def test_ppo_weights_texts_of_an_older_policy_exactly_within_the_clip():
    """For texts of one token, the expectation under the older policy is that of the newer one."""
    old, new = torch.randn(5), torch.randn(5, requires_grad=True)
    advantages = torch.randn(5)
    before, after = old.log_softmax(0), new.log_softmax(0)
    losses = clipped_losses(after[:, None], before[:, None], advantages[:, None], clip=0.999999)
    inside = (after - before).exp() < 1.9
    [found] = torch.autograd.grad((before.exp() * losses[:, 0] * inside).sum(), [new], retain_graph=True)
    [expected] = torch.autograd.grad((after.exp() * advantages * inside).sum(), [new])

    torch.testing.assert_close(-found, expected)


def test_a_token_beyond_the_clip_has_no_gradient_in_the_direction_of_its_advantage():
    log_probs = torch.tensor([[0.5, -0.5, 0.5, -0.5]], requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0, -1.0, 1.0]])
    clipped_losses(log_probs, torch.zeros(1, 4), advantages, clip=0.2).sum().backward()

    assert log_probs.grad is not None
    assert log_probs.grad[0, :2].tolist() == [0.0, 0.0]
    assert (log_probs.grad[0, 2:] != 0).all()


def test_generalized_advantages_by_hand():
    rewards, values = torch.tensor([[0.1, 0.2, 5.0, 9.0]]), torch.tensor([[0.3, 0.5, 0.7, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    advantages, returns = generalized_advantages(rewards, values, mask, smoothing=0.9)
    last = 5.0 - 0.7
    second = 0.2 + 0.7 - 0.5 + 0.9 * last
    first = 0.1 + 0.5 - 0.3 + 0.9 * second

    torch.testing.assert_close(advantages, torch.tensor([[first, second, last, 0.0]]))
    torch.testing.assert_close(returns, torch.tensor([[first + 0.3, second + 0.5, 5.0, 0.0]]))


def test_advantages_of_a_group_are_standardized_and_whitened_ones_too():
    rewards = torch.randn(7, 5) * 3 + 11
    found = group_advantages(rewards)
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(7))
    torch.testing.assert_close(found.std(dim=1), torch.ones(7), atol=1e-3, rtol=0)
    assert group_advantages(torch.full((2, 3), 1.3)).abs().max() < 1e-9

    mask = torch.rand(7, 5) > 0.3
    white = whiten(rewards, mask)
    assert (white[~mask] == 0).all()
    torch.testing.assert_close(white[mask].mean(), torch.tensor(0.0))
    torch.testing.assert_close(white[mask].std(correction=0), torch.tensor(1.0))


def test_the_estimate_of_the_kl_divergence_is_unbiased_and_never_negative():
    own, other = torch.randn(7).log_softmax(0), torch.randn(7).log_softmax(0)
    terms = kl_terms(own[None], other[None])[0]

    assert (terms >= 0).all()
    torch.testing.assert_close((own.exp() * terms).sum(), (own.exp() * (own - other)).sum())
