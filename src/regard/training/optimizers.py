"""Optimizers by name, PyTorch's own.

Kingma & Ba, "Adam" (2014). https://arxiv.org/abs/1412.6980
Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2019). https://arxiv.org/abs/1711.05101
"""

from typing import Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["adamw", "adam"]


def make_optimizer(
    name: OptimizerName, model: nn.Module, *, betas: tuple[float, float], epsilon: float, weight_decay: float
) -> torch.optim.Optimizer:
    """A fused optimizer; its rate is set anew at each step.

    Weight decay pulls on matrices only: a gain pulled towards zero undoes a
    normalisation, and a bias has nothing to overfit with. Adam has none.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.dim() >= 2], [p for p in parameters if p.dim() < 2]
    decay = weight_decay if name == "adamw" else 0.0
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind([group for group in groups if group["params"]], lr=0.0, betas=betas, eps=epsilon, fused=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter, by name: `weight/exp_avg`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, memory in optimizer.state.items()
        for key, value in memory.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer back what `optimizer_tensors` took."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[name]
        place = torch.device("cpu") if kind == "step" and parameter.device.type == "cpu" else parameter.device
        optimizer.state[parameter][kind] = value.to(place)
