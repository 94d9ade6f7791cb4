"""The settings of a Transformer: one list of switches, from the paper's model to those that others have trained.

Dimensions: see `regard.nn.attention`.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from regard.errors import ConfigError
from regard.nn.attention import Retrieval
from regard.nn.blocks import BlockOrder
from regard.nn.feedforward import Activation
from regard.nn.norms import Norm
from regard.nn.positions import Positions
from regard.nn.similarity import SimilarityName
from regard.settings import Settings

Initialization = Literal["glorot", "gpt2"]


class TransformerConfig(Settings):
    """The shape of a Transformer. The defaults are the base model of Vaswani et al. (2017)."""

    family: Literal["transformer"] = "transformer"
    num_layers: int = Field(default=6, ge=0)
    """Blocks in the encoder, and in the decoder."""
    encoder_layers: int | None = Field(default=None, ge=0)
    """Blocks in the encoder, where it is not num_layers; 0 leaves the encoder out."""
    decoder_layers: int | None = Field(default=None, ge=0)
    """Blocks in the decoder, where it is not num_layers; 0 leaves the decoder out."""
    model_dim: int = Field(default=512, ge=1)
    """Width of the residual stream."""
    num_heads: int = Field(default=8, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """Key/value heads that the query heads share (grouped-query attention); unset, each has its own."""
    query_width: int | None = Field(default=None, ge=1)
    """Width of all query heads together, where it is not model_dim."""
    feedforward_dim: int = Field(default=2048, ge=0)
    """Width of the hidden layer of each position's own network; 0 leaves the network out."""
    activation: Activation = "relu"
    """relu, gelu, gelu-tanh (its approximation), silu, squared-relu; or one that is gated and has half as many weights
    again: swiglu, geglu or geglu-tanh."""
    norm: Norm = "layer"
    """layer, rms or none."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0)
    """What keeps the division of a norm finite."""
    embedding_norm: bool = False
    """Normalise what the first block of a stack is given."""
    block: BlockOrder = "post-norm"
    """post-norm as in the paper; pre-norm, which trains without a long warm-up; or parallel."""
    residual: bool = True
    """Add what a sub-layer makes to what it was given."""
    value_projection: bool = True
    """Whether attention projects what it looks at before it averages it."""
    output_projection: bool = True
    """Whether attention projects what its heads have found."""
    shaped_attention: bool = False
    """Let self-attention start out as the identity, so that it needs no residual sum."""
    similarity: SimilarityName = "scaled-dot"
    """dot, scaled-dot, bilinear, additive, cosine, gaussian, mahalanobis or latent."""
    retrieval: Retrieval = "soft"
    """soft: average the values by their weights; hard: take the one with the best score."""
    attention_temperature: float = Field(default=1.0, gt=0.0)
    """Divides the scores of attention: nearer to 0, nearer to hard retrieval."""
    positions: Positions = "sinusoidal"
    """sinusoidal, learned, rotary, relative, alibi, shaw or none."""
    encoder_positions: Positions | None = None
    """Of the encoder, where they are not `positions`."""
    decoder_positions: Positions | None = None
    """Of the decoder, where they are not `positions`."""
    position_base: float = Field(default=10_000.0, gt=1.0)
    """The base L of sinusoidal and rotary positions."""
    position_stretch: float = Field(default=1.0, ge=1.0)
    """How much slower rotary positions turn where a turn takes longer than the model was first trained for."""
    position_stretch_from: int = Field(default=8_192, ge=1)
    """The number of positions that it was first trained for."""
    position_buckets: int = Field(default=32, ge=4)
    """Groups of distances that relative positions tell apart."""
    position_distance: int = Field(default=128, ge=2)
    """From this distance on they are one."""
    context_length: int = Field(default=1024, ge=1)
    """The most positions a sequence may have where positions are learned."""
    num_segments: int = Field(default=0, ge=0)
    """Kinds of text that an encoder tells apart, such as the first and the second of a pair; 0 for none."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """On the embeddings and on what each sub-layer adds to the residual stream."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On the attention weights."""
    token_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the vocabulary that is read as zeros in a step of training."""
    bias: bool = True
    """Whether linear layers add a bias."""
    attention_bias: bool | None = None
    """Whether queries, keys and values have one, where it is not `bias`."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""
    output_bias: bool = False
    """Whether each token of the vocabulary has a score of its own to begin with."""
    scale_output: bool = False
    """Divide what scores are computed from by the square root of model_dim."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of model_dim."""
    query_key_norm: bool = False
    """Normalise queries and keys, so that the scores of attention cannot grow without bound."""
    initialization: Initialization = "glorot"
    """glorot; or gpt2: small normal numbers, smaller where a sub-layer adds to the residual stream."""

    @model_validator(mode="after")
    def _heads_fit_together(self) -> "TransformerConfig":
        width = f"{self.model_dim=}" if self.query_width is None else f"{self.query_width=}"
        if (self.query_width or self.model_dim) % self.num_heads:
            name = width.removeprefix("self.").partition("=")[0]
            raise ConfigError(f"{name} must be a multiple of num_heads, got {width} and {self.num_heads=}")
        if self.num_heads % (self.num_key_value_heads or 1):
            raise ConfigError(
                "num_heads must be a multiple of num_key_value_heads, "
                f"got {self.num_heads=} and {self.num_key_value_heads=}"
            )
        if "rotary" in self.position_schemes and self.head_dim % 2:
            raise ConfigError(
                "rotary positions need an even number of dimensions a head, "
                f"got {width} / {self.num_heads=} = {self.head_dim}"
            )
        if not self.value_projection and (self.num_key_value_heads or self.num_heads) != self.num_heads:
            raise ConfigError(
                "without value_projection each head needs a slice of its own, "
                f"got {self.num_heads=} and {self.num_key_value_heads=}"
            )
        has_own_width = self.query_width not in (None, self.model_dim)
        if has_own_width and not (self.value_projection and self.output_projection):
            raise ConfigError(
                "heads that are wider or narrower than model_dim need value_projection and output_projection, "
                f"got {self.query_width=} and {self.model_dim=}"
            )
        return self

    @model_validator(mode="after")
    def _stacks_fit_together(self) -> "TransformerConfig":
        schemes = self.position_schemes
        if "sinusoidal" in schemes and self.model_dim % 2:
            raise ConfigError(f"sinusoidal positions need an even model_dim, got {self.model_dim=}")
        if "relative" in schemes and self.position_distance <= self.position_buckets // 2:
            raise ConfigError(
                "position_distance must exceed half of position_buckets, "
                f"got {self.position_distance=} and {self.position_buckets=}"
            )
        if self.num_segments and not self.encoder_depth:
            raise ConfigError(f"segments are told apart by an encoder, and there is none, got {self.num_segments=}")
        return self

    @property
    def position_schemes(self) -> Sequence[Positions]:
        """Of the encoder, where there is one, and of the decoder, where there is one."""
        schemes: list[Positions] = []
        if self.encoder_depth:
            schemes.append(self.encoder_positions or self.positions)
        if self.decoder_depth:
            schemes.append(self.decoder_positions or self.positions)
        return schemes

    @property
    def head_dim(self) -> int:
        return (self.query_width or self.model_dim) // self.num_heads

    @property
    def encoder_depth(self) -> int:
        return self.num_layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return self.num_layers if self.decoder_layers is None else self.decoder_layers
