"""A batch that writes: rows of slots, each with its newest token, and a step that reads these and chooses the next.

A step needs nothing from the host: it takes its random numbers from a table
that was filled before, and puts what it chose into another, which is fetched
when several steps are done. On a GPU it is recorded once as a CUDA graph and
replayed, so that the host names one graph and not some hundreds of kernels:
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
On a CPU the same step runs as it stands.

Dimensions: `slots` rows of the batch, `steps` that are taken without asking back.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.generation.config import GenerationConfig
from regard.generation.inference import DirectStep
from regard.generation.sampling import choose, precise
from regard.kernels import has_kernels
from regard.logging import log_warning
from regard.models.families import AnyModel
from regard.models.protocols import Slots, State, Stepper
from regard.models.transformer import Transformer
from regard.models.transformer_states import TransformerSlots, TransformerState
from regard.nn.cache import KeyValues

MOST_STEPS = 16
"""Steps that are taken on a GPU without asking back, at most."""
_WARM_UP = 2
"""Steps before a recording, in which libraries set up what they need."""


class Room(NamedTuple):
    """How much a batch holds."""

    num_slots: int
    capacity: int
    """Positions of each row."""
    source_length: int
    """Positions of each row's source; 0 where nothing is read but the prompt."""


class Batch:
    """Sequences that are written side by side, at most one in each slot.

    `blank` is the state before anything was read, from which slots go on that nobody uses.
    With `wants_graph` the step is recorded; `has_graph` says whether it could be.
    """

    def __init__(
        self,
        model: AnyModel,
        config: GenerationConfig,
        room: Room,
        *,
        blank: State,
        wants_graph: bool,
    ) -> None:
        self.room, self._config = room, config
        self.slots = model.slots(room.num_slots, room.capacity, source_length=room.source_length)
        weight = model.embedding.weight
        device = weight.device
        self.tokens: Int[Tensor, "slots 1"] = torch.zeros(room.num_slots, 1, dtype=torch.long, device=device)
        """The newest token of each row, which has not been read yet."""
        self.lengths = [0] * room.num_slots
        """Tokens that each row has read."""
        table = (MOST_STEPS, room.num_slots)
        self._draws: Float[Tensor, "steps slots"] = precise(weight.new_zeros(table))
        self._chosen: Int[Tensor, "steps slots"] = torch.zeros(table, dtype=torch.long, device=device)
        self._done = torch.zeros(1, dtype=torch.long, device=device)
        """Steps taken of those that are taken without asking back: the row of both tables that is next."""
        self._blank = blank
        self.clear(range(room.num_slots))
        self._read = fused_step(model, room.capacity) or DirectStep.of(model, room.capacity) or model.step
        replay = record(self._advance) if wants_graph else None
        self.has_graph = replay is not None
        self._step = replay or self._advance

    def put(self, slots: Sequence[int], state: State, lengths: Sequence[int]) -> None:
        """Let these slots go on where the rows of `state` stand, which have read so many tokens each."""
        put_rows(self.slots, slots, state, device=self.tokens.device)
        for slot, length in zip(slots, lengths, strict=True):
            self.lengths[slot] = length

    def clear(self, slots: Sequence[int]) -> None:
        """Let these slots start from nothing."""
        rows = torch.zeros(len(slots), dtype=torch.long, device=self.tokens.device)
        self.put(slots, self._blank.select(rows), [0] * len(slots))

    def take(self, slots: Sequence[int], other: "Batch", others: Sequence[int]) -> None:
        """Let `slots` go on as the slots `others` of another batch would."""
        rows = torch.tensor(others, device=self.tokens.device)
        self.put(slots, other.slots.select(rows), [other.lengths[slot] for slot in others])
        self.tokens[torch.tensor(slots, device=self.tokens.device)] = other.tokens[rows]

    def run(self, num_steps: int, draws: NDArray[np.float64] | None) -> list[list[int]]:
        """What each slot's row writes in the next steps.

        `draws` are uniform on [0, 1), a row for each step; None when the likeliest token is chosen.
        """
        self._done.zero_()
        if draws is not None:
            self._draws[:num_steps].copy_(torch.from_numpy(draws))
        for _ in range(num_steps):
            self._step()
        self.lengths = [length + num_steps for length in self.lengths]
        return self._chosen[:num_steps].t().tolist()

    def _advance(self) -> None:
        scores, _ = self._read(self.tokens, self.slots)
        draws = self._draws.index_select(0, self._done)[0]
        chosen = choose(scores[:, -1], self._config, draws)
        self._chosen.index_copy_(0, self._done, chosen[None])
        self.tokens.copy_(chosen[:, None])
        self._done.add_(1)


def fused_step(model: Stepper, capacity: int) -> Callable[[Tensor, State], tuple[Tensor, State]] | None:
    """`model.step` for one token in each row of up to `capacity` positions, by kernels of our own, if there are any."""
    if not isinstance(model, Transformer) or not has_kernels(model.embedding.weight):
        return None
    from regard.generation.fused import FusedStep

    return FusedStep.of(model, capacity)


def put_rows(slots: Slots, places: Sequence[int], state: State, *, device: torch.device) -> None:
    """Let row `places[i]` of `slots` go on where row i of `state`, which may have slots too, stands.

    Where keys and values are many and long, this is faster than one `slots.put` after the other, and does the same.
    """
    if not isinstance(slots, TransformerSlots):
        for place, row in zip(places, torch.arange(len(places), device=device).split(1), strict=True):
            slots.put(place, state.select(row))
        return
    assert isinstance(state, TransformerState | TransformerSlots)
    rows = torch.tensor(places, dtype=torch.long, device=device)
    for own, new in zip(slots.caches, state.caches, strict=True):
        length = min(new.length if isinstance(new, KeyValues) else new.keys.size(2), own.keys.size(2))
        if length:
            own.keys[rows, :, :length] = new.keys[:, :, :length]
            own.values[rows, :, :length] = new.values[:, :, :length]
    slots.lengths[rows] = state.lengths if isinstance(state, TransformerSlots) else state.caches[0].length
    for own, new in zip(slots.seen or (), state.seen or (), strict=True):
        assert own.mask is not None, "rows of different length need a mask"
        if new.k.size(0) != len(places):  # several rows, standing together, see the same
            new = new.select(torch.arange(len(places), device=device) * new.k.size(0) // len(places))
        length = min(new.k.size(2), own.k.size(2))
        own.k[rows, :, :length], own.v[rows, :, :length] = new.k[:, :, :length], new.v[:, :, :length]
        own.mask[rows] = False
        own.mask[rows, :, :, :length] = True if new.mask is None else new.mask[..., :length]


def record(step: Callable[[], None]) -> Callable[[], None] | None:
    """The replay of `step` as a CUDA graph, or None, with a warning, where it cannot be recorded.

    The step is taken a few times first, on a stream of its own, so it must do no harm yet.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
        reason = _why_it_waits(step)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if reason is None:
        try:
            # The outer context gives the stream back where the inner one fails to; other threads may use the device.
            with torch.cuda.stream(current), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step()
            return graph.replay
        except RuntimeError as error:
            reason = str(error)
    first = reason.splitlines()[0]
    log_warning(f"a step of this model cannot be recorded as a CUDA graph, and is slower than it could be: {first}")
    return None


def _why_it_waits(step: Callable[[], None]) -> str | None:
    """What makes the host wait for the device in a step, which no recording can hold; None where nothing does.

    It is asked before the recording, since one that fails may leave the device in a bad state.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode does not see everything
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        except RuntimeError as error:
            return str(error)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return None
