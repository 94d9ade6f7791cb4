"""Convolutional sequence to sequence: what is near is seen by convolution, the source by attention.

Gehring et al., "Convolutional Sequence to Sequence Learning" (2017). https://arxiv.org/abs/1705.03122
Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2016). https://arxiv.org/abs/1612.08083

A position knows its own sequence only as far as the windows of all layers
together reach; in the decoder every layer looks at the whole source. Leave out
the encoder and it is a causal convolutional language model, leave out the
decoder and it is a convolutional encoder.

Dimensions: see `regard.nn.attention`; `vocab` counts the tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.protocols import Memory, State
from regard.nn.attention import Lookup, Retrieval
from regard.nn.cache import Seen
from regard.nn.convolution import GatedConvolution, History
from regard.nn.dropout import Dropout
from regard.nn.masks import padding_mask
from regard.nn.norms import make_norm
from regard.nn.positions import Learned, Sinusoidal
from regard.nn.similarity import SimilarityName, make_similarity
from regard.settings import Settings

AddedPositions = Literal["sinusoidal", "learned", "none"]
"""Those added to the embeddings: a convolution has no scores to bias, and nothing to turn."""


class ConvolutionalConfig(Settings):
    """The shape of a convolutional network."""

    family: Literal["convolutional"] = "convolutional"
    num_layers: int = Field(default=6, ge=0)
    """Blocks in the encoder, and in the decoder."""
    encoder_layers: int | None = Field(default=None, ge=0)
    """Blocks in the encoder, where it is not num_layers; 0 leaves the encoder out."""
    decoder_layers: int | None = Field(default=None, ge=0)
    """Blocks in the decoder, where it is not num_layers; 0 leaves the decoder out."""
    model_dim: int = Field(default=512, ge=1)
    """Width of the residual stream."""
    kernel_size: int = Field(default=5, ge=1)
    """Places in a window: around a position in the encoder, up to it in the decoder."""
    dilation_growth: int = Field(default=1, ge=1)
    """In layer i, counted from 0, the places of a window stand dilation_growth**i positions apart; 1 leaves no gaps."""
    similarity: SimilarityName = "scaled-dot"
    """dot (as in the paper), scaled-dot, bilinear, additive, cosine, gaussian, mahalanobis or latent."""
    retrieval: Retrieval = "soft"
    """soft: average the values by their weights; hard: take the one with the best score."""
    attention_temperature: float = Field(default=1.0, gt=0.0)
    """Divides the scores of attention: nearer to 0, nearer to hard retrieval."""
    positions: AddedPositions = "sinusoidal"
    """sinusoidal, learned (as in the paper) or none."""
    position_base: float = Field(default=10_000.0, gt=1.0)
    """The base L of sinusoidal positions."""
    context_length: int = Field(default=1024, ge=1)
    """The most positions a sequence may have where positions are learned."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """On the embeddings and on what each sub-layer adds to the residual stream."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""

    @model_validator(mode="after")
    def _fits_together(self) -> "ConvolutionalConfig":
        if self.encoder_depth and self.kernel_size % 2 == 0:
            raise ConfigError(
                "the encoder's window is centred and needs an odd kernel_size, "
                f"got {self.kernel_size=} with encoder_layers={self.encoder_depth}"
            )
        if self.positions == "sinusoidal" and self.model_dim % 2:
            raise ConfigError(f"sinusoidal positions need an even model_dim, got {self.model_dim=}")
        if self.encoder_depth + self.decoder_depth == 0:
            raise ConfigError(
                "a convolutional network needs layers in its encoder or in its decoder, got none in either"
            )
        return self

    @property
    def encoder_depth(self) -> int:
        return self.num_layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return self.num_layers if self.decoder_layers is None else self.decoder_layers


@dataclass
class ConvolutionalState:
    """Each decoder block's newest inputs, its view of the encoder's output, and each row's positions so far.

    Its size does not grow, so it has slots as well.
    """

    histories: list[History]
    seen: list[Seen] | None
    lengths: Int[Tensor, " batch"]

    def select(self, rows: Int[Tensor, " chosen"]) -> "ConvolutionalState":
        seen = None if self.seen is None else [each.select(rows) for each in self.seen]
        histories = [history.select(rows) for history in self.histories]
        return ConvolutionalState(histories, seen, self.lengths.index_select(0, rows))

    def put(self, slot: int, state: State) -> None:
        assert isinstance(state, ConvolutionalState)
        for own, new in zip(self.histories, state.histories, strict=True):
            own.inputs[slot] = new.inputs[0]
        self.lengths[slot] = state.lengths[0]
        for seen, new in zip(self.seen or (), state.seen or (), strict=True):
            seen.put(slot, new)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        for history in self.histories:
            history.inputs.copy_(history.inputs.index_select(0, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))


class Convolutional(nn.Module):
    """Token ids in, scores for the next token out.

    Both sides share one vocabulary and one table of embeddings.
    """

    def __init__(self, config: ConvolutionalConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.model_dim)
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

    def forward(
        self,
        target: Int[Tensor, "batch time"],
        source: Int[Tensor, "batch source"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        """The scores after each prefix of `target`, given `source` where there is an encoder."""
        return self.decode(target, None if source is None else self.encode(source, lengths))

    def encode(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        added: Float[Tensor, "batch time model"] | None = None,
    ) -> Memory:
        assert self.encoder is not None, "this convolutional network has no encoder"
        mask = None if lengths is None else padding_mask(lengths, source.size(1))
        x = self._embed(source)
        x = x if added is None else x + added.to(x.dtype)
        return Memory(self.encoder(x, None if mask is None else mask[:, 0, 0]), mask)

    def decode(
        self, target: Int[Tensor, "batch time"], memory: Memory | None = None
    ) -> Float[Tensor, "batch time vocab"]:
        return self.scores(self.states(target, memory))

    def states(
        self,
        target: Int[Tensor, "batch time"],
        memory: Memory | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        assert documents is None, "a window of neighbours knows no documents"
        # Padding needs no mask here: it stands behind the end, where a causal window cannot reach.
        decoder = self._decoder()
        return decoder(self._embed(target), seen=decoder.see(memory))

    def scores(self, states: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch vocab"]:
        assert self.output is not None
        return self.output(states)

    def start(self, memory: Memory | None = None, *, batch_size: int = 1) -> ConvolutionalState:
        decoder = self._decoder()
        if memory is None:
            like = self.embedding.weight.new_empty(batch_size, 0, self.config.model_dim)
        else:
            like = memory.states
        lengths = torch.zeros(like.size(0), dtype=torch.long, device=like.device)
        return ConvolutionalState(decoder.start(like), decoder.see(memory), lengths)

    def slots(self, num_slots: int, capacity: int, *, source_length: int = 0) -> ConvolutionalState:
        state = self.start(batch_size=num_slots)
        if source_length:
            k = self.embedding.weight.new_zeros(num_slots, 1, source_length, self.config.model_dim)
            mask = torch.zeros(num_slots, 1, 1, source_length, dtype=torch.bool, device=k.device)
            state.seen = [Seen(k.clone(), k.clone(), mask.clone()) for _ in state.histories]
        return state

    def step(
        self, tokens: Int[Tensor, "batch new"], state: State
    ) -> tuple[Float[Tensor, "batch new vocab"], ConvolutionalState]:
        assert isinstance(state, ConvolutionalState)
        states = self._decoder()(self._embed(tokens), seen=state.seen, histories=state.histories, lengths=state.lengths)
        state.lengths.add_(tokens.size(1))
        return self.scores(states), state

    def _embed(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time model"]:
        # Scaled, so that a table small enough to be the output projection is large enough to be read.
        return self.embedding(tokens) * math.sqrt(self.config.model_dim)

    def _decoder(self) -> "ConvolutionalStack":
        assert self.decoder is not None, "this convolutional network has no decoder"
        return self.decoder


class ConvolutionalStack(nn.Module):
    """Blocks one upon another, each with the dilation of its layer, above the positions they share."""

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
        self.positions = make_positions(config)
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
        seen: Sequence[Seen] | None = None,
        histories: Sequence[History] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch time model"]:
        """The states of the last block; with `histories`, `x` holds each row's positions behind its `lengths` only."""
        x = self.dropout(self._placed(x, lengths))
        for index, block in enumerate(self.blocks):
            x = block(x, mask, seen=seen[index] if seen else None, history=histories[index] if histories else None)
        return self.final_norm(x)

    def see(self, memory: Memory | None) -> list[Seen] | None:
        """The encoder's output as each block's attention sees it, computed once."""
        return None if memory is None else [block.see(memory) for block in self._blocks()]

    def start(self, like: Float[Tensor, "batch time model"]) -> list[History]:
        """What each block remembers before the first position."""
        return [block.convolution.start(like) for block in self._blocks()]

    def _placed(
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
                    f"learned positions reach to context_length={self.context_length}, the sequence has {end} positions"
                )
        return x + self.positions(positions, positions).added.to(x.dtype)

    def _blocks(self) -> "list[ConvolutionalBlock]":
        return [block for block in self.blocks if isinstance(block, ConvolutionalBlock)]


class ConvolutionalBlock(nn.Module):
    """A gated convolution, then a look at the encoder's output where there is one.

    Each sees the residual stream normalised, and adds to it. The paper scales
    each sum by sqrt(1/2) instead and draws the weights to match (sections 3.4
    and 3.5). With Adam at ordinary rates that form took two to four times as
    many steps to learn to reverse strings.
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
        seen: Seen | None = None,
        history: History | None = None,
    ) -> Float[Tensor, "batch time model"]:
        x = x + self.dropout(self.convolution(self.convolution_norm(x), mask, history))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            assert seen is not None, "there is cross-attention, but nothing to be seen by it"
            x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), seen))
        return x

    def see(self, memory: Memory) -> Seen:
        """An encoder's output, made ready for this block's attention."""
        assert self.cross_attention is not None, "this block has no cross-attention"
        return self.cross_attention.see(memory)


class MultiStepAttention(nn.Module):
    """One of the looks that the decoder takes at the source, one in each block (Gehring et al., section 3.3).

    Only the queries are projected (equation 1). Keys and values both are the
    encoder's states as they are: these are normalised sums to which the
    embeddings belong already, which equation 2 adds to the values.
    """

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.model_dim, config.model_dim)
        self.lookup = Lookup(
            make_similarity(config.similarity, config.model_dim, 1),
            temperature=config.attention_temperature,
            retrieval=config.retrieval,
        )

    def forward(self, x: Float[Tensor, "batch query model"], seen: Seen) -> Float[Tensor, "batch query model"]:
        return self.lookup(self.query(x)[:, None], seen.k, seen.v, seen.mask)[:, 0]

    def see(self, memory: Memory) -> Seen:
        """An encoder's output as keys and values of one head."""
        states = memory.states[:, None]
        return Seen(self.lookup.prepare(states), states, memory.mask)


def make_positions(config: ConvolutionalConfig) -> Sinusoidal | Learned | None:
    """The module that tells the positions of a stack apart, or None."""
    match config.positions:
        case "sinusoidal":
            return Sinusoidal(config.model_dim, base=config.position_base)
        case "learned":
            return Learned(config.context_length, config.model_dim)
        case "none":
            return None


def _initialize(module: nn.Module) -> None:
    """Glorot's uniform weights, zero biases; embeddings of length about one, and positions as long as those scaled."""
    match module:
        case nn.Linear():
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        case Learned():
            nn.init.normal_(module.table.weight)
