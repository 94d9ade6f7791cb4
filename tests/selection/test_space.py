"""The search space of a sweep: what is valid, and the points of a grid."""

from typing import Any

import pytest

from regard.errors import ConfigError
from regard.selection.space import Range, nested, read_space
from regard.training.defaults import draft
from regard.training.settings import DraftSettings

RATE = {"low": 1e-4, "high": 1e-2, "log": True}


def settings(name: str = "tiny") -> DraftSettings:
    return draft({"task": {"name": "seq2seq"}, "preset": name})


def test_a_space_has_a_range_for_each_setting_by_its_full_name():
    tables = {"train": {"learning_rate": RATE}, "model": {"num_layers": {"choices": [1, 2]}}}
    space = read_space(tables, [settings()])
    assert list(space.ranges) == ["train.learning_rate", "model.num_layers"]
    assert space.ranges["train.learning_rate"].log
    assert space.ranges["model.num_layers"].points() == [1, 2]
    assert read_space(nested(space.to_json()), [settings()]) == space


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"train": {"learning_rat": RATE}}, "unknown setting train.learning_rat; did you mean train.learning_rate?"),
        ({"trian": {"learning_rate": RATE}}, "unknown setting trian; did you mean train?"),
        ({"generate": {"beam_siz": RATE}}, "unknown setting generate.beam_siz; did you mean generate.beam_size?"),
        ({}, "the search space must have at least one setting"),
        ({"train": {}}, "the search space must have at least one setting"),
        ({"train": 3}, "train is a section: a space must name settings in it, got 3"),
        ({"train": {"learning_rate": 0.1}}, "train.learning_rate must be a table with low and high"),
        ({"train": {"learning_rate": {}}}, "train.learning_rate: a setting needs low and high, or choices"),
        ({"train": {"learning_rate": {"low": 0.1, "hihg": 1.0}}}, "train.learning_rate.hihg; did you mean"),
        ({"train": {"learning_rate": {"low": 0.1, "high": 0.1}}}, "low must be below high, got"),
        (
            {"train": {"learning_rate": {"low": 0.0, "high": 0.1, "log": True}}},
            "of a logarithmic range must be above 0, got",
        ),
        ({"train": {"learning_rate": {**RATE, "step": 0.1}}}, "must not have a step"),
        ({"train": {"learning_rate": {**RATE, "choices": [0.1]}}}, "got both"),
        ({"train": {"optimizer": {"choices": []}}}, "different values, at least one, got []"),
        ({"train": {"optimizer": {"choices": ["adamw", "adamw"]}}}, "different values"),
        ({"train": {"optimizer": {"choices": ["adamw", "adamx"]}}}, "train.optimizer: input should be"),
        ({"model": {"dropout": {"low": 0.0, "high": 1.5}}}, "model.dropout: input should be less than"),
        ({"model": {"num_layers": {"low": 1.0, "high": 3.5}}}, "model.num_layers: input should be a valid integer"),
        ({"data": {"split_seed": {"low": 0, "high": 9}}}, "data.split_seed cannot be searched: the same rows"),
    ],
)
def test_an_invalid_space_is_refused(tables: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as error:
        read_space(tables, [settings()], fixed={"data.split_seed": "the same rows"})
    assert words in str(error.value)


def test_a_setting_that_a_model_of_another_kind_has_is_refused():
    tables = {"model": {"num_heads": {"choices": [2, 4]}}}
    assert read_space(tables, [settings("tiny")]).ranges
    with pytest.raises(ConfigError, match=r"unknown setting model\.num_heads"):
        read_space(tables, [settings("tiny"), settings("lstm")])


def test_a_fraction_from_0_to_1_is_any_number_between():
    space = read_space({"model": {"dropout": {"low": 0, "high": 0.5}}}, [settings()])
    assert space.ranges["model.dropout"].points() is None
    assert not space.ranges["model.dropout"].is_integer


@pytest.mark.parametrize(
    ("one", "points"),
    [
        (Range(low=1, high=7, step=3), [1, 4, 7]),
        (Range(low=1, high=8, step=3), [1, 4, 7]),
        (Range(low=0.1, high=0.7, step=0.2), [0.1, 0.3, 0.5, 0.7]),
        (Range(choices=["a", True, 2]), ["a", True, 2]),
        (Range(low=0.1, high=0.7), None),
    ],
)
def test_the_points_of_a_range(one: Range, points: list[Any] | None):
    assert one.points() == points


def test_a_grid_is_every_combination_once():
    tables = {"train": {"optimizer": {"choices": ["adamw", "muon"]}}, "model": {"num_layers": {"low": 1, "high": 3}}}
    grid = read_space(tables, [settings()]).grid()
    assert len(grid) == 6
    assert {(point["train.optimizer"], point["model.num_layers"]) for point in grid} == {
        (optimizer, layers) for optimizer in ("adamw", "muon") for layers in (1, 2, 3)
    }


def test_a_continuous_range_has_no_grid():
    with pytest.raises(ConfigError, match=r"train\.learning_rate is a continuous range"):
        read_space({"train": {"learning_rate": RATE}}, [settings()]).grid()
