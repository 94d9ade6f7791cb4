"""The certificate of a run: its score, how often somebody looked, what can be promised, and whether the test is sealed.

All of it is read off the ledger, so whoever has the run folder can make it again. What is promised is promised of rows
that are drawn as those of the set were; of other rows nothing can be.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import RunError
from regard.selection.bounds import DELTA, Bound, Scores, applicable, tightest
from regard.selection.ledger import OPENED, SEALED, SELECTION, Line, hypotheses, openings

REPORT = "report"
"""What the line says that tells of the score of a run when it ended."""
_MEANS = ("answer_f1", "mean_reciprocal_rank")
"""Scores that are means over examples, each in [0, 1], and no proportions."""
_EXACT = "interval:clopper-pearson"
"""What the signature of a proportion of examples says."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A score on one set, and what can be said of it."""

    set: str
    metric: str
    value: float
    interval: tuple[float, float] | None
    """As if this had been the only model and the only look."""
    num_examples: int
    num_hypotheses: int
    bounds: Sequence[Bound]
    """All that apply, each by itself; none where the score is no mean of numbers between 0 and 1."""
    best: Bound | None
    """The tightest that may be reported."""

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name not in ("bounds", "best")},
            "bounds": [bound.to_dict() for bound in self.bounds],
            "best": None if self.best is None else self.best.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is known of a run's score, in numbers; `sentences` has the words."""

    name: str
    validation: Judged | None
    test: Judged | None
    num_test: int
    """Test rows that were sealed; 0 where there are none."""
    openings: Sequence[Line]
    """When the test set was opened, and why."""
    num_looks: int
    """Lines that tell of scores on validation rows."""
    chosen_among: int
    """Models that this one was chosen from by hand, by a comparison or by a sweep; 1 where nobody wrote down others."""
    head: str
    """The last link of the ledger's chain."""
    delta: float = DELTA

    @property
    def is_sealed(self) -> bool:
        return bool(self.num_test) and not self.openings

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "validation": None if self.validation is None else self.validation.to_json(),
            "test": None if self.test is None else self.test.to_json(),
            "num_test": self.num_test,
            "is_sealed": self.is_sealed,
            "openings": [{key: line.get(key) for key in ("time", "why", "hypothesis")} for line in self.openings],
            "num_looks": self.num_looks,
            "chosen_among": self.chosen_among,
            "delta": self.delta,
            "ledger": self.head,
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The same for someone who has never heard of a bound."""
        return [*self._of_test(), *self._of_validation()]

    def _of_test(self) -> list[str]:
        times = len(self.openings)
        if not self.num_test:
            return ["No rows were held back for a test, so nothing here comes from rows that nobody had looked at."]
        if not times:
            return [
                f"The test set of {self.num_test:,} rows is still sealed: nothing has read it yet. "
                "Opening it, once, gives a number that owes nothing to choice."
            ]
        told = [f"The test set of {self.num_test:,} rows was opened {_times(times)}, first on {self._first_day()}."]
        if times > 1:
            told.append(
                f"Because it was opened {_times(times)}, its score is no longer that of rows nobody had seen: "
                "whoever changed the model in between has chosen by it."
            )
        return told if self.test is None else [*told, *_told(self.test, self.delta)]

    def _of_validation(self) -> list[str]:
        if self.validation is None:
            return ["There is no score on validation rows."]
        told = _told(self.validation, self.delta)
        if self.validation.num_hypotheses > 1:
            among = f", {self.chosen_among:,} models among them" if self.chosen_among > 1 else ""
            told.append(
                f"The validation rows judged {self.validation.num_hypotheses:,} hypotheses{among}, and the best was "
                "kept: that flatters its score, and the promise above allows for it."
            )
        return told

    def _first_day(self) -> str:
        return str(self.openings[0]["time"])[:10]


def certify(name: str, lines: Sequence[Line], metric: str | None = None, *, delta: float = DELTA) -> Certificate:
    """What the ledger of a run has to say, of its headline score or of another."""
    scored = [line for line in lines if line["set"] == "valid" and line["what"] in (REPORT, "evaluation")]
    tested = [line for line in lines if line["set"] == "test" and line["what"] not in (SEALED, OPENED, SELECTION)]
    chosen = [line for line in lines if line["what"] == SELECTION]
    if metric is None:
        metric = next((line["headline"] for line in (*reversed(tested), *reversed(scored)) if "headline" in line), None)
    report = next((line for line in reversed(scored) if line["what"] == REPORT), scored[-1] if scored else None)
    among = max((line["hypotheses"] for line in chosen), default=0)
    return Certificate(
        name=name,
        validation=_judged(report, metric, max(1, among, len(hypotheses(lines))), delta),
        test=_judged(tested[-1] if tested else None, metric, _num_tested(tested, chosen), delta),
        num_test=next((line["rows"] for line in lines if line["what"] == SEALED), 0),
        openings=openings(lines),
        num_looks=sum(line["set"] == "valid" and line["what"] != SELECTION for line in lines),
        chosen_among=max((line["models"] for line in chosen), default=1),
        head=lines[-1]["chain"] if lines else "",
        delta=delta,
    )


def _num_tested(tested: Sequence[Line], chosen: Sequence[Line]) -> int:
    """How many were judged by the test rows: each opening may have been followed by a choice."""
    among = max((line["models"] for line in chosen if line.get("by") == "test"), default=1)
    return max(1, len(tested)) * among


def _judged(line: Line | None, metric: str | None, num_hypotheses: int, delta: float) -> Judged | None:
    if line is None or metric is None:
        return None
    score = line["scores"].get(metric)
    if score is None:
        known = ", ".join(name for name in line["scores"] if name != "rows")
        raise RunError(f"the ledger has no score called {metric!r}, it has {known}")
    num_examples = int(line["rows"])
    scores = _scores(metric, score, num_examples)
    interval = score.get("interval")
    options: dict[str, Any] = {"num_hypotheses": num_hypotheses, "delta": delta}
    return Judged(
        set=line["set"],
        metric=metric,
        value=score["value"],
        interval=None if interval is None else (interval[0], interval[1]),
        num_examples=num_examples,
        num_hypotheses=num_hypotheses,
        bounds=[] if scores is None else applicable(scores, **options),
        best=None if scores is None else tightest(scores, **options),
    )


def _scores(metric: str, score: Mapping[str, Any], num_examples: int) -> Scores | None:
    """What bounds can be computed from, where any holds."""
    if _EXACT in score.get("signature", ""):
        return Scores.counted(round(score["value"] * num_examples), num_examples)
    return Scores.averaged(score["value"], num_examples) if metric in _MEANS else None


def _told(judged: Judged, delta: float) -> list[str]:
    rows = {"valid": "validation rows", "test": "test rows"}.get(judged.set, f"{judged.set} rows")
    name = judged.metric.replace("_", " ")
    measured = f"Measured on {judged.num_examples:,} {rows}: {name} {judged.value:.3f}."
    if judged.best is None:
        spread = ""
        if judged.interval is not None and not any(map(math.isnan, judged.interval)):
            spread = (
                f" Resampling the rows gives [{judged.interval[0]:.3f}, {judged.interval[1]:.3f}], an estimate that "
                "takes no account of how often somebody looked."
            )
        return [f"{measured} It is no mean of numbers between 0 and 1, so nothing can be promised of it.{spread}"]
    low, high = judged.best.interval
    many = judged.num_hypotheses
    whichever = f", whichever of the {many:,} that were judged was kept" if many > 1 else ""
    return [
        f"{measured} On more rows like these it lies between {low:.3f} and {high:.3f}{whichever}: "
        f"a promise that fails at most {_share(delta)} of the time ({judged.best.name})."
    ]


def _share(delta: float) -> str:
    return f"{100 * delta:g} %"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
