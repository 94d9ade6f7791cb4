"""The Transformer: initialization, sizes of the paper, switches of other models, and invalid settings."""

from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.presets import find_preset
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.transformer.inference.cpu import PackedStep
from regard.nn.inference import pack_weights
from regard.settings import merge_tables

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
        ({"num_head": 3}, "unknown setting num_head; did you mean num_heads?"),
        ({"dropout": 1.0}, "dropout: input should be less than 1, got 1.0"),
        ({"num_layers": "6"}, "num_layers: input should be a valid integer, got '6'"),
        ({"positions": "rotery"}, "positions: input should be"),
    ],
)
def test_invalid_settings_are_errors_of_one_line(settings: dict, words: str):
    with pytest.raises(ConfigError) as error:
        TransformerConfig.read(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sequence_longer_than_learned_positions_is_an_error():
    config = TransformerConfig.read(merge_tables(find_preset("tiny")[1], {"positions": "learned", "context_length": 5}))
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
    """Without queries shaped attention is the identity, and the gains of the other sub-layers are small."""
    config = TransformerConfig.read({**TINY, **SIMPLIFIED, "positions": positions})
    model = seeded(config).eval()
    assert model.encoder is not None
    x = model.embedding(source) * config.model_dim**0.5
    normalised = nn.functional.layer_norm(x, [config.model_dim])
    states = model.encode(source, LENGTHS).hidden_states
    assert 0.01 < (states - normalised).norm() / normalised.norm() < 0.3
    for block in model.encoder.blocks:
        nn.init.zeros_(block.gains[1:])
    # Each norm divides by the root of the variance plus 1e-5: what is normalised again shrinks by as much.
    torch.testing.assert_close(model.encode(source, LENGTHS).hidden_states, normalised, rtol=1e-4, atol=0.0)


def test_a_simplified_encoder_without_norms_starts_as_the_identity(source):
    config = TransformerConfig.read({**TINY, **SIMPLIFIED, "positions": "none", "norm": "none", "feedforward_dim": 0})
    model = seeded(config).eval()
    expected = model.embedding(source) * config.model_dim**0.5
    torch.testing.assert_close(model.encode(source, LENGTHS).hidden_states, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_dim": 22, "num_heads": 5},
         "model_dim must be a multiple of num_heads, got model_dim=22 and num_heads=5"),
        ({"num_heads": 8, "num_key_value_heads": 3},
         "num_heads must be a multiple of num_key_value_heads, got num_heads=8 and num_key_value_heads=3"),
        ({"model_dim": 22, "num_heads": 2, "encoder_positions": "rotary"},
         "rotary positions need an even head_dim, got model_dim=22 / num_heads=2 = 11"),
        ({"model_dim": 22, "num_heads": 2, "decoder_positions": "rotary"},
         "rotary positions need an even head_dim, got model_dim=22 / num_heads=2 = 11"),
        ({"model_dim": 7, "num_heads": 1, "positions": "alibi", "encoder_positions": "sinusoidal"},
         "sinusoidal positions need an even model_dim, got model_dim=7"),
        ({"num_heads": 8, "num_key_value_heads": 2, "value_projection": False},
         "without value_projection num_key_value_heads must equal num_heads, "
         "got num_heads=8 and num_key_value_heads=2"),
        ({"attention_temperature": 0.0}, "attention_temperature: input should be greater than 0, got 0.0"),
        ({"feedforward_dim": -1}, "feedforward_dim: input should be greater than or equal to 0, got -1"),
        ({"query_width": 21, "num_heads": 2},
         "query_width must be a multiple of num_heads, got query_width=21 and num_heads=2"),
        ({"query_width": 22, "num_heads": 2, "positions": "rotary"},
         "rotary positions need an even head_dim, got query_width=22 / num_heads=2 = 11"),
        ({"query_width": 22, "num_heads": 2, "model_dim": 24, "output_projection": False},
         "a query_width other than model_dim needs value_projection and output_projection, "
         "got query_width=22 and model_dim=24"),
        ({"positions": "relative", "position_distance": 16},
         "position_distance must exceed half of position_buckets, "
         "got position_distance=16 and position_buckets=32"),
        ({"encoder_layers": 0, "num_segments": 2},
         "num_segments is for a model with an encoder, got num_segments=2 without one"),
        ({"position_stretch": 0.5}, "position_stretch: input should be greater than or equal to 1, got 0.5"),
    ],
)  # fmt: skip
def test_invalid_settings_are_errors_with_the_rule_and_the_values(settings: dict, message: str):
    for construct in (TransformerConfig.read, lambda values: TransformerConfig(**values)):
        with pytest.raises(ConfigError) as error:
            construct(settings)
        assert str(error.value) == message


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_presets_have_the_size_of_the_paper(name: str, millions: int):
    """Vaswani et al. (2017), table 3: 65 and 213 million, with a vocabulary of about 37,000."""
    config = TransformerConfig.read(find_preset(name)[1])
    with torch.device("meta"):
        count = sum(p.numel() for p in Transformer(config, 37_000).parameters())
    d, f = config.model_dim, config.feedforward_dim
    attention, feedforward, norm = 4 * (d * d + d), 2 * d * f + f + d, 2 * d
    encoder, decoder = attention + feedforward + 2 * norm, 2 * attention + feedforward + 3 * norm
    assert count == 37_000 * d + 6 * (encoder + decoder)
    assert count == pytest.approx(millions * 1e6, rel=0.03)


def test_the_embedding_of_a_dropped_token_is_zero_at_each_occurrence():
    model = Transformer(TransformerConfig.read({**TINY, "encoder_layers": 0, "token_dropout": 0.5}), VOCAB).train()
    tokens = torch.arange(VOCAB).repeat(3, 2)
    embedded = model._embed(tokens, model.embedding)
    is_dropped = (embedded == 0).all(dim=-1)
    assert 0 < int(is_dropped[0, :VOCAB].sum()) < VOCAB
    assert (is_dropped == is_dropped[0, :VOCAB].repeat(3, 2)).all()
    whole = model.eval()._embed(tokens, model.embedding)
    torch.testing.assert_close(embedded[~is_dropped], 2 * whole[~is_dropped])


FOREIGN: list[dict[str, Any]] = [
    {"query_width": 28},
    {"query_width": 12, "num_key_value_heads": 1, "positions": "rotary"},
    {"bias": False, "attention_bias": True},
    {"attention_bias": False, "norm_epsilon": 0.1, "query_key_norm": True},
    {"positions": "rotary", "position_stretch": 4.0, "position_stretch_from": 31},
    {"embedding_norm": True},
    {"scale_output": True, "similarity": "dot"},
    {"output_bias": True},
    {"output_bias": True, "tie_embeddings": False, "embedding_norm": True, "block": "post-norm"},
    {"positions": "relative", "position_buckets": 6, "position_distance": 5},
    *({"activation": activation} for activation in ("silu", "geglu", "geglu-tanh")),
]
"""Switches that the models of others have set."""


def drawn(settings: dict[str, Any]) -> Transformer:
    """A decoder alone with random weights, biases too."""
    model = seeded(TransformerConfig.read({**TINY, "encoder_layers": 0, "block": "pre-norm", **settings})).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return model


@pytest.mark.parametrize("settings", FOREIGN, ids=str)
@torch.no_grad()
def test_steps_give_the_scores_of_the_whole_whatever_is_switched(settings: dict):
    model, tokens = drawn(settings), torch.randint(VOCAB, (3, 7))
    expected, state, slots = model(tokens), model.initial_state(batch_size=3), model.static_state(3, 7)
    pack_weights(model)
    fast = model.for_inference()
    unsupported = ("embedding_norm", "scale_output", "position_buckets")
    assert (fast.backend is None) == any(name in settings for name in unsupported)
    assert fast.backend is None or isinstance(fast.backend, PackedStep)
    for place in range(7):
        new = tokens[:, place : place + 1]
        scores, state = model.step(new, state)
        torch.testing.assert_close(scores, expected[:, place : place + 1])
        scores, slots = fast.step(new, slots)
        torch.testing.assert_close(scores, expected[:, place : place + 1])


@pytest.mark.parametrize("settings", FOREIGN, ids=str)
def test_settings_that_the_kernels_do_not_support_have_no_fused_step(settings: dict):
    pytest.importorskip("triton", reason="the kernels of a GPU are written in Triton, which is not installed")
    from regard.models.transformer.inference.cuda import FusedStep

    model = drawn({**settings, "model_dim": 32, "query_width": 64 if "query_width" in settings else None})
    pack_weights(model)
    for module in model.modules():  # as they lie on a GPU
        if "packed" in vars(module):
            weight, bias = vars(module)["packed"]
            vars(module)["packed"] = weight.contiguous(), bias
    unknown = ("embedding_norm", "scale_output", "output_bias", "position_buckets", "activation")
    assert (FusedStep.for_model(model) is None) == any(name in settings for name in unknown)


def test_segments_are_added_to_what_is_read_and_the_first_where_none_are_given(source):
    model = seeded(TransformerConfig.read({**TINY, "decoder_layers": 0, "num_segments": 3})).eval()
    segments = torch.randint(3, source.shape)
    assert model.segments is not None
    assert not torch.allclose(
        model.encode(source, LENGTHS, segments=segments).hidden_states, model.encode(source, LENGTHS).hidden_states
    )
    zeros = torch.zeros_like(source)
    torch.testing.assert_close(
        model.encode(source, LENGTHS, segments=zeros).hidden_states, model.encode(source, LENGTHS).hidden_states
    )
    plain = model.encode(source, LENGTHS, segments=segments).hidden_states
    with torch.no_grad():
        model.segments.weight.zero_()
    assert not torch.allclose(model.encode(source, LENGTHS, segments=segments).hidden_states, plain)


def test_a_model_without_segment_embeddings_ignores_segments(source):
    model = seeded(TransformerConfig.read({**TINY, "decoder_layers": 0})).eval()
    segments = torch.ones_like(source)
    assert torch.equal(
        model.encode(source, LENGTHS, segments=segments).hidden_states, model.encode(source, LENGTHS).hidden_states
    )


def test_every_weight_of_a_foreign_shape_gets_a_gradient(source):
    foreign = {"num_segments": 2, "embedding_norm": True, "output_bias": True, "scale_output": True, "query_width": 28}
    model = seeded(TransformerConfig.read({**TINY, **foreign, "positions": "learned"}))
    memory = model.encode(source, LENGTHS, segments=torch.randint(2, source.shape))
    model.decode(source, memory).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_what_the_loss_is_computed_from_is_scaled_already(source):
    """Objectives multiply states with the output projection themselves."""
    model = drawn({"scale_output": True})
    assert model.output is not None
    torch.testing.assert_close(model.hidden_states(source) @ model.output.weight.T, model(source))
    unscaled = Transformer(model.config.changed(scale_output=False), VOCAB).eval()
    unscaled.load_state_dict(model.state_dict())
    torch.testing.assert_close(unscaled(source) * model.config.model_dim**-0.5, model(source))
