import math

import torch

from regard.nn.contrast import TEMPERATURE, contrast_losses


def test_it_is_the_plain_sum_of_its_equation():
    vectors, labels = torch.randn(7, 5), torch.tensor([0, 1, 0, 2, 1, 0, 2])
    counts = torch.tensor([True] * 6 + [False])
    found = contrast_losses(vectors, labels, counts)
    for i in range(6):
        others = [j for j in range(6) if j != i]
        like = [j for j in others if labels[j] == labels[i]]
        cosines = {j: float(torch.cosine_similarity(vectors[i], vectors[j], dim=0)) / TEMPERATURE for j in others}
        total = math.log(sum(math.exp(each) for each in cosines.values()))
        expected = sum(total - cosines[j] for j in like) / len(like) if like else 0.0
        torch.testing.assert_close(float(found[i]), expected)


def test_a_vector_by_itself_costs_nothing_and_has_a_gradient_of_nothing():
    vectors = torch.randn(1, 5, requires_grad=True)
    loss = contrast_losses(vectors, torch.tensor([0]), torch.tensor([True])).sum()
    loss.backward()
    assert float(loss.detach()) == 0.0
    torch.testing.assert_close(vectors.grad, torch.zeros(1, 5))


def test_labels_that_lie_together_cost_least():
    labels = torch.tensor([0, 0, 1, 1])
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    mixed = apart[[0, 2, 1, 3]]
    counts = torch.ones(4, dtype=torch.bool)
    assert contrast_losses(apart, labels, counts).sum() < 0.1 < contrast_losses(mixed, labels, counts).min()


def test_products_in_half_precision_are_no_trouble():
    vectors, labels = torch.randn(4, 8, dtype=torch.float32), torch.tensor([0, 0, 1, 1])
    counts = torch.ones(4, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = contrast_losses(vectors, labels, counts)
    # Cosines of eight bits are off by up to a hundredth, ten times as much once divided by the temperature.
    torch.testing.assert_close(found, contrast_losses(vectors, labels, counts), atol=0.2, rtol=0.0)
