"""What a layer of each family costs against the length of its input, measured without a clock.

Vaswani et al., "Attention Is All You Need" (2017), table 1. https://arxiv.org/abs/1706.03762

Of n positions of width d, with kernels of k and windows of r positions, the table states:

    layer                      operations     sequential     longest path
    self-attention             n^2 d          1              1
    recurrent                  n d^2          n              n
    convolutional              k n d^2        1              n / k, and log_k n if dilated
    restricted self-attention  r n d          1              n / r

Measured are causal models of this package: the operations of the matrix products in a forward pass; the sequential
depth, the longest chain of operations of its autograd graph; and the path length between the last position and one
that is some positions back, the smallest number of layers, or of steps of a recurrent layer, for which the gradient
of the last output by that input is not 0. The number of parameters is that of a layer and its positions.

Dimensions: `batch` sequences of `time` positions of width `model`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.lab.context.kinds import growth_exponent
from regard.lab.drawing import COLORS, label_axes, make_panels
from regard.lab.efficiency import EFFICIENCY
from regard.lab.study import Study, StudyTable
from regard.models.convolutional import Convolutional, ConvolutionalConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.recurrent import RecurrentStack, unroll


@dataclass(frozen=True, kw_only=True)
class EfficiencySizes:
    """The layers and lengths; the defaults are those of a quick run."""

    model_dim: int = 64
    kernel_size: int = 3
    window: int = 4
    """Positions that restricted self-attention sees, the own one included."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    distances: tuple[int, ...] = (1, 2, 4, 8, 16)
    max_layers: int = 16


_FULL = EfficiencySizes(model_dim=128, lengths=(16, 32, 64, 128, 256, 512, 1_024), distances=(1, 2, 4, 8, 16, 32),
                        max_layers=32)  # fmt: skip


class UnrolledRecurrent(nn.Module):
    """A recurrent network computed step by step; gradients reach back `steps` steps from the last position."""

    def __init__(self, model_dim: int, num_layers: int) -> None:
        super().__init__()
        self.stack = RecurrentStack("lstm", model_dim, [model_dim] * num_layers)

    def forward(self, x: Float[Tensor, "batch time model"], steps: int | None = None) -> Tensor:
        if steps is None or steps >= x.size(1):
            return unroll(self.stack, x)[0]
        with torch.no_grad():
            _, state = unroll(self.stack, x[:, :-steps])
        return unroll(self.stack, x[:, -steps:], state)[0]


@dataclass(frozen=True)
class LayerFamily:
    """A kind of layer: its models, and what the table of Vaswani et al. states of it."""

    name: str
    build: Callable[[int], nn.Module]
    """Returns a causal model with so many layers, from vectors to vectors."""
    operations: str
    sequential: str
    path: str
    is_recurrent: bool = False


class VectorDecoder(nn.Module):
    """The layers of a decoder-only model, from vectors to vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.table = next(module for module in model.modules() if isinstance(module, nn.Embedding))

    def forward(self, x: Float[Tensor, "batch time model"]) -> Tensor:
        # The embeddings are replaced by the given vectors, so that gradients by each position can be computed.
        handle = self.table.register_forward_hook(lambda module, given, embedded: x)
        try:
            return self.model.hidden_states(torch.zeros(x.shape[:2], dtype=torch.long))
        finally:
            handle.remove()


def make_families(sizes: EfficiencySizes) -> list[LayerFamily]:
    """Self-attention, full and in windows, an LSTM, and convolutions."""

    def transformer(num_layers: int, **more: Any) -> nn.Module:
        return VectorDecoder(Transformer(TransformerConfig.read({
            "encoder_layers": 0, "decoder_layers": num_layers, "model_dim": sizes.model_dim, "num_heads": 2,
            "feedforward_dim": sizes.model_dim, "block": "pre-norm", "dropout": 0.0, "positions": "none", **more,
        }), 2))  # fmt: skip

    def convolutional(num_layers: int, growth: int = 1) -> nn.Module:
        return VectorDecoder(Convolutional(ConvolutionalConfig.read({
            "encoder_layers": 0, "decoder_layers": num_layers, "model_dim": sizes.model_dim, "dropout": 0.0,
            "kernel_size": sizes.kernel_size, "positions": "none", "dilation_growth": growth,
        }), 2))  # fmt: skip

    def recurrent(num_layers: int) -> nn.Module:
        return UnrolledRecurrent(sizes.model_dim, num_layers)

    return [
        LayerFamily("self-attention", transformer, "n² d", "1", "1"),
        LayerFamily("recurrent", recurrent, "n d²", "n", "n", is_recurrent=True),
        LayerFamily("convolutional", convolutional, "k n d²", "1", "n / k"),
        LayerFamily("convolutional, dilated", lambda n: convolutional(n, sizes.kernel_size), "k n d²", "1", "log_k n"),
        LayerFamily("self-attention, window", lambda n: transformer(n, attention="window", window=sizes.window),
                    "r n d", "1", "n / r"),
    ]  # fmt: skip


def count_operations(model: nn.Module, x: Float[Tensor, "batch time model"]) -> int:
    """Floating-point operations of the matrix products and convolutions in a forward pass."""
    # The plain implementation of attention: the counter does not count the fused kernel of a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    return counter.get_total_flops()


def sequential_depth(output: Tensor) -> int:
    """The number of operations on the longest chain of an autograd graph."""
    depths: dict[Any, int] = {}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack[-1]
        inputs = [following for following, _ in node.next_functions if following is not None]
        unknown = [each for each in inputs if each not in depths]
        if unknown:
            stack += unknown
            continue
        depths[node] = 1 + max((depths[each] for each in inputs), default=0)
        stack.pop()
    return depths[output.grad_fn]


def path_length(family: LayerFamily, distance: int, sizes: EfficiencySizes, *, seed: int = 0) -> int | None:
    """The fewest layers, or recurrent steps, by which the last position depends on one `distance` positions back.

    None if more than `max_layers` are needed.
    """
    x = torch.randn(1, distance + 1, sizes.model_dim, generator=torch.Generator().manual_seed(seed))
    for number in range(1, (distance + 1 if family.is_recurrent else sizes.max_layers) + 1):
        torch.manual_seed(seed)
        given = x.clone().requires_grad_()
        model = family.build(1 if family.is_recurrent else number)
        output = model(given, number) if family.is_recurrent else model(given)
        (gradient,) = torch.autograd.grad(output[0, -1].square().sum(), given)
        if float(gradient[0, 0].abs().sum()) > 0:
            return number
    return None


def count_parameters(length: int, sizes: EfficiencySizes) -> dict[str, int]:
    """Parameters of one layer for inputs of so many positions; a fully connected layer reads all of them at once."""
    shape = {"encoder_layers": 0, "decoder_layers": 1, "model_dim": sizes.model_dim, "num_heads": 2,
             "feedforward_dim": sizes.model_dim, "context_length": length}  # fmt: skip
    models: dict[str, nn.Module] = {
        "self-attention, sinusoidal positions": Transformer(TransformerConfig.read(shape), 2),
        "self-attention, learned positions": Transformer(TransformerConfig.read({**shape, "positions": "learned"}), 2),
        "recurrent": UnrolledRecurrent(sizes.model_dim, 1),
        "fully connected": nn.Linear(length * sizes.model_dim, length * sizes.model_dim, device="meta"),
    }
    return {name: sum(each.numel() for each in model.parameters()) for name, model in models.items()}


def study_efficiency(*, quick: bool = False, seed: int = 0, sizes: EfficiencySizes | None = None) -> Study:
    """Count operations, depths, path lengths and parameters, and compare their growth with the stated one."""
    sizes = sizes or (EfficiencySizes() if quick else _FULL)
    torch.manual_seed(seed)
    operations: dict[str, list[int]] = {}
    depths: dict[str, list[int]] = {}
    families = make_families(sizes)
    for family in families:
        model = family.build(1)
        inputs = [torch.randn(1, length, sizes.model_dim, requires_grad=True) for length in sizes.lengths]
        operations[family.name] = [count_operations(model, x) for x in inputs]
        depths[family.name] = [sequential_depth(model(x).sum()) for x in inputs]
    paths = {
        family.name: [path_length(family, distance, sizes, seed=seed) for distance in sizes.distances]
        for family in families
    }
    counts = [count_parameters(length, sizes) for length in sizes.lengths]
    parameters = {name: [each[name] for each in counts] for name in counts[0]}
    tables = _tables(families, operations, depths, paths, parameters, sizes)
    figure, axes = make_panels(2, 2, height=3.4)
    for panel, values, places, title, x, y in (
        (axes[0], operations, sizes.lengths, "Operations of a layer", "positions, n", "operations"),
        (axes[1], depths, sizes.lengths, "Sequential depth", "positions, n", "operations on the longest chain"),
        (axes[2], paths, sizes.distances, "Path length", "distance of two positions", "layers, or recurrent steps"),
        (axes[3], parameters, sizes.lengths, "Parameters", "positions, n", "parameters of a layer"),
    ):
        _draw(panel, values, places, title, x, y)
    return EFFICIENCY.result(sizes, [(_findings(operations, depths, paths, parameters, sizes), tables)], figure)


def _tables(
    families: Sequence[LayerFamily], operations: dict[str, list[int]], depths: dict[str, list[int]],
    paths: dict[str, list[int | None]], parameters: dict[str, list[int]], sizes: EfficiencySizes,
) -> list[StudyTable]:  # fmt: skip
    lengths = sizes.lengths
    rows = [
        [family.name, family.operations, growth_exponent(lengths, operations[family.name]), family.sequential,
         growth_exponent(lengths, depths[family.name]), family.path, *paths[family.name]]
        for family in families
    ]  # fmt: skip
    columns = ["layer", "operations, stated", "growth", "sequential, stated", "growth", "path, stated"]
    note = (
        f"Growth: the power of n over the last doubling, to {max(lengths)} positions; width {sizes.model_dim}, kernel "
        f"{sizes.kernel_size}, window {sizes.window}. Paths: fewest layers, or recurrent steps, at a distance."
    )
    counted = [[name, *values, growth_exponent(lengths, values)] for name, values in parameters.items()]
    return [
        StudyTable("stated and measured", [*columns, *(f"path of {each}" for each in sizes.distances)], rows, note),
        StudyTable("parameters", ["layer", *(f"{length} positions" for length in lengths), "growth"], counted),
        StudyTable("operations", ["layer", *(f"{length} positions" for length in lengths)],
                   [[name, *values] for name, values in operations.items()]),
        StudyTable("sequential depth", ["layer", *(f"{length} positions" for length in lengths)],
                   [[name, *values] for name, values in depths.items()]),
    ]  # fmt: skip


def _findings(
    operations: dict[str, list[int]], depths: dict[str, list[int]], paths: dict[str, list[int | None]],
    parameters: dict[str, list[int]], sizes: EfficiencySizes,
) -> list[str]:  # fmt: skip
    first, last = min(sizes.lengths), max(sizes.lengths)
    cheaper = [n for n, one, other in zip(sizes.lengths, operations["self-attention"], operations["recurrent"],
                                          strict=True) if one < other]  # fmt: skip
    constant = [name for name, values in depths.items() if values[-2] == values[-1]]
    far, farthest = paths["convolutional"][-1], max(sizes.distances)
    return [
        f"From {first} to {last} positions the longest chain of operations of a recurrent layer grows from "
        f"{depths['recurrent'][0]:,} to {depths['recurrent'][-1]:,}; it does not grow over the last doubling with "
        f"{'; '.join(constant) or 'no other layer'}.",
        "Over the last doubling the operations grow as n to the power "
        + ", ".join(f"{growth_exponent(sizes.lengths, each):.2f} ({name})" for name, each in operations.items())
        + f"; self-attention takes fewer than an LSTM of the same width {sizes.model_dim} up to "
        f"{max(cheaper, default=0)} positions.",
        f"Two positions {farthest} apart are connected by {paths['self-attention'][-1]} layer of self-attention, "
        f"{paths['recurrent'][-1]} recurrent steps, {far if far is not None else f'more than {sizes.max_layers}'} "
        f"layers of convolution, {paths['convolutional, dilated'][-1]} dilated ones, and "
        f"{paths['self-attention, window'][-1] or f'more than {sizes.max_layers}'} with windows of {sizes.window}.",
        f"From {first} to {last} positions the parameters of a layer grow by "
        + ", ".join(f"{values[-1] / values[0]:.4g} ({name})" for name, values in parameters.items())
        + " times.",
    ]


def _draw(axes: Axes, values: dict[str, Any], places: Sequence[int], title: str, x: str, y: str) -> None:
    for (name, each), color, marker in zip(values.items(), COLORS, "osD^v", strict=False):
        known = [(place, value) for place, value in zip(places, each, strict=True) if value is not None]
        axes.plot(*zip(*known, strict=True), f"{marker}-", color=color, markersize=4, label=name)
    label_axes(axes, title, x, y, log="xy", legend="upper left", fontsize=7.5)
    axes.set_ylim(top=axes.get_ylim()[1] * (axes.get_ylim()[1] / axes.get_ylim()[0]) ** 0.45)
    axes.set_xticks(places, labels=[str(place) for place in places])
    axes.minorticks_off()
