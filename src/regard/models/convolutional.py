"""Convolutional sequence to sequence learning: gated convolutions, and attention to the source.

Gehring et al., "Convolutional Sequence to Sequence Learning" (2017). https://arxiv.org/abs/1705.03122
Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2016). https://arxiv.org/abs/1612.08083

The receptive field of a position within its own sequence is the sum of the windows
of all layers; in the decoder every layer attends to the whole source. Without its
encoder it is a causal convolutional language model, without its decoder a
convolutional encoder.

Dimensions: see `regard.nn.attention`; `vocab` tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.base import SequenceModel
from regard.models.family import EncoderDecoderConfig, Family, ModelConfig, Preset, make_lookup
from regard.models.protocols import DecoderState, EncoderOutput
from regard.nn.convolution import ConvolutionCache, GatedConvolution
from regard.nn.dropout import Dropout
from regard.nn.kv_cache import CrossAttentionKV
from regard.nn.masks import padding_mask
from regard.nn.norms import make_norm
from regard.nn.positions import Learned, Sinusoidal
from regard.nn.similarity import SimilarityName, make_similarity

AddedPositions = Literal["sinusoidal", "learned", "none"]
"""Positions that are added to the embeddings; the others change the scores of self-attention."""


class ConvolutionalConfig(EncoderDecoderConfig):
    """The settings of a convolutional network."""

    family: str = "convolutional"
    kernel_size: int = Field(default=5, ge=1)
    """Inputs of a window: centered at a position in the encoder, up to it in the decoder."""
    dilation_growth: int = Field(default=1, ge=1)
    """In layer i, counted from 0, the inputs of a window are dilation_growth**i positions apart; 1 for no dilation."""
    similarity: SimilarityName = "scaled-dot"
    """dot (as in the paper), scaled-dot, bilinear, additive, cosine, gaussian, mahalanobis or latent."""
    positions: AddedPositions = "sinusoidal"
    """sinusoidal, learned (as in the paper) or none."""
    position_base: float = Field(default=10_000.0, gt=1.0)
    """The base L of sinusoidal positions."""
    context_length: int = Field(default=1024, ge=1)
    """The longest sequence, where positions are learned."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on the embeddings and on the output of each sub-layer."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""

    @model_validator(mode="after")
    def _fits_together(self) -> "ConvolutionalConfig":
        if self.encoder_depth and self.kernel_size % 2 == 0:
            raise ConfigError(
                "kernel_size must be odd for the centered windows of the encoder, "
                f"got kernel_size={self.kernel_size!r} with encoder_layers={self.encoder_depth}"
            )
        if self.positions == "sinusoidal" and self.model_dim % 2:
            raise ConfigError(f"sinusoidal positions need an even model_dim, got model_dim={self.model_dim!r}")
        if self.encoder_depth + self.decoder_depth == 0:
            raise ConfigError(
                "a convolutional network needs layers in its encoder or in its decoder, got none in either"
            )
        return self

    @property
    def max_source_positions(self) -> int | None:
        return self.context_length if self.encoder_depth and self.positions == "learned" else None

    @property
    def max_target_positions(self) -> int | None:
        return self.context_length if self.decoder_depth and self.positions == "learned" else None


@dataclass
class ConvolutionalState:
    """The newest inputs of each decoder block, the keys and values of its attention, and the length of each row.

    Its size does not grow, so it is also a `StaticState`.
    """

    caches: list[ConvolutionCache]
    cross_kvs: list[CrossAttentionKV] | None
    lengths: Int[Tensor, " batch"]

    def select(self, rows: Int[Tensor, " chosen"]) -> "ConvolutionalState":
        cross_kvs = self.cross_kvs and [kv.select(rows) for kv in self.cross_kvs]
        caches = [cache.select(rows) for cache in self.caches]
        return ConvolutionalState(caches, cross_kvs, self.lengths.index_select(0, rows))

    def put(self, rows: Int[Tensor, " chosen"], state: DecoderState) -> None:
        assert isinstance(state, ConvolutionalState)
        for own, new in zip(self.caches, state.caches, strict=True):
            own.inputs[rows] = new.inputs
        self.lengths[rows] = state.lengths
        for own, new in zip(self.cross_kvs or (), state.cross_kvs or (), strict=True):
            own.put(rows, new)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for cache in self.caches:
            cache.inputs.copy_(cache.inputs.index_select(0, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))


class Convolutional(SequenceModel[ConvolutionalConfig]):
    """Token ids in, logits for the next token out."""

    Config: ClassVar[type[ModelConfig]] = ConvolutionalConfig

    def __init__(self, config: ConvolutionalConfig, vocab_size: int, *, source_vocab_size: int | None = None) -> None:
        super().__init__(config, vocab_size, source_vocab_size=source_vocab_size)
        has_encoder, has_decoder = config.encoder_depth > 0, config.decoder_depth > 0
        self.encoder = ConvolutionalStack(config, config.encoder_depth) if has_encoder else None
        self.decoder = (
            ConvolutionalStack(config, config.decoder_depth, is_causal=True, has_cross_attention=has_encoder)
            if has_decoder
            else None
        )
        self.output = nn.Linear(config.model_dim, vocab_size, bias=False) if has_decoder else None
        self.apply(_initialize)
        if self.output is not None and config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        segments: Int[Tensor, "batch time"] | None = None,
        extra_embeddings: Float[Tensor, "batch time model"] | None = None,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> EncoderOutput:
        self.require_documents(documents)
        if self.encoder is None:
            return self.encode_causally(source, lengths, extra_embeddings, documents)
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        x = self._embed(source, self.source_embedding or self.embedding)
        x = x if extra_embeddings is None else x + extra_embeddings.to(x.dtype)
        return EncoderOutput(self.encoder(x, None if mask is None else mask[:, 0, 0]), mask)

    def hidden_states(
        self,
        tokens: Int[Tensor, "batch time"],
        encoder_output: EncoderOutput | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        self.require_documents(documents)
        self.require_source(encoder_output is not None)
        # Padding needs no mask here: it follows the end, and a causal window does not reach it.
        decoder = self._decoder()
        return decoder(self._embed(tokens, self.embedding), cross_kvs=decoder.project_memory(encoder_output))

    def initial_state(self, encoder_output: EncoderOutput | None = None, *, batch_size: int = 1) -> ConvolutionalState:
        self.require_source(encoder_output is not None)
        decoder = self._decoder()
        if encoder_output is None:
            like = self.embedding.weight.new_empty(batch_size, 0, self.config.model_dim)
        else:
            like = encoder_output.hidden_states
        lengths = torch.zeros(like.size(0), dtype=torch.long, device=like.device)
        return ConvolutionalState(decoder.initial_caches(like), decoder.project_memory(encoder_output), lengths)

    def static_state(self, num_slots: int, capacity: int, *, source_length: int = 0) -> ConvolutionalState:
        weight = self.embedding.weight
        lengths = torch.zeros(num_slots, dtype=torch.long, device=weight.device)
        caches = self._decoder().initial_caches(weight.new_empty(num_slots, 0, self.config.model_dim))
        cross_kvs = None
        if source_length:
            k = weight.new_zeros(num_slots, 1, source_length, self.config.model_dim)
            mask = torch.zeros(num_slots, 1, 1, source_length, dtype=torch.bool, device=k.device)
            cross_kvs = [CrossAttentionKV(k.clone(), k.clone(), mask.clone()) for _ in caches]
        return ConvolutionalState(caches, cross_kvs, lengths)

    def step(
        self, tokens: Int[Tensor, "batch new"], state: DecoderState
    ) -> tuple[Float[Tensor, "batch new vocab"], ConvolutionalState]:
        assert isinstance(state, ConvolutionalState)
        x = self._embed(tokens, self.embedding)
        hidden_states = self._decoder()(x, cross_kvs=state.cross_kvs, caches=state.caches, lengths=state.lengths)
        state.lengths.add_(tokens.size(1))
        return self.logits(hidden_states), state

    def _embed(self, tokens: Int[Tensor, "batch time"], embedding: nn.Embedding) -> Float[Tensor, "batch time model"]:
        # Scaled, because the weights of a tied output projection are too small for an input.
        return embedding(tokens) * math.sqrt(self.config.model_dim)

    def _decoder(self) -> "ConvolutionalStack":
        assert isinstance(self.decoder, ConvolutionalStack)
        return self.decoder


class ConvolutionalStack(nn.Module):
    """A stack of blocks, each with the dilation of its layer, and their position encoding."""

    def __init__(
        self,
        config: ConvolutionalConfig,
        num_layers: int,
        *,
        is_causal: bool = False,
        has_cross_attention: bool = False,
    ) -> None:
        super().__init__()
        self.context_length = config.context_length
        self.positions = _make_positions(config)
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            ConvolutionalBlock(
                GatedConvolution(
                    config.model_dim, config.kernel_size, is_causal=is_causal, dilation=config.dilation_growth**layer
                ),
                cross_attention=MultiStepAttention(config) if has_cross_attention else None,
                dropout=config.dropout,
            )
            for layer in range(num_layers)
        )
        self.final_norm = make_norm("layer", config.model_dim)

    def forward(
        self,
        x: Float[Tensor, "batch time model"],
        mask: Bool[Tensor, "batch time"] | None = None,
        *,
        cross_kvs: Sequence[CrossAttentionKV] | None = None,
        caches: Sequence[ConvolutionCache] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        """Return the hidden states of the last block; with `caches`, `x` are the positions from `lengths` on."""
        x = self.dropout(self._add_positions(x, lengths))
        for i, block in enumerate(self.blocks):
            cross_kv, cache = cross_kvs[i] if cross_kvs else None, caches[i] if caches else None
            x = block(x, mask, cross_kv=cross_kv, cache=cache)
        return self.final_norm(x)

    def project_memory(self, encoder_output: EncoderOutput | None) -> list[CrossAttentionKV] | None:
        """Compute the keys and values of the encoder's output for each block."""
        return None if encoder_output is None else [block.project_memory(encoder_output) for block in self._blocks()]

    def initial_caches(self, like: Float[Tensor, "batch time model"]) -> list[ConvolutionCache]:
        """Return the cache of each block before the first position."""
        return [block.convolution.initial_cache(like) for block in self._blocks()]

    def _add_positions(
        self, x: Float[Tensor, "batch time model"], lengths: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch time model"]:
        if self.positions is None:
            return x
        positions = torch.arange(x.size(1), device=x.device)
        if lengths is not None:
            positions = lengths[:, None] + positions
        if isinstance(self.positions, Learned):
            end = x.size(1) if lengths is None else int(lengths.max()) + x.size(1)
            if end > self.context_length:
                raise ConfigError(
                    f"positions are learned up to context_length={self.context_length}, "
                    f"the sequence has {end} positions"
                )
        return x + self.positions(positions, positions).embeddings.to(x.dtype)

    def _blocks(self) -> "list[ConvolutionalBlock]":
        return [block for block in self.blocks if isinstance(block, ConvolutionalBlock)]


class ConvolutionalBlock(nn.Module):
    """A gated convolution, then attention to the encoder's output where there is one.

    Each is applied to the normalized residual stream and added to it. The paper
    instead scales each sum by sqrt(1/2) and initializes the weights accordingly
    (sections 3.4 and 3.5). With Adam at ordinary learning rates that form took two to
    four times as many steps to learn to reverse strings.
    """

    def __init__(
        self, convolution: GatedConvolution, *, cross_attention: "MultiStepAttention | None" = None, dropout: float
    ) -> None:
        super().__init__()
        model_dim = convolution.linear.out_features // 2
        self.convolution, self.cross_attention = convolution, cross_attention
        self.convolution_norm = make_norm("layer", model_dim)
        self.cross_attention_norm = None if cross_attention is None else make_norm("layer", model_dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch time model"],
        mask: Bool[Tensor, "batch time"] | None = None,
        *,
        cross_kv: CrossAttentionKV | None = None,
        cache: ConvolutionCache | None = None,
    ) -> Float[Tensor, "batch time model"]:
        x = x + self.dropout(self.convolution(self.convolution_norm(x), mask, cache))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            assert cross_kv is not None, "the model checks that there is a source"
            x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), cross_kv))
        return x

    def project_memory(self, encoder_output: EncoderOutput) -> CrossAttentionKV:
        """Compute the keys and values of an encoder's output for the attention of this block."""
        assert self.cross_attention is not None, "the model checks that it has an encoder"
        return self.cross_attention.project_memory(encoder_output)


class MultiStepAttention(nn.Module):
    """The attention of one decoder block to the source (Gehring et al., section 3.3).

    Only the queries are projected (equation 1). Keys and values are both the
    encoder's hidden states: these are normalized sums that contain the embeddings,
    which equation 2 adds to the values.
    """

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.model_dim, config.model_dim)
        self.lookup = make_lookup(config, make_similarity(config.similarity, config.model_dim, 1))

    def forward(
        self, x: Float[Tensor, "batch query model"], kv: CrossAttentionKV
    ) -> Float[Tensor, "batch query model"]:
        return self.lookup(self.query(x)[:, None], kv.k, kv.v, kv.mask)[:, 0]

    def project_memory(self, encoder_output: EncoderOutput) -> CrossAttentionKV:
        """Return an encoder's output as the keys and values of one head."""
        hidden_states = encoder_output.hidden_states[:, None]
        return CrossAttentionKV(self.lookup.prepare(hidden_states), hidden_states, encoder_output.mask)


def _make_positions(config: ConvolutionalConfig) -> Sinusoidal | Learned | None:
    match config.positions:
        case "sinusoidal":
            return Sinusoidal(config.model_dim, base=config.position_base)
        case "learned":
            return Learned(config.context_length, config.model_dim)
        case "none":
            return None


def _initialize(module: nn.Module) -> None:
    """Glorot-uniform weights, zero biases, embeddings of length about one, and positions of the scale of embeddings."""
    match module:
        case nn.Linear():
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        case Learned():
            nn.init.normal_(module.table.weight)


class ConvolutionalFamily(Family):
    """Gated convolutional networks."""

    name = "convolutional"
    Config = ConvolutionalConfig
    Model = Convolutional
    presets: ClassVar[Mapping[str, Preset]] = {
        "convolution": Preset(
            {
                "tiny": {"num_layers": 3, "model_dim": 128},
                "small": {"num_layers": 6, "model_dim": 256, "dropout": 0.3},
                "base": {"num_layers": 8, "model_dim": 512},
                "big": {"num_layers": 8, "model_dim": 1024, "dropout": 0.3},
            }
        )
    }
