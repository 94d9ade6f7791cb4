"""Vectors of tokens that another model has learned, to start from where the model itself is another.

Words that mean alike lie together in them, so a small model that has few rows to learn from need not find that out.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError
from regard.training.checkpoints import read_tensors

_TABLES = ("embedding.weight", "body.embedding.weight")
"""What vectors of tokens are called in a run folder."""


@torch.no_grad()
def take_vectors(model: nn.Module, base: str) -> None:
    """Let a fresh model start with the vectors of the run folder `base`, as large on average as its own were."""
    path = Path(base) / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"data.vectors names a run folder, which {base} is not: it has no model.safetensors")
    weights, _ = read_tensors(path)
    table = next((weights[name] for name in _TABLES if name in weights), None)
    if table is None:
        raise CheckpointError(f"{base} has no vectors of tokens: a run with LoRA keeps none, its base does")
    own = model.get_parameter("body.embedding.weight" if hasattr(model, "body") else "embedding.weight")
    if len(table) != len(own):
        raise CheckpointError(
            f"vectors belong to a tokenizer: {base} has {len(table):,} of them, and the model {len(own):,} tokens"
        )
    found = as_wide_as(table.to(own), own.size(1))
    own.copy_(found * (own.square().mean() / found.square().mean()).sqrt())


def as_wide_as(table: Float[Tensor, "tokens given"], width: int) -> Float[Tensor, "tokens width"]:
    """Vectors turned so that their first numbers say most, and cut to `width`, or filled up with zeros.

    Those that are as wide already stay as they are. What is kept is the projection with the least squared error (Eckart
    and Young, 1936).
    """
    if table.size(1) == width:
        return table
    centered = table - table.mean(dim=0)
    # The covariance is small where the table is long.
    _, axes = torch.linalg.eigh(centered.T @ centered)
    turned = centered @ axes.flip(1)[:, :width]
    return nn.functional.pad(turned, (0, width - turned.size(1)))
