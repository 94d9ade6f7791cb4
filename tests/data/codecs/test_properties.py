"""Properties: numbers or labels, any of which may be missing."""

import math

import numpy as np
import pytest

from regard.data.codecs.properties import PropertyCodec
from regard.errors import DataError


def test_numbers_are_standardized_by_those_that_are_known():
    codec = PropertyCodec.fit(["1;5", "3;", ";7"], ["a", "b"], "smiles")
    assert (codec.means, codec.stds) == ((2.0, 6.0), (1.0, 1.0))
    stored = codec.numbers(codec.encode(["2.5;", "1;5"]))
    np.testing.assert_array_equal(stored, [[2.5, math.nan], [1, 5]])
    np.testing.assert_allclose(codec.restore(codec.standardize(stored)), stored)
    assert codec.decode(codec.encode(["2.5;"])) == ["2.5;"]


def test_two_values_are_labels_the_positive_one_last():
    codec = PropertyCodec.fit(["yes;0", "no;1", ";1"], ["a", "b"])
    assert codec.labels == (("no", "yes"), ("0", "1"))
    assert codec.numbers_of("yes;")[0] == 1.0
    assert math.isnan(codec.numbers_of("yes;")[1])
    assert codec.write([0.7, 0.2]) == "yes;0"
    assert codec.display("yes;") == "a=yes"


def test_a_rare_label_may_be_constant_among_others():
    assert PropertyCodec.fit(["0;0", "1;0"], ["a", "b"]).labels == (("0", "1"), ("0", "1"))


def test_a_codec_is_restored_from_json():
    for values in (["1;5", "3;", ";7"], ["yes;0", "no;1"]):
        codec = PropertyCodec.fit(values, ["a", "b"], "smiles")
        assert PropertyCodec.from_json(codec.to_json()) == codec


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["1", "1", "1"], "must vary in the training rows: all 3 rows have '1'"),
        (["red", "green", "blue"], "a number or one of two labels, got 3 labels"),
        (["0;1.5", "1;2.5", "0;3.5"], r"p1 \(labels\), p2 \(numbers\)"),
    ],
)
def test_what_cannot_be_predicted_is_refused(values: list[str], reason: str):
    names = [f"p{place + 1}" for place in range(values[0].count(";") + 1)]
    with pytest.raises(DataError, match=reason):
        PropertyCodec.fit(values, names)


def test_a_label_that_training_did_not_see_is_an_error():
    codec = PropertyCodec.fit(["yes", "no"], ["active"])
    with pytest.raises(DataError, match="active has the label 'maybe', and training rows have no and yes"):
        codec.encode(["maybe"])
