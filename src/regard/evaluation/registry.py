"""The registry of metrics: one object per metric, from which everything else follows.

Confidence intervals, paired tests, tables, early stopping and sweep objectives
read a metric's name, label, direction and counts from here; no other module has
a list of metrics. An installed package adds one by an entry point:

    [project.entry-points."regard.metrics"]
    ter = "my_package.metrics:TER"
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts
from regard.evaluation.examples import Examples
from regard.evaluation.scores import Score, score_counts
from regard.registry import Registry

PAIRS = ("outputs", "targets")
"""The fields of `Examples` that most metrics compare."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: what it counts for each example, and how its score reads.

    Example:
        >>> from regard.evaluation.counts import count_right
        >>> def count_same_length(outputs: list[str], targets: list[str]) -> Counts:
        ...     return count_right([len(output) == len(target) for output, target in zip(outputs, targets)])
        >>> metric = Metric(name="same_length", label="Same length", counter=on_pairs(count_same_length))
        >>> metric.count(Examples(outputs=["ab", "c"], targets=["xy", "yz"])).value
        0.5
    """

    name: str
    """As in JSON and on the command line; the name of the entry point."""
    label: str
    """As in tables and titles: `Exact match`."""
    label_in_text: str = ""
    """As within a sentence; by default the label with a lower-case first letter, unless it begins with an acronym."""
    counter: Callable[[Examples], Counts] | None = None
    """Counts for each example what the score needs; it sets neither name nor digits.

    None for a metric that is not a function of sums over examples, which then has a `scorer`.
    """
    scorer: Callable[[Examples], Score] | None = None
    """Computes the score where there is no `counter`."""
    part_scorer: Callable[[Examples], Mapping[str, Score]] | None = None
    """With a `scorer`: scores of parts of the examples, by a suffix of the name, as `breakdown` with a `counter`."""
    breakdown: Callable[[Examples], Mapping[str, Counts]] | None = None
    """Counts of parts of the examples or labels, by a suffix of the name: `entity_f1_PER` for the key `PER`."""
    needs: tuple[str, ...] = PAIRS
    """Fields of `Examples` that must be set."""
    higher_is_better: bool = True
    digits: int | None = 3
    """Decimals of a printed score; None for four significant digits, three below 1, where any size is usual."""
    is_per_token: bool = False
    """Whether it averages over tokens: two values are comparable only over the same tokens."""
    is_bounded_mean: bool = False
    """Whether the score is a mean over examples of values in [0, 1], so that the bounds on means apply to it.

    A proportion needs no mark: its counts show it.
    """
    certified_by: str | None = None
    """A metric of the same examples to which bounds apply, where they do not apply to this one."""
    find_artifact: Callable[[Float[np.ndarray, " statistics"]], str | None] | None = None
    """From the sums of the counts, why such a score is not comparable with another like it; None where it is.

    BLEU without a single matching 4-gram, for example, depends on its smoothing only.
    """

    @property
    def in_text(self) -> str:
        """The label as it reads within a sentence."""
        first = self.label.partition(" ")[0]
        lowered = f"{self.label[0].lower()}{self.label[1:]}" if first[1:].islower() else self.label
        return self.label_in_text or lowered

    @property
    def is_additive(self) -> bool:
        """Whether the score is a function of sums over examples, which paired tests require."""
        return self.counter is not None

    def count(self, examples: Examples) -> Counts:
        """What is counted for each example.

        Raises:
            DataError: If the examples lack a field that the metric needs, or their fields do not fit together.
            ConfigError: If the metric is not additive.
        """
        if self.counter is None:
            raise ConfigError(f"{self.name} is not a function of sums over examples, so it has no paired test")
        self._check(examples)
        return self._named(self.counter(examples), self.name)

    def value(self, examples: Examples) -> float:
        """The score without an interval, which takes most of the time of `scores`."""
        if self.scorer is None:
            return self.count(examples).value
        self._check(examples)
        return self.scorer(examples).value

    def scores(self, examples: Examples) -> list[Score]:
        """The score, then those of its breakdown, each with its 95 % interval."""
        self._check(examples)
        if self.scorer is not None:
            found = [self.scorer(examples), *(self.part_scorer(examples).values() if self.part_scorer else ())]
        else:
            parts = {} if self.breakdown is None else self.breakdown(examples)
            named = [self._named(part, f"{self.name}_{suffix}") for suffix, part in parts.items()]
            found = [score_counts(counts) for counts in (self.count(examples), *named)]
        return [replace(score, settings={**score.settings, **examples.settings}) for score in found]

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value of this metric is better than another; one that is not a number never is."""
        return value > than if self.higher_is_better else value < than

    def digits_for(self, value: float) -> int:
        """The decimals of a printed value."""
        if self.digits is not None:
            return self.digits
        if not value or not math.isfinite(value):
            return 3
        size = math.floor(math.log10(abs(value)))
        return max(0, 2 - size if size < 0 else 3 - size)

    def format(self, value: float) -> str:
        """A value with as many decimals as a score prints."""
        return f"{value:.{self.digits_for(value)}f}"

    def _check(self, examples: Examples) -> None:
        try:
            examples.require(*self.needs)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None

    def _named(self, counts: Counts, name: str) -> Counts:
        return replace(counts, name=name, digits=self.digits_for(counts.value), find_artifact=self.find_artifact)


def on_pairs(count: Callable[[Any, Any], Counts]) -> Callable[[Examples], Counts]:
    """The counter of a metric whose `count` takes the outputs and the targets."""
    return lambda examples: count(*examples.require(*PAIRS))


METRICS: Registry[Metric] = Registry(
    "regard.metrics", "metric", members=("name", "label", "count", "scores", "higher_is_better")
)


def find_metric(name: str) -> Metric:
    """The metric that is registered as `name`.

    Raises:
        ConfigError: If there is none; the message has the nearest name.

    Example:
        >>> find_metric("bleu").label, find_metric("perplexity").higher_is_better
        ('BLEU', False)
    """
    return METRICS.find(name)


def find_metric_of(score_name: str) -> Metric:
    """The metric that a score belongs to, which may be one of its breakdown.

    Example:
        >>> find_metric_of("entity_f1_PER").name, find_metric_of("entity_macro_f1").name
        ('entity_f1', 'entity_macro_f1')
    """
    return METRICS.find(_metric_name_of(score_name) or score_name)


def score_label(score_name: str) -> str:
    """The name of a score as it reads within a sentence; a score of no metric is spelled with spaces.

    Example:
        >>> score_label("exact_match"), score_label("entity_f1_PER"), score_label("valid_loss")
        ('exact match', 'entity F1 (PER)', 'valid loss')
    """
    name = _metric_name_of(score_name)
    if name is None:
        return score_name.replace("_", " ")
    metric, part = find_metric(name), score_name[len(name) + 1 :]
    part = (
        part if metric.part_scorer is None else part.replace("_", " ")
    )  # words of the metric, not a label of the data
    return f"{metric.in_text} ({part})" if part else metric.in_text


def _metric_name_of(score_name: str) -> str | None:
    matching = [name for name in METRICS.names() if score_name == name or score_name.startswith(f"{name}_")]
    return max(matching, key=len, default=None)


def score_examples(metrics: Iterable[str], examples: Examples) -> list[Score]:
    """The scores of several metrics on the same examples, in the order of the names."""
    return [score for name in metrics for score in find_metric(name).scores(examples)]
