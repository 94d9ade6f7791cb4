"""Small networks trained in parallel on binary classification, one per run, each with its own weights and data.

Dimensions:
    runs    networks
    rows    examples
    inputs  features of an example
    width   hidden units
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class ParallelNetworks:
    """Networks with one hidden tanh layer and one logit.

    The gradient of the sum of their losses contains the gradient of each
    network's own loss, so one backward pass serves all.
    """

    hidden: Float[Tensor, "runs inputs width"]
    bias: Float[Tensor, "runs 1 width"]
    output: Float[Tensor, "runs width 1"]

    def __call__(self, inputs: Float[Tensor, "runs rows inputs"]) -> Float[Tensor, "runs rows"]:
        return (torch.baddbmm(self.bias, inputs, self.hidden).tanh() @ self.output).squeeze(-1)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.hidden, self.bias, self.output]

    def copy(self) -> "ParallelNetworks":
        """Returns networks with copies of the weights."""
        return ParallelNetworks(*(parameter.detach().clone().requires_grad_() for parameter in self.parameters))

    @torch.no_grad()
    def update(self, losses: Float[Tensor, " runs"], *, learning_rate: float) -> None:
        """Take one step of gradient descent in each network on its own loss."""
        with torch.enable_grad():
            gradients = torch.autograd.grad(losses.sum(), self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=learning_rate)


def draw_networks(runs: int, num_inputs: int, width: int, *, rng: torch.Generator) -> ParallelNetworks:
    """Returns networks with random weights, such that pre-activations and logits have a variance of about 1."""
    hidden = torch.randn(runs, num_inputs, width, generator=rng) / num_inputs**0.5
    output = torch.randn(runs, width, 1, generator=rng) / width**0.5
    return ParallelNetworks(*(tensor.requires_grad_() for tensor in (hidden, torch.zeros(runs, 1, width), output)))


@dataclass(frozen=True)
class BinaryExamples:
    """Inputs and labels of 0 and 1, separate for each run."""

    inputs: Float[Tensor, "runs rows inputs"]
    labels: Float[Tensor, "runs rows"]

    def take(self, rows: Tensor) -> "BinaryExamples":
        """Returns the rows with these indices, one set of indices per run."""
        runs = torch.arange(len(rows))[:, None]
        return BinaryExamples(self.inputs[runs, rows], self.labels[runs, rows])


def draw_examples(
    runs: int, num_rows: int, num_inputs: int, *, teacher: ParallelNetworks, flipped: float, rng: torch.Generator
) -> BinaryExamples:
    """Returns normal inputs labeled by the `teacher` networks; a fraction `flipped` of the labels is inverted."""
    inputs = torch.randn(runs, num_rows, num_inputs, generator=rng)
    with torch.no_grad():
        labels = (teacher(inputs) > 0).to(inputs.dtype)
    is_flipped = torch.rand(runs, num_rows, generator=rng) < flipped
    return BinaryExamples(inputs, torch.where(is_flipped, 1 - labels, labels))


def logistic_losses(logits: Float[Tensor, "runs rows"], examples: BinaryExamples) -> Float[Tensor, " runs"]:
    """The mean of log(1 + exp(-margin)) over the rows of each run."""
    return F.binary_cross_entropy_with_logits(logits, examples.labels, reduction="none").mean(dim=1)


def error_rates(logits: Float[Tensor, "runs rows"], examples: BinaryExamples) -> Float[Tensor, " runs"]:
    """The fraction of rows that are classified wrongly."""
    return ((logits > 0) != (examples.labels > 0.5)).to(logits.dtype).mean(dim=1)
