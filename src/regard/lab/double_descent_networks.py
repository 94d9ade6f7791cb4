r"""Networks by their width and by their epochs: risks of models that are trained until they meet noisy labels.

Nakkiran et al., "Deep Double Descent: Where Bigger Models and More Data Hurt" (2019).
https://arxiv.org/abs/1912.02292

Perceptrons with one hidden layer learn the sign of one coordinate, as the random
features do. Transformers read a few symbols, half of which count for one label and
half for the other, and name the label of the majority. Both learn by squared error,
which asks every label to be met, and leaves no way to be ever more certain of it.

All models of one width are trained side by side, each by all of its rows at every
update, so that an update is an epoch.

Dimensions: `member` models trained side by side, `row` examples, `noise` shares of labels turned
round, `capacity` widths, `epoch` at which is measured, `draw` of data and of weights.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.lab.double_descent_features import draw_rows
from regard.lab.double_descent_shape import MEAN, Shape
from regard.logging import log_info, progress_bar
from regard.models.heads import Classifier, HeadConfig
from regard.models.transformer import TransformerConfig

NUM_HEADS = 2


@dataclass(frozen=True)
class Split:
    """For each member its own rows to learn, and fresh ones to be judged by."""

    inputs: Shaped[Tensor, "member row place"]
    labels: Shaped[Tensor, "member row"]
    fresh_inputs: Shaped[Tensor, "member fresh place"]
    fresh_labels: Shaped[Tensor, "member fresh"]


@dataclass(frozen=True)
class Course:
    """Risks of members as they learn."""

    trained: Float[Tensor, "member epoch"]
    """On the rows that are learnt, noise and all."""
    fresh: Float[Tensor, "member epoch"]


@dataclass(frozen=True)
class NetworkRisks:
    """What each width comes to, epoch by epoch."""

    name: str
    widths: Sequence[int]
    num_parameters: Sequence[int]
    epochs: Sequence[int]
    trained: Float[Tensor, "noise capacity epoch draw"]
    fresh: Float[Tensor, "noise capacity epoch draw"]

    def shapes(self) -> list[Shape]:
        """For each noise the curve over widths, at the end of training."""
        return [Shape(self.widths, risks[:, -1], MEAN) for risks in self.fresh]

    def courses(self, width: int) -> list[Shape]:
        """For each noise the curve over epochs, of one width."""
        place = self.widths.index(width)
        return [Shape(self.epochs, risks[place], MEAN) for risks in self.fresh]


def measure_perceptrons(
    widths: Sequence[int], noises: Sequence[float], *, num_rows: int, num_fresh: int, input_dim: int, epochs: int,
    learning_rate: float, seeds: Sequence[int],
) -> NetworkRisks:  # fmt: skip
    """One hidden layer of ReLUs, trained until its labels are met."""

    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(input_dim, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))

    split = perceptron_split(noises, num_rows=num_rows, num_fresh=num_fresh, input_dim=input_dim, seeds=seeds)
    return _measure("perceptrons", build, widths, split, epochs, learning_rate, seeds, len(noises))


def measure_transformers(
    widths: Sequence[int], noises: Sequence[float], *, num_rows: int, num_fresh: int, length: int, num_symbols: int,
    epochs: int, learning_rate: float, seeds: Sequence[int],
) -> NetworkRisks:  # fmt: skip
    """An encoder of one layer with a classifier of one output on it."""

    def build(width: int) -> nn.Module:
        config = TransformerConfig(
            encoder_layers=1, decoder_layers=0, model_dim=width, num_heads=NUM_HEADS, feedforward_dim=2 * width,
            block="pre-norm", dropout=0.0,
        )  # fmt: skip
        return nn.Sequential(Classifier(config, HeadConfig(dropout=0.0), num_symbols, 1), nn.Flatten(0))

    split = majority_split(
        noises, num_rows=num_rows, num_fresh=num_fresh, length=length, num_symbols=num_symbols, seeds=seeds
    )
    return _measure("Transformers", build, widths, split, epochs, learning_rate, seeds, len(noises))


def perceptron_split(
    noises: Sequence[float], *, num_rows: int, num_fresh: int, input_dim: int, seeds: Sequence[int]
) -> Split:
    """Signs of a coordinate, for each seed with each noise."""
    splits = []
    for seed in seeds:
        rng = torch.Generator().manual_seed(seed)
        rows, fresh = (draw_rows(count, input_dim, noises, rng=rng) for count in (num_rows, num_fresh))
        splits += [
            (rows.inputs, rows.labels[:, i], fresh.inputs, fresh.labels[:, i]) for i in range(len(noises))
        ]  # fmt: skip
    return Split(*(torch.stack(parts).to(torch.get_default_dtype()) for parts in zip(*splits, strict=True)))


def majority_split(
    noises: Sequence[float], *, num_rows: int, num_fresh: int, length: int, num_symbols: int, seeds: Sequence[int]
) -> Split:
    """Symbols of which the first half count for the label 1 and the others for -1, an odd number of them."""
    assert length % 2 == 1, "an even number of symbols has no majority"
    splits = []
    for seed in seeds:
        rng = torch.Generator().manual_seed(seed)
        symbols = torch.randint(num_symbols, (num_rows + num_fresh, length), generator=rng)
        truth = torch.where((symbols < num_symbols // 2).sum(dim=1) > length // 2, 1.0, -1.0)
        luck = torch.rand(len(symbols), generator=rng)
        for noise in noises:
            labels = torch.where(luck < noise, -truth, truth)
            splits.append((symbols[:num_rows], labels[:num_rows], symbols[num_rows:], labels[num_rows:]))
    return Split(*map(torch.stack, zip(*splits, strict=True)))


def train_together(
    models: Sequence[nn.Module], split: Split, *, measured: Sequence[int],
    learning_rate: float, what: str,
) -> Course:  # fmt: skip
    """Train every model on its own rows by Adam until the last of the epochs at which they are `measured`.

    The weights of all lie in one tensor each, so that a step of all costs little
    more than one of a small model. None knows of the others: the gradient of the
    sum of their losses holds for each that of its own.
    """
    weights, _ = stack_module_state(list(models))
    skeleton = copy.deepcopy(models[0])
    answer = vmap(lambda own, inputs: functional_call(skeleton, own, (inputs,)))
    optimizer = torch.optim.Adam(weights.values(), lr=learning_rate)
    last = measured[-1]
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_peak(step, last))
    trained, fresh = [], []
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be mapped over members
        for epoch in progress_bar(range(1, last + 1), what, total=last):
            optimizer.zero_grad()
            _squared_error(answer(weights, split.inputs), split.labels).sum().backward()
            optimizer.step()
            rate.step()
            if epoch in measured:
                with torch.no_grad():
                    trained.append(_squared_error(answer(weights, split.inputs), split.labels))
                    fresh.append(_squared_error(answer(weights, split.fresh_inputs), split.fresh_labels))
    return Course(torch.stack(trained, dim=1), torch.stack(fresh, dim=1))


def share_of_peak(step: int, steps: int) -> float:
    """How much of the learning rate a step has: rising over the first tenth of the steps, falling as a cosine to 0."""
    warmup = max(1, steps // 10)
    return min(1.0, (step + 1) / warmup) * (1 + math.cos(math.pi * step / steps)) / 2


def spaced(last: int, *, per_decade: int = 4) -> list[int]:
    """Whole numbers from 1 to `last`, evenly spread over their logarithm.

    Example:
        >>> spaced(100, per_decade=3)
        [1, 2, 5, 10, 22, 46, 100]
    """
    steps = math.ceil(per_decade * math.log10(last))
    return sorted({round(last ** (i / steps)) for i in range(steps + 1)}) if steps else [1]


def _squared_error(
    answers: Float[Tensor, "member row"], labels: Float[Tensor, "member row"]
) -> Float[Tensor, " member"]:
    return (answers - labels).square().mean(dim=1)


def _measure(
    name: str, build: Callable[[int], nn.Module], widths: Sequence[int], split: Split, epochs: int,
    learning_rate: float, seeds: Sequence[int], num_noises: int,
) -> NetworkRisks:  # fmt: skip
    """Train all widths, each with the same data and, of one seed, the same weights for every noise."""
    measured = spaced(epochs)
    courses, counts = [], []
    for width in widths:
        models = []
        for seed in seeds:
            torch.manual_seed(seed)
            first = build(width)
            models += [first, *(copy.deepcopy(first) for _ in range(num_noises - 1))]
        what = f"{name} {width} wide"
        course = train_together(models, split, measured=measured, learning_rate=learning_rate, what=what)
        counts.append(sum(weight.numel() for weight in models[0].parameters()))
        courses.append(course)
        log_info(f"{what}: squared error {float(course.trained[:, -1].mean()):.3f} on what they learnt, "
            f"{float(course.fresh[:, -1].mean()):.3f} on fresh rows")  # fmt: skip

    def arrange(parts: Sequence[Tensor]) -> Float[Tensor, "noise capacity epoch draw"]:
        return torch.stack(list(parts)).unflatten(1, (len(seeds), num_noises)).permute(2, 0, 3, 1)

    trained, fresh = (arrange([getattr(course, of) for course in courses]) for of in ("trained", "fresh"))
    return NetworkRisks(name, widths, counts, measured, trained, fresh)
