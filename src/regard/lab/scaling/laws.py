r"""Runs of small Transformers on text of known entropy, and laws of their loss.

Kaplan et al., "Scaling Laws for Neural Language Models" (2020). https://arxiv.org/abs/2001.08361
Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), section 3.3. https://arxiv.org/abs/2203.15556
Hutter, "Learning Curve Theory" (2021). https://arxiv.org/abs/2102.04074

With $N$ parameters and $D$ tokens, each read once,

$$ L(N, D) = E + \frac{A}{N^\alpha} + \frac{B}{D^\beta} : $$

the entropy of the text, the error of a model of finite size, and the error of
finite data. With a compute of $C = 6 N D$ the loss is lowest at

$$ N^* = \Big(\frac{\alpha A}{\beta B}\Big)^{\frac{1}{\alpha + \beta}}
   \Big(\frac{C}{6}\Big)^{\frac{\beta}{\alpha + \beta}} , \qquad D^* = \frac{C}{6 N^*} . $$

A single power law $L = c\, x^{-\gamma}$ has no such floor, and so cannot hold for all $x$:
it extrapolates to a loss of 0.

In the text each character depends on the previous one. With probability $h$ the next
character $c'$ is drawn by a ranking specific to the last one, $c$, otherwise by a common
ranking; the frequencies follow Zipf's law (Zipf, *Human Behavior and the Principle of
Least Effort* (1949)):

$$ p(c' \mid c) = h\, z(\mathrm{rank}_c(c')) + (1 - h)\, z(\mathrm{rank}(c')), \qquad z(r) \propto r^{-s} . $$

So there is always something rarer to learn, and losses fall as powers of the data
(Hutter). No model has a lower expected loss than the entropy. The learning rate of each
run decays to 0 over its own length: an intermediate loss of a longer run would be higher
than its data allows (Hoffmann et al., section 3.1). Each text is read once. The laws are
fitted to runs of several widths and lengths, and extrapolated to a model that is larger
than all of them, with as much data and with more.

Dimensions: `rows` of `time` characters, `vocab` characters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator
from scipy.optimize import least_squares
from scipy.special import logsumexp, softmax
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.data.permutation import mix
from regard.errors import DataError
from regard.evaluation.intervals import Interval, percentile_interval
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.exercises import TokenBatch, token_loss, train_on_batches
from regard.lab.own_data import read_characters
from regard.lab.scaling import SCALING
from regard.lab.study import Study, StudyTable, format_cell
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig

_HUBER_DELTA = 1e-3
"""Residuals of log L beyond this count linearly, so that one bad run cannot dominate the fit."""
_EXPONENTS = (0.01, 3.0)
_MAX_DRAWS = 50

_STARTS = tuple(product((0.5, 0.9), (0.2, 1.0)))
"""E over the lowest loss; both exponents."""
_LEAST_START = 0.3
"""The smallest start of E relative to the lowest loss: closer to 0, the fit is insensitive to log E."""
_FACTOR = float(np.log(0.3))
"""log of A / N^alpha and of B / D^beta, at the mean of log N and log D."""
_TOLERANCE = 1e-6
_FEWEST_STEPS = 20
"""Steps of the shortest run that a law is fitted to."""

_Values = Float[np.ndarray, " runs"]
Fitted = TypeVar("Fitted")
_LANGUAGE, _TEST, _RUN = range(3)
"""Streams of random numbers."""
_LARGER = COLORS[1]
"""The color of runs to which no law is fitted."""
_PREFIXES = EngFormatter(places=1, sep="")


@dataclass(frozen=True)
class ScalingLaw:
    """The loss as a function of parameters and data."""

    floor: float
    """E, the limit for infinitely many parameters and tokens."""
    size_factor: float
    size_exponent: float
    """A and alpha."""
    data_factor: float
    data_exponent: float
    """B and beta."""

    def loss(self, parameters: float, tokens: float) -> float:
        size_term = self.size_factor * parameters**-self.size_exponent
        return self.floor + size_term + self.data_factor * tokens**-self.data_exponent

    @property
    def compute_exponent(self) -> float:
        """The exponent of compute in the optimal number of parameters; that of the data is 1 minus it."""
        return self.data_exponent / (self.size_exponent + self.data_exponent)

    def optimal_size(self, compute: float) -> float:
        """The number of parameters with the lowest loss at a compute of 6 N D."""
        ratio = self.size_exponent * self.size_factor / (self.data_exponent * self.data_factor)
        return ratio ** (1 / (self.size_exponent + self.data_exponent)) * (compute / 6) ** self.compute_exponent


@dataclass(frozen=True)
class PowerLaw:
    """The loss as a power of one quantity."""

    factor: float
    exponent: float

    def loss(self, x: float) -> float:
        return self.factor * x**-self.exponent


def fit_scaling_law(
    parameters: _Values, tokens: _Values, losses: _Values, *, start: ScalingLaw | None = None
) -> ScalingLaw:
    r"""The law with the lowest Huber loss of $\log L$, from several starts or from a given one.

    As by Hoffmann et al., but with both logarithms centered, which nearly decorrelates
    factors and exponents. Exponents are restricted to [0.01, 3].
    """
    x, y, z = np.log(parameters), np.log(tokens), np.log(losses)
    x_mean, y_mean = float(x.mean()), float(y.mean())
    x, y = x - x_mean, y - y_mean

    def terms(theta: Float[np.ndarray, " 5"]) -> Float[np.ndarray, "3 runs"]:
        """The logarithm of each term of the law."""
        e, a, alpha, b, beta = theta
        return np.stack([np.full_like(z, e), a - alpha * x, b - beta * y])

    def residuals(theta: Float[np.ndarray, " 5"]) -> _Values:
        return logsumexp(terms(theta), axis=0) - z

    def jacobian(theta: Float[np.ndarray, " 5"]) -> Float[np.ndarray, "runs 5"]:
        shares = softmax(terms(theta), axis=0)
        return np.stack([shares[0], shares[1], -shares[1] * x, shares[2], -shares[2] * y], axis=1)

    factors = (-12.0, 5.0)
    bounds = [(float(z.min()) - 7.0, float(z.max())), factors, _EXPONENTS, factors, _EXPONENTS]
    derivative: Any = jacobian  # scipy's annotation allows only its own names
    search = partial(
        least_squares, residuals, jac=derivative, bounds=tuple(zip(*bounds, strict=True)), loss="huber",
        f_scale=_HUBER_DELTA, max_nfev=300, ftol=_TOLERANCE, xtol=_TOLERANCE,
    )  # fmt: skip
    lowest = float(losses.min())
    if start is None:
        starts = [[np.log(share * lowest), _FACTOR, exponent, _FACTOR, exponent] for share, exponent in _STARTS]
    else:
        size = float(np.log(start.size_factor)) - start.size_exponent * x_mean
        data = float(np.log(start.data_factor)) - start.data_exponent * y_mean
        floor = float(np.log(max(start.floor, _LEAST_START * lowest)))
        starts = [[floor, size, start.size_exponent, data, start.data_exponent]]
    found = [search(theta) for theta in starts]
    e, a, alpha, b, beta = min(found, key=lambda result: result.cost).x.tolist()
    return ScalingLaw(
        float(np.exp(e)), float(np.exp(a + alpha * x_mean)), alpha, float(np.exp(b + beta * y_mean)), beta
    )  # fmt: skip


def fit_power_law(x: _Values, losses: _Values) -> PowerLaw:
    """The least-squares line through the logarithms."""
    slope, intercept = np.polyfit(np.log(x), np.log(losses), 1)
    return PowerLaw(float(np.exp(intercept)), -float(slope))


def compute_frontier(compute: _Values, losses: _Values) -> list[int]:
    """The indices of runs with a lower loss than every run of the same or less compute, the cheapest first."""
    order = np.lexsort([losses, compute])
    lowest = np.minimum.accumulate(losses[order])
    is_better = np.concatenate([[True], losses[order][1:] < lowest[:-1]])
    return order[is_better].tolist()


@dataclass(frozen=True)
class LackOfFit:
    """How far runs are from a law, compared with how far they are from each other."""

    residual: float
    """Root mean square of the mean log loss minus the law's, over groups of runs that differ in the seed only."""
    spread: float
    """The standard deviation of the log loss within such groups."""
    p_value: float
    """The probability of as large an F statistic if the law holds."""


def lack_of_fit(runs: Sequence[tuple[float, float, float]], law: ScalingLaw) -> LackOfFit | None:
    """The F test of lack of fit (Fisher 1922), from parameters, tokens and loss of each run.

    Runs of the same size and data estimate the variance between seeds independently of
    the law. None without such runs, or with no more sizes and amounts of data than the law
    has parameters. The test assumes normal errors of equal variance and a least-squares fit.
    """
    from scipy.stats import f as fisher

    groups: dict[tuple[float, float], list[float]] = {}
    for parameters, tokens, loss in runs:
        groups.setdefault((parameters, tokens), []).append(float(np.log(loss)))
    num_repeated, num_left = len(runs) - len(groups), len(groups) - 5
    if num_repeated < 1 or num_left < 1:
        return None
    within = sum(len(logs) * float(np.var(logs)) for logs in groups.values()) / num_repeated
    residuals = [(len(logs), float(np.mean(logs) - np.log(law.loss(*of)))) for of, logs in groups.items()]
    between = sum(count * residual**2 for count, residual in residuals) / num_left
    rms = float(np.sqrt(np.mean([residual**2 for _, residual in residuals])))
    return LackOfFit(rms, float(np.sqrt(within)), float(fisher.sf(between / within, num_left, num_repeated)))


def bootstrap_fits(
    fit: Callable[[Sequence[int]], Fitted],
    num_runs: int,
    *,
    num_resamples: int,
    rng: np.random.Generator,
    is_sufficient: Callable[[Sequence[int]], bool],
) -> list[Fitted]:
    """Fits to as many runs, drawn with replacement; a draw that is not sufficient for a fit is drawn again.

    The runs are treated as independent draws of size, data and seed, which a grid is not
    exactly: the resulting intervals are approximate, and too narrow for few runs.
    """
    fits: list[Fitted] = []
    for _ in range(_MAX_DRAWS * num_resamples):
        drawn = sorted(rng.integers(num_runs, size=num_runs).tolist())
        if is_sufficient(drawn):
            fits.append(fit(drawn))
        if len(fits) == num_resamples:
            return fits
    raise DataError(
        f"at least one in {_MAX_DRAWS} resamples must be sufficient for a fit, got {len(fits)} of "
        f"{_MAX_DRAWS * num_resamples:,}; use more runs"
    )


@dataclass(frozen=True, kw_only=True)
class ScalingSizes:
    """The grid of runs, and the larger runs to extrapolate to; the defaults are those of a quick run."""

    widths: tuple[int, ...] = (8, 12, 20, 32)
    """Widths of the models that laws are fitted to."""
    steps: tuple[int, ...] = (100, 200, 400, 800)
    """Steps of the runs that laws are fitted to; each batch is read once."""
    larger_width: int = 48
    larger_steps: tuple[int, ...] = (800, 1_600)
    """Steps of the runs whose losses are predicted."""
    num_seeds: int = 1
    num_layers: int = 2
    num_heads: int = 2
    length: int = 64
    batch_size: int = 8
    learning_rate: float = 1e-2
    vocab_size: int = 64
    context_weight: float = 0.8
    """The probability h of a ranking specific to the last character."""
    exponent: float = 1.5
    """The exponent s of Zipf's law."""
    num_test_rows: int = 512
    num_resamples: int = 200


@dataclass(frozen=True)
class MarkovSample:
    """Rows of text, and their negative log-probability."""

    batch: TokenBatch
    entropy: float
    """In nats per character: the loss of the true distribution on these rows."""


@dataclass(frozen=True, eq=False)
class MarkovLanguage:
    """A Markov chain of characters."""

    first: Float[Tensor, " vocab"]
    """Probabilities of the first character of a row."""
    following: Float[Tensor, "vocab vocab"]
    """Probabilities of the next character, given each character."""

    @property
    def entropy(self) -> float:
        """The entropy rate in nats per character."""
        # A thousand steps converge to the stationary distribution.
        stationary = torch.linalg.matrix_power(self.following, 1_000)[0]
        return -float((stationary[:, None] * self.following * self.following.log()).sum())

    def draw(self, num_rows: int, length: int, rng: torch.Generator) -> MarkovSample:
        """Rows of `length` characters to predict, after a first one that is given."""
        drawn = [torch.multinomial(self.first, num_rows, replacement=True, generator=rng)]
        total = 0.0
        for _ in range(length):
            probabilities = self.following[drawn[-1]]
            drawn.append(torch.multinomial(probabilities, 1, generator=rng)[:, 0])
            total -= float(probabilities.gather(1, drawn[-1][:, None]).log().sum())
        text = torch.stack(drawn, dim=1)
        batch = TokenBatch(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        return MarkovSample(batch, total / (num_rows * length))


def make_language(vocab_size: int, *, context_weight: float, exponent: float, rng: torch.Generator) -> MarkovLanguage:
    """Draw a language; `context_weight` is h and `exponent` s of the formula above."""
    common = torch.arange(1, vocab_size + 1, dtype=torch.float64) ** -exponent
    common /= common.sum()
    # The rank of each character after each: one random permutation per row.
    ranks = torch.rand(vocab_size, vocab_size, generator=rng, dtype=torch.float64).argsort(dim=1)
    return MarkovLanguage(common, context_weight * common[ranks] + (1 - context_weight) * common)


@dataclass(frozen=True, eq=False)
class FileText:
    """The windows of a text file, those at its end held out."""

    windows: Int[Tensor, "window time"]
    """The last character of each is the first of the next."""

    def draw(self, num_rows: int, length: int, rng: torch.Generator) -> MarkovSample:
        """Windows at random, none twice; the entropy of the text is not known."""
        drawn = self.windows[torch.randperm(len(self.windows), generator=rng)[:num_rows]]
        return MarkovSample(TokenBatch(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()), math.nan)


def read_language(path: str, sizes: ScalingSizes, seed: int) -> tuple[FileText, MarkovSample, ScalingSizes]:
    """The training windows of a text file, held-out ones, and the sizes that it is large enough for."""
    text, vocab_size = read_characters(path, study=SCALING.name)
    number = (len(text) - 1) // sizes.length
    windows = text[: number * sizes.length + 1].unfold(0, sizes.length + 1, sizes.length)
    num_test = min(sizes.num_test_rows, number // 10)
    available = (number - num_test) // sizes.batch_size
    most = max(*sizes.steps, *sizes.larger_steps)
    if available < _FEWEST_STEPS * most // min(sizes.steps):
        needed = _FEWEST_STEPS * most // min(sizes.steps) * sizes.batch_size * sizes.length * 10 // 9
        raise DataError(f"{path} must have at least {needed:,} characters for this study, got {len(text):,}")
    if available < most:
        log_info(f"{path} has {len(text):,} characters: runs have at most {available:,} steps instead of {most:,}")
        fitting = {
            name: tuple(step * available // most for step in steps)
            for name, steps in (("steps", sizes.steps), ("larger_steps", sizes.larger_steps))
        }
        sizes = replace(sizes, **fitting)
    sizes = replace(sizes, vocab_size=vocab_size, num_test_rows=num_test)
    test = FileText(windows[-num_test:]).draw(num_test, sizes.length, _generator(seed, _TEST))
    return FileText(windows[:-num_test]), test, sizes


@dataclass(frozen=True)
class ScalingRun:
    """The size, data, compute and test loss of one run."""

    seed: int
    width: int
    parameters: int
    characters: int
    """Read in training, each once."""
    operations: float
    """Floating-point operations of the matrix products, counted."""
    loss: float

    @property
    def compute(self) -> float:
        """6 N D, the usual approximation of the operations, which the laws use."""
        return 6.0 * self.parameters * self.characters


@dataclass(frozen=True)
class FittedLaws:
    """Laws fitted to the same runs."""

    whole: ScalingLaw
    by_size: PowerLaw
    """The law of the runs with the most data."""
    by_data: PowerLaw
    """The law of the runs with the most parameters."""
    by_compute: PowerLaw
    """The law of the runs on the compute frontier."""


def draw_language(sizes: ScalingSizes, seed: int) -> tuple[MarkovLanguage, MarkovSample]:
    """Returns the language of a study, and its test set."""
    language = make_language(
        sizes.vocab_size, context_weight=sizes.context_weight, exponent=sizes.exponent, rng=_generator(seed, _LANGUAGE)
    )
    return language, language.draw(sizes.num_test_rows, sizes.length, _generator(seed, _TEST))


def run_scaling(
    language: MarkovLanguage | FileText,
    test: MarkovSample,
    sizes: ScalingSizes,
    width: int,
    steps: int,
    *,
    number: int,
    seed: int,
) -> ScalingRun:
    """Train one model on `steps` fresh batches, and measure its test loss."""
    torch.manual_seed(mix(seed, _RUN, number, width, steps))
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=width, num_heads=sizes.num_heads,
        feedforward_dim=4 * width, activation="gelu", block="pre-norm", dropout=0.0, positions="rotary",
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)
    rng = _generator(seed, _RUN, number, width, steps)
    text = language.draw(steps * sizes.batch_size, sizes.length, rng).batch
    batches = map(TokenBatch, text.inputs.split(sizes.batch_size), text.targets.split(sizes.batch_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate, fused=True)
    name = f"width {width}, {steps} steps"
    train_on_batches(model, lambda: next(batches), optimizer, steps=steps, clip_norm=1.0, description=name)
    with torch.inference_mode():
        loss = float(token_loss(model, test.batch))
    entropy = "" if math.isnan(test.entropy) else f", entropy {test.entropy:.3f}"
    log_info(f"{name}, seed {seed + number}: loss {loss:.3f}{entropy}")
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    operations = steps * count_step_flops(model, sizes.batch_size, sizes.length)
    return ScalingRun(seed + number, width, num_parameters, text.inputs.numel(), operations, loss)


def count_step_flops(model: nn.Module, num_rows: int, length: int) -> float:
    """Counts the operations of matrix products; a backward pass has twice those of a forward pass (Kaplan et al.)."""
    tokens = torch.zeros(num_rows, length, dtype=torch.long)
    # The plain implementation of attention: the counter does not count the fused kernel of a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens)
    return 3.0 * counter.get_total_flops()


def fit_laws(runs: Sequence[ScalingRun], *, start: ScalingLaw | None = None) -> FittedLaws:
    """Fit each law to the runs it describes."""
    parameters, characters, compute, losses = (
        np.array([getattr(run, name) for run in runs], dtype=np.float64)
        for name in ("parameters", "characters", "compute", "loss")
    )
    most_data, most_parameters = characters == characters.max(), parameters == parameters.max()
    best = compute_frontier(compute, losses)
    return FittedLaws(
        fit_scaling_law(parameters, characters, losses, start=start),
        fit_power_law(parameters[most_data], losses[most_data]),
        fit_power_law(characters[most_parameters], losses[most_parameters]),
        fit_power_law(compute[best], losses[best]),
    )


def can_fit(runs: Sequence[ScalingRun]) -> bool:
    """Whether runs, drawn with replacement, have two sizes, two amounts of data and two runs on the frontier."""
    most_characters, most_parameters = max(run.characters for run in runs), max(run.parameters for run in runs)
    sizes = {run.parameters for run in runs if run.characters == most_characters}
    amounts = {run.characters for run in runs if run.parameters == most_parameters}
    best = compute_frontier(np.array([run.compute for run in runs]), np.array([run.loss for run in runs]))
    return min(len(sizes), len(amounts), len(best)) >= 2


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix(*numbers) >> 1)


_FULL = ScalingSizes(
    widths=(8, 12, 20, 32, 48, 72), steps=(200, 400, 800, 1_600, 3_200), larger_width=112,
    larger_steps=(3_200, 6_400), num_seeds=3, num_resamples=1_000,
)  # fmt: skip

_NUMBERS: dict[str, Callable[[FittedLaws], float]] = {
    "E, nats per character": lambda fit: fit.whole.floor,
    "alpha, of parameters": lambda fit: fit.whole.size_exponent,
    "beta, of data": lambda fit: fit.whole.data_exponent,
    "beta / (alpha + beta), of the optimal size by compute": lambda fit: fit.whole.compute_exponent,
    "power law of parameters": lambda fit: fit.by_size.exponent,
    "power law of data": lambda fit: fit.by_data.exponent,
    "power law of compute": lambda fit: fit.by_compute.exponent,
}


@dataclass(frozen=True)
class _Results:
    runs: Sequence[ScalingRun]
    larger: Sequence[ScalingRun]
    fit: FittedLaws
    resampled: Sequence[FittedLaws]
    """Fitted to resampled runs."""
    entropy: float

    def estimate(self, number: Callable[[FittedLaws], float]) -> Interval:
        """A number of the fitted laws, with its 95 % interval over resampled runs."""
        return number(self.fit), *percentile_interval(np.array([number(each) for each in self.resampled]), 0.95)

    def predict(self, run: ScalingRun) -> tuple[Interval, Interval]:
        """The loss of a run by the law of parameters and data, and by the power law of compute."""
        return (
            self.estimate(lambda fit: fit.whole.loss(run.parameters, run.characters)),
            self.estimate(lambda fit: fit.by_compute.loss(run.compute)),
        )


def study_scaling(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: ScalingSizes | None = None
) -> Study:
    """Train the grid, fit the laws, and extrapolate them to a larger model, on the text of a file, `data`, if given."""
    sizes = sizes or (ScalingSizes() if quick else _FULL)
    if data is None:
        language, test = draw_language(sizes, seed)
    else:
        language, test, sizes = read_language(data, sizes, seed)
    seeds, train = range(sizes.num_seeds), partial(run_scaling, language, test, sizes, seed=seed)
    runs = [train(*of, number=number) for number, *of in product(seeds, sizes.widths, sizes.steps)]
    larger = [train(sizes.larger_width, steps, number=n) for n, steps in product(seeds, sizes.larger_steps)]
    fit = fit_laws(runs)
    resampled = bootstrap_fits(
        lambda drawn: fit_laws([runs[i] for i in drawn], start=fit.whole),
        len(runs),
        num_resamples=sizes.num_resamples,
        rng=np.random.default_rng(seed),
        is_sufficient=lambda drawn: can_fit([runs[i] for i in drawn]),
    )
    results = _Results(runs, larger, fit, resampled, test.entropy)
    return SCALING.result(sizes, [(_findings(results), _tables(results))], _draw(results),
                          entropy=None if math.isnan(test.entropy) else test.entropy)  # fmt: skip


def _findings(results: _Results) -> list[str]:
    _, low, high = results.estimate(lambda fit: fit.whole.floor)
    share = results.estimate(lambda fit: fit.whole.compute_exponent)
    form = lack_of_fit([(run.parameters, run.characters, run.loss) for run in results.runs], results.fit.whole)
    ratios = {run.width: run.compute / run.operations for run in (*results.runs, *results.larger)}
    narrow, wide = min(ratios), max(ratios)
    lowest = min(run.loss for run in (*results.runs, *results.larger))
    floor = (
        f"The fitted floor E is {results.fit.whole.floor:.2f} nats per character, 95 % interval {low:.2f} to "
        f"{high:.2f}; the lowest measured loss is {lowest:.2f}."
        if math.isnan(results.entropy)
        else f"The entropy of the language is {results.entropy:.2f} nats per character; the interval of E "
        f"{_contains(results.entropy, low, high)} it."
    )
    findings = [
        floor,
        f"By the fit, the optimal number of parameters grows as compute to the power {format_cell(share)}; the "
        f"interval {_contains(0.5, *share[1:])} the 0.5 of Hoffmann et al.",
        *map(partial(_extrapolation, results), sorted({run.characters for run in results.larger})),
        f"6 N D is {100 * ratios[narrow]:.0f} % of the counted operations at a width of {narrow}, and "
        f"{100 * ratios[wide]:.0f} % at {wide}: it omits the products of queries with keys and of weights with values.",
    ]
    if form is not None:
        # The test assumes equal variances, which holds only approximately: more digits would not be meaningful.
        p = "< 0.001" if form.p_value < 0.001 else f"= {form.p_value:.2g}"
        is_significant = form.p_value < 0.05
        verdict = (
            "significant: the intervals, which assume the law, are too narrow" if is_significant else "not significant"
        )
        findings.append(
            f"Losses of runs that differ only in the seed have a spread of {100 * form.spread:.2g} %, and their means "
            f"differ from the law by {100 * form.residual:.2g} % (F test of lack of fit, p {p}): {verdict}."
        )
    return findings


def _contains(value: float, low: float, high: float) -> str:
    return "contains" if low <= value <= high else "does not contain"


def _extrapolation(results: _Results, characters: int) -> str:
    some = [run for run in results.larger if run.characters == characters]
    measured = sum(run.loss for run in some) / len(some)
    size = some[0].parameters / max(run.parameters for run in results.runs)
    data = characters / max(run.characters for run in results.runs)
    both, compute = results.predict(some[0])

    def error(predicted: float) -> str:
        share = 100 * (predicted / measured - 1)
        below = ", below the entropy" if predicted < results.entropy else ""
        return f"{abs(share):.1f} % too {'high' if share > 0 else 'low'}{below}"

    return (
        f"For a model {size:.1f} times the largest, with {data:.1f} times the most data, the law of N and D predicts a "
        f"loss {error(both[0])}; its interval {_contains(measured, *both[1:])} the measured {measured:.3f}. The power "
        f"law of compute predicts {error(compute[0])}."
    )


def _tables(results: _Results) -> list[StudyTable]:
    return [
        StudyTable(
            "fitted laws", ["parameter", "value"],
            [[name, results.estimate(number)] for name, number in _NUMBERS.items()],
            "L = E + A / N^alpha + B / D^beta, fitted to all runs; the exponents of single power laws, fitted to the "
            "runs with the most data, with the most parameters, and on the compute frontier. In brackets the 95 % "
            f"interval over {len(results.resampled)} draws of runs with replacement.",
        ),
        StudyTable(
            "extrapolation to a larger model",
            ["parameters", "characters", "loss", "predicted by N and D", "predicted by compute"],
            [[run.parameters, run.characters, run.loss, *results.predict(run)] for run in results.larger],
        ),
        StudyTable(
            "runs that the laws are fitted to",
            ["seed", "width", "parameters", "characters", "operations", "loss", "loss / fit - 1"],
            [[run.seed, run.width, run.parameters, run.characters, run.operations, run.loss,
              run.loss / results.fit.whole.loss(run.parameters, run.characters) - 1] for run in results.runs],
        ),
    ]  # fmt: skip


def _draw(results: _Results) -> Figure:
    figure, (by_data, by_size, by_compute, predicted) = make_panels(2, 2, height=3.6)
    every = (*results.runs, *results.larger)
    known = "" if math.isnan(results.entropy) else "; dotted: entropy"
    for axes, across, along, title, x in (
        (by_data, "characters", "parameters", f"By data; dashed: fit{known}", "characters, D"),
        (by_size, "parameters", "characters", "By parameters", "parameters, N"),
    ):
        _draw_slices(axes, results, across=across, along=along)
        label_axes(axes, title, x, "loss, nats", log="x", legend="upper right", fontsize=7.5, ncols=2)
        axes.set_xticks(sorted({getattr(run, across) for run in every}))
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top + 0.32 * (top - bottom))
    _draw_compute(by_compute, results)
    title = "By compute: a power law of the best runs"
    label_axes(by_compute, title, "compute, C = 6 N D", "loss, nats", log="x", legend="upper right")
    for axes in (by_data, by_size, by_compute):
        if not math.isnan(results.entropy):
            axes.axhline(results.entropy, color=MUTED, linewidth=1, linestyle=":")
        axes.xaxis.set_major_formatter(_PREFIXES)
        axes.xaxis.set_minor_locator(NullLocator())
    _draw_predicted(predicted, results)
    return figure


def _draw_slices(axes: Axes, results: _Results, *, across: str, along: str) -> None:
    """The loss by `across`, with one color per value of `along`, and the fitted law."""
    every = (*results.runs, *results.larger)
    ends = [getattr(run, across) for run in every]
    grid = np.geomspace(min(ends), max(ends), 60)
    fitted = {getattr(run, along) for run in results.runs}
    colors = [color for color in COLORS if color != _LARGER]
    for i, value in enumerate(sorted({getattr(run, along) for run in every})):
        color = colors[i % len(colors)] if value in fitted else _LARGER
        law = [results.fit.whole.loss(*((x, value) if across == "parameters" else (value, x))) for x in grid]
        axes.plot(grid, law, color=color, linewidth=1, linestyle="--")
        for some, style, size in ((results.runs, "o", 4.5), (results.larger, "*", 9)):
            mine = [run for run in some if getattr(run, along) == value]
            if mine:
                name = f"{_PREFIXES(value)} {along}" if style == "o" or value not in fitted else None
                places = [getattr(run, across) for run in mine]
                axes.plot(places, [run.loss for run in mine], style, color=color, markersize=size, label=name)


def _draw_compute(axes: Axes, results: _Results) -> None:
    fit = results.fit
    compute, losses = (np.array([getattr(run, name) for run in results.runs]) for name in ("compute", "loss"))
    best = compute_frontier(compute, losses)
    axes.plot(compute, losses, "o", color=MUTED, markersize=4, alpha=0.6, label="runs")
    axes.plot(compute[best], losses[best], "o", color=COLORS[0], markersize=5, label="compute frontier")
    larger = [run.compute for run in results.larger]
    axes.plot(larger, [run.loss for run in results.larger], "*", color=_LARGER, markersize=10, label="larger model")
    grid = np.geomspace(compute.min(), max(larger), 60)
    name = f"power law, exponent {fit.by_compute.exponent:.2f}"
    axes.plot(grid, [fit.by_compute.loss(x) for x in grid], "--", color=COLORS[0], linewidth=1, label=name)
    optimal = [fit.whole.loss(n := fit.whole.optimal_size(x), x / (6 * n)) for x in grid]
    axes.plot(grid, optimal, color=INK, linewidth=1, label="law of N and D, at the optimal N")


def _draw_predicted(axes: Axes, results: _Results) -> None:
    every = [run.loss for run in (*results.runs, *results.larger)]
    ends = [0.96 * min(every), 1.03 * max(every)]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    fitted = [results.fit.whole.loss(run.parameters, run.characters) for run in results.runs]
    axes.plot([run.loss for run in results.runs], fitted, "o", color=COLORS[0], markersize=4.5, label="fitted runs")
    predictions = zip(*map(results.predict, results.larger), strict=True)
    for estimates, color, name in zip(predictions, (_LARGER, COLORS[2]), ("N and D", "compute"), strict=True):
        plot_errorbars(
            axes, [run.loss for run in results.larger], estimates, fmt="*", color=color, markersize=9, elinewidth=1,
            capsize=3, label=f"larger model, by {name}",
        )  # fmt: skip
    title = "Predicted against measured; bars: 95 % intervals"
    label_axes(axes, title, "measured loss, nats", "predicted loss, nats", legend="upper left")
