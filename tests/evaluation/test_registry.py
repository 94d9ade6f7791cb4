"""Looking metrics up by name, and handing examples from one process to another."""

import json

import numpy as np
import pytest

from regard.errors import ConfigError, DataError
from regard.evaluation import Examples, Metric, find_metric, find_metric_of, score_examples
from regard.evaluation.metrics.regression import RMSE


@pytest.mark.parametrize(("name", "nearest"), [("exactmatch", "exact_match"), ("blue", "bleu")])
def test_an_unknown_metric_is_refused_with_the_nearest(name: str, nearest: str):
    for find in (find_metric, find_metric_of):
        with pytest.raises(ConfigError, match=f"unknown metric '{name}'; did you mean {nearest}"):
            find(name)


@pytest.mark.parametrize(
    ("label", "in_text"),
    [("Exact match", "exact match"), ("BLEU", "BLEU"), ("chrF", "chrF"), ("Entity F1", "entity F1")],
)
def test_a_label_within_a_sentence_keeps_its_acronyms(label: str, in_text: str):
    assert Metric(name="x", label=label).in_text == in_text
    assert Metric(name="x", label=label, label_in_text="Pearson").in_text == "Pearson"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.000158, "0.000158"), (1.23456, "1.235"), (51.4669, "51.47"), (123.456, "123.5"),
     (45678.9, "45679")],
)  # fmt: skip
def test_values_of_any_size_have_four_significant_digits_and_three_below_one(value: float, text: str):
    assert RMSE.format(value) == find_metric("perplexity").format(value) == text


def test_scores_come_in_the_order_of_the_names():
    examples = Examples(outputs=["a b", "c"], targets=["a b", "d"], losses=[1.0, 2.0], num_tokens=[2, 1])
    names = ["perplexity", "exact_match", "chrf"]
    assert [score.name for score in score_examples(names, examples)] == names


@pytest.mark.parametrize("name", ["rmse", "spearman"])
def test_a_value_is_that_of_the_score_without_its_interval(name: str):
    examples = Examples(outputs=[1.0, 2.5, 2.0, 4.0], targets=[1.5, 2.0, 3.0, 3.5])
    assert find_metric(name).value(examples) == find_metric(name).scores(examples)[0].value
    with pytest.raises(DataError, match=f"{name}: the examples must have outputs, targets"):
        find_metric(name).value(Examples(outputs=[1.0]))


def test_arrays_sets_and_tuples_are_written_as_json():
    examples = Examples(
        outputs=[{"b", "a"}, frozenset()],
        targets=({"a"}, {"b"}),
        extras={"ranks": np.array([1, 2])},
        labels=("a",),
        num_bytes=7,
    )
    values = json.loads(json.dumps(examples.to_json()))
    assert values["outputs"] == [{"set": ["a", "b"]}, {"set": []}]
    again = Examples.from_json(values)
    assert list(again.targets or ()) == [{"a"}, {"b"}]
    assert (again.get("ranks"), again.num_bytes, again.losses) == ([1, 2], 7, None)
    assert again.to_json() == examples.to_json()


def test_an_unknown_field_of_json_is_refused():
    with pytest.raises(DataError, match="examples have no field output"):
        Examples.from_json({"output": ["a"]})
