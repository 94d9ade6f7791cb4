"""Optimizers by name, and what they remember.

Kingma & Ba, "Adam" (2014). https://arxiv.org/abs/1412.6980
Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2019). https://arxiv.org/abs/1711.05101
Jordan et al., "Muon" (2024), for the matrices of hidden layers: see `regard.training.muon`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.training.muon import Muon

OptimizerName = Literal["adamw", "adam", "muon"]


class Joined:
    """Several optimizers that are used like one; each parameter belongs to one of them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all, one list after the other; what is changed in a group holds."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> "_JoinedState":
        """What each remembers of its own parameters."""
        return _JoinedState(self.optimizers)

    def step(self) -> None:
        """Let each make its update."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


class _JoinedState(Mapping[Tensor, dict[str, Any]]):
    """The memories of several optimizers, by parameter.

    As in an optimizer's own `state`, asking for a parameter of which nothing is
    remembered yet begins an empty memory of it.
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


AnyOptimizer = torch.optim.Optimizer | Joined


def make_optimizer(
    name: OptimizerName,
    model: nn.Module,
    *,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    pace: Callable[[str], tuple[float, float]] = lambda name: (1.0, 0.0),
) -> AnyOptimizer:
    """A fast optimizer that a CUDA graph can record; its rate is set anew at each step.

    Muon moves the matrices of hidden layers, and AdamW what else there is.
    `betas` and `epsilon` are those of Adam and AdamW.

    Weight decay pulls on matrices only: a gain pulled towards zero undoes a
    normalisation, and a bias has nothing to overfit with. Adam has none.

    `pace` says for the name of a parameter what share of the rate it has, and after what share of the run it begins to
    move; Muon's matrices have all of the rate from the start.
    """
    hidden = hidden_matrices(model) if name == "muon" else []
    own = set(hidden)
    rest = {p: name for name, p in model.named_parameters() if p.requires_grad and p not in own}
    decay = 0.0 if name == "adam" else weight_decay
    alike: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for parameter, parameter_name in rest.items():
        alike.setdefault((parameter.dim() < 2, *pace(parameter_name)), []).append(parameter)
    groups = [
        {"params": alike[key], "weight_decay": 0.0 if key[0] else decay, "share": key[1], "opens": key[2]}
        for key in sorted(alike)
    ]
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW

    def adam() -> torch.optim.Optimizer:
        is_recordable = all(p.is_cuda for p in rest)
        return kind(groups, lr=0.0, betas=betas, eps=epsilon, fused=True, capturable=is_recordable)

    if not hidden:
        return adam()
    muon = Muon(hidden, lr=0.0, weight_decay=weight_decay)
    return Joined([muon, adam()]) if groups else muon


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices that stand between a model's embeddings and its output projection.

    The rows of a table of embeddings move one by one, as their tokens are read, and
    so do those of the projection to the vocabulary, the model's own `output`, which
    is often the same table: Jordan et al. leave both to AdamW. A `head` and a `crf` make
    scores as an output does.
    """
    ends = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    ends += [child for name, child in model.named_children() if name in ("output", "head", "crf")]
    outer = {parameter for module in ends for parameter in module.parameters()}
    return [p for p in model.parameters() if p.requires_grad and p.dim() == 2 and p not in outer]


def optimizer_tensors(optimizer: AnyOptimizer, model: nn.Module) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter, by name: `weight/exp_avg`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, memory in optimizer.state.items()
        for key, value in memory.items()
    }


def restore_optimizer(optimizer: AnyOptimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer back what `optimizer_tensors` took."""
    parameters, state = dict(model.named_parameters()), optimizer.state
    for key, value in tensors.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[name]
        state[parameter][kind] = value.to(parameter.device)
