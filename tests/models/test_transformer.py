"""The Transformer: how a simplified one starts, what the paper's sizes are, and settings that cannot be."""

import pytest
import torch
from torch import nn

from regard.config import merge
from regard.errors import ConfigError
from regard.models.presets import preset
from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 31
LENGTHS = torch.tensor([7, 2, 5])
TINY = {"num_layers": 2, "model_dim": 20, "num_heads": 2, "feedforward_dim": 23, "dropout": 0.1}
SIMPLIFIED = {
    "block": "parallel",
    "residual": False,
    "value_projection": False,
    "output_projection": False,
    "shaped_attention": True,
}


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


def seeded(config: TransformerConfig) -> Transformer:
    torch.manual_seed(5)
    return Transformer(config, VOCAB)


@pytest.fixture
def source() -> torch.Tensor:
    return torch.randint(VOCAB, (3, 7))


@pytest.mark.parametrize("positions", ["none", "rotary", "relative", "alibi", "shaw"])
def test_a_simplified_encoder_starts_near_the_identity(source, positions: str):
    """Without queries shaped attention hands on its input, and what stands beside it has small gains."""
    config = TransformerConfig.read({**TINY, **SIMPLIFIED, "positions": positions})
    model = seeded(config).eval()
    assert model.encoder is not None
    x = model.embedding(source) * config.model_dim**0.5
    normalised = nn.functional.layer_norm(x, [config.model_dim])
    states = model.encode(source, LENGTHS).states
    assert 0.01 < (states - normalised).norm() / normalised.norm() < 0.3
    for block in model.encoder.blocks:
        nn.init.zeros_(block.gains[1:])
    # Each norm divides by the root of the variance plus 1e-5: what is normalised again shrinks by as much.
    torch.testing.assert_close(model.encode(source, LENGTHS).states, normalised, rtol=1e-4, atol=0.0)


def test_a_simplified_encoder_without_norms_starts_as_the_identity(source):
    config = TransformerConfig.read({**TINY, **SIMPLIFIED, "positions": "none", "norm": "none", "feedforward_dim": 0})
    model = seeded(config).eval()
    expected = model.embedding(source) * config.model_dim**0.5
    torch.testing.assert_close(model.encode(source, LENGTHS).states, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_dim": 22, "num_heads": 5},
         "model_dim must be a multiple of num_heads, got self.model_dim=22 and self.num_heads=5"),
        ({"num_heads": 8, "num_key_value_heads": 3},
         "num_heads must be a multiple of num_key_value_heads, got self.num_heads=8 and self.num_key_value_heads=3"),
        ({"model_dim": 22, "num_heads": 2, "encoder_positions": "rotary"},
         "rotary positions need an even number of dimensions a head, got self.model_dim=22 / self.num_heads=2 = 11"),
        ({"model_dim": 22, "num_heads": 2, "decoder_positions": "rotary"},
         "rotary positions need an even number of dimensions a head, got self.model_dim=22 / self.num_heads=2 = 11"),
        ({"model_dim": 7, "num_heads": 1, "positions": "alibi", "encoder_positions": "sinusoidal"},
         "sinusoidal positions need an even model_dim, got self.model_dim=7"),
        ({"num_heads": 8, "num_key_value_heads": 2, "value_projection": False},
         "without value_projection each head needs a slice of its own, "
         "got self.num_heads=8 and self.num_key_value_heads=2"),
        ({"attention_temperature": 0.0}, "attention_temperature: input should be greater than 0, got 0.0"),
        ({"feedforward_dim": -1}, "feedforward_dim: input should be greater than or equal to 0, got -1"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_told_by_rule_and_values(settings: dict, message: str):
    with pytest.raises(ConfigError) as error:
        TransformerConfig.read(settings)
    assert str(error.value) == message


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_presets_have_the_size_of_the_paper(name: str, millions: int):
    """Vaswani et al. (2017), table 3: 65 and 213 million, with a vocabulary of about 37,000."""
    config = TransformerConfig.read(preset(name)[1])
    with torch.device("meta"):
        count = sum(p.numel() for p in Transformer(config, 37_000).parameters())
    d, f = config.model_dim, config.feedforward_dim
    attention, feedforward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    encoder, decoder = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    assert count == 37_000 * d + 6 * (encoder + decoder)
    assert count == pytest.approx(millions * 1e6, rel=0.03)


def test_a_dropped_token_reads_as_zeros_wherever_it_stands():
    model = Transformer(TransformerConfig.read({**TINY, "encoder_layers": 0, "token_dropout": 0.5}), VOCAB).train()
    tokens = torch.arange(VOCAB).repeat(3, 2)
    embedded = model._embed(tokens)
    is_dropped = (embedded == 0).all(dim=-1)
    assert 0 < int(is_dropped[0, :VOCAB].sum()) < VOCAB
    assert (is_dropped == is_dropped[0, :VOCAB].repeat(3, 2)).all()
    whole = model.eval()._embed(tokens)
    torch.testing.assert_close(embedded[~is_dropped], 2 * whole[~is_dropped])
