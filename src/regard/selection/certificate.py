"""The certificate of a run: its score, the number of evaluated candidates, bounds, and whether the test is sealed.

All of it is computed from ledgers, the run's own and those of its siblings, so it can be recomputed from the folder.
The bounds are about rows drawn from the same distribution as those of the set; about other rows they state nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.formats.messages import format_count
from regard.errors import RunError
from regard.evaluation.registry import METRICS, find_metric, score_label
from regard.selection.bounds import DELTA, Bound, ScoreSummary, applicable_bounds, tightest_bound
from regard.selection.ledger import (
    EVALUATION,
    FILE,
    RUN_REPORT,
    SEALED,
    SELECTION,
    LedgerLine,
    candidate_keys,
    candidates_in,
    evaluations,
    file_hashes,
    openings_in,
    replaced_openings,
)
from regard.selection.releases import Release, bound_released, read_release
from regard.selection.siblings import Siblings

CONDITION = (
    "An interval above that covers several candidates holds if it was decided what to try before any of their scores "
    "was seen. Where earlier scores influenced what came next, by hand or by a sampler that learns from them, it is a "
    "guide and not a guarantee; a test set that is opened once, at the end, is free of this."
)
_MOST_NAMED = 3
_MOST_DIGITS = 12
"""Siblings that are named; more are counted. Also the number of files that are described."""
_PROPORTION = "clopper-pearson"
"""The interval in the signature of a proportion of examples."""


@dataclass(frozen=True, kw_only=True)
class CertifiedScore:
    """A score on one set, and the bounds on its true value."""

    set: str
    """`valid`, `test` or, for rows of another file, `file`."""
    metric: str
    value: float
    interval: tuple[float, float] | None
    """As if this had been the only candidate and the only evaluation."""
    num_examples: int
    num_candidates: int
    bounds: Sequence[Bound]
    """All that apply, each by itself; none where the score is not a mean of values in [0, 1]."""
    best: Bound | None
    """The tightest that may be reported."""
    name: str = ""
    """The name of the file, for rows of another file."""
    release: Release | None = None
    """The answer of the mechanism that released the score; None where it was shown as measured."""
    num_training_rows: int = 0
    """Rows of another file that are training rows: no bound holds for a score on them."""

    @property
    def rows_label(self) -> str:
        return {"valid": "validation rows", "test": "test rows"}.get(self.set, f"rows of {self.name}")

    @property
    def bias(self) -> str:
        """The direction in which the score of the best of several candidates is biased."""
        is_loss = self.metric in METRICS.names() and not find_metric(self.metric).higher_is_better
        return "downwards" if is_loss else "upwards"

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name not in ("bounds", "best", "release")},
            "release": None if self.release is None else self.release.to_json(),
            "bounds": [bound.to_json() for bound in self.bounds],
            "best": None if self.best is None else self.best.to_json(),
        }

    def describe(self, delta: float) -> str:
        """The score and its bound in a few sentences."""
        if self.release is not None and self.best is not None:
            return self._describe_release(self.release, self.best)
        metric = METRICS.find(self.metric) if self.metric in METRICS.names() else None
        shown = "{:.3f}".format if metric is None else metric.format
        rows = f"1 {self.rows_label.replace('rows', 'row', 1)}"
        rows = rows if self.num_examples == 1 else f"{self.num_examples:,} {self.rows_label}"
        measured = f"Measured on {rows}: {score_label(self.metric)} {shown(self.value)}."
        if self.num_training_rows:
            are = "is a training row" if self.num_training_rows == 1 else "are training rows"
            return f"{measured} {self.num_training_rows:,} of them {are}, so no bound holds for it."
        if self.best is None:
            estimate = ""
            if self.interval is not None and self.interval[0] == self.interval[1]:
                estimate = " It has no bootstrap interval: every resample of the rows has the same score."
            elif self.interval is not None and not any(map(math.isnan, self.interval)):
                estimate = (
                    f" Its bootstrap interval is [{shown(self.interval[0])}, {shown(self.interval[1])}], an estimate "
                    "that does not account for the number of evaluations."
                )
            return f"{measured} It is not a mean over rows of values in [0, 1], so no bound holds for it.{estimate}"
        low, high = self.best.interval
        many = self.num_candidates
        whichever = f", whichever of the {many:,} evaluated candidates was kept" if many > 1 else ""
        return (
            f"{measured} On more rows from the same source it lies between {low:.3f} and {high:.3f}{whichever}, with "
            f"probability at least {100 * (1 - delta):g} % (bound: {self.best.name})."
        )

    def _describe_release(self, release: Release, bound: Bound) -> str:
        released = (
            f"Released on {self.num_examples:,} {self.rows_label} by {release.mechanism} {release.parameter:g}: "
            f"{score_label(self.metric)} {self.value:.3f}, at evaluation {release.query:,} of {self.num_candidates:,}, "
            f"after {release.changes:,} that changed what is shown."
        )
        low, high = bound.interval
        lies = f"lies between {low:.3f} and {high:.3f}"
        if release.rank is None:
            released += " It is the score of an earlier candidate: this one was not better by a step."
            lies = f"is at most {high:.3f}"
        elif not release.is_change:
            released += (
                f" It is the score on training rows: that on validation rows differs by at most {release.below:.3f}."
            )
        return (
            f"{released} On more rows from the same source the score of this model {lies}, whatever released scores "
            f"have influenced, with probability at least {100 * (1 - bound.delta):g} % ({bound.name}, with "
            f"10^{math.log10(bound.num_candidates or 1):.1f} in place of M)."
        )


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is known about a run's score, as numbers; `sentences` states it in words."""

    name: str
    validation: CertifiedScore | None
    test: CertifiedScore | None
    files: Sequence[CertifiedScore]
    """On rows of other files, the most recent last."""
    num_test: int
    """The number of sealed test rows; 0 where there are none."""
    openings: Sequence[LedgerLine]
    """When the test set was opened, and why."""
    num_evaluations: int
    """Ledger lines with scores on validation rows."""
    num_models: int
    """Models that a comparison or a sweep selected this one from; 1 where none is recorded."""
    siblings: Siblings
    """Other runs that were evaluated on the same rows."""
    replaced_openings: int
    """How often a run that this one has overwritten opened the same test rows."""
    may_be_adaptive: bool
    """Whether earlier scores on a set may have influenced which candidates were tried next."""
    head: str
    """The last hash of the ledger."""
    delta: float = DELTA

    @property
    def is_sealed(self) -> bool:
        """Whether no run here, neither this one, nor a sibling, nor an overwritten one, has read these test rows."""
        return bool(self.num_test) and not (self.openings or self.siblings.opened_by or self.replaced_openings)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "validation": None if self.validation is None else self.validation.to_json(),
            "test": None if self.test is None else self.test.to_json(),
            "files": [score.to_json() for score in self.files],
            "num_test": self.num_test,
            "is_sealed": self.is_sealed,
            "openings": [{key: line.get(key) for key in ("time", "reason", "candidate")} for line in self.openings],
            "num_evaluations": self.num_evaluations,
            "num_models": self.num_models,
            "siblings": {**vars(self.siblings), "releases": [each.to_json() for each in self.siblings.releases]},
            "replaced_openings": self.replaced_openings,
            "may_be_adaptive": self.may_be_adaptive,
            "delta": self.delta,
            "ledger": self.head,
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The certificate in words."""
        return [
            *self._about_test(),
            *self._about_validation(),
            *self._about_files(),
            *self._condition(),
            *self._about_unreadable(),
        ]

    @property
    def shown(self) -> list[CertifiedScore]:
        """The scores that are drawn and described: those on other files only as far as they are recent."""
        found = (self.test, self.validation, *self.files[-_MOST_NAMED:])
        return [score for score in found if score is not None]

    def _about_test(self) -> list[str]:
        times = len(self.openings)
        if not self.num_test:
            return ["No test rows were set aside, so every score here is on rows that were available before."]
        if self.is_sealed:
            known = (
                "no readable ledger here records an opening" if self.siblings.unreadable else "it has not been used yet"
            )
            return [
                f"The test set of {format_count(self.num_test, 'row')} is still sealed: {known}. "
                "Opening it once, at the end, gives a score that no selection has biased."
            ]
        found = [f"This run has not opened its test set of {format_count(self.num_test, 'row')}."]
        if times:
            first = str(self.openings[0]["time"])[:10]
            found = [
                f"The test set of {format_count(self.num_test, 'row')} was opened {_times(times)}, first on {first}."
            ]
        if times > 1:
            found.append(
                f"Because it was opened {_times(times)}, its score is no longer that of unseen rows: a model that was "
                "changed in between was selected by them."
            )
        return [*found, *self._about_openings(), *([] if self.test is None else [self.test.describe(self.delta)])]

    def _about_openings(self) -> list[str]:
        """That other runs have read the same test rows."""
        found = []
        if self.replaced_openings:
            found.append(f"A run that this one has overwritten opened the same rows {_times(self.replaced_openings)}.")
        if names := self.siblings.opened_by:
            found.append(f"Sibling runs have opened the same rows: {_listed(names)}.")
        if found:
            found[-1] += " Keeping the best of these runs is a selection by these rows."
        return found

    def _about_validation(self) -> list[str]:
        if self.validation is None:
            return ["There is no score on validation rows."]
        found = [self.validation.describe(self.delta)]
        if self.validation.release is not None:
            return [*found, *self._about_unreleased()]
        if self.validation.num_candidates > 1:
            models = f" of {self.num_models:,} models" if self.num_models > 1 else ""
            others = self.siblings.others
            accounted = "and the interval above is wider to account for it"
            if self.validation.best is None:
                accounted = "and nothing above accounts for it: a score on test rows does"
            runs = "run" if len(others) == 1 else "runs"
            included = f", those of the sibling {runs} {_listed(others)} included," if others else ""
            found.append(
                f"{self.validation.num_candidates:,} candidates{models}{included} were evaluated on the validation "
                f"rows, and the best was kept: its score is biased {self.validation.bias}, {accounted}."
            )
        return found

    def _about_unreleased(self) -> list[str]:
        if not (names := self.siblings.unreleased):
            return []
        return [
            f"Scores on the same rows were also shown as measured, by {_listed(names)}: if they influenced what was "
            "tried here, the interval above is a guide and not a guarantee."
        ]

    def _about_files(self) -> list[str]:
        found = [score.describe(self.delta) for score in self.files[-_MOST_NAMED:]]
        left = len(self.files) - _MOST_NAMED
        return [*found, f"It was evaluated on {left:,} more files."] if left > 0 else found

    def _condition(self) -> list[str]:
        has_bound = any(score.best is not None for score in self.shown)
        return [CONDITION] if self.may_be_adaptive and has_bound else []

    def _about_unreadable(self) -> list[str]:
        if not self.siblings.unreadable:
            return []
        return [f"Evaluations of {_listed(self.siblings.unreadable)} are not counted: the ledger cannot be read."]


def certify(
    name: str,
    lines: Sequence[LedgerLine],
    metric: str | None = None,
    *,
    siblings: Siblings | None = None,
    delta: float = DELTA,
) -> Certificate:
    """The certificate of a run's headline score, or of another, from its ledger and those of its siblings."""
    siblings = Siblings() if siblings is None else siblings
    on_valid = [line for line in evaluations(lines, "valid") if line["event"] in (RUN_REPORT, EVALUATION)]
    on_test = evaluations(lines, "test")
    on_files = [_last(lines, file) for file in file_hashes(evaluations(lines, FILE))]
    selections = [line for line in lines if line["event"] == SELECTION]
    if metric is None:
        recent = (*reversed(on_test), *reversed(on_valid), *reversed(on_files))
        line = next((line for line in recent if "headline" in line), None)
        metric = None if line is None else _certifiable(line["headline"], line["scores"])
    reports = [line for line in on_valid if line["event"] == RUN_REPORT]
    report = next(reversed(reports or on_valid), None)
    released = None if report is None else report.get("release")
    num_selected_from = max((line["candidates"] for line in selections), default=0)
    num_valid = max(1, num_selected_from, len(candidate_keys(lines)), siblings.num_candidates)
    num_test = max(_num_test_candidates(lines), siblings.num_test_evaluations)
    num_by_file = {
        line["hash"]: max(1, len(candidate_keys(lines, line["hash"])), siblings.num_by_file.get(line["hash"], 0))
        for line in on_files
    }
    files = [
        _certified(line, metric, num_by_file[line["hash"]], delta) for line in on_files if metric in line["scores"]
    ]
    return Certificate(
        name=name,
        validation=_certified(report, metric, num_valid, delta, others=siblings.releases),
        test=_certified(on_test[-1] if on_test else None, metric, num_test, delta),
        files=[score for score in files if score is not None],
        num_test=next((line["rows"] for line in lines if line["event"] == SEALED), 0),
        openings=openings_in(lines),
        num_evaluations=len(evaluations(lines, "valid")),
        num_models=max((line["models"] for line in selections), default=1),
        siblings=siblings,
        replaced_openings=replaced_openings(lines)[0],
        # The checkpoints of one training do not depend on their validation scores.
        may_be_adaptive=(released is None and num_valid > max(1, len(candidates_in(lines))))
        or max(num_test, *num_by_file.values(), 1) > 1,
        head=lines[-1]["chain"] if lines else "",
        delta=delta,
    )


def _certifiable(headline: str, scores: Mapping[str, Any]) -> str:
    """The headline score, or the one that bounds apply to in its place, where it was measured."""
    other = find_metric(headline).certified_by if headline in METRICS.names() else None
    return headline if other is None or other not in scores else other


def _num_test_candidates(lines: Sequence[LedgerLine]) -> int:
    """The number of candidates evaluated on the test rows: each opening may have been followed by a selection."""
    by_test = [line["models"] for line in lines if line["event"] == SELECTION and line["by"] == "test"]
    return max(1, len(evaluations(lines, "test")) + replaced_openings(lines)[1]) * max(by_test, default=1)


def _last(lines: Sequence[LedgerLine], file: str) -> LedgerLine:
    return next(line for line in reversed(evaluations(lines, FILE)) if line["hash"] == file)


def _certified(
    line: LedgerLine | None, metric: str | None, num_candidates: int, delta: float, *, others: Sequence[Release] = ()
) -> CertifiedScore | None:
    if line is None or metric is None:
        return None
    score = line["scores"].get(metric)
    if score is None:
        known = ", ".join(name for name in line["scores"] if name != "rows")
        raise RunError(f"the ledger has no score called {metric!r}, it has {known}")
    if line.get("release") is not None:
        return _certified_release(line, metric, delta, others)
    if not isinstance(score, Mapping) or not isinstance(score.get("value"), int | float) or "rows" not in line:
        raise RunError(f"the ledger has no value of {metric!r} on a number of rows, so there is nothing to certify")
    if not isinstance(num_training := line.get("training_rows", 0), int):
        raise RunError(f"the ledger has {num_training!r} as a number of training rows")
    summary = None if num_training else _summary(metric, score, int(line["rows"]))
    interval = score.get("interval")
    options: dict[str, Any] = {"num_candidates": num_candidates, "delta": delta}
    return CertifiedScore(
        set=line["set"],
        metric=metric,
        value=score["value"],
        interval=None if interval is None else (interval[0], interval[1]),
        num_examples=int(line["rows"]) if summary is None else summary.num_examples,
        num_candidates=num_candidates,
        bounds=[] if summary is None else applicable_bounds(summary, **options),
        best=None if summary is None else tightest_bound(summary, **options),
        name=line.get("name", ""),
        num_training_rows=num_training,
    )


def _certified_release(line: LedgerLine, metric: str, delta: float, others: Sequence[Release]) -> CertifiedScore:
    """A released score: the number of candidates is that of all evaluations that the same record has answered."""
    release, num_examples = read_release(line["release"]), int(line["release"]["examples"])
    own = [each for each in others if each.record == release.record]
    bound = bound_released(
        release,
        num_examples,
        is_proportion=line["release"]["kind"] == "proportion",
        others=[each for each in others if each.record != release.record],
        delta=delta,
    )
    return CertifiedScore(
        set=line["set"],
        metric=metric,
        value=release.value,
        interval=None,
        num_examples=num_examples,
        num_candidates=max([release.query, *(each.query for each in own)]),
        bounds=[bound],
        best=bound,
        release=release,
    )


def _summary(metric: str, score: Mapping[str, Any], num_rows: int) -> ScoreSummary | None:
    """What bounds are computed from; None where none holds."""
    signature = dict(part.split(":", 1) for part in score.get("signature", "").split("|") if ":" in part)
    # A score of some of the rows, such as the questions without an answer, has fewer examples than there are rows.
    count = signature.get("n", "")
    num_examples = int(count) if count.isascii() and count.isdecimal() and len(count) < _MOST_DIGITS else num_rows
    if num_examples < 1 or not math.isfinite(score["value"]):
        return None
    if signature.get("interval") == _PROPORTION:
        return ScoreSummary.from_successes(round(score["value"] * num_examples), num_examples)
    is_bounded_mean = metric in METRICS.names() and find_metric(metric).is_bounded_mean
    return ScoreSummary.from_mean(score["value"], num_examples) if is_bounded_mean else None


def _listed(names: Sequence[str]) -> str:
    """The first few names, and the number of others."""
    shown, rest = list(names[:_MOST_NAMED]), len(names) - _MOST_NAMED
    if rest > 0:
        return f"{', '.join(shown)} and {rest:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
