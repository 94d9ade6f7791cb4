"""Recurrent layers: PyTorch's kernels against their steps written out, and against PyTorch's own modules."""

from itertools import product

import pytest
import torch
from torch import nn

from regard.nn.recurrent import Cell, RecurrentStack, unroll

BATCH, TIME, INPUT, HIDDEN, LAYERS = 3, 7, 5, 11, 2
CELLS: list[Cell] = ["rnn", "gru", "lstm"]


def make(cell: Cell, **options) -> RecurrentStack:
    stack = RecurrentStack(cell, INPUT, HIDDEN, LAYERS, **options)
    for parameter in stack.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.4)
    return stack


@pytest.mark.parametrize(("cell", "is_bidirectional"), list(product(CELLS, [False, True])))
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
def test_the_fused_kernel_is_the_steps_written_out(cell: Cell, is_bidirectional: bool, initial_state):
    stack = make(cell, is_bidirectional=is_bidirectional, initial_state=initial_state)
    x = torch.randn(BATCH, TIME, INPUT)
    states, last = stack(x)
    expected, expected_last = unroll(stack, x)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, expected_last)


def test_a_relu_network_is_its_steps_written_out():
    stack = make("rnn", activation="relu")
    x = torch.randn(BATCH, TIME, INPUT)
    torch.testing.assert_close(stack(x)[0], unroll(stack, x)[0])
    assert (stack(x)[0] >= 0).all()


@pytest.mark.parametrize(
    ("cell", "theirs"),
    [("rnn", nn.RNN(INPUT, HIDDEN)), ("gru", nn.GRU(INPUT, HIDDEN)), ("lstm", nn.LSTM(INPUT, HIDDEN))],
)
def test_steps_written_out_are_those_of_torch(cell: Cell, theirs: nn.RNNBase):
    stack = RecurrentStack(cell, INPUT, HIDDEN, 1)
    theirs = theirs.double()
    stack.kernel.load_state_dict(theirs.state_dict())
    x = torch.randn(BATCH, TIME, INPUT)
    torch.testing.assert_close(unroll(stack, x)[0], theirs(x.transpose(0, 1))[0].transpose(0, 1))


@pytest.mark.parametrize(("cell", "is_bidirectional"), list(product(CELLS, [False, True])))
def test_padding_is_never_read(cell: Cell, is_bidirectional: bool):
    stack = make(cell, is_bidirectional=is_bidirectional, initial_state="learned")
    x, lengths = torch.randn(BATCH, TIME, INPUT), torch.tensor([7, 2, 5])
    states, last = stack(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_last = unroll(stack, x[row : row + 1, :length])
        torch.testing.assert_close(states[row : row + 1, :length], alone)
        torch.testing.assert_close([part[:, row : row + 1] for part in last], list(alone_last))
        assert (states[row, length:] == 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_a_state_carried_over_goes_on_as_if_nothing_had_been(cell: Cell):
    stack = make(cell)
    x = torch.randn(BATCH, TIME, INPUT)
    first, state = stack(x[:, :3])
    second, last = stack(x[:, 3:], state=state)
    whole, whole_last = stack(x)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last, whole_last)


def test_recurrent_matrices_start_orthogonal_and_the_forget_gate_open():
    weights = RecurrentStack("lstm", INPUT, HIDDEN, 1).kernel.state_dict()
    for part in weights["weight_hh_l0"].chunk(4):
        torch.testing.assert_close(part @ part.T, torch.eye(HIDDEN))
    biases = (weights["bias_ih_l0"] + weights["bias_hh_l0"]).chunk(4)
    assert [float(bias.mean()) for bias in biases] == [0.0, 1.0, 0.0, 0.0]
