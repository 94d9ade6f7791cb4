r"""LoRA: train a low-rank correction, and leave the weights alone.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), section 4.1. https://arxiv.org/abs/2106.09685
Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA" (2023). https://arxiv.org/abs/2312.03732
Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation" (2024), equation 5. https://arxiv.org/abs/2402.09353

$$ y = W x + s B A x + \text{bias}, \qquad s = \alpha / r \quad\text{or, rank-stabilized,}\quad \alpha / \sqrt r $$

A is rank x input, B output x rank. B starts at zero, so an adapted model starts
out equal to the one it adapts. DoRA learns the length m of each row besides,

$$ y = \frac{m}{\lVert W + s B A \rVert} (W + s B A) x + \text{bias}, $$

where the lengths of the rows below the line count as constants to the gradient
(section 4.3).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from regard.adapters.fused import Correction, Frozen, adapted_product, matrix_of
from regard.adapters.quantized import Bits, PackedLinear, frozen_linear, pack_linears
from regard.errors import CheckpointError, ConfigError
from regard.nn.dropout import Dropout
from regard.settings import Settings

BODY = "*blocks.*"
"""The name of a layer in the body of a model, which its embeddings, its output and its head are no part of."""
_NAMED = 12
"""Kinds of layers that a message lists at most."""


class LoraConfig(Settings):
    """Which layers are adapted, and how."""

    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B: how many directions a layer can learn."""
    alpha: float = Field(default=16.0, gt=0.0)
    """The correction is multiplied by alpha / rank."""
    rank_stabilized: bool = False
    """Multiply it by alpha / sqrt(rank) instead, so that a higher rank learns no more slowly."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On what goes into the correction; what goes into the frozen layer stays whole."""
    dora: bool = False
    """Learn the length of each row of the sum besides (DoRA)."""
    targets: list[str] = Field(default=[BODY], min_length=1)
    """Shell patterns of the names of the linear layers to adapt; unset, all of the body."""
    bits: Bits | None = None
    """Keep the frozen linear layers of the body in 8 or 4 bits, adapted or not; unset, as they are."""

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)


class LoRALinear(nn.Module):
    """A frozen linear layer with a trainable low-rank correction beside it."""

    def __init__(
        self, base: Frozen, *, rank: int, scale: float, dropout: float = 0.0, has_magnitude: bool = False
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.in_features, self.out_features, self.scale = base.in_features, base.out_features, scale
        self.dropout = Dropout(dropout)
        matrix = matrix_of(base)
        self.a = nn.Parameter(matrix.new_empty(rank, base.in_features))
        self.b = nn.Parameter(matrix.new_zeros(base.out_features, rank))
        self.magnitude = nn.Parameter(torch.linalg.vector_norm(matrix, dim=1)) if has_magnitude else None
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # what nn.Linear does

    @property
    def correction(self) -> Correction:
        return Correction(self.a, self.b, self.magnitude, self.scale)

    def forward(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        if not self._can_be_fused(x):
            return self.plain(x)
        dropout = self.dropout.probability if self.training else 0.0
        return adapted_product(x, self.base, self.correction, dropout=dropout)

    def plain(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        """The same by PyTorch's own operations, one by one."""
        y = self.base(x)
        added = self.scale * F.linear(F.linear(self.dropout(x), self.a), self.b)
        if self.magnitude is None:
            return y + added
        bias = y.new_zeros(()) if self.base.bias is None else self.base.bias
        with torch.autocast(x.device.type, enabled=False):
            factors = self.correction.row_factors(self.correction.added_to(matrix_of(self.base)))
        return ((y - bias + added) * factors + bias).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One plain, frozen linear layer that computes the same function."""
        return frozen_linear(self.correction.joined(matrix_of(self.base)), self.base.bias)

    def parts(self) -> dict[str, nn.Parameter]:
        """What is learned here, by name."""
        named = {"a": self.a, "b": self.b, "magnitude": self.magnitude}
        return {name: parameter for name, parameter in named.items() if parameter is not None}

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={len(self.a)}, scale={self.scale:g}"

    def _can_be_fused(self, x: Tensor) -> bool:
        # In half precision a small correction would be lost in the sum with the matrix; a compiler fuses by itself.
        is_half = torch.is_autocast_enabled(x.device.type) or torch.finfo(x.dtype).bits < 32
        is_frozen = not any(parameter.requires_grad for parameter in self.base.parameters())
        return is_frozen and not is_half and not torch.compiler.is_compiling()


def add_lora(model: nn.Module, config: LoraConfig) -> None:
    """Freeze `model`, then adapt in place each linear layer whose name fits one of the targets.

    What else is to learn, such as a new head, is unfrozen afterwards by whoever added it.
    """
    if any(isinstance(module, LoRALinear) for module in model.modules()):
        raise ConfigError("the model is adapted already: merge its adapter first")
    layers = linear_layers(model)
    chosen = fitting_layers(layers, config.targets)
    require_unshared(model, {name: layers[name] for name in chosen})
    if config.bits is not None:
        pack_body(model, bits=config.bits, others=chosen)
        layers = linear_layers(model)
    model.requires_grad_(False)
    for name in chosen:
        model.set_submodule(name, adapted(layers[name], config))


def adapted(layer: Frozen, config: LoraConfig) -> LoRALinear:
    """A layer with an untrained correction, which is not yet part of any model."""
    made = LoRALinear(layer, rank=config.rank, scale=config.scale, dropout=config.dropout, has_magnitude=config.dora)
    return made.train(layer.training)


def merge_lora(model: nn.Module) -> None:
    """Let each adapted or packed layer of `model` be a plain `nn.Linear` again, in place. It stays frozen."""
    for name, layer in adapted_layers(model).items():
        model.set_submodule(name, layer.merged())
    for name, layer in linear_layers(model).items():
        if isinstance(layer, PackedLinear):
            model.set_submodule(name, layer.unpacked())


def lora_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """What an adapted model learns."""
    for layer in adapted_layers(model).values():
        yield from layer.parts().values()


def lora_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The adapter alone, by the names of the layers it adapts: `encoder.blocks.0.attention.query.a` and so on."""
    layers = adapted_layers(model)
    return {f"{name}.{part}": p.detach() for name, layer in layers.items() for part, p in layer.parts().items()}


@torch.no_grad()
def load_lora(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy an adapter into a model that is adapted in exactly these places, with this rank."""
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
    """The adapted layers of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def linear_layers(model: nn.Module) -> dict[str, Frozen]:
    """The layers that can be adapted of a model that is not adapted yet, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        # Not what inherits from it: PyTorch's own attention reads the weights of such a layer and never calls it.
        if type(module) is nn.Linear or isinstance(module, PackedLinear)
    }


def fitting_layers(names: Iterable[str], targets: Sequence[str]) -> list[str]:
    """The names that fit one of the patterns; each pattern must fit some."""
    names = list(names)
    for target in targets:
        if not any(fnmatchcase(name, target) for name in names):
            raise ConfigError(f"no linear layer's name fits {target!r}; there are {_kinds(names) or 'none'}")
    return [name for name in names if any(fnmatchcase(name, target) for target in targets)]


def pack_body(model: nn.Module, *, bits: Bits, others: Sequence[str] = ()) -> None:
    """Keep the linear layers of the body, and those of the names in `others`, in so few bits."""
    names = [name for name in linear_layers(model) if fnmatchcase(name, BODY) or name in others]
    pack_linears(model, names, bits=bits)


def require_unshared(model: nn.Module, layers: Mapping[str, Frozen]) -> None:
    """Raise if the weights of one of these layers stand in another place of the model as well."""
    holders: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(parameter), []).append(name)
    for name, layer in layers.items():
        for parameter in layer.parameters():
            if len(shared := holders[id(parameter)]) > 1:
                raise ConfigError(f"a layer that shares weights cannot be adapted, got {name}: {' is '.join(shared)}")


def require_settings(model: nn.Module, config: LoraConfig) -> None:
    """Raise unless the adapter of a model has these settings."""
    layers = adapted_layers(model)
    if not layers:
        raise ConfigError("the model has no adapter")
    given = (config.rank, config.scale, config.dropout, config.dora)
    for name, layer in layers.items():
        own = (len(layer.a), layer.scale, layer.dropout.probability, layer.magnitude is not None)
        if own != given:
            raise ConfigError(
                f"an adapter must have the settings it is said to have, got rank, scale, dropout and dora {own} "
                f"in {name} and {given} in the settings"
            )


def _kinds(names: Iterable[str]) -> str:
    """Patterns of the names, open up to their last number: a few for hundreds of layers."""
    kinds = list(dict.fromkeys(re.sub(r"^(.*\.)?\d+(?=\.|$)", "*", name) for name in names))
    return ", ".join(kinds[:_NAMED]) + (f" and {len(kinds) - _NAMED} more" if len(kinds) > _NAMED else "")
