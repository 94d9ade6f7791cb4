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


def _per_episode(examples: Examples) -> Counts:
    """Counts of the share of each episode, and 1 for the episode."""
    correct, steps = examples.require("num_correct", "num_tokens")
    check_equal_lengths(correct, steps, "num_correct and num_tokens")
    shares = np.array(correct, np.float64) / np.array(steps, np.float64)
    statistics = np.stack([shares, np.ones(len(shares))], axis=1)
    return Counts(statistics=statistics, compute=ratio, settings={"steps": int(sum(steps))})


ACTION_ACCURACY = Metric(
    name="action_accuracy",
    label="Action accuracy",
    counter=_per_step("num_correct"),
    needs=("num_correct", "num_tokens"),
    certified_by="episode_accuracy",
)
"""The share of steps whose action is the most probable one.

Steps are not independent and episodes have different lengths, so no bound applies to this ratio of two sums.
"""
EPISODE_ACCURACY = Metric(
    name="episode_accuracy",
    label="Action accuracy of an episode",
    counter=_per_episode,
    needs=("num_correct", "num_tokens"),
    is_bounded_mean=True,
)
"""The same share within each episode, averaged over episodes: a mean of independent values in [0, 1]."""
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
