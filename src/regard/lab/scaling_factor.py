r"""Why the scores of attention are divided by $\sqrt{d_k}$, measured.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1 and its footnote 4.
https://arxiv.org/abs/1706.03762

For a query and a key with independent coordinates of mean 0 and variance 1,

$$ \mathrm{Var}(q \cdot k) = d_k, \qquad \mathrm{Var}(q \cdot k / \sqrt{d_k}) = 1 . $$

Softmax over scores that lie far apart takes nearly the best alone, and hardly
moves when a score does: its Jacobian $J = \mathrm{diag}(p) - p p^\top$ is near
0. What is measured is its Frobenius norm: a gradient of random numbers of
variance 1 that arrives at the weights leaves for the scores with that length,
as a root mean square.

Three looks: random vectors; the attention of a model nobody has trained; and
what a model learns with and without the factor.

Dimensions: see `regard.nn.attention`; `sample` queries, each with keys of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from regard.explanation.record import record_attention
from regard.lab import STUDIES
from regard.lab.drawing import COLORS, MUTED, label, legend, panels, smooth
from regard.lab.exercises import fit, look_back
from regard.lab.softmax import entropy
from regard.lab.study import Study, Table
from regard.logging import log_info, progress_bar
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.similarity import SimilarityName, make_similarity

WITHOUT: SimilarityName = "dot"
WITH: SimilarityName = "scaled-dot"
NAMES: dict[SimilarityName, str] = {WITHOUT: "without the factor", WITH: "divided by √d"}
TAILS = (0.1, 0.5, 0.9)
"""Quantiles of the Jacobian's norm; a mean would hide that most are near 0 and few are not."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured, and how long is trained."""

    key_dims: tuple[int, ...]
    num_keys: int = 64
    num_samples: int
    head_dims: tuple[int, ...]
    """Widths of a head in the untrained models."""
    num_models: int
    """Untrained models of each width."""
    trained_head_dims: tuple[int, ...]
    steps: int
    num_seeds: int
    learning_rate: float = 3e-3
    vocab_size: int = 16
    length: int = 16
    distance: int = 3
    """What is trained: to name the token so many places back."""


QUICK = Sizes(
    key_dims=(4, 16, 64, 256, 1024), num_samples=1_000, head_dims=(8, 32, 128), num_models=2,
    trained_head_dims=(64,), steps=500, num_seeds=1,
)  # fmt: skip
FULL = Sizes(
    key_dims=(4, 8, 16, 32, 64, 128, 256, 512, 1024), num_samples=10_000, head_dims=(8, 16, 32, 64, 128, 256),
    num_models=5, trained_head_dims=(16, 64, 256), steps=1_000, num_seeds=3,
)  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """What softmax over the scores of random vectors looks like."""

    scores: Float[Tensor, "sample key"]
    entropy: float
    """Mean over the samples, in nats."""
    jacobian: tuple[float, float, float]
    """Quantiles of the Jacobian's norm, at `TAILS`."""

    @property
    def variance(self) -> float:
        """Of the scores."""
        return float(self.scores.var())


Pair = tuple[SimilarityName, int]
"""A similarity, and the width of its keys."""
Measurements = Mapping[Pair, Measurement]
Entropies = Mapping[Pair, Sequence[float]]
"""Of attention, model by model."""
Losses = Mapping[Pair, Sequence[Sequence[float]]]
"""Seed by seed, step by step."""


def study(*, quick: bool, seed: int) -> Study:
    """Measure scores, entropies and slopes with the factor and without."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    rng = torch.Generator().manual_seed(seed)
    pairs: list[Pair] = [(name, dim) for dim in sizes.key_dims for name in NAMES]
    measured: Measurements = {
        pair: measure(*pair, num_keys=sizes.num_keys, num_samples=sizes.num_samples, rng=rng)
        for pair in progress_bar(pairs, "random vectors", total=len(pairs))
    }
    fresh: Entropies = {
        (name, dim): [model_entropy(name, dim, sizes, seed=seed + i) for i in range(sizes.num_models)]
        for dim in sizes.head_dims
        for name in NAMES
    }
    losses: Losses = {
        (name, dim): [train(name, dim, sizes, seed=seed + i) for i in range(sizes.num_seeds)]
        for dim in sizes.trained_head_dims
        for name in NAMES
    }
    return Study(
        name="scaling-factor",
        title="Why attention divides its scores by √d",
        claim=STUDIES["scaling-factor"],
        findings=[*_findings(measured, sizes), _model_finding(fresh, sizes), *_loss_findings(losses, sizes)],
        tables=[_table(measured, sizes), _model_table(fresh, sizes), _loss_table(losses, sizes)],
        figure=_draw(measured, fresh, losses, sizes),
        settings=asdict(sizes),
    )


def measure(
    similarity: SimilarityName, key_dim: int, *, num_keys: int, num_samples: int, rng: torch.Generator
) -> Measurement:
    """Score random queries against random keys, all coordinates standard normal."""
    score = make_similarity(similarity, key_dim, 1)
    scores = []
    # Some hundred samples at once: keys are large, and only their scores are kept.
    for start in range(0, num_samples, 100):
        size = min(100, num_samples - start)
        q = torch.randn(size, 1, 1, key_dim, generator=rng)
        k = torch.randn(size, 1, num_keys, key_dim, generator=rng)
        scores.append(score(q, score.prepare(k)).flatten(1).double())
    together: Float[Tensor, "sample key"] = torch.cat(scores)
    weights = together.softmax(dim=-1)
    low, middle, high = jacobian_norm(weights).quantile(torch.tensor(TAILS, dtype=weights.dtype)).tolist()
    return Measurement(together, float(entropy(weights).mean()), (low, middle, high))


def jacobian_norm(p: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    r"""The Frobenius norm of $\mathrm{diag}(p) - p p^\top$: $\sqrt{\sum p^2 - 2 \sum p^3 + (\sum p^2)^2}$."""
    squares, cubes = p.square().sum(dim=-1), p.pow(3).sum(dim=-1)
    # Rounding can bring a sum that should be 0 just below it.
    return (squares - 2 * cubes + squares.square()).clamp_min(0.0).sqrt()


@torch.inference_mode()
def model_entropy(similarity: SimilarityName, head_dim: int, sizes: Sizes, *, seed: int) -> float:
    """The mean entropy of attention in an encoder of two layers and two heads that nobody has trained, in nats."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=2, decoder_layers=0, model_dim=2 * head_dim, num_heads=2, feedforward_dim=4 * head_dim,
        block="pre-norm", positions="none", dropout=0.0, similarity=similarity,
    )  # fmt: skip
    # A vocabulary in which a sequence hardly ever has a token twice: keys that differ.
    vocab_size = 100 * sizes.num_keys
    model = Transformer(config, vocab_size).eval()
    with record_attention(model) as weights:
        model.encode(torch.randint(vocab_size, (8, sizes.num_keys)))
    return float(torch.stack([entropy(each).mean() for each in weights.values()]).mean())


def train(similarity: SimilarityName, head_dim: int, sizes: Sizes, *, seed: int) -> list[float]:
    """The losses of a decoder of one layer and one head that learns to name the token some places back."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=1, model_dim=head_dim, num_heads=1, feedforward_dim=2 * head_dim,
        block="pre-norm", dropout=0.0, similarity=similarity,
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)
    draw = partial(look_back, 32, sizes.length, distance=sizes.distance, vocab_size=sizes.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    losses = fit(model, draw, optimizer, steps=sizes.steps, what=f"{similarity}, {head_dim} wide").losses
    log_info(f"{head_dim} wide, {NAMES[similarity]}: a loss of {_last(losses):.3f} after {sizes.steps} steps")
    return losses


def _last(losses: Sequence[float]) -> float:
    """The mean loss of the last tenth of the steps."""
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)


def _steps_to(losses: Sequence[float], goal: float) -> int | None:
    """The first step whose loss is below the goal; None where there is none."""
    return next((step for step, loss in enumerate(losses, 1) if loss < goal), None)


def _findings(measured: Measurements, sizes: Sizes) -> list[str]:
    least, most = min(sizes.key_dims), max(sizes.key_dims)
    gaps = [abs(measured[WITHOUT, dim].variance / dim - 1) for dim in sizes.key_dims]
    variances = [measured[WITH, dim].variance for dim in sizes.key_dims]
    narrow, wide, scaled = measured[WITHOUT, least], measured[WITHOUT, most], measured[WITH, most]
    smaller = [dim for dim in sizes.key_dims if measured[WITHOUT, dim].jacobian[1] < measured[WITH, dim].jacobian[1]]
    return [
        f"The variance of q·k is d to within {100 * max(gaps):.1f} % from d = {least} to {most}; divided by √d it lies "
        f"between {min(variances):.3f} and {max(variances):.3f}.",
        f"Over {sizes.num_keys} keys (ln {sizes.num_keys} = {math.log(sizes.num_keys):.2f}) the entropy of softmax is "
        f"{narrow.entropy:.2f} nats at d = {least} and {wide.entropy:.2f} at d = {most} without the factor; with it, "
        f"it is {scaled.entropy:.2f} at d = {most}.",
        f"The median norm of softmax's Jacobian is {narrow.jacobian[1]:.2g} at d = {least} and {wide.jacobian[1]:.2g} "
        f"at d = {most} without the factor, {scaled.jacobian[1]:.2g} with it; it is smaller without "
        + (f"at d = {', '.join(map(str, smaller))} of those measured." if smaller else "at none of those measured."),
    ]


def _model_finding(fresh: Entropies, sizes: Sizes) -> str:
    ends = [min(sizes.head_dims), max(sizes.head_dims)]
    parts = [f"{' and '.join(f'{_mean(fresh[name, dim]):.2f}' for dim in ends)} {NAMES[name]}" for name in NAMES]
    return (
        f"In Transformers that nobody has trained the entropy of attention is, at head widths of {ends[0]} and "
        f"{ends[1]}, {parts[0]} and {parts[1]}, in nats."
    )


def _loss_findings(losses: Losses, sizes: Sizes) -> list[str]:
    chance = math.log(sizes.vocab_size)
    findings = []
    for dim in sizes.trained_head_dims:
        parts = []
        for name in NAMES:
            steps = [_steps_to(each, chance / 2) for each in losses[name, dim]]
            end = _mean([_last(each) for each in losses[name, dim]])
            reached = ", ".join("never" if each is None else str(each) for each in steps)
            parts.append(f"{NAMES[name]} at step {reached}, and ends at {end:.3f}")
        findings.append(
            f"In training at a head width of {dim} the loss first falls below half of chance ({chance / 2:.2f} nats) "
            f"{'; '.join(parts)} after {sizes.steps} steps."
        )
    return findings


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _table(measured: Measurements, sizes: Sizes) -> Table:
    rows = []
    for dim in sizes.key_dims:
        without, scaled = measured[WITHOUT, dim], measured[WITH, dim]
        rows.append([dim, without.variance, scaled.variance, without.entropy, scaled.entropy,
                     without.jacobian[1], scaled.jacobian[1]])  # fmt: skip
    return Table(
        name="random vectors",
        columns=["d", "variance of q·k", "of q·k/√d", "entropy, q·k", "q·k/√d", "Jacobian, q·k", "q·k/√d"],
        rows=rows,
        note=f"Theory: the variance of q·k is d. Entropy of softmax over {sizes.num_keys} keys in nats, mean; "
        f"Jacobian: median Frobenius norm; {sizes.num_samples} queries.",
    )


def _model_table(fresh: Entropies, sizes: Sizes) -> Table:
    return Table(
        name="attention of untrained Transformers",
        columns=["head width", *(f"entropy {name}" for name in NAMES.values())],
        rows=[[dim, *(_mean(fresh[name, dim]) for name in NAMES)] for dim in sizes.head_dims],
        note=f"In nats, over {sizes.num_keys} keys; two layers and two heads, mean of {sizes.num_models} models.",
    )


def _loss_table(losses: Losses, sizes: Sizes) -> Table:
    rows = []
    for dim in sizes.trained_head_dims:
        ends = [[_last(each) for each in losses[name, dim]] for name in NAMES]
        rows.append([dim, *((_mean(each), min(each), max(each)) for each in ends)])
    return Table(
        name=f"loss after {sizes.steps} steps",
        columns=["head width", *NAMES.values()],
        rows=rows,
        note=f"Mean of the last tenth of the steps, in nats; in brackets the range over {sizes.num_seeds} seed(s).",
    )


def _draw(measured: Measurements, fresh: Entropies, losses: Losses, sizes: Sizes) -> Figure:
    figure, (spread, variance, openness, slope, model, course) = panels(3, 3)
    dims = sizes.key_dims
    _draw_scores(spread, measured, dims)
    for name, color in zip(NAMES, (COLORS[1], COLORS[0]), strict=True):
        of = [measured[name, dim] for dim in dims]
        line = {"marker": "o", "markersize": 4, "color": color, "label": NAMES[name]}
        variance.loglog(dims, [each.variance for each in of], **line)
        openness.semilogx(dims, [each.entropy for each in of], **line)
        low, middle, high = ([max(each.jacobian[i], 1e-9) for each in of] for i in range(3))
        slope.loglog(dims, middle, **line)
        slope.fill_between(dims, low, high, color=color, alpha=0.15, linewidth=0)
        model.semilogx(sizes.head_dims, [_mean(fresh[name, dim]) for dim in sizes.head_dims], **line)
        _draw_losses(course, {dim: losses[name, dim] for dim in sizes.trained_head_dims}, color, NAMES[name])
    for theory in (dims, [1] * len(dims)):
        variance.loglog(dims, theory, color=MUTED, linestyle=":", label="theory: d and 1" if theory == dims else None)
    for axes in (openness, model):
        axes.axhline(math.log(sizes.num_keys), color=MUTED, linestyle=":", linewidth=1)
        axes.set_ylim(0, math.log(sizes.num_keys) * 1.08)
    label(variance, "Variance of the scores", "width of a key, d", "variance")
    label(openness, f"Softmax over {sizes.num_keys} keys", "width of a key, d", "entropy, nats")
    label(slope, "Its slope: median, and 10 to 90 %", "width of a key, d", "norm of the Jacobian")
    label(model, "Attention of an untrained Transformer", "width of a head", "entropy, nats")
    label(course, f"Learning to look {sizes.distance} places back", "step", "loss, nats")
    for axes, ticks in ((variance, dims), (openness, dims), (slope, dims), (model, sizes.head_dims)):
        few = ticks[:: 1 if len(ticks) < 6 else 2]
        axes.set_xticks(few, labels=[str(tick) for tick in few])
    slope.set_ylim(1e-6, 1.0)
    course.set_ylim(0.0, (1.2 + 0.2 * len(sizes.trained_head_dims)) * math.log(sizes.vocab_size))
    legend(variance, loc="upper left")
    legend(model, loc="lower left")
    legend(course, loc="upper right", fontsize=7.5)
    return figure


def _draw_scores(axes: Axes, measured: Measurements, dims: Sequence[int]) -> None:
    """How the scores are distributed at the least, a middle and the largest width."""
    shown = [dims[0], dims[len(dims) // 2], dims[-1]]
    lines: list[tuple[SimilarityName, int, str, str]] = [
        (WITHOUT, dim, COLORS[1], style) for dim, style in zip(shown, (":", "--", "-"), strict=True)
    ]
    lines.append((WITH, shown[-1], COLORS[0], "-"))
    for name, dim, color, style in lines:
        scores = measured[name, dim].scores
        most = 4 * float(scores.std())
        density, edges = torch.histogram(scores, 40, range=(-most, most), density=True)
        middles = (edges[1:] + edges[:-1]) / 2
        seen = density > 0
        axes.semilogy(middles[seen], density[seen], style, color=color, label=f"d = {dim}, {NAMES[name]}")
    label(axes, "Scores of random vectors", "score", "density")
    axes.set_ylim(top=1e3)
    legend(axes, loc="upper right", fontsize=7.5)


def _draw_losses(axes: Axes, courses: Mapping[int, Sequence[Sequence[float]]], color: str, name: str) -> None:
    """The mean over seeds, smoothed; one kind of line for each width."""
    for (dim, runs), style in zip(courses.items(), ("-", "--", ":"), strict=False):
        steps, means = smooth(torch.tensor(runs).mean(dim=0), num_points=50)
        axes.plot(steps, means, style, color=color, label=f"{name}, {dim} wide")
