"""Metrics of predicted actions: the share that is right, the squared error of numbers, the negative log-likelihood.

The steps of an episode are not independent: an example is an episode, and has the sums over its steps.

Dimensions: `examples` episodes, `statistics`: the sum of an episode, and its number of steps.
"""

from collections.abc import Callable

import numpy as np

from regard.evaluation.counts import Counts, check_equal_lengths, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric


def _per_step(name: str) -> Callable[[Examples], Counts]:
    """Counts of a sum divided by the number of steps."""

    def count(examples: Examples) -> Counts:
        sums, steps = examples.require(name, "num_tokens")
        check_equal_lengths(sums, steps, f"{name} and num_tokens")
        statistics = np.array([sums, steps], np.float64).T
        return Counts(statistics=statistics, compute=ratio, settings={"steps": int(sum(steps))})

    return count


ACTION_ACCURACY = Metric(
    name="action_accuracy",
    label="Action accuracy",
    counter=_per_step("num_correct"),
    needs=("num_correct", "num_tokens"),
)
"""The share of steps whose action is the most probable one."""
ACTION_MSE = Metric(
    name="action_mse",
    label="Action MSE",
    label_in_text="action MSE",
    counter=_per_step("squared_errors"),
    needs=("squared_errors", "num_tokens"),
    higher_is_better=False,
    digits=None,
)
"""The mean squared error of the numbers of actions, in the units of the data."""
ACTION_LOSS = Metric(
    name="action_loss",
    label="Action loss (nats)",
    label_in_text="action loss (nats)",
    counter=_per_step("losses"),
    needs=("losses", "num_tokens"),
    higher_is_better=False,
)
"""The negative log-likelihood of an action, in nats; of numbers, that of a density in the units of the data."""
