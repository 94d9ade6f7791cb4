"""A tiny model for tests of how tokens are chosen."""

from collections.abc import Callable

import pytest
import torch

from regard.models.transformer import Transformer, TransformerConfig


@pytest.fixture
def make_tiny() -> Callable[[int], Transformer]:
    """A Transformer with so many tokens, and weights far from zero."""

    def make(vocab_size: int) -> Transformer:
        config = TransformerConfig(
            num_layers=1, model_dim=10, num_heads=1, feedforward_dim=11, dropout=0.0, positions="rotary"
        )
        made = Transformer(config, vocab_size).eval()
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=0.6)
        return made

    return make
