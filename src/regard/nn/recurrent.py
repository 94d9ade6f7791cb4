r"""Recurrent networks: rnn, gru and lstm, in layers and in one or two directions.

Elman, "Finding Structure in Time" (1990).
    rnn    $h_t = \mathrm{act}(W x_t + b + U h_{t-1} + c)$

Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder" (2014). https://arxiv.org/abs/1406.1078
    gru    $r_t, z_t = \sigma(\dots)$; $n_t = \tanh(W x_t + b + r_t (U h_{t-1} + c))$;
           $h_t = (1 - z_t) n_t + z_t h_{t-1}$

Hochreiter & Schmidhuber, "Long Short-Term Memory" (1997); Gers et al. (2000) for the forget gate.
    lstm   $i_t, f_t, o_t = \sigma(\dots)$, $g_t = \tanh(\dots)$; $C_t = f_t C_{t-1} + i_t g_t$; $h_t = o_t \tanh(C_t)$

where each $\dots$ is $W x_t + b + U h_{t-1} + c$ with its own weights. `unroll`
below is the specification: these lines, step by step. `RecurrentStack` runs
PyTorch's fused kernels on the same weights; a test compares the two.

Dimensions: `batch` sequences, `time` positions, `input` and `hidden` widths,
`directions` of a layer, one or two, `width` of their concatenated outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.nn.dropout import Dropout, LockedDropout
from regard.nn.masks import padding_mask
from regard.nn.precision import HalfPrecision, cpu_has_bfloat16

Cell = Literal["rnn", "gru", "lstm"]
CellActivation = Literal["tanh", "relu"]
InitialState = Literal["zero", "learned"]
CellState = tuple[Float[Tensor, "batch hidden"], ...]
"""The state of one layer in one direction: h, and for an LSTM also C."""
LayerHidden = tuple[Float[Tensor, "directions batch _"], ...]
"""The state of one layer: the same, stacked over the directions."""
Hidden = tuple[LayerHidden, ...]
"""The states of the layers of a stack, which may differ in width."""

_NUM_GATES: dict[Cell, int] = {"rnn": 1, "gru": 3, "lstm": 4}
_CLOSED = 1e4
"""Where the sigmoid is 0 or 1 exactly, whatever else is added."""


def cell_step(
    cell: Cell,
    activation: CellActivation,
    from_input: Float[Tensor, "batch gates"],
    from_hidden: Float[Tensor, "batch gates"],
    state: CellState,
) -> CellState:
    """Return the state after one step of one layer, from `W x + b` and `U h + c` of all gates in PyTorch's order."""
    h = state[0]
    if cell == "rnn":
        total = from_input + from_hidden
        return (total.tanh() if activation == "tanh" else total.relu(),)
    x, u = from_input.chunk(_NUM_GATES[cell], dim=-1), from_hidden.chunk(_NUM_GATES[cell], dim=-1)
    if cell == "gru":
        reset, update = (x[0] + u[0]).sigmoid(), (x[1] + u[1]).sigmoid()
        new = (x[2] + reset * u[2]).tanh()
        return ((1 - update) * new + update * h,)
    i, f, o = ((x[gate] + u[gate]).sigmoid() for gate in (0, 1, 3))
    cell_state = f * state[1] + i * (x[2] + u[2]).tanh()
    return (o * cell_state.tanh(), cell_state)


class RecurrentStack(nn.Module):
    """A stack of recurrent layers; `hidden_dims` are the widths of their states.

    In a bidirectional stack each direction has that width, and the outputs of both
    are concatenated. `dropout` is applied between the layers.
    """

    def __init__(
        self,
        cell: Cell,
        input_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: CellActivation = "tanh",
        is_bidirectional: bool = False,
        dropout: Dropout | LockedDropout | None = None,
        weight_dropout: float = 0.0,
        initial_state: InitialState = "zero",
    ) -> None:
        super().__init__()
        num_directions = 2 if is_bidirectional else 1
        input_dims = [input_dim, *(num_directions * width for width in hidden_dims[:-1])]
        self.layers = nn.ModuleList(
            RecurrentLayer(
                cell,
                read,
                width,
                activation=activation,
                is_bidirectional=is_bidirectional,
                weight_dropout=weight_dropout,
                initial_state=initial_state,
            )
            for read, width in zip(input_dims, hidden_dims, strict=True)
        )
        self.dropout = Dropout() if dropout is None else dropout

    def initial_state(self, batch_size: int) -> Hidden:
        """Return the state before the first position."""
        return tuple(layer.initial_state(batch_size) for layer in self.layers if isinstance(layer, RecurrentLayer))

    def forward(
        self,
        x: Float[Tensor, "batch time input"],
        lengths: Int[Tensor, " batch"] | None = None,
        state: Hidden | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Hidden]:
        """Return the hidden states of the last layer at each position, and the state of all layers after the last one.

        Positions from `lengths` on are padding: they are not read, and their hidden
        states are zero.
        """
        hidden = self.initial_state(x.size(0)) if state is None else state
        lengths = None if lengths is None else lengths.cpu()
        last: list[LayerHidden] = []
        for number, (layer, start) in enumerate(zip(self.layers, hidden, strict=True)):
            x, end = layer(x if number == 0 else self.dropout(x), start, lengths)
            last.append(end)
        return x, tuple(last)


class RecurrentLayer(nn.Module):
    """One recurrent layer: one call of PyTorch's fused kernel for all positions.

    Recurrent matrices are initialized orthogonal, against vanishing and exploding
    gradients, and the bias of an LSTM's forget gate to one.

    `weight_dropout` applies to the recurrent matrices $U$: in training some of their
    entries are zero, the same ones at all positions and in all sequences of a call. Wan
    et al., "Regularization of Neural Networks using DropConnect" (2013); Merity et
    al., "Regularizing and Optimizing LSTM Language Models" (2017), section 2.
    https://arxiv.org/abs/1708.02182
    """

    def __init__(
        self,
        cell: Cell,
        input_dim: int,
        hidden_dim: int,
        *,
        activation: CellActivation = "tanh",
        is_bidirectional: bool = False,
        weight_dropout: float = 0.0,
        initial_state: InitialState = "zero",
    ) -> None:
        super().__init__()
        self.cell: Cell = cell
        self.activation: CellActivation = activation
        options: dict[str, Any] = {"batch_first": True, "bidirectional": is_bidirectional}
        match cell:
            case "rnn":
                self.kernel: nn.RNNBase = nn.RNN(input_dim, hidden_dim, nonlinearity=activation, **options)
            case "gru":
                self.kernel = nn.GRU(input_dim, hidden_dim, **options)
            case "lstm":
                self.kernel = nn.LSTM(input_dim, hidden_dim, **options)
        self.weight_dropout = Dropout(weight_dropout)
        self.num_parts, self.num_directions = 2 if cell == "lstm" else 1, 1 + is_bidirectional
        self.hidden_dim = hidden_dim
        start = torch.zeros(self.num_parts, self.num_directions, 1, hidden_dim)
        self.start = nn.Parameter(start) if initial_state == "learned" else None
        self._initialize()

    def initial_state(self, batch_size: int) -> LayerHidden:
        """Return the state before the first position."""
        if self.start is not None:
            return tuple(self.start.expand(-1, -1, batch_size, -1).contiguous())
        zeros = next(self.kernel.parameters()).new_zeros(self.num_directions, batch_size, self.hidden_dim)
        return (zeros,) * self.num_parts

    def forward(
        self, x: Float[Tensor, "batch time input"], state: LayerHidden, lengths: Int[Tensor, " batch"] | None = None
    ) -> tuple[Float[Tensor, "batch time width"], LayerHidden]:
        """Return the hidden states at each position, and the state after the last one; `lengths` are on the CPU."""
        weights, is_half = self._weights(), self._is_half(x, lengths)
        is_bfloat16 = self._is_bfloat16(x, weights)
        # Autocast by itself would run cuDNN in float16 with unscaled gradients, of which small ones underflow.
        with torch.autocast(x.device.type, enabled=False):
            if not is_half:
                x, state = x.to(weights[0].dtype), tuple(part.to(weights[0].dtype) for part in state)
                if lengths is not None and not self._can_close_gates(x, state):
                    return self._run_packed(x, state, weights, lengths)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bfloat16, cache_enabled=False):
                    states, last = self._run_padded(x, state, weights, lengths)
                return states.to(x.dtype), tuple(part.to(x.dtype) for part in last)
            half = HalfPrecision()
            x, *inner = half.enter(x, *state, flatten_weights(weights))
            states, *last = half.leave(*self._run(x, tuple(inner[:-1]), split_weights(inner[-1], weights)))
            return states, tuple(last)

    def _is_half(self, x: Tensor, lengths: Tensor | None) -> bool:
        """Return whether to compute in float16 under autocast.

        It is worthwhile where PyTorch selects cuDNN's persistent kernels, which keep the
        weights in registers from position to position.
        """
        if not (x.is_cuda and torch.is_autocast_enabled("cuda")) or lengths is not None:
            return False
        is_plain = self.num_directions == 1 and self.activation == "tanh"
        return is_plain and _has_persistent_kernel(x.size(0), x.size(2), self.hidden_dim)

    def _is_bfloat16(self, x: Tensor, weights: list[Tensor]) -> bool:
        """Return whether to compute in bfloat16 under autocast, which oneDNN's LSTM can, with twice the speed."""
        is_cast = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        is_supported = self.cell == "lstm" and weights[0].dtype == torch.float32 and cpu_has_bfloat16()
        return is_cast and is_supported and torch.get_autocast_dtype("cpu") == torch.bfloat16

    def _run(
        self, x: Tensor, state: LayerHidden, weights: list[Tensor], batch_sizes: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run PyTorch's kernel on these weights, without its own dropout: cuDNN's synchronizes with the device."""
        function, is_bidirectional = _FUSED[self.cell, self.activation], self.num_directions == 2
        inner = state if self.cell == "lstm" else state[0]
        if batch_sizes is None:
            return function(x, inner, weights, True, 1, 0.0, self.training, is_bidirectional, True)
        return function(x, batch_sizes, inner, weights, True, 1, 0.0, self.training, is_bidirectional)

    def _can_close_gates(self, x: Tensor, state: LayerHidden) -> bool:
        """Return whether `_run_padded` applies and is faster: on a CPU oneDNN has LSTMs, but not of packed sequences.

        A backward direction begins with the padding, which keeps C but not h: it has to start from zero.
        """
        if self.cell != "lstm" or x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
            return False
        is_constant = self.start is None and not any(part.requires_grad for part in state)
        return self.num_directions == 1 or (is_constant and not any(part.any() for part in state))

    def _run_padded(
        self, x: Tensor, state: LayerHidden, weights: list[Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, LayerHidden]:
        """Run the kernel on padded sequences, with an input that closes the input gate and opens the forget gate.

        It is one on padding and zero elsewhere, so that C is kept exactly, and no gradient depends on padding.
        """
        if lengths is None:
            states, *last = self._run(x, state, weights)
            return states, tuple(last)
        is_read = padding_mask(lengths, x.size(1))[:, 0, 0, :, None].to(x.dtype)
        gate = torch.tensor([-_CLOSED, _CLOSED, 0.0, 0.0], dtype=x.dtype).repeat_interleave(self.hidden_dim)[:, None]
        weights = [torch.cat([w, gate], dim=1) if number % 4 == 0 else w for number, w in enumerate(weights)]
        states, _, cell_states = self._run(torch.cat([x * is_read, 1.0 - is_read], dim=-1), state, weights)
        rows = torch.arange(x.size(0))
        ends = [states[rows, lengths - 1, : self.hidden_dim]]
        if self.num_directions == 2:
            ends.append(states[:, 0, self.hidden_dim :])
        return states * is_read, (torch.stack(ends), cell_states)

    def _run_packed(
        self, x: Tensor, state: LayerHidden, weights: list[Tensor], lengths: Tensor
    ) -> tuple[Tensor, LayerHidden]:
        """Run the kernel on packed sequences, with the rows sorted by length, so that padding is not read."""
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        order, inverse = packed.sorted_indices, packed.unsorted_indices
        assert order is not None
        assert inverse is not None
        ordered = tuple(part.index_select(1, order) for part in state)
        data, *last = self._run(packed.data, ordered, weights, packed.batch_sizes)
        packed = PackedSequence(data, packed.batch_sizes, order, inverse)
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
        return states, tuple(part.index_select(1, inverse) for part in last)

    def _weights(self) -> list[Tensor]:
        """Return the weights in the kernel's order, in training with dropout on the recurrent matrices."""
        weights: dict[str, Tensor] = dict(self.kernel.named_parameters())
        if not self.training or self.weight_dropout.probability == 0.0:
            return list(weights.values())
        dropped = [self.weight_dropout(w) if name.startswith("weight_hh") else w for name, w in weights.items()]
        return split_weights(flatten_weights(dropped), dropped) if dropped[0].is_cuda else dropped

    def _initialize(self) -> None:
        gates = _NUM_GATES[self.cell]
        for name, parameter in self.kernel.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                if self.cell == "lstm" and name.startswith("bias_hh"):
                    with torch.no_grad():
                        parameter.chunk(gates)[1].fill_(1.0)  # the forget gate
            else:
                for part in parameter.detach().chunk(gates):
                    nn.init.orthogonal_(part) if name.startswith("weight_hh") else nn.init.xavier_uniform_(part)


def _has_persistent_kernel(batch_size: int, input_dim: int, hidden_dim: int) -> bool:
    """Return whether PyTorch selects cuDNN's persistent kernel, which it does in float16 only."""
    fits = batch_size % 8 == 0 and input_dim % 128 == 0 and hidden_dim % 128 == 0
    return fits and batch_size <= 128 and hidden_dim <= 1024


def flatten_weights(weights: Sequence[Tensor]) -> Float[Tensor, " numbers"]:
    """Return the weights of a layer in one tensor, matrices before biases, in the layout of cuDNN."""
    return torch.cat([weights[number].flatten() for number in _order(weights)])


def split_weights(flat: Float[Tensor, " numbers"], weights: Sequence[Tensor]) -> list[Tensor]:
    """Return views of `flat`, the result of `flatten_weights`, with the shapes of `weights`."""
    order = _order(weights)
    parts = dict(zip(order, flat.split([weights[number].numel() for number in order]), strict=True))
    return [parts[number].view_as(weight) for number, weight in enumerate(weights)]


def _order(weights: Sequence[Tensor]) -> list[int]:
    return sorted(range(len(weights)), key=lambda number: weights[number].dim() == 1)


def unroll(
    stack: RecurrentStack, x: Float[Tensor, "batch time input"], state: Hidden | None = None
) -> tuple[Float[Tensor, "batch time width"], Hidden]:
    """Compute what `stack` computes, without dropout, layer by layer, direction by direction and step by step."""
    initial = stack.initial_state(x.size(0)) if state is None else state
    last: list[LayerHidden] = []
    for layer, start in zip(stack.layers, initial, strict=True):
        assert isinstance(layer, RecurrentLayer)
        outputs, ends = [], []
        for direction in range(layer.num_directions):
            names = (f"{kind}_l0{'_reverse' if direction else ''}" for kind in KERNEL_WEIGHTS)
            w, u, b, c = (getattr(layer.kernel, name) for name in names)
            hidden: CellState = tuple(part[direction] for part in start)
            steps = range(x.size(1)) if direction == 0 else reversed(range(x.size(1)))
            states: dict[int, Tensor] = {}
            for t in steps:
                from_input, from_hidden = x[:, t] @ w.T + b, hidden[0] @ u.T + c
                hidden = cell_step(layer.cell, layer.activation, from_input, from_hidden, hidden)
                states[t] = hidden[0]
            outputs.append(torch.stack([states[t] for t in range(x.size(1))], dim=1))
            ends.append(hidden)
        x = torch.cat(outputs, dim=-1)
        last.append(tuple(torch.stack(part) for part in zip(*ends, strict=True)))
    return x, tuple(last)


KERNEL_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""Names of the weights of a direction in PyTorch's layers, which end in `_l0`."""
_FUSED: dict[tuple[Cell, CellActivation], Callable[..., tuple[Tensor, ...]]] = {
    ("rnn", "tanh"): torch.rnn_tanh,
    ("rnn", "relu"): torch.rnn_relu,
    ("gru", "tanh"): torch.gru,
    ("lstm", "tanh"): torch.lstm,
}
