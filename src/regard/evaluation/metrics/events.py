r"""Metrics of event processes: log-likelihood, the next event, and risks within horizons.

An example is a subject, so intervals are over subjects. Risks are judged at landmarks, right after an event: did the
next event come within the horizon, and which was it? Landmarks whose subject was not observed for so long are weighted
by the inverse probability of censoring (Graf et al., "Assessment and comparison of prognostic classification schemes
for survival data", 1999): one whose event came at $t \leq h$ by $1 / G(t)$, one without an event until $h$ by
$1 / G(h)$, and one that was censored before by 0, where $G$ is the Kaplan-Meier estimate of the probability of being
observed. On data without censoring all weights are 1.

The AUROC at a horizon is the probability that a landmark with an event within it has a higher predicted risk of that
event than one without (Uno et al., "Evaluating Prediction Rules for t-Year Survivors", 2007).

Simulated risks are those of an event within a horizon whatever comes before it. They are judged at one time of each
subject, and each event has weights of its own, since it may come before or after the end of the observation.

Dimensions: `landmarks`, `subjects`, `resamples`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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


def simulated_outcomes(
    risks: Float[np.ndarray, "subjects horizons events"],
    waits: Float[np.ndarray, "subjects events"],
    observed: Float[np.ndarray, " subjects"],
    horizons: Sequence[float],
) -> Float[np.ndarray, "subjects horizons events 3"]:
    """The field `simulated_risks` of examples: the weight, whether the event came within the horizon, and its risk.

    Args:
        risks: The predicted risks.
        waits: The time until each event first came; infinite where it did not while the subject was observed.
        observed: The time until the end of the observation.
        horizons: The horizons.
    """
    found = np.empty((*risks.shape, 3))
    for event, wait in enumerate(waits.T):
        is_censored = ~np.isfinite(wait)
        gaps = np.where(is_censored, observed, wait)
        for place, horizon in enumerate(horizons):
            weights = censoring_weights(gaps, is_censored, horizon)
            found[:, place, event] = np.column_stack([weights, wait <= horizon, risks[:, place, event]])
    return found


def _count_simulated_brier(examples: Examples) -> Counts:
    table = np.asarray(examples.require("simulated_risks")[0], np.float64)
    weights, outcomes, risks = np.moveaxis(table, -1, 0)
    errors = (weights * (outcomes - risks) ** 2).mean(axis=(1, 2))
    return Counts(statistics=np.column_stack([errors, np.ones(len(errors))]), compute=ratio)


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
        self.multiplicity = _multiplicity(len(risks))
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
        return _known_mean(found) if found else np.full(len(resampled), np.nan)

    def score(self, values: Float[np.ndarray, " resamples"], name: str) -> Score:
        return _auroc_score(values, name, self.num_subjects)


def _known_mean(values: Any) -> Float[np.ndarray, " resamples"]:
    """The mean of those that are known; a resample may have no case of any event, and has NaN then."""
    known = np.isfinite(values)
    return np.where(known.any(axis=0), np.nansum(values, axis=0) / np.maximum(known.sum(axis=0), 1), np.nan)


def _multiplicity(num_subjects: int) -> Float[np.ndarray, "resamples subjects"]:
    """How often each subject is part of all subjects, which come first, and of resamples."""
    draws = np.random.default_rng(_SEED).integers(num_subjects, size=(_NUM_RESAMPLES, num_subjects))
    counts = np.stack([np.bincount(draw, minlength=num_subjects) for draw in draws])
    return np.concatenate([np.ones((1, num_subjects)), counts])


def _auroc_score(values: Float[np.ndarray, " resamples"], name: str, num_subjects: int) -> Score:
    """The first value, with an interval by the others."""
    settings: dict[str, str | int | float] = {"n": num_subjects, "weights": "ipcw"}
    drawn, interval = values[1:][np.isfinite(values[1:])], None
    if num_subjects > 1 and len(drawn) and np.isfinite(values[0]):
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
    return risks.score(_known_mean(kept) if len(kept) else found[0], "risk_auroc")


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


def score_simulated_auroc(examples: Examples) -> Score:
    """The AUROC of simulated risks, its mean over the events and horizons that some subjects have and others do not."""
    table = np.asarray(examples.require("simulated_risks")[0], np.float64)
    multiplicity, found = _multiplicity(len(table)), []
    for weights, outcomes, risks in np.moveaxis(table, -1, 1).reshape(len(table), 3, -1).transpose(2, 1, 0):
        used = weights > 0
        if len({*outcomes[used]}) == 2:
            found.append(weighted_auroc(risks[used], outcomes[used] > 0, multiplicity[:, used] * weights[used]))
    values = _known_mean(found) if found else np.full(len(multiplicity), np.nan)
    return _auroc_score(values, "simulated_risk_auroc", len(table))


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
SIMULATED_BRIER_SCORE = Metric(
    name="simulated_brier_score",
    label="Brier score of simulated risks",
    counter=_count_simulated_brier,
    needs=("simulated_risks",),
    higher_is_better=False,
    digits=4,
)
"""The squared error of the simulated risk of an event within a horizon, its mean over events and horizons."""
SIMULATED_RISK_AUROC = Metric(
    name="simulated_risk_auroc",
    label="AUROC of simulated risks",
    scorer=score_simulated_auroc,
    needs=("simulated_risks",),
)
SIMULATION_METRICS = (SIMULATED_BRIER_SCORE.name, SIMULATED_RISK_AUROC.name)
