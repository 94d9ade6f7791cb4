"""Position encodings plotted, and tested on sequences longer than those in training.

Press et al., "Train Short, Test Long" (2022). https://arxiv.org/abs/2108.12409
Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in
Transformers" (2023). https://arxiv.org/abs/2305.19466

The task is delayed copy: predict, at each position of a random sequence, the
token a fixed distance back. The tokens carry no information on where to attend,
so the task can be solved by positions only, and in a longer sequence the target
is no further away. A model that solves it at one length and fails at another
fails because of its position encoding.

Each sequence is scored at its last position only, so that predictions are
independent and their Clopper-Pearson interval is exact.

Dimensions: see `regard.nn.attention`; `distance` from a query back to a key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn

from regard.evaluation.intervals import Interval, clopper_pearson
from regard.lab.drawing import (
    COLORS,
    INK,
    MUTED,
    add_figure_legend,
    label_axes,
    make_panels,
    plot_errorbars,
    plot_matrix,
)
from regard.lab.exercises import count_correct_ends, draw_delayed_copy, train_on_batches
from regard.lab.positions import POSITIONS
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.positions import PositionEncoding, Positions, Rotary, rotate

ENCODINGS: tuple[Positions, ...] = get_args(Positions)
_MULTIPLES = (1, 2, 4, 8)
"""Tested lengths, as multiples of the training length."""
_THRESHOLD = 0.95
"""The accuracy from which an encoding counts as having solved the task."""


@dataclass(frozen=True, kw_only=True)
class PositionSizes:
    """The models, and how long they are trained; the defaults are those of a quick run."""

    length: int = 24
    """The length in training; above the 16 distances that `shaw` distinguishes, so that all its vectors are trained."""
    distances: tuple[int, ...] = (1, 3)
    """How many positions back the target is."""
    vocab_size: int = 16
    num_layers: int = 2
    model_dim: int = 64
    num_heads: int = 4
    steps: int = 500
    batch_size: int = 16
    learning_rate: float = 5e-3
    num_seeds: int = 1
    num_sequences: int = 200
    """Test sequences of each length."""

    @property
    def lengths(self) -> list[int]:
        return [multiple * self.length for multiple in _MULTIPLES]


_FULL = PositionSizes(distances=(1, 3, 8), steps=1_000, batch_size=32, num_seeds=3, num_sequences=1_000)


def study_positions(*, quick: bool = False, seed: int = 0, sizes: PositionSizes | None = None) -> Study:
    """Train a small model with each encoding, test it on longer sequences, and plot the encodings."""
    sizes = sizes or (PositionSizes() if quick else _FULL)
    figure, axes = make_panels(3, 3, len(sizes.distances), height=3.0)
    trained: dict[str, nn.Module] = {}
    sections = [_test_lengths(*case, trained, sizes, seed) for case in zip(axes[6:], sizes.distances, strict=True)]
    add_figure_legend(figure, axes[6], "outside lower center")
    _draw_encodings(axes, trained, sizes)
    longest = max(sizes.lengths)
    # Of biases and vectors by distance, how many different ones there are up to the training length and in all.
    relative, shaw = (
        " of ".join(str(len(values(trained[encoding], length).unique(dim=0))) for length in (sizes.length, longest))
        for encoding, values in (("relative", lambda *of: bias_by_distance(*of).T), ("shaw", keys_by_distance))
    )
    finding = (
        f"Training at {sizes.length} reaches {relative} biases per head that relative uses up to {longest}, {shaw} "
        f"vectors of shaw, and {sizes.length} of {longest} vectors of learned."
    )
    return POSITIONS.result(sizes, [*sections, ([finding], [])], figure)


def train_encoding(encoding: Positions, distance: int, sizes: PositionSizes, *, seed: int) -> Transformer:
    """Train a decoder on the delayed-copy task."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=sizes.model_dim, num_heads=sizes.num_heads,
        feedforward_dim=2 * sizes.model_dim, block="pre-norm", dropout=0.0, positions=encoding,
        context_length=max(sizes.lengths),
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)
    draw = partial(draw_delayed_copy, sizes.batch_size, sizes.length, distance=distance, vocab_size=sizes.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    description = f"{encoding}, {distance} back"
    train_on_batches(model, draw, optimizer, steps=sizes.steps, clip_norm=1.0, description=description)
    return model


def count_correct_at(model: Transformer, length: int, distance: int, sizes: PositionSizes) -> int:
    """Number of test sequences of that length whose last prediction is correct."""
    batches, rest = divmod(sizes.num_sequences, 50)
    rows = [50] * batches + ([rest] if rest else [])
    draw = partial(draw_delayed_copy, length=length, distance=distance, vocab_size=sizes.vocab_size)
    return sum(count_correct_ends(model, draw(num_rows)) for num_rows in rows)


def position_vectors(module: nn.Module, num_positions: int) -> Float[Tensor, "time model"]:
    """The vectors that an encoding adds to the embeddings of the first positions."""
    embeddings = _encode(module, num_positions).embeddings
    assert embeddings is not None
    return embeddings


def rotary_scores(module: Rotary, num_distances: int) -> Float[Tensor, " distance"]:
    """The inner product of a vector of ones with itself rotated to each distance, over that at distance 0."""
    rotation = _encode(module, num_distances).rotation
    assert rotation is not None
    ones = torch.ones(1, 1, num_distances, module.head_dim)
    rotated = rotate(ones, rotation)[0, 0]
    return rotated @ rotated[0] / module.head_dim


def bias_by_distance(module: nn.Module, num_distances: int) -> Float[Tensor, "heads distance"]:
    """The bias that an encoding adds to the attention score of a key at each distance."""
    bias = _encode(module, num_distances).bias
    assert bias is not None
    return bias[:, -1].flip(-1)


def keys_by_distance(module: nn.Module, num_distances: int) -> Float[Tensor, "distance head"]:
    """The vector that is added to the key at each distance."""
    relative_keys = _encode(module, num_distances).relative_keys
    assert relative_keys is not None
    return relative_keys[-1].flip(0)


@torch.no_grad()
def _encode(module: nn.Module, num_positions: int) -> PositionEncoding:
    positions = torch.arange(num_positions)
    return module(positions, positions)


def accuracy_interval(counts: Sequence[int], num_sequences: int) -> Interval:
    """The mean accuracy, with its 95 % interval for one seed, and with the range over the seeds for several."""
    if len(counts) == 1:
        return counts[0] / num_sequences, *clopper_pearson(counts[0], num_sequences)
    shares = [count / num_sequences for count in counts]
    return sum(shares) / len(shares), min(shares), max(shares)


def _test_lengths(
    axes: Axes, distance: int, trained: dict[str, nn.Module], sizes: PositionSizes, seed: int
) -> StudySection:
    """Train each encoding on targets at one distance, and test it at each length; adds the modules to `trained`."""
    rows, solved, extrapolating = [], [], []
    for i, (encoding, color) in enumerate(zip(ENCODINGS, COLORS, strict=False)):
        counts = []
        for number in range(sizes.num_seeds):
            model = train_encoding(encoding, distance, sizes, seed=seed + number)
            counts.append([count_correct_at(model, length, distance, sizes) for length in sizes.lengths])
            if encoding != "none":
                trained[encoding] = model.get_submodule("decoder.positions")
        found = [accuracy_interval(each, sizes.num_sequences) for each in zip(*counts, strict=True)]
        log_info(f"{encoding}, {distance} back: accuracy {', '.join(f'{share:.2f}' for share, *_ in found)}")
        rows.append([encoding, *found])
        solved += [encoding] * (found[0][0] >= _THRESHOLD)
        extrapolating += [encoding] * (min(share for share, *_ in found) >= _THRESHOLD)
        # Shifted sideways, so that overlapping lines stay visible.
        places = [n * (1 + 0.02 * (i - len(ENCODINGS) / 2)) for n in sizes.lengths]
        plot_errorbars(
            axes, places, found, color=color, marker="os^D"[i % 4], markersize=4, linestyle=("-", "--")[i % 2],
            linewidth=1.4, elinewidth=0.8, label=encoding,
        )  # fmt: skip
    axes.axhline(1 / sizes.vocab_size, color=MUTED, linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes.lengths, labels=[str(n) for n in sizes.lengths])
    axes.set_ylim(-0.03, 1.05)
    label_axes(axes, f"Trained at {sizes.length}, target {distance} back", "length", "accuracy at the last position")
    interval = "95 % interval (Clopper and Pearson)" if sizes.num_seeds == 1 else f"range over {sizes.num_seeds} seeds"
    return [
        f"Target {distance} back: at the training length of {sizes.length} the accuracy is {_THRESHOLD:g} or more with "
        f"{', '.join(solved) or 'no encoding'}; of these it stays so up to {max(sizes.lengths)} with "
        f"{', '.join(extrapolating) or 'none'} (chance {1 / sizes.vocab_size:.3g})."
    ], [StudyTable(
        f"target {distance} back: accuracy by length",
        ["encoding", *(f"{n} ({times} x)" for n, times in zip(sizes.lengths, _MULTIPLES, strict=True))],
        rows,
        f"Trained at {sizes.length} only; {sizes.num_sequences} test sequences of each length"
        f"{' and seed' if sizes.num_seeds > 1 else ''}, scored at the last position; in brackets the {interval}.",
    )]  # fmt: skip


def _draw_encodings(axes: Sequence[Axes], trained: Mapping[str, nn.Module], sizes: PositionSizes) -> None:
    shown = 2 * sizes.length
    for panel, title, matrix, rows in (
        (axes[0], "sinusoidal: added vectors", position_vectors(trained["sinusoidal"], shown), "position"),
        (axes[1], "learned: added; dotted: training length", position_vectors(trained["learned"], shown), "position"),
        (axes[5], "shaw: added to keys, trained", keys_by_distance(trained["shaw"], shown), "distance"),
    ):
        plot_matrix(panel, matrix)
        label_axes(panel, title, "coordinate", rows, has_grid=False)
    axes[1].axhline(sizes.length - 0.5, color="black", linewidth=1.2, linestyle=":")
    for head_dim, color in zip((sizes.model_dim // sizes.num_heads, 128), COLORS, strict=False):
        scores = rotary_scores(Rotary(head_dim), max(sizes.lengths))
        axes[2].plot(scores, color=color, linewidth=1.2, label=f"head width {head_dim}")
    y = "inner product, relative"
    label_axes(axes[2], "rotary: a vector with itself, rotated", "distance", y, legend="upper right", fontsize=7.5)
    for panel, title, encoding, legend in (
        (axes[3], "relative: bias; dotted: training length", "relative", ""),
        (axes[4], "alibi: bias", "alibi", "lower left"),
    ):
        for head, (line, color) in enumerate(zip(bias_by_distance(trained[encoding], shown), COLORS, strict=False)):
            panel.plot(line, color=color, label=f"head {head}")
        label_axes(panel, title, "distance", "added to the score", legend=legend, fontsize=7.5)
    axes[3].axvline(sizes.length - 0.5, color=INK, linewidth=1.2, linestyle=":")
