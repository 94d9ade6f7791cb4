"""Presets: named settings of models, collected from the registered families.

A name is a kind (`lstm`), whose size is then chosen for the data and the machine;
a kind and a size (`lstm-small`); or a size, which is that of a Transformer. The
kinds have about the same number of parameters at each size.
"""

from typing import Any, Literal, get_args

from regard.errors import ConfigError, PluginError
from regard.models.family import DEFAULT_FAMILY, FAMILIES, Preset
from regard.settings import nearest

Size = Literal["tiny", "small", "base", "big"]
SIZES: tuple[Size, ...] = get_args(Size)


def find_preset(name: str, size: Size = "tiny") -> tuple[str, dict[str, Any]]:
    """Return the full name and the model settings of a preset; `size` is that of a name without one.

    Example:
        >>> find_preset("lstm")
        ('lstm-tiny', {'num_layers': 2, 'model_dim': 192, 'cell': 'lstm', 'family': 'recurrent'})
    """
    kinds = _kinds()
    kind, _, ending = name.rpartition("-")
    if name in SIZES:
        kind, size = DEFAULT_FAMILY, name
    elif kind in kinds and ending in SIZES:
        size = ending
    elif name in kinds:
        kind = name
    else:
        known = [*kinds, *SIZES, *(f"{one}-{other}" for one in kinds for other in SIZES)]
        close = nearest(name, known)
        hint = close if "did you mean" in close else f"; known: {', '.join(preset_names())}"
        raise ConfigError(f"no preset is called {name!r}{hint}")
    family, preset = kinds[kind]
    if size not in preset.sizes:
        raise ConfigError(f"the preset {kind} has no size {size}; it has {', '.join(preset.sizes)}")
    full_name = size if kind == DEFAULT_FAMILY else f"{kind}-{size}"
    return full_name, {**preset.sizes[size], **preset.shared, "family": family}


def has_size(name: str) -> bool:
    """Return whether the name of a preset includes its size."""
    return name not in _kinds()


def preset_names() -> list[str]:
    """Return the kinds of all families, and the sizes."""
    return [*_kinds(), *SIZES]


def _kinds() -> dict[str, tuple[str, Preset]]:
    """Return the family and the preset of each kind; the kinds of the default family first."""
    kinds: dict[str, tuple[str, Preset]] = {}
    for family in sorted(FAMILIES, key=lambda family: (family.name != DEFAULT_FAMILY, family.name)):
        for kind, preset in family.presets.items():
            if kind in kinds:
                raise PluginError(f"two model families have a preset {kind!r}: {kinds[kind][0]} and {family.name}")
            kinds[kind] = (family.name, preset)
    return kinds
