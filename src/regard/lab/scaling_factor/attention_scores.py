r"""Attention scores with and without the factor $1 / \sqrt{d_k}$: variance, entropy and gradient of softmax.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1 and its footnote 4.
https://arxiv.org/abs/1706.03762

For a query and a key with independent coordinates of mean 0 and variance 1,

$$ \mathrm{Var}(q \cdot k) = d_k, \qquad \mathrm{Var}(q \cdot k / \sqrt{d_k}) = 1 . $$

Softmax over scores of a large variance is nearly one-hot, and its Jacobian
$J = \mathrm{diag}(p) - p p^\top$ nearly 0. The Frobenius norm of $J$ is the root mean
square norm of the gradient at the scores, for gradients at the weights with
independent coordinates of variance 1.

Dimensions: see `regard.nn.attention`; `sample` queries, each with its own keys.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from regard.explanation.attention.recording import record_attention
from regard.lab.drawing import COLORS, MUTED, block_means, label_axes, make_panels
from regard.lab.exercises import draw_delayed_copy, train_on_batches
from regard.lab.scaling_factor import SCALING_FACTOR
from regard.lab.softmax.temperature import categorical_entropy
from regard.lab.study import Study, StudyCell, StudySection, StudyTable
from regard.logging import log_info, progress_bar
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.similarity import SimilarityName, make_similarity

UNSCALED: SimilarityName = "dot"
SCALED: SimilarityName = "scaled-dot"
_LABELS: dict[SimilarityName, str] = {UNSCALED: "unscaled", SCALED: "divided by √d"}
_QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles of the Jacobian norm: its distribution is too skewed for a mean."""


@dataclass(frozen=True, kw_only=True)
class ScalingFactorSizes:
    """How much is measured, and how long models are trained; the defaults are those of a quick run."""

    key_dims: tuple[int, ...] = (4, 16, 64, 256, 1024)
    num_keys: int = 64
    num_samples: int = 1_000
    head_dims: tuple[int, ...] = (8, 32, 128)
    """Head widths of the untrained models."""
    num_models: int = 2
    """Untrained models of each width."""
    trained_head_dims: tuple[int, ...] = (64,)
    steps: int = 500
    num_seeds: int = 1
    learning_rate: float = 3e-3
    vocab_size: int = 16
    length: int = 16
    distance: int = 3
    """The delay of the copy task that is trained."""


_FULL = ScalingFactorSizes(
    key_dims=(4, 8, 16, 32, 64, 128, 256, 512, 1024), num_samples=10_000, head_dims=(8, 16, 32, 64, 128, 256),
    num_models=5, trained_head_dims=(16, 64, 256), steps=1_000, num_seeds=3,
)  # fmt: skip


@dataclass(frozen=True)
class ScoreStatistics:
    """Scores of random vectors, and the softmax over them."""

    scores: Float[Tensor, "sample key"]
    entropy: float
    """Mean over the samples, in nats."""
    jacobian: tuple[float, float, float]
    """10 %, 50 % and 90 % quantiles of the Jacobian norm."""

    @property
    def variance(self) -> float:
        """The variance of the scores."""
        return float(self.scores.var())


_STYLES = tuple(zip(_LABELS, (COLORS[1], COLORS[0]), strict=True))


def study_scaling_factor(*, quick: bool = False, seed: int = 0, sizes: ScalingFactorSizes | None = None) -> Study:
    """Measure scores, entropies and gradients with and without the factor."""
    sizes = sizes or (ScalingFactorSizes() if quick else _FULL)
    figure, axes = make_panels(3, 3)
    sections = [
        _random_vectors(axes[:4], sizes, torch.Generator().manual_seed(seed)),
        _untrained_models(axes[4], sizes, seed),
        _training(axes[5], sizes, seed),
    ]
    return SCALING_FACTOR.result(sizes, sections, figure)


def measure_scores(
    similarity: SimilarityName, key_dim: int, *, num_keys: int, num_samples: int, rng: torch.Generator
) -> ScoreStatistics:
    """Score random queries against random keys with standard normal coordinates."""
    score = make_similarity(similarity, key_dim, 1)
    scores = []
    # In blocks of 100 samples: the keys are large, and only their scores are kept.
    for start in range(0, num_samples, 100):
        size = min(100, num_samples - start)
        q = torch.randn(size, 1, 1, key_dim, generator=rng)
        k = torch.randn(size, 1, num_keys, key_dim, generator=rng)
        scores.append(score(q, score.prepare(k)).flatten(1).double())
    together: Float[Tensor, "sample key"] = torch.cat(scores)
    weights = together.softmax(dim=-1)
    low, middle, high = jacobian_norm(weights).quantile(torch.tensor(_QUANTILES, dtype=weights.dtype)).tolist()
    return ScoreStatistics(together, float(categorical_entropy(weights).mean()), (low, middle, high))


def jacobian_norm(p: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    r"""The Frobenius norm of $\mathrm{diag}(p) - p p^\top$: $\sqrt{\sum p^2 - 2 \sum p^3 + (\sum p^2)^2}$."""
    squares, cubes = p.square().sum(dim=-1), p.pow(3).sum(dim=-1)
    # Rounding can make a sum that should be 0 slightly negative.
    return (squares - 2 * cubes + squares.square()).clamp_min(0.0).sqrt()


@torch.inference_mode()
def attention_entropy(similarity: SimilarityName, head_dim: int, sizes: ScalingFactorSizes, *, seed: int) -> float:
    """The mean attention entropy of an untrained encoder with two layers and two heads, in nats."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=2, decoder_layers=0, model_dim=2 * head_dim, num_heads=2, feedforward_dim=4 * head_dim,
        block="pre-norm", positions="none", dropout=0.0, similarity=similarity,
    )  # fmt: skip
    # So large a vocabulary that tokens rarely repeat in a sequence: the keys differ.
    vocab_size = 100 * sizes.num_keys
    model = Transformer(config, vocab_size).eval()
    with record_attention(model) as weights:
        model.encode(torch.randint(vocab_size, (8, sizes.num_keys)))
    return float(torch.stack([categorical_entropy(each).mean() for each in weights.values()]).mean())


def train_head(similarity: SimilarityName, head_dim: int, sizes: ScalingFactorSizes, *, seed: int) -> list[float]:
    """The losses of a decoder with one layer and one head on the delayed-copy task, for each step."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=1, model_dim=head_dim, num_heads=1, feedforward_dim=2 * head_dim,
        block="pre-norm", dropout=0.0, similarity=similarity,
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)
    draw = partial(draw_delayed_copy, 32, sizes.length, distance=sizes.distance, vocab_size=sizes.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    description = f"{similarity}, head width {head_dim}"
    losses = train_on_batches(model, draw, optimizer, steps=sizes.steps, description=description).losses
    log_info(f"head width {head_dim}, {_LABELS[similarity]}: loss {_final(losses):.3f} after {sizes.steps} steps")
    return losses


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _final(losses: Sequence[float]) -> float:
    """The mean loss of the last tenth of the steps."""
    return _mean(losses[-max(1, len(losses) // 10) :])


def _random_vectors(panels: Sequence[Axes], sizes: ScalingFactorSizes, rng: torch.Generator) -> StudySection:
    density, variance, entropy, jacobian = panels
    dims = sizes.key_dims
    cases: list[tuple[SimilarityName, int]] = [(name, dim) for dim in dims for name in _LABELS]
    measured = {
        case: measure_scores(*case, num_keys=sizes.num_keys, num_samples=sizes.num_samples, rng=rng)
        for case in progress_bar(cases, "random vectors", total=len(cases))
    }
    for name, color in _STYLES:
        found = [measured[name, dim] for dim in dims]
        line = {"marker": "o", "markersize": 4, "color": color, "label": _LABELS[name]}
        variance.plot(dims, [each.variance for each in found], **line)
        entropy.plot(dims, [each.entropy for each in found], **line)
        low, middle, high = ([max(each.jacobian[i], 1e-9) for each in found] for i in range(3))
        jacobian.plot(dims, middle, **line)
        jacobian.fill_between(dims, low, high, color=color, alpha=0.15, linewidth=0)
    for theory, label in ((dims, "theory: d and 1"), ([1] * len(dims), None)):
        variance.plot(dims, theory, color=MUTED, linestyle=":", label=label)
    label_axes(variance, "Variance of the scores", "key width d", "variance", log="xy", legend="upper left")
    label_axes(entropy, f"Softmax over {sizes.num_keys} keys", "key width d", "entropy, nats", log="x")
    label_axes(jacobian, "Jacobian of softmax: median, 10 to 90 %", "key width d", "Frobenius norm", log="xy")
    jacobian.set_ylim(1e-6, 1.0)
    _mark_uniform_entropy(entropy, sizes)
    for axes in (variance, entropy, jacobian):
        _set_ticks(axes, dims)
    _draw_densities(density, measured, dims)
    gaps = [abs(measured[UNSCALED, dim].variance / dim - 1) for dim in dims]
    variances = [measured[SCALED, dim].variance for dim in dims]
    smaller = [dim for dim in dims if measured[UNSCALED, dim].jacobian[1] < measured[SCALED, dim].jacobian[1]]
    unscaled, scaled = (measured[name, dims[-1]].entropy for name in (UNSCALED, SCALED))
    rows = []
    for dim in dims:
        pair = measured[UNSCALED, dim], measured[SCALED, dim]
        rows.append([dim, *(each.variance for each in pair), *(each.entropy for each in pair),
                     *(each.jacobian[1] for each in pair)])  # fmt: skip
    return [
        f"The variance of q·k is d to within {100 * max(gaps):.1f} % from d = {dims[0]} to {dims[-1]}; divided by √d "
        f"it is between {min(variances):.3f} and {max(variances):.3f}.",
        f"At d = {dims[-1]} the entropy of softmax over {sizes.num_keys} keys (ln {sizes.num_keys} = "
        f"{math.log(sizes.num_keys):.2f}) is {unscaled:.2f} nats for unscaled scores and {scaled:.2f} for scaled ones; "
        f"the median norm of its Jacobian is smaller for unscaled scores at "
        f"{'d = ' + ', '.join(map(str, smaller)) if smaller else 'none'} of the widths measured.",
    ], [StudyTable(
        "random vectors",
        ["d", *(f"{what}, {score}" for what in ("variance", "entropy", "Jacobian") for score in ("q·k", "q·k/√d"))],
        rows,
        f"In theory the variance of q·k is d. Entropy: of softmax over {sizes.num_keys} keys, mean in nats. Jacobian: "
        f"median Frobenius norm. {sizes.num_samples} queries.",
    )]  # fmt: skip


def _draw_densities(
    axes: Axes, measured: Mapping[tuple[SimilarityName, int], ScoreStatistics], dims: Sequence[int]
) -> None:
    """The distribution of the scores at the smallest, a middle and the largest width."""
    shown = [dims[0], dims[len(dims) // 2], dims[-1]]
    lines: list[tuple[SimilarityName, int, str, str]] = [
        (UNSCALED, dim, COLORS[1], style) for dim, style in zip(shown, (":", "--", "-"), strict=True)
    ]
    lines.append((SCALED, shown[-1], COLORS[0], "-"))
    for name, dim, color, style in lines:
        scores = measured[name, dim].scores
        most = 4 * float(scores.std())
        density, edges = torch.histogram(scores, 40, range=(-most, most), density=True)
        some = density > 0
        axes.semilogy(((edges[1:] + edges[:-1]) / 2)[some], density[some], style, color=color,
                      label=f"d = {dim}, {_LABELS[name]}")  # fmt: skip
    axes.set_ylim(top=1e3)
    label_axes(axes, "Scores of random vectors", "score", "density", legend="upper right", fontsize=7.5)


def _untrained_models(axes: Axes, sizes: ScalingFactorSizes, seed: int) -> StudySection:
    dims = sizes.head_dims
    rows = [
        [dim, *(_mean([attention_entropy(name, dim, sizes, seed=seed + i) for i in range(sizes.num_models)])
                for name in _LABELS)]
        for dim in dims
    ]  # fmt: skip
    for column, (name, color) in enumerate(_STYLES, start=1):
        axes.plot(dims, [row[column] for row in rows], "o-", markersize=4, color=color, label=_LABELS[name])
    title = "Attention of untrained Transformers"
    label_axes(axes, title, "head width", "entropy, nats", log="x", legend="lower left")
    _mark_uniform_entropy(axes, sizes)
    _set_ticks(axes, dims)
    return [], [StudyTable(
        "attention of untrained Transformers",
        ["head width", *(f"entropy, {name}" for name in _LABELS.values())],
        rows,
        f"In nats, over {sizes.num_keys} keys; two layers and two heads, mean of {sizes.num_models} models.",
    )]  # fmt: skip


def _training(axes: Axes, sizes: ScalingFactorSizes, seed: int) -> StudySection:
    chance, findings, rows = math.log(sizes.vocab_size), [], []
    for dim, style in zip(sizes.trained_head_dims, ("-", "--", ":"), strict=False):
        row: list[StudyCell] = [dim]
        parts = []
        for name, color in _STYLES:
            runs = [train_head(name, dim, sizes, seed=seed + i) for i in range(sizes.num_seeds)]
            ends = [_final(run) for run in runs]
            row.append((_mean(ends), min(ends), max(ends)))
            first = (
                next((str(step) for step, loss in enumerate(run, 1) if loss < chance / 2), "never") for run in runs
            )
            parts.append(f"{', '.join(first)} {_LABELS[name]}")
            steps, means = block_means(torch.tensor(runs).mean(dim=0), num_points=50)
            axes.plot(steps, means, style, color=color, label=f"{_LABELS[name]}, width {dim}")
        rows.append(row)
        findings.append(
            f"At a head width of {dim} the training loss first falls below half of that of a uniform prediction "
            f"({chance / 2:.2f} nats) at step {' and '.join(parts)}."
        )
    axes.set_ylim(0.0, (1.2 + 0.2 * len(sizes.trained_head_dims)) * chance)
    title = f"Training: copy from {sizes.distance} positions back"
    label_axes(axes, title, "step", "loss, nats", legend="upper right", fontsize=7.5)
    return findings, [StudyTable(
        f"training loss after {sizes.steps} steps",
        ["head width", *_LABELS.values()],
        rows,
        f"Mean of the last tenth of the steps, in nats; in brackets the range over {sizes.num_seeds} seed(s).",
    )]  # fmt: skip


def _mark_uniform_entropy(axes: Axes, sizes: ScalingFactorSizes) -> None:
    axes.axhline(math.log(sizes.num_keys), color=MUTED, linestyle=":", linewidth=1)
    axes.set_ylim(0, math.log(sizes.num_keys) * 1.08)


def _set_ticks(axes: Axes, dims: Sequence[int]) -> None:
    few = dims[:: 1 if len(dims) < 6 else 2]
    axes.set_xticks(few, labels=[str(dim) for dim in few])
