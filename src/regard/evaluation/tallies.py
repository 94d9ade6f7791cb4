"""What is counted for each example, from which the score of any set of them follows.

A corpus score such as BLEU is no mean over sentences: it is a function of counts
that are summed over all of them. A tally keeps the counts apart, so that whoever
draws, swaps or leaves out examples scores the rest without reading a text again.

Dimensions:
    examples    independent draws: sentences, sequences, documents
    statistics  what is counted for each example, such as matches and lengths
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int, Real
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.errors import ConfigError, DataError
from regard.settings import nearest

References = Sequence[str] | Sequence[Sequence[str]]
"""For each prediction its reference, or a list of references of which each is right."""

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""How sacrebleu splits text into words: those of its ways that need neither downloads nor further packages."""

_LARGEST_EXPONENT = 700.0  # exp of it is still finite in float64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """The counts of each example, and the score that their sums have.

    Example:
        >>> right = tally("exact_match", ["a", "b", "c"], ["a", "b", "d"])
        >>> right.statistics.tolist()
        [[1, 1], [1, 1], [0, 1]]
        >>> right.value, right.subset([1, 2]).value
        (0.6666666666666666, 0.5)
    """

    name: str
    statistics: Real[np.ndarray, "examples statistics"]
    compute: Callable[[Float[np.ndarray, " statistics"]], float]
    """The score, from the sum of the rows of some examples."""
    settings: Mapping[str, str | int | float]
    """What the score depends on beside the examples, for its signature."""
    digits: int = 3
    """Decimals that a score prints."""

    def __len__(self) -> int:
        return len(self.statistics)

    @property
    def value(self) -> float:
        """The score of all examples."""
        return float(self.compute(self.statistics.sum(axis=0, dtype=np.float64)))

    @property
    def is_proportion(self) -> bool:
        """Whether the score is the share of examples that are right."""
        return self.compute is share

    def subset(self, rows: Sequence[int] | Int[np.ndarray, " some"] | Bool[np.ndarray, " examples"]) -> "Tally":
        """The tally of some examples, given by their numbers or by a mask."""
        chosen = self.statistics[np.asarray(rows)] if len(rows) else self.statistics[:0]
        if len(chosen) == 0:
            raise DataError(f"a subset must hold at least 1 of the examples, got 0 of {len(self)}")
        return replace(self, statistics=chosen)

    def compute_each(self, sums: Float[np.ndarray, "*many statistics"]) -> Float[np.ndarray, "*many"]:
        """`compute` of many sums: a proportion's in one division, others one by one, in Python."""
        if self.is_proportion:
            return sums[..., 0] / sums[..., 1]
        scores = [self.compute(row) for row in sums.reshape(-1, sums.shape[-1])]
        return np.array(scores, dtype=np.float64).reshape(sums.shape[:-1])


def tally(name: str, predictions: Sequence[str], references: References) -> Tally:
    """The tally of the metric `name`, one of `exact_match`, `accuracy`, `bleu`, `chrf`, with its default settings.

    What each of them means stands in `regard.evaluation.metrics`.

    Raises:
        ConfigError: If there is no such metric.
        DataError: If predictions and references do not fit together.

    Example:
        >>> tally("blue", ["a"], ["a"])
        Traceback (most recent call last):
        regard.errors.ConfigError: unknown metric 'blue'; did you mean bleu?
    """
    if name not in _TALLIES:
        raise ConfigError(f"unknown metric {name!r}{nearest(name, list(_TALLIES))}")
    return _TALLIES[name](predictions, references)


def tally_exact_match(predictions: Sequence[str], references: References) -> Tally:
    """Which predictions equal one of their references."""
    _check_pairs(predictions, references)
    accepted = _reference_lists(references)
    right = [prediction in lines for prediction, lines in zip(predictions, accepted, strict=True)]
    return _tally_right("exact_match", right, {"nrefs": _num_references(accepted)})


def tally_accuracy(predictions: Sequence[str] | Sequence[int], references: Sequence[str] | Sequence[int]) -> Tally:
    """Which labels are right."""
    _check_pairs(predictions, references)
    for index, label in enumerate(references):
        if isinstance(label, list | tuple):
            raise DataError(f"accuracy knows one right label for each prediction, got {label} for prediction {index}")
    return _tally_right("accuracy", [bool(p == r) for p, r in zip(predictions, references, strict=True)], {})


def tally_bleu(predictions: Sequence[str], references: References, *, tokenizer: BleuTokenizer = "13a") -> Tally:
    """The lengths and n-gram matches of each sentence, by sacrebleu."""
    if tokenizer not in get_args(BleuTokenizer):
        raise ConfigError(f"tokenizer must be one of {', '.join(get_args(BleuTokenizer))}, got {tokenizer!r}")
    return _tally_by_sacrebleu(BLEU(tokenize=tokenizer), predictions, references)


def tally_chrf(predictions: Sequence[str], references: References) -> Tally:
    """The character n-grams of each sentence, and how many match, by sacrebleu."""
    return _tally_by_sacrebleu(CHRF(), predictions, references)


def tally_perplexity(negative_log_likelihoods: Sequence[float], num_tokens: Sequence[int]) -> Tally:
    """The nats and the tokens of each sequence."""
    _check_lengths(negative_log_likelihoods, num_tokens, "negative_log_likelihoods and num_tokens")
    statistics = np.array([negative_log_likelihoods, num_tokens], dtype=np.float64).T
    for index, (nats, tokens) in enumerate(statistics):
        if tokens < 1:
            raise DataError(f"num_tokens must be at least 1, got {tokens:g} for sequence {index}")
        if not abs(nats / tokens) <= _LARGEST_EXPONENT:  # a comparison with nan is false
            raise DataError(
                f"the negative log-likelihood per token must be finite and at most {_LARGEST_EXPONENT:g}, "
                f"got {nats / tokens:g} for sequence {index}"
            )
    return Tally(
        name="perplexity",
        statistics=statistics,
        compute=lambda sums: math.exp(sums[0] / sums[1]),
        settings={"tokens": int(statistics[:, 1].sum())},
    )


def tally_bits_per_byte(negative_log_likelihoods: Sequence[float], num_tokens: Sequence[int], num_bytes: int) -> Tally:
    """The nats and the tokens of each stretch of a text of `num_bytes` bytes, which its tokens are taken to share."""
    if num_bytes < 1:
        raise DataError(f"num_bytes must be at least 1, got {num_bytes}")
    counts = tally_perplexity(negative_log_likelihoods, num_tokens)
    tokens_per_byte = float(counts.statistics[:, 1].sum()) / num_bytes
    return Tally(
        name="bits_per_byte",
        statistics=counts.statistics,
        compute=lambda sums: float(sums[0] / sums[1]) * tokens_per_byte / math.log(2),
        settings={**counts.settings, "bytes": num_bytes},
        digits=4,
    )


def share(sums: Float[np.ndarray, " statistics"]) -> float:
    """How many were right, the first number, of how many there were, the second."""
    return float(sums[0] / sums[1])


_TALLIES: dict[str, Callable[..., Tally]] = {
    "exact_match": tally_exact_match,
    "accuracy": tally_accuracy,
    "bleu": tally_bleu,
    "chrf": tally_chrf,
}


def _tally_right(name: str, right: Sequence[bool], settings: Mapping[str, str | int | float]) -> Tally:
    statistics = np.array([right, np.ones(len(right))], dtype=np.int64).T
    return Tally(name=name, statistics=statistics, compute=share, settings=settings)


def _tally_by_sacrebleu(metric: BLEU | CHRF, predictions: Sequence[str], references: References) -> Tally:
    """The counts of a metric of sacrebleu's, whose score is a function of their sums.

    `Metric.corpus_score` is these two methods, one after the other; calling them
    apart keeps the counts, and tests hold the value equal.
    """
    _check_pairs(predictions, references)
    streams = _reference_streams(_reference_lists(references))
    statistics = np.array(
        # sacrebleu's annotation forgets the None that its docstring allows.
        metric._extract_corpus_statistics(predictions, streams)  # pyright: ignore[reportArgumentType]
    )
    settings = {key: value for key, value in metric.get_signature().info.items() if value is not None}
    settings["sacrebleu"] = settings.pop("version")
    if isinstance(metric, CHRF):
        settings["beta"] = metric.beta  # sacrebleu says it in the name, chrF2
    return Tally(
        name=type(metric).__name__.lower(),
        statistics=statistics,
        compute=lambda sums: metric._compute_score_from_stats(sums.tolist()).score,
        settings=settings,
        digits=2,
    )


def _reference_lists(references: References) -> list[Sequence[str]]:
    """The accepted references of each prediction."""
    lists = [[item] if isinstance(item, str) else item for item in references]
    for index, accepted in enumerate(lists):
        if len(accepted) == 0:
            raise DataError(f"each prediction needs at least one reference, got none for prediction {index}")
    return lists


def _reference_streams(lists: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """The transpose, which is sacrebleu's order; None where a prediction has fewer references."""
    return [list(stream) for stream in zip_longest(*lists)]


def _num_references(lists: Sequence[Sequence[str]]) -> int | str:
    """How many references each prediction has, in sacrebleu's words: a number, or `var`."""
    counts = {len(accepted) for accepted in lists}
    return counts.pop() if len(counts) == 1 else "var"


def _check_pairs(predictions: Sequence[object], references: Sequence[object]) -> None:
    if isinstance(predictions, str) or isinstance(references, str):
        raise DataError(f"predictions and references must be lists, got {predictions!r} and {references!r}")
    _check_lengths(predictions, references, "predictions and references")


def _check_lengths(first: Sequence[object], second: Sequence[object], names: str) -> None:
    if len(first) != len(second) or len(first) == 0:
        raise DataError(f"{names} must be equally many and at least one, got {len(first)} and {len(second)}")
