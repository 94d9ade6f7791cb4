"""Settings: strict, with errors of one line, and the same after a round trip through TOML."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from regard.errors import ConfigError
from regard.settings import Settings, merge_tables, override, read_toml, template, to_toml
from regard.training.defaults import draft
from regard.training.settings import DraftSettings, TrainConfig

SCALARS = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False),
                    st.text(st.characters(exclude_categories=["Cs"])))  # fmt: skip
PAIRS = {"task": {"name": "seq2seq"}}


@given(st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), st.one_of(SCALARS, st.lists(SCALARS)), min_size=1))
def test_written_values_are_read_back(values: dict):
    assert tomllib.loads(to_toml({"section": values})) == {"section": values}


def test_a_draft_is_restored_from_toml():
    data = {"train": ["ä\t.tsv"], "splits": [0.8, 0.1, 0.1]}
    settings = draft({**PAIRS, "data": data, "train": {"minutes": 1.5, "learning_rate": 0.01}})
    assert DraftSettings.read(tomllib.loads(to_toml(settings.model_dump()))) == settings


def test_the_template_has_the_values_of_the_settings():
    settings = draft({**PAIRS, "preset": "small"})
    assert DraftSettings.read(tomllib.loads(template(settings))) == settings
    assert settings.model.block == "pre-norm"
    assert "# learning_rate =" in template(settings)


def test_the_template_has_sections_without_a_value_as_comments_and_help_for_every_setting():
    lines = template(draft({**PAIRS, "preset": "small"})).splitlines()
    start = lines.index("# [finetune]")
    assert lines[start - 1] == "# Only for `regard finetune`, which sets the base."
    assert '# method = "all"' in lines[start:]
    assert "# [finetune.lora]" in lines[start:]
    assert "# rank = 8" in lines[start:]
    settings = [number for number, line in enumerate(lines) if re.match(r"(# )?[a-z_0-9]+ =", line)]
    assert len(settings) > 100
    without_help = [lines[number] for number in settings if not lines[number - 1].startswith("# ")]
    assert without_help == []


class Example(Settings):
    rate: float = Field(gt=0)
    name: str = "x"


def test_a_draft_has_none_where_a_field_has_no_default():
    assert Example.draft({}).rate is None
    assert Example.draft({"rate": 0.5}).rate == 0.5
    assert isinstance(Example.draft({}), Example)
    with pytest.raises(ConfigError, match=r"train\.rate.*-1"):
        Example.draft({"rate": -1.0}, section="train")
    with pytest.raises(ConfigError, match="rate"):
        Example.read({})
    with pytest.raises(ConfigError, match=r"^train\.batch_tokens is missing$"):
        TrainConfig.read(TrainConfig.draft({}).model_dump(exclude_none=True), section="train")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"num_head": 3}}, "unknown setting model.num_head; did you mean model.num_heads?"),
        ({"trian": {}}, "unknown setting trian; did you mean train?"),
        ({"train": {"zzz": 1}}, "unknown setting train.zzz; known: max_steps"),
        ({"train": {"seed": "12"}}, "train.seed: input should be a valid integer, got '12'"),
        ({"train": {"learning_rate": -1.0}}, "train.learning_rate: input should be greater than 0, got -1.0"),
        (
            {"task": {"name": "seq2seq", "max_lenght": 9}},
            "unknown setting task.max_lenght; did you mean task.max_length",
        ),
        ({"data": {"splits": [0.5, 0.6, 0.1]}}, "data.splits must be three shares that sum to 1, got [0.5, 0.6, 0.1]"),
        ({"train": {"device": "gpu"}}, "a device is auto, cpu, cuda or cuda:N, got 'gpu'"),
        ({"preset": "tinny"}, "no preset is called 'tinny'; did you mean tiny?"),
        ({"task": {"name": "seq2sek"}}, "unknown task 'seq2sek'; did you mean seq2seq?"),
        ({"model": {"family": "transfomer"}}, "unknown model family 'transfomer'; did you mean transformer?"),
        ({"train": 3}, "train must be a section"),
        ({"data": 3}, "data: input should be"),
        ({"model": 3}, "model must be a section"),
        ({"task": {"name": {"x": 1}}}, "task.name is a single value, 'seq2seq'"),
    ],
)
def test_errors_have_one_line_and_name_the_nearest_setting(values: dict, message: str):
    with pytest.raises(ConfigError) as error:
        draft(merge_tables(PAIRS, values))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Example(rate=0.5).name = "other"


@pytest.mark.parametrize("assignment", ["train.seed", "=3", "train.=3", ".seed=3"])
def test_an_assignment_has_a_name_and_a_value(assignment: str):
    with pytest.raises(ConfigError, match=r"section\.name=value"):
        override({}, [assignment])


def test_values_of_assignments_are_toml_or_strings():
    values = override({}, ["a.b=1e-3", "a.c=[1, 2]", "a.d=true", "a.e=rotary", 'a.f="3"', "a.g=x=y"])
    assert values == {"a": {"b": 0.001, "c": [1, 2], "d": True, "e": "rotary", "f": "3", "g": "x=y"}}


def test_a_setting_below_a_single_value_is_an_error():
    for before in ({"preset": "tiny"}, {"preset": [1]}):
        with pytest.raises(ConfigError, match=r"preset.*'horizon'"):
            override(before, ["preset.horizon=96"])
    with pytest.raises(ConfigError, match=r"preset.*'horizon'"):
        override({}, ["preset=tiny", "preset.horizon=96"])


def test_merging_changes_neither_side():
    first, second = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge_tables(first, second) == {"a": {"b": 1, "c": 2}}
    assert (first, second) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_a_missing_or_invalid_file_is_an_error(tmp_path):
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match="no settings file"):
        read_toml(path)
    path.write_text("a = ")
    with pytest.raises(ConfigError, match="not TOML"):
        read_toml(path)
