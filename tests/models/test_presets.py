"""Presets."""

import pytest
import torch

from regard.errors import ConfigError
from regard.models.family import build_model, read_model_config
from regard.models.presets import SIZES, find_preset, has_size, preset_names

KINDS = [name for name in preset_names() if name not in SIZES]
NAMES = [*SIZES, *KINDS, *(f"{kind}-{size}" for kind in KINDS for size in SIZES)]


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_can_be_built(name: str):
    full_name, values = find_preset(name)
    with torch.device("meta"):
        build_model(read_model_config(values), 31)
    assert has_size(full_name)
    assert find_preset(full_name) == (full_name, values)


def test_a_kind_without_a_size_takes_the_one_it_is_given():
    assert find_preset("gru", "small")[0] == "gru-small"
    assert find_preset("transformer", "small") == find_preset("small")
    assert not has_size("gru")


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_kinds_of_one_size_have_about_as_many_parameters(size: str):
    with torch.device("meta"):
        models = [
            build_model(read_model_config(find_preset(f"{kind}-{size}")[1]), 1000)
            for kind in ("transformer", "lstm", "lstm-attention", "convolution")
        ]
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(counts) < 1.6 * min(counts)


@pytest.mark.parametrize(
    ("name", "words"),
    [("smal", "did you mean small?"), ("lsmt", "did you mean lstm?"), ("lstm-smal", "did you mean lstm-small?")],
)
def test_an_unknown_name_gets_the_nearest(name: str, words: str):
    with pytest.raises(ConfigError) as error:
        find_preset(name)
    assert words in str(error.value)


def test_a_name_near_to_none_gets_the_list():
    with pytest.raises(ConfigError, match="known: transformer, simplified, bag"):
        find_preset("xyz")
