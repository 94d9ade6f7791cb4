"""Families of models: what one brings with it, and how a model is built from settings.

A family is a configuration class, a model class and presets. It is
found by the entry-point group `regard.models`, so that an installed package can
add one:

    [project.entry-points."regard.models"]
    mine = "my_package.mine:MyFamily"
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field, model_validator
from torch import nn

from regard.errors import ConfigError
from regard.nn.attention import Lookup, Retrieval
from regard.nn.similarity import Similarity
from regard.registry import Registry
from regard.settings import Settings

InputKind = str
"""What a model reads: tokens, pixels, series, events, ...; a task takes the families of its own kind."""
DEFAULT_FAMILY = "transformer"
MOST_LAYERS, MOST_UNITS = 10_000, 1 << 24
"""Larger than in any model: a larger value is a mistake, and checking it would take hours."""


class ModelConfig(Settings):
    """The settings of a model, and what training and generation need to know about its family."""

    family: str
    """The family of models that these are settings of."""
    model_dim: int = Field(default=512, ge=1, le=MOST_UNITS)
    """Width of the hidden states."""

    can_use_muon: ClassVar[bool] = False
    """Whether its matrices can be trained by Muon."""
    can_compile: ClassVar[bool] = True
    """Whether `torch.compile` can compile it."""
    can_use_cuda_graphs: ClassVar[bool] = True
    """Whether a training step can be captured as a CUDA graph."""
    can_isolate_documents: ClassVar[bool] = False
    """Whether attention can be restricted to documents within a row."""
    input_kind: ClassVar[InputKind] = "tokens"
    """What the encoder reads: tokens, pixels, series of numbers, events in time or graphs."""
    has_class_token: ClassVar[bool] = False
    """Whether the first hidden state represents the whole input; the others are then those of its parts."""

    @model_validator(mode="after")
    def _is_of_its_family(self) -> "ModelConfig":
        expected = type(self).model_fields["family"].default
        if self.family != expected:
            raise ConfigError(f"{type(self).__name__}.family must be {expected!r}, got {self.family!r}")
        return self

    @property
    def encoder_depth(self) -> int:
        """Layers of the encoder; 0 without an encoder."""
        return 0

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder; 0 without a decoder."""
        return 0

    @property
    def max_source_positions(self) -> int | None:
        """The longest sequence that the encoder can process; None without a limit."""
        return None

    @property
    def max_target_positions(self) -> int | None:
        """The longest sequence that the decoder can process; None without a limit."""
        return None

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that both can process; None without a limit."""
        limits = [n for n in (self.max_source_positions, self.max_target_positions) if n is not None]
        return min(limits, default=None)

    def check_length(self, longest: int) -> None:
        """Raise a `ConfigError` if the model does not suit inputs of up to `longest` positions."""
        if (limit := self.max_positions) is not None and longest > limit:
            raise ConfigError(
                f"learned positions must cover the longest input, got model.context_length={limit} "
                f"for {longest} positions"
            )

    @property
    def lr_scale(self) -> float:
        """Factor on the default learning rate."""
        return 1.0

    @property
    def default_warmup_steps(self) -> int | None:
        """Warmup steps that the family needs; None for those of the task."""
        return None

    @property
    def gains_from_bf16_on_cpu(self) -> bool:
        """Whether bfloat16 is faster on a CPU that has instructions for it, from a certain width on."""
        return False

    @property
    def is_step_by_step(self) -> bool:
        """Whether a step needs the attention of the step before, so that no graph computes all positions at once."""
        return False

    @property
    def can_carry_state(self) -> bool:
        """Whether it is a `StatefulDecoder`: its state can be carried from window to window."""
        return False

    @property
    def head_norm_epsilon(self) -> float:
        """Epsilon of a layer norm in a head."""
        return 1e-5


class EncoderDecoderConfig(ModelConfig):
    """The settings of a model made of an encoder and a decoder, either of which may be left out."""

    num_layers: int = Field(default=6, ge=0, le=MOST_LAYERS)
    """Layers of the encoder, and of the decoder."""
    encoder_layers: int | None = Field(default=None, ge=0, le=MOST_LAYERS)
    """Layers of the encoder, if not num_layers; 0 for no encoder."""
    decoder_layers: int | None = Field(default=None, ge=0, le=MOST_LAYERS)
    """Layers of the decoder, if not num_layers; 0 for no decoder."""
    retrieval: Retrieval = "soft"
    """soft: the average of the values by their weights; hard: the value with the highest score."""
    attention_temperature: float = Field(default=1.0, gt=0.0)
    """Divides the attention scores; the limit of 0 is hard retrieval."""

    @property
    def encoder_depth(self) -> int:
        return self.num_layers if self.encoder_layers is None else self.encoder_layers

    @property
    def decoder_depth(self) -> int:
        return self.num_layers if self.decoder_layers is None else self.decoder_layers


def make_lookup(
    config: ModelConfig, similarity: Similarity, *, dropout: float = 0.0, is_causal: bool = False
) -> Lookup:
    """Return a lookup with the retrieval and the temperature of a model's settings, where it has them."""
    if not isinstance(config, EncoderDecoderConfig):
        return Lookup(similarity, dropout=dropout, is_causal=is_causal)
    return Lookup(
        similarity,
        temperature=config.attention_temperature,
        retrieval=config.retrieval,
        dropout=dropout,
        is_causal=is_causal,
    )


@dataclass(frozen=True)
class Preset:
    """A kind of model in several sizes."""

    sizes: Mapping[str, Mapping[str, Any]]
    """Settings of each size: tiny, small, base and big."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all sizes."""


class Family:
    """What a package registers to add a family of models; the class itself or an instance of it."""

    name: ClassVar[str]
    Config: ClassVar[type[ModelConfig]]
    Model: ClassVar[type[nn.Module]]
    """Called with the settings and the number of tokens; of another kind of input, with the settings and its shape."""
    presets: ClassVar[Mapping[str, Preset]] = {}
    """Kinds by name. The first is the default for the family."""
    default_shape: ClassVar[Any] = None
    """The shape of a model that is built without one, where it does not read tokens."""

    def build(
        self,
        config: Any,
        *,
        vocab_size: int = 0,
        source_vocab_size: int | None = None,
        shape: Any = None,
    ) -> nn.Module:
        """Return a new model.

        Args:
            config: Settings of the class `Config`.
            vocab_size: Tokens of the vocabulary; of the decoder's, where the encoder has its own.
            source_vocab_size: Tokens of the encoder's own vocabulary; None to share one.
            shape: What the model reads where it is not tokens, such as an `ImageConfig` or a `SeriesShape`.
        """
        if self.Config.input_kind != "tokens":
            return self.Model(config, self.default_shape if shape is None else shape)
        return self.Model(config, vocab_size, source_vocab_size=source_vocab_size)

    def encoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings `values` without the decoder; those of a decoder-only model are unchanged."""
        if values.get("encoder_layers") == 0 or not issubclass(self.Config, EncoderDecoderConfig):
            return dict(values)
        return {**values, "decoder_layers": 0}

    def decoder_only(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings `values` without the encoder: a causal language model."""
        layers = self.Config.model_fields.get("decoder_layers")
        if layers is None or layers.default == 0:
            raise ConfigError(f"a model of {self.Config.input_kind} has no decoder")
        return {**values, "encoder_layers": 0}


FAMILIES: Registry[Family] = Registry("regard.models", "model family", members=("name", "Config", "build"))


def find_family(name: str) -> Family:
    """Return the family registered as `name`; an unknown name is a `ConfigError` with the nearest one."""
    found: Family | type[Family] = FAMILIES.find(name)
    return found() if isinstance(found, type) else found


def read_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """Check the settings of a model; without `family` they are those of a Transformer.

    Example:
        >>> read_model_config({"family": "recurrent", "cell": "gru"}).encoder_depth
        2
    """
    name = values.get("family", DEFAULT_FAMILY)
    if not isinstance(name, str):
        raise ConfigError(f"model.family must be a string, got {name!r}")
    return find_family(name).Config.read({**values, "family": name}, section="model")


def build_encoder(config: ModelConfig, shape: Any, *, reads: InputKind, example: str) -> Any:
    """Return a new `Encoder` of inputs of one kind; the error for a family of another kind names an `example`."""
    if config.input_kind != reads:
        raise ConfigError(
            f"the task needs a model that reads {reads}, such as {example}, got model.family={config.family}"
        )
    return find_family(config.family).build(config, shape=shape)


def build_model(
    config: ModelConfig,
    vocab_size: int,
    *,
    source_vocab_size: int | None = None,
    shape: Any = None,
) -> Any:
    """Return a new model with these settings: an `Encoder`, and a `Decoder` if `config.decoder_depth` is not 0.

    With `source_vocab_size` the encoder has its own embedding; `shape` is that of other inputs than tokens.
    """
    family = find_family(config.family)
    return family.build(config, vocab_size=vocab_size, source_vocab_size=source_vocab_size, shape=shape)
