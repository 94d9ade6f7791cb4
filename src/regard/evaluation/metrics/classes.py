r"""Metrics of labels: one label per row, several labels per row, or one for each word of a sentence.

Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient" (2004), equation 8: Matthews'
correlation for several classes. https://doi.org/10.1016/j.compbiolchem.2004.09.006
Guo et al., "On Calibration of Modern Neural Networks" (2017), equation 3. https://arxiv.org/abs/1706.04599

Dimensions:
    examples    rows, or sentences
    labels      the possible labels, or the types of entities
    counted     the numbers of correct, predicted and actual occurrences: always these three
"""

import math
import zlib
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int, Real

from regard.errors import DataError
from regard.evaluation.counts import Counts, check_equal_lengths, count_right, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.registry import PAIRS, Metric, on_pairs

Label = str | int

NUM_BINS = 15
"""Bins of equal width that the calibration error sorts confidences into."""


class Measure(Protocol):
    """A score computed from three counts: `precision`, `recall` or `f1`."""

    __name__: str

    def __call__(self, counts: Real[np.ndarray, "*many counted"], /) -> Float[np.ndarray, "*many"]: ...


def precision(counts: Real[np.ndarray, "*many counted"]) -> Float[np.ndarray, "*many"]:
    """The share of predicted occurrences that are correct; 0 where nothing was predicted."""
    return _divide(counts[..., 0], counts[..., 1])


def recall(counts: Real[np.ndarray, "*many counted"]) -> Float[np.ndarray, "*many"]:
    """The share of actual occurrences that were found; 0 where there are none."""
    return _divide(counts[..., 0], counts[..., 2])


def f1(counts: Real[np.ndarray, "*many counted"]) -> Float[np.ndarray, "*many"]:
    """The harmonic mean of precision and recall; 0 where there are neither predicted nor actual occurrences."""
    return _divide(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelCounts:
    """For each example and label the number of correct, predicted and actual occurrences.

    Example:
        >>> counts = count_classes(["a", "b", "b"], ["a", "a", "b"])
        >>> counts.totals
        {'a': (1, 1, 2), 'b': (1, 2, 1)}
        >>> round(counts.of("a", recall).value, 3), round(counts.macro(f1).value, 3)
        (0.5, 0.667)
    """

    labels: tuple[Label, ...]
    counts: Int[np.ndarray, "examples labels counted"]
    settings: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def totals(self) -> dict[Label, tuple[int, int, int]]:
        """For each label the three counts over all examples."""
        sums = self.counts.sum(axis=0).tolist()
        return {label: (right, given, gold) for label, (right, given, gold) in zip(self.labels, sums, strict=True)}

    def micro(self, measure: Measure) -> Counts:
        """The measure of all labels together: each occurrence has the same weight."""
        return self._counts(self.counts.sum(axis=1), measure)

    def macro(self, measure: Measure) -> Counts:
        """The mean over labels of the measure of each: each label has the same weight.

        Labels that neither occur nor were predicted are left out; so are, in a
        resample, those that do not occur in it. Counts of several models are
        comparable if they have the same `labels`, which are part of the signature.
        """
        return Counts(
            statistics=self.counts.reshape(len(self.counts), -1),
            compute=lambda sums: _mean_of_present(measure, sums.reshape(-1, 3)),
            settings={**self.settings, "labels": label_checksum(self.labels)},
        )

    def of(self, label: Label, measure: Measure) -> Counts:
        """The measure of one label."""
        return self._counts(self.counts[:, self.labels.index(label)], measure)

    def _counts(self, statistics: Int[np.ndarray, "examples counted"], measure: Measure) -> Counts:
        return Counts(statistics=statistics, compute=lambda sums: float(measure(sums)), settings=self.settings)


class Confusion(NamedTuple):
    """A confusion matrix."""

    labels: tuple[Label, ...]
    counts: Int[np.ndarray, "labels labels"]
    """A row for each actual label, a column for each predicted one."""


def count_labels(
    predictions: Sequence[Label] | Sequence[Collection[Label]],
    references: Sequence[Label] | Sequence[Collection[Label]],
    *,
    labels: Sequence[Label] | None = None,
) -> LabelCounts:
    """`count_label_sets` where rows are sets, `count_tags` where they are lists of tags, else `count_classes`."""
    first = references[0] if len(references) else None
    count = count_label_sets if isinstance(first, Set) else count_tags if _is_list(first) else count_classes
    return count(predictions, references, labels=labels)  # pyright: ignore[reportArgumentType]  # known by `first`


def count_classes(
    predictions: Sequence[Label], references: Sequence[Label], *, labels: Sequence[Label] | None = None
) -> LabelCounts:
    """The counts of one label per row.

    Raises:
        DataError: If predictions and references differ in length, or one is not among the `labels`.
    """
    labels, predicted, gold = _indices(predictions, references, labels)
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
    """The counts of any number of labels per row; a repeated label counts once.

    Raises:
        DataError: If predictions and references differ in length, or one is not among the `labels`.
    """
    check_equal_lengths(predictions, references)
    labels = _all_labels([label for row in [*predictions, *references] for label in row], labels)
    index = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(references), len(labels), 3), np.int32)
    for column, sets in ((1, predictions), (2, references)):
        for row, chosen in enumerate(sets):
            counts[row, [index[label] for label in chosen], column] = 1
    counts[..., 0] = counts[..., 1] & counts[..., 2]
    return LabelCounts(labels=labels, counts=counts)


def count_tags(
    predictions: Sequence[Sequence[Label]],
    references: Sequence[Sequence[Label]],
    *,
    labels: Sequence[Label] | None = None,
) -> LabelCounts:
    """The counts of one label for each word, summed over sentences, since words of one are not independent.

    Raises:
        DataError: If predictions and references differ in sentences or words, or a tag is not among the `labels`.
    """
    check_same_words(predictions, references)
    labels = _all_labels({tag for tags in [*predictions, *references] for tag in tags}, labels)
    index = {label: number for number, label in enumerate(labels)}
    counts = np.zeros((len(references), len(labels), 3), np.int32)
    for row, (given, gold) in enumerate(zip(predictions, references, strict=True)):
        for one, other in zip(given, gold, strict=True):
            counts[row, index[one], 1] += 1
            counts[row, index[other], 2] += 1
            counts[row, index[one], 0] += one == other
    return LabelCounts(labels=labels, counts=counts, settings={"unit": "sentence"})


def confusion(
    predictions: Sequence[Label], references: Sequence[Label], *, labels: Sequence[Label] | None = None
) -> Confusion:
    """The confusion matrix: how often each label was predicted for which.

    Example:
        >>> confusion(["a", "b", "b"], ["a", "a", "b"]).counts.tolist()
        [[1, 1], [0, 1]]
    """
    labels, predicted, gold = _indices(predictions, references, labels)
    counts = np.bincount(gold * len(labels) + predicted, minlength=len(labels) ** 2)
    return Confusion(labels, counts.reshape(len(labels), len(labels)))


def count_accuracy(
    predictions: Sequence[Label] | Sequence[Sequence[Label]], references: Sequence[Label] | Sequence[Sequence[Label]]
) -> Counts:
    """Count the correct labels: of rows, a proportion; of the words of sentences, a ratio.

    The exact interval of a proportion holds for independent labels. Those of the
    words of one sentence are not, so sentences are resampled.

    Example:
        >>> count_accuracy([1, 0, 2, 2], [1, 0, 2, 1]).value
        0.75
    """
    check_equal_lengths(predictions, references)
    if _is_list(references[0]) and _is_list(predictions[0]):
        statistics = count_tags(predictions, references).counts[:, :, (0, 2)].sum(axis=1)  # pyright: ignore[reportArgumentType]  # lists
        return Counts(statistics=statistics, compute=ratio, settings={"unit": "sentence"})
    for index, label in enumerate(references):
        if _is_list(label):
            raise DataError(f"accuracy expects one right label for each prediction, got {label} for prediction {index}")
    return count_right([bool(given == gold) for given, gold in zip(predictions, references, strict=True)])


def count_subset_accuracy(predictions: Sequence[Collection[Label]], references: Sequence[Collection[Label]]) -> Counts:
    """Count the rows whose predicted set of labels equals the actual one."""
    check_equal_lengths(predictions, references)
    return count_right([set(given) == set(gold) for given, gold in zip(predictions, references, strict=True)])


def count_matthews(
    predictions: Sequence[Label], references: Sequence[Label], *, labels: Sequence[Label] | None = None
) -> Counts:
    r"""Matthews' correlation: 1 where all labels are right, about 0 for predictions independent of the row.

    With $c$ of $s$ rows right, and label $k$ predicted $p_k$ times and occurring $t_k$ times,

    $$ \frac{c s - \sum_k p_k t_k}{\sqrt{(s^2 - \sum_k p_k^2)(s^2 - \sum_k t_k^2)}} $$

    It is 0 where only one label is predicted, or only one occurs.
    """
    labels, predicted, gold = _indices(predictions, references, labels)
    one_hot = [np.eye(len(labels), dtype=np.int32)[indices] for indices in (predicted, gold)]
    statistics = np.column_stack([predicted == gold, np.ones(len(gold), np.int32), *one_hot])
    return Counts(statistics=statistics, compute=_matthews, settings={"labels": label_checksum(labels)})


def count_calibration_error(confidences: Sequence[float], is_right: Sequence[bool]) -> Counts:
    r"""The expected calibration error: the difference of confidence and accuracy, within bins of similar confidence.

    $$ \sum_b \frac{n_b}{n} \left| \text{accuracy}_b - \text{confidence}_b \right| $$

    For a perfectly calibrated model it is above 0 as well, by chance, and more so
    with fewer rows per bin; its bootstrap interval, which adds that chance once
    more, is biased upwards. Compare it between models on the same rows.

    Args:
        confidences: The probability that the model assigned to its prediction for each row.
        is_right: Whether that was right.
    """
    check_equal_lengths(confidences, is_right, "confidences and is_right")
    probabilities = np.asarray(confidences, np.float64)
    if not ((probabilities >= 0) & (probabilities <= 1)).all():  # which is false for NaN
        row = int(np.flatnonzero(~((probabilities >= 0) & (probabilities <= 1)))[0])
        raise DataError(f"confidences must be in [0, 1], got {probabilities[row]:g} for row {row}")
    bins = np.digitize(probabilities, np.linspace(0, 1, NUM_BINS + 1)[1:-1], right=True)
    gaps = np.eye(NUM_BINS)[bins] * (probabilities - np.asarray(is_right))[:, None]
    return Counts(
        statistics=np.column_stack([gaps, np.ones(len(gaps))]),
        compute=lambda sums: float(np.abs(sums[:-1]).sum() / sums[-1]),
        settings={"bins": NUM_BINS, "widths": "equal", "norm": 1},
    )


def label_checksum(labels: Sequence[Label]) -> str:
    """The number of labels and a checksum of their names, for a signature.

    Example:
        >>> label_checksum(["LOC", "PER"])
        '2-db72f9b6'
    """
    return f"{len(labels)}-{zlib.crc32(repr(list(labels)).encode()):08x}"


def check_same_words(predictions: Sequence[Sequence[Label]], references: Sequence[Sequence[Label]]) -> None:
    """Raise unless both have equally many sentences of equally many words."""
    if len(predictions) != len(references) or len(references) == 0:
        raise DataError(
            f"predictions and references must have the same number of sentences, at least 1, got {len(predictions)} "
            f"and {len(references)}"
        )
    for number, (given, gold) in enumerate(zip(predictions, references, strict=True)):
        if len(given) != len(gold):
            raise DataError(
                f"a sentence needs a tag for each word, got {len(given)} for {len(gold)} in sentence {number + 1}"
            )


def _label_counts(examples: Examples) -> LabelCounts:
    return count_labels(*examples.require(*PAIRS), labels=examples.labels)


def _calibration_error(examples: Examples) -> Counts:
    outputs, targets, confidences = examples.require(*PAIRS, "confidences")
    check_equal_lengths(outputs, targets)
    return count_calibration_error(confidences, [given == gold for given, gold in zip(outputs, targets, strict=True)])


ACCURACY = Metric(name="accuracy", label="Accuracy", counter=on_pairs(count_accuracy))
MACRO_F1 = Metric(name="macro_f1", label="Macro F1", counter=lambda examples: _label_counts(examples).macro(f1))
MICRO_F1 = Metric(name="micro_f1", label="Micro F1", counter=lambda examples: _label_counts(examples).micro(f1))
SUBSET_ACCURACY = Metric(name="subset_accuracy", label="Subset accuracy", counter=on_pairs(count_subset_accuracy))
MATTHEWS = Metric(
    name="matthews",
    label="Matthews correlation",
    label_in_text="Matthews correlation",
    counter=lambda examples: count_matthews(*examples.require(*PAIRS), labels=examples.labels),
)
CALIBRATION_ERROR = Metric(
    name="calibration_error",
    label="Calibration error",
    counter=_calibration_error,
    needs=(*PAIRS, "confidences"),
    higher_is_better=False,
)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _divide(
    numerators: Real[np.ndarray, "*many"], denominators: Real[np.ndarray, "*many"]
) -> Float[np.ndarray, "*many"]:
    """The quotient; 0 where the denominator is 0."""
    return numerators / np.where(denominators == 0, 1, denominators)


def _mean_of_present(measure: Measure, sums: Float[np.ndarray, "labels counted"]) -> float:
    present = sums[:, 1:].any(axis=1)
    return float(measure(sums[present]).mean()) if present.any() else 0.0


def _matthews(sums: Float[np.ndarray, " statistics"]) -> float:
    right, rows = sums[:2]
    predicted, gold = sums[2:].reshape(2, -1)
    spread = (rows * rows - predicted @ predicted) * (rows * rows - gold @ gold)
    return float((right * rows - predicted @ gold) / math.sqrt(spread)) if spread > 0 else 0.0


def _indices(
    predictions: Sequence[Label], references: Sequence[Label], labels: Sequence[Label] | None
) -> tuple[tuple[Label, ...], Int[np.ndarray, " examples"], Int[np.ndarray, " examples"]]:
    """All labels, and the indices of the predicted and the actual ones among them."""
    check_equal_lengths(predictions, references)
    labels = _all_labels([*predictions, *references], labels)
    index = {label: number for number, label in enumerate(labels)}
    predicted, gold = (np.array([index[label] for label in chosen]) for chosen in (predictions, references))
    return labels, predicted, gold


def _all_labels(seen: Collection[Label], labels: Sequence[Label] | None) -> tuple[Label, ...]:
    if labels is None:
        return tuple(sorted(set(seen), key=lambda label: (isinstance(label, str), label)))
    if unknown := set(seen) - set(labels):
        raise DataError(f"labels must be among the {len(labels)} known ones, got {sorted(map(repr, unknown))[0]}")
    return tuple(labels)
