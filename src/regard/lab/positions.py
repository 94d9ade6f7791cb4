"""Ways of telling positions apart: drawn, and tried on sequences longer than those trained on.

Press et al., "Train Short, Test Long" (2022). https://arxiv.org/abs/2108.12409
Kazemnejad et al., "The Impact of Positional Encoding on Length Generalization in
Transformers" (2023). https://arxiv.org/abs/2305.19466

The exercise is to name the token that stood some places back, at each position
of a random sequence. What the token is says nothing of where to look, so it
takes positions, and nothing else, to be right; and where a sequence is longer,
the answer stands no further away. A model that has learnt it at one length and
fails at another has therefore been failed by its positions.

Each sequence is judged at its last position alone: one answer a sequence, so
that answers are independent and their interval is exact.

Dimensions: see `regard.nn.attention`; `distance` from a query back to a key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import get_args

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from regard.evaluation.bootstrap import clopper_pearson
from regard.lab import STUDIES
from regard.lab.drawing import COLORS, INK, MUTED, label, legend, panels, show_matrix
from regard.lab.exercises import count_right, fit, look_back
from regard.lab.study import Cell, Study, Table
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.positions import Placement, Positions, Rotary, rotate

SCHEMES: tuple[Positions, ...] = get_args(Positions)
TIMES = (1, 2, 4, 8)
"""How many times the trained length is tested."""
HOLDS = 0.95
"""The share of right answers from which a scheme is said to hold."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The models, and how long they are trained."""

    length: int = 24
    """Of the sequences in training. Beyond the 16 distances that `shaw` tells apart, so that all its vectors learn."""
    distances: tuple[int, ...]
    """How many places back is asked for."""
    vocab_size: int = 16
    num_layers: int = 2
    model_dim: int = 64
    num_heads: int = 4
    steps: int
    batch_size: int
    learning_rate: float = 5e-3
    num_seeds: int
    num_sequences: int
    """Tested at each length."""

    @property
    def lengths(self) -> list[int]:
        return [times * self.length for times in TIMES]


QUICK = Sizes(distances=(1, 3), steps=500, batch_size=16, num_seeds=1, num_sequences=200)
FULL = Sizes(distances=(1, 3, 8), steps=1_000, batch_size=32, num_seeds=3, num_sequences=1_000)

Rights = Mapping[tuple[int, Positions], Sequence[Sequence[int]]]
"""How many sequences were answered rightly: by distance and scheme, seed by seed, length by length."""


def study(*, quick: bool, seed: int) -> Study:
    """Train a small model with each scheme, test it on longer sequences, and draw the schemes."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    rights: dict[tuple[int, Positions], list[list[int]]] = {}
    trained: dict[Positions, Transformer] = {}
    for distance in sizes.distances:
        for scheme in SCHEMES:
            for number in range(sizes.num_seeds):
                model = train(scheme, distance, sizes, seed=seed + number)
                counts = [count_at(model, length, distance, sizes) for length in sizes.lengths]
                rights.setdefault((distance, scheme), []).append(counts)
                trained[scheme] = model
                _tell(scheme, distance, counts, sizes)
    return Study(
        name="positions",
        title="Positions, and sequences longer than those trained on",
        claim=STUDIES["positions"],
        findings=[*_findings(rights, sizes), _untrained_finding(trained, sizes)],
        tables=[_table(rights, distance, sizes) for distance in sizes.distances],
        figure=_draw(trained, rights, sizes),
        settings=asdict(sizes),
    )


def train(scheme: Positions, distance: int, sizes: Sizes, *, seed: int) -> Transformer:
    """A decoder that has learnt to name the token `distance` places back, as well as it could."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=sizes.model_dim, num_heads=sizes.num_heads,
        feedforward_dim=2 * sizes.model_dim, block="pre-norm", dropout=0.0, positions=scheme,
        context_length=max(sizes.lengths),
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)
    draw = partial(look_back, sizes.batch_size, sizes.length, distance=distance, vocab_size=sizes.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.learning_rate)
    fit(model, draw, optimizer, steps=sizes.steps, clip_norm=1.0, what=f"{scheme}, {distance} back")
    return model


def count_at(model: Transformer, length: int, distance: int, sizes: Sizes) -> int:
    """Of the sequences of that length, how many are answered rightly at their end."""
    batches, rest = divmod(sizes.num_sequences, 50)
    rows = [50] * batches + ([rest] if rest else [])
    draw = partial(look_back, length=length, distance=distance, vocab_size=sizes.vocab_size)
    return sum(count_right(model, draw(num_rows)) for num_rows in rows)


def added_by(module: nn.Module, num_positions: int) -> Float[Tensor, "time model"]:
    """What a scheme adds to the embeddings of the first positions."""
    added = _place(module, num_positions).added
    assert added is not None
    return added


def rotary_scores(module: Rotary, num_distances: int) -> Float[Tensor, " distance"]:
    """The inner product of a vector of ones with itself, turned to each distance, over that at distance 0."""
    rotation = _place(module, num_distances).rotation
    assert rotation is not None
    ones = torch.ones(1, 1, num_distances, module.head_dim)
    turned = rotate(ones, rotation)[0, 0]
    return turned @ turned[0] / module.head_dim


def bias_by_distance(module: nn.Module, num_distances: int) -> Float[Tensor, "heads distance"]:
    """What a scheme adds to the score of a query with a key so many places back."""
    bias = _place(module, num_distances).bias
    assert bias is not None
    return bias[:, -1].flip(-1)


def keys_by_distance(module: nn.Module, num_distances: int) -> Float[Tensor, "distance head"]:
    """The vector that a query meets beside the key so many places back."""
    relative_keys = _place(module, num_distances).relative_keys
    assert relative_keys is not None
    return relative_keys[-1].flip(0)


@torch.no_grad()
def _place(module: nn.Module, num_positions: int) -> Placement:
    positions = torch.arange(num_positions)
    return module(positions, positions)


def _tell(scheme: Positions, distance: int, counts: Sequence[int], sizes: Sizes) -> None:
    shares = ", ".join(
        f"{count / sizes.num_sequences:.2f} at {n}" for count, n in zip(counts, sizes.lengths, strict=True)
    )
    log_info(f"{scheme}, {distance} back: right {shares}")


def accuracy(counts: Sequence[int], num_sequences: int) -> tuple[float, float, float]:
    """The share of right answers, and around it: for one seed its 95 % interval, for several their range."""
    if len(counts) == 1:
        return counts[0] / num_sequences, *clopper_pearson(counts[0], num_sequences)
    shares = [count / num_sequences for count in counts]
    return sum(shares) / len(shares), min(shares), max(shares)


def _accuracies(rights: Rights, distance: int, scheme: Positions, sizes: Sizes) -> list[tuple[float, float, float]]:
    return [accuracy(counts, sizes.num_sequences) for counts in zip(*rights[distance, scheme], strict=True)]


def _findings(rights: Rights, sizes: Sizes) -> list[str]:
    findings = []
    for distance in sizes.distances:
        shares = {scheme: [each[0] for each in _accuracies(rights, distance, scheme, sizes)] for scheme in SCHEMES}
        learnt = [scheme for scheme in SCHEMES if shares[scheme][0] >= HOLDS]
        failed = [f"{scheme} ({shares[scheme][0]:.2f})" for scheme in SCHEMES if scheme not in learnt]
        holding = [scheme for scheme in learnt if min(shares[scheme]) >= HOLDS]
        falling = [
            f"{scheme} ({', '.join(f'{share:.2f}' for share in shares[scheme][1:])})"
            for scheme in learnt
            if scheme not in holding
        ]
        findings += [
            f"{_places(distance)} back, at the trained length of {sizes.length}: right in {100 * HOLDS:.0f} % or more "
            f"with {_join(learnt)}; in fewer with {_join(failed)}.",
            f"{_places(distance)} back, at {_join([str(n) for n in sizes.lengths[1:]])}: of those that had learnt it, "
            f"still right in {100 * HOLDS:.0f} % or more at every length: {_join(holding)}; no longer: "
            f"{_join(falling)} (chance: {1 / sizes.vocab_size:.3g}).",
        ]
    return findings


def _untrained_finding(trained: Mapping[Positions, Transformer], sizes: Sizes) -> str:
    """What no training has touched, in the schemes that have something to train."""
    most = max(sizes.lengths)

    def kinds(scheme: Positions, num_distances: int) -> int:
        """How many distances a scheme tells apart."""
        module = _positions_of(trained[scheme])
        drawn = keys_by_distance if scheme == "shaw" else lambda *of: bias_by_distance(*of).T
        return len(drawn(module, num_distances).unique(dim=0))

    relative, shaw = (f"{kinds(scheme, sizes.length)} of the {kinds(scheme, most)}" for scheme in ("relative", "shaw"))
    return (
        f"Training at {sizes.length} reaches {relative} numbers a head by which relative tells distances up to {most} "
        f"apart, {shaw} vectors of shaw, and {sizes.length} of the {most} vectors of learned."
    )


def _places(distance: int) -> str:
    return "One place" if distance == 1 else f"{distance} places"


def _join(names: Sequence[str]) -> str:
    if len(names) < 2:
        return names[0] if names else "no scheme"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _table(rights: Rights, distance: int, sizes: Sizes) -> Table:
    rows: list[list[Cell]] = [[scheme, *_accuracies(rights, distance, scheme, sizes)] for scheme in SCHEMES]
    around = "95 % interval (Clopper and Pearson)" if sizes.num_seeds == 1 else f"range over {sizes.num_seeds} seeds"
    return Table(
        name=f"{_places(distance).lower()} back: share of sequences answered rightly, by length",
        columns=["positions", *(f"{n} ({times} x)" for n, times in zip(sizes.lengths, TIMES, strict=True))],
        rows=rows,
        note=f"Trained at {sizes.length} only; {sizes.num_sequences} fresh sequences of each length"
        f"{' and seed' if sizes.num_seeds > 1 else ''}, judged at their last position; in brackets the {around}.",
    )


def _draw(trained: Mapping[Positions, Transformer], rights: Rights, sizes: Sizes) -> Figure:
    figure, axes = panels(3, 3, len(sizes.distances), height=3.0)
    modules = {scheme: _positions_of(model) for scheme, model in trained.items() if scheme != "none"}
    shown = 2 * sizes.length
    _draw_vectors(axes[0], "sinusoidal: added to embeddings", added_by(modules["sinusoidal"], shown))
    _draw_vectors(axes[1], "learned: added; dotted, trained so far", added_by(modules["learned"], shown))
    axes[1].axhline(sizes.length - 0.5, color="black", linewidth=1.2, linestyle=":")
    _draw_rotary(axes[2], sizes)
    _draw_bias(axes[3], "relative: bias; dotted, trained so far", bias_by_distance(modules["relative"], shown))
    axes[3].axvline(sizes.length - 0.5, color=INK, linewidth=1.2, linestyle=":")
    _draw_bias(axes[4], "alibi: bias", bias_by_distance(modules["alibi"], shown))
    legend(axes[4], fontsize=7.5, loc="lower left")
    _draw_vectors(axes[5], "shaw: met by queries, trained", keys_by_distance(modules["shaw"], shown), "distance")
    for panel, distance in zip(axes[6:], sizes.distances, strict=True):
        _draw_accuracies(panel, rights, distance, sizes)
    lines, names = axes[6].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _positions_of(model: Transformer) -> nn.Module:
    return model.get_submodule("decoder.positions")


def _draw_vectors(axes: Axes, title: str, matrix: Tensor, rows: str = "position") -> None:
    show_matrix(axes, matrix)
    label(axes, title, "coordinate", rows, has_grid=False)


def _draw_rotary(axes: Axes, sizes: Sizes) -> None:
    for head_dim, color in zip((sizes.model_dim // sizes.num_heads, 128), (COLORS[0], COLORS[1]), strict=True):
        scores = rotary_scores(Rotary(head_dim), max(sizes.lengths))
        axes.plot(scores, color=color, linewidth=1.2, label=f"head {head_dim} wide")
    label(axes, "rotary: a vector with itself, turned", "distance", "inner product, relative")
    legend(axes, fontsize=7.5, loc="upper right")


def _draw_bias(axes: Axes, title: str, bias: Tensor) -> None:
    for head, (line, color) in enumerate(zip(bias, COLORS, strict=False)):
        axes.plot(line, color=color, label=f"head {head}")
    label(axes, title, "distance", "added to the score")


def _draw_accuracies(axes: Axes, rights: Rights, distance: int, sizes: Sizes) -> None:
    for i, (scheme, color) in enumerate(zip(SCHEMES, COLORS, strict=False)):
        middle, low, high = zip(*_accuracies(rights, distance, scheme, sizes), strict=True)
        # Side by side, so that lines that run together can be told apart.
        places = [n * (1 + 0.02 * (i - len(SCHEMES) / 2)) for n in sizes.lengths]
        around = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        style = {"color": color, "marker": "os^D"[i % 4], "markersize": 4, "linestyle": ("-", "--")[i % 2]}
        axes.errorbar(places, middle, yerr=around, linewidth=1.4, elinewidth=0.8, label=scheme, **style)
    axes.axhline(1 / sizes.vocab_size, color=MUTED, linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes.lengths, labels=[str(n) for n in sizes.lengths])
    axes.set_ylim(-0.03, 1.05)
    label(axes, f"Trained at {sizes.length}: {_places(distance).lower()} back", "length", "right at the end")
