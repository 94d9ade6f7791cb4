"""The two protocols that join every family of models.

An *encoder* turns inputs into a `Memory`. A *decoder* turns a prefix, and the
memory where there is one, into scores for the next token: all positions at
once for training (`decode`), or step by step from a `State` (`start`, `step`).
Every generator works through `start`, `step` and `State.select`, and so works
for every family. Where sequences come and go while others are being written,
the state has `Slots`: rows of fixed size, each at a place of its own.

Dimensions: `batch` sequences, `time` positions, `model` width, `vocab` tokens.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """What an encoder makes of its input."""

    states: Float[Tensor, "batch time model"]
    mask: Bool[Tensor, "batch 1 1 time"] | None
    """True where there is input and not padding; None where nothing is padded."""


@runtime_checkable
class State(Protocol):
    """What a decoder remembers between steps: keys and values, or hidden vectors."""

    def select(self, rows: Int[Tensor, " chosen"]) -> "State":
        """The state of these rows of the batch, in this order; a row may occur twice."""
        ...


@runtime_checkable
class Slots(State, Protocol):
    """A state of fixed size whose rows are filled and left one by one.

    `step` changes it in place, so that a step can be recorded and replayed.
    """

    def put(self, slot: int, state: State) -> None:
        """Let row `slot` go on where the one row of `state` stands."""
        ...

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let row i go on where row `rows[i]` stands. Both rows look at the same memory."""
        ...


@runtime_checkable
class Encoder(Protocol):
    """Turns inputs into states."""

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        added: Float[Tensor, "batch time model"] | None = None,
    ) -> Memory:
        """Read `source`; positions at and behind `lengths` are padding and change nothing.

        `added` is what is known of each position beside its token, added to the vector of that.
        """
        ...


@runtime_checkable
class Stepper(Protocol):
    """Reads token after token, and says after each what may come next: all that a generator needs."""

    def step(self, tokens: Int[Tensor, "batch new"], state: State) -> tuple[Float[Tensor, "batch new vocab"], State]:
        """Read new tokens; the scores (logits) after each, and the state behind them.

        The state handed in is used up: its memory may be overwritten.
        """
        ...


@runtime_checkable
class Decoder(Stepper, Protocol):
    """Turns a prefix into scores for the next token."""

    def states(
        self,
        target: Int[Tensor, "batch time"],
        memory: Memory | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        """What the scores after each prefix of `target` are computed from; position t sees tokens 0..t only.

        With `documents`, t sees those tokens only that have the same number as its own.
        """
        ...

    def scores(self, states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        """The scores that belong to `states`."""
        ...

    def decode(
        self, target: Int[Tensor, "batch time"], memory: Memory | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        """The scores after each prefix of `target`, in one go."""
        ...

    def slots(self, num_slots: int, capacity: int, *, source_length: int = 0) -> Slots:
        """Room for so many sequences of up to `capacity` tokens, and for memories of up to `source_length`."""
        ...

    def start(self, memory: Memory | None = None, *, batch_size: int = 1) -> State:
        """The state before the first token; `batch_size` counts where there is no memory to tell."""
        ...
