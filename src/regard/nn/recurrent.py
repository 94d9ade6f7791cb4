r"""Recurrent networks: a state that is carried from position to position.

Elman, "Finding Structure in Time" (1990).
    rnn    $h_t = \mathrm{act}(W x_t + b + U h_{t-1} + c)$

Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder" (2014). https://arxiv.org/abs/1406.1078
    gru    $r_t, z_t = \sigma(\dots)$; $n_t = \tanh(W x_t + b + r_t (U h_{t-1} + c))$;
           $h_t = (1 - z_t) n_t + z_t h_{t-1}$

Hochreiter & Schmidhuber, "Long Short-Term Memory" (1997); Gers et al. (2000) for the forget gate.
    lstm   $i_t, f_t, o_t = \sigma(\dots)$, $g_t = \tanh(\dots)$; $C_t = f_t C_{t-1} + i_t g_t$; $h_t = o_t \tanh(C_t)$

where each $\dots$ is $W x_t + b + U h_{t-1} + c$ with weights of its own.
`unroll` below is these lines, step by step, and is the specification;
`RecurrentStack` runs PyTorch's fused kernels on the same weights, and a test
holds the two equal.

Dimensions: `batch` sequences, `time` positions, `input` and `hidden` widths,
`layers` counts layers times directions, the directions of a layer side by side.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Cell = Literal["rnn", "gru", "lstm"]
CellActivation = Literal["tanh", "relu"]
InitialState = Literal["zero", "learned"]
Hidden = tuple[Float[Tensor, "layers batch hidden"], ...]
"""The state of a stack: h, and for an LSTM also C."""
LayerHidden = tuple[Float[Tensor, "batch hidden"], ...]
"""The state of one layer in one direction."""

_NUM_GATES: dict[Cell, int] = {"rnn": 1, "gru": 3, "lstm": 4}


def cell_step(
    cell: Cell,
    activation: CellActivation,
    from_input: Float[Tensor, "batch gates"],
    from_hidden: Float[Tensor, "batch gates"],
    state: LayerHidden,
) -> LayerHidden:
    """One step of one layer, for all gates' `W x + b` and `U h + c`, side by side in PyTorch's order."""
    h = state[0]
    if cell == "rnn":
        total = from_input + from_hidden
        return (total.tanh() if activation == "tanh" else total.relu(),)
    x, u = from_input.chunk(_NUM_GATES[cell], dim=-1), from_hidden.chunk(_NUM_GATES[cell], dim=-1)
    if cell == "gru":
        reset, update = (x[0] + u[0]).sigmoid(), (x[1] + u[1]).sigmoid()
        new = (x[2] + reset * u[2]).tanh()
        return ((1 - update) * new + update * h,)
    admit, forget, output = ((x[gate] + u[gate]).sigmoid() for gate in (0, 1, 3))
    inner = forget * state[1] + admit * (x[2] + u[2]).tanh()
    return (output * inner.tanh(), inner)


class RecurrentStack(nn.Module):
    """Recurrent layers one upon another, forwards or in both directions.

    With two directions each has `hidden_dim` numbers, and a position's state is
    both side by side. Recurrent matrices start orthogonal, so that gradients
    neither vanish nor explode at once, and an LSTM starts out remembering.
    """

    def __init__(
        self,
        cell: Cell,
        input_dim: int,
        hidden_dim: int,
        num_layers: int,
        *,
        activation: CellActivation = "tanh",
        is_bidirectional: bool = False,
        dropout: float = 0.0,
        initial_state: InitialState = "zero",
    ) -> None:
        super().__init__()
        self.cell: Cell = cell
        self.activation: CellActivation = activation
        options = {
            "num_layers": num_layers,
            "batch_first": True,
            "bidirectional": is_bidirectional,
            "dropout": dropout if num_layers > 1 else 0.0,
        }
        match cell:
            case "rnn":
                self.kernel: nn.RNNBase = nn.RNN(input_dim, hidden_dim, nonlinearity=activation, **options)
            case "gru":
                self.kernel = nn.GRU(input_dim, hidden_dim, **options)
            case "lstm":
                self.kernel = nn.LSTM(input_dim, hidden_dim, **options)
        count = num_layers * (2 if is_bidirectional else 1)
        self.num_parts = 2 if cell == "lstm" else 1
        start = torch.zeros(self.num_parts, count, 1, hidden_dim)
        self.start = nn.Parameter(start) if initial_state == "learned" else None
        self._shape = (count, hidden_dim)
        self._initialize()

    def initial(self, batch_size: int) -> Hidden:
        """The state before the first position."""
        count, hidden_dim = self._shape
        if self.start is not None:
            return tuple(self.start.expand(-1, -1, batch_size, -1).contiguous())
        zeros = next(self.kernel.parameters()).new_zeros(count, batch_size, hidden_dim)
        return (zeros,) * self.num_parts

    def forward(
        self,
        x: Float[Tensor, "batch time input"],
        lengths: Int[Tensor, " batch"] | None = None,
        state: Hidden | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Hidden]:
        """The top layer's state at each position, and all layers' state behind the last.

        Positions at and behind `lengths` are padding: they are never read, and
        their states are zero.
        """
        hidden = self.initial(x.size(0)) if state is None else state
        inner = hidden if self.cell == "lstm" else hidden[0]
        if lengths is None:
            states, last = self.kernel(x, inner)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            packed_states, last = self.kernel(packed, inner)
            states, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=x.size(1))
        return states, last if self.cell == "lstm" else (last,)

    def _initialize(self) -> None:
        gates = _NUM_GATES[self.cell]
        for name, parameter in self.kernel.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
                if self.cell == "lstm" and name.startswith("bias_hh"):
                    with torch.no_grad():
                        parameter.chunk(gates)[1].fill_(1.0)  # the forget gate starts open
            else:
                for part in parameter.detach().chunk(gates):
                    nn.init.orthogonal_(part) if name.startswith("weight_hh") else nn.init.xavier_uniform_(part)


def unroll(
    stack: RecurrentStack, x: Float[Tensor, "batch time input"], state: Hidden | None = None
) -> tuple[Float[Tensor, "batch time width"], Hidden]:
    """What `stack` computes, written out: layer by layer, direction by direction, step by step; no dropout."""
    kernel = stack.kernel
    initial = stack.initial(x.size(0)) if state is None else state
    num_directions = 2 if kernel.bidirectional else 1
    last: list[LayerHidden] = []
    for layer in range(kernel.num_layers):
        outputs = []
        for direction in range(num_directions):
            names = (f"{kind}_l{layer}{'_reverse' if direction else ''}" for kind in _WEIGHTS)
            w, u, b, c = (getattr(kernel, name) for name in names)
            hidden: LayerHidden = tuple(part[layer * num_directions + direction] for part in initial)
            steps = range(x.size(1)) if direction == 0 else reversed(range(x.size(1)))
            states: dict[int, Tensor] = {}
            for t in steps:
                from_input, from_hidden = x[:, t] @ w.T + b, hidden[0] @ u.T + c
                hidden = cell_step(stack.cell, stack.activation, from_input, from_hidden, hidden)
                states[t] = hidden[0]
            outputs.append(torch.stack([states[t] for t in range(x.size(1))], dim=1))
            last.append(hidden)
        x = torch.cat(outputs, dim=-1)
    return x, tuple(torch.stack(part) for part in zip(*last, strict=True))


_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
