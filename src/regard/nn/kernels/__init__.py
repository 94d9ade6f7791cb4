"""Triton kernels for operations that PyTorch has no fast kernel for; only code that runs on a GPU imports them.

    decoding        the operations of a decoding step, each as one launch
    cross_entropy   losses and gradients in two passes over the logits, and transposition of float8 matrices

Tillet et al., "Triton" (2019). https://www.eecs.harvard.edu/~htk/publication/2019-mapl-tillet-kung-cox.pdf

With TRITON_INTERPRET=1 in the environment the kernels run on a CPU, slowly, which
is how they are tested. Names in capitals are compile-time constants. Sums are in
float32.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def has_kernels(x: Tensor) -> bool:
    """Return whether the kernels can be used on `x`: on a GPU with Triton, in a dtype of at most 32 bits."""
    return x.is_cuda and x.dtype != torch.float64 and find_spec("triton") is not None


def kernel(function: Callable[..., None]) -> Any:
    """Return `function` as a Triton kernel, which is called with a grid in brackets and with compiler options."""
    import triton

    return triton.jit(function)
