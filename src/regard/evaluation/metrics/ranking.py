r"""The area under the ROC curve of binary labels.

Hanley & McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve" (1982): it is
the probability that a positive example has a higher score than a negative one, where a tie counts for a half.

It is a function of the numbers of positive and negative examples with each score, which are sums over examples. Of many
distinct scores, neighbours are counted together in bins with equally many examples, whose pairs count as ties.

Dimensions:
    examples    rows
    labels      one or several
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from regard.errors import DataError
from regard.evaluation.counts import Counts, check_equal_lengths
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric

_MOST_COUNTS = 1 << 23
"""Numbers in a table of counts, which bounds its memory to 64 MB."""
_CHANCE = 0.5


def count_auroc(scores: Float[np.ndarray, "examples labels"], targets: Float[np.ndarray, "examples labels"]) -> Counts:
    """The mean over labels of the area under the curve of each; a label that all examples have, or none, is left out.

    Args:
        scores: Higher ones are more likely positive.
        targets: 1 for positive, 0 for negative, NaN where it is not known.

    Example:
        >>> count_auroc(np.array([[0.9], [0.4], [0.6]]), np.array([[1.0], [0.0], [1.0]])).value
        1.0
    """
    num_examples, num_labels = scores.shape
    most = max(2, _MOST_COUNTS // max(1, 2 * num_examples * num_labels))
    ranks = [_binned(column, most) for column in scores.T]
    num_bins = min(num_examples, most)  # whatever the scores are, since counts of several models are compared
    counts = np.zeros((num_examples, num_labels, 2, num_bins), np.uint8)
    rows = np.arange(num_examples)
    for label, (rank, target) in enumerate(zip(ranks, targets.T, strict=True)):
        is_known = ~np.isnan(target)
        counts[rows[is_known], label, (target[is_known] > _CHANCE).astype(int), rank[is_known]] = 1

    def compute(sums: Float[np.ndarray, " statistics"]) -> float:
        return _mean_area(sums.reshape(num_labels, 2, num_bins))

    return Counts(statistics=counts.reshape(num_examples, -1), compute=compute)


def _mean_area(counts: Float[np.ndarray, "labels 2 bins"]) -> float:
    negative, positive = counts[:, 0], counts[:, 1]
    pairs = negative.sum(axis=1) * positive.sum(axis=1)
    below = np.cumsum(negative, axis=1) - negative / 2
    is_defined = pairs > 0
    if not is_defined.any():
        return _CHANCE
    return float(((positive * below).sum(axis=1)[is_defined] / pairs[is_defined]).mean())


def _binned(scores: Float[np.ndarray, " examples"], most: int) -> np.ndarray:
    """The rank of each score among the distinct ones, or of its bin."""
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    if len(counts) <= most:
        return ranks
    bins = (np.cumsum(counts) - 1) * most // len(scores)
    return np.unique(bins, return_inverse=True)[1][ranks]


def _count(examples: Examples) -> Counts:
    return count_auroc(*_scores_and_targets(examples))


def _breakdown(examples: Examples) -> Mapping[str, Counts]:
    """By label, where there are several."""
    scores, targets = _scores_and_targets(examples)
    if scores.shape[1] == 1:
        return {}
    names = examples.require("labels")[0]
    return {
        str(name): count_auroc(scores[:, [place]], targets[:, [place]]) for place, name in enumerate(names)
    }  # fmt: skip


def _scores_and_targets(
    examples: Examples,
) -> tuple[Float[np.ndarray, "examples labels"], Float[np.ndarray, "examples labels"]]:
    """Probabilities of several labels, or the confidences of one with two values, the positive one last."""
    outputs, targets, labels = examples.require("outputs", "targets", "labels")
    check_equal_lengths(outputs, targets)
    if isinstance(outputs[0], Sequence) and not isinstance(outputs[0], str):
        known = [[np.nan if each is None else float(each) for each in row] for row in targets]
        return np.array(outputs, np.float64), np.array(known, np.float64)
    (confidences,) = examples.require("confidences")
    if len(labels) != 2:
        raise DataError(f"auroc is for labels of two kinds, got {len(labels)}")
    is_positive = np.array([output == labels[1] for output in outputs])
    scores = np.where(is_positive, confidences, 1.0 - np.array(confidences, np.float64))
    return scores[:, None], np.array([[float(target == labels[1])] for target in targets])


AUROC = Metric(
    name="auroc",
    label="AUROC",
    counter=_count,
    breakdown=_breakdown,
    needs=("outputs", "targets", "labels"),
)
