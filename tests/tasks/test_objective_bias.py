"""A bias of the scores counts in the loss as it does in the scores."""

import torch
import torch.nn.functional as F
from torch import nn

from regard.tasks.objective import with_bias


def test_states_and_matrix_with_a_bias_give_the_scores():
    states, output = torch.randn(7, 5), nn.Linear(5, 11)
    wider, matrix = with_bias(states, output)
    torch.testing.assert_close(wider @ matrix.T, output(states))
    F.mse_loss(wider @ matrix.T, torch.zeros(7, 11)).backward()
    assert output.bias.grad is not None
    assert bool((output.bias.grad != 0).all())


def test_without_a_bias_nothing_is_added():
    states, output = torch.randn(7, 5), nn.Linear(5, 11, bias=False)
    assert with_bias(states, output) == (states, output.weight)
