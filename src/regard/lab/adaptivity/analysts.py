r"""Analysts who choose the next candidate by the scores of those before, and how often the bounds on scores then fail.

Labels are fair coins that depend on nothing, so that every candidate, whatever it was made from, is right on exactly
half of new examples. An analyst evaluates candidates on $N$ validation examples and sees a score of each:

- *vote*: random guessers, then the majority vote of those that looked good (the boosting attack of Blum and Hardt);
- *majority*: the same with the opposite answers of those that looked bad;
- *signs*: a guesser, then the same with one answer changed, for each of the $N$ examples; those changes are kept after
  which the score rose;
- *climb*: a guesser of which a random part of the answers is changed again and again; a change stays where the score
  is better (Hardt, "Climbing a Shaky Ladder", 2017. https://arxiv.org/abs/1706.02733).

The score is the measured one (and the certificate is the exact binomial bound over all evaluated candidates), or what
a mechanism of `regard.selection.releases` releases. A plain certificate fails if it misses the true score of the
winner; a mechanism fails if its interval misses that of *any* candidate, at any time.

Only agreement with the labels is simulated, 1 or 0 for each example: a guesser's is a fair coin, and that of a vote is
the vote of the agreements.

Dimensions: `analysts`, `examples` (validation rows, followed by as many training rows), `counts` from 0 to N.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from scipy.stats import binom

from regard.evaluation.intervals import clopper_pearson
from regard.lab.adaptivity import ADAPTIVITY
from regard.lab.drawing import COLORS, INK, MUTED, label_axes, make_panels
from regard.lab.study import Study, StudyTable, format_cell
from regard.logging import log_info, progress_bar
from regard.selection.bounds import binomial
from regard.selection.releases import Ladder, Mechanism, Release, Thresholdout, bound_released, default_parameter

TRUTH = 0.5
"""The true score of every candidate."""
MEASURED = "measured"
_ROUNDING = 1e-9
_SHOWN_ANALYSTS = 50
"""Analysts whose last interval is computed, for its mean width."""
_CLIMB_SHARE = 0.1
"""The share of answers that a step of `climb` changes."""

_Agreement = Bool[np.ndarray, "analysts examples"]
_Scores = Float[np.ndarray, " analysts"]


class ScoreOracle:
    """Answers the evaluations of many analysts, each with a record of its own, and counts failures of its bound."""

    def __init__(self, mechanism: Mechanism | None, num_examples: int, num_analysts: int, *, delta: float,
                 rng: np.random.Generator) -> None:  # fmt: skip
        self.mechanism, self.num_examples, self._delta, self._rng = mechanism, num_examples, delta, rng
        self.num_queries = 0
        self.changes = np.zeros(num_analysts, dtype=np.int64)
        self.has_failed = np.zeros(num_analysts, dtype=bool)
        self.best = np.full(num_analysts, np.nan)
        """The best score that was shown."""
        self.history: list[float] = []
        """Its mean over analysts, after each evaluation."""
        self._threshold_noise = rng.laplace(size=num_analysts)
        self._best_releases: list[Release | None] = [None] * min(num_analysts, _SHOWN_ANALYSTS)
        counts = np.arange(num_examples + 1)
        # An exact interval contains the true score if so many right examples, or so few, are not too improbable.
        self._log_at_least = binom.logsf(counts - 1, num_examples, TRUTH)
        self._log_at_most = binom.logcdf(counts, num_examples, TRUTH)

    def ask(self, right: Int[np.ndarray, " analysts"], right_in_training: Int[np.ndarray, " analysts"],
            than: _Scores | None = None) -> tuple[_Scores, Bool[np.ndarray, " analysts"]]:  # fmt: skip
        """Evaluate a candidate of each analyst.

        Args:
            right: The number of validation examples that it is right on.
            right_in_training: The same for training examples.
            than: An earlier answer, to compare with; unset, 1/2.

        Returns:
            What is shown, and whether it looks better; with a Ladder, whether what is shown has changed.
        """
        self.num_queries += 1
        score = right / self.num_examples
        looks_better = None
        if self.mechanism is None:
            shown = score
        elif isinstance(self.mechanism, Ladder):
            shown, looks_better = self._ask_ladder(self.mechanism, score)
        else:
            shown = self._ask_thresholdout(self.mechanism, score, right_in_training / self.num_examples)
        self.best = np.fmax(self.best, shown)
        self.history.append(float(self.best.mean()))
        return shown, shown > (TRUTH if than is None else than) if looks_better is None else looks_better

    def _ask_ladder(self, ladder: Ladder, score: _Scores) -> tuple[_Scores, Bool[np.ndarray, " analysts"]]:
        shown, is_change = ladder.decide(score, self.best)
        half, step = ladder.parameter / 2, ladder.parameter
        below, above = np.where(is_change, half, 1.0), np.where(is_change, half, step)
        self._check(shown, is_change, below, above, self.changes)
        self.changes = self.changes + is_change
        return shown, is_change

    def _ask_thresholdout(self, mechanism: Mechanism, score: _Scores, reference: _Scores) -> _Scores:
        assert isinstance(mechanism, Thresholdout)
        own = self._rng.laplace(size=(2, len(score)))
        shown, is_change, margin = mechanism.decide(score, reference, np.stack([self._threshold_noise, *own]))
        self._check(shown, is_change, margin, margin, self.changes)
        self.changes = self.changes + is_change
        self._threshold_noise = np.where(is_change, self._rng.laplace(size=len(score)), self._threshold_noise)
        return shown

    def _check(self, shown: _Scores, is_change: Bool[np.ndarray, " analysts"], below: _Scores, above: _Scores,
               changes: Int[np.ndarray, " analysts"]) -> None:  # fmt: skip
        """Note whose interval misses the true score: that of `bound_released`, for all analysts at once."""
        assert self.mechanism is not None
        n, name = self.num_examples, self.mechanism.name
        kinds, which = np.unique(changes, return_inverse=True)
        logs = [math.log(self._delta / 2) - math.log(self.mechanism.num_nodes(self.num_queries, int(c))) for c in kinds]
        log_tail = np.array(logs)[which]
        fewest = np.clip(np.ceil((shown - below) * n - _ROUNDING), 0, n).astype(np.int64)
        most = np.clip(np.floor((shown + above) * n + _ROUNDING), 0, n).astype(np.int64)
        self.has_failed |= (self._log_at_least[fewest] < log_tail) | (self._log_at_most[most] < log_tail)
        for place in range(len(self._best_releases)):
            if np.isnan(self.best[place]) or shown[place] > self.best[place]:
                self._best_releases[place] = Release(
                    mechanism=name, parameter=self.mechanism.parameter, record="", query=self.num_queries,
                    changes=int(changes[place]), value=float(shown[place]), is_change=bool(is_change[place]),
                    below=float(below[place]), above=float(above[place]),
                )  # fmt: skip

    def failures(self) -> Bool[np.ndarray, " analysts"]:
        """For each analyst whether the certificate failed; the plain one is about the winner."""
        if self.mechanism is not None:
            return self.has_failed
        log_tail = math.log(self._delta / 2 / self.num_queries)
        return self._log_at_least[np.rint(self.best * self.num_examples).astype(np.int64)] < log_tail

    def half_width(self) -> float:
        """Half of the width of the interval of the best candidate, mean over some analysts."""
        n, delta = self.num_examples, self._delta
        if self.mechanism is None:
            counts = (self.best[:_SHOWN_ANALYSTS] * n).tolist()
            found = [binomial(count, n, num_candidates=self.num_queries, delta=delta) for count in counts]
        else:
            releases = [each for each in self._best_releases if each is not None]
            found = [bound_released(each, n, is_proportion=True, delta=delta) for each in releases]
        return float(np.mean([(bound.interval[1] - bound.interval[0]) / 2 for bound in found]))


Attack = Callable[[ScoreOracle, int, int, np.random.Generator], None]
"""From an oracle, the numbers of analysts and of guessers, and random numbers."""


def guess(num_analysts: int, num_examples: int, rng: np.random.Generator) -> _Agreement:
    """The agreement of a guesser of each analyst."""
    bits = np.frombuffer(rng.bytes(num_analysts * ((num_examples + 7) // 8)), dtype=np.uint8)
    return np.unpackbits(bits.reshape(num_analysts, -1), axis=1)[:, :num_examples].astype(bool)


def ask_about(oracle: ScoreOracle, agreement: _Agreement, than: _Scores | None = None) -> tuple[_Scores, np.ndarray]:
    """Evaluate candidates by their agreement on validation and training examples."""
    n = oracle.num_examples
    return oracle.ask(agreement[:, :n].sum(axis=1), agreement[:, n:].sum(axis=1), than)


def attack_by_votes(
    oracle: ScoreOracle, num_analysts: int, num_guessers: int, rng: np.random.Generator, *, uses_bad: bool = False
) -> None:
    """Evaluate guessers, then the vote of those that looked good and, with `uses_bad`, against those that did not."""
    votes = np.zeros((num_analysts, 2 * oracle.num_examples), dtype=np.int16)
    for _ in range(num_guessers):
        agreement = guess(num_analysts, votes.shape[1], rng)
        _, looks_better = ask_about(oracle, agreement)
        weight = np.where(looks_better, 1, -1 if uses_bad else 0).astype(np.int16)
        votes += weight[:, None] * np.where(agreement, 1, -1).astype(np.int16)
    is_right = np.where(votes == 0, guess(num_analysts, votes.shape[1], rng), votes > 0)
    ask_about(oracle, is_right)


def attack_by_signs(oracle: ScoreOracle, num_analysts: int, num_guessers: int, rng: np.random.Generator) -> None:
    """Change one answer at a time, as often as there are validation examples, and keep the changes that helped."""
    n = oracle.num_examples
    base = guess(num_analysts, 2 * n, rng)
    is_right, counts = base.copy(), (base[:, :n].sum(axis=1), base[:, n:].sum(axis=1))
    first, _ = oracle.ask(*counts)
    for example in range(n):
        change = np.where(base[:, example], -1, 1)
        _, looks_better = oracle.ask(counts[0] + change, counts[1], than=first)
        is_right[:, example] ^= looks_better
    ask_about(oracle, is_right)


def attack_by_climbing(oracle: ScoreOracle, num_analysts: int, num_guessers: int, rng: np.random.Generator) -> None:
    """Change a random part of the answers, and keep the change where the score is better."""
    size = 2 * oracle.num_examples
    agreement = guess(num_analysts, size, rng)
    best, _ = ask_about(oracle, agreement)
    for _ in range(num_guessers):
        changed = agreement ^ (rng.random((num_analysts, size), dtype=np.float32) < _CLIMB_SHARE)
        shown, looks_better = ask_about(oracle, changed, than=best)
        agreement = np.where(looks_better[:, None], changed, agreement)
        best = np.where(looks_better, shown, best)


ATTACKS: dict[str, Attack] = {
    "vote": attack_by_votes,
    "majority": lambda *given: attack_by_votes(*given, uses_bad=True),
    "signs": attack_by_signs,
    "climb": attack_by_climbing,
}


@dataclass(frozen=True)
class AttackOutcome:
    """What an attack by many analysts has reached."""

    num_queries: int
    num_failures: int
    num_analysts: int
    best: float
    """The best score that was shown, mean over analysts."""
    changes: float
    half_width: float
    history: Sequence[float] = field(repr=False)

    @property
    def share(self) -> tuple[float, float, float]:
        """The share of analysts for whom the certificate failed, with its exact 95 % interval."""
        return self.num_failures / self.num_analysts, *clopper_pearson(self.num_failures, self.num_analysts)


def simulate_attack(
    attack: Attack, mechanism: Mechanism | None, sizes: "AdaptivitySizes", rng: np.random.Generator
) -> AttackOutcome:
    """Let many analysts attack, some at a time."""
    parts: list[ScoreOracle] = []
    for start in range(0, sizes.num_analysts, sizes.analysts_at_once):
        number = min(sizes.analysts_at_once, sizes.num_analysts - start)
        oracle = ScoreOracle(mechanism, sizes.num_examples, number, delta=sizes.delta, rng=rng)
        attack(oracle, number, sizes.num_guessers, rng)
        parts.append(oracle)
    weights = [len(part.best) for part in parts]
    return AttackOutcome(
        num_queries=parts[0].num_queries,
        num_failures=sum(int(part.failures().sum()) for part in parts),
        num_analysts=sizes.num_analysts,
        best=float(np.concatenate([part.best for part in parts]).mean()),
        changes=float(np.concatenate([part.changes for part in parts]).mean()),
        half_width=float(np.mean([part.half_width() for part in parts])),
        history=np.average([part.history for part in parts], axis=0, weights=weights).tolist(),
    )


@dataclass(frozen=True, kw_only=True)
class AdaptivitySizes:
    """How many analysts evaluate how much on how many examples; the defaults are those of a quick run."""

    num_analysts: int = 2_000
    num_examples: int = 400
    num_guessers: int = 100
    """Evaluations before the last one; of the attack by signs, the number of examples."""
    delta: float = 0.05
    analysts_at_once: int = 250


_FULL = AdaptivitySizes(num_examples=1_000, num_guessers=500)

_Outcomes = Mapping[tuple[str, str], AttackOutcome]
"""By attack and by what is shown."""


def study_adaptivity(*, quick: bool = False, seed: int = 0, sizes: AdaptivitySizes | None = None) -> Study:
    """Let analysts attack measured and released scores, and count how often certificates fail."""
    sizes = sizes or (AdaptivitySizes() if quick else _FULL)
    mechanisms: dict[str, Mechanism | None] = {
        MEASURED: None,
        Ladder.name: Ladder(default_parameter(Ladder.name, sizes.num_examples)),
        Thresholdout.name: Thresholdout(default_parameter(Thresholdout.name, sizes.num_examples)),
    }
    rng, outcomes = np.random.default_rng(seed), {}
    cases = [(attack, name) for attack in ATTACKS for name in mechanisms]
    for attack, name in progress_bar(cases, "attacks", total=len(cases)):
        outcomes[attack, name] = simulate_attack(ATTACKS[attack], mechanisms[name], sizes, rng)
    log_info(f"{len(cases)} attacks by {sizes.num_analysts:,} analysts each")
    prices = measure_prices(sizes)
    figure, axes = make_panels(3, height=4.0)
    _draw_failures(axes[0], outcomes, sizes)
    _draw_histories(axes[1], outcomes)
    _draw_prices(axes[2], prices, sizes)
    return ADAPTIVITY.result(
        sizes, [(_findings(outcomes, prices, sizes), _tables(outcomes, prices, sizes))], figure,
        ladder=_parameter(mechanisms, Ladder.name), thresholdout=_parameter(mechanisms, Thresholdout.name),
    )  # fmt: skip


def _parameter(mechanisms: Mapping[str, Mechanism | None], name: str) -> float:
    found = mechanisms[name]
    assert found is not None
    return found.parameter


@dataclass(frozen=True)
class Price:
    """Half-widths of the interval of a score of 0.8 after so many evaluations on so many examples."""

    num_examples: int
    num_queries: int
    plain: float
    ladder: float


_PRICED_QUERIES, _PRICED_CHANGES, _PRICED_SCORE = 100, 5, 0.8
"""A search of a usual size: evaluations, changes of what is shown, and the last shown score."""


def measure_prices(sizes: AdaptivitySizes) -> list[Price]:
    """The half-width of a Ladder's interval beside that of the exact bound over fixed candidates."""
    found = []
    for n in (200, 400, 1_000, 2_000, 4_000, 10_000, 40_000):
        step = default_parameter(Ladder.name, n)
        shown = round(_PRICED_SCORE / step) * step
        release = Release(
            mechanism=Ladder.name, parameter=step, record="", query=_PRICED_QUERIES, changes=_PRICED_CHANGES,
            value=shown, is_change=True, below=step / 2, above=step / 2,
        )  # fmt: skip
        ladder = bound_released(release, n, is_proportion=True, delta=sizes.delta)
        plain = binomial(_PRICED_SCORE * n, n, num_candidates=_PRICED_QUERIES, delta=sizes.delta)
        widths = [(bound.interval[1] - bound.interval[0]) / 2 for bound in (plain, ladder)]
        found.append(Price(n, _PRICED_QUERIES, *widths))
    return found


def _findings(outcomes: _Outcomes, prices: Sequence[Price], sizes: AdaptivitySizes) -> list[str]:
    def listed(name: str) -> str:
        shares = {attack: outcomes[attack, name].share[0] for attack in ATTACKS}
        return ", ".join(f"{attack} {100 * share:.3g} %" for attack, share in shares.items())

    released = {case: outcome for case, outcome in outcomes.items() if case[1] != MEASURED}
    worst = max(released, key=lambda case: released[case].num_failures)
    broken = [attack for attack in ATTACKS if outcomes[attack, MEASURED].share[0] > sizes.delta]
    held = sum(outcome.share[0] <= sizes.delta for case, outcome in released.items() if case[0] in broken)
    price = next(each for each in prices if each.num_examples == 4_000)
    return [
        f"The certificate over all evaluated candidates, whose scores are shown as measured, misses the winner's true "
        f"score of {TRUTH:g} for this share of {sizes.num_analysts:,} analysts: {listed(MEASURED)}.",
        f"The bound on released scores misses any candidate at any time for at most "
        f"{format_cell(released[worst].share)} of the analysts ({worst[1]}, {worst[0]}); under the {len(broken)} "
        f"attacks that break the certificate, {held} of {2 * len(broken)} combinations keep at least "
        f"{100 * (1 - sizes.delta):g} % of the analysts within it.",
        f"The price: after {price.num_queries} evaluations on {price.num_examples:,} examples, {_PRICED_CHANGES} of "
        f"which changed what is shown, the interval of a Ladder around {_PRICED_SCORE:g} has a half-width of "
        f"{price.ladder:.3f}, and that over {price.num_queries} fixed candidates {price.plain:.3f}.",
    ]  # fmt: skip


def _tables(outcomes: _Outcomes, prices: Sequence[Price], sizes: AdaptivitySizes) -> list[StudyTable]:
    return [
        StudyTable(
            f"attacks by {sizes.num_analysts:,} analysts on {sizes.num_examples:,} examples, delta = {sizes.delta:g}",
            ["attack", "shown", "evaluations", "failures", "best shown score", "changes", "half-width"],
            [[attack, name, each.num_queries, each.share, each.best, each.changes, each.half_width]
             for (attack, name), each in outcomes.items()],
            f"Failures: the share of analysts for whom an interval misses a true score, {TRUTH:g}, with its exact 95 % "
            "interval; measured: that of the winner; otherwise that of any candidate at any time. Changes: evaluations "
            "that changed what is shown (ladder), or showed a score on validation rows. Half-width: of the interval of "
            "the best shown score.",
        ),
        StudyTable(
            f"half-width of the interval of a score of {_PRICED_SCORE:g}, delta = {sizes.delta:g}",
            ["examples", "evaluations", "exact, fixed candidates", "exact, ladder"],
            [[each.num_examples, each.num_queries, each.plain, each.ladder] for each in prices],
            f"With a step of 1 / sqrt(examples), and {_PRICED_CHANGES} changes.",
        ),
    ]  # fmt: skip


_NAMES = {MEASURED: "measured scores", Ladder.name: "Ladder", Thresholdout.name: "Thresholdout"}


def _draw_failures(axes: Axes, outcomes: _Outcomes, sizes: AdaptivitySizes) -> None:
    for color, (offset, name) in zip(COLORS, zip((-0.2, 0.0, 0.2), _NAMES, strict=True), strict=False):
        places = [place + offset for place in range(len(ATTACKS))]
        shares, low, high = zip(*(outcomes[attack, name].share for attack in ATTACKS), strict=True)
        axes.plot(places, shares, "o", color=color, markersize=5, label=_NAMES[name])
        axes.vlines(places, low, high, color=color, linewidth=1.5)
    axes.axhline(sizes.delta, color=MUTED, linewidth=1.2, linestyle=":")
    axes.set_xticks(range(len(ATTACKS)), labels=list(ATTACKS))
    axes.set_ylim(-0.04, 1.05)
    label_axes(axes, f"Failures of the bound; dotted: delta = {sizes.delta:g}", "attack", "share of analysts",
               legend="center right")  # fmt: skip


def _draw_histories(axes: Axes, outcomes: _Outcomes) -> None:
    attack = "climb"
    for color, name in zip(COLORS, _NAMES, strict=False):
        history = outcomes[attack, name].history
        axes.plot(range(1, len(history) + 1), history, color=color, linewidth=1.6, label=_NAMES[name])
    axes.axhline(TRUTH, color=INK, linewidth=1.2, linestyle=":", label="true score")
    label_axes(axes, f"Best shown score, attack by {attack}", "evaluations", "mean over analysts", legend="upper left")


def _draw_prices(axes: Axes, prices: Sequence[Price], sizes: AdaptivitySizes) -> None:
    examples = [each.num_examples for each in prices]
    axes.plot(examples, [each.plain for each in prices], "o-", color=COLORS[0], markersize=4, label="fixed candidates")
    axes.plot(examples, [each.ladder for each in prices], "o-", color=COLORS[1], markersize=4, label="Ladder")
    label_axes(axes, f"Half-width after {_PRICED_QUERIES} evaluations", "validation examples", "half-width", log="xy",
               legend="upper right")  # fmt: skip
