"""Reading a `config.json`: what must be there, what has a default, and what cannot be imported."""

from collections.abc import Mapping
from typing import Any

from regard.errors import ConfigError
from regard.nn.feedforward import Activation

Config = Mapping[str, Any]
"""What stands in a `config.json`."""

_MOST, _MOST_LAYERS = 1 << 24, 1_000
"""Larger than any model is: what is larger is a mistake, and would take hours to be found out."""
_PLAIN: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
_GATED: dict[Activation, Activation] = {"gelu": "geglu", "gelu-tanh": "geglu-tanh", "silu": "swiglu"}


def count(config: Config, name: str, default: int | None = None, *, most: int = _MOST) -> int:
    """A whole number above 0; it must be there unless there is a default."""
    value = config.get(name)
    value = default if value is None else value
    if value is None:
        raise ConfigError(f"config.json has no {name}")
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"config.json: {name} must be a whole number from 1 to {most:,}, got {value!r}")
    return value


def layer_count(config: Config, name: str, default: int | None = None) -> int:
    """A number of layers."""
    return count(config, name, default, most=_MOST_LAYERS)


def number(config: Config, name: str, default: float) -> float:
    """A number that may be left out."""
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"config.json: {name} must be a number, got {value!r}")
    return float(value)


def flag(config: Config, name: str, default: bool) -> bool:
    """A truth value that may be left out."""
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ConfigError(f"config.json: {name} must be true or false, got {value!r}")
    return value


def activation(config: Config, name: str, default: str, *, is_gated: bool = False) -> Activation:
    """The activation of a feed-forward network, by its foreign name."""
    value = config.get(name, default)
    plain = _PLAIN.get(value) if isinstance(value, str) else None
    found = _GATED.get(plain) if is_gated and plain is not None else plain
    if found is None:
        raise ConfigError(f"config.json: {name} must be one of {', '.join(_PLAIN)} to be imported, got {value!r}")
    return found


def activation_name(activation: Activation, *, is_gated: bool = False) -> str | None:
    """The foreign name of an activation, where there is one."""
    names = {_GATED.get(ours) if is_gated else ours: theirs for theirs, ours in reversed(_PLAIN.items())}
    return names.get(activation)


def require(config: Config, **expected: Any) -> None:
    """Raise where a field is there and says what we cannot do."""
    for name, value in expected.items():
        if config.get(name, value) not in (value, None):
            raise ConfigError(f"config.json: {name} must be {value!r} to be imported, got {config[name]!r}")
