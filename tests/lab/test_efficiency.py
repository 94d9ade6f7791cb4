"""Costs against the length: counts by hand, and path lengths by the reach of each layer."""

import math

import pytest
import torch

from regard.lab.efficiency.growth import (
    EfficiencySizes,
    count_operations,
    count_parameters,
    make_families,
    path_length,
    sequential_depth,
    study_efficiency,
)

TINY = EfficiencySizes(model_dim=4, lengths=(8, 16, 32), distances=(1, 2, 4, 7), max_layers=7)
FAMILIES = {family.name: family for family in make_families(TINY)}
PATHS = {
    "self-attention": lambda distance: 1,
    "recurrent": lambda distance: distance + 1,
    "convolutional": lambda distance: math.ceil(distance / 2),
    "convolutional, dilated": lambda distance: next(n for n in range(1, 9) if 3**n - 1 >= distance),
    "self-attention, window": lambda distance: math.ceil(distance / 3),
}
WRONG = {
    "self-attention": [lambda d: d, lambda d: 2, lambda d: math.ceil(d / 3)],
    "recurrent": [lambda d: 1, lambda d: d, lambda d: math.ceil(d / 2)],
    "convolutional": [lambda d: 1, lambda d: d, lambda d: math.ceil(d / 3)],
    "convolutional, dilated": [lambda d: 1, lambda d: d, lambda d: math.ceil(d / 2)],
    "self-attention, window": [lambda d: 1, lambda d: math.ceil(d / 4), lambda d: d],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_path_has_the_layers_that_the_reach_of_each_allows_and_no_other_number(name: str):
    found = [path_length(FAMILIES[name], distance, TINY) for distance in TINY.distances]
    assert found == [PATHS[name](distance) for distance in TINY.distances]
    for wrong in WRONG[name]:
        assert found != [wrong(distance) for distance in TINY.distances]


def test_the_depth_of_a_graph_is_its_longest_chain():
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    # One node for x itself, then mul, exp, add and sum; the other branch is shorter.
    assert sequential_depth((y.exp() + x).sum()) == 5


def test_a_recurrent_layer_is_sequential_and_attention_is_not():
    depths = {}
    for name in ("self-attention", "recurrent", "convolutional"):
        model = FAMILIES[name].build(1)
        depths[name] = [sequential_depth(model(torch.randn(1, n, 4, requires_grad=True)).sum()) for n in (8, 16, 32)]
    assert len(set(depths["self-attention"])) == len(set(depths["convolutional"])) == 1
    first, second, third = depths["recurrent"]
    assert third - second == 2 * (second - first)
    assert (third - second) % 16 == 0


def test_operations_are_those_of_the_products():
    # Of an LSTM: two products with 4 d gates for each position, two operations each.
    x = torch.randn(1, 11, 4)
    assert count_operations(FAMILIES["recurrent"].build(1), x) == 11 * 2 * 2 * 4 * 16
    one, two = (count_operations(FAMILIES["self-attention"].build(1), torch.randn(1, n, 4)) for n in (16, 32))
    # n (4 d^2 + 2 d d_ff) for projections and the feed-forward layer, n^2 2 d for scores and values, twice each.
    assert two - 2 * one == 2 * (2 * 4) * (32**2 - 2 * 16**2)


def test_only_learned_positions_and_full_connections_have_more_parameters_for_longer_inputs():
    short, long = count_parameters(8, TINY), count_parameters(16, TINY)
    grown = {name for name in short if long[name] > short[name]}
    assert grown == {"self-attention, learned positions", "fully connected"}
    assert long["self-attention, learned positions"] - short["self-attention, learned positions"] == 8 * 4
    assert long["fully connected"] == (16 * 4) ** 2 + 16 * 4


def test_the_study_is_whole():
    study = study_efficiency(sizes=TINY)
    stated, parameters, *_ = study.tables
    assert [row[0] for row in stated.rows] == [*FAMILIES]
    assert len(parameters.rows) == 4
    assert len(study.findings) == 4
