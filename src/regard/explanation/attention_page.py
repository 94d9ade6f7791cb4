"""A page on which attention maps can be walked through, head by head."""

import os
from collections.abc import Sequence

from regard.errors import ConfigError
from regard.explanation.maps import AttentionMaps
from regard.explanation.templates import write_page


def write_attention_page(maps: AttentionMaps | Sequence[AttentionMaps], path: str | os.PathLike[str]) -> None:
    """Write the maps of one prediction, or of several to choose from, as one HTML file that needs nothing else."""
    examples = [maps] if isinstance(maps, AttentionMaps) else list(maps)
    if not examples:
        raise ConfigError("an attention page needs the maps of at least one prediction, got none")
    first = examples[0]
    several = f"Attention in {len(examples)} examples"
    write_page(
        path,
        "attention.html",
        title=several if len(examples) > 1 else f"Attention: {first.source} → {first.prediction}",
        data=[example.to_dict() for example in examples],
        styles=["style.css"],
        scripts=["common.js", "attention.js", "attention_start.js"],
    )
