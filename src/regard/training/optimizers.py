"""Optimizers by name, and their state.

Polyak, "Some methods of speeding up the convergence of iteration methods" (1964), for momentum.
Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), for Nesterov's momentum.
Duchi et al., "Adaptive Subgradient Methods" (2011), for AdaGrad; Tieleman & Hinton (2012), lecture 6.5, for RMSProp.
Kingma & Ba, "Adam" (2014). https://arxiv.org/abs/1412.6980
Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2019). https://arxiv.org/abs/1711.05101
Jordan et al., "Muon" (2024), for the matrices of hidden layers: see `regard.training.muon`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.training.muon import Muon

OptimizerName = Literal["adamw", "adam", "muon", "sgd", "momentum", "nesterov", "adagrad", "rmsprop"]


@dataclass(frozen=True)
class OptimizerTraits:
    """Which settings an optimizer has, and its default learning rate."""

    settings: frozenset[str]
    """Those of `beta1`, `beta2`, `epsilon` and `weight_decay` that have an effect."""
    rate: float
    """The default learning rate, times `width ** width_exponent` for a model of this width."""
    width_exponent: float = -0.5
    reason: str = ""
    """Why the rate is the default, where it is printed."""
    is_capturable: bool = False
    """Whether a CUDA graph can capture its step with a learning rate in a tensor."""

    def learning_rate(self, model_dim: int) -> float:
        """The default peak for a model of this width that is trained from scratch."""
        return self.rate * model_dim**self.width_exponent


_MEASURED = "within a factor of about 3 of the best in short runs with gradients clipped to norm 1 (docs/log.md)"
OPTIMIZER_TRAITS: dict[OptimizerName, OptimizerTraits] = {
    # The peaks of sweeps over widths of 128 to 1,024 (docs/log.md).
    "adamw": OptimizerTraits(frozenset({"beta1", "beta2", "epsilon", "weight_decay"}), 0.03, is_capturable=True),
    "adam": OptimizerTraits(frozenset({"beta1", "beta2", "epsilon"}), 0.03, is_capturable=True),
    "muon": OptimizerTraits(frozenset({"beta1", "beta2", "epsilon", "weight_decay"}), 0.2, is_capturable=True),
    # The clipped gradient has a norm, not a size per weight, and so the rate does not depend on the width.
    "sgd": OptimizerTraits(frozenset({"weight_decay"}), 1.0, 0.0, _MEASURED),
    "momentum": OptimizerTraits(frozenset({"beta1", "weight_decay"}), 0.3, 0.0, _MEASURED),
    "nesterov": OptimizerTraits(frozenset({"beta1", "weight_decay"}), 0.3, 0.0, _MEASURED),
    "adagrad": OptimizerTraits(frozenset({"epsilon"}), 0.24, -0.5, _MEASURED),
    "rmsprop": OptimizerTraits(frozenset({"beta2", "epsilon"}), 0.024, -0.5, _MEASURED),
}


class CombinedOptimizer:
    """Several optimizers that are used like one; each parameter belongs to one of them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers; changes to a group have effect."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> "_CombinedState":
        """The state of each parameter."""
        return _CombinedState(self.optimizers)

    def step(self) -> None:
        """Update all parameters."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients to None, or to zeros."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


class _CombinedState(Mapping[Tensor, dict[str, Any]]):
    """The states of several optimizers, by parameter.

    As in an optimizer's own `state`, a parameter without a state gets an empty one when it is accessed.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._states = [optimizer.state for optimizer in optimizers]
        self._owners = {
            parameter: optimizer.state
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def __getitem__(self, parameter: Tensor) -> dict[str, Any]:
        return self._owners[parameter][parameter]

    def __iter__(self) -> Iterator[Tensor]:
        return chain(*self._states)

    def __len__(self) -> int:
        return sum(len(state) for state in self._states)


AnyOptimizer = torch.optim.Optimizer | CombinedOptimizer


def make_optimizer(
    name: OptimizerName,
    model: nn.Module,
    *,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    lr_multipliers: Callable[[str], tuple[float, float]] = lambda name: (1.0, 0.0),
) -> AnyOptimizer:
    """An optimizer whose learning rate is set at each step; Adam, AdamW and Muon can be captured by a CUDA graph.

    With muon, Muon updates the matrices of hidden layers and AdamW all other parameters. The first of `betas` is the
    momentum of momentum and nesterov, the second the decay of RMSProp's mean squared gradient.

    Weight decay is applied to matrices only: it would undo the gains of normalization layers, and biases do not
    overfit. Adam, AdaGrad and RMSProp have none: as a part of the gradient it would be divided by the root of the
    squared gradients (Loshchilov & Hutter).

    `lr_multipliers` returns for the name of a parameter its learning rate as a share of the schedule's, and the share
    of the run after which it is trained; Muon's matrices have none.
    """
    hidden = hidden_matrices(model) if name == "muon" else []
    own = set(hidden)
    rest = {p: name for name, p in model.named_parameters() if p.requires_grad and p not in own}
    decay = weight_decay if "weight_decay" in OPTIMIZER_TRAITS[name].settings else 0.0
    alike: dict[tuple[bool, float, float, int], list[nn.Parameter]] = {}
    for part, parameters in enumerate(by_mesh(rest)):
        for parameter in parameters:
            key = parameter.dim() < 2, *lr_multipliers(rest[parameter]), part
            alike.setdefault(key, []).append(parameter)
    groups = [
        {"params": alike[key], "weight_decay": 0.0 if key[0] else decay, "lr_scale": key[1], "unfreeze_at": key[2]}
        for key in sorted(alike)
    ]
    if not hidden:
        return _make(name, groups, betas, epsilon)
    muon = Muon(hidden, lr=0.0, weight_decay=weight_decay)
    return CombinedOptimizer([muon, _make("adamw", groups, betas, epsilon)]) if groups else muon


def _make(
    name: OptimizerName, groups: list[dict[str, Any]], betas: tuple[float, float], epsilon: float
) -> torch.optim.Optimizer:
    match name:
        case "sgd":
            return torch.optim.SGD(groups, lr=0.0)
        case "momentum" | "nesterov":
            return torch.optim.SGD(groups, lr=0.0, momentum=betas[0], nesterov=name == "nesterov")
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=0.0, eps=epsilon)
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=0.0, alpha=betas[1], eps=epsilon)
    is_capturable = all(parameter.is_cuda for group in groups for parameter in group["params"])
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(groups, lr=0.0, betas=betas, eps=epsilon, fused=True, capturable=is_capturable)


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters that one operation on a list may have: those of one device mesh, and those without one."""
    alike: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        alike.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(alike.values())


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices between a model's embeddings and its output projection.

    The rows of an embedding table are updated one by one, as their tokens occur, and so are those of the output
    projection, which is often the same table: Jordan et al. leave both to AdamW. A `head` and a `crf` are output
    layers as well.
    """
    ends = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    ends += [child for name, child in model.named_children() if name in ("output", "head", "crf")]
    outer = {parameter for module in ends for parameter in module.parameters()}
    return [p for p in model.parameters() if p.requires_grad and p.dim() == 2 and p not in outer]


def optimizer_tensors(optimizer: AnyOptimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state of each parameter, by name: `weight/exp_avg`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_optimizer(optimizer: AnyOptimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    parameters, state = dict(model.named_parameters()), optimizer.state
    for key, value in tensors.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[name]
        state[parameter][kind] = value.to(parameter.device)
