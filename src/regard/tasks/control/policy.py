"""A model that acts: the last steps of several episodes are kept, and one forward pass chooses all actions.

Dimensions: `episodes` that are stepped together, `running` ones of them, `features` of an observation.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import DataError

if TYPE_CHECKING:
    from regard.tasks.control.task import Control


class TrajectoryPolicy:
    """Chooses actions given the return that is still to be reached: the most probable ones, or random ones.

    With a temperature of 1 an action is drawn from the distribution of the model, and with 0 it is the most probable
    one: each is better in some environments. One that is always the same action can be a dead end.
    """

    def __init__(
        self, task: "Control", model: Any, target_return: float, *, temperature: float = 0.0, seed: int = 0
    ) -> None:
        self._task, self._model, self._codec = task, model, task.codec
        self.target_return, self._temperature = target_return, temperature
        self._rng = np.random.default_rng([seed, 2])
        self._device = next(model.parameters()).device
        self.reset(0)

    def check_spaces(self, *, num_features: int, num_actions: int | None, action_width: int) -> None:
        """Raise where an environment has other observations or actions than the training episodes.

        Args:
            num_features: The numbers of an observation.
            num_actions: The number of actions; None where they are vectors of numbers.
            action_width: The numbers of such a vector.
        """
        codec = self._codec
        if num_features != codec.num_features:
            raise DataError(
                f"the observations of the environment have {num_features:,} numbers, those of training "
                f"{codec.num_features:,}"
            )
        if codec.is_discrete != (num_actions is not None):
            kinds = ("vectors of numbers", "integers") if codec.is_discrete else ("integers", "vectors of numbers")
            raise DataError(f"the actions of the environment are {kinds[0]}, those of training {kinds[1]}")
        if num_actions is not None and num_actions < codec.num_actions:
            raise DataError(
                f"the environment has the actions 0 to {num_actions - 1}, and training has up to "
                f"{codec.num_actions - 1}"
            )
        if num_actions is None and action_width != codec.action_width:
            raise DataError(
                f"the actions of the environment have {action_width:,} numbers, those of training "
                f"{codec.action_width:,}"
            )

    def reset(self, num_episodes: int) -> None:
        """Begin this many episodes."""
        width = self._codec.action_width
        self._steps: Tensor | None = None
        self._before = np.zeros((num_episodes, width), np.float32)
        self._to_go = np.full(num_episodes, self.target_return, np.float64)

    @torch.inference_mode()
    def act(
        self, episodes: Int[np.ndarray, " running"], observations: Float[np.ndarray, "running features"]
    ) -> NDArray:
        """The actions of the running episodes: a subset of those of the call before, in the same order."""
        if self._steps is None:
            self._kept = np.arange(len(self._before))
        read = self._task.step_numbers(self._before[episodes], self._to_go[episodes], observations)
        new = torch.from_numpy(read).to(self._device)[:, None]
        if self._steps is None:
            self._steps = new
        else:
            if len(episodes) < len(self._kept):
                rows = torch.from_numpy(np.searchsorted(self._kept, episodes)).to(self._device)
                self._steps = self._steps[rows]
            self._steps = torch.cat([self._steps, new], dim=1)[:, -self._task.settings.window :]
        self._kept = episodes
        outputs = self._model(self._steps)[:, -1].float().cpu().numpy()
        return self._choose(outputs)

    def _choose(self, outputs: Float[np.ndarray, "running outputs"]) -> NDArray:
        if self._codec.is_discrete:
            # The largest of logits with Gumbel noise is a draw from their softmax.
            noise = self._rng.gumbel(size=outputs.shape) if self._temperature else 0.0
            return (outputs + self._temperature * noise).argmax(axis=1)
        stds = self._model.log_std.exp().float().cpu().numpy()
        noise = self._rng.normal(size=outputs.shape) if self._temperature else 0.0
        return self._codec.restore_actions(outputs + self._temperature * stds * noise)

    def observe(
        self, episodes: Int[np.ndarray, " running"], actions: NDArray, rewards: Float[np.ndarray, " running"]
    ) -> None:
        """What was done, which may be another action than the chosen one, and the reward for it."""
        codec = self._codec
        self._before[episodes] = codec.action_inputs(codec.action_scaled(actions))
        self._to_go[episodes] -= rewards
