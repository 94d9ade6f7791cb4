"""Recurrent layers: PyTorch's kernels against their steps, and against PyTorch's own modules."""

import copy
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from regard.nn.dropout import Dropout, LockedDropout
from regard.nn.precision import cpu_has_bfloat16
from regard.nn.recurrent import Cell, Hidden, RecurrentLayer, RecurrentStack, flatten_weights, split_weights, unroll

BATCH, TIME, INPUT, HIDDEN = 3, 7, 5, 11
WIDTHS = [11, 13]
CELLS: list[Cell] = ["rnn", "gru", "lstm"]


def make(cell: Cell, **options) -> RecurrentStack:
    stack = RecurrentStack(cell, INPUT, WIDTHS, **options)
    for parameter in stack.parameters():  # initial biases are zero, and zeros hide mistakes
        nn.init.normal_(parameter, std=0.4)
    return stack


def kernel_of(stack: RecurrentStack, layer: int) -> nn.RNNBase:
    found = stack.layers[layer]
    assert isinstance(found, RecurrentLayer)
    return found.kernel


@pytest.mark.parametrize(("cell", "is_bidirectional"), list(product(CELLS, [False, True])))
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
def test_the_fused_kernel_equals_its_steps(cell: Cell, is_bidirectional: bool, initial_state):
    stack = make(cell, is_bidirectional=is_bidirectional, initial_state=initial_state)
    x = torch.randn(BATCH, TIME, INPUT)
    states, last = stack(x)
    expected, expected_last = unroll(stack, x)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, expected_last)


def test_a_relu_network_equals_its_steps():
    stack = make("rnn", activation="relu")
    x = torch.randn(BATCH, TIME, INPUT)
    torch.testing.assert_close(stack(x)[0], unroll(stack, x)[0])
    assert (stack(x)[0] >= 0).all()


@pytest.mark.parametrize(
    ("cell", "theirs"),
    [("rnn", nn.RNN(INPUT, HIDDEN)), ("gru", nn.GRU(INPUT, HIDDEN)), ("lstm", nn.LSTM(INPUT, HIDDEN))],
)
def test_the_steps_equal_those_of_torch(cell: Cell, theirs: nn.RNNBase):
    stack = RecurrentStack(cell, INPUT, [HIDDEN])
    theirs = theirs.double()
    kernel_of(stack, 0).load_state_dict(theirs.state_dict())
    x = torch.randn(BATCH, TIME, INPUT)
    torch.testing.assert_close(unroll(stack, x)[0], theirs(x.transpose(0, 1))[0].transpose(0, 1))


@pytest.mark.parametrize(("cell", "is_bidirectional"), list(product(CELLS, [False, True])))
@pytest.mark.parametrize("initial_state", ["zero", "learned"])
def test_padding_is_never_read(cell: Cell, is_bidirectional: bool, initial_state):
    stack = make(cell, is_bidirectional=is_bidirectional, initial_state=initial_state)
    x, lengths = torch.randn(BATCH, TIME, INPUT), torch.tensor([7, 2, 5])
    states, last = stack(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_last = unroll(stack, x[row : row + 1, :length])
        torch.testing.assert_close(states[row : row + 1, :length], alone)
        here = tuple(tuple(part[:, row : row + 1] for part in layer) for layer in last)
        torch.testing.assert_close(here, alone_last)
        assert (states[row, length:] == 0).all()


def gradients(stack: RecurrentStack, x: Tensor, lengths: Tensor, state: Hidden | None) -> list[Tensor]:
    """Of a loss that depends on each hidden state before the padding, and on each last state."""
    states, last = stack(x, lengths, state)
    ends = [part for layer in last for part in layer]
    loss = states.square().sum() + sum(((1 + number) * part.sin().sum() for number, part in enumerate(ends)), 0.0)
    inputs = [x, *stack.parameters(), *(part for layer in state or () for part in layer)]
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("is_bidirectional", [False, True])
@pytest.mark.parametrize("initial_state", ["zero", "learned", "carried"])
def test_padded_sequences_have_the_gradients_of_packed_ones(is_bidirectional: bool, initial_state, monkeypatch):
    learned = "learned" if initial_state == "learned" else "zero"
    stack = make("lstm", is_bidirectional=is_bidirectional, initial_state=learned)
    x, lengths = (9.0 * torch.randn(BATCH, TIME, INPUT)).requires_grad_(), torch.tensor([7, 2, 5])
    state = None
    if initial_state == "carried":
        _, last = stack(torch.randn(BATCH, TIME, INPUT))
        state = tuple(tuple(part.detach().requires_grad_() for part in layer) for layer in last)
    ours = gradients(stack, x, lengths, state)
    monkeypatch.setattr(RecurrentLayer, "_can_close_gates", lambda *_: False)
    torch.testing.assert_close(ours, gradients(stack, x, lengths, state))


def test_the_kernel_of_float32_does_not_read_padding():
    """On a CPU it is oneDNN's, which computes the sigmoid by other operations than that of float64."""
    stack = make("lstm", is_bidirectional=True).float()
    x, lengths = torch.randn(BATCH, TIME, INPUT, dtype=torch.float32), torch.tensor([7, 2, 5])
    spoiled = x.clone()
    spoiled[1, 2:], spoiled[2, 5:] = 1e8, -1e8
    assert all(torch.equal(a, b) for a, b in zip(flat(stack(x, lengths)), flat(stack(spoiled, lengths)), strict=True))
    expected = copy.deepcopy(stack).double()(x.double(), lengths)
    for ours, exact in zip(flat(stack(x, lengths)), flat(expected), strict=True):
        torch.testing.assert_close(ours, exact.float(), rtol=1e-5, atol=1e-6)  # the precision of float32


def flat(found: tuple[Tensor, Hidden]) -> list[Tensor]:
    return [found[0], *(part for layer in found[1] for part in layer)]


@pytest.mark.parametrize("cell", CELLS)
def test_a_carried_state_continues_the_sequence(cell: Cell):
    stack = make(cell)
    x = torch.randn(BATCH, TIME, INPUT)
    first, state = stack(x[:, :3])
    second, last = stack(x[:, 3:], state=state)
    whole, whole_last = stack(x)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last, whole_last)


def test_recurrent_matrices_start_orthogonal_and_the_forget_gate_open():
    weights = kernel_of(RecurrentStack("lstm", INPUT, [HIDDEN]), 0).state_dict()
    for part in weights["weight_hh_l0"].chunk(4):
        torch.testing.assert_close(part @ part.T, torch.eye(HIDDEN))
    biases = (weights["bias_ih_l0"] + weights["bias_hh_l0"]).chunk(4)
    assert [float(bias.mean()) for bias in biases] == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("cell", CELLS)
def test_a_stack_that_drops_nothing_is_torchs_own(cell: Cell):
    theirs = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell](INPUT, HIDDEN, 2, batch_first=True)
    stack = RecurrentStack(cell, INPUT, [HIDDEN, HIDDEN], weight_dropout=0.0)
    for layer in range(2):
        weights = {name: w for name, w in theirs.state_dict().items() if name.endswith(f"l{layer}")}
        kernel_of(stack, layer).load_state_dict({name.replace(f"l{layer}", "l0"): w for name, w in weights.items()})
    x = torch.randn(BATCH, TIME, INPUT)
    states, last = stack(x)
    expected, expected_last = theirs(x)
    assert torch.equal(states, expected)
    assert torch.equal(torch.cat([layer[0] for layer in last]), expected_last[0] if cell == "lstm" else expected_last)


def dropped_by_hand(stack: RecurrentStack, probability: float) -> RecurrentStack:
    """A copy whose recurrent matrices have the mask that the generator gives next."""
    made = copy.deepcopy(stack)
    for layer in made.layers:
        assert isinstance(layer, RecurrentLayer)
        for name, weight in layer.kernel.named_parameters():
            if name.startswith("weight_hh"):
                weight.data = Dropout(probability)(weight.data)
        layer.weight_dropout.probability = 0.0
    return made


@pytest.mark.parametrize(("cell", "is_bidirectional"), list(product(CELLS, [False, True])))
def test_dropped_recurrent_weights_are_one_mask_for_all_steps_and_rows(cell: Cell, is_bidirectional: bool):
    """States and gradients are those of a plain loop over a stack whose matrices were masked before."""
    stack = make(cell, is_bidirectional=is_bidirectional, weight_dropout=0.4)
    x = torch.randn(BATCH, TIME, INPUT)
    torch.manual_seed(3)
    states, last = stack(x)
    torch.manual_seed(3)
    by_hand = dropped_by_hand(stack, 0.4)
    expected, expected_last = unroll(by_hand, x)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, expected_last)
    states.square().sum().backward()
    expected.square().sum().backward()
    for (name, ours), theirs in zip(stack.named_parameters(), by_hand.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        mask = (theirs != 0) / (1 - 0.4) if "weight_hh" in name else torch.ones_like(theirs)
        # Dropout has probabilities in steps of 1/65536.
        torch.testing.assert_close(ours.grad, theirs.grad * mask, rtol=1e-4, atol=1e-7)


def test_dropped_weights_change_from_call_to_call_and_not_outside_training():
    stack, x = make("lstm", weight_dropout=0.5), torch.randn(BATCH, TIME, INPUT)
    assert not torch.equal(stack(x)[0], stack(x)[0])
    stack.eval()
    torch.testing.assert_close(stack(x)[0], unroll(stack, x)[0])


def test_padding_is_never_read_while_weights_are_dropped():
    stack, lengths = make("lstm", weight_dropout=0.5), torch.tensor([7, 2, 5])
    x = torch.randn(BATCH, TIME, INPUT)
    torch.manual_seed(3)
    states, _ = stack(x, lengths)
    torch.manual_seed(3)
    by_hand = dropped_by_hand(stack, 0.5)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(states[row : row + 1, :length], unroll(by_hand, x[row : row + 1, :length])[0])


def test_dropout_is_applied_between_layers_only():
    stack = make("gru", dropout=LockedDropout(0.5))
    x = torch.randn(BATCH, TIME, INPUT)
    torch.manual_seed(3)
    states, _ = stack(x)
    lower, upper = stack.layers
    assert isinstance(lower, RecurrentLayer)
    assert isinstance(upper, RecurrentLayer)
    between = lower(x, lower.initial_state(BATCH))[0]
    torch.manual_seed(3)
    torch.testing.assert_close(states, upper(stack.dropout(between), upper.initial_state(BATCH))[0])


@pytest.mark.parametrize("is_bidirectional", [False, True])
def test_weights_in_one_piece_are_the_same_numbers_matrices_first(is_bidirectional: bool):
    kernel = nn.LSTM(INPUT, HIDDEN, bidirectional=is_bidirectional)
    weights = list(kernel.parameters())
    pieces = split_weights(flatten_weights(weights), weights)
    assert all(torch.equal(ours, weight) for ours, weight in zip(pieces, weights, strict=True))
    place = 0
    for piece in sorted(pieces, key=lambda one: one.dim() == 1):
        assert piece.storage_offset() == place
        assert piece.untyped_storage().data_ptr() == pieces[0].untyped_storage().data_ptr()
        place += piece.numel()
    sum((piece.square().sum() for piece in pieces), torch.zeros(())).backward()
    for weight in weights:
        torch.testing.assert_close(weight.grad, 2 * weight)


def test_under_autocast_a_layer_keeps_the_precision_of_its_weights():
    stack, x = make("lstm", weight_dropout=0.0), torch.randn(BATCH, TIME, INPUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, last = stack(x.bfloat16())
    assert {states.dtype, *(part.dtype for layer in last for part in layer)} == {torch.float64}


@pytest.mark.skipif(not cpu_has_bfloat16(), reason="the CPU has no instructions for bfloat16")
@pytest.mark.parametrize("lengths", [None, torch.tensor([7, 2, 5])])
def test_under_autocast_an_lstm_computes_in_bfloat16_on_a_cpu(lengths: Tensor | None):
    stack, x = make("lstm", is_bidirectional=True).float(), torch.randn(BATCH, TIME, INPUT, dtype=torch.float32)
    exact = stack(x, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = stack(x.bfloat16(), lengths)
    assert {part.dtype for part in flat(rounded)} == {torch.float32}
    for ours, theirs in zip(flat(rounded), flat(exact), strict=True):
        assert not torch.equal(ours, theirs)
        # Bfloat16 has eight bits of precision, and two layers of seven steps add up their errors.
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="cuDNN computes in float16 on a GPU")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_in_half_precision_gradients_are_those_of_float32_however_small(cell: Cell, scale: float):
    stack = RecurrentStack(cell, 128, [256, 128], weight_dropout=0.0).float().cuda()
    x = torch.randn(8, 70, 128, dtype=torch.float32, device="cuda")
    found: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    for is_half in (False, True):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_half):
            states, last = stack(x)
        loss = scale * (states.sin().sum() + last[0][0].square().sum())
        found.append((states, list(torch.autograd.grad(loss, list(stack.parameters())))))
    (states, gradients), (half_states, half_gradients) = found
    assert half_states.dtype == torch.float32
    torch.testing.assert_close(half_states, states, atol=5e-3, rtol=0.0)
    for ours, theirs in zip(half_gradients, gradients, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.02
