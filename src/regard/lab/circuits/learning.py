r"""Networks trained on Boolean functions, and how much a gradient depends on which parity is the target.

Shalev-Shwartz, Shamir and Shammah, "Failures of Gradient-Based Deep Learning" (2017), section 2.
https://arxiv.org/abs/1703.07950

Let $H$ be functions with $\mathbb E\,h(x)^2 \le 1$ and $\mathbb E\,h(x) h'(x) = 0$ for $h \ne h'$, such as the parities
of subsets of bits of -1 and 1, and $F_h(w) = \frac12 \mathbb E\,(p_w(x) - h(x))^2$. By Bessel's inequality

$$ \operatorname{Var}_{h} \nabla F_h(w) = \mathbb E_h \big| \nabla F_h(w) - \mathbb E_{h'} \nabla F_{h'}(w) \big|^2
   \le \frac{G(w)^2}{|H|}, \qquad G(w)^2 = \mathbb E_x \Big| \frac{\partial p_w(x)}{\partial w} \Big|^2 $$

(theorem 1). Of $n$ bits there are $2^n$ parities: the gradient is almost the same for all of them, and a descent that
sees gradients with a little noise cannot find out which one is its target.

Dimensions: `run` networks in parallel, each with its own data; `row` inputs, `bit`, `output`; `parity` of a subset.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from regard.lab.circuits.compilation import BooleanProblem
from regard.lab.circuits.formulas import all_inputs
from regard.logging import log_info, progress_bar
from regard.models.heads import HeadConfig, SequenceClassifier
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer import TransformerConfig

LEARNED = 0.99
"""The accuracy on other inputs from which a function counts as learned."""
_MAX_TEST_ROWS = 1_000


@dataclass(frozen=True)
class BooleanRows:
    """Inputs of -1 and 1 and outputs of 0 and 1, for each run."""

    inputs: Float[Tensor, "run row bit"]
    outputs: Float[Tensor, "run row output"]

    def draw(self, num_rows: int, rng: torch.Generator) -> "BooleanRows":
        """Random rows with replacement, others for each run."""
        runs = torch.arange(len(self.inputs))[:, None]
        rows = torch.randint(self.inputs.size(1), (len(self.inputs), num_rows), generator=rng)
        return BooleanRows(self.inputs[runs, rows], self.outputs[runs, rows])


class StackedPerceptrons(nn.Module):
    """ReLU networks of equal shape in parallel, one for each run, initialized as by He et al. (2015)."""

    def __init__(self, num_runs: int, widths: Sequence[int], *, rng: torch.Generator) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.weights = nn.ParameterList(
            torch.randn(num_runs, before, after, generator=rng) * (2 / before) ** 0.5 for before, after in pairs
        )
        self.biases = nn.ParameterList(torch.zeros(num_runs, 1, after) for _, after in pairs)

    def forward(self, x: Float[Tensor, "run row bit"]) -> Float[Tensor, "run row output"]:
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if i else x, weight)
        return x


class SequenceRuns(nn.Module):
    """Sequence models that read bits as tokens, one for each run."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Float[Tensor, "run row bit"]) -> Float[Tensor, "run row output"]:
        return torch.stack([model(tokens) for model, tokens in zip(self.models, (x > 0).long(), strict=True)])


def build_networks(
    architecture: str, num_runs: int, num_inputs: int, num_outputs: int, *, width: int, rng: torch.Generator
) -> nn.Module:
    """Networks of one of `NETWORK_KINDS`, one for each run."""
    if architecture in ("perceptron, depth 2", "perceptron, depth n"):
        hidden = 1 if architecture == "perceptron, depth 2" else num_inputs - 1
        return StackedPerceptrons(num_runs, [num_inputs, *[width] * hidden, num_outputs], rng=rng)
    torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
    if architecture == "LSTM":
        config = RecurrentConfig(encoder_layers=1, decoder_layers=0, model_dim=width, bidirectional=False, dropout=0.0)
        head = HeadConfig(pooling="last", dropout=0.0)
    else:
        config = TransformerConfig(
            encoder_layers=2, decoder_layers=0, model_dim=width, num_heads=4, feedforward_dim=2 * width,
            block="pre-norm", positions="learned", context_length=num_inputs, dropout=0.0,
        )  # fmt: skip
        head = HeadConfig(pooling="mean", dropout=0.0)
    return SequenceRuns([SequenceClassifier(config, head, 2, num_outputs) for _ in range(num_runs)])


NETWORK_KINDS = ("perceptron, depth 2", "perceptron, depth n", "LSTM", "Transformer")


def split_inputs(
    problem: BooleanProblem, size: int, fraction: float, num_runs: int, *, rng: torch.Generator
) -> tuple[BooleanRows, BooleanRows]:
    """A random `fraction` of all inputs for training, another one for each run, and the others (at most 1,000)."""
    inputs = all_inputs(problem.num_inputs(size))
    bits = torch.from_numpy(2.0 * inputs - 1).to(torch.get_default_dtype())
    outputs = torch.from_numpy(problem.truth(inputs)).to(bits.dtype)
    orders = torch.stack([torch.randperm(len(inputs), generator=rng) for _ in range(num_runs)])
    count = min(max(1, round(fraction * len(inputs))), len(inputs) - 1)
    train, test = orders[:, :count], orders[:, count : count + _MAX_TEST_ROWS]
    return BooleanRows(bits[train], outputs[train]), BooleanRows(bits[test], outputs[test])


def train_on_rows(
    model: nn.Module, draw: Callable[[], BooleanRows], *, steps: int, learning_rate: float, description: str
) -> None:
    """Train all runs with Adam on the cross-entropy of output bits; the learning rate falls to 0 as a cosine.

    The gradient of the sum of their losses contains the gradient of each run's own.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in progress_bar(range(steps), description, total=steps):
        rows = draw()
        losses = F.binary_cross_entropy_with_logits(model(rows.inputs), rows.outputs, reduction="none")
        optimizer.zero_grad()
        losses.mean(dim=(1, 2)).sum().backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def exact_match(model: nn.Module, rows: BooleanRows) -> Float[Tensor, " run"]:
    """The fraction of rows of which all output bits are right."""
    is_right = (model(rows.inputs) > 0) == (rows.outputs > 0.5)
    return is_right.all(dim=2).to(rows.inputs.dtype).mean(dim=1)


@dataclass(frozen=True)
class LearnedProblem:
    """Accuracies of one architecture on one problem, for each run."""

    problem: str
    num_inputs: int
    num_rows: int
    """In training."""
    architecture: str
    train: Float[Tensor, " run"]
    test: Float[Tensor, " run"]

    @property
    def successes(self) -> int:
        return int((self.test >= LEARNED).sum())


def learn_problem(
    problem: BooleanProblem, size: int, fraction: float, architecture: str, *, num_runs: int, width: int, steps: int,
    batch_size: int, learning_rate: float, seed: int,
) -> LearnedProblem:  # fmt: skip
    """Train on a fraction of all inputs, and test on the others."""
    rng = torch.Generator().manual_seed(seed)
    train, test = split_inputs(problem, size, fraction, num_runs, rng=rng)
    shape = train.inputs.size(2), train.outputs.size(2)
    model = build_networks(architecture, num_runs, *shape, width=width, rng=rng)
    name = f"{problem.name} of {shape[0]} bits, {architecture}"
    train_on_rows(
        model, lambda: train.draw(batch_size, rng), steps=steps, learning_rate=learning_rate, description=name
    )
    learned = LearnedProblem(
        problem.name, shape[0], train.inputs.size(1), architecture, exact_match(model, train), exact_match(model, test)
    )
    log_info(f"{name}, {learned.num_rows} rows: {float(learned.test.mean()):.2f} of other inputs right")
    return learned


def learn_hidden_parity(
    num_inputs: int, num_bits: int, *, num_runs: int, width: int, steps: int, batch_size: int, learning_rate: float,
    seed: int,
) -> Float[Tensor, " run"]:  # fmt: skip
    """The accuracy of perceptrons of depth 2 on the parity of a random subset of bits, with new inputs at each step."""
    rng = torch.Generator().manual_seed(seed)
    subsets = torch.stack([torch.randperm(num_inputs, generator=rng)[:num_bits] for _ in range(num_runs)])

    def draw(num_rows: int) -> BooleanRows:
        inputs = 2.0 * torch.randint(2, (num_runs, num_rows, num_inputs), generator=rng) - 1
        chosen = inputs.gather(2, subsets[:, None].expand(-1, num_rows, -1))
        return BooleanRows(inputs, (chosen.prod(dim=2, keepdim=True) < 0).to(inputs.dtype))

    model = StackedPerceptrons(num_runs, [num_inputs, width, 1], rng=rng)
    name = f"parity of {num_bits} of {num_inputs} bits"
    train_on_rows(model, lambda: draw(batch_size), steps=steps, learning_rate=learning_rate, description=name)
    accuracies = exact_match(model, draw(2_000))
    log_info(f"{name}: learned in {int((accuracies >= LEARNED).sum())} of {num_runs} runs")
    return accuracies


@dataclass(frozen=True)
class GradientSpread:
    """How much the gradient of a network depends on the target."""

    num_inputs: int
    parity_variance: float
    """Over all parities of subsets of the bits."""
    bit_variance: float
    """Over the parities of a single bit."""
    squared_norm: float
    """G(w)^2."""
    sampling_variance: float
    """Of the gradient on one random example, mean over all parities as targets."""

    @property
    def bound(self) -> float:
        return variance_bound(self.squared_norm, 2**self.num_inputs)


def variance_bound(squared_norm: float, num_targets: int) -> float:
    """Of the variance of the gradient over so many orthogonal targets, for the loss (p - h)^2 / 2."""
    return squared_norm / num_targets


def gradient_spread(network: nn.Module, num_inputs: int) -> GradientSpread:
    """The exact variances of the gradient of E (p - h)^2 / 2, over all inputs, for a network with one output.

    A Walsh-Hadamard transform of the gradients of all outputs gives the gradients
    for all parities at once.
    """
    weights = {name: weight.detach().double() for name, weight in network.named_parameters()}
    inputs = torch.from_numpy(1.0 - 2.0 * all_inputs(num_inputs))

    def output(own: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, own, (x[None],)).squeeze()

    parts = vmap(grad(output), in_dims=(None, 0))(weights, inputs)
    jacobian = torch.cat([part.flatten(1) for part in parts.values()], dim=1)
    outputs = vmap(output, in_dims=(None, 0))(weights, inputs)
    correlations = walsh_hadamard(jacobian) / len(inputs)
    singles = correlations[[2**i for i in range(num_inputs)]]
    norms = jacobian.square().sum(dim=1)
    # The gradient on x is (p - h) dp/dw; the mean of h(x) over all parities h is 1 where all bits are 1, otherwise 0.
    second_moments = (1 + outputs.square()) * norms
    second_moments[0] -= 2 * outputs[0] * norms[0]
    means = (outputs[:, None] * jacobian).mean(dim=0) - correlations
    return GradientSpread(
        num_inputs, _variance(correlations), _variance(singles), float(norms.mean()),
        float(second_moments.mean() - means.square().sum(dim=1).mean()),
    )  # fmt: skip


def walsh_hadamard(values: Float[Tensor, "row column"]) -> Float[Tensor, "parity column"]:
    """The sums of h(x) times the value of x over all x, for each parity h, both in the order of binary numbers.

    Example:
        >>> walsh_hadamard(torch.tensor([[1.0], [2.0]])).tolist()
        [[3.0], [-1.0]]
    """
    half = 1
    while half < len(values):
        pairs = values.unflatten(0, (-1, 2, half))
        values = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).flatten(0, 2)
        half *= 2
    return values


def _variance(gradients: Float[Tensor, "target weight"]) -> float:
    return float((gradients - gradients.mean(dim=0)).square().sum(dim=1).mean())


def draw_perceptron(num_inputs: int, width: int, *, rng: torch.Generator) -> nn.Sequential:
    """A perceptron of depth 2 with random weights, initialized as by He et al. (2015)."""
    first, last = nn.Linear(num_inputs, width), nn.Linear(width, 1)
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng) * (2 / layer.in_features) ** 0.5)
            layer.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last).double()


def variance_exponent(spreads: Sequence[GradientSpread]) -> float:
    """The slope of log2 of the variance over parities against the number of inputs: -1 in theory, up to that of G^2."""
    x = [each.num_inputs for each in spreads]
    y = np.log2([each.parity_variance / each.squared_norm for each in spreads])
    return float(np.polyfit(x, y, 1)[0])
