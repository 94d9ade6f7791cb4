"""Bidirectional and causal encoders at one budget, on tasks with and without context to the right.

Devlin et al., "BERT" (2018), section 1: why tagging and questions need both directions. https://arxiv.org/abs/1810.04805
Schuster & Paliwal, "Bidirectional Recurrent Neural Networks" (1997).

Each encoder reads a sequence of random tokens and predicts a token at every position:

    token to the left      the target is the token some positions before: the context is to the left
    token to the right     the target is the token some positions after: a causal encoder cannot see it

and one label for each sequence, from the vector of its last position or from the mean of all:

    majority               of two kinds of tokens, the more frequent one: the last position sees all of them

A causal encoder has chance accuracy on the second task, whatever its size. The encoders are those of the families of
this package with as nearly as possible the same number of parameters: a bidirectional LSTM has two directions of half
the width. All are trained on the same batches for the same number of steps.

Dimensions: `batch` sequences of `time` positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from torch import Tensor, nn

from regard.evaluation.intervals import Interval, clopper_pearson
from regard.lab.direction import DIRECTION
from regard.lab.drawing import COLORS, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.exercises import TokenBatch, draw_delayed_copy, train_on_batches
from regard.lab.study import Study, StudyTable
from regard.logging import log_info
from regard.models.recurrent import Recurrent, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.losses import IGNORED


@dataclass(frozen=True, kw_only=True)
class DirectionSizes:
    """The models and their training; the defaults are those of a quick run."""

    model_dim: int = 32
    num_layers: int = 2
    num_heads: int = 2
    length: int = 15
    """Odd, so that one of two kinds of tokens is more frequent."""
    num_symbols: int = 8
    distance: int = 2
    """Positions from a token to its target."""
    steps: int = 250
    batch_size: int = 32
    learning_rate: float = 3e-3
    num_test_rows: int = 200
    num_seeds: int = 2


_FULL = DirectionSizes(model_dim=64, length=31, steps=1_000, num_test_rows=1_000, num_seeds=3)


def draw_left_token(num_rows: int, sizes: DirectionSizes) -> TokenBatch:
    """Random tokens; the target at each position is the token `distance` positions before it."""
    return draw_delayed_copy(num_rows, sizes.length, distance=sizes.distance, vocab_size=sizes.num_symbols)


def draw_right_token(num_rows: int, sizes: DirectionSizes) -> TokenBatch:
    """Random tokens; the target at each position is the token `distance` positions after it."""
    tokens = torch.randint(sizes.num_symbols, (num_rows, sizes.length))
    targets = tokens.roll(-sizes.distance, dims=1)
    targets[:, -sizes.distance :] = IGNORED
    return TokenBatch(tokens, targets)


def draw_majority(num_rows: int, sizes: DirectionSizes) -> TokenBatch:
    """Random tokens; the target at the last position is whether most of them are of the first half of all tokens."""
    tokens = torch.randint(sizes.num_symbols, (num_rows, sizes.length))
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -1] = (2 * (tokens < sizes.num_symbols // 2).sum(dim=1) > sizes.length).long()
    return TokenBatch(tokens, targets)


READING_TASKS: dict[str, Callable[[int, DirectionSizes], TokenBatch]] = {
    "token to the left": draw_left_token,
    "token to the right": draw_right_token,
    "majority": draw_majority,
}


class PositionPredictor(nn.Module):
    """Logits of a token at each position, from an encoder or from a decoder-only model, which reads causally."""

    def __init__(self, body: Recurrent | Transformer, num_symbols: int) -> None:
        super().__init__()
        self.body = body
        self.output = nn.Linear(body.config.model_dim, num_symbols)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocab"]:
        is_causal = self.body.config.decoder_depth > 0
        hidden = self.body.hidden_states(tokens) if is_causal else self.body.encode(tokens).hidden_states
        return self.output(hidden)


def build_encoders(sizes: DirectionSizes) -> dict[str, Callable[[], PositionPredictor]]:
    """The encoders by name: a Transformer and an LSTM, each in both directions and in one."""
    shared = {"model_dim": sizes.model_dim, "dropout": 0.0}
    attention = {**shared, "num_heads": sizes.num_heads, "feedforward_dim": 2 * sizes.model_dim, "block": "pre-norm",
                 "positions": "relative"}  # fmt: skip
    encoder = {"encoder_layers": sizes.num_layers, "decoder_layers": 0}
    decoder = {"encoder_layers": 0, "decoder_layers": sizes.num_layers}

    def transformer(values: dict) -> PositionPredictor:
        return PositionPredictor(Transformer(TransformerConfig.read(values), sizes.num_symbols), sizes.num_symbols)

    def lstm(values: dict) -> PositionPredictor:
        return PositionPredictor(Recurrent(RecurrentConfig.read(values), sizes.num_symbols), sizes.num_symbols)

    recurrent = {**shared, "cell": "lstm", "attention": "none"}
    return {
        "Transformer, bidirectional": partial(transformer, {**attention, **encoder}),
        "Transformer, causal": partial(transformer, {**attention, **decoder}),
        "LSTM, bidirectional": partial(lstm, {**recurrent, **encoder, "bidirectional": True}),
        "LSTM, causal": partial(lstm, {**recurrent, **decoder, "bidirectional": False}),
    }


@torch.no_grad()
def count_correct(model: nn.Module, batch: TokenBatch) -> tuple[int, int]:
    """The number of targets that are predicted, and of all targets."""
    is_target = batch.targets != IGNORED
    correct = (model(batch.inputs).argmax(dim=-1) == batch.targets) & is_target
    return int(correct.sum()), int(is_target.sum())


def influence(model: PositionPredictor, length: int) -> Float[Tensor, "output input"]:
    """Whether the logits at each position depend on the token at each position: 1 where the gradient is not 0."""
    tokens = torch.arange(length)[None] % model.output.out_features
    table = next(module for module in model.body.modules() if isinstance(module, nn.Embedding))
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: object, embedded: Tensor) -> None:
        embedded.retain_grad()
        seen.append(embedded)

    handle = table.register_forward_hook(keep)
    logits = model(tokens)
    handle.remove()
    rows = [torch.autograd.grad(logits[0, place].sum(), seen[0], retain_graph=True)[0][0] for place in range(length)]
    return torch.stack([(row.abs().sum(dim=-1) > 0).to(logits.dtype) for row in rows])


def study_direction(*, quick: bool = False, seed: int = 0, sizes: DirectionSizes | None = None) -> Study:
    """Train each encoder on each task with the same batches, and compare accuracies on other sequences."""
    sizes = sizes or (DirectionSizes() if quick else _FULL)
    found: dict[str, dict[str, Interval]] = {}
    numbers: dict[str, int] = {}
    for name, build in build_encoders(sizes).items():
        found[name] = {}
        for task, draw in READING_TASKS.items():
            counts = [_train(build, draw, sizes, seed=seed + number) for number in range(sizes.num_seeds)]
            correct, total = (sum(each) for each in zip(*counts, strict=True))
            found[name][task] = (correct / total, *clopper_pearson(correct, total))
            log_info(f"{name}, {task}: accuracy {correct / total:.3f}")
        numbers[name] = sum(parameter.numel() for parameter in build().parameters())
    figure, axes = make_panels(1, 4, height=3.1)
    _draw_accuracies(axes[0], found, sizes)
    for panel, (name, build) in zip(axes[1:], build_encoders(sizes).items(), strict=True):
        torch.manual_seed(seed)
        panel.imshow(influence(build(), 9).numpy(), cmap="Blues", vmin=0, vmax=1.4)
        panel.set_xticks(range(0, 9, 2))
        label_axes(panel, name, "input position", "output position", has_grid=False)
    section = _findings(found, sizes), [_table(found, numbers, sizes)]
    return DIRECTION.result(sizes, [section], figure)


def _train(
    build: Callable[[], PositionPredictor], draw: Callable[[int, DirectionSizes], TokenBatch], sizes: DirectionSizes,
    *, seed: int,
) -> tuple[int, int]:  # fmt: skip
    torch.manual_seed(seed)
    model = build()
    # The same batches for every encoder, whose weights are drawn from as many random numbers as they have.
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate)
    train_on_batches(model, lambda: draw(sizes.batch_size, sizes), optimizer, steps=sizes.steps, clip_norm=1.0)
    torch.manual_seed(seed + 1_000_003)
    return count_correct(model.eval(), draw(sizes.num_test_rows, sizes))


def _chances(sizes: DirectionSizes) -> list[float]:
    return [1 / sizes.num_symbols, 1 / sizes.num_symbols, 0.5]


def _findings(found: dict[str, dict[str, Interval]], sizes: DirectionSizes) -> list[str]:
    chances = dict(zip(READING_TASKS, _chances(sizes), strict=True))
    findings = []
    for task in READING_TASKS:
        parts = [f"{name} {found[name][task][0]:.3f}" for name in found]
        at_chance = [name for name in found if found[name][task][1] <= chances[task] <= found[name][task][2]]
        findings.append(
            f"{task[0].upper()}{task[1:]}: accuracy {', '.join(parts)}; at chance ({chances[task]:.3g}), within the "
            f"95 % interval: {', '.join(at_chance) or 'none'}."
        )
    return findings


def _table(found: dict[str, dict[str, Interval]], numbers: dict[str, int], sizes: DirectionSizes) -> StudyTable:
    rows = [[name, numbers[name], *found[name].values()] for name in found]
    note = (
        f"Accuracy after {sizes.steps} steps of {sizes.batch_size} sequences of {sizes.length} tokens, "
        f"{sizes.num_seeds} seeds; targets {sizes.distance} positions away; in brackets 95 % intervals."
    )
    return StudyTable("accuracy by reading direction", ["encoder", "parameters", *READING_TASKS], rows, note)


def _draw_accuracies(axes: Axes, found: dict[str, dict[str, Interval]], sizes: DirectionSizes) -> None:
    places = range(len(READING_TASKS))
    for number, (name, scores) in enumerate(found.items()):
        shifted = [place + 0.12 * (number - 1.5) for place in places]
        plot_errorbars(axes, shifted, list(scores.values()), fmt="osD^"[number], color=COLORS[number], label=name)
    for place, chance in zip(places, _chances(sizes), strict=True):
        axes.plot([place - 0.35, place + 0.35], [chance] * 2, color=MUTED, linewidth=1, linestyle=":")
    axes.set_xticks(places, labels=[*READING_TASKS])
    axes.set_ylim(0, 1.08)
    label_axes(axes, "Accuracy; dotted: chance", "", "accuracy", legend="center left", bbox_to_anchor=(1.0, 0.5))
