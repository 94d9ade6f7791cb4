"""The certificate of a run: its score, how often somebody looked, what can be promised, and whether the test is sealed.

All of it is read off ledgers, the run's own and those of the runs beside it, so whoever has the folder can make it
again. What is promised is promised of rows that are drawn as those of the set were; of other rows nothing can be.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import RunError
from regard.selection.bounds import DELTA, Bound, Scores, applicable, tightest
from regard.selection.ledger import (
    FILE,
    SEALED,
    SELECTION,
    Line,
    files,
    hypotheses,
    judged_keys,
    openings,
    replaced_openings,
    scored,
    tested,
)
from regard.selection.neighbours import Neighbours

REPORT = "report"
"""What the line says that tells of the score of a run when it ended."""
_MEANS = ("answer_f1", "mean_reciprocal_rank")
"""Scores that are means over examples, each in [0, 1], and no proportions."""
_NAMED = 3
"""So many of the runs beside one are called by name."""
CONDITION = (
    "What is promised above of several that were judged holds if it was settled what to try before anybody saw one of "
    "their scores. Where earlier scores decided what came next, by hand or by a sweep that learns from them, it is a "
    "guide and no promise; a test set that is opened once, at the end, is free of this."
)
_EXACT = "interval:clopper-pearson"
"""What the signature of a proportion of examples says."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A score on one set, and what can be said of it."""

    set: str
    """`valid`, `test` or, of rows from elsewhere, `file`."""
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
    name: str = ""
    """Of rows from elsewhere, what they were called."""

    @property
    def rows_called(self) -> str:
        return {"valid": "validation rows", "test": "test rows"}.get(self.set, f"rows of {self.name}")

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
    files: Sequence[Judged]
    """On rows from elsewhere, those of the last look last."""
    num_test: int
    """Test rows that were sealed; 0 where there are none."""
    openings: Sequence[Line]
    """When the test set was opened, and why."""
    num_looks: int
    """Lines that tell of scores on validation rows."""
    chosen_among: int
    """Models that this one was chosen from by a comparison or by a sweep; 1 where none wrote down others."""
    neighbours: Neighbours
    """What lies beside the run, and was judged by the same rows."""
    replaced_openings: int
    """How often a run that this one has overwritten opened the same test rows."""
    may_depend: bool
    """Whether some of those that a set has judged may have been tried because of what it had said of others."""
    head: str
    """The last link of the ledger's chain."""
    delta: float = DELTA

    @property
    def is_sealed(self) -> bool:
        """Whether nobody here has read these test rows: neither this run, nor one beside it or before it."""
        return bool(self.num_test) and not (self.openings or self.neighbours.openers or self.replaced_openings)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "validation": None if self.validation is None else self.validation.to_json(),
            "test": None if self.test is None else self.test.to_json(),
            "files": [judged.to_json() for judged in self.files],
            "num_test": self.num_test,
            "is_sealed": self.is_sealed,
            "openings": [{key: line.get(key) for key in ("time", "why", "hypothesis")} for line in self.openings],
            "num_looks": self.num_looks,
            "chosen_among": self.chosen_among,
            "neighbours": vars(self.neighbours),
            "replaced_openings": self.replaced_openings,
            "may_depend": self.may_depend,
            "delta": self.delta,
            "ledger": self.head,
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The same for someone who has never heard of a bound."""
        return [*self._of_test(), *self._of_validation(), *self._of_files(), *self._of_condition(), *self._of_unread()]

    @property
    def shown(self) -> list[Judged]:
        """What is drawn and told of: all but rows from elsewhere that are not among the last few."""
        found = (self.test, self.validation, *self.files[-_NAMED:])
        return [judged for judged in found if judged is not None]

    def _of_test(self) -> list[str]:
        times = len(self.openings)
        if not self.num_test:
            return ["No rows were held back for a test, so nothing here comes from rows that nobody had looked at."]
        if self.is_sealed:
            known = (
                "no ledger here that can be read tells otherwise"
                if self.neighbours.unread
                else "nothing has read it yet"
            )
            return [
                f"The test set of {self.num_test:,} rows is still sealed: {known}. "
                "Opening it, once, gives a number that owes nothing to choice."
            ]
        told = [f"This run has not opened its test set of {self.num_test:,} rows."]
        if times:
            first = str(self.openings[0]["time"])[:10]
            told = [f"The test set of {self.num_test:,} rows was opened {_times(times)}, first on {first}."]
        if times > 1:
            told.append(
                f"Because it was opened {_times(times)}, its score is no longer that of rows nobody had seen: "
                "whoever changed the model in between has chosen by it."
            )
        return [*told, *self._of_openers(), *([] if self.test is None else _told(self.test, self.delta))]

    def _of_openers(self) -> list[str]:
        """That others have read the same test rows."""
        told = []
        if self.replaced_openings:
            told.append(f"A run that this one has overwritten opened the same rows {_times(self.replaced_openings)}.")
        if openers := self.neighbours.openers:
            told.append(f"The same rows were opened by {_named(openers)} beside it.")
        if told:
            told[-1] += " Whoever has kept the better of them has chosen by these rows."
        return told

    def _of_validation(self) -> list[str]:
        if self.validation is None:
            return ["There is no score on validation rows."]
        told = _told(self.validation, self.delta)
        if self.validation.num_hypotheses > 1:
            among = f", of {self.chosen_among:,} models" if self.chosen_among > 1 else ""
            others = self.neighbours.others
            beside = f", those of {_named(others)} beside this run among them" if others else ""
            told.append(
                f"The validation rows judged {self.validation.num_hypotheses:,} hypotheses{among}{beside}, and the "
                "best was kept: that flatters its score, and the interval above is wider for it."
            )
        return told

    def _of_files(self) -> list[str]:
        told = [sentence for judged in self.files[-_NAMED:] for sentence in _told(judged, self.delta)]
        left = len(self.files) - _NAMED
        return [*told, f"It was scored on {left:,} more sets of rows from elsewhere."] if left > 0 else told

    def _of_condition(self) -> list[str]:
        is_promised = any(judged.best is not None for judged in self.shown)
        return [CONDITION] if self.may_depend and is_promised else []

    def _of_unread(self) -> list[str]:
        if not self.neighbours.unread:
            return []
        return [f"What {_named(self.neighbours.unread)} saw is not counted: the ledger cannot be read."]


def certify(
    name: str,
    lines: Sequence[Line],
    metric: str | None = None,
    *,
    neighbours: Neighbours | None = None,
    delta: float = DELTA,
) -> Certificate:
    """What the ledger of a run, and those beside it, have to say of its headline score or of another."""
    neighbours = Neighbours() if neighbours is None else neighbours
    seen = [line for line in scored(lines, "valid") if line["what"] in (REPORT, "evaluation")]
    tests = tested(lines)
    elsewhere = [_last(lines, file) for file in files(scored(lines, FILE))]
    chosen = [line for line in lines if line["what"] == SELECTION]
    if metric is None:
        metric = next(
            (
                line["headline"]
                for line in (*reversed(tests), *reversed(seen), *reversed(elsewhere))
                if "headline" in line
            ),
            None,
        )
    report = next((line for line in reversed(seen) if line["what"] == REPORT), seen[-1] if seen else None)
    among = max((line["hypotheses"] for line in chosen), default=0)
    num_valid = max(1, among, len(judged_keys(lines)), neighbours.num_hypotheses)
    num_tested = max(_num_tested(lines), neighbours.num_tested)
    num_by_file = {line["hash"]: _num_by_file(lines, line["hash"], neighbours) for line in elsewhere}
    return Certificate(
        name=name,
        validation=_judged(report, metric, num_valid, delta),
        test=_judged(tests[-1] if tests else None, metric, num_tested, delta),
        files=[
            found
            for line in elsewhere
            if metric in line["scores"]
            and (found := _judged(line, metric, num_by_file[line["hash"]], delta)) is not None
        ],
        num_test=next((line["rows"] for line in lines if line["what"] == SEALED), 0),
        openings=openings(lines),
        num_looks=len(scored(lines, "valid")),
        chosen_among=max((line["models"] for line in chosen), default=1),
        neighbours=neighbours,
        replaced_openings=replaced_openings(lines)[0],
        # The weights of one training do not depend on what the validation rows say of them.
        may_depend=num_valid > max(1, len(hypotheses(lines))) or max(num_tested, *num_by_file.values(), 1) > 1,
        head=lines[-1]["chain"] if lines else "",
        delta=delta,
    )


def _num_tested(lines: Sequence[Line]) -> int:
    """How many were judged by the test rows: each opening may have been followed by a choice."""
    among = max((line["models"] for line in lines if line["what"] == SELECTION and line["by"] == "test"), default=1)
    return max(1, len(tested(lines)) + replaced_openings(lines)[1]) * among


def _last(lines: Sequence[Line], file: str) -> Line:
    return next(line for line in reversed(scored(lines, FILE)) if line["hash"] == file)


def _num_by_file(lines: Sequence[Line], file: str, neighbours: Neighbours) -> int:
    return max(1, len(judged_keys(lines, file)), neighbours.num_by_file.get(file, 0))


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
        name=line.get("name", ""),
    )


def _scores(metric: str, score: Mapping[str, Any], num_examples: int) -> Scores | None:
    """What bounds can be computed from, where any holds."""
    if _EXACT in score.get("signature", ""):
        return Scores.counted(round(score["value"] * num_examples), num_examples)
    return Scores.averaged(score["value"], num_examples) if metric in _MEANS else None


def _told(judged: Judged, delta: float) -> list[str]:
    name = judged.metric.replace("_", " ")
    measured = f"Measured on {judged.num_examples:,} {judged.rows_called}: {name} {judged.value:.3f}."
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


def _named(names: Sequence[str]) -> str:
    """A few by their names, and of many how many."""
    shown, rest = list(names[:_NAMED]), len(names) - _NAMED
    if rest > 0:
        return f"{', '.join(shown)} and {rest:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
