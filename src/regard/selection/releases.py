r"""Released scores: what is shown of validation scores, so that a bound holds though scores decide what is tried next.

A bound over $M$ candidates holds if these were fixed before the examples were seen. If each candidate may depend on the
scores of those before it, the candidates form a tree: a node for each sequence of scores that could have been shown. A
mechanism that shows few different sequences keeps the tree small, and the union bound over *its nodes* holds for any
analyst (Blum and Hardt 2015, proof of theorem 3.1):

- `Ladder`: the best score so far, rounded to multiples of a step $\eta$; it changes only where a candidate is better by
  more than the step. Blum and Hardt, "The Ladder: A Reliable Leaderboard for Machine Learning Competitions" (2015),
  section 3. https://arxiv.org/abs/1502.04585
- `Thresholdout`: the score on training rows, unless that on validation rows differs by more than a threshold. Dwork et
  al., "Generalization in Adaptive Data Analysis and Holdout Reuse" (2015). https://arxiv.org/abs/1506.02629

Evaluation $i$, after $c$ of those before it have changed what was shown, is one of $K_{i,c}$ nodes. Giving a node the
failure probability $\delta / W$ with $W = i (i + 1) \, w_c K_{i,c}$ and $\sum_c 1 / w_c \le 1$ makes all nodes, of any
number of evaluations, fail together with probability at most $\delta$: `num_nodes` is $W$, which takes the place of $M$
in the bounds of `regard.selection.bounds`. Neither the number of evaluations nor that of changes is decided before.

`ReleasedScores` is the record of a mechanism in a file, which several processes may use.
"""

import fcntl
import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from regard.errors import ConfigError, DeviceError, RunError
from regard.files import load_json
from regard.selection.bounds import DELTA, Bound, binomial, chernoff
from regard.selection.ledger import REPLACED, LedgerLine, drop_partial_line, evaluations

RELEASES = "releases.jsonl"
"""The file of a mechanism's record."""
AUTO = "auto"
"""In place of a step: chosen by the number of validation rows."""
_LARGEST_STEP = 0.5
_ROUNDING = 1e-9
"""The rounding error of a score times the number of its examples."""
_NOISE_SHARE = 1 / 16
"""The scale of the noise of Thresholdout over its threshold. The comparison then has noise of a quarter of the
threshold; the ratio of 1/4 in the experiments of Dwork et al. would make the noise as large as the threshold."""
_GRID_SHARE = 1 / 2
"""The distance between the scores that Thresholdout may release, over its threshold."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The answer to one evaluation: all of it may be shown, and it suffices to compute the bound."""

    mechanism: str
    parameter: float
    """The step of a Ladder, the threshold of Thresholdout."""
    record: str
    """The identity of the record that it is part of."""
    query: int
    """The number of this evaluation, from 1 on."""
    changes: int
    """How many evaluations before it have changed what is shown (Ladder), or have shown a score on validation rows."""
    value: float
    """The released score."""
    is_change: bool
    below: float
    above: float
    """The measured score is at least `value - below` and at most `value + above`."""

    @property
    def rank(self) -> float | None:
        """What candidates are compared by; None for one of which is known only that it is no better than others."""
        return None if self.mechanism == Ladder.name and not self.is_change else self.value

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Mechanism(Protocol):
    """Decides what is shown of a score, by what was shown before."""

    @property
    def name(self) -> str: ...

    @property
    def parameter(self) -> float: ...

    def answer(self, score: float, before: Sequence[Release], *, reference: float | None, seed: int) -> Release:
        """What is shown of a score in [0, 1].

        Args:
            score: Measured on the validation rows.
            before: What was shown before.
            reference: The same score on training rows, for Thresholdout.
            seed: The seed of the noise, which must not depend on the validation rows.
        """
        ...

    def num_nodes(self, query: int, changes: int) -> int:
        """The number that takes the place of M in a bound: the weight W of such a node."""
        ...


@dataclass(frozen=True)
class Ladder:
    r"""The best score so far in multiples of `step`; it changes if a score is better by more than the step.

    Before evaluation $i \ge 2$ the $c$ changes, of which the first evaluation is one, have happened at
    $\binom{i-2}{c-1}$ possible places with $\binom{L}{c}$ possible increasing values out of $L = [1/\eta] + 1$, so

    $$ W = i (i + 1) \cdot c (c + 1) \binom{i-2}{c-1} \binom{L}{c} , \qquad W = 2 \text{ for } i = 1 . $$

    Example:
        >>> ladder, shown = Ladder(0.1), []
        >>> for score in (0.52, 0.58, 0.61, 0.55, 0.74):
        ...     shown.append(ladder.answer(score, shown))
        >>> [round(each.value, 3) for each in shown], [each.is_change for each in shown]
        ([0.5, 0.5, 0.6, 0.6, 0.7], [True, False, True, False, True])
    """

    parameter: float
    name = "ladder"

    @property
    def num_levels(self) -> int:
        """The number of values that may be released."""
        return math.floor(1 / self.parameter + 0.5) + 1

    def answer(
        self, score: float, before: Sequence[Release], *, reference: float | None = None, seed: int = 0
    ) -> Release:
        found = self.decide(score, before[-1].value if before else math.nan)
        value, is_change = (each.item() for each in found)
        below, above = (self.parameter / 2, self.parameter / 2) if is_change else (1.0, self.parameter)
        return _answer(self, before, value=value, is_change=is_change, below=below, above=above)

    def decide(self, score: ArrayLike, shown: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """What is shown of a score after `shown`, NaN for nothing, and whether it is a change; arrays by element."""
        rounded = np.minimum(1.0, np.round(np.divide(score, self.parameter)) * self.parameter)
        is_better = (score > np.add(shown, self.parameter)) & (rounded > shown)
        is_change = np.asarray(np.isnan(shown) | is_better)
        return np.where(is_change, rounded, shown), is_change

    def num_nodes(self, query: int, changes: int) -> int:
        if query == 1:
            return 2
        places, values = math.comb(query - 2, changes - 1), math.comb(self.num_levels, changes)
        return query * (query + 1) * changes * (changes + 1) * places * values


@dataclass(frozen=True)
class Thresholdout:
    r"""The score on training rows, unless the one on validation rows differs from it by more than a noisy threshold.

    In that case the score on validation rows is released, with noise and rounded. The noise is Laplace's, as in the
    paper: of scale $2\sigma$ on the threshold, anew after each release, $4\sigma$ on each comparison, $\sigma$ on what
    is released. It is drawn from a seed and independent of the rows, so that the count of nodes holds for every value
    of it, and it may be known. Before evaluation $i$ the $c$ releases have happened at $\binom{i-1}{c}$ possible places
    with $L$ possible values each, so

    $$ W = i (i + 1) \cdot (c + 1)(c + 2) \binom{i-1}{c} L^c . $$

    The paper's guarantee for its noise, by differential privacy, is stated up to constants, and needs a budget of
    releases; here each release counts instead.
    """

    parameter: float
    name = "thresholdout"

    @property
    def num_levels(self) -> int:
        """The number of values that may be released."""
        return math.floor(1 / (_GRID_SHARE * self.parameter) + 0.5) + 1

    def answer(self, score: float, before: Sequence[Release], *, reference: float | None, seed: int) -> Release:
        assert reference is not None, "a score on training rows is compared with"
        changes = sum(each.is_change for each in before)
        on_threshold = np.random.default_rng([seed, 0, changes]).laplace()
        on_query = np.random.default_rng([seed, 1, len(before) + 1]).laplace(size=2)
        found = self.decide(score, reference, np.array([on_threshold, *on_query]))
        value, is_change, margin = (each.item() for each in found)
        return _answer(self, before, value=value, is_change=is_change, below=margin, above=margin)

    def decide(
        self, score: ArrayLike, reference: ArrayLike, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is shown of a score, whether it is a release, and its margin; arrays by element.

        `noise` has draws of scale 1 for the threshold, the comparison and what is released.
        """
        sigma, grid = _NOISE_SHARE * self.parameter, _GRID_SHARE * self.parameter
        threshold, added = self.parameter + 2 * sigma * noise[0] + 4 * sigma * noise[1], sigma * noise[2]
        is_change = np.asarray(np.abs(np.subtract(score, reference)) > threshold)
        rounded = np.clip(np.round((score + added) / grid) * grid, 0.0, 1.0)
        margin = np.where(is_change, np.abs(added) + grid / 2, np.maximum(0.0, threshold))
        return np.where(is_change, rounded, reference), is_change, margin

    def num_nodes(self, query: int, changes: int) -> int:
        weight = query * (query + 1) * (changes + 1) * (changes + 2)
        return weight * math.comb(query - 1, changes) * self.num_levels**changes


def _answer(mechanism: Mechanism, before: Sequence[Release], **found: Any) -> Release:
    changes = sum(each.is_change for each in before)
    known = {"mechanism": mechanism.name, "parameter": mechanism.parameter, "record": ""}
    return Release(**known, query=len(before) + 1, changes=changes, **found)


MECHANISMS: dict[str, type[Ladder] | type[Thresholdout]] = {each.name: each for each in (Ladder, Thresholdout)}


def make_mechanism(name: str, parameter: float) -> Mechanism:
    """The mechanism of this name; an error where its step or threshold is out of range."""
    if not 0.0 < parameter <= _LARGEST_STEP:  # which is false for NaN
        what = "the step of a ladder" if name == Ladder.name else "the threshold of thresholdout"
        raise ConfigError(f"{what} must be above 0 and at most {_LARGEST_STEP:g}, got {parameter:g}")
    return MECHANISMS[name](parameter)


def default_parameter(name: str, num_rows: int) -> float:
    r"""The step of a Ladder, $1/\sqrt{N}$, or the threshold of Thresholdout, $4/\sqrt{N}$.

    The former is the largest step that Blum and Hardt's Ladder without a parameter takes, where the scores of two
    candidates differ in every row; the latter is the threshold of the experiments of Dwork et al.

    Example:
        >>> default_parameter("ladder", 1_000), default_parameter("thresholdout", 10_000)
        (0.032, 0.04)
    """
    scale = 1.0 if name == Ladder.name else 4.0
    return min(_LARGEST_STEP, float(f"{scale / math.sqrt(max(1, num_rows)):.2g}"))


def bound_released(
    release: Release,
    num_examples: int,
    *,
    is_proportion: bool,
    others: Sequence[Release] = (),
    delta: float = DELTA,
) -> Bound:
    """The true score of the candidate that a release answers, whatever earlier releases have influenced.

    Args:
        release: The answer.
        num_examples: The number of validation examples that every score of the mechanism is computed on.
        is_proportion: Whether examples are right or wrong, and the bound is the exact binomial one; otherwise scores
            are means of values in [0, 1], and it is Chernoff's.
        others: The last release of each other mechanism on the same examples: their answers may have had an influence
            too, so that nodes are combinations.
        delta: The probability of failure.
    """
    nodes = make_mechanism(release.mechanism, release.parameter).num_nodes(release.query, release.changes)
    nodes *= math.prod(map(_most_nodes_after, others))
    low, high = max(0.0, release.value - release.below), min(1.0, release.value + release.above)
    if is_proportion:
        fewest = min(num_examples, math.ceil(low * num_examples - _ROUNDING))
        most = max(0, math.floor(high * num_examples + _ROUNDING))
        ends = [binomial(count, num_examples, num_candidates=nodes, delta=delta) for count in (fewest, most)]
    else:
        ends = [chernoff(end, num_examples, num_candidates=nodes, delta=delta) for end in (low, high)]
    lower, upper = ends[0].interval[0], ends[1].interval[1]
    name = release.mechanism.capitalize()
    return Bound(
        name=f"{name}, {ends[0].name}",
        statement=f"with probability at least {1 - delta:.6g}, for all candidates that an analyst who sees released "
        f"scores only could have evaluated, the true mean lies in the interval; for independent examples, by the union "
        f"bound with the weight 10^{math.log10(nodes):.1f} of evaluation {release.query:,} after {release.changes:,} "
        "changes",
        value=release.value,
        lower=0.0 if release.below >= 1.0 else lower,
        upper=upper,
        epsilon=max(release.value - (0.0 if release.below >= 1.0 else lower), upper - release.value),
        num_candidates=nodes,
        num_examples=num_examples,
        delta=delta,
    )


def _most_nodes_after(last: Release) -> int:
    """The largest weight of a node after the answer `last`, or before it: fewer changes may have a larger one."""
    mechanism = make_mechanism(last.mechanism, last.parameter)
    fewest = 1 if last.mechanism == Ladder.name else 0
    changes = last.changes + last.is_change
    return max(mechanism.num_nodes(last.query + 1, count) for count in range(fewest, changes + 1))


class ReleasedScores:
    """The record of a mechanism: a line for each evaluation, in a file that processes lock one after the other.

    An evaluation of weights that were evaluated before, as by a run that is resumed, is answered from the record, and
    is no new evaluation. A measured score is neither stored nor returned.

    Args:
        path: The file.
        mechanism: What decides.
        rows: The hash of the validation rows.
        seed: The seed of the noise, where the file is new.
    """

    def __init__(self, path: Path, mechanism: Mechanism, *, rows: str, seed: int = 0) -> None:
        self.path, self.mechanism = path, mechanism
        self._head = {"mechanism": mechanism.name, "parameter": mechanism.parameter, "rows": rows}
        self._seed = seed

    def check(self) -> None:
        """Raise if the file has the record of another mechanism, or of other rows."""
        if self.path.exists():
            self._check_head(_lines(self.path.read_bytes(), self.path))

    def release(self, candidate: str, score: float, *, reference: float | None = None) -> Release:
        """The answer to the evaluation of a candidate, which is named by a hash of its weights."""
        if not 0.0 <= score <= 1.0:
            raise ConfigError(f"a {self.mechanism.name} needs scores in [0, 1], got {score:g}")
        try:
            with open(self.path, "a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                drop_partial_line(file)
                file.seek(0)
                lines = _lines(file.read(), self.path)
                if not lines:
                    lines = [{**self._head, "seed": self._seed, "record": uuid.uuid4().hex[:16]}]
                    _append(file, lines[0])
                self._check_head(lines)
                if (known := next((line for line in lines[1:] if line["candidate"] == candidate), None)) is not None:
                    return read_release(known)
                before = [read_release(line) for line in lines[1:]]
                found = self.mechanism.answer(score, before, reference=reference, seed=lines[0]["seed"])
                found = replace(found, record=lines[0]["record"])
                _append(file, {"candidate": candidate, **found.to_json()})
                return found
        except OSError as error:
            raise DeviceError(f"cannot write {self.path}: {error.strerror or error}") from None

    def _check_head(self, lines: Sequence[Mapping[str, Any]]) -> None:
        if not lines:
            return
        before = {name: lines[0].get(name) for name in self._head}
        if before["rows"] != self._head["rows"]:
            raise RunError(f"{self.path} is a record of other validation rows: name another folder")
        if before != self._head:
            raise RunError(
                f"{self.path} was begun with {before['mechanism']} {before['parameter']:g}, and all evaluations on the "
                f"same rows must have the same, got {self.mechanism.name} {self.mechanism.parameter:g}"
            )


def read_release(values: Mapping[str, Any]) -> Release:
    """The release in a line of a record or of a ledger."""
    return Release(**{name: values[name] for name in Release.__dataclass_fields__})


def releases_in(lines: Sequence[LedgerLine]) -> list[Release]:
    """The releases that a ledger records."""
    return [read_release(line["release"]) for line in lines if line.get("release") is not None]


def num_unreleased(lines: Sequence[LedgerLine]) -> int:
    """How many lines of a ledger have scores on the validation rows as they were measured."""
    measured = sum(line.get("release") is None for line in evaluations(lines, "valid"))
    replaced = [line for line in lines if line["event"] == REPLACED and line["set"] == "valid"]
    return measured + sum(line.get("unreleased", len(line["keys"])) for line in replaced)


def last_releases(found: Sequence[Release]) -> dict[str, Release]:
    """The last release of each record."""
    return {each.record: each for each in sorted(found, key=lambda each: each.query)}


def _lines(data: bytes, path: Path) -> list[dict[str, Any]]:
    try:
        return [load_json(line) for line in data.split(b"\n")[:-1]]
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None


def _append(file: Any, line: Mapping[str, Any]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[file.write(data) :]
    os.fsync(file.fileno())
