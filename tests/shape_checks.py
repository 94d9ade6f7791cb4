"""Which calls have their annotations of shapes checked while tests run.

jaxtyping calls the checker of this module twice for each call of an annotated function: with the arguments, and with
what the function returned. A step of training calls the same layers with the same shapes again and again, and the
checks took about half of its time. A call whose shapes and types were found right before in the same test, for the same
layer, is therefore not checked again.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from beartype import beartype
from jaxtyping import config
from numpy import ndarray
from torch import Tensor, nn

_checked: set[Hashable] = set()


def forget_checked_calls() -> None:
    """Check every call again, so that a test does not depend on those before it."""
    _checked.clear()


@contextmanager
def unchecked_shapes() -> Iterator[None]:
    """Check nothing: where a graph is traced or compiled, whose sizes are symbols, and in slow references."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)


def check_new_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the annotations of a function with beartype, once for the shapes and types of a call."""
    checked = beartype(function)

    @wraps(function)
    def check(*args: Any, **kwargs: Any) -> None:
        key = (check, *map(_signature, args), *kwargs, *map(_signature, kwargs.values()))
        if key not in _checked:
            checked(*args, **kwargs)
            _checked.add(key)

    return check


def _signature(value: Any) -> Hashable:
    """What decides whether a value has its annotation: the shape of a tensor, the identity of a layer."""
    if isinstance(value, Tensor | ndarray):
        return value.shape, value.dtype
    if isinstance(value, nn.Module):
        return id(value)
    kind = type(value)
    if kind in (int, float, bool, str):
        return kind, value
    if kind in (list, tuple):
        return kind, *map(_signature, value)
    if kind is dict:
        return kind, *value, *map(_signature, value.values())
    return kind
