r"""LoRA: trainable low-rank updates of frozen linear layers.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), section 4.1. https://arxiv.org/abs/2106.09685
Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA" (2023). https://arxiv.org/abs/2312.03732
Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation" (2024), equation 5. https://arxiv.org/abs/2402.09353

$$ y = W x + s B A x + \text{bias}, \qquad s = \alpha / r \quad\text{or, rank-stabilized,}\quad \alpha / \sqrt r $$

A is rank x input, B output x rank. B is initialized to zero, so that an adapted
model initially equals its base. DoRA also learns the magnitude m of each row,

$$ y = \frac{m}{\lVert W + s B A \rVert} (W + s B A) x + \text{bias}, $$

where the norms of the rows in the denominator are treated as constants by the
gradient (section 4.3).

Dimensions: `rows` vectors, `input` and `output` widths, `rank` of the update.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.adapters.quantized import Bits, QuantizedLinear, frozen_linear, quantize_layers
from regard.errors import CheckpointError, ConfigError
from regard.nn.dropout import Dropout
from regard.settings import Settings

BODY = "*blocks.*"
"""Pattern of the names of the layers of a model without its embeddings, its output projection and its head."""
_MAX_PATTERNS = 12
"""The most kinds of layers that a message lists."""
_DROPOUT_LEVELS = 1 << 16
"""On a CPU the dropout probability is rounded to a multiple of one over this."""
_CHUNK = 1 << 18
"""Numbers that a CPU processes at a time, where passes over all of them would need memory of their own."""

FrozenLinear = nn.Linear | QuantizedLinear


class LoraConfig(Settings):
    """Which layers are adapted, and how."""

    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=16.0, gt=0.0)
    """The update is multiplied by alpha / rank."""
    rank_stabilized: bool = False
    """Multiply the update by alpha / sqrt(rank) instead, so that its size does not shrink with the rank."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the input of the update; the input of the frozen layer is not changed."""
    dora: bool = False
    """Learn the magnitude of each row as well (DoRA)."""
    targets: list[str] = Field(default=[BODY], min_length=1)
    """Shell patterns of the names of the linear layers to adapt. Default: all layers of the blocks."""
    bits: Bits | None = None
    """Store the frozen linear layers of the blocks in 8 or 4 bits. Unset: as they are."""

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)


class LowRankUpdate(NamedTuple):
    """The update `scale` B A of a frozen matrix W, and with a magnitude the norms of the rows of the sum."""

    a: Float[Tensor, "rank input"]
    b: Float[Tensor, "output rank"]
    magnitude: Float[Tensor, " output"] | None
    scale: float

    def merged_with(self, matrix: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
        """Return the matrix that the adapted layer is equivalent to."""
        total = self.added_to(matrix)
        return total if self.magnitude is None else total * self.row_factors(total)[:, None]

    def added_to(self, matrix: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
        """Return W + `scale` B A."""
        return torch.addmm(matrix.to(self.b.dtype), self.b, self.a, alpha=self.scale)

    def row_factors(self, total: Float[Tensor, "output input"]) -> Float[Tensor, " output"]:
        """Return the factors that give the rows of W + `scale` B A their magnitudes; a row of zeros remains zero."""
        assert self.magnitude is not None
        lengths = torch.linalg.vector_norm(total.detach(), dim=1)
        return self.magnitude / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable low-rank update."""

    def __init__(
        self, base: FrozenLinear, *, rank: int, scale: float, dropout: float = 0.0, has_magnitude: bool = False
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.in_features, self.out_features, self.scale = base.in_features, base.out_features, scale
        self.dropout = Dropout(dropout)
        self.is_active = True
        """Whether the update is added; otherwise the layer is its base."""
        matrix = _matrix(base)
        self.a = nn.Parameter(matrix.new_empty(rank, base.in_features))
        self.b = nn.Parameter(matrix.new_zeros(base.out_features, rank))
        self.magnitude = nn.Parameter(torch.linalg.vector_norm(matrix, dim=1)) if has_magnitude else None
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # the initialization of nn.Linear

    @property
    def update(self) -> LowRankUpdate:
        return LowRankUpdate(self.a, self.b, self.magnitude, self.scale)

    def forward(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        if not self.is_active:
            return self.base(x)
        if not self._can_be_fused(x):
            return self.plain(x)
        dropout = self.dropout.probability if self.training else 0.0
        return _fused_product(x, self.base, self.update, dropout=dropout)

    def plain(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        """Compute the same by separate operations; the specification of the fused product."""
        y = self.base(x)
        added = self.scale * F.linear(F.linear(self.dropout(x), self.a), self.b)
        if self.magnitude is None:
            return y + added
        bias = y.new_zeros(()) if self.base.bias is None else self.base.bias
        with torch.autocast(x.device.type, enabled=False):
            factors = self.update.row_factors(self.update.added_to(_matrix(self.base)))
        return ((y - bias + added) * factors + bias).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return an equivalent, frozen `nn.Linear`."""
        return frozen_linear(self.update.merged_with(_matrix(self.base)), self.base.bias)

    def parts(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name."""
        named = {"a": self.a, "b": self.b, "magnitude": self.magnitude}
        return {name: parameter for name, parameter in named.items() if parameter is not None}

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={len(self.a)}, scale={self.scale:g}"

    def _can_be_fused(self, x: Tensor) -> bool:
        # In half precision a small update would be lost in the sum with the matrix; a compiler fuses by itself.
        is_half = torch.is_autocast_enabled(x.device.type) or torch.finfo(x.dtype).bits < 32
        is_frozen = not any(parameter.requires_grad for parameter in self.base.parameters())
        return is_frozen and not is_half and not torch.compiler.is_compiling()


def add_lora(model: nn.Module, config: LoraConfig) -> None:
    """Freeze `model` and replace, in place, each linear layer whose name matches one of the targets.

    Other layers that are to be trained, such as a new head, must be unfrozen afterwards.
    """
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise ConfigError("the model is adapted already: merge its adapter first")
    layers = linear_layers(model)
    chosen = matching_layers(layers, config.targets)
    require_unshared(model, {name: layers[name] for name in chosen})
    if config.bits is not None:
        quantize_body(model, bits=config.bits, others=chosen)
        layers = linear_layers(model)
    model.requires_grad_(False)
    for name in chosen:
        layer = LoRALinear(
            layers[name], rank=config.rank, scale=config.scale, dropout=config.dropout, has_magnitude=config.dora
        )
        model.set_submodule(name, layer.train(layers[name].training))


def halve_frozen_matrices(model: nn.Module) -> None:
    """Store matrices and embeddings that are not trained in bfloat16: products under autocast read no more of them."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and not module.weight.requires_grad:
            module.weight.data = module.weight.data.to(torch.bfloat16)


def merge_lora(model: nn.Module) -> None:
    """Replace, in place, each adapted or quantized layer of `model` by an equivalent, frozen `nn.Linear`."""
    for name, layer in adapted_layers(model).items():
        model.set_submodule(name, layer.merged())
    for name, layer in linear_layers(model).items():
        if isinstance(layer, QuantizedLinear):
            model.set_submodule(name, layer.dequantized())


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Inside the context, the model is its base: no update is added."""
    layers = adapted_layers(model).values()
    for layer in layers:
        layer.is_active = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_active = True


def lora_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of the adapter by name, such as `encoder.blocks.0.attention.query.a`."""
    layers = adapted_layers(model)
    return {f"{name}.{part}": p.detach() for name, layer in layers.items() for part, p in layer.parts().items()}


@torch.no_grad()
def load_lora(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy the parameters of an adapter into a model that is adapted in the same layers with the same rank."""
    own = lora_tensors(model)
    if own.keys() != tensors.keys():
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        raise CheckpointError(f"the adapter does not fit the model: missing {missing[:3]}, not expected {extra[:3]}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"the adapter does not fit the model: {name} has shape {tuple(tensors[name].shape)}, "
                f"the model's is {tuple(tensor.shape)}"
            )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def adapted_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Return the adapted layers of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def linear_layers(model: nn.Module) -> dict[str, FrozenLinear]:
    """Return the layers of a model that can be adapted, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        # Not subclasses: PyTorch's own attention reads the weights of such a layer without calling it.
        if type(module) is nn.Linear or isinstance(module, QuantizedLinear)
    }


def matching_layers(names: Iterable[str], targets: Sequence[str]) -> list[str]:
    """Return the names that match one of the patterns; each pattern must match some."""
    names = list(names)
    for target in targets:
        if not any(fnmatchcase(name, target) for name in names):
            raise ConfigError(f"no linear layer matches {target!r}; the model has {_patterns(names) or 'none'}")
    return [name for name in names if any(fnmatchcase(name, target) for target in targets)]


def quantize_body(model: nn.Module, *, bits: Bits, others: Sequence[str] = ()) -> None:
    """Quantize, in place, the linear layers of the blocks, and those named in `others`."""
    names = [name for name in linear_layers(model) if fnmatchcase(name, BODY) or name in others]
    quantize_layers(model, names, bits=bits)


def require_unshared(model: nn.Module, layers: Mapping[str, FrozenLinear]) -> None:
    """Raise a `ConfigError` if the weights of one of these layers are used elsewhere in the model as well."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for name, layer in layers.items():
        for parameter in layer.parameters():
            if len(shared := owners[id(parameter)]) > 1:
                raise ConfigError(f"a layer that shares weights cannot be adapted, got {name}: {' is '.join(shared)}")


def require_lora_settings(model: nn.Module, config: LoraConfig) -> None:
    """Raise a `ConfigError` unless the adapter of a model has these settings."""
    layers = adapted_layers(model)
    if not layers:
        raise ConfigError("the model has no adapter")
    given = (config.rank, config.scale, config.dropout, config.dora)
    for name, layer in layers.items():
        own = (len(layer.a), layer.scale, layer.dropout.probability, layer.magnitude is not None)
        if own != given:
            raise ConfigError(
                f"an adapter must have the rank, scale, dropout and dora of its settings, got {own} in {name} "
                f"and {given} in the settings"
            )


def _patterns(names: Iterable[str]) -> str:
    """Return patterns of the names in which everything up to the last number is open: a few for hundreds of layers."""
    kinds = list(dict.fromkeys(re.sub(r"^(.*\.)?\d+(?=\.|$)", "*", name) for name in names))
    rest = len(kinds) - _MAX_PATTERNS
    return ", ".join(kinds[:_MAX_PATTERNS]) + (f" and {rest} more" if rest > 0 else "")


def _matrix(base: FrozenLinear) -> Float[Tensor, "output input"]:
    return base.matrix() if isinstance(base, QuantizedLinear) else base.weight.detach()


def _fused_product(
    x: Float[Tensor, "*rows input"], base: FrozenLinear, update: LowRankUpdate, *, dropout: float = 0.0
) -> Float[Tensor, "*rows output"]:
    r"""Compute an adapted layer, and its gradients, in few passes over large tensors.

    With $\tilde x$ the input after dropout, and $c$ 1 or the row factors of DoRA, it is

    $$ y = c \odot (W x + s B A \tilde x) + \text{bias} $$

    - Without dropout and with many rows the update is added to the matrix and not to
      the product: $W + s B A$ costs as much as a few rows.
    - $W$ is frozen, so only $x$ and the dropout mask, one byte per number, are kept for
      the gradients. Everything else is recomputed.
    - In products with the rank as one dimension it is the first one: MKL takes up to
      ten times as long for the transposed product.
    """
    flat = x.reshape(-1, x.size(-1))
    kept = _draw_mask(flat, dropout) if dropout else None
    return cast(Any, _FusedProduct.apply)(flat, *update, base, kept).view(*x.shape[:-1], -1)


class _Kept(NamedTuple):
    """The dropout mask, and the factor of the numbers that are kept."""

    mask: Bool[Tensor, "rows input"]
    factor: float


def _draw_mask(x: Float[Tensor, "rows input"], probability: float) -> _Kept:
    """Return the mask that `regard.nn.dropout.Dropout` draws from the same seed."""
    if x.device.type != "cpu":
        return _Kept(torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - probability), 1.0 / (1.0 - probability))
    dropped = round(probability * _DROPOUT_LEVELS)
    bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    mask = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _DROPOUT_LEVELS // 2
    return _Kept(mask, _DROPOUT_LEVELS / (_DROPOUT_LEVELS - dropped))


class _Factors(NamedTuple):
    """The matrices of the forward and of the backward pass."""

    weight: Float[Tensor, "output input"]
    """The factor of `x`: the merged matrix, or the frozen one, with its rows scaled."""
    gain: Float[Tensor, " output"] | float
    """The factor of B A."""
    is_merged: bool


def _factors(num_rows: int, base: FrozenLinear, update: LowRankUpdate, kept: _Kept | None) -> _Factors:
    matrix = _matrix(base)
    gain = update.scale if kept is None else update.scale * kept.factor
    if update.magnitude is not None:
        total = update.added_to(matrix)
        rows = update.row_factors(total)
        return _Factors((total if kept is None else matrix) * rows[:, None], gain * rows, kept is None)
    num_outputs, num_inputs = matrix.shape
    is_merged = kept is None and num_rows * (num_inputs + num_outputs) >= num_inputs * num_outputs
    return _Factors(update.added_to(matrix) if is_merged else matrix, gain, is_merged)


class _FusedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "rows input"],
        a: Float[Tensor, "rank input"],
        b: Float[Tensor, "output rank"],
        magnitude: Float[Tensor, " output"] | None,
        scale: float,
        base: FrozenLinear,
        kept: _Kept | None,
    ) -> Float[Tensor, "rows output"]:
        weight, gain, is_merged = _factors(len(x), base, LowRankUpdate(a, b, magnitude, scale), kept)
        y = F.linear(x, weight, base.bias)
        if not is_merged:
            narrow = torch.cat([a @ part.t() for part in _dropped_chunks(x, kept)], dim=1)
            y.addmm_(narrow.t(), b.t() * gain)
        # The gradient of the magnitudes needs the output, which the next layer usually stores in any case.
        ctx.save_for_backward(x, a, b, magnitude, None if magnitude is None else y)
        ctx.scale, ctx.base, ctx.kept = scale, base, kept
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides the name of ctx
        (gradient,) = gradients
        x, a, b, magnitude, y = ctx.saved_tensors
        weight, gain, is_merged = _factors(len(x), ctx.base, LowRankUpdate(a, b, magnitude, ctx.scale), ctx.kept)
        inner = (b.t() * gain).contiguous() @ gradient.t()
        for_a, narrow, first = torch.zeros_like(a), [], 0
        for part in _dropped_chunks(x, ctx.kept):
            for_a.addmm_(inner[:, first : first + len(part)], part)
            narrow.append(a @ part.t())
            first += len(part)
        for_b = ((torch.cat(narrow, dim=1) @ gradient) * gain).t()
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = gradient @ weight
            if not is_merged:
                _add_where_kept(for_x, inner.t(), a, ctx.kept)
        for_magnitude = None if magnitude is None else _magnitude_gradient(magnitude, gradient, y, ctx.base.bias)
        return for_x, for_a, for_b, for_magnitude, None, None, None


def _dropped_chunks(x: Float[Tensor, "rows input"], kept: _Kept | None) -> Iterator[Float[Tensor, "part input"]]:
    """Yield the rows of `x` after dropout, in chunks that fit into the cache."""
    if kept is None:
        yield x
        return
    num_rows = _chunk_rows(x)
    for part, mask in zip(x.split(num_rows), kept.mask.split(num_rows), strict=True):
        yield part * mask


def _add_where_kept(
    total: Float[Tensor, "rows input"],
    inner: Float[Tensor, "rows rank"],
    a: Float[Tensor, "rank input"],
    kept: _Kept | None,
) -> None:
    """Add `inner` A to `total`, except where numbers are dropped."""
    if kept is None:
        total.addmm_(inner, a)
        return
    num_rows = _chunk_rows(total)
    for part, factor, mask in zip(*(every.split(num_rows) for every in (total, inner, kept.mask)), strict=True):
        part += (factor @ a).mul_(mask)


def _magnitude_gradient(
    magnitude: Float[Tensor, " output"],
    gradient: Float[Tensor, "rows output"],
    y: Float[Tensor, "rows output"],
    bias: Float[Tensor, " output"] | None,
) -> Float[Tensor, " output"]:
    """Return the gradient by the magnitudes, from the output, which is proportional to them."""
    num_rows = _chunk_rows(y)
    total = torch.zeros_like(magnitude)
    for part, output in zip(gradient.split(num_rows), y.split(num_rows), strict=True):
        total += (part * (output if bias is None else output - bias)).sum(dim=0)
    # Where a magnitude is exactly zero, the output does not determine its gradient.
    return torch.where(magnitude == 0.0, 0.0, total / magnitude)


def _chunk_rows(x: Float[Tensor, "rows width"]) -> int:
    return max(1, _CHUNK // x.size(1)) if x.device.type == "cpu" else max(1, len(x))
