"""What a task is: everything the training loop does not know.

A task says what a row of data looks like, which model it takes, how rows become
a batch, what the loss is, how to predict, and how predictions are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.store import TokenStore
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.text.tokenizer import Tokenizer


class Batch(Protocol):
    """Rows ready for the model."""

    @property
    def num_targets(self) -> int:
        """How many tokens the loss is summed over: what a step is normalised by."""
        ...

    @property
    def num_tokens(self) -> int:
        """How many tokens were read in all, padding not counted: what speed is measured in."""
        ...

    def to(self, device: torch.device) -> Self: ...


@dataclass(frozen=True)
class Prediction:
    """What the model makes of one input."""

    input: str
    output: str
    score: float | None = None
    """Log-probability by length, where beam search ranked hypotheses."""


class Task(Protocol):
    """One kind of job."""

    name: str
    description: str
    roles: tuple[str, ...]
    """What a row of data must give."""

    def build_model(self, config: Any, tokenizer: Tokenizer) -> nn.Module:
        """A fresh model of this shape for this task."""
        ...

    def collate(self, store: TokenStore, rows: NDArray[np.int64], tokenizer: Tokenizer) -> Any:
        """Rows of a store as one batch."""
        ...

    def batch(self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer) -> Any:
        """Rows of text as one batch."""
        ...

    def loss(self, model: Any, batch: Any, *, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The loss summed over the batch's targets."""
        ...

    def negative_log_likelihoods(self, model: Any, batch: Any) -> tuple[list[float], list[int]]:
        """For each row, the negative log-likelihood of its targets, and how many they are."""
        ...

    def predict(
        self, model: Any, tokenizer: Tokenizer, inputs: Sequence[str], config: GenerationConfig
    ) -> list[Prediction]:
        """What the model makes of each input, in order."""
        ...

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """The name of the score that says most about data like these rows."""
        ...

    def scores(self, outputs: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Score]:
        """How good the outputs are, given whole rows of data."""
        ...
