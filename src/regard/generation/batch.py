"""A running batch: rows with their newest tokens, and a step that processes these and chooses the next ones.

A step needs nothing from the host: it reads its random numbers from a table that
was filled before, and writes the tokens it chose to another, which is fetched after
several steps. On a GPU it is captured as a CUDA graph.

Dimensions: `slots` rows of the batch, `steps` between two synchronizations with the host.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.generation.config import GenerationConfig
from regard.generation.cuda_graphs import capture_cuda_graph
from regard.generation.sampling import choose_tokens, suppress_tokens
from regard.models.protocols import Decoder, DecoderState

MAX_STEPS = 16
"""The most steps on a GPU between two synchronizations with the host."""


class BatchShape(NamedTuple):
    """The sizes of a batch."""

    num_slots: int
    capacity: int
    """Positions of each row."""
    source_length: int
    """Positions of the source of each row; 0 without an encoder."""


class DecodingBatch:
    """Sequences that are generated in parallel, at most one in each slot.

    `initial_state` is that before any token, with one row; unused slots start from it.
    With `use_cuda_graph` the step is captured; `has_graph` is False where that fails.
    Tokens in `suppress` are never generated.
    """

    def __init__(
        self,
        model: Decoder,
        config: GenerationConfig,
        shape: BatchShape,
        *,
        initial_state: DecoderState,
        use_cuda_graph: bool,
        suppress: Sequence[int] = (),
    ) -> None:
        self.shape, self._model, self._config = shape, model, config
        self.state = model.static_state(shape.num_slots, shape.capacity, source_length=shape.source_length)
        device = model.device
        self.tokens: Int[Tensor, "slots 1"] = torch.zeros(shape.num_slots, 1, dtype=torch.long, device=device)
        """The newest token of each row, which is not processed yet."""
        self.lengths = [0] * shape.num_slots
        """Tokens of each row that are processed."""
        table = (MAX_STEPS, shape.num_slots)
        dtype = torch.promote_types(model.dtype, torch.float32)
        self._draws: Float[Tensor, "steps slots"] = torch.zeros(table, dtype=dtype, device=device)
        self._chosen: Int[Tensor, "steps slots"] = torch.zeros(table, dtype=torch.long, device=device)
        self._num_done = torch.zeros(1, dtype=torch.long, device=device)
        """Steps since the last synchronization: the next row of both tables."""
        self._suppressed = torch.tensor(suppress, device=device) if suppress else None
        self._initial_state = initial_state
        self.clear(range(shape.num_slots))
        replay = capture_cuda_graph(self._advance) if use_cuda_graph else None
        self.has_graph = replay is not None
        self._step = replay or self._advance

    def put(self, slots: Sequence[int], state: DecoderState, lengths: Sequence[int]) -> None:
        """Copy the rows of `state`, in which `lengths` tokens are processed, into these slots."""
        self.state.put(torch.tensor(slots, device=self.tokens.device), state)
        for slot, length in zip(slots, lengths, strict=True):
            self.lengths[slot] = length

    def clear(self, slots: Sequence[int]) -> None:
        """Reset these slots to the initial state."""
        rows = torch.zeros(len(slots), dtype=torch.long, device=self.tokens.device)
        self.put(slots, self._initial_state.select(rows), [0] * len(slots))

    def copy_from(self, slots: Sequence[int], other: "DecodingBatch", others: Sequence[int]) -> None:
        """Copy the slots `others` of another batch into these slots."""
        rows = torch.tensor(others, device=self.tokens.device)
        self.put(slots, other.state.select(rows), [other.lengths[slot] for slot in others])
        self.tokens[torch.tensor(slots, device=self.tokens.device)] = other.tokens[rows]

    def run(self, num_steps: int, draws: NDArray[np.float64] | None) -> list[list[int]]:
        """Return the tokens that the next steps generate in each slot.

        `draws` are uniform on [0, 1), one row for each step; None for greedy decoding.
        """
        self._num_done.zero_()
        if draws is not None:
            self._draws[:num_steps].copy_(torch.from_numpy(draws))
        for _ in range(num_steps):
            self._step()
        self.lengths = [length + num_steps for length in self.lengths]
        return self._chosen[:num_steps].t().tolist()

    def _advance(self) -> None:
        logits, _ = self._model.step(self.tokens, self.state)
        draws = self._draws.index_select(0, self._num_done)[0]
        chosen = choose_tokens(suppress_tokens(logits[:, -1], self._suppressed), self._config, draws)
        self._chosen.index_copy_(0, self._num_done, chosen[None])
        self.tokens.copy_(chosen[:, None])
        self._num_done.add_(1)
