"""Settings of a Transformer that cannot be, and what they say."""

import pytest
import torch

from regard.config import merge
from regard.errors import ConfigError
from regard.models.presets import preset
from regard.models.transformer import Transformer, TransformerConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_dim": 22, "num_heads": 5}, "model_dim must be a multiple of num_heads"),
        ({"num_heads": 8, "num_key_value_heads": 3}, "num_key_value_heads"),
        ({"model_dim": 6, "num_heads": 2, "positions": "rotary"}, "even"),
        ({"model_dim": 7, "num_heads": 1, "positions": "sinusoidal"}, "even"),
        ({"num_layers": 0}, "layers"),
        ({"num_head": 3}, "unknown setting num_head; did you mean num_heads?"),
        ({"dropout": 1.0}, "dropout: input should be less than 1, got 1.0"),
        ({"num_layers": "6"}, "num_layers: input should be a valid integer, got '6'"),
        ({"positions": "rotery"}, "positions: input should be"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(settings: dict, words: str):
    with pytest.raises(ConfigError) as error:
        TransformerConfig.read(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sequence_longer_than_learned_positions_is_told():
    config = TransformerConfig.read(merge(preset("tiny")[1], {"positions": "learned", "context_length": 5}))
    model = Transformer(config, 11)
    with pytest.raises(ConfigError, match=r"context_length=5.* 6 positions"):
        model(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 6, dtype=torch.long))
