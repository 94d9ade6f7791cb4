r"""The model of a caption, and its batches: an encoder of images, and a decoder that attends to the cells of an image.

Vinyals et al., "Show and Tell" (2015): one vector for the whole image. https://arxiv.org/abs/1411.4555
Xu et al., "Show, Attend and Tell" (2015), section 3.1: a vector $z_{ij}$ for each cell of a feature map.
https://arxiv.org/abs/1502.03044

A cell is scored by the state $h$ of the decoder, $s_{ij} = \mathrm{score}(h, z_{ij})$, and the decoder reads the
average of all cells by the softmax of their scores. Any encoder of images serves, whose hidden states are the cells of
a feature map or the patches of an image, and any decoder that can read the hidden states of another encoder.

Dimensions: `batch` images, `captions` of each, `target` positions of a caption, `cells` of an image, `rows` and
`columns` of cells, `model` width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batches import TensorBatch
from regard.data.caption_sources import Caption
from regard.data.formats.images import ImageConfig
from regard.data.stores.captions import CaptionStore
from regard.errors import ConfigError
from regard.models.family import (
    EncoderDecoderConfig,
    ModelConfig,
    build_encoder,
    build_model,
    find_family,
    read_model_config,
)
from regard.models.presets import find_preset
from regard.models.protocols import EncoderOutput
from regard.nn.attention import Lookup
from regard.nn.dropout import Dropout
from regard.nn.losses import IGNORED
from regard.nn.norms import LayerNorm
from regard.tasks.images import ShuffledImages
from regard.tasks.task import Likelihoods
from regard.text.tokenizer import Tokenizer

Memory = Literal["map", "mean"]
_POSITION_STD = 0.5
"""Standard deviation of the initial position vectors, beside normalized vectors of variance 1. With vectors
that grow along an axis, attention stayed on a corner, whatever was in the cells."""
MOST_CAPTIONS = 5
"""Captions of an image in a training step; of more, this many are drawn."""


def decoder_config(preset: str, **changes: Any) -> ModelConfig:
    """The settings of a decoder by the name of a preset, `tiny` where it has no size; some are changed.

    Example:
        >>> decoder_config("lstm-attention").model_dim
        192
    """
    _, values = find_preset(preset, "tiny")
    config = find_family(values["family"]).Config
    if not issubclass(config, EncoderDecoderConfig) or config.input_kind != "tokens":
        raise ConfigError(f"task.decoder must be a preset with a decoder, such as lstm-attention, got {preset!r}")
    try:
        return read_model_config({**values, **changes, "encoder_layers": 1})  # a stack that the image replaces
    except ConfigError as error:
        raise ConfigError(f"task.decoder: {error}") from None


class Captioner(nn.Module):
    """Pixels and prefixes of captions in, hidden states of the next tokens out."""

    def __init__(
        self, config: ModelConfig, image: ImageConfig, decoder: ModelConfig, vocab_size: int, *, memory: Memory = "map",
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config, self.memory = config, memory
        self.body: Any = build_encoder(config, image, reads="pixels", example="cnn")
        self.projection = nn.Linear(config.model_dim, decoder.model_dim)
        self.norm = LayerNorm(decoder.model_dim)
        self.dropout = Dropout(dropout)
        self.positions: nn.Parameter | None = None
        if memory == "map":
            self.positions = nn.Parameter(_POSITION_STD * torch.randn(image.num_positions - 1, decoder.model_dim))
        self.decoder: Any = build_model(decoder, vocab_size).replace_encoder()

    @property
    def has_maps(self) -> bool:
        """Whether the decoder weights the cells of an image."""
        is_attentive = any(isinstance(module, Lookup) for _, module in self._cross_attention())
        return self.memory == "map" and is_attentive

    def encode(self, pixels: Real[Tensor, "batch channels height width"]) -> EncoderOutput:
        """What the decoder reads: a vector for each cell of the images, or their mean."""
        cells = self.body.encode(pixels).hidden_states
        if self.config.has_class_token:
            cells = cells[:, 1:]
        if self.positions is None:
            return EncoderOutput(self.norm(self.projection(self.dropout(cells.mean(dim=1, keepdim=True)))), None)
        found = self.norm(self.projection(self.dropout(cells)))
        return EncoderOutput(found + self.positions.to(found.dtype), None)

    def hidden_states(
        self, encoded: EncoderOutput, tokens: Int[Tensor, "batch captions target"]
    ) -> Float[Tensor, "rows target model"]:
        """The hidden states of the captions of all images, one caption after the other."""
        cells = encoded.hidden_states.repeat_interleave(tokens.size(1), dim=0)
        return self.decoder.hidden_states(tokens.flatten(0, 1), EncoderOutput(cells, None))

    def attention(
        self, encoded: EncoderOutput, tokens: Int[Tensor, "batch captions target"]
    ) -> list[Float[Tensor, "rows heads target cells"]]:
        """The weights of the cells when each token is predicted, by layers."""
        weights: dict[str, list[Tensor]] = {}
        lookups = [(name, each) for name, each in self._cross_attention() if isinstance(each, Lookup)]
        try:
            for name, each in lookups:
                each.watcher = weights.setdefault(name, []).append
            self.hidden_states(encoded, tokens)
        finally:
            for _, each in lookups:
                each.watcher = None
        return [torch.cat(some, dim=2) for some in weights.values()]

    def _cross_attention(self) -> list[tuple[str, nn.Module]]:
        """The layers of the decoder that attend to the image, rather than to the caption."""
        return [
            (name, each)
            for name, each in self.decoder.named_modules()
            if isinstance(each, Lookup) and not name.endswith(".attention.lookup")
        ]


class ExportedCaptioner(nn.Module):
    """Pixels as bytes and prefixes of captions in, logits of the token after each position out."""

    def __init__(self, model: Captioner) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, pixels: UInt8[Tensor, "batch channels height width"], input_ids: Int[Tensor, "batch target"]
    ) -> tuple[Float[Tensor, "batch target vocab"]]:
        hidden_states = self.model.hidden_states(self.model.encode(pixels), input_ids[:, None])
        return (self.model.decoder.logits(hidden_states).float(),)


@dataclass(frozen=True)
class CaptionBatch(TensorBatch):
    """Images, and captions shifted by one: from `target_in[t]` and what precedes it, `target_out[t]` is predicted."""

    tensor_names = ("pixels", "target_in", "target_out", "offsets", "is_mirrored")
    pixels: UInt8[Tensor, "batch channels height width"]
    target_in: Int[Tensor, "batch captions target"]
    target_out: Int[Tensor, "batch captions target"]
    """Padded with `IGNORED`; an image with fewer captions than others has captions of padding."""
    num_targets: int
    num_tokens: int
    offsets: Int[Tensor, "batch 2"] | None = None
    """By how many pixels each image is shifted, by row and column; None without augmentation."""
    is_mirrored: Bool[Tensor, " batch"] | None = None
    captions: tuple[tuple[Caption, ...], ...] = ()
    """Where they are known as text: all captions of each image."""


@dataclass(frozen=True)
class CaptionLikelihoods(Likelihoods):
    """Likelihoods of the captions of images, and for each image the attention on what its words name."""

    pointing: tuple[tuple[float, float], ...] = ()
    """The sum of these shares over the words with a box, and the number of these words."""


def make_caption_batch(
    pixels: NDArray[np.uint8],
    captions: Sequence[Sequence[NDArray[np.int64]]],
    tokenizer: Tokenizer,
    *,
    num_positions: int,
    shape: tuple[int, int] | None = None,
) -> CaptionBatch:
    """Pad captions; `shape` is the number of captions and of positions, or they are those of the longest."""
    most, longest = shape or (max(map(len, captions)), 1 + max(len(each) for some in captions for each in some))
    target_in = np.full((len(captions), most, longest), tokenizer.pad, np.int64)
    target_out = np.full((len(captions), most, longest), IGNORED, np.int64)
    target_in[:, :, 0] = tokenizer.start
    for row, some in enumerate(captions):
        for place, ids in enumerate(some):
            target_in[row, place, 1 : 1 + len(ids)] = ids
            target_out[row, place, : len(ids)] = ids
            target_out[row, place, len(ids)] = tokenizer.end
    num_targets = int((target_out != IGNORED).sum())
    return CaptionBatch(
        pixels=torch.from_numpy(pixels),
        target_in=torch.from_numpy(target_in),
        target_out=torch.from_numpy(target_out),
        num_targets=num_targets,
        num_tokens=num_targets + len(captions) * num_positions,
    )


class CaptionBatches:
    """Images of a store in shuffled order, each with up to five of its captions."""

    def __init__(
        self,
        store: CaptionStore,
        tokenizer: Tokenizer,
        augment: Callable[[CaptionBatch, np.random.Generator], CaptionBatch],
        *,
        num_positions: int,
        batch_tokens: int,
        seed: int,
        has_fixed_shapes: bool,
    ) -> None:
        self._store, self._tokenizer, self._augment = store, tokenizer, augment
        self._num_positions = num_positions
        at_once = batch_tokens // num_positions
        self._order = ShuffledImages(len(store), at_once=at_once, seed=seed, has_fixed_shapes=has_fixed_shapes)
        self.per_epoch = self._order.per_epoch
        self._shape = (min(MOST_CAPTIONS, store.most_captions), 1 + store.max_length) if has_fixed_shapes else None

    def batch(self, number: int) -> CaptionBatch:
        """Batch `number`, counted from 0 through all epochs."""
        rows, rng = self._order.rows(number), self._order.generator(number)
        captions = [_draw(some, rng) for some in self._store.captions_of(rows)]
        batch = make_caption_batch(
            self._store.pixels(rows), captions, self._tokenizer, num_positions=self._num_positions, shape=self._shape
        )
        batch = self._augment(batch, rng)
        padded, more = self._order.padded(batch, len(rows))
        if not more:
            return batch
        return replace(padded, target_out=F.pad(batch.target_out, (0, 0, 0, 0, 0, more), value=IGNORED))


def _draw(captions: list[NDArray[np.int64]], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    if len(captions) <= MOST_CAPTIONS:
        return captions
    return [captions[place] for place in rng.permutation(len(captions))[:MOST_CAPTIONS]]


def pointing_of(
    captions: Sequence[Caption], tokenizer: Tokenizer, weights: Float[np.ndarray, "captions target cells"]
) -> tuple[float, float]:
    """The attention of words on the boxes of what they name, summed over these words, and their number.

    A cell is on a box if they overlap. A word of several tokens has the mean of their attention.
    """
    size = round(weights.shape[-1] ** 0.5)
    total, count = 0.0, 0
    encoded = tokenizer.encode_with_offsets([caption.text for caption in captions])
    for caption, (_, offsets), own in zip(captions, encoded, weights, strict=False):
        words = _word_of(caption.text)
        tokens = [words[start] if start < len(words) else -1 for start, _ in offsets]
        for each in caption.grounding:
            mask = cells_on(each.box, size).ravel()
            for word in range(each.first, each.end):
                places = [place for place, its in enumerate(tokens) if its == word]
                if places:
                    total += float(own[places][:, mask].sum(axis=1).mean())
                    count += 1
    return total, float(count)


def cells_on(box: tuple[float, float, float, float], size: int) -> Bool[np.ndarray, "rows columns"]:
    """The cells of a square of `size` by `size` cells that a box overlaps.

    Example:
        >>> cells_on((0.0, 0.5, 0.3, 0.75), 4).astype(int).tolist()
        [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    """
    starts, ends = np.arange(size) / size, (np.arange(size) + 1) / size
    left, top, right, bottom = box
    across, down = (ends > left) & (starts < right), (ends > top) & (starts < bottom)
    return down[:, None] & across[None, :]


def _word_of(text: str) -> list[int]:
    """For each character, the number of its word; -1 for white space."""
    found, word, inside = [], -1, False
    for character in text:
        if character.isspace():
            inside = False
        elif not inside:
            word, inside = word + 1, True
        found.append(-1 if character.isspace() else word)
    return found
