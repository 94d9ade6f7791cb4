"""Formulas against Python's own operators, circuits on all inputs, and the variance of gradients over parities."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.evaluation.intervals import clopper_pearson
from regard.lab.circuits.compilation import (
    PROBLEMS,
    StepUnit,
    ThresholdCircuit,
    compile_circuit,
    compile_formula,
    count_units,
    count_wrong_outputs,
    parity_by_thresholds,
    parity_term_count,
    parity_terms,
    parity_tree,
    parity_tree_depth,
)
from regard.lab.circuits.formulas import MAX_NESTING, all_inputs, parse_formula
from regard.lab.circuits.learning import (
    NETWORK_KINDS,
    BooleanRows,
    GradientSpread,
    StackedPerceptrons,
    build_networks,
    draw_perceptron,
    exact_match,
    gradient_spread,
    learn_hidden_parity,
    split_inputs,
    train_on_rows,
    variance_bound,
    variance_exponent,
    walsh_hadamard,
)
from regard.lab.circuits.report import CircuitSizes, study_circuits, success_rate

TINY = CircuitSizes(
    parity_inputs=(2, 3), fractions=(0.3, 0.7), width=5, sequence_width=4, num_seeds=2, num_sequence_seeds=1, steps=2,
    problem_sizes=(("parity", (3,)), ("majority", (3,)), ("multiplexer", (1,)), ("addition", (2,)), ("sorting", (3,))),
    batch_size=3, hidden_inputs=5, hidden_bits=(1, 3), hidden_steps=2, hidden_seeds=3, spread_inputs=(2, 3),
    spread_width=3, spread_draws=2,
)  # fmt: skip
BOTH: list[Any] = ["relu", "step"]


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("(a & b) ^ !c", lambda a, b, c: (a and b) != (not c)),
        ("a | b & c", lambda a, b, c: a or (b and c)),
        ("a ^ b & c", lambda a, b, c: a != (b and c)),
        ("a | b ^ c", lambda a, b, c: a or (b != c)),
        ("a & b -> c", lambda a, b, c: not (a and b) or c),
        ("a -> b -> c", lambda a, b, c: not a or (not b or c)),
        ("(a -> b) -> c", lambda a, b, c: not (not a or b) or c),
        ("!a & b | !!c", lambda a, b, c: (not a and b) or c),
        ("not a or b xor c and a", lambda a, b, c: not a or (b != (c and a))),
        ("~(a implies b) & 1 | c & 0", lambda a, b, c: not (not a or b)),
        ("a ^ b ^ c ^ 1", lambda a, b, c: (a + b + c) % 2 == 0),
        ("[2*a - b + 3*!c >= 2]", lambda a, b, c: 2 * a - b + 3 * (not c) >= 2),
        ("[- a - 2*b + (c & a) >= -1]", lambda a, b, c: -a - 2 * b + (c and a) >= -1),
        ("[a + a + b >= 2] & c", lambda a, b, c: 2 * a + b >= 2 and c),
    ],
)
@pytest.mark.parametrize("units", BOTH)
def test_a_formula_and_its_network_have_the_truth_table_of_python(text: str, python: Callable[..., bool], units: Any):
    formula = parse_formula(text)
    assert sorted(formula.variables) == ["a", "b", "c"]
    rows = itertools.product((False, True), repeat=3)
    expected = [bool(python(**dict(zip(formula.variables, row, strict=True)))) for row in rows]
    assert formula.truth_table().tolist() == expected
    network = compile_circuit(compile_formula(formula), units)
    assert count_wrong_outputs(network, formula.evaluate, 3) == 0
    assert network[-1].weight.dtype == torch.float64
    for parameter in network.parameters():  # whole numbers, which float64 represents exactly
        assert torch.equal(parameter, parameter.round())


@pytest.mark.parametrize("text", ["a", "!a", "0 & a", "1 | a", "a & !a", "a -> a"])
def test_the_smallest_formulas(text: str):
    formula = parse_formula(text)
    for units in BOTH:
        network = compile_circuit(compile_formula(formula), units)
        assert count_wrong_outputs(network, formula.evaluate, len(formula.variables)) == 0


def test_random_formulas_of_many_variables_are_exact_on_all_inputs():
    rng = np.random.default_rng(0)

    def draw(depth: int) -> str:
        if depth == 0:
            return f"{rng.choice(['', '!'])}x{rng.integers(11)}"
        if rng.random() < 0.2:
            terms = " + ".join(f"{rng.integers(1, 5)}*{draw(0)}" for _ in range(3))
            return f"[{terms} - {draw(0)} >= {rng.integers(-2, 6)}]"
        return f"({draw(depth - 1)} {rng.choice(['&', '|', '^', '->'])} {draw(depth - 1)})"

    for _ in range(12):
        formula = parse_formula(draw(4))
        circuit, n = compile_formula(formula), len(formula.variables)
        assert np.array_equal(circuit.evaluate(all_inputs(n))[:, 0], formula.truth_table())
        for units in BOTH:
            assert count_wrong_outputs(compile_circuit(circuit, units), formula.evaluate, n) == 0


def test_sixteen_variables_are_verified_and_seventeen_are_one_line():
    names = [f"x{i}" for i in range(17)]
    formula = parse_formula(" ^ ".join(names[:16]))
    assert count_wrong_outputs(compile_circuit(compile_formula(formula)), formula.evaluate, 16) == 0
    with pytest.raises(
        ConfigError, match=r"verified on all inputs, so it must have at most 16 variables, got 17: x0, x1"
    ):
        study_circuits(formula=" & ".join(names), sizes=TINY)
    with pytest.raises(ConfigError, match="at most 16 variables, got 17"):
        parse_formula(" & ".join(names)).truth_table()


def test_a_wrong_weight_is_counted():
    formula = parse_formula("(a & b) ^ !c")
    network = compile_circuit(compile_formula(formula))
    with torch.no_grad():
        network.get_parameter("0.bias")[0] += 1e-9
    assert count_wrong_outputs(network, formula.evaluate, 3) > 0


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("", 1, "a variable, 0, 1, '!', '\\(' or '\\[', got the end"),
        ("a &", 4, "a variable, .*, got the end"),
        ("(a & ) ^ c", 6, r"a variable, .*, got '\)'"),
        ("(a & b", 7, r"'\)', got the end"),
        ("a b", 3, "an operator or the end, got 'b'"),
        ("a & b)", 6, r"an operator or the end, got '\)'"),
        ("a && b", 4, "a variable, .*, got '&'"),
        ("a == b", 3, "a variable, an operator or a parenthesis, got '='"),
        ("a & 2", 5, "a variable, .*, got '2'"),
        ("a or or b", 6, r"a variable, .*, got '\|'"),
        ("[a + b]", 7, "'>=', got '\\]'"),
        ("[a + b >= c]", 11, "an integer of at most 6 digits, got 'c'"),
        ("[2 a >= 1]", 4, "'\\*', got 'a'"),
        ("[>= 1]", 2, "a variable, .*, got '>='"),
        ("[a >= 12345678]", 7, "an integer of at most 6 digits"),
        ("  a & é", 7, "a variable, an operator or a parenthesis, got 'é'"),
        ("(" * 200 + "a", MAX_NESTING + 1, f"at most {MAX_NESTING} levels of nesting"),
        ("!" * 200 + "a", MAX_NESTING, f"at most {MAX_NESTING} levels of nesting"),
        ("a -> " * 200 + "a", 5 * MAX_NESTING + 1, f"at most {MAX_NESTING} levels of nesting"),
    ],
)
def test_a_formula_that_does_not_parse_says_where(text: str, where: int, expected: str):
    with pytest.raises(ConfigError, match=f"does not parse at character {where}: expected {expected}"):
        parse_formula(text)


SIZES = [("parity", 9), ("majority", 8), ("majority", 9), ("multiplexer", 1), ("multiplexer", 3), ("addition", 1),
         ("addition", 5), ("sorting", 7)]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size", "kind"), [(name, size, kind) for name, size in SIZES for kind in PROBLEMS[name].circuits]
)
def test_the_circuits_of_the_problems_are_exact_on_all_inputs(name: str, size: int, kind: str):
    problem = PROBLEMS[name]
    circuit = problem.build(kind, size)
    assert circuit.num_inputs == problem.num_inputs(size)
    for units in BOTH:
        assert count_wrong_outputs(compile_circuit(circuit, units), problem.truth, circuit.num_inputs) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [("parity", 16, "thresholds, depth 2"), ("parity", 16, "tree of exclusive ors"), ("majority", 16, "one gate"),
     ("multiplexer", 3, "depth 2"), ("addition", 8, "depth 2, large weights"),
     ("addition", 8, "depth n + 1, small weights"), ("sorting", 16, "one layer")],
)  # fmt: skip
def test_the_circuits_of_sixteen_inputs_are_exact(name: str, size: int, kind: str):
    problem = PROBLEMS[name]
    network = compile_circuit(problem.build(kind, size))
    assert count_wrong_outputs(network, problem.truth, problem.num_inputs(size)) == 0


def test_the_problems_are_what_their_names_say():
    rows = all_inputs(6)
    numbers = [int("".join(map(str, row)), 2) for row in rows.astype(int)]
    added = [f"{number // 8 + number % 8:04b}" for number in numbers]
    assert ["".join(map(str, row)) for row in PROBLEMS["addition"].truth(rows).astype(int)] == added
    for row, chosen in zip(rows, PROBLEMS["multiplexer"].truth(rows)[:, 0], strict=True):
        assert chosen == row[2 + 2 * row[0] + row[1]]
    assert PROBLEMS["majority"].truth(rows)[:, 0].tolist() == [sum(row) > 3 for row in rows.tolist()]
    assert PROBLEMS["sorting"].truth(rows).tolist() == [sorted(row) for row in rows.tolist()]
    with pytest.raises(ConfigError, match=r"multiplexer of size 4 must have 1 to 16 inputs, got 20"):
        PROBLEMS["multiplexer"].build("depth 2", 4)


def test_a_formula_without_variables_is_rejected():
    with pytest.raises(ConfigError, match=r"a formula must have a variable, got '0 -> 1'"):
        parse_formula("0 -> 1")


def test_the_lectures_clause_is_one_threshold_unit():
    circuit = compile_formula(parse_formula("x1 | !x2 | x3"))
    network = compile_circuit(circuit, "step")
    assert isinstance(network[1], StepUnit)
    # x1 + (1 - x2) + x3 >= 1
    assert network.get_parameter("0.weight").tolist() == [[1, -1, 1]]
    assert network.get_parameter("0.bias").tolist() == [0]
    assert count_units(network) == 1


def test_addition_needs_depth_or_large_weights():
    shallow, deep = (PROBLEMS["addition"].build(kind, 7) for kind in PROBLEMS["addition"].circuits)
    assert (shallow.depth, shallow.largest_weight) == (2, 64)
    assert (deep.depth, deep.largest_weight) == (8, 2)


def minimal_terms(n: int) -> int:
    """The fewest conjunctions whose disjunction is the parity of n bits, by search over all implicants."""
    rows = all_inputs(n)
    truth = frozenset(np.flatnonzero(rows.sum(axis=1) % 2).tolist())
    implicants = set()
    for signs in itertools.product((0, 1, None), repeat=n):
        fixed = [i for i, sign in enumerate(signs) if sign is not None]
        covered = frozenset(i for i, row in enumerate(rows) if all(row[j] == signs[j] for j in fixed))
        if covered <= truth:
            implicants.add(covered)
    for count in range(1, len(truth) + 1):
        if any(frozenset().union(*chosen) == truth for chosen in itertools.combinations(implicants, count)):
            return count
    raise AssertionError


def terms_agree(formula: Callable[[int], float]) -> bool:
    return all(formula(n) == minimal_terms(n) == len(parity_terms(n).gates) - 1 for n in (1, 2, 3, 4))


def test_parity_takes_half_of_all_inputs_as_terms():
    assert terms_agree(parity_term_count)


@pytest.mark.parametrize("wrong", [lambda n: 2**n, lambda n: 2 ** (n - 2), lambda n: n, lambda n: 2 ** (n - 1) + 1,
                                   lambda n: n * (n + 1) / 2 - 1])  # fmt: skip
def test_wrong_numbers_of_terms_are_rejected(wrong: Callable[[int], float]):
    assert not terms_agree(wrong)


def tree_agrees(gates: Callable[[int], float], depth: Callable[[int], float]) -> bool:
    trees = [(n, parity_tree(n)) for n in (2, 3, 4, 7, 11, 16)]
    return all(len(tree.gates) == gates(n) and tree.depth == depth(n) for n, tree in trees)


def test_a_tree_of_exclusive_ors_has_logarithmic_depth_and_linear_size():
    assert tree_agrees(lambda n: 3 * (n - 1), parity_tree_depth)
    for n in (2, 5, 13):
        assert (len(parity_by_thresholds(n).gates), parity_by_thresholds(n).depth) == (n + 1, 2)


@pytest.mark.parametrize("wrong", [lambda n: math.ceil(math.log2(n)), lambda n: 2 * math.floor(math.log2(n)),
                                   lambda n: 2 * math.log2(n), lambda n: 2 * (n - 1)])  # fmt: skip
def test_wrong_depths_are_rejected(wrong: Callable[[int], float]):
    assert not tree_agrees(lambda n: 3 * (n - 1), wrong)
    assert not tree_agrees(lambda n: 2 * (n - 1), parity_tree_depth)


def test_the_transform_is_the_sum_over_all_inputs():
    values = torch.randn(16, 3)
    signs = 1.0 - 2.0 * torch.from_numpy(all_inputs(4))
    for subset, transformed in zip(all_inputs(4), walsh_hadamard(values), strict=True):
        parity = signs[:, torch.from_numpy(subset)].prod(dim=1)
        torch.testing.assert_close(transformed, parity @ values)


def spread_by_gradients(network: nn.Module, n: int) -> tuple[float, float, float]:
    """The variances over parities and single bits, and that of one example's gradient, from 2^n losses and examples."""
    inputs = 1.0 - 2.0 * torch.from_numpy(all_inputs(n))
    subsets = torch.from_numpy(all_inputs(n))
    gradients, noise = [], 0.0
    for subset in subsets:
        target = inputs[:, subset].prod(dim=1)
        each = []
        for x, y in zip(inputs, target, strict=True):
            loss = (network(x[None]).squeeze() - y).square() / 2
            each.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*network.parameters()])]))
        examples = torch.stack(each)
        gradients.append(examples.mean(dim=0))
        noise += float((examples - examples.mean(dim=0)).square().sum(dim=1).mean()) / len(subsets)
    stacked = torch.stack(gradients)

    def variance(some: torch.Tensor) -> float:
        return float((some - some.mean(dim=0)).square().sum(dim=1).mean())

    return variance(stacked), variance(stacked[subsets.sum(dim=1) == 1]), noise


def test_the_spread_of_gradients_is_that_of_all_losses():
    network = draw_perceptron(4, 3, rng=torch.Generator().manual_seed(2))
    spread = gradient_spread(network, 4)
    expected = spread_by_gradients(network, 4)
    assert (spread.parity_variance, spread.bit_variance, spread.sampling_variance) == pytest.approx(expected, rel=1e-9)


def spreads() -> list[GradientSpread]:
    rng = torch.Generator().manual_seed(0)
    return [gradient_spread(draw_perceptron(n, 7, rng=rng), n) for n in (5, 7, 9)]


def is_the_variance(bound: Callable[[float, int], float]) -> bool:
    """Whether the bound holds, and is attained but for the one part that the mean gradient accounts for.

    All parities are an orthonormal basis, so that Bessel's inequality is an equality, and only the squared norm of the
    mean over targets, a fraction of about 2^-n, is missing.
    """
    return all(
        (1 - 2.0 ** (3 - each.num_inputs)) * bound(each.squared_norm, 2**each.num_inputs)
        <= each.parity_variance
        <= bound(each.squared_norm, 2**each.num_inputs)
        for each in spreads()
    )


def test_the_variance_of_the_gradient_is_at_most_its_squared_norm_over_the_number_of_parities():
    assert is_the_variance(variance_bound)
    assert variance_exponent(spreads()) == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda squared, count: 4 * squared / count,  # the loss without its half
        lambda squared, count: squared**0.5 / count,
        lambda squared, count: squared / count**0.5,
        lambda squared, count: squared / count**2,
        lambda squared, count: squared / (2 * count),
        lambda squared, count: squared / math.log2(count),
    ],
)
def test_wrong_forms_of_the_variance_are_rejected(wrong: Callable[[float, int], float]):
    assert not is_the_variance(wrong)


@pytest.mark.parametrize("architecture", NETWORK_KINDS)
def test_each_architecture_learns_in_parallel_what_it_learns_alone(architecture: str):
    rng = torch.Generator().manual_seed(0)
    train, test = split_inputs(PROBLEMS["majority"], 5, 0.7, 2, rng=rng)
    assert train.inputs.shape == (2, 22, 5)
    assert test.inputs.shape == (2, 10, 5)
    for run in range(2):  # no input is in both sets, and all are in one
        rows = torch.cat([train.inputs[run], test.inputs[run]])
        assert len(rows.unique(dim=0)) == 32
    model = build_networks(architecture, 2, 5, 1, width=8, rng=rng)
    together = model(train.inputs)
    if isinstance(model, StackedPerceptrons):
        assert len(model.weights) == (2 if architecture == "perceptron, depth 2" else 5)
        alone = train.inputs[1]
        for i, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
            alone = (alone.relu() if i else alone) @ weight[1] + bias[1]
    else:
        alone = model.models[1]((train.inputs[1] > 0).long())  # pyright: ignore[reportIndexIssue, reportCallIssue]
    torch.testing.assert_close(together[1], alone)
    train_on_rows(model, lambda: train, steps=60, learning_rate=0.02, description="")
    assert float(exact_match(model, train).min()) > 0.9


def test_a_row_is_right_only_if_all_of_its_bits_are():
    rows = BooleanRows(torch.zeros(1, 3, 2), torch.tensor([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]]))
    model = nn.Module()
    model.forward = lambda inputs: torch.tensor([[[2.0, -1.0], [3.0, -1.0], [-1.0, -2.0]]])
    assert exact_match(model, rows).tolist() == pytest.approx([2 / 3])


def test_a_single_bit_is_found_and_a_long_parity_is_not():
    options = {"num_runs": 3, "width": 13, "steps": 150, "batch_size": 31, "learning_rate": 0.01, "seed": 0}
    assert float(learn_hidden_parity(11, 1, **options).min()) > 0.99
    assert float(learn_hidden_parity(11, 11, **options).max()) < 0.6


def test_success_rates_have_exact_intervals():
    assert success_rate(0, 20) == (0.0, *clopper_pearson(0, 20))
    assert success_rate(0, 20)[2] == pytest.approx(1 - 0.025 ** (1 / 20))


def test_the_study_is_whole():
    study = study_circuits(sizes=TINY)
    assert [len(table.rows) for table in study.tables] == [4, 8, 2, 5 * 6, 2, 2]
    assert len(study.findings) == 5
    assert len(study.figure.axes) == 5
    assert "are wrong on 0 of 288 inputs" in study.findings[0]
    assert study_circuits(sizes=TINY).to_json()["tables"] == study.to_json()["tables"]
    assert study_circuits(sizes=TINY, seed=1).to_json()["tables"] != study.to_json()["tables"]


def test_a_formula_of_ones_own_is_the_one_that_is_compiled():
    study = study_circuits(formula="a -> (b ^ c)", sizes=TINY)
    assert [row[0] for row in study.tables[0].rows] == ["a -> (b ^ c)"]
    assert study.settings["formulas"] == ["a -> (b ^ c)"]


def test_a_circuit_is_evaluated_gate_by_gate():
    circuit = ThresholdCircuit(2)
    both = circuit.conjunction(circuit.inputs)
    circuit.emit(both.negate())
    assert circuit.evaluate(all_inputs(2))[:, 0].tolist() == [True, True, True, False]
    assert circuit.depth == 2
