r"""Threshold circuits, built from formulas or for five problems, and compiled into networks with exact weights.

A gate is 1 if a weighted sum of bits reaches its threshold. And, or, not and implication are gates; the lecture's
clause $x_1 \lor \bar x_2 \lor x_3$ is $x_1 + (1 - x_2) + x_3 \ge 1$. Parity is not, but a sum of gates with alternating
signs: $\sum_i (-1)^{i+1} [x_1 + \dots + x_n \ge i]$. With integer weights a gate is the difference of two ReLUs,

$$ [s \ge \theta] = \operatorname{ReLU}(s - \theta + 1) - \operatorname{ReLU}(s - \theta), $$

and a bit passes a ReLU unchanged, so a circuit of depth $d$ is a network with $d$ hidden layers. All numbers in it are
integers, and its outputs are exactly 0 and 1.

    parity           depth 2 by thresholds: n + 1 gates; a tree of exclusive ors: 3 (n - 1) gates, depth 2 ceil(log2 n);
                     a disjunction of conjunctions: 2^(n-1) terms, each of which contains all n variables
    majority         one gate
    multiplexer      k address bits select one of 2^k data bits: depth 2
    addition         of two numbers: depth 2 with weights of powers of 2; or depth n + 1 with weights of at most 2, the
                     carry from bit to bit
    sorting          of bits: one layer, the output i is whether at least i bits are 1

Håstad, "Almost optimal lower bounds for small depth circuits" (1986): parity needs exponentially many and/or gates at
any constant depth. Siu, Roychowdhury and Kailath, *Discrete Neural Computation* (1995).

Dimensions: `row` inputs, `bit` of an input, `output` bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.lab.circuits.formulas import MAX_VARIABLES, BooleanFormula, FormulaNode, all_inputs

UnitKind = Literal["relu", "step"]
Literals = Sequence["BitLiteral"]


@dataclass(frozen=True)
class BitLiteral:
    """A wire, or its negation."""

    wire: int
    is_negated: bool = False

    def negate(self) -> "BitLiteral":
        return BitLiteral(self.wire, not self.is_negated)


@dataclass(frozen=True)
class ThresholdGate:
    """1 if the weighted sum of its sources is at least the threshold."""

    sources: tuple[int, ...]
    weights: tuple[int, ...]
    threshold: int


@dataclass
class ThresholdCircuit:
    """Gates in an order in which each follows its sources: wires are the inputs, then the gates."""

    num_inputs: int
    gates: list[ThresholdGate] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    """Wires."""

    def add(self, literals: Literals, threshold: int, weights: Sequence[int] | None = None) -> BitLiteral:
        """Add a gate over literals, with weights of 1 unless given; returns its output."""
        weights = [1] * len(literals) if weights is None else weights
        signed: dict[int, int] = {}
        for literal, weight in zip(literals, weights, strict=True):
            # w (1 - x) >= t is -w x >= t - w.
            threshold -= weight if literal.is_negated else 0
            signed[literal.wire] = signed.get(literal.wire, 0) + (-weight if literal.is_negated else weight)
        self.gates.append(ThresholdGate(tuple(signed), tuple(signed.values()), threshold))
        return BitLiteral(self.num_inputs + len(self.gates) - 1)

    def conjunction(self, literals: Literals) -> BitLiteral:
        return self.add(literals, len(literals))

    def disjunction(self, literals: Literals) -> BitLiteral:
        return self.add(literals, 1)

    def parity(self, literals: Literals) -> BitLiteral:
        """Whether an odd number of literals is 1, by a gate for each number and one over them."""
        counts = [self.add(literals, i) for i in range(1, len(literals) + 1)]
        return self.add(counts, 1, [(-1) ** i for i in range(len(counts))])

    def emit(self, literal: BitLiteral) -> None:
        """Add an output."""
        self.outputs.append((self.add([literal], 1) if literal.is_negated else literal).wire)

    @property
    def inputs(self) -> list[BitLiteral]:
        return [BitLiteral(i) for i in range(self.num_inputs)]

    def levels(self) -> list[int]:
        """The level of each wire: 0 for inputs, and one more than the highest of its sources for a gate."""
        levels = [0] * self.num_inputs
        for gate in self.gates:
            levels.append(1 + max((levels[source] for source in gate.sources), default=0))
        return levels

    @property
    def depth(self) -> int:
        levels = self.levels()
        return max((levels[wire] for wire in self.outputs), default=0)

    @property
    def largest_weight(self) -> int:
        return max((abs(weight) for gate in self.gates for weight in gate.weights), default=0)

    def evaluate(self, inputs: Bool[np.ndarray, "row bit"]) -> Bool[np.ndarray, "row output"]:
        """The outputs, gate by gate, in integers."""
        wires = [column.astype(np.int64) for column in inputs.T]
        for gate in self.gates:
            total = np.zeros(len(inputs), dtype=np.int64)
            for source, weight in zip(gate.sources, gate.weights, strict=True):
                total += weight * wires[source]
            wires.append((total >= gate.threshold).astype(np.int64))
        return np.stack([wires[wire] for wire in self.outputs], axis=1) == 1


class StepUnit(nn.Module):
    """1 for a number of at least 0, otherwise 0: the lecture's threshold unit, whose gradient is 0 everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return (x >= 0).to(x.dtype)


def compile_circuit(circuit: ThresholdCircuit, units: UnitKind = "relu") -> nn.Sequential:
    """A network of linear layers and `units` in float64, from rows of bits to the circuit's outputs.

    There is one hidden layer for each level of the circuit. A gate is one step unit,
    or two ReLUs, of which one suffices where the sum cannot exceed the threshold. A
    wire that a later level needs passes through a unit of its own.
    """
    levels, depth = circuit.levels(), circuit.depth
    last_use = [0] * len(levels)
    for gate, level in zip(circuit.gates, levels[circuit.num_inputs :], strict=True):
        for source in gate.sources:
            last_use[source] = max(last_use[source], level)
    for wire in circuit.outputs:
        last_use[wire] = depth + 1
    layers: list[nn.Module] = []
    # `alive` are the wires whose values a layer provides; `decode` computes them from its units.
    alive = {wire: wire for wire in range(circuit.num_inputs)}
    decode = torch.eye(circuit.num_inputs, dtype=torch.float64)
    for level in range(1, depth + 1):
        rows, biases, decoded = [], [], []
        for wire in range(len(levels)):
            if levels[wire] > level or last_use[wire] <= level:
                continue
            is_new = levels[wire] == level
            gate = circuit.gates[wire - circuit.num_inputs] if is_new else ThresholdGate((wire,), (1,), 1)
            offsets = _unit_offsets(gate, units)
            row = torch.zeros(len(alive), dtype=torch.float64)
            for source, weight in zip(gate.sources, gate.weights, strict=True):
                row[alive[source]] = weight
            decoded.append((wire, range(len(rows), len(rows) + len(offsets))))
            rows += [row] * len(offsets)
            biases += [offset - gate.threshold for offset in offsets]
        layers += [_linear(torch.stack(rows) @ decode, biases), nn.ReLU() if units == "relu" else StepUnit()]
        alive = {wire: place for place, (wire, _) in enumerate(decoded)}
        decode = torch.zeros(len(decoded), len(rows), dtype=torch.float64)
        for place, (_, own) in enumerate(decoded):
            for sign, unit in zip((1.0, -1.0), own, strict=False):
                decode[place, unit] = sign
    select = decode[[alive[wire] for wire in circuit.outputs]]
    return nn.Sequential(*layers, _linear(select, [0.0] * len(select)))


def _unit_offsets(gate: ThresholdGate, units: UnitKind) -> tuple[int, ...]:
    """What is added to sum - threshold in each unit of a gate."""
    if units == "step":
        return (0,)
    is_at_most_threshold = sum(max(weight, 0) for weight in gate.weights) <= gate.threshold
    return (1,) if is_at_most_threshold else (1, 0)


def _linear(weight: Tensor, bias: Sequence[float]) -> nn.Linear:
    layer = nn.Linear(weight.size(1), weight.size(0), dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return layer


def count_units(network: nn.Sequential) -> int:
    """The hidden units of a network."""
    *hidden, _ = [layer for layer in network if isinstance(layer, nn.Linear)]
    return sum(layer.out_features for layer in hidden)


@torch.no_grad()
def count_wrong_outputs(
    network: nn.Sequential, truth: Callable[[Bool[np.ndarray, "row bit"]], np.ndarray], num_inputs: int
) -> int:
    """Of all inputs, those for which an output of the network differs from the truth by any amount."""
    inputs = all_inputs(num_inputs)
    expected = torch.from_numpy(truth(inputs).reshape(len(inputs), -1).astype(np.float64))
    return int((network(torch.from_numpy(inputs.astype(np.float64))) != expected).any(dim=1).sum())


def compile_formula(formula: BooleanFormula) -> ThresholdCircuit:
    """The threshold circuit of a formula, whose inputs are its variables in order."""
    circuit = ThresholdCircuit(len(formula.variables))
    wires = {name: BitLiteral(i) for i, name in enumerate(formula.variables)}
    circuit.emit(_compile(formula.root, circuit, wires))
    return circuit


def _compile(node: FormulaNode, circuit: ThresholdCircuit, wires: dict[str, BitLiteral]) -> BitLiteral:
    literals = [_compile(child, circuit, wires) for child in node.children]
    match node.kind:
        case "variable":
            return wires[node.name]
        case "constant":
            return circuit.add([], 0 if node.value else 1)
        case "not":
            return literals[0].negate()
        case "and":
            return circuit.conjunction(literals)
        case "or":
            return circuit.disjunction(literals)
        case "xor":
            return circuit.parity(literals)
        case "implies":
            return circuit.disjunction([literals[0].negate(), literals[1]])
        case "threshold":
            return circuit.add(literals, node.threshold, node.weights)


@dataclass(frozen=True)
class BooleanProblem:
    """A function of bits for each size, with the circuits that compute it."""

    name: str
    truth: Callable[[Bool[np.ndarray, "row bit"]], Bool[np.ndarray, "row output"]]
    num_inputs: Callable[[int], int]
    """From the size, such as the number of address bits."""
    circuits: dict[str, Callable[[int], ThresholdCircuit]]

    def build(self, kind: str, size: int) -> ThresholdCircuit:
        """The circuit of one kind for this size, whose inputs can be enumerated."""
        if not 1 <= self.num_inputs(size) <= MAX_VARIABLES:
            raise ConfigError(
                f"{self.name} of size {size} must have 1 to {MAX_VARIABLES} inputs, got {self.num_inputs(size)}"
            )
        return self.circuits[kind](size)


def parity_by_thresholds(n: int) -> ThresholdCircuit:
    circuit = ThresholdCircuit(n)
    circuit.emit(circuit.parity(circuit.inputs))
    return circuit


def parity_tree(n: int) -> ThresholdCircuit:
    """A balanced tree of exclusive ors of two."""
    circuit = ThresholdCircuit(n)
    literals = circuit.inputs
    while len(literals) > 1:
        pairs = [literals[i : i + 2] for i in range(0, len(literals), 2)]
        literals = [circuit.parity(pair) if len(pair) == 2 else pair[0] for pair in pairs]
    circuit.emit(literals[0])
    return circuit


def parity_terms(n: int) -> ThresholdCircuit:
    """A disjunction of one conjunction for each input of odd parity."""
    circuit = ThresholdCircuit(n)
    terms = []
    for row in all_inputs(n):
        if row.sum() % 2:
            terms.append(circuit.conjunction([BitLiteral(i, not bit) for i, bit in enumerate(row)]))
    circuit.emit(circuit.disjunction(terms))
    return circuit


def _majority(n: int) -> ThresholdCircuit:
    circuit = ThresholdCircuit(n)
    circuit.emit(circuit.add(circuit.inputs, n // 2 + 1))
    return circuit


def _multiplexer(k: int) -> ThresholdCircuit:
    circuit = ThresholdCircuit(k + 2**k)
    address, data = circuit.inputs[:k], circuit.inputs[k:]
    terms = [
        circuit.conjunction([BitLiteral(wire.wire, not bit) for wire, bit in zip(address, row, strict=True)] + [datum])
        for row, datum in zip(all_inputs(k), data, strict=True)
    ]
    circuit.emit(circuit.disjunction(terms))
    return circuit


def _addition(num_bits: int, *, is_deep: bool) -> ThresholdCircuit:
    """The sum of two numbers of `num_bits` bits, the most significant first, in one more bit."""
    circuit = ThresholdCircuit(2 * num_bits)
    left, right = circuit.inputs[:num_bits][::-1], circuit.inputs[num_bits:][::-1]
    carries: list[BitLiteral] = []
    for i in range(num_bits):
        if is_deep:
            carries.append(circuit.add([left[i], right[i], *carries[-1:]], 2))
        else:
            powers = [2**j for j in range(i + 1)]
            carries.append(circuit.add([*left[: i + 1], *right[: i + 1]], 2 ** (i + 1), powers * 2))
    sums = []
    for i in range(num_bits):
        ones = [left[i], right[i], *carries[i - 1 : i]] if i else [left[0], right[0]]
        sums.append(circuit.add([*ones, carries[i]], 1, [1] * len(ones) + [-2]))
    for literal in [carries[-1], *sums[::-1]]:
        circuit.emit(literal)
    return circuit


def _sorting(n: int) -> ThresholdCircuit:
    """The bits in ascending order."""
    circuit = ThresholdCircuit(n)
    for i in range(n, 0, -1):
        circuit.emit(circuit.add(circuit.inputs, i))
    return circuit


def _number(bits: Bool[np.ndarray, "row bit"]) -> np.ndarray:
    return bits @ (1 << np.arange(bits.shape[1])[::-1])


def _selected(inputs: Bool[np.ndarray, "row bit"]) -> np.ndarray:
    k = next(k for k in range(1, MAX_VARIABLES) if k + 2**k == inputs.shape[1])
    return inputs[:, k:][np.arange(len(inputs)), _number(inputs[:, :k])][:, None]


def _added(inputs: Bool[np.ndarray, "row bit"]) -> np.ndarray:
    num_bits = inputs.shape[1] // 2
    total = _number(inputs[:, :num_bits]) + _number(inputs[:, num_bits:])
    return (total[:, None] >> np.arange(num_bits + 1)[::-1]) % 2 == 1


PROBLEMS = {
    problem.name: problem
    for problem in (
        BooleanProblem("parity", lambda inputs: inputs.sum(axis=1, keepdims=True) % 2 == 1, lambda n: n, {
            "thresholds, depth 2": parity_by_thresholds, "tree of exclusive ors": parity_tree,
            "disjunction of terms": parity_terms,
        }),
        BooleanProblem("majority", lambda inputs: inputs.sum(axis=1, keepdims=True) > inputs.shape[1] / 2,
                       lambda n: n, {"one gate": _majority}),
        BooleanProblem("multiplexer", _selected, lambda k: k + 2**k, {"depth 2": _multiplexer}),
        BooleanProblem("addition", _added, lambda bits: 2 * bits, {
            "depth 2, large weights": lambda bits: _addition(bits, is_deep=False),
            "depth n + 1, small weights": lambda bits: _addition(bits, is_deep=True),
        }),
        BooleanProblem("sorting", lambda inputs: np.sort(inputs, axis=1), lambda n: n, {"one layer": _sorting}),
    )
}  # fmt: skip


def parity_term_count(n: int) -> int:
    """Terms of the smallest disjunction of conjunctions for the parity of n bits: 2^(n-1).

    Two inputs of odd parity differ in at least two bits, so no term can leave a
    variable out, and each covers a single input.
    """
    return 2 ** (n - 1)


def parity_tree_depth(n: int) -> int:
    """Levels of a balanced tree of exclusive ors of two, each of depth 2."""
    return 2 * math.ceil(math.log2(n))
