"""A model whose weights are read from a file is built without drawing random numbers."""

import pytest
import torch

from regard.models.family import ModelConfig, build_model
from regard.models.recurrent import RecurrentConfig
from regard.models.transformer.config import TransformerConfig
from regard.training.checkpoints import SkipInit, load_weights, weights_of

SHAPES = [
    TransformerConfig.read({"num_layers": 1, "model_dim": 12, "num_heads": 3, "feedforward_dim": 17, "dropout": 0.0}),
    RecurrentConfig.read({"num_layers": 1, "model_dim": 12, "dropout": 0.0}),
]


@pytest.mark.parametrize("config", SHAPES, ids=["transformer", "recurrent"])
def test_a_model_built_without_random_numbers_is_the_same_once_its_weights_are_loaded(config: ModelConfig):
    drawn = build_model(config, 31)
    before = torch.get_rng_state()
    with SkipInit(1 << 20):
        undrawn = build_model(config, 31)
    assert torch.equal(torch.get_rng_state(), before)
    load_weights(undrawn, weights_of(drawn))
    target, source = torch.randint(4, 31, (2, 6)), torch.randint(4, 31, (2, 5))
    torch.testing.assert_close(undrawn(target, source), drawn(target, source))
