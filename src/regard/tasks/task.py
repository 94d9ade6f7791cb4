"""What a task is: everything the training loop does not know.

A task says how data is read, which model it takes, how rows become batches,
what the loss is, how to predict, and how predictions are scored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.sources import Rows
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.models.heads import HeadConfig
from regard.tasks.objective import PLAIN, Objective
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

    def tensors(self) -> list[Tensor | None]:
        """Its tensors, in a fixed order."""
        ...

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Self:
        """The same batch, with these tensors in the place of its own."""
        ...


class Batches(Protocol):
    """The batches of training, any of which can be had at once."""

    @property
    def per_epoch(self) -> int:
        """How many make a pass over the data."""
        ...

    def batch(self, number: int) -> Batch:
        """Batch `number`, counted from 0 through all epochs."""
        ...


@dataclass(frozen=True)
class Likelihoods:
    """How probable the model holds some text: for each stretch of it what was scored together."""

    losses: list[float]
    """Negative log-likelihoods, in nats."""
    counts: list[int]
    """How many tokens each is summed over."""
    is_carried: bool = False
    """Whether a recurrent model read it all as one text, its state carried from stretch to stretch."""

    @property
    def mean(self) -> float:
        """Per token."""
        return sum(self.losses) / max(1, sum(self.counts))


@dataclass(frozen=True)
class Prediction:
    """What the model makes of one input."""

    input: str
    output: str
    score: float | None = None
    """Log-probability by length, where beam search ranked hypotheses."""
    probabilities: dict[str, float] | None = None
    """Of each label, where there are labels to choose from."""
    aspect: str | None = None
    """What of the input was judged, where that is asked."""
    weights: list[tuple[str, float]] | None = None
    """How much each word of the input counted in that, where it is known."""

    def to_json(self) -> dict[str, Any]:
        """What is printed by `--json`, and what a server answers."""
        found = {"input": self.input, "output": self.output, "score": self.score}
        more = {"probabilities": self.probabilities, "aspect": self.aspect, "weights": self.weights}
        return found | {name: value for name, value in more.items() if value is not None}


class Writer(Protocol):
    """Answers inputs; it is kept, since what it prepares for some serves others."""

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model makes of each input, in order."""
        ...


class Task(Protocol):
    """One kind of job."""

    name: str
    description: str
    has_answers: bool
    """Whether a row says what should come out, so that predictions can be scored."""

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        """The data that the settings name, or `rows`, ready to be trained on."""
        ...

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        """The rows of what the settings name as `train`, to be scored, and the hash of their content."""
        ...

    def question(self, row: Sequence[str]) -> str:
        """What of a row is asked, as an input is written."""
        ...

    def build_model(
        self, config: Any, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> nn.Module:
        """A fresh model of this shape for this task; `data` and `head` count where there are labels."""
        ...

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> Batches:
        """What to train on, in the order that `seed` gives; with `has_few_shapes`, padded to shapes that recur."""
        ...

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[Batch]:
        """All of the validation data, once."""
        ...

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[Batch]:
        """All of these rows, once."""
        ...

    def loss(self, model: Any, batch: Any, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The loss summed over the batch's targets."""
        ...

    def negative_log_likelihoods(self, model: Any, batches: Iterator[Any], device: torch.device) -> Likelihoods:
        """How probable the model holds the targets of all these batches."""
        ...

    def writer(
        self, model: Any, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Writer":
        """What answers inputs by this model; `data` counts where there are labels."""
        ...

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """The name of the score that says most about data like these rows."""
        ...

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        """How good the model is on these rows, given what it says of them and how probable it holds them."""
        ...


@runtime_checkable
class RunningTask(Task, Protocol):
    """A task whose batches may go on where the last ones ended: truncated backpropagation through time."""

    def running_batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, jitter: float
    ) -> Batches:
        """What to train on, each row going on where that of the last batch ended.

        `jitter` is how far cuts may be moved, as a share of the window.
        """
        ...

    def running_loss(
        self,
        model: Any,
        batch: Any,
        carried: list[Tensor] | None,
        objective: Objective = PLAIN,
    ) -> tuple[Float[Tensor, ""], list[Tensor]]:
        """The `loss` of a batch that goes on from what was `carried`, and what the next one is to go on from.

        No gradient flows into the last batch.
        """
        ...


def twice(batch: Any) -> Any:
    """The batch above itself, for a model that forgets other things each time."""
    return batch.with_tensors([None if tensor is None else torch.cat([tensor, tensor]) for tensor in batch.tensors()])


def moved(batch: Batch, device: torch.device) -> Any:
    """The batch on a device; the copy to a GPU does not hold the program up."""

    def move(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or device.type == tensor.device.type:
            return tensor
        return tensor.pin_memory().to(device, non_blocking=True)

    return batch.with_tensors([move(tensor) for tensor in batch.tensors()])
