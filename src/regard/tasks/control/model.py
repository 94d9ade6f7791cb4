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

from regard.data.codecs.episodes import EpisodeCodec
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


class ExportedPolicy(nn.Module):
    """The last steps of an episode in the units of the data in, the distribution of the action of the last one out.

    The action before the first step of an episode is -1, or NaN for vectors of numbers.
    """

    means: Tensor
    stds: Tensor
    action_means: Tensor
    action_stds: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, model: ActionModel, codec: EpisodeCodec) -> None:
        super().__init__()
        self.model, self.is_discrete, self.num_actions = model, codec.is_discrete, codec.num_actions
        self.return_scale = codec.return_scale
        parts = {"means": codec.means, "stds": codec.stds}
        if not codec.is_discrete:
            parts |= {"action_means": codec.action_means, "action_stds": codec.action_stds,
                      "low": codec.action_low, "high": codec.action_high}  # fmt: skip
        for name, values in parts.items():
            self.register_buffer(name, torch.tensor(list(values)))

    def forward(
        self, observations: Tensor, previous_actions: Tensor, returns_to_go: Tensor | None = None
    ) -> tuple[Tensor]:
        if self.is_discrete:
            before = (previous_actions[..., None] == torch.arange(self.num_actions)).float()
        else:
            scaled = (previous_actions - self.action_means) / self.action_stds
            before = torch.where(scaled.isnan(), 0.0, scaled)
        returns = [] if returns_to_go is None else [returns_to_go[..., None] / self.return_scale]
        steps = torch.cat([before, *returns, (observations - self.means) / self.stds], dim=-1)
        outputs = self.model(steps)[:, -1]
        if self.is_discrete:
            return (outputs.softmax(dim=-1),)
        return (torch.clamp(outputs * self.action_stds + self.action_means, self.low, self.high),)
