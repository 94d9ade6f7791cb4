r"""Health records of a known process, so that the best possible log-likelihood is known.

The intensity of event $k$ after the events $e_i$ at times $t_i$ is that of a Hawkes process (Hawkes, "Spectra of some
self-exciting and mutually exciting point processes", 1971) whose relapses depend on the state of the patient:

$$ \lambda_k(t) = g_k \Big( \mu_k + \sum_{t_i < t} \alpha_{e_i, k} \beta_k e^{-\beta_k (t - t_i)} \Big), \quad
   g_\text{relapse} = 0.3^{\text{treated}} e^{0.7 m} $$

A patient is treated from a medication to the next relapse; $m$ is the marker of the last visit. $g$ of all other events
is 1. States change at events only, so the compensator, and with it the likelihood, is exact.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from regard.data.builtin import BuiltinData

EVENTS = ("visit", "medication", "relapse", "admission")
END = "end"
"""The event that ends the follow-up of a patient, who is not observed after it."""
_VISIT, _MEDICATION, _RELAPSE, _ADMISSION = range(4)
_BASE = (1 / 40, 1 / 130, 1 / 80, 1 / 400)
"""Events per day."""
_DECAY = (1 / 4, 1 / 3, 1 / 15, 1 / 2)
_EXCITATION = (
    (0.0, 0.30, 0.0, 0.0),
    (0.25, 0.0, 0.0, 0.0),
    (0.60, 0.55, 0.20, 0.25),
    (0.70, 0.20, 0.0, 0.10),
)
"""Expected numbers of events that an event (row) causes directly."""
_TREATED, _MARKER_EFFECT = 0.3, 0.7
_FOLLOW_UP = (150.0, 700.0)
_MARKER_MEMORY, _MARKER_NOISE = 0.8, 0.6
_AT_ONCE = 512
"""Patients that are simulated together."""

PatientHistory = tuple[Sequence[float], Sequence[str], Sequence[float | None], float]
"""Times in days since the start, events, markers (None where there is no visit), and the end of the follow-up."""


def generate_patients(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of a patient, a day, an event and, for visits, a marker; the last row of a patient is the end.

    Example:
        >>> next(generate_patients(1, 0))
        ('p000000', '11.5281', 'visit', '1.11')
    """
    return islice(_rows(seed), num_rows)


def _rows(seed: int) -> Iterator[tuple[str, ...]]:
    number = 0
    while True:
        for times, events, markers, end in _simulate(_AT_ONCE, [seed, number]):
            subject = f"p{number:06d}"
            number += 1
            for time, event, marker in zip(times, events, markers, strict=True):
                yield subject, f"{time:.4f}", event, "" if marker is None else f"{marker:.2f}"
            yield subject, f"{end:.4f}", END, ""


def _simulate(count: int, seed: Sequence[int]) -> list[PatientHistory]:
    """Ogata's thinning (1981) for all patients at once: between events every intensity decreases."""
    import numpy as np

    rng = np.random.default_rng(seed)
    base, decay, excitation = np.array(_BASE), np.array(_DECAY), np.array(_EXCITATION) * np.array(_DECAY)
    ends = rng.uniform(*_FOLLOW_UP, count).round(4)
    now, excited, treated = np.zeros(count), np.zeros((count, 4)), np.zeros(count, bool)
    marker = rng.normal(0, 1, count)  # not known before the first visit, when it has no effect
    effect = np.zeros(count)
    found: list[tuple[list[float], list[str], list[float | None]]] = [([], [], []) for _ in range(count)]
    active = np.arange(count)

    def intensities(rows: np.ndarray) -> np.ndarray:
        found = base + excited[rows]
        found[:, _RELAPSE] *= np.where(treated[rows], _TREATED, 1.0) * np.exp(_MARKER_EFFECT * effect[rows])
        return found

    while len(active):
        bound = intensities(active).sum(axis=1)
        wait = rng.exponential(1 / bound)
        now[active] += wait
        excited[active] *= np.exp(-decay * wait[:, None])
        drawn = rng.random(len(active)) * bound
        active_now = now[active] < ends[active]
        cumulative = intensities(active).cumsum(axis=1)
        kinds = (drawn[:, None] >= cumulative).sum(axis=1)
        for place in np.flatnonzero(active_now & (kinds < len(EVENTS))):
            row, kind = int(active[place]), int(kinds[place])
            excited[row] += excitation[kind]
            measured = None
            if kind == _VISIT:
                marker[row] = _MARKER_MEMORY * marker[row] + _MARKER_NOISE * rng.normal()
                effect[row] = measured = round(float(marker[row]), 2)
            treated[row] = kind == _MEDICATION or (treated[row] and kind != _RELAPSE)
            for some, value in zip(found[row], (round(float(now[row]), 4), EVENTS[kind], measured), strict=True):
                some.append(value)  # pyright: ignore[reportArgumentType]  a list for each type
        active = active[active_now]
    return [(*parts, float(end)) for parts, end in zip(found, ends, strict=True)]


def patients_log_likelihood(histories: Iterable[PatientHistory]) -> tuple[list[float], list[int]]:
    r"""The exact log-likelihood of each history under the true process, in nats, and its number of events.

    $$ \log L = \sum_i \log \lambda_{e_i}(t_i) - \int_0^T \sum_k \lambda_k(t) \, dt $$
    """
    found, counts = [], []
    for times, events, markers, end in histories:
        total, now, is_treated, effect = 0.0, 0.0, False, 0.0
        excited = [0.0] * len(EVENTS)
        for time, event, marker in [*zip(times, events, markers, strict=True), (end, END, None)]:
            factors = [1.0] * len(EVENTS)
            factors[_RELAPSE] = (_TREATED if is_treated else 1.0) * math.exp(_MARKER_EFFECT * effect)
            for kind, rate in enumerate(_DECAY):
                left = math.exp(-rate * (time - now))
                total -= factors[kind] * (_BASE[kind] * (time - now) + excited[kind] * (1 - left) / rate)
                excited[kind] *= left
            if event != END:
                kind = EVENTS.index(event)
                total += math.log(factors[kind] * (_BASE[kind] + excited[kind]))
                excited = [a + b * rate for a, b, rate in zip(excited, _EXCITATION[kind], _DECAY, strict=True)]
                effect = effect if marker is None else marker
                is_treated = kind == _MEDICATION or (is_treated and kind != _RELAPSE)
            now = time
        found.append(total)
        counts.append(len(events))
    return found, counts


PATIENTS_DATA = BuiltinData(
    name="patients",
    description="visits, medications, relapses and admissions of patients, from a process of known likelihood",
    columns=("subject", "time", "event", "marker"),
    num_rows=150_000,
    tokenizer="",
    generate=generate_patients,
    log_likelihood=patients_log_likelihood,
)
