"""Settings: strict, told in one line, and the same after a trip through TOML."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ConfigError
from regard.settings import merge, override, read_toml, template, to_toml
from regard.training.resolution import with_preset
from regard.training.settings import RunSettings

SCALARS = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False),
                    st.text(st.characters(exclude_categories=["Cs"])))  # fmt: skip


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), st.one_of(SCALARS, st.lists(SCALARS)), min_size=1))
def test_what_is_written_is_read_back(values: dict):
    assert tomllib.loads(to_toml({"section": values})) == {"section": values}


def test_a_whole_run_survives_toml():
    settings = RunSettings.read({"data": {"train": ["ä\t.tsv"], "splits": [0.8, 0.1, 0.1]}, "train": {"minutes": 1.5}})
    assert RunSettings.read(tomllib.loads(to_toml(settings.model_dump()))) == settings


def test_the_template_is_the_settings():
    settings = with_preset({}, "small")
    assert RunSettings.read(tomllib.loads(template(settings))) == settings
    assert settings.model.block == "pre-norm"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"num_head": 3}}, "unknown setting model.num_head; did you mean model.num_heads?"),
        ({"trian": {}}, "unknown setting trian; did you mean train?"),
        ({"train": {"zzz": 1}}, "unknown setting train.zzz; known: max_steps"),
        ({"train": {"seed": "12"}}, "train.seed: input should be a valid integer, got '12'"),
        ({"train": {"learning_rate": -1.0}}, "train.learning_rate: input should be greater than 0, got -1.0"),
        ({"data": {"splits": [0.5, 0.6, 0.1]}}, "data.splits must be three shares that sum to 1, got [0.5, 0.6, 0.1]"),
        ({"train": {"device": "gpu"}}, "a device is auto, cpu, cuda or cuda:N, got 'gpu'"),
    ],
)
def test_mistakes_are_told_in_one_line(values: dict, message: str):
    with pytest.raises(ConfigError) as error:
        RunSettings.read(values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="frozen"):
        RunSettings().task = "other"


@pytest.mark.parametrize("assignment", ["train.seed", "=3", "train.=3", ".seed=3"])
def test_an_assignment_has_a_name_and_a_value(assignment: str):
    with pytest.raises(ConfigError, match=r"section\.name=value"):
        override({}, [assignment])


def test_assignments_read_toml_where_it_is_toml():
    values = override({}, ["a.b=1e-3", "a.c=[1, 2]", "a.d=true", "a.e=rotary", 'a.f="3"', "a.g=x=y"])
    assert values == {"a": {"b": 0.001, "c": [1, 2], "d": True, "e": "rotary", "f": "3", "g": "x=y"}}


def test_merging_changes_neither_side():
    first, second = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(first, second) == {"a": {"b": 1, "c": 2}}
    assert (first, second) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_a_broken_file_is_told(tmp_path):
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match="no settings file"):
        read_toml(path)
    path.write_text("a = ")
    with pytest.raises(ConfigError, match="not TOML"):
        read_toml(path)
