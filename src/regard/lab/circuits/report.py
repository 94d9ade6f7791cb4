"""Formulas and circuits compiled and verified, problems learned, and parities that are not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from torch import nn

from regard.errors import ConfigError
from regard.evaluation.intervals import Interval, clopper_pearson, mean_interval
from regard.lab.circuits import CIRCUITS
from regard.lab.circuits.compilation import (
    PROBLEMS,
    compile_circuit,
    compile_formula,
    count_units,
    count_wrong_outputs,
    parity_term_count,
)
from regard.lab.circuits.formulas import MAX_VARIABLES, BooleanFormula, parse_formula
from regard.lab.circuits.learning import (
    LEARNED,
    NETWORK_KINDS,
    GradientSpread,
    LearnedProblem,
    draw_perceptron,
    gradient_spread,
    learn_hidden_parity,
    learn_problem,
    variance_exponent,
)
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels, plot_errorbars
from regard.lab.study import Study, StudyCell, StudySection, StudyTable

_FORMULAS = (
    "(a & b) ^ !c",
    "(a -> b) & (b -> c) & (c -> a)",
    "[2*a + b - c + 3*!d >= 3]",
    "a ^ b ^ c ^ d ^ e ^ f ^ g ^ h",
)
_MOST_DRAWN = 14
"""Units of a layer of which a drawing of a network can show all."""


@dataclass(frozen=True, kw_only=True)
class CircuitSizes:
    """Sizes of circuits, and how much is trained; the defaults are those of a quick run."""

    parity_inputs: tuple[int, ...] = (2, 4, 6, 8, 10)
    problem_sizes: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("parity", (6, 10)), ("majority", (6, 10)), ("multiplexer", (2, 3)), ("addition", (3, 5)), ("sorting", (6, 10)),
    )  # fmt: skip
    fractions: tuple[float, ...] = (0.25, 0.75)
    """Of all inputs, in training; those but the last are only measured at the largest size."""
    width: int = 64
    sequence_width: int = 32
    num_seeds: int = 5
    num_sequence_seeds: int = 2
    steps: int = 600
    batch_size: int = 64
    learning_rate: float = 3e-3
    hidden_inputs: int = 16
    hidden_bits: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    hidden_steps: int = 1_500
    hidden_seeds: int = 20
    spread_inputs: tuple[int, ...] = (2, 4, 6, 8, 10)
    spread_width: int = 16
    spread_draws: int = 3


_FULL = CircuitSizes(
    parity_inputs=(2, 3, 4, 6, 8, 10, 12),
    problem_sizes=(("parity", (4, 6, 8, 10, 12)), ("majority", (4, 6, 8, 10, 12)), ("multiplexer", (1, 2, 3)),
                   ("addition", (2, 3, 4, 5, 6)), ("sorting", (4, 6, 8, 10, 12))),
    fractions=(0.1, 0.25, 0.5, 0.75), num_seeds=10, num_sequence_seeds=3, steps=2_000,
    hidden_bits=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12), hidden_steps=6_000, hidden_seeds=30,
    spread_inputs=(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), spread_draws=10,
)  # fmt: skip


def study_circuits(
    *, quick: bool = False, seed: int = 0, formula: str | None = None, sizes: CircuitSizes | None = None
) -> Study:
    """Compile formulas and circuits into networks, verify them, and train networks on the same functions."""
    sizes = sizes or (CircuitSizes() if quick else _FULL)
    formulas = [parse_formula(text) for text in (_FORMULAS if formula is None else (formula,))]
    for each in formulas:
        if len(each.variables) > MAX_VARIABLES:
            raise ConfigError(
                f"a formula is verified on all inputs, so it must have at most {MAX_VARIABLES} variables, got "
                f"{len(each.variables)}: {', '.join(each.variables)}"
            )
    figure, axes = make_panels(2, 3, height=3.6)
    sections = [
        _formulas(axes[0], formulas),
        _circuits(axes[1], sizes),
        _learned(axes[2], sizes, seed),
        _hidden_parities(axes[3], sizes, seed),
        _gradients(axes[4], sizes, seed),
    ]
    return CIRCUITS.result(sizes, sections, figure, formulas=[each.text for each in formulas])


def _formulas(axes: Axes, formulas: Sequence[BooleanFormula]) -> StudySection:
    rows: list[list[StudyCell]] = []
    wrong = checked = 0
    for formula in formulas:
        circuit, n = compile_formula(formula), len(formula.variables)
        networks = [compile_circuit(circuit, units) for units in ("relu", "step")]
        errors = [count_wrong_outputs(network, formula.evaluate, n) for network in networks]
        wrong, checked = wrong + sum(errors), checked + 2**n
        rows.append([formula.text, n, len(circuit.gates), circuit.depth, *map(count_units, networks), 2**n, *errors])
    _draw_network(axes, compile_circuit(compile_formula(formulas[0])), formulas[0])
    return [
        f"The networks of {len(formulas)} formula{'s' if len(formulas) > 1 else ''}, of ReLUs and of threshold units, "
        f"are wrong on {wrong} of {checked:,} inputs, which are all that there are."
    ], [StudyTable(
        "formulas compiled into networks",
        ["formula", "variables", "gates", "depth", "ReLUs", "threshold units", "inputs", "wrong, ReLUs",
         "wrong, thresholds"], rows, "An output counts as wrong unless it is exactly 0 or 1 as in the truth table.",
    )]  # fmt: skip


def _draw_network(axes: Axes, network: nn.Sequential, formula: BooleanFormula) -> None:
    """Units by layer, and weights as lines: blue positive, orange negative, as wide as they are large."""
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    counts = [layers[0].in_features, *(layer.out_features for layer in layers)]
    axes.set_axis_off()
    label_axes(axes, f"{formula.text[:40]} as a network of ReLUs", "", "", has_grid=False)
    if max(counts) > _MOST_DRAWN:
        axes.text(0.5, 0.5, f"units by layer: {', '.join(map(str, counts))}", ha="center", color=MUTED,
                  transform=axes.transAxes)  # fmt: skip
        return
    heights = [[(count - 1) / 2 - i for i in range(count)] for count in counts]
    for place, layer in enumerate(layers):
        for target, row in enumerate(layer.weight.tolist()):
            for source, weight in enumerate(row):
                if weight:
                    axes.plot([place, place + 1], [heights[place][source], heights[place + 1][target]], zorder=1,
                              color=COLORS[0] if weight > 0 else COLORS[1], linewidth=0.8 * abs(weight))  # fmt: skip
        for height, bias in zip(heights[place + 1], layer.bias.tolist(), strict=True):
            axes.text(place + 1, height + 0.22, f"{bias:+g}" if bias else "", ha="center", fontsize=7.5, color=MUTED)
    for place, column in enumerate(heights):
        axes.scatter([place] * len(column), column, s=70, color="white", edgecolor=INK, linewidth=0.9, zorder=2)
    for name, height in zip(formula.variables, heights[0], strict=True):
        axes.text(-0.12, height, name, ha="right", va="center", fontsize=9, color=INK)
    most = (max(counts) - 1) / 2
    axes.set(xlim=(-0.5, len(layers) + 0.3), ylim=(-most - 0.5, most + 0.7))


def _circuits(axes: Axes, sizes: CircuitSizes) -> StudySection:
    rows: list[list[StudyCell]] = []
    wrong = 0
    for name, several in sizes.problem_sizes:
        problem = PROBLEMS[name]
        for kind in problem.circuits:
            size = several[-1]
            circuit = problem.build(kind, size)
            network = compile_circuit(circuit)
            errors = count_wrong_outputs(network, problem.truth, circuit.num_inputs)
            wrong += errors
            rows.append([name, kind, circuit.num_inputs, len(circuit.outputs), circuit.depth, len(circuit.gates),
                         count_units(network), circuit.largest_weight, errors])  # fmt: skip
    parity, counted = PROBLEMS["parity"], []
    for n in sizes.parity_inputs:
        built = {kind: parity.build(kind, n) for kind in parity.circuits}
        wrong += sum(count_wrong_outputs(compile_circuit(circuit), parity.truth, n) for circuit in built.values())
        terms, tree = built["disjunction of terms"], built["tree of exclusive ors"]
        counted.append([n, len(terms.gates) - 1, parity_term_count(n), len(built["thresholds, depth 2"].gates),
                        len(tree.gates), tree.depth])  # fmt: skip
    for column, name, color, marker in (
        (1, "and/or, depth 2: terms", COLORS[1], "o"),
        (4, "tree of exclusive ors: gates", COLORS[2], "s"),
        (3, "thresholds, depth 2: gates", COLORS[0], "D"),
    ):
        axes.plot(
            sizes.parity_inputs, [row[column] for row in counted], f"{marker}-", color=color, markersize=4, label=name
        )
    axes.plot(sizes.parity_inputs, [parity_term_count(n) for n in sizes.parity_inputs], ":", color=INK, label="2^(n-1)")
    label_axes(axes, "Circuits of the parity of n bits", "n", "size", log="y", legend="upper left", fontsize=8)
    last = counted[-1]
    return [
        f"The parity of {last[0]} bits takes {last[1]:,} terms as a disjunction of conjunctions, {last[4]} gates in a "
        f"tree of depth {last[5]}, and {last[3]} threshold gates in depth 2; the networks of all {len(rows)} circuits "
        f"of five problems and {3 * len(counted)} of parity are wrong on {wrong} inputs."
    ], [
        StudyTable(
            "circuits compiled into networks of ReLUs",
            ["problem", "circuit", "inputs", "outputs", "depth", "gates", "ReLUs", "largest weight", "wrong inputs"],
            rows, "Wrong: of all inputs, those with an output that is not exactly right.",
        ),
        StudyTable("circuits of the parity of n bits", ["n", "terms", "2^(n-1)", "threshold gates, depth 2",
                   "gates of a tree", "depth of the tree"], counted),
    ]  # fmt: skip


def learn_problems(sizes: CircuitSizes, *, seed: int) -> list[LearnedProblem]:
    """Every problem by perceptrons at each size and with each fraction of all inputs, and by sequence models once.

    A sequence model takes as long as all seeds of a perceptron.
    """
    results = []
    for name, several in sizes.problem_sizes:
        cases = [(size, sizes.fractions[-1]) for size in several]
        cases += [(several[-1], fraction) for fraction in sizes.fractions[:-1]]
        for size, fraction in cases:
            for architecture in NETWORK_KINDS:
                is_sequence = architecture in ("LSTM", "Transformer")
                if is_sequence and (size, fraction) != (several[-1], sizes.fractions[-1]):
                    continue
                results.append(learn_problem(
                    PROBLEMS[name], size, fraction, architecture,
                    num_runs=sizes.num_sequence_seeds if is_sequence else sizes.num_seeds,
                    width=sizes.sequence_width if is_sequence else sizes.width, steps=sizes.steps,
                    batch_size=sizes.batch_size, learning_rate=sizes.learning_rate, seed=seed,
                ))  # fmt: skip
    return results


def _learned(axes: Axes, sizes: CircuitSizes, seed: int) -> StudySection:
    results = learn_problems(sizes, seed=seed)
    names = [name for name, _ in sizes.problem_sizes]
    largest = {name: PROBLEMS[name].num_inputs(several[-1]) for name, several in sizes.problem_sizes}
    most = {name: max(each.num_rows for each in results if each.problem == name) for name in names}
    shown = [
        each for each in results if each.num_inputs == largest[each.problem] and each.num_rows == most[each.problem]
    ]
    for i, architecture in enumerate(NETWORK_KINDS):
        own = [each for each in shown if each.architecture == architecture]
        places = [names.index(each.problem) + 0.18 * (i - 1.5) for each in own]
        for place, each in zip(places, own, strict=True):
            axes.plot([place] * len(each.test), each.test, "osD^"[i], color=COLORS[i], markersize=3.5, alpha=0.6,
                      label=architecture if each is own[0] else None)  # fmt: skip
    axes.set_xticks(range(len(names)), labels=[f"{name}\n{largest[name]} bits" for name in names])
    axes.set_ylim(-0.05, 1.6)  # with room for the legend
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    percent = f"{100 * sizes.fractions[-1]:.0f} %"
    label_axes(
        axes, f"Trained on {percent} of all inputs", "", "accuracy on the others", legend="upper right", fontsize=7.5
    )
    axes.tick_params(axis="x", labelsize=7)
    best = {name: max((each for each in shown if each.problem == name), key=lambda each: float(each.test.mean()))
            for name in names}  # fmt: skip
    parity = [each for each in shown if each.problem == "parity" and each.architecture == NETWORK_KINDS[0]]
    return [
        "The best architecture at the largest size is right on "
        + ", ".join(f"{_percent(each.test)} ({name}, {each.architecture})" for name, each in best.items())
        + f" of the inputs outside of the {percent} in training."
        + "".join(f" The perceptron of depth 2 is right on {_percent(each.train)} of its training inputs of parity and "
                  f"on {_percent(each.test)} of the others." for each in parity)
    ], [StudyTable(
        "problems learned from a part of all inputs",
        ["problem", "inputs", "rows", "architecture", "training accuracy", "accuracy on the others", "runs that learn"],
        [[each.problem, each.num_inputs, each.num_rows, each.architecture, float(each.train.mean()),
          mean_interval(each.test), success_rate(each.successes, len(each.test))] for each in results],
        "All output bits must be right. In brackets Student's 95 % interval over runs; last column: the fraction of "
        f"runs that are right on at least {LEARNED:g} of the others, with its exact interval.",
    )]  # fmt: skip


def _percent(accuracies: torch.Tensor) -> str:
    return f"{100 * float(accuracies.mean()):.0f} %"


def success_rate(successes: int, num_runs: int) -> Interval:
    """The fraction of runs that succeeded, with its exact interval."""
    return successes / num_runs, *clopper_pearson(successes, num_runs)


def _hidden_parities(axes: Axes, sizes: CircuitSizes, seed: int) -> StudySection:
    rows: list[list[StudyCell]] = []
    rates: list[Interval] = []
    wrong = units = 0
    for bits in sizes.hidden_bits:
        accuracies = learn_hidden_parity(
            sizes.hidden_inputs, bits, num_runs=sizes.hidden_seeds, width=sizes.width, steps=sizes.hidden_steps,
            batch_size=sizes.batch_size, learning_rate=sizes.learning_rate, seed=seed,
        )  # fmt: skip
        circuit = compile_circuit(PROBLEMS["parity"].build("thresholds, depth 2", bits))
        units, errors = count_units(circuit), count_wrong_outputs(circuit, PROBLEMS["parity"].truth, bits)
        wrong += errors
        rates.append(success_rate(int((accuracies >= LEARNED).sum()), len(accuracies)))
        rows.append([bits, units, errors, mean_interval(accuracies), rates[-1]])
    plot_errorbars(axes, sizes.hidden_bits, rates, fmt="o-", color=COLORS[0], markersize=4, linewidth=1.2)
    axes.set_ylim(-0.05, 1.05)
    label_axes(axes, f"Parities of k of {sizes.hidden_inputs} bits by descent", "k", "runs that learn, exact 95 %")
    learned = [bits for bits, rate in zip(sizes.hidden_bits, rates, strict=True) if rate[0] > 0.5]
    never = [(bits, rate) for bits, rate in zip(sizes.hidden_bits, rates, strict=True) if rate[0] == 0]
    none = f"in none from {never[0][0]} bits on (at most {100 * never[0][1][2]:.0f} %, exact 95 %)" if never else (
        "in some for every number of bits")  # fmt: skip
    return [
        f"In {sizes.hidden_steps:,} steps with new inputs, most of {sizes.hidden_seeds} runs learn the parity of up to "
        f"{max(learned, default=0)} of {sizes.hidden_inputs} bits, and it is learned {none}; exact weights take "
        f"{units} units for {sizes.hidden_bits[-1]} bits and are wrong on {wrong} inputs."
    ], [StudyTable(
        f"the parity of k of {sizes.hidden_inputs} bits, learned by perceptrons of depth 2 with {sizes.width} units",
        ["k", "units of exact weights", "wrong inputs of exact weights", "accuracy of descent", "runs that learn"],
        rows, f"A run learns where its accuracy on new inputs is at least {LEARNED:g}; in brackets the exact interval "
        "of Clopper and Pearson.",
    )]  # fmt: skip


def _gradients(axes: Axes, sizes: CircuitSizes, seed: int) -> StudySection:
    rng, bits = torch.Generator().manual_seed(seed), sizes.spread_inputs
    spreads = [
        [gradient_spread(draw_perceptron(n, sizes.spread_width, rng=rng), n) for _ in range(sizes.spread_draws)]
        for n in bits
    ]

    def means(value: Callable[[GradientSpread], float]) -> list[float]:
        return [sum(map(value, draws)) / len(draws) for draws in spreads]

    variances, bounds = means(lambda each: each.parity_variance), means(lambda each: each.bound)
    singles = means(lambda each: each.bit_variance)
    noises = means(lambda each: each.sampling_variance / sizes.batch_size)
    ratios = [max(each.parity_variance / each.bound for each in draws) for draws in spreads]
    signal = [variance / noise for variance, noise in zip(variances, noises, strict=True)]
    axes.plot(bits, singles, "s-", color=COLORS[2], markersize=4, label="over single bits")
    axes.plot(bits, variances, "o-", color=COLORS[0], markersize=4, label="over all parities")
    axes.plot(bits, bounds, ":", color=INK, label="bound, G² / 2^n")
    axes.plot(bits, noises, "--", color=MUTED, label=f"noise of a batch of {sizes.batch_size}")
    label_axes(axes, "Variance of the gradient by target", "bits", "variance", log="y", legend="lower left", fontsize=8)
    below = [n for n, ratio in zip(bits, signal, strict=True) if ratio < 1]
    slope = variance_exponent([each for draws in spreads for each in draws])
    return [
        f"The variance of the gradient over all parities of n bits, relative to G², changes as 2 to the power of "
        f"{slope:.2f} n (bound: -1.00 n), is at most {max(ratios):.4f} times its bound, and is below the noise of a "
        f"batch of {sizes.batch_size} "
        + (f"from {below[0]} bits on." if below else f"at none of up to {bits[-1]} bits.")
    ], [StudyTable(
        "variance of the gradient over targets, at random weights",
        ["bits", "parities", "variance over parities", "bound G² / 2^n", "largest ratio", "variance over single bits",
         f"noise of a batch of {sizes.batch_size}", "parities / noise"],
        [list(row) for row in zip(bits, [2**n for n in bits], variances, bounds, ratios, singles, noises, signal,
                                  strict=True)],
        f"Exact over all inputs and targets, means over {sizes.spread_draws} draws of the weights of a perceptron of "
        f"depth 2 with {sizes.spread_width} units; the loss is (p - h)² / 2.",
    )]  # fmt: skip
