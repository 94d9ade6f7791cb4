"""Sums of ReLUs against numpy's interpolation, their error against three theorems, and formulas that do not parse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ConfigError
from regard.lab import run_study
from regard.lab.representation.functions import parse_function, parse_interval
from regard.lab.representation.hinges import (
    NUM_POINTS,
    RepresentationSizes,
    SampledFunction,
    box_network,
    error_exponent,
    evaluate_network,
    hinge_network,
    lipschitz_bound,
    modulus_of_continuity,
    random_network,
    sample_function,
    smooth_bound,
    study_representation,
    train_networks,
)

TINY = RepresentationSizes(
    num_units=(1, 2, 4, 8), drawn_units=3, learned_units=(2, 3), num_rows=17, steps=5, num_seeds=2
)
KNOTS = np.linspace(-1, 2, 8)
"""Of the theorems' tests: 7 parts of the interval from -1 to 2."""


@pytest.mark.parametrize("num_units", [1, 2, 13, 1009])
@pytest.mark.parametrize("text", ["sin(3*x)", "abs(x - 1/3)", "sqrt(abs(x)) + x**3", "7"])
def test_the_network_is_the_linear_interpolation(text: str, num_units: int):
    function, interval = parse_function(text), (-1.3, 2.9)
    network = hinge_network(function, interval, num_units)
    assert [type(layer).__name__ for layer in network] == ["Linear", "ReLU", "Linear"]
    x, knots = np.linspace(*interval, 4999), np.linspace(*interval, num_units + 1)
    expected = np.interp(x, knots, function(knots))
    np.testing.assert_allclose(evaluate_network(network, x), expected, rtol=0, atol=1e-12)


def test_the_staircase_has_the_value_in_the_middle_of_each_box():
    function = parse_function("exp(x) - 2*x")
    network = box_network(function, (0.0, 2.0), 5, ramp=0.1)
    assert network.get_parameter("0.weight").shape == (8, 1)
    x = np.linspace(0, 2, 1001)
    inside = np.abs(x / 0.4 - np.round(x / 0.4)) > 0.06
    middles = 0.4 * np.floor(x / 0.4) + 0.2
    np.testing.assert_allclose(evaluate_network(network, x)[inside], function(middles)[inside], rtol=0, atol=1e-12)


def error_of(function: Callable[[np.ndarray], np.ndarray]) -> float:
    x = np.linspace(KNOTS[0], KNOTS[-1], 42_001)  # 6,000 points between two knots, their middle included
    network = hinge_network(function, (KNOTS[0], KNOTS[-1]), len(KNOTS) - 1)
    return float(np.abs(evaluate_network(network, x) - function(x)).max())


H = float(KNOTS[1] - KNOTS[0])
MIDDLE = float(KNOTS[2] + H / 2)


def is_a_sharp_bound(bound: Callable[[Any], float], cases: list[tuple[Any, Any]]) -> bool:
    """Whether the bound holds for all functions, with the constants given, and is attained by one of them."""
    errors = [error_of(function) for function, _ in cases]
    bounds = [bound(constants) for _, constants in cases]
    holds = all(error <= allowed * (1 + 1e-9) for error, allowed in zip(errors, bounds, strict=True))
    return holds and any(error >= allowed * (1 - 1e-9) for error, allowed in zip(errors, bounds, strict=True))


SMOOTH = [(lambda x: 1.5 * x**2, 3.0), (np.sin, 1.0), (lambda x: np.exp(x), float(np.exp(2))), (lambda x: x**3, 12.0)]


def test_the_error_of_smooth_functions_is_at_most_the_second_derivative_times_h_squared_over_8():
    assert is_a_sharp_bound(lambda second: smooth_bound(second, H), SMOOTH)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda second: second * H**2 / 4,
        lambda second: second * H**2 / 16,
        lambda second: second * H**2 / 12,
        lambda second: second * H / 8,
        lambda second: second * H**3 / 8,
        lambda second: second**2 * H**2 / 8,
    ],
)
def test_wrong_constants_for_smooth_functions_are_rejected(wrong: Callable[[float], float]):
    assert not is_a_sharp_bound(wrong, SMOOTH)


LIPSCHITZ = [(lambda x: 3 * np.abs(x - MIDDLE), 3.0), (np.sin, 1.0), (lambda x: np.abs(x - KNOTS[3] - H / 3), 1.0)]


def test_the_error_of_lipschitz_functions_is_at_most_the_constant_times_h_over_2():
    assert is_a_sharp_bound(lambda constant: lipschitz_bound(constant, H), LIPSCHITZ)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda constant: constant * H,
        lambda constant: constant * H / 4,
        lambda constant: constant * H**2 / 2,
        lambda constant: constant * H / np.sqrt(2),
    ],
)
def test_wrong_constants_for_lipschitz_functions_are_rejected(wrong: Callable[[float], float]):
    assert not is_a_sharp_bound(wrong, LIPSCHITZ)


def spikes(*places: tuple[float, float]) -> Callable[[np.ndarray], np.ndarray]:
    """Triangles of these heights at these places, each a tenth of h wide to both sides."""
    return lambda x: np.sum(
        [height * np.maximum(0, 1 - np.abs(x - place) / (H / 10)) for place, height in places], axis=0
    )


def staircase(x: np.ndarray) -> np.ndarray:
    """0 at 45 % of the way from one knot to the next, 1 from a tenth of h on either side, 2 at the next knot."""
    place = (x - KNOTS[2]) / H
    return np.interp(place, [0, 0.44, 0.45, 0.46, 0.97, 0.98], [1.0, 1.0, 0.0, 1.0, 1.0, 2.0])


FINE = np.linspace(KNOTS[0], KNOTS[-1], 42_001)
"""6,000 steps for each h."""
CONTINUOUS = [
    (spikes((KNOTS[1] + H / 4, 1.0), (KNOTS[2] + 3 * H / 4, -1.0)),) * 2,
    (staircase,) * 2,
    (lambda x: np.sqrt(np.abs(x)),) * 2,
]


def modulus(function: Callable[[np.ndarray], np.ndarray], distance: float) -> float:
    return modulus_of_continuity(function(FINE), round(distance / H * 6_000))


def test_the_error_of_continuous_functions_is_at_most_their_modulus_of_continuity_at_h():
    assert is_a_sharp_bound(lambda function: modulus(function, H), CONTINUOUS)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda function: modulus(function, H / 2),
        lambda function: modulus(function, 2 * H),
        lambda function: modulus(function, H) / 2,
        lambda function: modulus(function, H) * H,
    ],
)
def test_wrong_forms_for_continuous_functions_are_rejected(wrong: Callable[[Any], float]):
    assert not is_a_sharp_bound(wrong, CONTINUOUS)


def test_the_modulus_of_continuity_is_the_largest_difference_of_two_near_values():
    values = np.random.default_rng(0).standard_normal(53)
    for steps in (1, 2, 7, 52):
        pairs = [abs(values[i] - values[j]) for i in range(53) for j in range(53) if abs(i - j) <= steps]
        assert modulus_of_continuity(values, steps) == pytest.approx(max(pairs))


@pytest.mark.parametrize(
    ("text", "regularity", "constant"),
    [
        ("sin(3*x)", "smooth", 9.0),
        ("2*x - 1", "smooth", 0.0),
        ("5", "smooth", 0.0),
        ("max(0, 4*(x - 1/3))", "Lipschitz", 4.0),
        ("sqrt(abs(x - 1/3))", "continuous", None),
    ],
)
def test_regularity_is_recognized(text: str, regularity: str, constant: float | None):
    target = sample_function(text, parse_function(text), (0.0, 2.0))
    assert target.regularity == regularity
    if constant is not None:
        assert target.constant == pytest.approx(constant, rel=1e-5, abs=1e-9)
    for n in (1, 3, 11):
        assert (
            target.sup_error(hinge_network(target.function, target.interval, n)) <= target.bound(n) * (1 + 1e-6) + 1e-12
        )


@pytest.mark.parametrize(("text", "exponent"), [("exp(x)", -2), ("abs(x - 1/3)", -1), ("sqrt(abs(x - 1/3))", -0.5)])
def test_the_error_falls_at_the_rate_of_the_theorem(text: str, exponent: float):
    target = sample_function(text, parse_function(text), (0.0, 1.0))
    units = [4, 16, 64, 256]
    errors = [target.sup_error(hinge_network(target.function, target.interval, n)) for n in units]
    assert error_exponent(units, errors) == pytest.approx(exponent, abs=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sin(3*x", r"does not parse at character 4: '\(' was never closed"),
        ("2 + * x", r"does not parse at character 5"),
        ("", r"does not parse at character 1"),
        ("2*x + y", r"at character 7: unknown name 'y'; known: x, pi, e"),
        ("sinn(x)", r"at character 1: unknown function 'sinn'; did you mean sin\?"),
        ("x^2", r"at character 1: a power is written \*\*, not \^"),
        ("max(x)", r"at character 1: max takes 2 arguments, got 1"),
        ("sin(x, x)", r"at character 1: sin takes 1 argument, got 2"),
        ("__import__('os')", r"at character 1: unknown function '__import__'"),
        ("x.real", r"at character 1: a formula has numbers, x"),
        ("(lambda: 1)()", r"a formula has numbers, x"),
        ("x if x else 1", r"a formula has numbers, x"),
        ("'a'", r"a formula has numbers, x"),
        ("True", r"a formula has numbers, x"),
        ("x // 2", r"the operators are \+ - \* / \*\*"),
        ("x +" * 200 + "x", "at most 300 characters, got 601"),
    ],
)
def test_a_formula_with_an_error_says_where(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        parse_function(text)


def test_a_formula_is_evaluated_in_float64_as_numpy_does():
    x = np.linspace(0.1, 3, 7)
    for text, expected in (
        ("-x**2 + 2*pi/e", -(x**2) + 2 * np.pi / np.e),
        ("min(x, 1) * tanh(log(x))", np.minimum(x, 1) * np.tanh(np.log(x))),
        ("2**3**2", np.full(7, 512.0)),
    ):
        np.testing.assert_array_equal(parse_function(text)(x), expected)


@pytest.mark.parametrize("text", ["1", "1,0", "0,0", "a,b", "0,inf", "0,1,2"])
def test_an_interval_that_is_none_is_rejected(text: str):
    with pytest.raises(ConfigError, match="an interval must"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1/(x - 0.5)", r"must be finite on the interval \[0, 1\], got inf for '1/\(x - 0.5\)' at x = 0.5"),
        ("log(x - 0.5)", r"got nan for .* at x = 0"),
        ("9**9**9", r"got inf"),
        ("(x - 1/3)/abs(x - 1/3)", r"a jump of .* near x = 0.333"),
    ],
)
def test_a_function_that_is_not_continuous_is_rejected(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        study_representation(function=text, sizes=TINY)


def test_descent_trains_each_network_as_if_it_were_alone():
    target = sample_function("sin", np.sin, (0.0, 3.0))
    rng = np.random.default_rng(3)
    starts = [random_network(target.interval, 5, rng=rng) for _ in range(3)]
    sizes = RepresentationSizes(num_rows=31, steps=40)
    before = [start.get_parameter("0.bias").clone() for start in starts]
    together = train_networks(target, starts, sizes, description="all")
    for start, bias, trained in zip(starts, before, together, strict=True):
        assert torch.equal(start.get_parameter("0.bias"), bias)
        (alone,) = train_networks(target, [start], sizes, description="one")
        np.testing.assert_allclose(evaluate_network(trained, target.x), evaluate_network(alone, target.x), atol=1e-10)
        assert mean_squared_error(target, trained) < mean_squared_error(target, start)


def mean_squared_error(target: SampledFunction, network: Any) -> float:
    return float(np.square(evaluate_network(network, target.x) - target.values).mean())


def test_the_study_is_whole():
    study = study_representation(sizes=TINY)
    assert [len(table.rows) for table in study.tables] == [3, 4, 4, 4, 2]
    assert len(study.figure.axes) == 6
    assert len(study.findings) == 3
    assert NUM_POINTS % max(TINY.num_units) == 0
    again = study_representation(sizes=TINY)
    assert again.to_json()["tables"] == study.to_json()["tables"]
    assert study_representation(sizes=TINY, seed=1).to_json()["tables"][-1] != study.to_json()["tables"][-1]


def test_a_function_and_an_interval_of_ones_own():
    study = study_representation(function=" -x**2 ", interval="-1,2", sizes=TINY)
    assert study.settings["functions"] == ["-x**2"]
    assert study.settings["interval"] == (-1.0, 2.0)
    assert study.tables[1].name.startswith("-x**2")
    for row in study.tables[1].rows:  # a parabola attains the bound
        assert row[4] == pytest.approx(1, rel=1e-5)


def test_an_option_that_a_study_does_not_have_is_rejected():
    with pytest.raises(ConfigError, match=r"the study representation has no option fonction; did you mean function\?"):
        run_study("representation", options={"fonction": "x"})
    with pytest.raises(ConfigError, match="the study softmax has no option function; it has no options of its own"):
        run_study("softmax", options={"function": "x"})
