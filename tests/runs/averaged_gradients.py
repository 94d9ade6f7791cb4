"""What a process of `regard check` computes where gradients are averaged instead of summed: a seeded bug."""

from collections.abc import Sequence

import pytest
from torch import Tensor, nn

from regard.runs import check
from regard.training.distributed import Processes


def write_shared_gradients(run: str, path: str) -> None:
    right = Processes.sum_gradients

    def averaged(self: Processes, parameters: Sequence[nn.Parameter], total: Tensor) -> Tensor:
        total = right(self, parameters, total)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self.size
        return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processes, "sum_gradients", averaged)
        check.write_shared_gradients(run, path)
