"""A score with its confidence interval and the signature needed to reproduce it.

The signature follows sacrebleu's: Post, "A Call for Clarity in Reporting BLEU
Scores" (2018). https://arxiv.org/abs/1804.08771

Proportions (exact match, accuracy) have Clopper and Pearson's interval, all
other scores the percentile bootstrap over examples; `intervals` states when each
holds. Resampling test sets for BLEU: Koehn, "Statistical Significance Tests for
Machine Translation Evaluation" (2004). https://aclanthology.org/W04-3250
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.evaluation.counts import Counts
from regard.evaluation.intervals import CONFIDENCE, NUM_RESAMPLES, bootstrap_interval, clopper_pearson
from regard.version import version


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The value of a metric, its confidence interval and the settings it depends on.

    Proportions (exact match, accuracy) lie in [0, 1]; BLEU and chrF lie in
    [0, 100], as in their papers.

    Example:
        >>> score = Score(name="accuracy", value=0.9, interval=(0.55, 0.998), settings={"n": 10})
        >>> str(score).replace(version(), "1.2.0")
        'accuracy|n:10|version:1.2.0 = 0.900 [0.550, 0.998]'
    """

    name: str
    value: float
    interval: tuple[float, float] | None = None
    """Ends of the confidence interval; None where the examples do not allow one."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    digits: int = 3
    """Decimals that `str` prints. `value` and `to_json` are never rounded."""

    @property
    def signature(self) -> str:
        """The settings in a fixed order, the version of regard last: `k:v|k:v|version:1.2.0`."""
        return make_signature(self.settings)

    def to_json(self) -> dict[str, float | list[float] | str | None]:
        """What is written to files and printed by `--json`; the name is left to be its key."""
        return {
            "value": self.value,
            "interval": None if self.interval is None else list(self.interval),
            "signature": self.signature,
        }

    def to_records(self) -> list[dict[str, Any]]:
        """One flat row: `pandas.DataFrame(score.to_records())`."""
        low, high = (None, None) if self.interval is None else self.interval
        return [{"name": self.name, "value": self.value, "low": low, "high": high, "signature": self.signature}]

    @property
    def has_width(self) -> bool:
        """Whether the interval has a width: that of a bootstrap whose resamples all agree says nothing."""
        return self.interval is not None and self.interval[0] < self.interval[1]

    def format_value(self) -> str:
        """The value and its interval: `0.900 [0.550, 0.998]`."""
        spread = "" if self.interval is None else " (no interval: every resample of the rows has the same score)"
        if self.interval is not None and self.has_width:
            low, high = self.interval
            spread = f" [{low:.{self.digits}f}, {high:.{self.digits}f}]"
        return f"{self.value:.{self.digits}f}{spread}"

    def __str__(self) -> str:
        return f"{self.name}|{self.signature} = {self.format_value()}"


def make_signature(settings: Mapping[str, str | int | float]) -> str:
    """The settings in a fixed order, the version of regard last."""
    return "|".join([*(f"{key}:{value}" for key, value in sorted(settings.items())), f"version:{version()}"])


def score_counts(
    counts: Counts, *, confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """The score of all examples, with the interval that applies to it.

    For a proportion that is Clopper and Pearson's, which needs no resampling; for
    any other score the bootstrap's. The signature has, besides the settings of the
    counts, the number of examples and how the interval was computed. The bootstrap
    has no interval for a single example: it is None, with `interval:none` in the
    signature.
    """
    made: dict[str, str | int | float] = {"n": len(counts)}
    interval = None
    if counts.is_proportion:
        interval = clopper_pearson(int(counts.statistics[:, 0].sum()), len(counts), confidence=confidence)
        made |= {"interval": "clopper-pearson", "confidence": confidence}
    elif len(counts) == 1:
        made |= {"interval": "none"}
    else:
        interval = bootstrap_interval(
            counts.statistics, counts.compute, confidence=confidence, num_resamples=num_resamples, seed=seed
        )
        made |= {"interval": "bootstrap", "confidence": confidence, "resamples": num_resamples, "seed": seed}
    return Score(
        name=counts.name,
        value=counts.value,
        interval=interval,
        settings={**counts.settings, **made},
        digits=counts.digits,
    )
