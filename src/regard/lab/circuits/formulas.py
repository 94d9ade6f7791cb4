"""Boolean formulas: a parser whose errors say where, and their truth tables.

    !a                     not; also ~a, not a
    a & b                  and
    a ^ b                  exclusive or; also a xor b
    a | b                  or
    a -> b                 implication, to the right: a -> b -> c is a -> (b -> c)
    [2*a + b - !c >= 1]    a threshold gate: whether the weighted sum reaches the threshold

in the order of their precedence, with parentheses, and the constants 0 and 1.

Dimensions: `row` inputs, `variable` of the formula.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool

from regard.errors import ConfigError

MAX_VARIABLES = 16
"""Formulas are verified on all inputs: 65,536 of 16 variables."""
MAX_NESTING = 60
_MAX_CHARACTERS = 10_000
"""Levels of parentheses, negations and implications: each is a few calls of the parser."""
NodeKind = Literal["variable", "constant", "not", "and", "or", "xor", "implies", "threshold"]
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<symbol>->|>=|[&|^!~()\[\]+*-]))")
_WORDS = {"and": "&", "or": "|", "xor": "^", "not": "!", "implies": "->"}
_BINARY: tuple[tuple[str, NodeKind], ...] = (("|", "or"), ("^", "xor"), ("&", "and"))
"""Operators of any number of operands, those that bind less first."""


@dataclass(frozen=True)
class FormulaNode:
    """An operator with its operands; weights and threshold are those of a threshold gate."""

    kind: NodeKind
    children: tuple["FormulaNode", ...] = ()
    name: str = ""
    value: bool = False
    weights: tuple[int, ...] = ()
    threshold: int = 0


@dataclass(frozen=True)
class BooleanFormula:
    """A parsed formula and its variables in the order in which they first occur."""

    text: str
    root: FormulaNode
    variables: tuple[str, ...]

    def evaluate(self, inputs: Bool[np.ndarray, "row variable"]) -> Bool[np.ndarray, " row"]:
        """The value of the formula for each row, one column per variable."""
        return _evaluate(self.root, dict(zip(self.variables, inputs.T, strict=True)), len(inputs))

    def truth_table(self) -> Bool[np.ndarray, " row"]:
        """The value for all inputs, in the order of `all_inputs`."""
        return self.evaluate(all_inputs(len(self.variables)))


def all_inputs(num_variables: int) -> Bool[np.ndarray, "row variable"]:
    """All assignments of 0 and 1, counting up, the first variable being the most significant.

    Example:
        >>> all_inputs(2).astype(int).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if num_variables > MAX_VARIABLES:
        raise ConfigError(
            f"all inputs are enumerated for at most {MAX_VARIABLES} variables, got {num_variables} variables"
        )
    numbers = np.arange(2**num_variables)[:, None]
    return (numbers >> np.arange(num_variables)[::-1]) % 2 == 1


def parse_formula(text: str) -> BooleanFormula:
    """Read a formula.

    Raises:
        ConfigError: If it does not parse; the message says at which character, and what was expected.

    Example:
        >>> parse_formula("(a & b) -> !a").truth_table().astype(int).tolist()
        [1, 1, 1, 0]
    """
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"a formula may have {_MAX_CHARACTERS:,} characters, got {len(text):,}")
    parser = _Parser(text)
    root = parser.implication()
    if parser.token:
        parser.fail("an operator or the end")
    if not parser.variables:
        raise ConfigError(f"a formula must have a variable, got {text!r}")
    return BooleanFormula(text.strip(), root, tuple(parser.variables))


class _Parser:
    """Recursive descent over the tokens of a formula."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0
        self.token, self.is_name, self.start = "", False, 0
        self.variables: dict[str, None] = {}
        self.advance()

    def advance(self) -> str:
        """Read the next token, and return the current one."""
        previous, rest = self.token, self.text[self.position :]
        self.start = self.position + len(rest) - len(rest.lstrip())
        found = _TOKEN.match(self.text, self.position)
        if found is None and rest.strip():
            self.token = self.text[self.start]
            self.fail("a variable, an operator or a parenthesis")
        self.token = "" if found is None else found[0].strip()
        self.is_name = found is not None and found["name"] is not None and self.token not in _WORDS
        self.token = {**_WORDS, "~": "!"}.get(self.token, self.token)
        self.position = len(self.text) if found is None else found.end()
        return previous

    def fail(self, expected: str) -> None:
        got = repr(self.token) if self.token else "the end"
        raise ConfigError(
            f"the formula {self.text!r} does not parse at character {self.start + 1}: expected {expected}, got {got}"
        )

    def take(self, symbol: str) -> None:
        if self.token != symbol:
            self.fail(repr(symbol))
        self.advance()

    def nest(self) -> None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.fail(f"at most {MAX_NESTING} levels of nesting")

    def implication(self) -> FormulaNode:
        self.nest()
        left = self.binary(0)
        if self.token == "->":
            self.advance()
            left = FormulaNode("implies", (left, self.implication()))
        self.depth -= 1
        return left

    def binary(self, level: int) -> FormulaNode:
        if level == len(_BINARY):
            return self.negation()
        symbol, kind = _BINARY[level]
        operands = [self.binary(level + 1)]
        while self.token == symbol:
            self.advance()
            operands.append(self.binary(level + 1))
        return operands[0] if len(operands) == 1 else FormulaNode(kind, tuple(operands))

    def negation(self) -> FormulaNode:
        if self.token != "!":
            return self.atom()
        self.nest()
        self.advance()
        node = FormulaNode("not", (self.negation(),))
        self.depth -= 1
        return node

    def atom(self) -> FormulaNode:
        if self.is_name:
            self.variables.setdefault(self.token)
            return FormulaNode("variable", name=self.advance())
        if self.token in ("0", "1"):
            return FormulaNode("constant", value=self.advance() == "1")
        if self.token == "[":
            return self.threshold()
        if self.token != "(":
            self.fail("a variable, 0, 1, '!', '(' or '['")
        self.advance()
        node = self.implication()
        self.take(")")
        return node

    def threshold(self) -> FormulaNode:
        self.nest()
        self.take("[")
        children, weights = [], []
        while True:
            sign = -1 if self.token == "-" else 1
            if self.token in ("+", "-"):
                self.advance()
            elif children:
                break
            weights.append(sign * self.weight())
            children.append(self.negation())
        self.take(">=")
        sign = -1 if self.token == "-" else 1
        if self.token == "-":
            self.advance()
        bound = sign * self.integer()
        self.take("]")
        self.depth -= 1
        return FormulaNode("threshold", tuple(children), weights=tuple(weights), threshold=bound)

    def weight(self) -> int:
        """The integer before an asterisk; 1 where there is none."""
        if not self.token.isdigit():
            return 1
        weight = self.integer()
        self.take("*")
        return weight

    def integer(self) -> int:
        if not self.token.isdigit() or len(self.token) > 6:
            self.fail("an integer of at most 6 digits")
        return int(self.advance())


def _evaluate(node: FormulaNode, columns: dict[str, np.ndarray], num_rows: int) -> np.ndarray:
    values = [_evaluate(child, columns, num_rows) for child in node.children]
    match node.kind:
        case "variable":
            return columns[node.name]
        case "constant":
            return np.full(num_rows, node.value)
        case "not":
            return ~values[0]
        case "and":
            return np.logical_and.reduce(values)
        case "or":
            return np.logical_or.reduce(values)
        case "xor":
            return np.logical_xor.reduce(values)
        case "implies":
            return ~values[0] | values[1]
        case "threshold":
            terms = [weight * value.astype(np.int64) for weight, value in zip(node.weights, values, strict=True)]
            return np.sum(terms, axis=0) >= node.threshold
