"""A formula of x, read with a list of permitted operations, and evaluated in float64.

    function = parse_function("sin(3*x) + abs(x - 1/3)")
    function(np.linspace(0, 1, 5))

The text is parsed to a syntax tree of Python, and only numbers, x, the constants
and functions below, and + - * / ** are evaluated: nothing else can be named or called.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError
from regard.settings import nearest

MAX_FORMULA_LENGTH = 300
"""Of a formula; each level of nesting is a call of the evaluation."""
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "exp", "log", "sqrt", "abs", "sinh", "cosh", "tanh")},
    "atan": np.arctan, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
CONSTANTS = {"pi": np.pi, "e": np.e}
_OPERATORS: dict[type[ast.AST], Callable[..., np.ndarray]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
    ast.UAdd: np.positive, ast.USub: np.negative,
}  # fmt: skip
_BINARY = ("min", "max")


@dataclass(frozen=True)
class RealFunction:
    """A function of one number, applied elementwise."""

    text: str
    tree: ast.expr

    def __call__(self, x: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
        with np.errstate(all="ignore"):
            values = _evaluate(self.tree, np.asarray(x, dtype=np.float64))
        return np.broadcast_to(np.asarray(values, dtype=np.float64), np.shape(x)).copy()


def parse_function(text: str) -> RealFunction:
    """Read a formula of x.

    Raises:
        ConfigError: If it does not parse, or names something else; the message says where.

    Example:
        >>> parse_function("2*x + 1")(np.array([0.0, 3.0])).tolist()
        [1.0, 7.0]
    """
    if len(text) > MAX_FORMULA_LENGTH:
        raise ConfigError(f"a function must have at most {MAX_FORMULA_LENGTH} characters, got {len(text)}")
    stripped = text.strip()
    try:
        tree = ast.parse(stripped, mode="eval").body
    except SyntaxError as error:
        where = min(error.offset or 1, len(stripped) + 1)
        raise ConfigError(f"the function {text!r} does not parse at character {where}: {error.msg}") from None
    except ValueError as error:  # a null character
        raise ConfigError(f"the function {text!r} does not parse: {error}") from None
    for node in ast.walk(tree):
        _check(node, text, tree)
    return RealFunction(stripped, tree)


def parse_interval(text: str) -> tuple[float, float]:
    """Read two numbers separated by a comma, the first of which is smaller.

    Example:
        >>> parse_interval("-1, 2.5")
        (-1.0, 2.5)
    """
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"an interval must be two numbers separated by a comma, such as 0,1, got {text!r}") from None
    if not (np.isfinite([low, high]).all() and low < high):
        raise ConfigError(f"an interval must have finite ends with low < high, got {low=} and {high=}")
    return low, high


def _check(node: ast.AST, text: str, tree: ast.expr) -> None:
    """Reject a node of the tree that is not in the list of permitted ones."""
    called = {id(call.func) for call in ast.walk(tree) if isinstance(call, ast.Call)}
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return
        case ast.Name(id=name) if id(node) not in called:
            known = ["x", *CONSTANTS]
            problem = "" if name in known else f"unknown name {name!r}{nearest(name, known)}"
        case ast.Name(id=name):
            problem = "" if name in FUNCTIONS else f"unknown function {name!r}{nearest(name, list(FUNCTIONS))}"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            expected = 2 if name in _BINARY else 1
            plural = "s" if expected > 1 else ""
            problem = "" if len(arguments) == expected or name not in FUNCTIONS else (
                f"{name} takes {expected} argument{plural}, got {len(arguments)}"
            )  # fmt: skip
        case ast.BinOp(op=ast.BitXor()):
            problem = "a power is written **, not ^"
        case ast.BinOp(op=operator) | ast.UnaryOp(op=operator):
            problem = "" if type(operator) in _OPERATORS else "the operators are + - * / **"
        case ast.expr():
            problem = f"a formula has numbers, x, {', '.join([*CONSTANTS, *FUNCTIONS])} and + - * / **"
        case _:
            return
    if problem:
        where = getattr(node, "col_offset", 0) + 1
        raise ConfigError(f"the function {text!r} has an error at character {where}: {problem}")


def _evaluate(node: ast.AST, x: np.ndarray) -> np.ndarray:
    match node:
        case ast.Constant(value=value):
            return np.asarray(value, dtype=np.float64)
        case ast.Name(id=name):
            return x if name == "x" else np.asarray(CONSTANTS[name])
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_evaluate(left, x), _evaluate(right, x))
        case ast.UnaryOp(op=operator, operand=operand):
            return _OPERATORS[type(operator)](_evaluate(operand, x))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*(_evaluate(argument, x) for argument in arguments))
    raise AssertionError(f"the tree was checked, and has {ast.dump(node)}")
