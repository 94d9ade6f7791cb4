r"""How an aligned model differs from its base: rewards, KL divergence, win rate, length, repetition and diversity.

At each evaluation the model answers held-out prompts, with the same random numbers as its base, so that differences are
paired. The KL divergence of an answer is estimated by $\log \pi(y) - \log \pi_0(y)$.

Gao et al. (2023) plot the reward that is optimized and the true one against the KL divergence: the first rises, and the
second falls again from some point on, where the model is over-optimized. https://arxiv.org/abs/2210.10760
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice, pairwise
from typing import Any

import numpy as np

from regard.evaluation.intervals import mean_interval
from regard.nn.losses import IGNORED
from regard.tasks.capabilities import ReferenceModel
from regard.tasks.content import Curve, Panel, Plot, Section
from regard.tasks.preference_optimization.rollouts import Reward, answer_log_probs, join_answers, sample_answers
from regard.text.tokenizer import Tokenizer

_SEED = 1
"""The seed of the answers that are compared; the same at each evaluation."""
_NUM_ERRORS = 2.0
"""Standard errors by which the true reward must have fallen for its fall to be real."""
_NAMES = {"reward": "reward that is optimized", "true_reward": "true reward"}


class AlignmentProgress:
    """Measures a model against its base on held-out prompts."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reference: ReferenceModel,
        rewards: Mapping[str, Reward],
        *,
        num_answers: int,
        max_tokens: int,
        texts_of: Callable[[Sequence[Sequence[int]]], list[str]],
    ) -> None:
        """`texts_of` are the prompts as rewards read them, given their tokens."""
        self._tokenizer, self._reference, self._rewards, self._texts_of = tokenizer, reference, rewards, texts_of
        self._num_answers, self._max_tokens = num_answers, max_tokens
        self._base: dict[str, list[float]] | None = None
        self.kl = 0.0
        """The KL divergence at the newest measurement, in nats per answer."""

    def measure(
        self, model: Any, prompts: Sequence[Sequence[int]]
    ) -> tuple[dict[str, float], list[float], list[float]]:
        """Figures of the model's answers, and the reward and the KL divergence of each answer."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        places = np.linspace(0, len(distinct) - 1, min(self._num_answers, len(distinct))).round().astype(int)
        chosen = [distinct[place] for place in islice(cycle(places), self._num_answers)]
        answers = self._answer(model, chosen)
        tokens, targets = (each.to(model.device) for each in join_answers(chosen, answers, self._tokenizer.pad))
        with self._reference.applied() as frozen:
            reference = answer_log_probs(frozen, tokens, targets)
            if self._base is None:
                self._base = self._score(chosen, self._answer(frozen, chosen))
        divergences = (answer_log_probs(model, tokens, targets) - reference).sum(dim=1).double()
        scores = self._score(chosen, answers)
        self.kl = float(divergences.mean())
        figures = _mean_and_error("kl", divergences.tolist())
        for name, values in scores.items():
            figures |= _mean_and_error(name, values)
        figures |= {"length": float((targets != IGNORED).sum() / len(answers))}
        figures |= _text_figures(self._tokenizer.decode(answers))
        if judge := next((name for name in ("true_reward", "reward") if name in scores), None):
            figures |= _win_figures(scores[judge], self._base[judge])
        return figures, scores.get("reward", [0.0] * len(answers)), divergences.tolist()

    def _answer(self, model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return sample_answers(model, self._tokenizer, prompts, seed=_SEED, max_tokens=self._max_tokens)

    def _score(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> dict[str, list[float]]:
        texts = self._texts_of(prompts), self._tokenizer.decode(answers)
        return {name: reward(*texts) for name, reward in self._rewards.items()}


def alignment_sections(lines: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Rewards against the KL divergence, the point from which on the true one falls, and a table of all figures."""
    steps: dict[int, Mapping[str, Any]] = {line["step"]: line for line in lines if "kl" in line}
    found = [steps[step] for step in sorted(steps)]
    if not found:
        return []
    shown = [name for name in _NAMES if name in found[0]]
    peak, sentence = _parting(found)
    title = "Rewards against the KL divergence from the base"
    panel = Panel(
        title,
        [_curve(found, name) for name in shown],
        line=None if peak is None else _distance(peak),
        labels=("root of the KL divergence, in nats of an answer", "reward"),
    )
    names = ("step", "kl", *shown, "win_rate", "win_p", "length", "repetition", "diversity")
    return [
        Section(
            title,
            lead=sentence,
            plot=Plot([panel], description=title) if shown else None,
            columns=["step", "KL", *(_NAMES[name] for name in shown), "win rate", "p", *names[-3:]],
            rows=[[_cell(line, name) for name in names] for line in found],
            note="" if peak is None else "The true reward is highest at the dashed line, and falls beyond it.",
        )
    ]


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """A reward with its 95 % interval, by the distance from the base."""
    ordered = sorted(lines, key=_distance)
    values, spreads = [line[name] for line in ordered], [1.96 * line[f"{name}_error"] for line in ordered]
    return Curve(
        _NAMES[name],
        [_distance(line) for line in ordered],
        values,
        lower=[value - spread for value, spread in zip(values, spreads, strict=True)],
        upper=[value + spread for value, spread in zip(values, spreads, strict=True)],
        band="95 % interval",
    )


def _distance(line: Mapping[str, Any]) -> float:
    return math.sqrt(max(0.0, line["kl"]))


def _parting(lines: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, str]:
    """The evaluation from which on the true reward falls while the optimized one does not, and what there is to say."""
    win = next((line for line in reversed(lines) if "win_rate" in line), None)
    won = ""
    if win is not None:
        share, p = 100 * win["win_rate"], win["win_p"]
        won = f"The last model wins against the base in {share:.0f} % of the prompts (sign test, p = {p:.2g}). "
    if "true_reward" not in lines[0]:
        return None, f"{won}The data has no true reward, so over-optimization cannot be measured."
    best = max(lines, key=lambda line: line["true_reward"])
    later = [line for line in lines if line["step"] > best["step"] and line["kl"] > best["kl"]]
    fallen = [
        line
        for line in later
        if best["true_reward"] - line["true_reward"]
        > _NUM_ERRORS * math.hypot(best["true_reward_error"], line["true_reward_error"])
        and line.get("reward", math.inf) >= best.get("reward", math.inf)
    ]
    if not fallen:
        change = f"from {lines[0]['true_reward']:.2f} to {lines[-1]['true_reward']:.2f}"
        return (
            None,
            f"{won}The true reward changes {change} and never falls significantly: no over-optimization is seen.",
        )
    last = fallen[-1]
    return best, (
        f"{won}Beyond a KL divergence of {best['kl']:.1f} nats (step {best['step']:,}) the model is over-optimized: at "
        f"{last['kl']:.1f} nats the true reward has fallen from {best['true_reward']:.2f} to {last['true_reward']:.2f}."
    )


def _mean_and_error(name: str, values: Sequence[float]) -> dict[str, float]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return {name: float(np.mean(values)), f"{name}_error": spread / math.sqrt(len(values))}


def _win_figures(own: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """The share of prompts on which the model is better, ties as halves, by an exact sign test; and the mean gain."""
    from scipy.stats import binomtest

    gains = np.subtract(own, base)
    wins, losses = int((gains > 0).sum()), int((gains < 0).sum())
    p = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    gain, low, high = mean_interval(gains)
    return {
        "win_rate": (wins + (len(gains) - wins - losses) / 2) / len(gains),
        "win_p": p,
        "gain": gain,
        "gain_low": low,
        "gain_high": high,
    }


def _text_figures(texts: Sequence[str]) -> dict[str, float]:
    """The share of words that repeat an earlier one of the same answer, and of distinct pairs of words in all answers.

    The second is distinct-2 of Li et al., "A Diversity-Promoting Objective Function" (2016).
    """
    words = [text.split() for text in texts]
    repeated = [1 - len(set(some)) / len(some) for some in words if some]
    pairs = [pair for some in words for pair in pairwise(some)]
    return {
        "repetition": float(np.mean(repeated)) if repeated else 0.0,
        "diversity": len(set(pairs)) / len(pairs) if pairs else 0.0,
    }


def _cell(line: Mapping[str, Any], name: str) -> str:
    value = line.get(name)
    if value is None:
        return ""
    if name == "step":
        return f"{value:,}"
    error = line.get(f"{name}_error")
    return f"{value:.3g}" if error is None else f"{value:.2f} ± {1.96 * error:.2f}"
