r"""Training losses by depth, with and without residual connections and norms; and what depth does to the inputs.

He et al., "Deep Residual Learning for Image Recognition" (2015). https://arxiv.org/abs/1512.03385
Cho and Saul, "Kernel Methods for Deep Learning" (2009), section 2.1.
Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020). https://arxiv.org/abs/2002.04745

A block of a perceptron is $f(h) = W_2 \operatorname{ReLU}(W_1 n(h))$, where $n$ is a norm or the identity, and the
next state is $f(h)$ or $h + f(h)$. With weights of variance $2/d$ and $g^2/d$ and no norm, in the limit of a large
width $d$, $f$ multiplies the mean square of a state by $g^2$, and changes the cosine $\rho$ of two states to

$$ \kappa(\rho) = \frac{\sin\theta + (\pi - \theta)\cos\theta}{\pi}, \qquad \theta = \arccos\rho . $$

So by mean square $q$ and cosine $\rho$ of the states of two inputs after each block, with $q = 1$ before the first:

    plain             q <- g^2 q          rho <- k(rho)
    norm              q <- g^2            rho <- k(rho)
    residual          q <- (1 + g^2) q    rho <- (rho + g^2 k(rho)) / (1 + g^2)
    residual + norm   q <- q + g^2        rho <- (q rho + g^2 k(rho)) / (q + g^2)

Since $\kappa(\rho) > \rho$, a deep network without residual connections maps all inputs to nearly the same state,
with a norm or without. With them $1 - \rho$ falls more slowly.

Training losses are those of the best of a few learning rates, on the training data: overfitting is not measured.

Dimensions: `run` networks in parallel, `row` examples, `input` features, `width` of the states.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn

from regard.evaluation.intervals import Interval, mean_interval
from regard.lab.depth import DEPTH
from regard.lab.drawing import COLORS, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.exercises import TokenBatch, draw_delayed_copy, token_loss, train_on_batches
from regard.lab.study import Study, StudyCell, StudySection, StudyTable
from regard.logging import log_info, progress_bar
from regard.models.transformer import Transformer, TransformerConfig


class BlockVariant(NamedTuple):
    """What a block has."""

    has_residual: bool
    has_norm: bool


VARIANTS = {
    "plain": BlockVariant(False, False),
    "norm": BlockVariant(False, True),
    "residual": BlockVariant(True, False),
    "residual + norm": BlockVariant(True, True),
}


@dataclass(frozen=True, kw_only=True)
class DepthSizes:
    """Depths, and how much is trained; the defaults are those of a quick run."""

    signal_width: int = 256
    signal_depth: int = 32
    signal_draws: int = 5
    num_inputs: int = 16
    num_rows: int = 256
    """Of the training set of perceptrons."""
    width: int = 24
    """Of perceptrons."""
    perceptron_depths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Blocks, of two layers each."""
    perceptron_steps: int = 200
    perceptron_rates: tuple[float, ...] = (0.001, 0.004, 0.016)
    num_seeds: int = 5
    num_sequences: int = 256
    length: int = 16
    distance: int = 1
    vocab_size: int = 11
    model_dim: int = 32
    transformer_depths: tuple[int, ...] = (1, 2, 4, 8)
    transformer_steps: int = 200
    transformer_rates: tuple[float, ...] = (0.004,)
    batch_size: int = 32
    num_transformer_seeds: int = 3


_FULL = DepthSizes(
    signal_width=512, signal_depth=64, signal_draws=20, perceptron_depths=(1, 2, 4, 8, 16, 32, 64),
    perceptron_steps=400, perceptron_rates=(0.0003, 0.001, 0.004, 0.016), num_seeds=8,
    transformer_depths=(1, 2, 4, 8, 16), transformer_steps=300, transformer_rates=(0.001, 0.004),
)  # fmt: skip


class SignalState(NamedTuple):
    """The mean square of the states of two inputs, and their cosine."""

    square: float
    cosine: float


def relu_cosine(cosine: float) -> float:
    """The cosine of two states after a wide random ReLU layer, from that before it.

    Example:
        >>> relu_cosine(1.0), round(relu_cosine(0.0), 4), round(relu_cosine(-1.0), 4)
        (1.0, 0.3183, 0.0)
    """
    angle = math.acos(max(-1.0, min(1.0, cosine)))
    return (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / math.pi


def predict_signal(variant: BlockVariant, *, gain: float, cosine: float, depth: int) -> list[SignalState]:
    """The state after each block in the limit of a large width, the first being the input's."""
    states = [SignalState(1.0, cosine)]
    for _ in range(depth):
        square, cosine = states[-1]
        added = gain**2 * (1.0 if variant.has_norm else square)
        kept = square if variant.has_residual else 0.0
        states.append(SignalState(kept + added, (kept * cosine + added * relu_cosine(cosine)) / (kept + added)))
    return states


class StackedBlocks(nn.Module):
    """Perceptrons of residual or plain blocks in parallel, one for each run; one output.

    The input is projected to the width, and a network with norms has one before its output, too.
    """

    def __init__(
        self, num_runs: int, num_inputs: int, width: int, depth: int, variant: BlockVariant, *, gain: float,
        rng: torch.Generator,
    ) -> None:  # fmt: skip
        super().__init__()
        self.variant = variant

        def draw(before: int, after: int, square: float) -> nn.Parameter:
            weight = torch.randn(num_runs, before, after, generator=rng)
            return nn.Parameter(weight * (square / before) ** 0.5)

        self.project = draw(num_inputs, width, 1.0)
        self.first = nn.ParameterList(draw(width, width, 2.0) for _ in range(depth))
        self.second = nn.ParameterList(draw(width, width, gain**2) for _ in range(depth))
        self.first_bias, self.second_bias = (
            nn.ParameterList(torch.zeros(num_runs, 1, width) for _ in range(depth)) for _ in range(2)
        )
        self.output, self.output_bias = draw(width, 1, 1.0), nn.Parameter(torch.zeros(num_runs, 1, 1))

    def forward(self, inputs: Float[Tensor, "run row input"]) -> Float[Tensor, "run row"]:
        *_, last = self.states(inputs)
        return torch.baddbmm(self.output_bias, self._normalize(last), self.output)[..., 0]

    def states(self, inputs: Float[Tensor, "run row input"]) -> Iterator[Float[Tensor, "run row width"]]:
        """The projected input, and the state after each block."""
        state = inputs @ self.project
        yield state
        for w, b, v, c in zip(self.first, self.first_bias, self.second, self.second_bias, strict=True):
            change = torch.baddbmm(c, torch.baddbmm(b, self._normalize(state), w).relu(), v)
            state = state + change if self.variant.has_residual else change
            yield state

    def _normalize(self, state: Tensor) -> Tensor:
        return F.layer_norm(state, state.shape[-1:]) if self.variant.has_norm else state


@torch.no_grad()
def measure_signal(
    variant: BlockVariant, *, width: int, depth: int, gain: float, cosine: float, num_draws: int, rng: torch.Generator
) -> tuple[Float[Tensor, "draw block"], Float[Tensor, "draw block"]]:
    """Mean square and cosine of the states of two inputs with this cosine after each block, for random weights.

    The mean square is relative to that of the projected input; in float64, since it may grow as a power.
    """
    first, other = torch.linalg.qr(torch.randn(num_draws, width, 2, generator=rng).double())[0].unbind(dim=2)
    second = cosine * first + math.sqrt(1 - cosine**2) * other
    inputs = torch.stack([first, second], dim=1) * width**0.5
    blocks = StackedBlocks(num_draws, width, width, depth, variant, gain=gain, rng=rng).double()
    # The theory starts from the given cosine, which a random projection would change.
    blocks.project.copy_(torch.eye(width).expand_as(blocks.project))
    states = torch.stack(list(blocks.states(inputs)), dim=1)
    cosines = F.cosine_similarity(states[:, :, 0], states[:, :, 1], dim=-1)
    return states.square().mean(dim=(2, 3)), cosines


def residual_gain(variant: BlockVariant, depth: int) -> float:
    """The gain of blocks that are trained: with residual connections and without norms the mean square ends near e."""
    return depth**-0.5 if variant.has_residual else 1.0


def train_perceptrons(
    variant: BlockVariant, depth: int, learning_rate: float, sizes: DepthSizes, *, seed: int
) -> Float[Tensor, " run"]:
    """The mean squared error of each run on its training set, whose targets have a variance of 1, after training.

    A run has data of its own: normal inputs, and targets by a random network with one hidden layer. Training is by
    gradient descent on all rows with a momentum of 0.9, as in He et al. (2015): with Adam plain networks of 32 blocks
    were as good as those of 4. The learning rate falls to 0 as a cosine.
    """
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(sizes.num_seeds, sizes.num_rows, sizes.num_inputs, generator=rng)
    hidden = (inputs @ torch.randn(sizes.num_seeds, sizes.num_inputs, sizes.width, generator=rng)).tanh()
    targets = (hidden @ torch.randn(sizes.num_seeds, sizes.width, 1, generator=rng))[..., 0]
    targets = (targets - targets.mean(dim=1, keepdim=True)) / targets.std(dim=1, keepdim=True)
    gain = residual_gain(variant, depth)
    model = StackedBlocks(sizes.num_seeds, sizes.num_inputs, sizes.width, depth, variant, gain=gain, rng=rng)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, sizes.perceptron_steps)
    for _ in progress_bar(range(sizes.perceptron_steps), f"{depth} blocks", total=sizes.perceptron_steps):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean(dim=1).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return (model(inputs) - targets).square().mean(dim=1)


def train_transformers(
    variant: BlockVariant, depth: int, learning_rate: float, sizes: DepthSizes, *, seed: int
) -> Float[Tensor, " run"]:
    """The cross-entropy of each seed on its training set after training: the token `distance` positions earlier.

    The blocks are those of `regard.nn.blocks` in the order pre-norm, without the residual sum or the norms.
    """
    losses = []
    for each in range(seed, seed + sizes.num_transformer_seeds):
        torch.manual_seed(each)
        config = TransformerConfig(
            encoder_layers=0, decoder_layers=depth, model_dim=sizes.model_dim, num_heads=4,
            feedforward_dim=2 * sizes.model_dim,
            block="pre-norm", norm="layer" if variant.has_norm else "none", residual=variant.has_residual, dropout=0.0,
        )  # fmt: skip
        model = Transformer(config, sizes.vocab_size)
        draw = partial(draw_delayed_copy, distance=sizes.distance, vocab_size=sizes.vocab_size)
        rows = draw(sizes.num_sequences, sizes.length)

        def draw_batch(rows: TokenBatch = rows) -> TokenBatch:
            chosen = torch.randint(len(rows.inputs), (sizes.batch_size,))
            return TokenBatch(rows.inputs[chosen], rows.targets[chosen])

        optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
        train_on_batches(model, draw_batch, optimizer, steps=sizes.transformer_steps, clip_norm=1.0,
                         description=f"{depth} layers, seed {each}")  # fmt: skip
        with torch.no_grad():
            losses.append(token_loss(model, rows))
    return torch.stack(losses)


class DepthLosses(NamedTuple):
    """Training losses of one variant at one depth: those of the learning rate with the lowest mean."""

    depth: int
    learning_rate: float
    losses: Float[Tensor, " run"]

    @property
    def mean(self) -> float:
        return float(self.losses.mean())


TrainAtDepth = Callable[..., Float[Tensor, " run"]]


def measure_losses(
    train: TrainAtDepth, depths: Sequence[int], rates: Sequence[float], sizes: DepthSizes, *, seed: int, name: str
) -> dict[str, list[DepthLosses]]:
    """Train every variant at every depth and learning rate; a loss that is not finite counts as infinite."""
    curves: dict[str, list[DepthLosses]] = {variant: [] for variant in VARIANTS}
    for variant, curve in curves.items():
        for depth in depths:
            tried = [
                DepthLosses(depth, rate, train(VARIANTS[variant], depth, rate, sizes, seed=seed).nan_to_num(math.inf))
                for rate in rates
            ]
            curve.append(min(tried, key=lambda each: each.mean))
            log_info(f"{name}, {variant}, depth {depth}: training loss {curve[-1].mean:.3g}")
    return curves


def degradation(curve: Sequence[DepthLosses]) -> tuple[DepthLosses, DepthLosses, Interval]:
    """The depth with the lowest mean loss, the deepest network, and the mean difference of their losses by run."""
    best, deepest = min(curve, key=lambda each: each.mean), curve[-1]
    return best, deepest, mean_interval(deepest.losses - best.losses)


def study_depth(*, quick: bool = False, seed: int = 0, sizes: DepthSizes | None = None) -> Study:
    """Measure what depth does to the inputs, and the training losses of perceptrons and Transformers by depth."""
    sizes = sizes or (DepthSizes() if quick else _FULL)
    figure, axes = make_panels(2, 2, height=3.6)
    perceptrons = measure_losses(
        train_perceptrons, sizes.perceptron_depths, sizes.perceptron_rates, sizes, seed=seed, name="perceptrons"
    )
    transformers = measure_losses(
        train_transformers, sizes.transformer_depths, sizes.transformer_rates, sizes, seed=seed, name="Transformers"
    )
    sections = [
        _signal(axes[:2], sizes, seed),
        _losses(axes[2], perceptrons, "Perceptrons", "blocks", "mean squared error"),
        _losses(axes[3], transformers, "Transformers", "layers", "cross-entropy, nats"),
    ]
    return DEPTH.result(sizes, sections, figure)


def _signal(panels: Sequence[Axes], sizes: DepthSizes, seed: int) -> StudySection:
    rows: list[list[StudyCell]] = []
    errors, depth = [], sizes.signal_depth
    shown = sorted({2**i for i in range(depth.bit_length())} | {depth})
    for (name, variant), color in zip(VARIANTS.items(), COLORS, strict=False):
        rng = torch.Generator().manual_seed(seed)
        squares, cosines = measure_signal(
            variant, width=sizes.signal_width, depth=depth, gain=1.0, cosine=0.0, num_draws=sizes.signal_draws, rng=rng
        )
        theory = predict_signal(variant, gain=1.0, cosine=0.0, depth=depth)
        for block in shown:
            rows.append([name, block, mean_interval(squares[:, block]), theory[block].square,
                         mean_interval(cosines[:, block]), theory[block].cosine])  # fmt: skip
        errors.append(abs(float(cosines[:, depth].mean()) - theory[depth].cosine))
        # Dashes keep both of two overlapping lines visible.
        style = "--" if name == "norm" else "-"
        blocks = range(1, depth + 1)
        for axes, measured, predicted in (
            (panels[0], (1 - cosines).clamp_min(1e-12), [1 - each.cosine for each in theory]),
            (panels[1], squares, [each.square for each in theory]),
        ):
            axes.plot(blocks, measured[:, 1:].mean(dim=0), style, color=color, linewidth=1.3, label=name)
            axes.plot(blocks, predicted[1:], ":", color=MUTED, linewidth=1)
    label_axes(
        panels[0], "Two orthogonal inputs; dotted: theory", "blocks", "1 - cosine", log="xy", legend="lower left"
    )
    label_axes(panels[1], "Size of the states; dotted: theory", "blocks", "mean square", log="xy", legend="upper left")
    ends = {name: [row for row in rows if row[0] == name][-1] for name in VARIANTS}
    cosines = {name: row[4][0] for name, row in ends.items() if isinstance(row[4], tuple)}
    return [
        f"After {depth} random blocks two orthogonal inputs have a cosine of "
        + ", ".join(f"{cosine:.3f} ({name})" for name, cosine in cosines.items())
        + f"; the largest difference from the theory of wide networks is {max(errors):.3f}."
    ], [StudyTable(
        "states of two orthogonal inputs after random blocks",
        ["blocks are", "blocks", "mean square", "theory", "cosine", "theory of the cosine"], rows,
        f"Means over {sizes.signal_draws} draws of the weights, with 95 % intervals; width {sizes.signal_width}.",
    )]  # fmt: skip


def _losses(axes: Axes, curves: Mapping[str, Sequence[DepthLosses]], name: str, unit: str, loss: str) -> StudySection:
    rows: list[list[StudyCell]] = []
    parts = []
    for (variant, curve), color, marker in zip(curves.items(), COLORS, "osD^", strict=False):
        estimates = [mean_interval(each.losses) for each in curve]
        plot_errorbars(axes, [each.depth for each in curve], estimates, fmt=f"{marker}-", color=color, markersize=4,
                       linewidth=1.2, label=variant)  # fmt: skip
        rows += [
            [variant, each.depth, each.learning_rate, estimate] for each, estimate in zip(curve, estimates, strict=True)
        ]
        best, deepest, (_, low, _) = degradation(curve)
        worse = "significantly worse" if low > 0 else "not significantly worse"
        parts.append(
            f"{variant} {best.mean:.3g} at {best.depth}, {deepest.mean:.3g} at {deepest.depth} "
            f"({'the best' if best is deepest else worse})"
        )
    label_axes(axes, f"{name}: training loss", unit, loss, log="xy", legend="best")
    axes.set_xticks([each.depth for each in curves["plain"]], labels=[str(each.depth) for each in curves["plain"]])
    axes.minorticks_off()
    runs = len(curves["plain"][0].losses)
    finding = f"{name}, training loss at the best and at the largest number of {unit}: {'; '.join(parts)}."
    return [finding], [StudyTable(
        f"{name}: training loss by depth", ["blocks are", unit, "best learning rate", loss], rows,
        f"Means over {runs} runs at the learning rate with the lowest mean, with Student's 95 % interval.",
    )]  # fmt: skip
