"""The settings of a Transformer, from the model of the paper to GPT-2, Llama, BERT, T5, BART and Marian."""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from regard.errors import ConfigError
from regard.models.family import EncoderDecoderConfig
from regard.nn.blocks import BlockOrder
from regard.nn.feedforward import Activation
from regard.nn.masks import SparsePattern
from regard.nn.norms import Norm
from regard.nn.positions import Positions, Stretching
from regard.nn.similarity import SimilarityName
from regard.settings import nearest

Initialization = Literal["glorot", "gpt2"]
SelfAttentionKind = Literal["full", "window", "strided", "linear", "low-rank"]

_SPARSE = ("window", "strided")
_BIASED: tuple[Positions, ...] = ("relative", "alibi", "shaw")
"""Positions that are added to the scores of a softmax."""
_DEFAULT_WINDOW, _DEFAULT_RANK = 128, 64


class TransformerConfig(EncoderDecoderConfig):
    """The settings of a Transformer. The defaults are the base model of Vaswani et al. (2017)."""

    family: str = "transformer"
    can_use_muon: ClassVar[bool] = True
    can_isolate_documents: ClassVar[bool] = True
    has_attention_kinds: ClassVar[bool] = True
    """Whether self-attention may be of another kind than full."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads."""
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """Key/value heads that the query heads share (grouped-query attention). Unset: one per query head."""
    query_width: int | None = Field(default=None, ge=1)
    """Width of all query heads together, if not model_dim."""
    feedforward_dim: int = Field(default=2048, ge=0)
    """Width of the hidden layer of the feed-forward network; 0 for no feed-forward network."""
    activation: Activation = "relu"
    """relu, gelu, gelu-tanh (its approximation), silu or squared-relu; or a gated one with 1.5 times as many weights:
    swiglu, geglu or geglu-tanh."""
    norm: Norm = "layer"
    """layer, rms or none."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0)
    """Added to the variance, or to the mean square, before its root is taken."""
    embedding_norm: bool = False
    """Normalize the embeddings before the first block."""
    block: BlockOrder = "post-norm"
    """post-norm as in the paper; pre-norm, which trains without a long warmup; or parallel."""
    residual: bool = True
    """Add the input of each sub-layer to its output."""
    value_projection: bool = True
    """Whether attention projects the values before it averages them."""
    output_projection: bool = True
    """Whether attention projects the concatenated outputs of its heads."""
    attention: str | list[str] = "full"
    """Self-attention: full, window, strided, linear or low-rank (of encoders); or a list of these, which is repeated
    over the layers."""
    encoder_attention: str | list[str] | None = None
    """Self-attention of the encoder of an encoder-decoder, if not `attention`."""
    window: int | None = Field(default=None, ge=1)
    """Window and strided attention: positions from the nearest key to the first that is too far away. Unset: 128."""
    num_global_tokens: int = Field(default=0, ge=0)
    """Window and strided attention: the first positions, which attend to all and to which all attend."""
    stride: int | None = Field(default=None, ge=2)
    """Strided attention: all attend to the last of every so many positions. Unset: the window."""
    projected_length: int | None = Field(default=None, ge=1)
    """Low-rank attention: averages to which the context_length positions are projected. Unset: 64."""
    shaped_attention: bool = False
    """Initialize self-attention to the identity, so that it needs no residual sum."""
    similarity: SimilarityName = "scaled-dot"
    """dot, scaled-dot, bilinear, additive, cosine, gaussian, mahalanobis or latent."""
    positions: Positions = "sinusoidal"
    """sinusoidal, learned, rotary, relative, alibi, shaw or none."""
    encoder_positions: Positions | None = None
    """Positions of the encoder, if not `positions`."""
    decoder_positions: Positions | None = None
    """Positions of the decoder, if not `positions`."""
    position_base: float = Field(default=10_000.0, gt=1.0)
    """The base L of sinusoidal and rotary positions."""
    position_stretch: float = Field(default=1.0, ge=1.0)
    """Factor by which the context of rotary positions is longer than position_stretch_from."""
    position_stretch_by: Stretching | None = None
    """llama3, which slows down the slow rotations; linear, all rotations; ntk, by a larger base; or yarn. Unset:
    llama3."""
    position_stretch_from: int = Field(default=8_192, ge=1)
    """Context length before the stretch."""
    position_buckets: int = Field(default=32, ge=4)
    """Buckets of distances of relative positions."""
    position_distance: int = Field(default=128, ge=2)
    """Distance from which on all share one bucket."""
    context_length: int = Field(default=1024, ge=1)
    """The longest sequence, where positions are learned."""
    num_segments: int = Field(default=0, ge=0)
    """Segment embeddings of the encoder, such as 2 for the texts of a pair; 0 for none."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on the embeddings and on the output of each sub-layer."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the attention weights."""
    token_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which the embedding of a token is zero in a training step."""
    stochastic_depth: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which a sub-layer of the last block is skipped for a row in a training step; it decreases
    linearly to 0 in the first block."""
    bias: bool = True
    """Whether linear layers have a bias."""
    attention_bias: bool | None = None
    """Whether the query, key and value projections have a bias, if not `bias`."""
    tie_embeddings: bool = True
    """Use the token embedding, transposed, as the output projection."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    scale_output: bool = False
    """Divide the last hidden states by the square root of model_dim."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of model_dim."""
    query_key_norm: bool = False
    """Normalize queries and keys, which bounds the attention scores."""
    initialization: Initialization = "glorot"
    """glorot; or gpt2: normal with a small standard deviation, smaller for the output layers of sub-layers."""

    @model_validator(mode="after")
    def _heads_fit_together(self) -> "TransformerConfig":
        width = f"model_dim={self.model_dim}" if self.query_width is None else f"query_width={self.query_width}"
        if (self.query_width or self.model_dim) % self.num_heads:
            name = width.removeprefix("self.").partition("=")[0]
            raise ConfigError(f"{name} must be a multiple of num_heads, got {width} and num_heads={self.num_heads}")
        if self.num_heads % (self.num_key_value_heads or 1):
            raise ConfigError(
                "num_heads must be a multiple of num_key_value_heads, "
                f"got num_heads={self.num_heads} and num_key_value_heads={self.num_key_value_heads}"
            )
        if "rotary" in self.position_schemes and self.head_dim % 2:
            raise ConfigError(
                f"rotary positions need an even head_dim, got {width} / num_heads={self.num_heads} = {self.head_dim}"
            )
        if not self.value_projection and (self.num_key_value_heads or self.num_heads) != self.num_heads:
            raise ConfigError(
                "without value_projection num_key_value_heads must equal num_heads, "
                f"got num_heads={self.num_heads} and num_key_value_heads={self.num_key_value_heads}"
            )
        has_own_width = self.query_width not in (None, self.model_dim)
        if has_own_width and not (self.value_projection and self.output_projection):
            raise ConfigError(
                "a query_width other than model_dim needs value_projection and output_projection, "
                f"got query_width={self.query_width} and model_dim={self.model_dim}"
            )
        return self

    @model_validator(mode="after")
    def _stacks_fit_together(self) -> "TransformerConfig":
        schemes = self.position_schemes
        if "sinusoidal" in schemes and self.model_dim % 2:
            raise ConfigError(f"sinusoidal positions need an even model_dim, got model_dim={self.model_dim}")
        if "relative" in schemes and self.position_distance <= self.position_buckets // 2:
            raise ConfigError(
                "position_distance must exceed half of position_buckets, "
                f"got position_distance={self.position_distance} and position_buckets={self.position_buckets}"
            )
        if self.stochastic_depth and not self.residual:
            raise ConfigError(
                "stochastic_depth needs the residual sum, "
                f"got stochastic_depth={self.stochastic_depth} and residual={self.residual}"
            )
        if self.num_segments and not self.encoder_depth:
            raise ConfigError(
                f"num_segments is for a model with an encoder, got num_segments={self.num_segments} without one"
            )
        return self

    @model_validator(mode="after")
    def _attention_fits_together(self) -> "TransformerConfig":
        if self.encoder_attention is not None and not (self.encoder_depth and self.decoder_depth):
            raise ConfigError("encoder_attention is for a model with an encoder and a decoder; set attention instead")
        kinds: set[SelfAttentionKind] = set()
        for name, depth, is_causal in (
            ("encoder_attention", self.encoder_depth, False),
            ("attention", self.decoder_depth, True),
        ):
            if depth:
                own: set[SelfAttentionKind] = {*self.attention_kinds(depth, is_causal=is_causal)}
                self._check_kinds(own, name if self.encoder_attention else "attention", is_causal=is_causal)
                kinds |= own
        if kinds and kinds != {"full"} and not self.has_attention_kinds:
            raise ConfigError(f"model.attention must be full for the family {self.family}, got {self.attention}")
        for name, needed in (("window", _SPARSE), ("num_global_tokens", _SPARSE), ("stride", ("strided",)),
                             ("projected_length", ("low-rank",))):  # fmt: skip
            if getattr(self, name) and kinds.isdisjoint(needed):
                got = ", ".join(sorted(kinds)) or "no layers"
                raise ConfigError(f"{name} is for {' and '.join(needed)} attention, got attention: {got}")
        if self.position_stretch_by is not None and self.position_stretch == 1.0:
            raise ConfigError("position_stretch_by needs a position_stretch above 1, got position_stretch=1.0")
        return self

    def _check_kinds(self, kinds: set[SelfAttentionKind], name: str, *, is_causal: bool) -> None:
        if is_causal and "low-rank" in kinds:
            raise ConfigError(
                f"low-rank attention averages all positions, later ones too, and is for encoders, got {name}="
                f"{self.attention} for a decoder; window and linear attention can be causal"
            )
        positions = (self.decoder_positions if is_causal else self.encoder_positions) or self.positions
        for kind in sorted(kinds & {"linear", "low-rank"}):
            if positions in _BIASED:
                raise ConfigError(f"{kind} attention has no scores to which positions={positions} could be added")
            expected = {"retrieval": "soft", "attention_temperature": 1.0, "shaped_attention": False}
            expected["similarity"] = "scaled-dot"
            expected |= {"attention_dropout": 0.0} if kind == "linear" else {}
            for setting, value in expected.items():
                if (got := getattr(self, setting)) != value:
                    raise ConfigError(f"{setting} must be {value} for {kind} attention, got {got}")

    def attention_kinds(self, num_layers: int, *, is_causal: bool) -> list[SelfAttentionKind]:
        """Return the kind of self-attention of each layer of a stack."""
        pattern = self.attention if is_causal or self.encoder_attention is None else self.encoder_attention
        pattern = [pattern] if isinstance(pattern, str) else pattern
        known: dict[str, SelfAttentionKind] = {kind: kind for kind in get_args(SelfAttentionKind)}
        for kind in pattern:
            if kind not in known:
                raise ConfigError(f"unknown kind of attention {kind!r}{nearest(kind, list(known))}")
        if not pattern or 0 < num_layers < len(pattern):
            raise ConfigError(
                f"a list of kinds of attention is repeated over the layers and must have 1 to {num_layers} kinds, "
                f"got {len(pattern)}"
            )
        return [known[kind] for kind in islice(cycle(pattern), num_layers)]

    def sparse_pattern(self, kind: SelfAttentionKind, *, is_causal: bool) -> SparsePattern | None:
        """Return the keys that window or strided attention attends to; None for other kinds."""
        if kind not in _SPARSE:
            return None
        stride = (self.stride or max(2, self.window_length)) if kind == "strided" else None
        return SparsePattern(self.window_length, self.num_global_tokens, stride, is_causal=is_causal)

    @property
    def window_length(self) -> int:
        """The window of window and strided attention."""
        return self.window or _DEFAULT_WINDOW

    @property
    def rank(self) -> int:
        """Averages of low-rank attention."""
        return self.projected_length or _DEFAULT_RANK

    def check_length(self, longest: int) -> None:
        super().check_length(longest)
        depths = ((self.encoder_depth, False), (self.decoder_depth, True))
        kinds = {kind for depth, causal in depths for kind in self.attention_kinds(depth, is_causal=causal)}
        if self.window_length > longest and not kinds.isdisjoint(_SPARSE):
            raise ConfigError(
                f"model.window must be at most the longest input of {longest} positions, got {self.window_length}: "
                "it would be full attention"
            )

    @property
    def position_schemes(self) -> Sequence[Positions]:
        """The positions of the encoder and of the decoder, if there are such."""
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
    def max_source_positions(self) -> int | None:
        is_learned = self.encoder_depth and (self.encoder_positions or self.positions) == "learned"
        has_averages = self.encoder_depth and "low-rank" in self.attention_kinds(self.encoder_depth, is_causal=False)
        return self.context_length if is_learned or has_averages else None

    @property
    def max_target_positions(self) -> int | None:
        is_learned = self.decoder_depth and (self.decoder_positions or self.positions) == "learned"
        return self.context_length if is_learned else None

    @property
    def gains_from_bf16_on_cpu(self) -> bool:
        return True

    @property
    def lr_scale(self) -> float:
        return 0.5 if self.block == "post-norm" else 1.0

    @property
    def default_warmup_steps(self) -> int | None:
        # Vaswani et al. (2017), section 5.3: a post-norm model diverges with a short warmup.
        return 4_000 if self.block == "post-norm" else None

    @property
    def head_norm_epsilon(self) -> float:
        return self.norm_epsilon
