r"""Metrics of event processes: log-likelihood, the next event, and risks within horizons.

An example is a subject, so intervals are over subjects. Risks are judged at landmarks, right after an event: did the
next event come within the horizon, and which was it? Landmarks whose subject was not observed for so long are weighted
by the inverse probability of censoring (Graf et al., "Assessment and comparison of prognostic classification schemes
for survival data", 1999): one whose event came at $t \leq h$ by $1 / G(t)$, one without an event until $h$ by
$1 / G(h)$, and one that was censored before by 0, where $G$ is the Kaplan-Meier estimate of the probability of being
observed. On data without censoring all weights are 1.

The AUROC at a horizon is the probability that a landmark with an event within it has a higher predicted risk of that
event than one without (Uno et al., "Evaluating Prediction Rules for t-Year Survivors", 2007).

Dimensions: `landmarks`, `subjects`, `resamples`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from regard.errors import DataError
from regard.evaluation.counts import Counts, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.intervals import CONFIDENCE, percentile_interval
from regard.evaluation.registry import Metric
from regard.evaluation.scores import Score

_NUM_RESAMPLES, _SEED = 200, 0


def censoring_survival(
    gaps: Float[np.ndarray, " landmarks"], is_censored: Bool[np.ndarray, " landmarks"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The Kaplan-Meier estimate of being observed: times, and the probability right after each.

    Example:
        >>> times, probabilities = censoring_survival(np.array([1.0, 2.0, 3.0]), np.array([False, True, False]))
        >>> times.tolist(), probabilities.tolist()
        ([2.0], [0.5])
    """
    times = np.unique(gaps[is_censored])
    ordered = np.sort(gaps)
    # Who had an event at the same time was observed until then: events precede censoring.
    at_risk = len(gaps) - np.searchsorted(ordered, times, side="left")
    at_risk -= np.searchsorted(np.sort(gaps[~is_censored]), times, side="right") - np.searchsorted(
        np.sort(gaps[~is_censored]), times, side="left"
    )
    ends = np.searchsorted(np.sort(gaps[is_censored]), times, side="right") - np.searchsorted(
        np.sort(gaps[is_censored]), times, side="left"
    )
    return times, np.cumprod(1 - ends / np.maximum(at_risk, 1)).astype(np.float64)


def censoring_weights(
    gaps: Float[np.ndarray, " landmarks"], is_censored: Bool[np.ndarray, " landmarks"], horizon: float
) -> Float[np.ndarray, " landmarks"]:
    """The weight of each landmark at a horizon; landmarks that nobody was observed for have none.

    Example:
        >>> censoring_weights(np.array([1.0, 2.0, 3.0]), np.array([False, True, False]), 2.5).tolist()
        [1.0, 0.0, 2.0]
    """
    times, probabilities = censoring_survival(gaps, is_censored)
    steps = np.concatenate([[1.0], probabilities])
    before = steps[np.searchsorted(times, gaps, side="left")]
    at_horizon = float(steps[np.searchsorted(times, horizon, side="right")])
    has_event = ~is_censored & (gaps <= horizon)
    chance = np.where(has_event, before, at_horizon)
    counted = (has_event | (gaps > horizon)) & (chance > 0)
    return np.where(counted, 1 / np.where(chance > 0, chance, 1.0), 0.0)


def weighted_auroc(
    risks: Float[np.ndarray, " landmarks"],
    is_case: Bool[np.ndarray, " landmarks"],
    weights: Float[np.ndarray, "*resamples landmarks"],
) -> Float[np.ndarray, "*resamples"]:
    """The weighted share of pairs of a case and another whose risks are in the right order; ties count half.

    NaN where there are no cases, or nothing else.

    Example:
        >>> float(weighted_auroc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]), np.ones(4)))
        0.75
    """
    order = np.argsort(risks, kind="stable")
    starts = np.flatnonzero(np.diff(risks[order], prepend=-np.inf) > 0)
    ordered, cases = weights[..., order], is_case[order]
    case_sums = np.add.reduceat(np.where(cases, ordered, 0.0), starts, axis=-1)
    other_sums = np.add.reduceat(np.where(cases, 0.0, ordered), starts, axis=-1)
    below = np.cumsum(other_sums, axis=-1) - other_sums / 2
    total = case_sums.sum(axis=-1) * other_sums.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, (case_sums * below).sum(axis=-1) / total, np.nan)


def _count_likelihood(examples: Examples) -> Counts:
    losses, counts = examples.require("losses", "num_tokens")
    return Counts(statistics=np.array([-np.asarray(losses, np.float64), counts], np.float64).T, compute=ratio)


def _count_correct(examples: Examples) -> Counts:
    correct, counts = examples.require("num_correct", "num_tokens")
    return Counts(statistics=np.array([correct, counts], np.float64).T, compute=ratio)


def _count_brier(examples: Examples) -> Counts:
    (sums,) = examples.require("brier_sums")
    return Counts(statistics=np.asarray(sums, np.float64), compute=ratio)


class _Risks:
    """Landmarks of all subjects as arrays, and the AUROC of each event at each horizon."""

    def __init__(self, examples: Examples) -> None:
        (risks,) = examples.require("risks")
        self.subjects: Int[np.ndarray, " landmarks"] = np.repeat(np.arange(len(risks)), [len(each) for each in risks])
        landmarks = [landmark for each in risks for landmark in each]
        if not landmarks:
            raise DataError("there is no event at which risks could be judged")
        self.table = np.asarray(landmarks, np.float64)
        if self.table.ndim != 3 or self.table.shape[2] < 3:
            raise DataError(
                "a landmark must have for each horizon its weight, the event within it and the risk of each event, "
                f"got the shape {self.table.shape}"
            )
        draws = np.random.default_rng(_SEED).integers(len(risks), size=(_NUM_RESAMPLES, len(risks)))
        counts = np.stack([np.bincount(draw, minlength=len(risks)) for draw in draws])
        self.multiplicity = np.concatenate([np.ones((1, len(risks))), counts])
        self.num_subjects = len(risks)

    def by_horizon(self) -> Float[np.ndarray, "horizons resamples"]:
        """The mean over events; the first is that of all subjects, the others are of resamples."""
        return np.stack([self._at(horizon) for horizon in range(self.table.shape[1])])

    def _at(self, horizon: int) -> Float[np.ndarray, " resamples"]:
        weights, events, *risks = self.table[:, horizon].T
        used = weights > 0
        resampled = self.multiplicity[:, self.subjects[used]] * weights[used]
        found = [
            weighted_auroc(each[used], events[used] == event, resampled)
            for event, each in enumerate(risks, start=1)
            if len({*(events[used] == event)}) == 2
        ]
        return np.nanmean(found, axis=0) if found else np.full(len(resampled), np.nan)

    def score(self, values: Float[np.ndarray, " resamples"], name: str) -> Score:
        settings: dict[str, str | int | float] = {"n": self.num_subjects, "weights": "ipcw"}
        drawn, interval = values[1:][np.isfinite(values[1:])], None
        if self.num_subjects > 1 and len(drawn) and np.isfinite(values[0]):
            interval = percentile_interval(drawn, CONFIDENCE)
            settings |= {"interval": "bootstrap", "confidence": CONFIDENCE, "resamples": _NUM_RESAMPLES, "seed": _SEED}
        else:
            settings |= {"interval": "none"}
        value = float(values[0]) if np.isfinite(values[0]) else 0.5  # no pair to judge: no better than chance
        return Score(name=name, value=value, interval=interval, settings=settings)


def score_auroc(examples: Examples) -> Score:
    """The AUROC of risks, its mean over events and horizons."""
    risks = _Risks(examples)
    found = risks.by_horizon()
    kept = found[np.isfinite(found[:, 0])]
    return risks.score(np.nanmean(kept, axis=0) if len(kept) else found[0], "risk_auroc")


def score_auroc_by_horizon(examples: Examples) -> Mapping[str, Score]:
    """The AUROC at each horizon, its mean over events."""
    risks = _Risks(examples)
    found = risks.by_horizon()
    names: Sequence[str] = str(examples.settings.get("horizons", "")).split(",")
    names = names if len(names) == len(found) else [str(number) for number in range(1, len(found) + 1)]
    return {
        f"within_{name}": risks.score(values, f"risk_auroc_within_{name}")
        for name, values in zip(names, found, strict=True)
    }


EVENT_LOG_LIKELIHOOD = Metric(
    name="event_log_likelihood",
    label="Log-likelihood per event",
    counter=_count_likelihood,
    needs=("losses", "num_tokens"),
    digits=4,
)
"""In nats, of the time and the kind of each event and of the time without one at the end, divided by the events."""
NEXT_EVENT_ACCURACY = Metric(
    name="next_event_accuracy",
    label="Next-event accuracy",
    counter=_count_correct,
    needs=("num_correct", "num_tokens"),
)
"""The share of events to which the model gave the highest probability, before their time was known."""
INTEGRATED_BRIER_SCORE = Metric(
    name="integrated_brier_score",
    label="Integrated Brier score",
    counter=_count_brier,
    needs=("brier_sums",),
    higher_is_better=False,
    digits=4,
)
"""The squared error of the probability that the next event has come by a time, its mean over times to the longest
horizon; landmarks are weighted by the inverse probability of censoring."""
RISK_AUROC = Metric(
    name="risk_auroc",
    label="AUROC of risks",
    scorer=score_auroc,
    part_scorer=score_auroc_by_horizon,
    needs=("risks",),
)
