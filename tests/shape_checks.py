"""Which calls have their annotations of shapes checked while tests run.

jaxtyping binds the arguments of each call of an annotated function and has them checked twice: before the call, and
with what the function returned. A step of training calls the same layers with the same shapes again and again, and the
checks took about half of the time of the tests. A call whose shapes and types were found before in the same test is
therefore neither bound nor checked again.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial, update_wrapper, wraps
from types import FunctionType
from typing import Any

import jaxtyping
import torch
from jaxtyping import _decorator, config
from numpy import ndarray
from torch import Tensor

_jaxtyped: Callable[..., Any] = _decorator.jaxtyped
_checked: set[Hashable] = set()


def check_shapes_once() -> None:
    """Have the decorator that jaxtyping adds to the functions of a package check each kind of call once in a test."""
    # jaxtyping's decorator calls itself, by the name in its module, for methods of classes, properties and dataclasses.
    jaxtyping.jaxtyped = _decorator.jaxtyped = jaxtyped_once


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


def jaxtyped_once(function: Any = None, *, typechecker: Any) -> Any:
    """Decorate as `jaxtyping.jaxtyped` does; a call is checked once for its shapes and types, and those it returns."""
    if function is None:
        return partial(jaxtyped_once, typechecker=typechecker)
    if not isinstance(function, FunctionType):
        return _jaxtyped(function, typechecker=typechecker)
    checked, returned = _checked_functions(function, typechecker)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable or torch.compiler.is_compiling():  # which would trace the check as well
            return function(*args, **kwargs)
        key = (call, *map(_signature, args), *kwargs, *map(_signature, kwargs.values()))
        if key not in _checked:
            output = checked()(*args, **kwargs)
            _checked.update((key, (key, _signature(output))))
            return output
        output = function(*args, **kwargs)
        of_both = key, _signature(output)
        if of_both not in _checked:
            returned()(output, args, kwargs)
            _checked.add(of_both)
        return output

    return call


def _checked_functions(function: FunctionType, typechecker: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What make the checked function, and the check of what a call has returned; both are made when first needed."""
    # A function within another is made, and decorated, each time that one is called.

    @cache
    def checked() -> Any:
        return _jaxtyped(function, typechecker=typechecker)

    @cache
    def returned() -> Any:
        given = threading.local()

        def output(*args: Any, **kwargs: Any) -> Any:
            return given.output

        # With the annotations of the function, and its globals, in which they are read.
        same = FunctionType(output.__code__, function.__globals__, function.__name__, None, output.__closure__)
        check = _jaxtyped(update_wrapper(same, function), typechecker=typechecker)

        def check_output(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given.output = output
            check(*args, **kwargs)

        return check_output

    return checked, returned


def _signature(value: Any) -> Hashable:
    """What decides whether a value has its annotation: its type, and the shape of a tensor.

    No annotation has sizes that an attribute of a layer determines; with one, layers would have to be compared, too.
    """
    kind = type(value)
    if kind in (int, bool, str):
        return kind, value
    if isinstance(value, Tensor | ndarray):
        return kind, value.shape, value.dtype
    if kind in (list, tuple):
        return kind, *map(_signature, value)
    if kind is dict:
        return kind, *value, *map(_signature, value.values())
    return kind
