"""How functions become kernels."""

from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., None]) -> Any:
    """A kernel in Triton: called with a grid in brackets, and with settings of the compiler, which no type can tell."""
    return triton.jit(function)
