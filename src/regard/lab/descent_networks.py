"""What the studies of training share: small networks, what they are to learn, and means over runs.

Dimensions:
    runs    networks side by side, each with its own weights, data and order of examples
    rows    examples
    inputs  numbers in an example
    width   hidden units
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.lab.exercises import NOT_ASKED, Batch, look_back
from regard.models.transformer import Transformer, TransformerConfig


@dataclass(frozen=True)
class Problem:
    """A network, and the loss that gradient descent is to lower: over all examples, so that nothing is random."""

    name: str
    model: nn.Module
    losses_with: Callable[[nn.Module], Float[Tensor, " rows"]]
    """Of each example."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def losses(self) -> Float[Tensor, " rows"]:
        return self.losses_with(self.model)

    def loss(self) -> Float[Tensor, ""]:
        """The mean over the examples."""
        return self.losses().mean()


def regression(*, num_rows: int, num_inputs: int, width: int, num_layers: int, rng: torch.Generator) -> Problem:
    """Half the squared error of a network with hidden layers of tanh, on what another such network says."""
    teacher, model = (_layers(num_inputs, width, num_layers, gain, rng) for gain in (3.0, 1.0))
    inputs = torch.randn(num_rows, num_inputs, generator=rng, dtype=torch.float64)
    targets = teacher(inputs).detach()
    targets = (targets - targets.mean()) / targets.std()
    return Problem("tanh network", model, partial(_squared_errors, inputs=inputs, targets=targets))


def looking_back(*, num_rows: int, length: int, width: int, rng: torch.Generator) -> Problem:
    """The loss of a Transformer that is to name the token before, on one batch that stays the same."""
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=2, model_dim=width, num_heads=2, feedforward_dim=2 * width, block="pre-norm",
        activation="gelu", dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
    model = Transformer(config, 8).double()
    batch = look_back(num_rows, length, distance=1, vocab_size=8)
    return Problem("Transformer", model, partial(_cross_entropies, batch=batch))


def _layers(num_inputs: int, width: int, num_layers: int, gain: float, rng: torch.Generator) -> nn.Sequential:
    """Hidden layers of tanh and one number; weights so large that each unit is given a variance of about gain²."""
    modules: list[nn.Module] = []
    for before, after in pairwise([num_inputs, *[width] * num_layers, 1]):
        linear = nn.Linear(before, after).double()
        drawn = torch.randn(after, before, generator=rng, dtype=torch.float64)
        nn.init.zeros_(linear.bias)
        with torch.no_grad():
            linear.weight.copy_(gain * drawn / before**0.5)
        modules += [linear, nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def _squared_errors(model: nn.Module, *, inputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (model(inputs) - targets).square().squeeze(-1)


def _cross_entropies(model: nn.Module, *, batch: Batch) -> Tensor:
    """Of each sequence, the mean over the positions at which something is asked."""
    scores = model(batch.inputs).transpose(1, 2)
    losses = F.cross_entropy(scores, batch.targets, ignore_index=NOT_ASKED, reduction="none")
    return losses.sum(dim=1) / (batch.targets != NOT_ASKED).sum(dim=1)


@dataclass(frozen=True)
class Networks:
    """Networks with one hidden layer of tanh and one score, side by side.

    The sum of their losses has as gradient of each the gradient of its own, so
    that one backward pass serves all.
    """

    hidden: Float[Tensor, "runs inputs width"]
    bias: Float[Tensor, "runs 1 width"]
    output: Float[Tensor, "runs width 1"]

    def __call__(self, inputs: Float[Tensor, "runs rows inputs"]) -> Float[Tensor, "runs rows"]:
        return (torch.baddbmm(self.bias, inputs, self.hidden).tanh() @ self.output).squeeze(-1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.hidden, self.bias, self.output]

    def copy(self) -> "Networks":
        """The same weights again, which move on their own."""
        return Networks(*(parameter.detach().clone().requires_grad_() for parameter in self.parameters))

    @torch.no_grad()
    def descend(self, losses: Float[Tensor, " runs"], *, rate: float) -> None:
        """Move each network down the gradient of its own loss."""
        with torch.enable_grad():
            gradients = torch.autograd.grad(losses.sum(), self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=rate)


def draw_networks(runs: int, num_inputs: int, width: int, *, rng: torch.Generator) -> Networks:
    """Random weights: what a hidden unit and the score are given has a variance of about 1."""
    hidden = torch.randn(runs, num_inputs, width, generator=rng) / num_inputs**0.5
    output = torch.randn(runs, width, 1, generator=rng) / width**0.5
    return Networks(*(tensor.requires_grad_() for tensor in (hidden, torch.zeros(runs, 1, width), output)))


@dataclass(frozen=True)
class Examples:
    """Inputs, and labels of 0 and 1, for each run its own."""

    inputs: Float[Tensor, "runs rows inputs"]
    labels: Float[Tensor, "runs rows"]

    def take(self, rows: Tensor) -> "Examples":
        """The rows of those numbers, run by run."""
        runs = torch.arange(len(rows))[:, None]
        return Examples(self.inputs[runs, rows], self.labels[runs, rows])


def draw_examples(
    runs: int, num_rows: int, num_inputs: int, *, teacher: Networks, flipped: float, rng: torch.Generator
) -> Examples:
    """Random inputs of about length 1, labelled by a `teacher`; a share of the labels is then turned over."""
    inputs = torch.randn(runs, num_rows, num_inputs, generator=rng)
    with torch.no_grad():
        labels = (teacher(inputs) > 0).to(inputs.dtype)
    is_flipped = torch.rand(runs, num_rows, generator=rng) < flipped
    return Examples(inputs, torch.where(is_flipped, 1 - labels, labels))


def log_losses(scores: Float[Tensor, "runs rows"], examples: Examples) -> Float[Tensor, " runs"]:
    """The mean of log(1 + exp(-margin)) over the rows of each run."""
    return F.binary_cross_entropy_with_logits(scores, examples.labels, reduction="none").mean(dim=1)


def errors(scores: Float[Tensor, "runs rows"], examples: Examples) -> Float[Tensor, " runs"]:
    """The share of rows with the wrong sign."""
    return ((scores > 0) != (examples.labels > 0.5)).to(scores.dtype).mean(dim=1)
