r"""The model of actions: an encoder of trajectories, and a head with the distribution of the action at each step.

Actions that are integers have a softmax. Vectors of numbers have a normal distribution whose mean the head predicts;
its standard deviations are parameters that do not depend on the step.

Dimensions: `batch` windows, `time` steps, `numbers` of a step, `outputs`: logits, or means of the numbers of an action.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from regard.models.family import ModelConfig, build_encoder
from regard.models.heads import HeadConfig
from regard.models.trajectories import TrajectoryShape
from regard.nn.dropout import Dropout

_LOG_TWO_PI = math.log(2 * math.pi)


class ActionModel(nn.Module):
    """Steps in, the distribution of the action of each step out."""

    def __init__(self, config: ModelConfig, shape: TrajectoryShape, head: HeadConfig, *, is_discrete: bool) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        self.body: Any = build_encoder(config, shape, reads="trajectories", example="decision-transformer")
        self.dropout = Dropout(head.dropout)
        self.head = nn.Linear(config.model_dim, shape.action_width)
        self.log_std = None if is_discrete else nn.Parameter(torch.zeros(shape.action_width))

    def forward(self, steps: Float[Tensor, "batch time numbers"]) -> Float[Tensor, "batch time outputs"]:
        hidden_states = self.body.encode(steps.to(self.head.weight.dtype)).hidden_states
        return self.head(self.dropout(hidden_states)).float()

    def losses(
        self, outputs: Float[Tensor, "batch time outputs"], actions: Shaped[Tensor, "batch time ..."]
    ) -> Float[Tensor, "batch time"]:
        """The negative log-likelihood of each action, in nats; that of numbers is a density of standardized ones."""
        if self.log_std is None:
            return F.cross_entropy(outputs.flatten(0, 1), actions.flatten(), reduction="none").view_as(actions)
        scaled = (actions - outputs) * (-self.log_std).exp()
        return (0.5 * scaled.square() + self.log_std + 0.5 * _LOG_TWO_PI).sum(dim=-1)
