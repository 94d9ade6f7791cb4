"""Fields of a `config.json`: required ones, defaults, and values that cannot be imported."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from regard.errors import ConfigError
from regard.interop.hf.weights import WeightNames
from regard.models.transformer.config import TransformerConfig
from regard.nn.feedforward import Activation

HFConfig = Mapping[str, Any]
"""The content of a `config.json`."""

# Larger than in any model: a larger value is a mistake, and building the model would take hours.
_MAX_SIZE, _MAX_LAYERS = 1 << 24, 1_000
_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh", "silu": "silu", "swish": "silu",
}  # fmt: skip
_GATED: dict[Activation, Activation] = {"gelu": "geglu", "gelu-tanh": "geglu-tanh", "silu": "swiglu"}


class HFArchitecture(NamedTuple):
    """How models of one architecture are converted."""

    stacks: Literal["encoder", "decoder", "encoder-decoder", "image-encoder"]
    read_config: Callable[[HFConfig], TransformerConfig]
    weight_names: Callable[[HFConfig], WeightNames]
    ignored: tuple[str, ...]
    """Patterns of the names of weights that the model does not need."""
    head_names: Callable[[HFConfig], WeightNames] | None = None
    """The weights of the head for masked tokens, or for the labels of an image, where there may be one."""
    write_config: Callable[[TransformerConfig], dict[str, Any]] | None = None
    """Makes the `config.json` nearest to a config; a setting that the architecture does not have is left out."""


class ConfigFields:
    """The fields of a `config.json`, each with its type checked."""

    def __init__(self, config: HFConfig, *, name: str = "config.json") -> None:
        """`name` is that of the file in errors."""
        self._config, self._file = config, name

    def integer(self, name: str, default: int | None = None, *, maximum: int = _MAX_SIZE) -> int:
        """An integer above 0; required without a default."""
        value = self._value(name, default)
        if value is None:
            raise ConfigError(f"{self._file} has no {name}")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
            raise ConfigError(f"{self._file}: {name} must be an integer from 1 to {maximum:,}, got {value!r}")
        return value

    def depth(self, name: str, default: int | None = None) -> int:
        """A number of layers."""
        return self.integer(name, default, maximum=_MAX_LAYERS)

    def number(self, name: str, default: float) -> float:
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{self._file}: {name} must be a number, got {value!r}")
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{self._file}: {name} is too large: {str(value)[:20]}...") from None

    def boolean(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._file}: {name} must be true or false, got {value!r}")
        return value

    def activation(self, name: str, default: str, *, is_gated: bool = False) -> Activation:
        """The activation of a feed-forward network."""
        value = self._config.get(name, default)
        plain = _ACTIVATIONS.get(value) if isinstance(value, str) else None
        found = _GATED.get(plain) if is_gated and plain is not None else plain
        if found is None:
            known = ", ".join(_ACTIVATIONS)
            raise ConfigError(f"{self._file}: {name} must be one of {known} to be imported, got {value!r}")
        return found

    def require(self, **expected: Any) -> None:
        """Raise if a field is present with a value that cannot be imported."""
        for name, value in expected.items():
            if (got := self._value(name, value)) != value:
                raise ConfigError(f"{self._file}: {name} must be {value!r} to be imported, got {got!r}")

    def _value(self, name: str, default: Any) -> Any:
        value = self._config.get(name)
        return default if value is None else value


def hf_activation(activation: Activation, *, is_gated: bool = False) -> str | None:
    """Hugging Face's name of an activation, where there is one."""
    names = {_GATED.get(ours) if is_gated else ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return names.get(activation)
