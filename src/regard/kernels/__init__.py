"""Kernels of our own, for what PyTorch has none for. Only what runs on a GPU imports them."""

from importlib.util import find_spec

import torch
from torch import Tensor


def has_kernels(x: Tensor) -> bool:
    """Whether kernels can work on this: on a GPU, in a precision that it likes."""
    return x.is_cuda and x.dtype != torch.float64 and find_spec("triton") is not None
