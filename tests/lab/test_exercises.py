"""What the studies train on, and the loop that trains."""

import math
from functools import partial

import torch
from torch import nn

from regard.lab.exercises import (
    TokenBatch,
    count_correct_ends,
    draw_delayed_copy,
    draw_first_token_recall,
    token_loss,
    train_on_batches,
)
from regard.nn.losses import IGNORED


def test_looking_back_asks_for_what_stood_there():
    inputs, targets = draw_delayed_copy(5, 11, distance=3, vocab_size=7)
    assert torch.equal(targets[:, 3:], inputs[:, :-3])
    assert (targets[:, :3] == IGNORED).all()


def test_recalling_asks_once_for_the_first_symbol_which_stands_nowhere_else():
    inputs, targets = draw_first_token_recall(101, 13, num_symbols=3)
    assert torch.equal(targets[:, -1], inputs[:, 0])
    assert (targets[:, :-1] == IGNORED).all()
    assert set(inputs[:, 0].tolist()) == {0, 1, 2}
    assert set(inputs[:, 1:].unique().tolist()) == {3, 4, 5}


class Certain(nn.Module):
    """Scores that name the token before, and are sure of it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return 100.0 * nn.functional.one_hot(tokens.roll(1, dims=1), 7).double()


def test_only_what_is_asked_is_counted():
    batch = draw_delayed_copy(5, 11, distance=1, vocab_size=7)
    assert token_loss(Certain(), batch) < 1e-9
    assert count_correct_ends(Certain(), batch) == 5
    wrong = TokenBatch(batch.inputs, (batch.targets + 1) % 7)
    assert count_correct_ends(Certain(), wrong) == 0


def test_training_learns_and_records_each_step():
    model = nn.Embedding(5, 5)
    draw = partial(draw_delayed_copy, 3, 7, distance=1, vocab_size=1)
    course = train_on_batches(model, draw, torch.optim.SGD(model.parameters(), lr=1.0), steps=30)
    assert len(course.losses) == len(course.grad_norms) == 30
    assert course.losses[-1] < course.losses[0]


def test_norms_are_those_before_clipping_and_steps_are_short():
    torch.manual_seed(0)
    model = nn.Embedding(5, 5)
    before = model.weight.detach().clone()
    draw = partial(draw_delayed_copy, 3, 7, distance=2, vocab_size=5)
    course = train_on_batches(model, draw, torch.optim.SGD(model.parameters(), lr=0.1), steps=10, clip_norm=1e-6)
    assert min(course.grad_norms) > 1e-3
    assert float((model.weight.detach() - before).norm()) <= 10 * 0.1 * 1e-6


def test_without_a_limit_nothing_is_clipped():
    weights = []
    for clip_norm in (math.inf, 1e9):
        torch.manual_seed(0)
        model = nn.Embedding(5, 5)
        draw = partial(draw_delayed_copy, 3, 7, distance=2, vocab_size=5)
        train_on_batches(model, draw, torch.optim.SGD(model.parameters(), lr=0.1), steps=5, clip_norm=clip_norm)
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights)
