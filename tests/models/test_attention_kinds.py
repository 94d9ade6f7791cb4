"""The settings of kinds of attention: each has an effect or is an error of one line."""

from typing import Any

import pytest
import torch

from regard.errors import ConfigError
from regard.explanation.attention.recording import record_attention
from regard.models.family import FAMILIES, build_model, find_family, read_model_config
from regard.models.transformer import TransformerConfig

DECODER: dict[str, Any] = {
    "encoder_layers": 0, "num_layers": 3, "model_dim": 20, "num_heads": 2, "feedforward_dim": 23, "block": "pre-norm",
    "positions": "rotary", "dropout": 0.0,
}  # fmt: skip
ENCODER = {**DECODER, "encoder_layers": 3, "decoder_layers": 0}
TOKENS = torch.arange(22).view(2, 11)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention": "widow"}, r"unknown kind of attention 'widow'; did you mean window\?"),
        ({"attention": []}, "must have 1 to 3 kinds, got 0"),
        ({"attention": ["window", "full", "linear", "full"]}, "must have 1 to 3 kinds, got 4"),
        ({"attention": "low-rank"}, "averages all positions, later ones too, and is for encoders"),
        ({"attention": ["full", "low-rank"]}, "for encoders, got attention=.* for a decoder; window and linear"),
        ({"window": 7}, "window is for window and strided attention, got attention: full"),
        ({"attention": "linear", "num_global_tokens": 1}, "num_global_tokens is for window and strided"),
        ({"attention": "window", "stride": 3}, "stride is for strided attention, got attention: window"),
        ({"attention": "window", "projected_length": 3}, "projected_length is for low-rank attention"),
        ({"attention": "linear", "positions": "alibi"}, "linear attention has no scores to which positions=alibi"),
        ({"attention": "linear", "retrieval": "hard"}, "retrieval must be soft for linear attention, got hard"),
        ({"attention": "linear", "similarity": "cosine"}, "similarity must be scaled-dot for linear"),
        ({"attention": "linear", "attention_dropout": 0.1}, "attention_dropout must be 0.0 for linear"),
        ({"encoder_attention": "window"}, "encoder_attention is for a model with an encoder and a decoder"),
        ({"position_stretch_by": "yarn"}, "position_stretch_by needs a position_stretch above 1"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(values: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        TransformerConfig.read({**DECODER, **values}, section="model")


def test_a_window_larger_than_the_input_is_an_error():
    config = TransformerConfig.read({**DECODER, "attention": ["full", "window"], "window": 12})
    config.check_length(12)
    with pytest.raises(ConfigError, match="window must be at most the longest input of 11 positions, got 12"):
        config.check_length(11)
    TransformerConfig.read(DECODER).check_length(2)


@pytest.mark.parametrize("family", FAMILIES.names())
def test_a_family_without_kinds_of_attention_names_the_setting(family: str):
    config = find_family(family).Config
    if getattr(config, "has_attention_kinds", False):
        assert config.read({"family": family, "attention": ["window"]}).family == family
        return
    with pytest.raises(ConfigError, match="attention"):
        read_model_config({"family": family, "attention": "window"})


KINDS: list[dict[str, Any]] = [
    {},
    {"attention": "window", "window": 3},
    {"attention": "window", "window": 3, "num_global_tokens": 2},
    {"attention": "strided", "window": 3},
    {"attention": "strided", "window": 3, "stride": 2},
    {"attention": "linear"},
    {"attention": ["window", "full", "linear"], "window": 3},
    {"attention": "low-rank"},
    {"attention": "low-rank", "projected_length": 3},
]


@torch.no_grad()
@pytest.mark.parametrize("base", [DECODER, ENCODER], ids=["decoder", "encoder"])
def test_each_setting_changes_the_function(base: dict):
    outputs = []
    for values in KINDS:
        if values.get("attention") == "low-rank" and base is DECODER:
            continue
        torch.manual_seed(0)
        outputs.append(build_model(TransformerConfig.read({**base, **values}), 31).eval().encode(TOKENS).hidden_states)
    for number, first in enumerate(outputs):
        assert not any(torch.allclose(first, second) for second in outputs[:number]), KINDS[number]


@torch.no_grad()
def test_a_window_of_the_whole_input_is_full_attention():
    torch.manual_seed(0)
    full = build_model(TransformerConfig.read(DECODER), 31).eval()
    for values in (
        {"attention": "window", "window": 11},
        {"attention": "strided", "window": 1, "num_global_tokens": 11},
    ):
        other = build_model(TransformerConfig.read({**DECODER, **values}), 31).eval()
        other.load_state_dict(full.state_dict())
        torch.testing.assert_close(other(TOKENS), full(TOKENS))


@torch.no_grad()
def test_attention_weights_are_recorded_where_they_are_those_of_a_softmax():
    values = {**DECODER, "attention": ["window", "strided", "linear"], "window": 3}
    model = build_model(TransformerConfig.read(values), 31).eval()
    expected = model(TOKENS)
    with record_attention(model) as weights:
        torch.testing.assert_close(model(TOKENS), expected)
    assert [*weights] == ["decoder.blocks.0.attention", "decoder.blocks.1.attention"]
    for each in weights.values():
        assert each.shape == (2, 2, 11, 11)
        torch.testing.assert_close(each.sum(dim=-1), torch.ones(2, 2, 11))
    window = weights["decoder.blocks.0.attention"]
    assert (window.tril(-3) == 0).all()
