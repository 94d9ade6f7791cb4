"""The number of floating-point operations of a training step.

An operation is an addition or a multiplication in a matrix product; others are
negligible and not counted. The backward pass costs
twice the forward pass (Kaplan et al., "Scaling Laws for Neural Language Models"
(2020), section 2.1, arXiv 2001.08361).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.data.prepare import Prepared
from regard.tasks.task import Task
from regard.training.settings import ResolvedSettings

_BACKWARD = 2
_BATCHES = 4


def flops_per_step(model: nn.Module, task: Task[Any], data: Prepared, settings: ResolvedSettings) -> float:
    """The mean over the first batches of the operations of a forward and a backward pass.

    The model must be on the CPU, where PyTorch's recurrent kernels can be replaced by matrix products, which are
    counted.
    """
    batches = task.batches(data, batch_tokens=settings.train.batch_tokens, seed=settings.train.seed)
    counts = []
    for number in range(min(_BATCHES, batches.per_epoch)):
        batch = batches.batch(number)
        with _countable_kernels(), FlopCounterMode(display=False) as counter, torch.no_grad():
            task.loss(model, batch)
        counts.append(counter.get_total_flops())
    return float(np.mean(counts)) * (1 + _BACKWARD)


@contextmanager
def _countable_kernels() -> Iterator[None]:
    """Without oneDNN's recurrent kernel, whose products are not counted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
