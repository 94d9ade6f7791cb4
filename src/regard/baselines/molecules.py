"""Random forests of Morgan fingerprints and descriptors, one for each property of molecules.

Breiman, "Random Forests" (2001); on fingerprints they are the usual baseline of chemistry (Svetnik et al., 2003).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.data.chemistry import descriptor_values, morgan_bits

_MOST_ROWS, _MOST_FORESTS = 4_000, 12
"""Of more rows a part is used, and of more properties each has fewer trees."""
_NUM_TREES, _FEATURE_SHARE = 200, 0.05
_DIGITS = 8


def fit_forests(
    texts: Sequence[str],
    targets: Float[np.ndarray, "rows outputs"],
    descriptors: Sequence[str],
    *,
    are_labels: bool,
) -> Baseline:
    """Fit a forest for each property to the rows that have it.

    Args:
        texts: Molecules.
        targets: Numbers, or labels 0 and 1; NaN where one is missing.
        descriptors: The names of the descriptors.
        are_labels: Whether targets are labels, of which the probability of 1 is predicted.
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kept = limit_rows(range(len(texts)), _MOST_ROWS)
    fitted, targets = [texts[row] for row in kept], targets[kept]

    def features(inputs: Sequence[str]) -> Float[np.ndarray, "rows features"]:
        return np.concatenate([morgan_bits(inputs), descriptor_values(inputs, descriptors)], axis=1)

    make: Any = RandomForestClassifier if are_labels else RandomForestRegressor
    num_trees = max(20, _NUM_TREES // max(1, targets.shape[1] // _MOST_FORESTS))
    known, forests = features(fitted), []
    for column in targets.T:
        is_known = ~np.isnan(column)
        forest = make(n_estimators=num_trees, max_features=_FEATURE_SHARE, random_state=0)
        forests.append(forest.fit(known[is_known], column[is_known]))

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        given = features(inputs)
        found = np.stack([_outputs(forest, given, are_labels=are_labels) for forest in forests], axis=1)
        return BaselinePredictions([" ".join(f"{number:.{_DIGITS}g}" for number in row) for row in found])

    return Baseline("random forest of fingerprints and descriptors", predict, len(fitted))


def _outputs(forest: Any, features: Float[np.ndarray, "rows features"], *, are_labels: bool) -> Any:
    """The predicted numbers, or the probability of the label 1; 0 or 1 where training rows have one label only."""
    if not are_labels:
        return forest.predict(features)
    if len(forest.classes_) == 1:
        return np.full(len(features), forest.classes_[0])
    return forest.predict_proba(features)[:, 1]
