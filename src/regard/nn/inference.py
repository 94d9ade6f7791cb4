r"""Weights arranged for inference: one dtype, no gradients, packed projections, or integers of 8 bits.

A decoding step multiplies one row or a few by every matrix of the model, and
takes as long as reading the matrices from memory; for small matrices, as long
as Python takes to call the products. Therefore

- the query, key and value matrices of an attention, and the two input matrices of
  a gated feed-forward network, are stored as one matrix and multiplied at once;
- on a CPU a matrix is stored along its longer side, which suits the hardware
  prefetcher;
- `quantization="int8"` stores the matrices in 8 bits on a CPU, a quarter of the
  memory. Jacob et al., "Quantization and Training of Neural Networks for Efficient
  Integer-Arithmetic-Only Inference" (2018), section 2. https://arxiv.org/abs/1712.05877

A row of a quantized matrix is stored as integers of -127..127 with one scale,

$$ W_{ij} \approx s_i \, q_{ij}, \qquad s_i = \max_j |W_{ij}| / 127, $$

so that no weight changes by more than $s_i / 2$. The input of a layer is rounded
in the same way at each call, with one scale for the batch, and to 7 bits, because
processors without a dedicated instruction add pairs of products in 16 bits. Sums
have 32 bits. Embeddings, norms and attention are not quantized.
"""

import copy
import warnings
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import MultiHeadAttention
from regard.nn.feedforward import FeedForward

InferencePrecision = Literal["float32", "bfloat16"]
Quantization = Literal["int8"]
Model = TypeVar("Model", bound=nn.Module)

_LARGEST_INT8 = 127
_INT8_ENGINE = "fbgemm"
"""PyTorch's library for int8 products on x86."""


def prepare_for_inference(
    model: Model, precision: InferencePrecision, *, quantization: Quantization | None = None
) -> Model:
    """Return a copy of `model` for inference, on the same device: in this dtype, in eval mode, with packed weights.

    The copy must not be moved or cast afterwards, which would undo the packing.
    Weights that are not rearranged are shared with `model`, which must not be
    trained any more. With `quantization` the linear layers are quantized instead.
    """
    shared = {id(weight): nn.Parameter(weight.data, requires_grad=False) for weight in model.parameters()}
    prepared = copy.deepcopy(model, dict(shared)).eval()
    prepared = prepared.to(torch.float32 if precision == "float32" else torch.bfloat16)
    if quantization is None:
        pack_weights(prepared)
    else:
        convert_to_int8(prepared)
    return prepared


@torch.no_grad()
def pack_weights(model: nn.Module) -> None:
    """Rearrange the weights of `model` in memory for decoding; values, names and tied weights stay as they are."""
    packed: set[int] = set()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            layers = [module.query, module.key, module.value]
        elif isinstance(module, FeedForward) and module.gate is not None:
            layers = [module.gate, module.input]
        else:
            continue
        plain = [layer for layer in layers if type(layer) is nn.Linear]
        if len(plain) == len(layers):
            _pack(plain)
            packed.update(id(layer) for layer in plain)
    for module in model.modules():
        if type(module) is nn.Linear and id(module) not in packed:
            module.weight.data = _along_longer_side(module.weight.data)


def packed_linear(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None] | None:
    """Return the matrix and the bias of one linear layer, or of several that are packed; None where they are not."""
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    if len(plain) < len(layers):
        return None
    return (plain[0].weight, plain[0].bias) if len(plain) == 1 else vars(plain[0]).get("packed")


def convert_to_int8(model: nn.Module) -> None:
    """Replace, in place, each linear layer of `model` by a `Int8Linear`; such a model cannot be trained or moved.

    An output projection that is tied to the embedding is quantized, the embedding is not.
    """
    devices = {parameter.device.type for parameter in model.parameters()}
    if devices - {"cpu"}:
        raise ConfigError(f"int8 weights are for models on a CPU, got a model on {', '.join(sorted(devices))}")
    if _INT8_ENGINE not in torch.backends.quantized.supported_engines:
        raise ConfigError(f"int8 products need a PyTorch with {_INT8_ENGINE}, which exists for x86 only")
    for module in list(model.modules()):
        for name, part in module.named_children():
            if type(part) is nn.Linear:
                setattr(module, name, Int8Linear(part))


class Int8Linear(nn.Module):
    """A linear layer with weights of 8 bits, for inference."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach().float()
        # A row of zeros may have any positive scale.
        scales = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_INT8
        zeros = torch.zeros(len(scales), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor, torch.quantize_per_channel", UserWarning)
            rounded = torch.quantize_per_channel(weight, scales.double(), zeros, axis=0, dtype=torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Float[Tensor, "*rows input"]) -> Float[Tensor, "*rows output"]:
        return torch.ops.quantized.linear_dynamic(x.float(), self._packed, reduce_range=True).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


def _pack(layers: Sequence[nn.Linear]) -> None:
    """Store the weights of `layers` as one matrix; the attribute `packed` of each is the matrix from its rows on."""
    weight = _along_longer_side(torch.cat([layer.weight for layer in layers]))
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    first = 0
    for layer in layers:
        vars(layer)["packed"] = (weight[first:], None if bias is None else bias[first:])
        end = first + layer.out_features
        layer.weight.data = weight[first:end]
        if bias is not None:
            layer.bias.data = bias[first:end]
        first = end


def _along_longer_side(weight: Float[Tensor, "output input"]) -> Float[Tensor, "output input"]:
    # PyTorch's bfloat16 products are written for contiguous rows, and on a GPU the layout does not matter.
    if weight.device.type != "cpu" or weight.dtype == torch.bfloat16 or weight.size(0) < weight.size(1):
        return weight.contiguous()
    return weight.t().contiguous().t()
