"""Whether two shapes of a Transformer compute the same, and which setting stands between them."""

from typing import Any

from regard.models.transformer_config import TransformerConfig

_OF_TRAINING = ("dropout", "attention_dropout", "token_dropout", "initialization")
_OF_OUTPUT = ("tie_embeddings", "output_bias", "scale_output")
Differences = dict[str, tuple[Any, Any]]
"""By the name of a setting: what one shape has, and what the other."""


def differences(wanted: TransformerConfig, given: TransformerConfig) -> Differences:
    """The settings by which the two compute something else, in the order of the settings.

    Example:
        >>> small = TransformerConfig(num_layers=2, decoder_layers=0, dropout=0.1, position_distance=64)
        >>> differences(small, small.changed(dropout=0.3, position_distance=32, tie_embeddings=False))
        {}
        >>> differences(small, small.changed(norm="rms", encoder_layers=3))
        {'encoder_layers': (2, 3), 'norm': ('layer', 'rms')}
    """
    theirs, ours = _meaning(wanted), _meaning(given)
    order = [*TransformerConfig.model_fields]
    # What only one of them goes by depends on another setting, in which they differ.
    different = [name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]]
    found = {name: (theirs[name], ours[name]) for name in sorted(different, key=order.index)}
    if found.get("encoder_positions") == found.get("positions"):
        found.pop("encoder_positions", None)
    return found


def told(found: Differences, *, most: int = 3) -> str:
    """What the settings would have to be."""
    lines = [f"model.{name} must be {wanted}, got {got}" for name, (wanted, got) in found.items()]
    return "; ".join(lines[:most]) + (f"; and {len(lines) - most} more" if len(lines) > most else "")


def _meaning(shape: TransformerConfig) -> dict[str, Any]:
    """The settings that a trained model goes by, with no gaps: what is unset is what it is taken for."""
    schemes = shape.position_schemes
    values = {
        **shape.model_dump(),
        "encoder_layers": shape.encoder_depth,
        "decoder_layers": shape.decoder_depth,
        "num_key_value_heads": shape.num_key_value_heads or shape.num_heads,
        "query_width": shape.query_width or shape.model_dim,
        "attention_bias": shape.bias if shape.attention_bias is None else shape.attention_bias,
        "positions": schemes[-1] if schemes else None,
        "encoder_positions": schemes[0] if schemes else None,
    }
    idle = ["num_layers", "decoder_positions", *_OF_TRAINING]
    idle += [] if len(schemes) == 2 else ["encoder_positions"]
    idle += [] if shape.decoder_depth else _OF_OUTPUT
    idle += [] if shape.encoder_depth else ["num_segments"]
    idle += [] if {"sinusoidal", "rotary"} & {*schemes} else ["position_base"]
    idle += [] if "rotary" in schemes else ["position_stretch"]
    idle += [] if "rotary" in schemes and shape.position_stretch != 1.0 else ["position_stretch_from"]
    idle += [] if "relative" in schemes else ["position_buckets", "position_distance"]
    idle += [] if "learned" in schemes else ["context_length"]
    idle += [] if shape.norm != "none" or shape.query_key_norm else ["norm_epsilon"]
    return {name: value for name, value in values.items() if name not in idle}
