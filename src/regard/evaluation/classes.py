r"""Scores of labels, one a row or several.

What every row adds to a score is counted apart, as in `tallies`, so that drawing
rows again costs a matrix product and not another look at them.

Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient" (2004), equation 8: Matthews'
correlation for several classes. https://doi.org/10.1016/j.compbiolchem.2004.09.006
Guo et al., "On Calibration of Modern Neural Networks" (2017), equation 3. https://arxiv.org/abs/1706.04599

Dimensions:
    examples    rows, or sentences
    labels      what a row can be, or the types of what is found in it
    counted     how many are right, how many were predicted, how many there are: always these three
"""

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int, Real

from regard.errors import DataError
from regard.evaluation.metrics import score_tally
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally, share, tally_accuracy

Label = str | int

NUM_BINS = 15
"""Bins of equal width that the calibration error sorts confidences into."""


class Measure(Protocol):
    """A score made of counts: `precision`, `recall` or `f1`."""

    __name__: str

    def __call__(self, counts: Real[np.ndarray, "*many counted"], /) -> Float[np.ndarray, "*many"]: ...


def precision(counts: Real[np.ndarray, "*many counted"]) -> Float[np.ndarray, "*many"]:
    """The share of what was predicted that is right; 0 where nothing was predicted."""
    return _divide(counts[..., 0], counts[..., 1])


def recall(counts: Real[np.ndarray, "*many counted"]) -> Float[np.ndarray, "*many"]:
    """The share of what there is that was found; 0 where there is nothing."""
    return _divide(counts[..., 0], counts[..., 2])


def f1(counts: Real[np.ndarray, "*many counted"]) -> Float[np.ndarray, "*many"]:
    """The harmonic mean of precision and recall; 0 where there is nothing and nothing was predicted."""
    return _divide(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelCounts:
    """For each example and label how many are right, were predicted, and should have been.

    Example:
        >>> counts = count_classes(["a", "b", "b"], ["a", "a", "b"])
        >>> counts.totals
        {'a': (1, 1, 2), 'b': (1, 2, 1)}
        >>> round(counts.of("a", recall).value, 3), round(counts.macro(f1).value, 3)
        (0.5, 0.667)
    """

    labels: tuple[Label, ...]
    counts: Int[np.ndarray, "examples labels counted"]
    kind: str = ""
    """What the names of the scores begin with."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def totals(self) -> dict[Label, tuple[int, int, int]]:
        """For each label the three counts over all examples."""
        sums = self.counts.sum(axis=0).tolist()
        return {label: (right, said, gold) for label, (right, said, gold) in zip(self.labels, sums, strict=True)}

    def micro(self, measure: Measure) -> Tally:
        """The measure of all labels together: each thing that is counted weighs the same."""
        return self._tally(f"{self.kind or 'micro_'}{measure.__name__}", self.counts.sum(axis=1), measure)

    def macro(self, measure: Measure) -> Tally:
        """The mean over labels of the measure of each: each label weighs the same.

        Labels that neither occur nor were predicted do not enter it; nor, in a
        resample, do those that it has none of. Tallies of several models compare if
        they were counted with the same `labels`, which the signature vouches for.
        """
        return Tally(
            name=f"{self.kind}macro_{measure.__name__}",
            statistics=self.counts.reshape(len(self.counts), -1),
            compute=lambda sums: _mean_of_present(measure, sums.reshape(-1, 3)),
            settings={**self.settings, "labels": described(self.labels)},
        )

    def of(self, label: Label, measure: Measure) -> Tally:
        """The measure of one label."""
        name = f"{self.kind}{measure.__name__}_{label}"
        return self._tally(name, self.counts[:, self.labels.index(label)], measure)

    def _tally(self, name: str, statistics: Int[np.ndarray, "examples counted"], measure: Measure) -> Tally:
        return Tally(
            name=name, statistics=statistics, compute=lambda sums: float(measure(sums)), settings=self.settings
        )


class Confusion(NamedTuple):
    """How often each label was taken for which."""

    labels: tuple[Label, ...]
    counts: Int[np.ndarray, "labels labels"]
    """A row for each label that it was, a column for each that was predicted."""


def score_classes(
    predictions: Sequence[Label],
    references: Sequence[Label],
    *,
    labels: Sequence[Label] | None = None,
    confidences: Sequence[float] | None = None,
) -> list[Score]:
    """Accuracy, macro F1 and Matthews' correlation of one label a row; with `confidences` the calibration error.

    Args:
        predictions: What was predicted for each row.
        references: What it is.
        labels: All that there can be; unset, all that occur.
        confidences: The probability that the model gave to each prediction.

    Example:
        >>> for score in score_classes(["yes", "no", "no", "no"], ["yes", "yes", "no", "no"]):
        ...     print(score.name, round(score.value, 3))
        accuracy 0.75
        macro_f1 0.733
        matthews 0.577
    """
    labels, predicted, gold = _numbered(predictions, references, labels)
    tallies = [
        tally_accuracy(predicted.tolist(), gold.tolist()),
        count_classes(predictions, references, labels=labels).macro(f1),
        tally_matthews(predictions, references, labels=labels),
    ]
    if confidences is not None:
        tallies.append(tally_calibration_error(confidences, (predicted == gold).tolist()))
    return [score_tally(tally) for tally in tallies]


def score_label_sets(
    predictions: Sequence[Collection[Label]],
    references: Sequence[Collection[Label]],
    *,
    labels: Sequence[Label] | None = None,
) -> list[Score]:
    """Micro F1, macro F1 and subset accuracy of any number of labels a row.

    Example:
        >>> for score in score_label_sets([{"a"}, {"a", "b"}, set()], [{"a"}, {"b"}, {"b"}]):
        ...     print(score.name, round(score.value, 3))
        micro_f1 0.667
        macro_f1 0.667
        subset_accuracy 0.333
    """
    counts = count_label_sets(predictions, references, labels=labels)
    tallies = [counts.micro(f1), counts.macro(f1), tally_subset_accuracy(predictions, references)]
    return [score_tally(tally) for tally in tallies]


def count_classes(
    predictions: Sequence[Label], references: Sequence[Label], *, labels: Sequence[Label] | None = None
) -> LabelCounts:
    """The counts of one label a row.

    Raises:
        DataError: If predictions and references are not equally many, or one is not among the `labels`.
    """
    labels, predicted, gold = _numbered(predictions, references, labels)
    rows = np.arange(len(gold))
    counts = np.zeros((len(gold), len(labels), 3), np.int32)
    counts[rows, predicted, 1] = 1
    counts[rows, gold, 2] = 1
    counts[..., 0] = counts[..., 1] & counts[..., 2]
    return LabelCounts(labels=labels, counts=counts)


def count_label_sets(
    predictions: Sequence[Collection[Label]],
    references: Sequence[Collection[Label]],
    *,
    labels: Sequence[Label] | None = None,
) -> LabelCounts:
    """The counts of any number of labels a row; a label counts once, however often it is named.

    Raises:
        DataError: If predictions and references are not equally many, or one is not among the `labels`.
    """
    _check_pairs(predictions, references)
    labels = _all_labels([label for row in [*predictions, *references] for label in row], labels)
    place = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(references), len(labels), 3), np.int32)
    for column, sets in ((1, predictions), (2, references)):
        for row, chosen in enumerate(sets):
            counts[row, [place[label] for label in chosen], column] = 1
    counts[..., 0] = counts[..., 1] & counts[..., 2]
    return LabelCounts(labels=labels, counts=counts)


def confusion(
    predictions: Sequence[Label], references: Sequence[Label], *, labels: Sequence[Label] | None = None
) -> Confusion:
    """How often each label was taken for which.

    Example:
        >>> confusion(["a", "b", "b"], ["a", "a", "b"]).counts.tolist()
        [[1, 1], [0, 1]]
    """
    labels, predicted, gold = _numbered(predictions, references, labels)
    counts = np.bincount(gold * len(labels) + predicted, minlength=len(labels) ** 2)
    return Confusion(labels, counts.reshape(len(labels), len(labels)))


def tally_matthews(
    predictions: Sequence[Label], references: Sequence[Label], *, labels: Sequence[Label] | None = None
) -> Tally:
    r"""Matthews' correlation: 1 where all are right, about 0 for any guess that does not look at the row.

    With $c$ of $s$ rows right, and label $k$ predicted $p_k$ times and there $t_k$ times,

    $$ \frac{c s - \sum_k p_k t_k}{\sqrt{(s^2 - \sum_k p_k^2)(s^2 - \sum_k t_k^2)}} $$

    It is 0 where only one label is predicted, or only one occurs.
    """
    labels, predicted, gold = _numbered(predictions, references, labels)
    of_labels = [np.eye(len(labels), dtype=np.int32)[numbers] for numbers in (predicted, gold)]
    statistics = np.column_stack([predicted == gold, np.ones(len(gold), np.int32), *of_labels])
    return Tally(name="matthews", statistics=statistics, compute=_matthews, settings={"labels": described(labels)})


def tally_calibration_error(confidences: Sequence[float], is_right: Sequence[bool]) -> Tally:
    r"""The expected calibration error: by how much confidence and accuracy differ, within bins of like confidence.

    $$ \sum_b \frac{n_b}{n} \left| \text{accuracy}_b - \text{confidence}_b \right| $$

    Of a perfectly calibrated model it is above 0 too, by chance, and more so the
    fewer rows a bin has; its bootstrap interval, which adds that chance once more,
    lies high. Compare it between models on the same rows.

    Args:
        confidences: The probability that the model gave to its prediction for each row.
        is_right: Whether that was right.
    """
    _check_pairs(confidences, is_right, "confidences and is_right")
    probabilities = np.asarray(confidences, np.float64)
    if not ((probabilities >= 0) & (probabilities <= 1)).all():  # which NaN is not
        row = int(np.flatnonzero(~((probabilities >= 0) & (probabilities <= 1)))[0])
        raise DataError(f"confidences must lie in [0, 1], got {probabilities[row]:g} for row {row}")
    bins = np.digitize(probabilities, np.linspace(0, 1, NUM_BINS + 1)[1:-1], right=True)
    gaps = np.eye(NUM_BINS)[bins] * (probabilities - np.asarray(is_right))[:, None]
    return Tally(
        name="calibration_error",
        statistics=np.column_stack([gaps, np.ones(len(gaps))]),
        compute=lambda sums: float(np.abs(sums[:-1]).sum() / sums[-1]),
        settings={"bins": NUM_BINS, "widths": "equal", "norm": 1},
    )


def tally_subset_accuracy(predictions: Sequence[Collection[Label]], references: Sequence[Collection[Label]]) -> Tally:
    """Which rows have all of their labels right, and no other."""
    _check_pairs(predictions, references)
    right = [set(said) == set(true) for said, true in zip(predictions, references, strict=True)]
    statistics = np.column_stack([right, np.ones(len(right))]).astype(np.int64)
    return Tally(name="subset_accuracy", statistics=statistics, compute=share, settings={})


def described(labels: Sequence[Label]) -> str:
    """How many labels there are, and a checksum of their names, for a signature: equal ones are the same labels.

    Example:
        >>> described(["LOC", "PER"])
        '2-db72f9b6'
    """
    return f"{len(labels)}-{zlib.crc32(repr(list(labels)).encode()):08x}"


def _divide(
    numerators: Real[np.ndarray, "*many"], denominators: Real[np.ndarray, "*many"]
) -> Float[np.ndarray, "*many"]:
    """The quotient; 0 where there is nothing to divide by."""
    return numerators / np.where(denominators == 0, 1, denominators)


def _mean_of_present(measure: Measure, sums: Float[np.ndarray, "labels counted"]) -> float:
    present = sums[:, 1:].any(axis=1)
    return float(measure(sums[present]).mean()) if present.any() else 0.0


def _matthews(sums: Float[np.ndarray, " statistics"]) -> float:
    right, rows = sums[:2]
    predicted, gold = sums[2:].reshape(2, -1)
    spread = (rows * rows - predicted @ predicted) * (rows * rows - gold @ gold)
    return float((right * rows - predicted @ gold) / math.sqrt(spread)) if spread > 0 else 0.0


def _numbered(
    predictions: Sequence[Label], references: Sequence[Label], labels: Sequence[Label] | None
) -> tuple[tuple[Label, ...], Int[np.ndarray, " examples"], Int[np.ndarray, " examples"]]:
    """All labels, and the numbers of those of the rows."""
    _check_pairs(predictions, references)
    labels = _all_labels([*predictions, *references], labels)
    place = {label: number for number, label in enumerate(labels)}
    predicted, gold = (np.array([place[label] for label in chosen]) for chosen in (predictions, references))
    return labels, predicted, gold


def _all_labels(seen: Collection[Label], labels: Sequence[Label] | None) -> tuple[Label, ...]:
    if labels is None:
        return tuple(sorted(set(seen), key=lambda label: (isinstance(label, str), label)))
    if unknown := set(seen) - set(labels):
        raise DataError(f"labels must be among the {len(labels)} that are known, got {sorted(map(repr, unknown))[0]}")
    return tuple(labels)


def _check_pairs(first: Sequence[object], second: Sequence[object], names: str = "predictions and references") -> None:
    if len(first) != len(second) or len(first) == 0:
        raise DataError(f"{names} must be equally many and at least one, got {len(first)} and {len(second)}")
