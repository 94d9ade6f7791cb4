"""Actions without a network: a linear policy of the current observation, by behavior cloning.

Dimensions: `steps`, `features` of an observation, `outputs`: scores of actions, or the numbers of an action.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.data.codecs.episodes import EncodedSteps

_MOST_STEPS = 50_000
"""Steps that are enough to fit a linear policy."""
_SEED = 0


@dataclass(frozen=True)
class LinearPolicy(Baseline):
    """A baseline that chooses actions by observations alone."""

    act: Callable[[Float[np.ndarray, "steps features"]], Float[np.ndarray, "steps outputs"]] = lambda read: read
    """The scores of the actions, or the numbers of an action, from standardized observations."""


def fit_actions(steps: EncodedSteps, *, num_actions: int) -> LinearPolicy:
    """Fit logistic regression to actions that are integers, else ridge regression."""
    from sklearn.linear_model import LogisticRegression, Ridge  # imported here: it loads slowly

    chosen = np.arange(len(steps.returns))
    if len(chosen) > _MOST_STEPS:
        chosen = np.sort(np.random.default_rng(_SEED).choice(chosen, _MOST_STEPS, replace=False))
    read, actions = steps.observations[chosen], steps.actions[chosen]
    if not num_actions:
        linear = Ridge(alpha=1.0).fit(read, actions)
        name = "ridge regression on observations"
        act = lambda given: linear.predict(given).reshape(len(given), -1).astype(np.float32)  # noqa: E731  two cases
    elif len(np.unique(actions)) == 1:
        name, only = "the only action", np.eye(num_actions, dtype=np.float32)[actions[:1]]
        act = lambda given: np.repeat(only, len(given), axis=0)  # noqa: E731  as above
    else:
        classifier = LogisticRegression(max_iter=1_000).fit(read, actions)
        name, classes = "logistic regression on observations", classifier.classes_.astype(np.int64)

        def act(given: Float[np.ndarray, "steps features"]) -> Float[np.ndarray, "steps outputs"]:
            found = np.zeros((len(given), num_actions), np.float32)
            found[:, classes] = classifier.predict_proba(given)
            return found

    return LinearPolicy(name=name, predict=lambda inputs: BaselinePredictions(), act=act)
