"""Kinds of self-attention beside each other: time, memory, perplexity and retrieval.

Beltagy et al., "Longformer" (2020), figure 1: time and memory against the length. https://arxiv.org/abs/2004.05150
Mohtashami & Jaggi, "Landmark Attention" (2023): retrieval of a passkey. https://arxiv.org/abs/2305.16300

Each kind trains the same decoder, from the same seed, on the same batches. The cost of
a training step is that of its forward and backward pass on one sequence: the seconds,
and the bytes of the tensors that are stored for the backward pass. Low-rank attention
cannot be causal; its cost is that of an encoder of the same size.

The passkey is one token of a class of its own among others, at some distance from the
end, where it has to be predicted. A window of w positions in each of n layers reaches
n (w - 1) positions back.

Dimensions: `batch` sequences of `time` positions.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from torch import Tensor

from regard.data.formats.files import check_file, iter_blocks
from regard.errors import DataError
from regard.evaluation.intervals import Interval, clopper_pearson, mean_interval
from regard.lab.context import CONTEXT
from regard.lab.drawing import COLORS, MUTED, add_figure_legend, label_axes, make_panels, plot_errorbars
from regard.lab.exercises import TokenBatch, count_correct_ends, train_on_batches
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.losses import IGNORED

_BYTES = 256
_BLOCK = 1 << 16
_NAMES = ("anna", "boris", "carla", "david", "emil")
_COLORS = ("red", "blue", "green", "white", "black", "gray")


@dataclass(frozen=True, kw_only=True)
class ContextSizes:
    """The models, the lengths, and how long they are trained; the defaults are those of a quick run."""

    num_layers: int = 2
    model_dim: int = 32
    num_heads: int = 2
    window: int = 32
    """The window of window and strided attention, and the stride."""
    lengths: tuple[int, ...] = (256, 512, 1_024, 2_048)
    """Lengths of the sequences whose cost is measured."""
    repeats: int = 3
    """Measurements of each time, of which the median is reported."""
    text_length: int = 256
    """Positions of a window of text."""
    text_steps: int = 150
    text_batch: int = 4
    num_windows: int = 60
    """Held-out windows of text."""
    passkey_length: int = 128
    passkey_steps: int = 150
    passkey_batch: int = 16
    num_sequences: int = 60
    """Test sequences for each distance of the passkey."""
    num_passkeys: int = 8
    learning_rate: float = 6e-3
    num_seeds: int = 1

    @property
    def reach(self) -> int:
        """Positions that windows in all layers together reach back."""
        return self.num_layers * (self.window - 1)

    @property
    def distances(self) -> list[int]:
        """Distances of the passkey from the last position: near, within the reach of the windows, and beyond it."""
        found = {self.window // 2, self.reach - 1, self.reach + self.window // 2, self.passkey_length - 2}
        return sorted(each for each in found if 0 < each < self.passkey_length)


_FULL = ContextSizes(
    model_dim=64, lengths=(512, 1_024, 2_048, 4_096, 8_192), repeats=5, learning_rate=3e-3,
    text_length=512, text_steps=600, num_windows=200,
    passkey_steps=500, num_sequences=300, num_seeds=3,
)  # fmt: skip

_Values = Mapping[str, Any]


def kinds_of_attention(sizes: ContextSizes) -> dict[str, dict[str, Any]]:
    """The settings of each kind that can be causal, by name."""
    window = {"window": sizes.window}
    return {
        "full": {},
        "window": {"attention": "window", **window},
        "window + full": {"attention": ["window", "full"], **window},
        "strided": {"attention": "strided", **window},
        "linear": {"attention": "linear"},
    }


def study_context(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: ContextSizes | None = None
) -> Study:
    """Measure the cost of each kind at each length, its perplexity on text, and which passkeys it retrieves."""
    sizes = sizes or (ContextSizes() if quick else _FULL)
    text = synthetic_text(40 * sizes.num_windows * sizes.text_length, seed=seed) if data is None else read_text(data)
    needed = (2 * sizes.num_windows + 2) * sizes.text_length
    if len(text) < needed:
        raise DataError(f"{data} must have at least {needed:,} bytes for this study, got {len(text):,}")
    figure, axes = make_panels(3, 3)
    sections = [
        _compare_costs(axes[:4], sizes, seed),
        _compare_perplexities(axes[4], text, sizes, seed),
        _compare_passkeys(axes[5], sizes, seed),
    ]
    add_figure_legend(figure, axes[0], "outside lower center")
    return CONTEXT.result(sizes, sections, figure)


def make_decoder(values: _Values, vocab_size: int, sizes: ContextSizes, *, seed: int) -> Transformer:
    """A decoder with this kind of attention; the settings of low-rank attention make it an encoder."""
    torch.manual_seed(seed)
    stacks = {"encoder_layers": 0, "decoder_layers": sizes.num_layers}
    return Transformer(TransformerConfig.read({
        **stacks, "model_dim": sizes.model_dim, "num_heads": sizes.num_heads, "feedforward_dim": 2 * sizes.model_dim,
        "block": "pre-norm", "dropout": 0.0, "positions": "rotary", **values,
    }), vocab_size)  # fmt: skip


class Cost(NamedTuple):
    """What one training step and one step of decoding take."""

    seconds: float
    stored: int
    """Bytes that are stored for the backward pass."""
    decoding_seconds: float | None = None
    state: int | None = None
    """Bytes that decoding stores of the positions so far."""


def measure_cost(values: _Values, length: int, sizes: ContextSizes, *, seed: int) -> Cost:
    """The cost of a training step on one sequence, and of a decoding step after it."""
    model = make_decoder(values, _BYTES, sizes, seed=seed)
    tokens = torch.randint(_BYTES, (1, length))
    is_encoder = model.config.decoder_depth == 0

    def step() -> None:
        hidden = model.encode(tokens).hidden_states if is_encoder else model.hidden_states(tokens)
        hidden.square().mean().backward()

    stored: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        step()
    num_bytes = sum(size for address, size in stored.items() if address not in parameters)
    seconds = _median_seconds(step, sizes.repeats)
    if is_encoder:
        return Cost(seconds, num_bytes)
    fast = model.eval().for_inference()
    with torch.inference_mode():
        state = fast.static_state(1, length)
        token = tokens[:, :1]

        def decode() -> None:
            state.lengths.fill_(length - 1)
            fast.step(token, state)

        decoding = _median_seconds(decode, 3 * sizes.repeats)
    return Cost(seconds, num_bytes, decoding, state.num_bytes)


def _median_seconds(function: Callable[[], None], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def growth_exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The power of the length with which the values grow over the last two lengths."""
    return math.log(values[-1] / values[-2]) / math.log(lengths[-1] / lengths[-2])


def _compare_costs(axes: Sequence[Axes], sizes: ContextSizes, seed: int) -> StudySection:
    """Panels: seconds and bytes of a training step, seconds and bytes of decoding."""
    rank = {"encoder_layers": sizes.num_layers, "decoder_layers": 0, "context_length": max(sizes.lengths)}
    kinds = {**kinds_of_attention(sizes), "low-rank (encoder)": {"attention": "low-rank", **rank}}
    costs = {
        name: [measure_cost(values, length, sizes, seed=seed) for length in sizes.lengths]
        for name, values in kinds.items()
    }
    rows = [
        [name, length, *cost]
        for name, found in costs.items()
        for length, cost in zip(sizes.lengths, found, strict=True)
    ]
    for panel, title, y, column in zip(
        axes,
        ("Training step", "Stored for the backward pass", "Decoding a token", "Cache"),
        ("seconds", "bytes", "seconds", "bytes"),
        range(4),
        strict=True,
    ):
        for (name, found), color in zip(costs.items(), COLORS, strict=False):
            if found[0][column] is not None:
                values = [float(cost[column] or 0.0) for cost in found]
                panel.plot(sizes.lengths, values, "o-", color=color, label=name, markersize=3)
        label_axes(panel, title, "length", y, log="xy")
        panel.set_xticks(sizes.lengths, [f"{length:,}" for length in sizes.lengths])
        panel.set_xticks([], minor=True)
    longest, full = max(sizes.lengths), costs["full"]
    findings = [
        f"At {longest:,} positions a training step with {name} attention takes "
        f"{found[-1].seconds / full[-1].seconds:.2f} of the time of full attention and stores "
        f"{found[-1].stored / full[-1].stored:.2f} of its bytes; over the last doubling its time grows with the length "
        f"to the power of {growth_exponent(sizes.lengths, [cost.seconds for cost in found]):.2f} (full: "
        f"{growth_exponent(sizes.lengths, [cost.seconds for cost in full]):.2f})."
        for name, found in costs.items()
        if name != "full" and "low-rank" not in name
    ]
    constant = [name for name, found in costs.items() if found[0].state and found[0].state == found[-1].state]
    findings.append(
        f"The cache does not grow from {min(sizes.lengths):,} to {longest:,} positions with "
        f"{', '.join(constant) or 'no kind'}; with full attention it grows from "
        f"{full[0].state:,} to {full[-1].state:,} bytes."
    )
    columns = ["attention", "length", "step s", "stored bytes", "decoding s", "cache bytes"]
    note = (
        f"{sizes.num_layers} layers of width {sizes.model_dim}, window {sizes.window}; one sequence, one CPU thread, "
        f"median of {sizes.repeats}."
    )
    return findings, [StudyTable("cost against length", columns, rows, note)]


def read_text(path: str) -> Int[Tensor, " time"]:
    """The bytes of a text file as tokens."""
    return _tokens("".join(iter_blocks(check_file(path), block_length=_BLOCK)))


def synthetic_text(num_tokens: int, *, seed: int) -> Int[Tensor, " time"]:
    """Sentences on colors; in each document of a dozen of them, a name has the same color whenever it occurs."""
    rng, text = np.random.default_rng(seed), ""
    while len(text) < num_tokens:
        colors = rng.integers(len(_COLORS), size=len(_NAMES))
        for name in rng.integers(len(_NAMES), size=12):
            text += f"{_NAMES[name]} has a {_COLORS[colors[name]]} hat. "
    return _tokens(text[:num_tokens])


def _tokens(text: str) -> Int[Tensor, " time"]:
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


def held_out_losses(
    values: _Values, text: Int[Tensor, " time"], sizes: ContextSizes, *, seed: int
) -> Float[Tensor, " windows"]:
    """Train on the first part of a text, and return the mean loss of each window of its end, in nats."""
    model = make_decoder(values, _BYTES, sizes, seed=seed)
    length = sizes.text_length
    train, held_out = text[: -sizes.num_windows * length - 1], text[-sizes.num_windows * length - 1 :]
    generator = torch.Generator().manual_seed(seed)

    def draw() -> TokenBatch:
        starts = torch.randint(len(train) - length, (sizes.text_batch, 1), generator=generator)
        window = train[starts + torch.arange(length + 1)]
        return TokenBatch(window[:, :-1], window[:, 1:])

    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate)
    train_on_batches(model, draw, optimizer, steps=sizes.text_steps, clip_norm=1.0)
    inputs, targets = held_out[:-1].view(-1, length), held_out[1:].view(-1, length)
    with torch.inference_mode():
        logits = torch.cat([model.eval()(rows) for rows in inputs.split(sizes.text_batch)])
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(dim=1)


def _compare_perplexities(axes: Axes, text: Tensor, sizes: ContextSizes, seed: int) -> StudySection:
    kinds, losses = kinds_of_attention(sizes), {}
    for name, values in kinds.items():
        runs = [held_out_losses(values, text, sizes, seed=seed + number) for number in range(sizes.num_seeds)]
        losses[name] = torch.stack(runs).mean(dim=0)
        log_info(f"{name}: perplexity {losses[name].mean().exp():.3f}")
    found: dict[str, Interval] = {}
    rows, findings = [], []
    for number, (name, values) in enumerate(losses.items()):
        middle, low, high = mean_interval(values.tolist())
        found[name] = (math.exp(middle), math.exp(low), math.exp(high))
        differences = None if name == "full" else mean_interval((values - losses["full"]).tolist())
        rows.append([name, found[name], differences])
        plot_errorbars(axes, [number], [found[name]], color=COLORS[number], marker="o", markersize=4)
        if differences is not None:
            middle, low, high = differences
            verdict = "no different from" if low <= 0 <= high else "worse than" if low > 0 else "better than"
            findings.append(
                f"On the text {name} attention is {verdict} full attention after {sizes.text_steps} steps "
                f"(seeds: {sizes.num_seeds}): perplexity "
                f"{found[name][0]:.3f} against {found['full'][0]:.3f}, difference of the losses {middle:+.4f} "
                f"[{low:+.4f}, {high:+.4f}] nats."
            )
    axes.set_xticks(range(len(rows)), labels=[*losses], rotation=25, fontsize=7.5)
    label_axes(axes, f"Perplexity after {sizes.text_steps} steps", "", "perplexity of a byte")
    note = (
        f"Windows of {sizes.text_length} bytes, {sizes.text_steps} steps of {sizes.text_batch}, "
        f"{sizes.num_seeds} seed(s), {sizes.num_windows} held-out windows; in brackets 95 % "
        "intervals over the windows, of the difference paired."
    )
    columns = ["attention", "perplexity", "loss minus that of full"]
    return findings, [StudyTable("perplexity at an equal budget", columns, rows, note)]


def draw_passkeys(num_rows: int, length: int, *, num_passkeys: int, distance: int | None = None) -> TokenBatch:
    """Random tokens, one of them a passkey at a random or given distance from the end; it is the target ever after."""
    tokens = torch.randint(num_passkeys, 2 * num_passkeys, (num_rows, length))
    distances = torch.randint(1, length, (num_rows,)) if distance is None else torch.full((num_rows,), distance)
    places = (length - 1 - distances)[:, None]
    keys = torch.randint(num_passkeys, (num_rows, 1))
    targets = torch.where(torch.arange(length) > places, keys, IGNORED)
    return TokenBatch(tokens.scatter(1, places, keys), targets)


def count_passkeys(values: _Values, sizes: ContextSizes, *, seed: int) -> list[int]:
    """Train on passkeys at all distances; returns the number retrieved at each tested distance."""
    model = make_decoder(values, 2 * sizes.num_passkeys, sizes, seed=seed)
    draw = partial(draw_passkeys, length=sizes.passkey_length, num_passkeys=sizes.num_passkeys)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate)
    train_on_batches(model, partial(draw, sizes.passkey_batch), optimizer, steps=sizes.passkey_steps, clip_norm=1.0)
    return [count_correct_ends(model.eval(), draw(sizes.num_sequences, distance=each)) for each in sizes.distances]


def _compare_passkeys(axes: Axes, sizes: ContextSizes, seed: int) -> StudySection:
    rows, total = [], sizes.num_seeds * sizes.num_sequences
    lost: dict[str, list[int]] = {}
    for number, (name, values) in enumerate(kinds_of_attention(sizes).items()):
        counts = [count_passkeys(values, sizes, seed=seed + run) for run in range(sizes.num_seeds)]
        sums = [sum(each) for each in zip(*counts, strict=True)]
        found: list[Interval] = [(count / total, *clopper_pearson(count, total)) for count in sums]
        rows.append([name, *found])
        lost[name] = [distance for distance, each in zip(sizes.distances, found, strict=True) if each[0] < 0.5]
        plot_errorbars(axes, sizes.distances, found, color=COLORS[number], marker="o", markersize=3, label=name)
    axes.axvline(sizes.reach, color=MUTED, linewidth=1, linestyle=":")
    axes.set_ylim(-0.03, 1.05)
    label_axes(axes, "Passkeys retrieved", "distance from the end (dotted: reach of windows)", "accuracy")
    findings = [
        f"Of passkeys {', '.join(map(str, sizes.distances))} positions back, more than half are retrieved "
        + "; ".join(
            f"by {name} attention {'at all distances' if not each else 'except at ' + ', '.join(map(str, each))}"
            for name, each in lost.items()
        )
        + f"; windows reach {sizes.reach} positions back, chance is {1 / sizes.num_passkeys:.3g}."
    ]
    note = (
        f"Trained at length {sizes.passkey_length} on passkeys at all distances, {sizes.passkey_steps} steps of "
        f"{sizes.passkey_batch}; {total} test sequences for each distance; in brackets 95 % intervals "
        "(Clopper and Pearson)."
    )
    columns = ["attention", *(f"{distance} back" for distance in sizes.distances)]
    return findings, [StudyTable("passkeys retrieved, by distance", columns, rows, note)]
