r"""Decoders of images: each value of each pixel is predicted from all values before it.

Van den Oord et al., "Pixel Recurrent Neural Networks" (2016). https://arxiv.org/abs/1601.06759
Parmar et al., "Image Transformer" (2018). https://arxiv.org/abs/1802.05751

An image is a sequence of pixels, row by row, and a pixel one of channels: red, green, blue. The probability of an image
is that of its values, each given those before it. A causal body reads one vector for each pixel, so that its sequence
is a third as long as one of values; a small head predicts the channels of a pixel one after the other.

    PixelInput         of pixel p: the values of the pixels around it that precede it, its position, the class
    body               PixelTransformer: causal attention; PixelRecurrence: an LSTM
    PixelHead          of each channel, from the body's hidden state and the channels before it in the same pixel, a
                       mixture of discretized logistic distributions (`regard.nn.logistics`), or a softmax over levels

As a `Decoder`, a model reads a start token, which is that of a class or of none, and then one token for each value. Its
state has room for one whole image, and each step computes the newest pixel again from the image so far: a step changes
no shape and takes no branch, so that the engine can capture it as a CUDA graph.

Dimensions: `batch` images, `pixels` of each, `channels` of a pixel, `model` width, `components` of a mixture, `time`
tokens, `parameters` of a distribution over levels, `vocab` tokens: the levels, a start token for each class, and one
for no class.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import EncoderDecoderConfig, Family, InputKind, ModelConfig, Preset
from regard.models.protocols import Decoder, DecoderState, EncoderOutput
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import TransformerStack, initialize_transformer
from regard.nn.dropout import Dropout
from regard.nn.inference import Quantization
from regard.nn.kv_cache import StaticKVCache
from regard.nn.logistics import mixture_distribution, mixture_log_probs, scale_levels
from regard.nn.recurrent import Cell, RecurrentStack

_FREQUENCIES = 6
"""Sines and cosines of a value, the fastest of which separates neighboring levels of 256."""
_NEAREST = ((0, -1), (-1, 0), (-1, -1), (-1, 1))
"""Rows and columns to the pixels whose values are read with sines and cosines."""
_SMALLEST_LOG_SCALE = -7.0
"""A logistic distribution of this scale lies within one of 256 levels."""
_FIRST_LOG_SCALE, _FIRST_SPREAD, _FIRST_SLOPE = -2.5, 0.3, 0.8
"""Before training: the scales of the components, the range of their means, and how much of the error of the prediction
of a channel is expected in the next one."""


@dataclass(frozen=True)
class PixelShape:
    """The images that a model generates."""

    size: int
    """Height and width."""
    channels: int
    levels: int = 256
    num_classes: int = 0
    """0 where images have no classes."""

    @property
    def num_pixels(self) -> int:
        return self.size**2

    @property
    def num_values(self) -> int:
        """The number of predicted values, the dimensions of an image."""
        return self.num_pixels * self.channels

    @property
    def vocab_size(self) -> int:
        return self.levels + self.num_classes + 1

    def start_token(self, number: int | None) -> int:
        """The first token of an image of a class, or of one without class."""
        return self.levels + (self.num_classes if number is None else number)


class PixelTransformerConfig(TransformerConfig):
    """The settings of `PixelTransformer`: those of a Transformer's decoder, and of what it reads and predicts."""

    family: str = "pixel-transformer"
    can_isolate_documents: ClassVar[bool] = False
    has_attention_kinds: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "pixel-sequence"
    encoder_layers: int | None = Field(default=0, ge=0, le=0)
    """Always 0: there is no encoder."""
    neighborhood: int = Field(default=4, ge=1)
    """The pixels around the next one that are read directly: up to so many rows and columns away."""
    components: int = Field(default=10, ge=0)
    """Logistic distributions that each value is a mixture of; 0 for a softmax over all levels."""

    @property
    def gains_from_bf16_on_cpu(self) -> bool:
        return False

    @property
    def max_target_positions(self) -> int | None:
        return None  # an image has one size, for which positions are learned


class PixelRecurrenceConfig(EncoderDecoderConfig):
    """The settings of `PixelRecurrence`."""

    family: str = "pixel-recurrence"
    can_compile: ClassVar[bool] = False
    can_use_cuda_graphs: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "pixel-sequence"
    cell: Cell = "lstm"
    """rnn, gru or lstm."""
    num_layers: int = Field(default=2, ge=1)
    """Layers of the decoder."""
    encoder_layers: int | None = Field(default=0, ge=0, le=0)
    """Always 0: there is no encoder."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout between layers."""
    neighborhood: int = Field(default=4, ge=1)
    """The pixels around the next one that are read directly: up to so many rows and columns away."""
    components: int = Field(default=10, ge=0)
    """Logistic distributions that each value is a mixture of; 0 for a softmax over all levels."""


PixelConfig = PixelTransformerConfig | PixelRecurrenceConfig


@dataclass
class PixelState:
    """The image so far of each row, and what the body stores; all of fixed size."""

    starts: Int[Tensor, " batch"]
    """The class of each row."""
    values: Int[Tensor, "batch values"]
    counts: Int[Tensor, " batch"]
    """The tokens that are read, the start token included."""
    memory: list[Tensor]
    """By row: keys and values of the pixels of each block, or the hidden vectors of each layer."""

    def tensors(self) -> list[Tensor]:
        return [self.starts, self.values, self.counts, *self.memory]

    def select(self, rows: Int[Tensor, " chosen"]) -> "PixelState":
        starts, values, counts, *memory = (part.index_select(0, rows) for part in self.tensors())
        return PixelState(starts, values, counts, memory)

    def put(self, rows: Int[Tensor, " chosen"], state: DecoderState) -> None:
        assert isinstance(state, PixelState)
        for own, new in zip(self.tensors(), state.tensors(), strict=True):
            own[rows] = new

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for own in self.tensors():
            own.copy_(own.index_select(0, rows))


class PixelModel(nn.Module, Decoder):
    """A causal body between `PixelInput` and `PixelHead`; subclasses have the body."""

    def __init__(self, config: PixelConfig, shape: PixelShape) -> None:
        super().__init__()
        self.config: PixelConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]  narrower and never replaced
        self.shape = shape
        self.output = None
        self.input = PixelInput(shape, config.model_dim, neighborhood=config.neighborhood)
        self.head = PixelHead(shape, config.model_dim, num_components=config.components)

    @property
    def device(self) -> torch.device:
        return self.input.positions.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.input.positions.weight.dtype

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    @property
    def source_vocab_size(self) -> int:
        return self.vocab_size

    def parameters_of(
        self, values: Int[Tensor, "batch pixels channels"], starts: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch pixels channels parameters"]:
        """Return the parameters of the distribution of each value given those before it, and the class."""
        x = scale_levels(values, self.shape.levels)
        around = self.input.around(x)
        return self.head(self.body(self.input(around, starts)), around, x)

    def losses(
        self, values: Int[Tensor, "batch pixels channels"], starts: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch pixels channels"]:
        """Return the negative log-likelihood of each value given those before it, and the class, in nats."""
        return -self.head.log_probs(values, self.parameters_of(values, starts))

    def body(self, x: Float[Tensor, "batch pixels model"]) -> Float[Tensor, "batch pixels model"]:
        """Return the hidden state of each pixel, from the vectors up to its own."""
        raise NotImplementedError

    def body_step(
        self,
        x: Float[Tensor, "batch 1 model"],
        pixels: Int[Tensor, " batch"],
        is_complete: Bool[Tensor, " batch"],
        memory: Sequence[Tensor],
    ) -> Float[Tensor, "batch 1 model"]:
        """Return the hidden state of one pixel of each row; `memory` is changed in place.

        A pixel is computed once for each of its channels, and is part of the memory once it `is_complete`.
        """
        raise NotImplementedError

    def empty_memory(self, batch_size: int) -> list[Tensor]:
        """Return what the body stores before the first pixel."""
        raise NotImplementedError

    def encode(
        self, source: Tensor, lengths: Any = None, *, segments: Any = None, extra_embeddings: Any = None,
        documents: Any = None,
    ) -> EncoderOutput:  # fmt: skip
        raise ConfigError("a model that generates images has no encoder")

    def hidden_states(
        self, tokens: Int[Tensor, "batch time"], encoder_output: Any = None, *, documents: Any = None
    ) -> Float[Tensor, "batch time parameters"]:
        """Return the parameters of the distribution of the value after each prefix."""
        if encoder_output is not None or documents is not None:
            raise ConfigError("a model that generates images takes no source and no documents")
        shape, num_read = self.shape, tokens.size(1) - 1
        values = F.pad(tokens[:, 1:], (0, shape.num_values - num_read)).unflatten(1, (-1, shape.channels))
        return self.parameters_of(values, tokens[:, 0] - shape.levels).flatten(1, 2)[:, : num_read + 1]

    def logits(self, hidden_states: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch vocab"]:
        found = self.head.distribution(hidden_states)
        return F.pad(found, (0, self.vocab_size - found.size(-1)), value=-torch.inf)

    def decode(
        self, tokens: Int[Tensor, "batch time"], encoder_output: Any = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.logits(self.hidden_states(tokens, encoder_output))

    def initial_state(self, encoder_output: Any = None, *, batch_size: int = 1) -> PixelState:
        if encoder_output is not None:
            raise ConfigError("a model that generates images takes no source")
        starts, counts = (torch.zeros(batch_size, dtype=torch.long, device=self.device) for _ in range(2))
        values = torch.zeros(batch_size, self.shape.num_values, dtype=torch.long, device=self.device)
        return PixelState(starts, values, counts, self.empty_memory(batch_size))

    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> PixelState:
        """Return an initial state, whatever the capacity: it has room for one image."""
        return self.initial_state(batch_size=num_slots)

    def step(
        self, tokens: Int[Tensor, "batch new"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch new vocab"], PixelState]:
        assert isinstance(state, PixelState)
        return torch.stack([self._read(token, state) for token in tokens.unbind(1)], dim=1), state

    def _read(self, tokens: Int[Tensor, " batch"], state: PixelState) -> Float[Tensor, "batch vocab"]:
        """Return the logits of the value after one more token."""
        shape, is_start = self.shape, state.counts == 0
        state.starts.copy_(torch.where(is_start, (tokens - shape.levels).clamp(0, shape.num_classes), state.starts))
        places = (state.counts - 1).clamp(0, shape.num_values - 1)[:, None]
        new = torch.where(is_start[:, None], state.values.gather(1, places), tokens[:, None].clamp(0, shape.levels - 1))
        state.values.scatter_(1, places, new)
        following = state.counts.clamp(max=shape.num_values - 1)
        state.counts.add_(1)
        pixels, channels = following // shape.channels, following % shape.channels
        x = scale_levels(state.values, shape.levels).unflatten(1, (-1, shape.channels))
        around = self.input.around(x, pixels)
        hidden = self.body_step(
            self.input(around, state.starts, pixels), pixels, channels == shape.channels - 1, state.memory
        )
        own = x.gather(1, pixels[:, None, None].expand(-1, 1, shape.channels))
        found = self.head(hidden, around, own)[:, 0]
        return self.logits(found.gather(1, channels[:, None, None].expand(-1, 1, found.size(-1)))[:, 0])

    def for_inference(self, *, quantization: Quantization | None = None) -> "PixelModel":
        if quantization is not None:
            raise ConfigError("a model that generates images has no quantized form")
        return self

    def beam_state(self, state: DecoderState) -> DecoderState:
        return state

    def static_beam_state(self, state: DecoderState, beam_size: int, capacity: int) -> None:
        return None


class PixelTransformer(PixelModel):
    """Causal attention over pixels."""

    Config: ClassVar[type[ModelConfig]] = PixelTransformerConfig

    def __init__(self, config: PixelTransformerConfig, shape: PixelShape) -> None:
        config = config.changed(context_length=shape.num_pixels)
        super().__init__(config, shape)
        self.decoder = TransformerStack(config, config.decoder_depth, is_causal=True)
        self._memory_shape = (config.num_key_value_heads or config.num_heads, shape.num_pixels, config.head_dim)
        initialize_transformer(self.decoder, config)

    def body(self, x: Float[Tensor, "batch pixels model"]) -> Float[Tensor, "batch pixels model"]:
        # The residual stream has the dtype of the matrix products, as in `Transformer`.
        kind = x.device.type
        return self.decoder(x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x)

    def body_step(
        self,
        x: Float[Tensor, "batch 1 model"],
        pixels: Int[Tensor, " batch"],
        is_complete: Bool[Tensor, " batch"],
        memory: Sequence[Tensor],
    ) -> Float[Tensor, "batch 1 model"]:
        # The keys and values of a pixel depend on those before it only: each of its channels stores the same ones.
        places = pixels[:, None]
        mask = torch.arange(self.shape.num_pixels, device=x.device) <= places[:, None, None]
        caches = [StaticKVCache(*pair, places) for pair in zip(memory[::2], memory[1::2], strict=True)]
        return self.decoder(x, mask, caches=caches, positions=places)

    def empty_memory(self, batch_size: int) -> list[Tensor]:
        like = self.input.positions.weight
        return [like.new_zeros(batch_size, *self._memory_shape) for _ in range(2 * self.config.decoder_depth)]


class PixelRecurrence(PixelModel):
    """A recurrent network over pixels."""

    Config: ClassVar[type[ModelConfig]] = PixelRecurrenceConfig

    def __init__(self, config: PixelRecurrenceConfig, shape: PixelShape) -> None:
        super().__init__(config, shape)
        widths = [config.model_dim] * config.decoder_depth
        self.decoder = RecurrentStack(config.cell, config.model_dim, widths, dropout=Dropout(config.dropout))

    def body(self, x: Float[Tensor, "batch pixels model"]) -> Float[Tensor, "batch pixels model"]:
        # The input is added, so that what is near is not squeezed through the gates.
        return x + self.decoder(x)[0]

    def body_step(
        self,
        x: Float[Tensor, "batch 1 model"],
        pixels: Int[Tensor, " batch"],
        is_complete: Bool[Tensor, " batch"],
        memory: Sequence[Tensor],
    ) -> Float[Tensor, "batch 1 model"]:
        num_parts = len(memory) // self.config.decoder_depth
        before = [part[None] for part in memory]
        layers = tuple(tuple(before[first : first + num_parts]) for first in range(0, len(before), num_parts))
        found, after = self.decoder(x, state=layers)
        for own, new in zip(memory, (part[0] for layer in after for part in layer), strict=True):
            own.copy_(torch.where(is_complete[:, None], new, own))
        return x + found

    def empty_memory(self, batch_size: int) -> list[Tensor]:
        return [part[0].clone() for layer in self.decoder.initial_state(batch_size) for part in layer]


class PixelInput(nn.Module):
    """What the body reads for a pixel: all of it is known before the pixel is."""

    def __init__(self, shape: PixelShape, model_dim: int, *, neighborhood: int) -> None:
        super().__init__()
        offsets = causal_offsets(neighborhood)
        self.num_nearest = len(_NEAREST)
        num_features = shape.channels * (len(offsets) + 2 * _FREQUENCIES * self.num_nearest)
        self.values = nn.Linear(num_features, model_dim)
        self.positions = nn.Embedding(shape.num_pixels, model_dim)
        self.classes = nn.Embedding(shape.num_classes + 1, model_dim)
        nn.init.normal_(self.positions.weight, std=0.1)
        nn.init.normal_(self.classes.weight, std=0.1)
        self.neighbors: Tensor
        self.register_buffer("neighbors", neighbor_table(shape.size, offsets), persistent=False)

    def around(
        self, x: Float[Tensor, "batch pixels channels"], pixels: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch places around channels"]:
        """Return the values around each pixel, or around one pixel of each row; 0 outside of the image."""
        padded = F.pad(x, (0, 0, 0, 1))
        if pixels is None:
            return padded[:, self.neighbors]
        rows = torch.arange(x.size(0), device=x.device)[:, None]
        return padded[rows, self.neighbors[pixels]][:, None]

    def forward(
        self,
        around: Float[Tensor, "batch places around channels"],
        starts: Int[Tensor, " batch"],
        pixels: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch places model"]:
        features = torch.cat([around.flatten(2), waves(around[:, :, : self.num_nearest]).flatten(2)], dim=2)
        positions = self.positions.weight if pixels is None else self.positions(pixels)[:, None]
        return self.values(features.to(self.values.weight.dtype)) + positions + self.classes(starts)[:, None]


class PixelHead(nn.Module):
    """The distributions of the channels of a pixel, each given those before it.

    The means of a mixture are predicted relative to a simple prediction from the pixels to the left and above, so that
    a model that has learned nothing predicts smooth images.
    """

    def __init__(self, shape: PixelShape, model_dim: int, *, num_components: int) -> None:
        super().__init__()
        self.num_levels, self.num_components = shape.levels, num_components
        self.hidden = nn.Linear(model_dim, model_dim)
        channels = range(shape.channels)
        self.earlier = nn.ModuleList(nn.Linear(c * (1 + 2 * _FREQUENCIES), model_dim) for c in channels if c)
        sizes = [num_components * (3 + c) if num_components else shape.levels for c in channels]
        self.outputs = nn.ModuleList(nn.Linear(model_dim, size) for size in sizes)
        # Adam changes each of many weights by the learning rate: without the factor, scales would change too fast.
        self.factor = 1.0 / math.sqrt(model_dim)
        spread = torch.linspace(-_FIRST_SPREAD, _FIRST_SPREAD, num_components)
        self.spread: Tensor
        self.register_buffer("spread", spread, persistent=False)
        for output in self.outputs:
            assert isinstance(output, nn.Linear)
            nn.init.normal_(output.weight, std=0.1)
            nn.init.zeros_(output.bias)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch places model"],
        around: Float[Tensor, "batch places around channels"],
        own: Float[Tensor, "batch places channels"],
    ) -> Float[Tensor, "batch places channels parameters"]:
        """Return the parameters of each channel; of `own`, the values of the pixel, each reads those before it."""
        shared, guesses = self.hidden(hidden_states), predict_smooth(around)
        found = []
        for channel, output in enumerate(self.outputs):
            x = shared
            if channel:
                before = own[:, :, :channel]
                features = torch.cat([before[..., None], waves(before)], dim=-1).flatten(2)
                x = shared + self.earlier[channel - 1](features.to(self.hidden.weight.dtype))
            raw = output(F.gelu(x))
            # Levels lie too close together for half precision.
            raw = raw.to(torch.promote_types(raw.dtype, torch.float32)) * self.factor
            if self.num_components:
                raw = self._mixture(raw, guesses[..., : channel + 1], own[..., :channel])
            found.append(raw)
        return torch.stack(found, dim=2)

    def _mixture(
        self,
        raw: Float[Tensor, "batch places raw"],
        guesses: Float[Tensor, "batch places read"],
        before: Float[Tensor, "batch places earlier"],
    ) -> Float[Tensor, "batch places parameters"]:
        weights, offsets, log_scales, *slopes = raw.split(self.num_components, dim=-1)
        means = guesses[..., -1:] + self.spread + offsets
        for number, slope in enumerate(slopes):
            expected = slope + _FIRST_SLOPE if number == len(slopes) - 1 else slope
            means = means + expected * (before[..., number : number + 1] - guesses[..., number : number + 1])
        log_scales = (log_scales + _FIRST_LOG_SCALE).clamp(min=_SMALLEST_LOG_SCALE)
        return torch.cat([weights, means, log_scales], dim=-1)

    def log_probs(
        self,
        values: Int[Tensor, "batch pixels channels"],
        parameters: Float[Tensor, "batch pixels channels parameters"],
    ) -> Float[Tensor, "batch pixels channels"]:
        """Return the log-probability of each value."""
        if not self.num_components:
            return parameters.log_softmax(dim=-1).gather(3, values[..., None])[..., 0]
        weights, means, log_scales = parameters.chunk(3, dim=-1)
        return mixture_log_probs(values, weights, means, log_scales, self.num_levels)

    def distribution(self, parameters: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch levels"]:
        """Return the log-probabilities of all levels."""
        if not self.num_components:
            return parameters.log_softmax(dim=-1)
        weights, means, log_scales = parameters.chunk(3, dim=-1)
        return mixture_distribution(weights, means, log_scales, self.num_levels)


def causal_offsets(radius: int) -> list[tuple[int, int]]:
    """Return the rows and columns to the pixels around one that precede it, the nearest four first.

    Example:
        >>> causal_offsets(1)
        [(0, -1), (-1, 0), (-1, -1), (-1, 1)]
    """
    above = [(row, column) for row in range(-radius, 0) for column in range(-radius, radius + 1)]
    left = [(0, column) for column in range(-radius, 0)]
    return [*_NEAREST, *(offset for offset in above + left if offset not in _NEAREST)]


def neighbor_table(size: int, offsets: Sequence[tuple[int, int]]) -> Int[Tensor, "pixels around"]:
    """Return the numbers of the pixels at these offsets from each pixel; `size` ** 2 for one outside of the image."""
    rows, columns = torch.arange(size * size) // size, torch.arange(size * size) % size
    found = []
    for row, column in offsets:
        r, c = rows + row, columns + column
        is_inside = (r >= 0) & (c >= 0) & (c < size)
        found.append(torch.where(is_inside, r * size + c, size * size))
    return torch.stack(found, dim=1)


def waves(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape waves"]:
    """Return sines and cosines of numbers from -1 to 1, each twice as fast as the one before."""
    rates = math.pi * 2.0 ** torch.arange(_FREQUENCIES, device=x.device, dtype=x.dtype)
    angles = x[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def predict_smooth(
    around: Float[Tensor, "batch places around channels"],
) -> Float[Tensor, "batch places channels"]:
    """Return a prediction without weights: the median of left, above, and left + above - above left.

    Weinberger et al., "The LOCO-I Lossless Image Compression Algorithm" (2000), section III.A. It follows an edge to
    the left or above, and a slope otherwise.
    """
    left, above, corner = around[:, :, 0], around[:, :, 1], around[:, :, 2]
    low, high = torch.minimum(left, above), torch.maximum(left, above)
    return (left + above - corner).clamp(low, high)


class PixelFamily(Family):
    """A family of models that generate images."""

    default_shape: ClassVar[PixelShape] = PixelShape(size=8, channels=1)


class PixelTransformerFamily(PixelFamily):
    """Transformers over pixels: the block of `gpt`."""

    name = "pixel-transformer"
    Config = PixelTransformerConfig
    Model = PixelTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "pixel-gpt": Preset(
            {
                "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 4, "feedforward_dim": 512},
                "small": {"num_layers": 8, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048},
                "base": {"num_layers": 12, "model_dim": 768, "num_heads": 12, "feedforward_dim": 3072},
                "big": {"num_layers": 24, "model_dim": 1024, "num_heads": 16, "feedforward_dim": 4096},
            },
            {
                "encoder_layers": 0,
                "dropout": 0.0,
                "block": "pre-norm",
                "positions": "rotary",
                "norm": "rms",
                "activation": "squared-relu",
                "query_key_norm": True,
                "bias": False,
            },
        )
    }


class PixelRecurrenceFamily(PixelFamily):
    """Recurrent networks over pixels."""

    name = "pixel-recurrence"
    Config = PixelRecurrenceConfig
    Model = PixelRecurrence
    presets: ClassVar[Mapping[str, Preset]] = {
        "pixel-lstm": Preset(
            {
                "tiny": {"num_layers": 2, "model_dim": 192},
                "small": {"num_layers": 3, "model_dim": 768},
                "base": {"num_layers": 4, "model_dim": 1024},
                "big": {"num_layers": 4, "model_dim": 2048},
            },
            {"encoder_layers": 0},
        )
    }
