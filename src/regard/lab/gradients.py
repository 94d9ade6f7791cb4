r"""The gradient through time: how much of a loss at the end is felt at the beginning.

Bengio et al., "Learning Long-Term Dependencies with Gradient Descent Is Difficult" (1994).
Pascanu et al., "On the difficulty of training recurrent neural networks" (2013). https://arxiv.org/abs/1211.5063

In a recurrent network $h_t = f(x_t + U h_{t-1})$ the gradient at $x_{T-k}$ is
that at $x_T$ times $k$ Jacobians,

$$ \frac{\partial L}{\partial x_{T-k}}
   = \Big(\prod_{i=1}^{k} D_{T-i}\, U^\top \Big) D_T \frac{\partial L}{\partial h_T},
   \qquad D_t = \mathrm{diag}(f'(\cdot)) . $$

Where $f$ is the identity and $U = \rho Q$ with $Q$ orthogonal, its length is
exactly $\rho^k$ times that at the end: it vanishes for $\rho < 1$ and explodes
for $\rho > 1$. Tanh, whose slope is at most 1, takes from every step.

A gradient that explodes can be clipped: shortened to a largest length, in its
own direction (Pascanu et al., section 3.2). One that vanishes cannot be helped
that way; gates and attention keep a way open for it.

Dimensions: `batch` sequences, `time` positions, `distance` from the last one, `width` of the states.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.lab import STUDIES
from regard.lab.exercises import Batch, Course, count_right, fit, loss_of, recall
from regard.lab.gradients_figure import Profile, compose
from regard.lab.study import Study, Table
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig

RADII = (0.8, 1.0, 1.25)
"""Spectral radii of the recurrent matrix: below 1, 1, above 1."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How long the sequences are, and how long is trained."""

    length: int
    width: int = 64
    num_symbols: int = 8
    num_sequences: int
    """On which gradients are measured."""
    steps: int
    batch_size: int = 32
    learning_rate: float = 3e-3
    radius_length: int = 40
    clipped_length: int = 30
    clipped_symbols: int = 4
    clipped_radius: float = 1.25
    clipped_learning_rate: float = 0.2
    clipped_steps: int
    clip_norm: float = 1.0
    num_seeds: int
    """Of the trainings with and without clipping."""


QUICK = Sizes(length=20, num_sequences=64, steps=300, clipped_steps=400, num_seeds=3)
FULL = Sizes(length=50, num_sequences=512, steps=2_000, clipped_steps=1_000, num_seeds=8)


class Recurrent(nn.Module):
    """Token ids in, scores at each position out, through one of PyTorch's recurrent layers."""

    def __init__(self, layer: nn.RNNBase, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, layer.input_size)
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size, vocab_size)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        return self.output(self.layer(self.embedding(tokens))[0])


def make_models(width: int, vocab_size: int, length: int) -> dict[str, Callable[[], nn.Module]]:
    """How each model of the comparison is built, by its name."""

    def recurrent(layer: Callable[..., nn.RNNBase], **options: str) -> Recurrent:
        return Recurrent(layer(width, width, batch_first=True, **options), vocab_size)

    def open_lstm() -> Recurrent:
        """A forget gate that starts out by keeping a state for about the length of a sequence.

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
        "relu RNN": partial(recurrent, nn.RNN, nonlinearity="relu"),
        "GRU": partial(recurrent, nn.GRU),
        "LSTM": partial(recurrent, nn.LSTM),
        "LSTM with open gate": open_lstm,
        "Transformer": transformer,
    }


@dataclass(frozen=True)
class Outcome:
    """A model before and after training."""

    before: Profile
    after: Profile
    accuracy: float


@dataclass(frozen=True)
class Radius:
    """Gradients through recurrent matrices of one spectral radius."""

    linear: Profile
    tanh: Profile


@dataclass(frozen=True)
class Clipping:
    """Trainings of the same network from the same seeds, clipped or not."""

    courses: Sequence[Course]
    accuracies: Sequence[float]


def study(*, quick: bool, seed: int) -> Study:
    """Measure gradients through time in several networks, and train one with and without clipping."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    builders = make_models(sizes.width, 2 * sizes.num_symbols, sizes.length)
    outcomes = {name: follow(name, build, sizes, seed=seed) for name, build in builders.items()}
    radii = {radius: _profiles_of(radius, sizes, seed=seed) for radius in RADII}
    seeds = range(seed, seed + sizes.num_seeds)
    clipping = {clip_norm: train_clipped(clip_norm, sizes, seeds) for clip_norm in (math.inf, sizes.clip_norm)}
    return Study(
        name="gradients",
        title="The gradient through time",
        claim=STUDIES["gradients"],
        findings=[*_findings(outcomes, sizes), _radius_finding(radii, sizes), *_clipping_findings(clipping, sizes)],
        tables=[_table(outcomes, sizes), _radius_table(radii), _clipping_table(clipping, sizes)],
        figure=compose(
            before={name: outcome.before for name, outcome in outcomes.items()},
            after={name: outcome.after for name, outcome in outcomes.items()},
            radii={radius: (profiles.linear, profiles.tanh) for radius, profiles in radii.items()},
            free=clipping[math.inf].courses,
            clipped=clipping[sizes.clip_norm].courses,
            clip_norm=sizes.clip_norm,
        ),
        settings=asdict(sizes),
    )


def follow(name: str, build: Callable[[], nn.Module], sizes: Sizes, *, seed: int) -> Outcome:
    """Measure a fresh model, train it to recall the first symbol, and measure it again."""
    torch.manual_seed(seed)
    model = build()
    draw = partial(recall, sizes.batch_size, sizes.length, num_symbols=sizes.num_symbols)
    measured = recall(sizes.num_sequences, sizes.length, num_symbols=sizes.num_symbols)
    before = gradient_profile(model, measured)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    fit(model, draw, optimizer, steps=sizes.steps, clip_norm=sizes.clip_norm, what=name)
    fresh = recall(10 * sizes.num_sequences, sizes.length, num_symbols=sizes.num_symbols)
    accuracy = count_right(model, fresh) / len(fresh.inputs)
    log_info(f"{name}: {accuracy:.2f} right after {sizes.steps} steps")
    return Outcome(before, gradient_profile(model, measured), accuracy)


def gradient_profile(model: nn.Module, batch: Batch) -> Profile:
    """The length of the loss's gradient at the embedding of each position, by distance from the last one.

    A mean over the sequences; in float64, since far gradients can be smaller
    than float32 can hold.
    """
    model = copy.deepcopy(model).double()
    embedding = model.get_submodule("embedding")
    reached: list[Tensor] = []

    def keep(_: nn.Module, __: object, embedded: Tensor) -> None:
        embedded.retain_grad()
        reached.append(embedded)

    with embedding.register_forward_hook(keep):
        loss_of(model, batch).backward()
    (embedded,) = reached
    assert embedded.grad is not None
    return (embedded.grad * len(batch.inputs)).norm(dim=-1).mean(dim=0).flip(0)


def radius_profile(
    radius: float, *, length: int, width: int, activation: Callable[[Tensor], Tensor] | None = None
) -> Profile:
    """The same for a network with a recurrent matrix of that radius, whose loss is a random sum of its last state.

    Without an `activation` it is linear, and the profile is the power of the
    radius. Inputs are small, so that tanh has a slope to lose.
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


def half_distance(profile: Profile) -> float:
    """Over how many positions the gradient halves: of the line through its logarithms, the last position left out.

    Infinite where it does not fall. At the last position a residual connection
    hands the gradient on without any attention, so that it says nothing of time.
    """
    distances = torch.arange(len(profile), dtype=torch.float64)
    kept = (distances > 0) & (profile > 0)
    x, y = distances[kept], profile[kept].log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    return -math.log(2) / slope if slope < 0 else math.inf


def train_clipped(clip_norm: float, sizes: Sizes, seeds: Sequence[int]) -> Clipping:
    """Train a tanh network by plain gradient descent, shortening gradients to `clip_norm`."""
    courses, accuracies = [], []
    draw = partial(recall, sizes.batch_size, sizes.clipped_length, num_symbols=sizes.clipped_symbols)
    for seed in seeds:
        torch.manual_seed(seed)
        model = Recurrent(nn.RNN(sizes.width, sizes.width, batch_first=True), 2 * sizes.clipped_symbols)
        with torch.no_grad():
            recurrent = model.layer.get_parameter("weight_hh_l0")
            nn.init.orthogonal_(recurrent, gain=sizes.clipped_radius)
            # Small inputs, so that the states start where tanh has a slope.
            model.embedding.weight.mul_(0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=sizes.clipped_learning_rate)
        what = "clipped" if math.isfinite(clip_norm) else "not clipped"
        courses.append(fit(model, draw, optimizer, steps=sizes.clipped_steps, clip_norm=clip_norm, what=what))
        fresh = recall(500, sizes.clipped_length, num_symbols=sizes.clipped_symbols)
        accuracies.append(count_right(model, fresh) / len(fresh.inputs))
        log_info(f"RNN {what}, seed {seed}: {accuracies[-1]:.2f} right after {sizes.clipped_steps} steps")
    return Clipping(courses, accuracies)


def _profiles_of(radius: float, sizes: Sizes, *, seed: int) -> Radius:
    profiles = []
    for activation in (None, torch.tanh):
        torch.manual_seed(seed)
        profiles.append(radius_profile(radius, length=sizes.radius_length, width=sizes.width, activation=activation))
    return Radius(*profiles)


def _ratio(profile: Profile) -> float:
    """Of the gradient at the first position to that at the last."""
    return float(profile[-1] / profile[0])


def _findings(outcomes: Mapping[str, Outcome], sizes: Sizes) -> list[str]:
    learnt = [name for name, outcome in outcomes.items() if outcome.accuracy > 0.9]
    others = [f"{name} ({outcome.accuracy:.2f})" for name, outcome in outcomes.items() if name not in learnt]
    before = ", ".join(f"{name} {_ratio(outcome.before):.2g}" for name, outcome in outcomes.items())
    after = ", ".join(f"{name} {_ratio(outcomes[name].after):.2g}" for name in learnt)
    return [
        f"Untrained, the gradient of the loss at the last of {sizes.length} positions is at the first so many times "
        f"what it is at the last: {before}.",
        f"After {sizes.steps} steps these recall the first symbol in more than 90 % of sequences: "
        f"{', '.join(learnt) or 'none'}; these do not: {', '.join(others) or 'none'} (chance: "
        f"{1 / sizes.num_symbols:.3g}).",
        *([f"In those that learnt it the ratio is then: {after}."] if learnt else []),
    ]


def _radius_finding(radii: Mapping[float, Radius], sizes: Sizes) -> str:
    last = sizes.radius_length - 1
    parts = [
        f"{_ratio(profiles.linear):.3g} at radius {radius:g} (theory {radius**last:.3g}; with tanh "
        f"{_ratio(profiles.tanh):.3g})"
        for radius, profiles in radii.items()
    ]
    return f"Over {last} steps a linear recurrent network multiplies the gradient by {', '.join(parts)}."


def _clipping_findings(clipping: Mapping[float, Clipping], sizes: Sizes) -> list[str]:
    free, clipped = clipping[math.inf], clipping[sizes.clip_norm]
    norms = torch.tensor([norm for course in clipped.courses for norm in course.norms])
    first = torch.tensor([course.norms for course in free.courses])[:, : sizes.clipped_steps // 4]
    return [
        f"In a tanh network of radius {sizes.clipped_radius:g}, trained without clipping, the gradient is longer than "
        f"{sizes.clip_norm:g} in {100 * float((first > sizes.clip_norm).float().mean()):.0f} % of the first quarter of "
        f"the steps, and as long as {float(first.max()):.3g}; with clipping "
        f"{100 * float((norms > sizes.clip_norm).float().mean()):.0f} % of all steps are shortened.",
        f"After {sizes.clipped_steps} steps it recalls the first symbol in {_spell(free.accuracies)} of the sequences "
        f"without clipping and in {_spell(clipped.accuracies)} with it, seed by seed (chance: "
        f"{1 / sizes.clipped_symbols:.3g}).",
    ]


def _spell(accuracies: Sequence[float]) -> str:
    return ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)


def _table(outcomes: Mapping[str, Outcome], sizes: Sizes) -> Table:
    rows = []
    for name, outcome in outcomes.items():
        for when, profile in (("untrained", outcome.before), ("trained", outcome.after)):
            right = outcome.accuracy if when == "trained" else None
            rows.append([name, when, _ratio(profile), float(profile[-1] / profile[1]), half_distance(profile), right])
    return Table(
        name=f"gradients over {sizes.length} positions",
        columns=["model", "state", "first / last", "first / last but one", "half-distance", "right"],
        rows=rows,
        note="Length of the gradient at the first position over that at the last, and over that at the last but one, "
        "which leaves out what a residual connection hands on; positions over which it halves; share of sequences "
        "whose first symbol is recalled.",
    )


def _radius_table(radii: Mapping[float, Radius]) -> Table:
    rows = []
    for radius, profiles in radii.items():
        theory = radius ** (len(profiles.linear) - 1)
        rows.append([radius, theory, _ratio(profiles.linear), _ratio(profiles.tanh)])
    return Table(
        name="first / last, by the radius of the recurrent matrix",
        columns=["radius", "theory, linear", "linear", "tanh"],
        rows=rows,
    )


def _clipping_table(clipping: Mapping[float, Clipping], sizes: Sizes) -> Table:
    rows = []
    for clip_norm, trained in clipping.items():
        norms = torch.tensor([norm for course in trained.courses for norm in course.norms], dtype=torch.float64)
        losses = [course.losses[-1] for course in trained.courses]
        middle, high = norms.quantile(torch.tensor([0.5, 0.95], dtype=torch.float64)).tolist()
        rows.append([
            "no" if math.isinf(clip_norm) else f"at {clip_norm:g}", middle, high, float(norms.max()),
            float(norms.clamp_max(clip_norm).max()), sum(losses) / len(losses),
            (sum(trained.accuracies) / len(losses), min(trained.accuracies), max(trained.accuracies)),
        ])  # fmt: skip
    return Table(
        name="clipping, in training a tanh network",
        columns=["clipped", "median norm", "95 %", "largest", "largest after", "last loss", "right"],
        rows=rows,
        note=f"Norms of the whole gradient over all steps of {sizes.num_seeds} seed(s); right: mean and range.",
    )
