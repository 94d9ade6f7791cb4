r"""The gradient through time: the norm of a loss gradient by its distance from the last position.

Bengio et al., "Learning Long-Term Dependencies with Gradient Descent Is Difficult" (1994).
Pascanu et al., "On the difficulty of training recurrent neural networks" (2013). https://arxiv.org/abs/1211.5063

In a recurrent network $h_t = f(x_t + U h_{t-1})$ the gradient at $x_{T-k}$ is
that at $x_T$ times $k$ Jacobians,

$$ \frac{\partial L}{\partial x_{T-k}}
   = \Big(\prod_{i=1}^{k} D_{T-i}\, U^\top \Big) D_T \frac{\partial L}{\partial h_T},
   \qquad D_t = \mathrm{diag}(f'(\cdot)) . $$

Where $f$ is the identity and $U = \rho Q$ with $Q$ orthogonal, its norm is exactly
$\rho^k$ times that at the last position: it vanishes for $\rho < 1$ and explodes for
$\rho > 1$. Tanh, whose derivative is at most 1, only reduces it.

An exploding gradient can be clipped to a maximum norm (Pascanu et al., section
3.2). A vanishing one cannot be repaired that way; gates and attention provide
paths along which it does not vanish.

Dimensions: `batch` sequences, `time` positions, `distance` from the last position, `width` of the hidden states.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from torch import Tensor, nn

from regard.lab.drawing import COLORS, MUTED, block_means, label_axes, make_panels
from regard.lab.exercises import (
    TokenBatch,
    TrainingCurve,
    count_correct_ends,
    draw_first_token_recall,
    token_loss,
    train_on_batches,
)
from regard.lab.gradients import GRADIENTS
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig

_RADII = (0.8, 1.0, 1.25)
"""Spectral radii of the recurrent matrix: below 1, 1, above 1."""
GradientProfile = Float[Tensor, " distance"]
"""The gradient norm at each distance from the last position."""


@dataclass(frozen=True, kw_only=True)
class GradientSizes:
    """Lengths of sequences and of training; the defaults are those of a quick run."""

    length: int = 20
    width: int = 64
    num_symbols: int = 8
    num_sequences: int = 64
    """Sequences on which gradients are measured."""
    steps: int = 300
    batch_size: int = 32
    learning_rate: float = 3e-3
    radius_length: int = 40
    clipped_length: int = 30
    clipped_symbols: int = 4
    clipped_radius: float = 1.25
    clipped_learning_rate: float = 0.2
    clipped_steps: int = 400
    clip_norm: float = 1.0
    num_seeds: int = 3
    """Seeds of the runs with and without clipping."""


_FULL = GradientSizes(length=50, num_sequences=512, steps=2_000, clipped_steps=1_000, num_seeds=8)


class RecurrentTagger(nn.Module):
    """Token ids to logits at each position, through one of PyTorch's recurrent layers."""

    def __init__(self, layer: nn.RNNBase, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, layer.input_size)
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size, vocab_size)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        return self.output(self.layer(self.embedding(tokens))[0])


def sequence_models(width: int, vocab_size: int, length: int) -> dict[str, Callable[[], nn.Module]]:
    """Returns a function that builds each compared model, by name."""

    def recurrent(layer: Callable[..., nn.RNNBase], **options: str) -> RecurrentTagger:
        return RecurrentTagger(layer(width, width, batch_first=True, **options), vocab_size)

    def open_lstm() -> RecurrentTagger:
        """An LSTM whose forget gates are initialized to keep a state for about the length of a sequence.

        Tallec & Ollivier, "Can recurrent neural networks warp time?" (2018), arXiv 1804.11188.
        """
        model = recurrent(nn.LSTM)
        gates = model.layer.get_parameter("bias_ih_l0").unflatten(0, (4, width))
        with torch.no_grad():
            gates[1] = math.log(length - 1)  # PyTorch's order: input, forget, cell, output
        return model

    def transformer() -> Transformer:
        config = TransformerConfig(
            encoder_layers=0, decoder_layers=2, model_dim=width, num_heads=4, feedforward_dim=2 * width,
            block="pre-norm", dropout=0.0,
        )  # fmt: skip
        return Transformer(config, vocab_size)

    return {
        "tanh RNN": partial(recurrent, nn.RNN),
        "ReLU RNN": partial(recurrent, nn.RNN, nonlinearity="relu"),
        "GRU": partial(recurrent, nn.GRU),
        "LSTM": partial(recurrent, nn.LSTM),
        "LSTM, open forget gate": open_lstm,
        "Transformer": transformer,
    }


def study_gradients(*, quick: bool = False, seed: int = 0, sizes: GradientSizes | None = None) -> Study:
    """Measure gradients through time in several networks, and train one with and without clipping."""
    sizes = sizes or (GradientSizes() if quick else _FULL)
    figure, axes = make_panels(3, 2)
    sections = [
        _models(axes[0], axes[1], sizes, seed),
        _spectral_radii(axes[2], sizes, seed),
        _clipping(axes[3], axes[4], sizes, seed),
    ]
    for panel, title in zip(
        axes,
        ("Untrained", "Trained to recall the first symbol", "Recurrent matrix: tanh; dotted: linear"),
        strict=False,
    ):
        legend = "" if title.startswith("Trained") else "lower left"
        label_axes(
            panel, title, "distance from the last position", "gradient norm, relative", legend=legend, fontsize=7.5
        )
    return GRADIENTS.result(sizes, sections, figure)


def gradient_profile(model: nn.Module, batch: TokenBatch) -> GradientProfile:
    """The norm of the loss gradient at the embedding of each position, by distance from the last, mean over sequences.

    In float64, since distant gradients can be too small for float32.
    """
    model = copy.deepcopy(model).double()
    embedding = model.get_submodule("embedding")
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: object, embedded: Tensor) -> None:
        embedded.retain_grad()
        outputs.append(embedded)

    with embedding.register_forward_hook(keep):
        token_loss(model, batch).backward()
    (embedded,) = outputs
    assert embedded.grad is not None
    return (embedded.grad * len(batch.inputs)).norm(dim=-1).mean(dim=0).flip(0)


def radius_profile(
    radius: float, *, length: int, width: int, activation: Callable[[Tensor], Tensor] | None = None
) -> GradientProfile:
    """The profile of a network whose recurrent matrix has this spectral radius, for a random linear loss at the end.

    Without an `activation` the network is linear, and the profile is the power of
    the radius. The inputs are small, so that tanh starts in its linear range.
    """
    matrix = radius * nn.init.orthogonal_(torch.empty(width, width, dtype=torch.float64))
    inputs = (0.1 * torch.randn(length, width, dtype=torch.float64)).requires_grad_()
    state = torch.zeros(width, dtype=torch.float64)
    for x in inputs:
        state = matrix @ state + x
        state = state if activation is None else activation(state)
    (state @ torch.randn(width, dtype=torch.float64)).backward()
    assert inputs.grad is not None
    return inputs.grad.norm(dim=-1).flip(0)


def half_distance(profile: GradientProfile) -> float:
    """Over how many positions the gradient halves, by a line fitted to its logarithm; infinite where it does not fall.

    The last position is left out: there a residual connection passes the gradient
    on without any attention.
    """
    distances = torch.arange(len(profile), dtype=torch.float64)
    kept = (distances > 0) & (profile > 0)
    x, y = distances[kept], profile[kept].log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return -math.log(2) / slope if slope < 0 else math.inf


def train_clipped(clip_norm: float, sizes: GradientSizes, *, seed: int) -> tuple[TrainingCurve, float]:
    """Train a tanh network by gradient descent, gradients clipped to `clip_norm`; returns its curve and accuracy."""
    draw = partial(draw_first_token_recall, length=sizes.clipped_length, num_symbols=sizes.clipped_symbols)
    torch.manual_seed(seed)
    model = RecurrentTagger(nn.RNN(sizes.width, sizes.width, batch_first=True), 2 * sizes.clipped_symbols)
    with torch.no_grad():
        nn.init.orthogonal_(model.layer.get_parameter("weight_hh_l0"), gain=sizes.clipped_radius)
        # Small inputs, so that tanh starts in its linear range.
        model.embedding.weight.mul_(0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=sizes.clipped_learning_rate)
    name = f"RNN, {'clipped' if math.isfinite(clip_norm) else 'not clipped'}, seed {seed}"
    curve = train_on_batches(
        model, partial(draw, sizes.batch_size), optimizer, steps=sizes.clipped_steps, clip_norm=clip_norm,
        description=name,
    )  # fmt: skip
    accuracy = count_correct_ends(model, draw(500)) / 500
    log_info(f"{name}: accuracy {accuracy:.2f} after {sizes.clipped_steps} steps")
    return curve, accuracy


def _ratio(profile: GradientProfile) -> float:
    """The gradient norm at the first position over that at the last."""
    return float(profile[-1] / profile[0])


def _models(untrained: Axes, trained: Axes, sizes: GradientSizes, seed: int) -> StudySection:
    """Measure each model before and after it is trained to recall the first symbol."""
    draw = partial(draw_first_token_recall, length=sizes.length, num_symbols=sizes.num_symbols)
    rows, solved, unsolved, lowest = [], [], [], 1.0
    for i, (name, build) in enumerate(sequence_models(sizes.width, 2 * sizes.num_symbols, sizes.length).items()):
        torch.manual_seed(seed)
        model = build()
        batch = draw(sizes.num_sequences)
        before = gradient_profile(model, batch)
        optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
        train_on_batches(
            model, partial(draw, sizes.batch_size), optimizer, steps=sizes.steps, clip_norm=sizes.clip_norm,
            description=name,
        )  # fmt: skip
        accuracy = count_correct_ends(model, draw(10 * sizes.num_sequences)) / (10 * sizes.num_sequences)
        log_info(f"{name}: accuracy {accuracy:.2f} after {sizes.steps} steps")
        (solved if accuracy > 0.9 else unsolved).append(f"{name} ({_ratio(before):.2g})")
        lowest = min(lowest, float((before / before[0]).min()))
        for axes, state, profile, share in (
            (untrained, "untrained", before, None),
            (trained, "trained", gradient_profile(model, batch), accuracy),
        ):
            ratios = _ratio(profile), float(profile[-1] / profile[1])
            rows.append([name, state, *ratios, half_distance(profile), share])
            # Dashes keep both of two overlapping lines visible.
            axes.semilogy(profile / profile[0], "-" if i % 2 == 0 else "--", color=COLORS[i], label=name)
    for axes in (untrained, trained):
        axes.set_ylim(max(lowest / 10, 1e-12), 30)
    return [
        f"After {sizes.steps} steps the accuracy of recalling the first of {sizes.length} symbols exceeds 0.9 (chance "
        f"{1 / sizes.num_symbols:.3g}) with {', '.join(solved) or 'no model'}, and does not with "
        f"{', '.join(unsolved) or 'none'}; in brackets the first / last gradient ratio before training."
    ], [StudyTable(
        f"gradients over {sizes.length} positions",
        ["model", "state", "first / last", "first / second to last", "half-distance", "accuracy"],
        rows,
        "Ratios of the gradient norm at the first position to that at the last and at the second to last, which "
        "excludes what a residual connection passes on; positions over which the norm halves; accuracy of recalling "
        "the first symbol.",
    )]  # fmt: skip


def _spectral_radii(axes: Axes, sizes: GradientSizes, seed: int) -> StudySection:
    rows = []
    for color, radius in zip((COLORS[1], COLORS[2], COLORS[0]), _RADII, strict=True):
        row = [radius, radius ** (sizes.radius_length - 1)]
        for activation, style, name in ((None, ":", None), (torch.tanh, "-", f"radius {radius:g}")):
            torch.manual_seed(seed)
            profile = radius_profile(radius, length=sizes.radius_length, width=sizes.width, activation=activation)
            row.append(_ratio(profile))
            axes.semilogy(profile / profile[0], style, color=color, label=name)
        rows.append(row)
    name = "first / last gradient norm, by spectral radius of the recurrent matrix"
    return [], [StudyTable(name, ["radius", "theory, linear", "linear", "tanh"], rows)]


def _clipping(histogram: Axes, losses: Axes, sizes: GradientSizes, seed: int) -> StudySection:
    limit, seeds = sizes.clip_norm, range(seed, seed + sizes.num_seeds)
    norms, accuracies, rows = {}, {}, []
    for clip_norm, name, color in ((math.inf, "not clipped", COLORS[1]), (limit, f"clipped to {limit:g}", COLORS[0])):
        curves, shares = zip(*(train_clipped(clip_norm, sizes, seed=each) for each in seeds), strict=True)
        norms[clip_norm] = found = torch.tensor([curve.grad_norms for curve in curves], dtype=torch.float64)
        accuracies[clip_norm] = ", ".join(f"{share:.2f}" for share in shares)
        middle, high = found.quantile(torch.tensor([0.5, 0.95], dtype=torch.float64)).tolist()
        rows.append([
            "no" if math.isinf(clip_norm) else f"at {clip_norm:g}", middle, high, float(found.max()),
            float(found.clamp_max(clip_norm).max()), sum(curve.losses[-1] for curve in curves) / len(curves),
            (sum(shares) / len(shares), min(shares), max(shares)),
        ])  # fmt: skip
        steps, means = block_means(torch.tensor([curve.losses for curve in curves]))
        for mean in means:
            losses.plot(steps, mean, color=color, alpha=0.35, linewidth=0.9)
        losses.plot(steps, means.mean(dim=0), color=color, label=name)
    losses.axhline(0, color=MUTED, linewidth=0.8)
    label_axes(losses, "Training by gradient descent", "step", "loss, nats", legend="upper right")
    _draw_norms(histogram, norms[math.inf].flatten().clamp(1e-4, 1e4), norms[limit].flatten().clamp(1e-4, 1e4), limit)
    first = norms[math.inf][:, : sizes.clipped_steps // 4]
    return [
        f"Without clipping the gradient norm of a tanh network of radius {sizes.clipped_radius:g} exceeds {limit:g} in "
        f"{100 * float((first > limit).double().mean()):.0f} % of the first quarter of the steps, with a maximum of "
        f"{float(first.max()):.3g}; with clipping {100 * float((norms[limit] > limit).double().mean()):.0f} % of all "
        f"steps are clipped.",
        f"Its accuracy after {sizes.clipped_steps} steps is {accuracies[math.inf]} without clipping and "
        f"{accuracies[limit]} with it, by seed (chance {1 / sizes.clipped_symbols:.3g}).",
    ], [StudyTable(
        "training a tanh network with and without clipping",
        ["clipped", "median norm", "95 %", "maximum", "maximum, clipped", "last loss", "accuracy"],
        rows,
        f"Norms of the whole gradient over all steps of {sizes.num_seeds} seed(s); accuracy: mean and range.",
    )]  # fmt: skip


def _draw_norms(axes: Axes, unclipped: Tensor, clipped: Tensor, limit: float) -> None:
    """Histograms of the gradient norm, on a logarithmic axis."""
    both = torch.cat([unclipped, clipped]).log10()
    bins = torch.logspace(float(both.min()) - 0.1, float(both.max()) + 0.1, 45).tolist()
    name = "trained with clipping"
    axes.hist(unclipped, bins=bins, color=COLORS[1], alpha=0.55, label="trained without clipping")
    axes.hist(clipped, bins=bins, color=COLORS[0], alpha=0.55, label=f"{name}, before it")
    after = clipped.clamp_max(limit)
    axes.hist(after, bins=bins, histtype="step", color=COLORS[0], linewidth=1.2, label=f"{name}, after it")
    axes.set_ylim(top=1.45 * axes.get_ylim()[1])
    title = "Gradient norms of all steps"
    label_axes(axes, title, "norm of the whole gradient", "steps", log="x", legend="upper left")
