"""Which models can be divided over processes, without any; what they compute is compared in `distributed`."""

from typing import Any

import pytest
from torch import nn

from regard.adapters.lora import LoraConfig, add_lora
from regard.errors import ConfigError
from regard.models.family import build_model, read_model_config
from regard.training.tensor_parallel import require_divisible

SHAPE = {"num_layers": 1, "model_dim": 24, "num_heads": 6, "num_key_value_heads": 6, "feedforward_dim": 30}


def made(family: str = "transformer", **settings: Any) -> nn.Module:
    shape = {**SHAPE, **settings} if family == "transformer" else settings
    return build_model(read_model_config({"family": family, **shape}), 11)


def test_all_attention_and_feedforward_layers_are_divided():
    """Of one encoder block two layers, of one decoder block three."""
    model = made(encoder_layers=1)
    for number in (2, 3, 6):
        assert len(require_divisible(model, number)) == 5


@pytest.mark.parametrize(
    ("number", "settings", "message"),
    [
        (4, {}, r"must divide model\.num_heads, got 4 and 6; 2, 3, 6 would divide it"),
        (6, {"num_key_value_heads": 2}, r"must divide model\.num_key_value_heads, got 6 and 2; 2 would divide it"),
        (2, {"feedforward_dim": 29}, r"must divide model\.feedforward_dim, got 2 and 29; 29 would divide it"),
        (2, {"similarity": "cosine"}, "has other weights, such as those of a learned similarity"),
        (2, {"output_projection": False}, "layers without projections of values or outputs"),
    ],
)
def test_what_cannot_be_divided_is_an_error(number: int, settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        require_divisible(made(**settings), number)


def test_adapters_and_recurrent_models_are_not_divided():
    adapted = made()
    add_lora(adapted, LoraConfig(rank=2))
    with pytest.raises(ConfigError, match="plain matrices, and this model has layers with adapters or quantized"):
        require_divisible(adapted, 2)
    with pytest.raises(ConfigError, match="models with the blocks of a Transformer"):
        require_divisible(made("recurrent", model_dim=6), 2)
