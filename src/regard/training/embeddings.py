"""Initialization with the token embeddings of another model.

Words with similar meanings have similar embeddings, which a small model cannot learn from few rows.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError
from regard.training.checkpoints import read_tensors

_TABLES = ("embedding.weight", "body.embedding.weight")
"""Names of the embedding table in a run folder."""


@torch.no_grad()
def initialize_embeddings(model: nn.Module, base: str) -> None:
    """Initialize the token embeddings of a new model with those of the run folder `base`, scaled to its own norm."""
    path = Path(base) / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"task.embeddings must be a run folder, and {base} has no model.safetensors")
    weights, _ = read_tensors(path)
    table = next((weights[name] for name in _TABLES if name in weights), None)
    if table is None:
        raise CheckpointError(f"{base} has no token embeddings: a run with LoRA stores none, its base does")
    names = dict(model.named_parameters())
    own = names.get("body.embedding.weight", names.get("embedding.weight"))
    assert own is not None, "a model of text has token embeddings"
    if len(table) != len(own):
        raise CheckpointError(
            f"embeddings belong to a tokenizer: {base} has {len(table):,}, and the vocabulary {len(own):,} tokens"
        )
    found = resize_embeddings(table.to(own), own.size(1))
    own.copy_(found * (own.square().mean() / found.square().mean()).sqrt())


def resize_embeddings(table: Float[Tensor, "tokens given"], width: int) -> Float[Tensor, "tokens width"]:
    """Project embeddings onto their first `width` principal components, or pad them with zeros.

    This is the projection with the least squared error (Eckart and Young, 1936). Embeddings of this width are returned
    unchanged.
    """
    if table.size(1) == width:
        return table
    centered = table - table.mean(dim=0)
    _, axes = torch.linalg.eigh(centered.T @ centered)
    projected = centered @ axes.flip(1)[:, :width]
    return nn.functional.pad(projected, (0, width - projected.size(1)))
