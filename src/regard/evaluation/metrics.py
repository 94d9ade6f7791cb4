"""Scores of predictions against references, each with its 95 % interval.

Proportions (`exact_match`, `accuracy`) carry Clopper and Pearson's interval,
all others the percentile bootstrap over examples; see `bootstrap` for when each
holds. BLEU and chrF are sacrebleu's own, and so are the fields of their
signatures. Resampling test sets for BLEU: Koehn, "Statistical Significance
Tests for Machine Translation Evaluation" (2004).
https://aclanthology.org/W04-3250
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Real
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.errors import ConfigError, DataError
from regard.evaluation.bootstrap import CONFIDENCE, NUM_RESAMPLES, bootstrap_interval, clopper_pearson
from regard.evaluation.scores import Score

References = Sequence[str] | Sequence[Sequence[str]]
"""For each prediction its reference, or a list of references of which each is right."""

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""How sacrebleu splits text into words: those of its ways that need neither downloads nor further packages."""

_LARGEST_EXPONENT = 700.0  # exp of it is still finite in float64


def exact_match(predictions: Sequence[str], references: References) -> Score:
    """The proportion of predictions equal to their reference, or to one of them, in [0, 1].

    Equal means the same characters: case, spaces and Unicode form all count.

    Example:
        >>> exact_match(["2024-05-01", "1999-12-31"], ["2024-05-01", "1999-12-30"]).value
        0.5
    """
    _check_pairs(predictions, references)
    accepted = _reference_lists(references)
    correct = sum(prediction in right for prediction, right in zip(predictions, accepted, strict=True))
    return _proportion("exact_match", correct, len(predictions), {"nrefs": _num_references(accepted)})


def accuracy(predictions: Sequence[str] | Sequence[int], references: Sequence[str] | Sequence[int]) -> Score:
    """The proportion of labels that are right, in [0, 1].

    The interval speaks of independent labels. Those of the words of one
    sentence are not: their interval comes out too narrow.

    Example:
        >>> print(str(accuracy([1, 0, 2, 2], [1, 0, 2, 1])).split(" = ")[1])
        0.750 [0.194, 0.994]
    """
    _check_pairs(predictions, references)
    correct = sum(bool(label == right) for label, right in zip(predictions, references, strict=True))
    return _proportion("accuracy", correct, len(predictions), {})


def bleu(
    predictions: Sequence[str],
    references: References,
    *,
    tokenizer: BleuTokenizer = "13a",
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Score:
    """Corpus BLEU by sacrebleu, in [0, 100]: n-grams up to 4, mixed case, exponential smoothing.

    Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine
    Translation" (2002). https://aclanthology.org/P02-1040

    It is 0 when no prediction has 4 tokens, however right they are, and a perfect
    score can exceed 100 by a rounding error. The default tokenizer splits words
    at spaces: for Chinese use `zh`, for other scripts without spaces `char`.
    When every prediction is perfect the interval is [100, 100], which does not
    say how rare errors are; `exact_match` does.

    Example:
        >>> score = bleu(["the dog runs home", "a cat sat here now"], ["the dog runs home", "a cat sat here today"])
        >>> round(score.value, 2), score.settings["tok"]
        (79.84, '13a')
    """
    if tokenizer not in get_args(BleuTokenizer):
        raise ConfigError(f"tokenizer must be one of {', '.join(get_args(BleuTokenizer))}, got {tokenizer!r}")
    return _by_sacrebleu(BLEU(tokenize=tokenizer), predictions, references, num_resamples, seed)


def chrf(
    predictions: Sequence[str], references: References, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """Corpus chrF2 by sacrebleu, in [0, 100]: the F-score of character n-grams up to 6, without spaces.

    Popović, "chrF: character n-gram F-score for automatic MT evaluation" (2015).
    https://aclanthology.org/W15-3049

    Recall weighs twice as much as precision (`beta:2`). It needs no tokenizer,
    so it serves every script and words with many endings. Of several references
    each prediction is held against the one it fits best.

    Example:
        >>> round(chrf(["the dog ran home", "hello"], ["the dog runs home", "hello"]).value, 2)
        58.31
    """
    return _by_sacrebleu(CHRF(), predictions, references, num_resamples, seed)


def perplexity(
    negative_log_likelihoods: Sequence[float],
    num_tokens: Sequence[int],
    *,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Score:
    r"""The exponential of the mean negative log-likelihood per token, resampled by sequences.

    $$ \exp\Big(\sum_i L_i \Big/ \sum_i T_i\Big) $$

    A model that spreads its belief evenly over $V$ tokens has perplexity $V$.
    Perplexities compare only between models that read the same text with the
    same tokenizer.

    Args:
        negative_log_likelihoods: Of each whole sequence, in nats: $L_i$.
        num_tokens: How many tokens of each sequence were predicted: $T_i$, at least 1.
        num_resamples: How many test sets the bootstrap draws.
        seed: Of those draws.

    Example:
        >>> round(perplexity([3 * math.log(5), 2 * math.log(5)], [3, 2]).value, 6)
        5.0
    """
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
    return score_from_statistics(
        "perplexity",
        statistics,
        lambda sums: math.exp(sums[0] / sums[1]),
        settings={"tokens": int(statistics[:, 1].sum())},
        num_resamples=num_resamples,
        seed=seed,
    )


def score_from_statistics(
    name: str,
    statistics: Real[np.ndarray, "examples statistics"],
    compute: Callable[[Float[np.ndarray, " statistics"]], float],
    *,
    settings: Mapping[str, str | int | float],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Score:
    """The score `compute` gives to the summed rows of `statistics`, with its bootstrap interval.

    The signature gets, beside `settings`, the number of examples and how the
    interval was made. Of a single example there is no interval: it is None, and
    `interval:none` in the signature.
    """
    made = {"n": len(statistics), "interval": "none"}
    interval = None
    if len(statistics) > 1:
        interval = bootstrap_interval(statistics, compute, num_resamples=num_resamples, seed=seed)
        made |= {"interval": "bootstrap", "confidence": CONFIDENCE, "resamples": num_resamples, "seed": seed}
    value = float(compute(statistics.sum(axis=0, dtype=np.float64)))
    return Score(name=name, value=value, interval=interval, settings={**settings, **made})


def _by_sacrebleu(
    metric: BLEU | CHRF, predictions: Sequence[str], references: References, num_resamples: int, seed: int
) -> Score:
    """A score of sacrebleu's, which is a function of counts summed over sentences.

    `Metric.corpus_score` is these two methods, one after the other; calling them
    apart lets the bootstrap reuse the counts, and tests hold the value equal.
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
    score = score_from_statistics(
        type(metric).__name__.lower(),
        statistics,
        lambda sums: metric._compute_score_from_stats(sums.tolist()).score,
        settings=settings,
        num_resamples=num_resamples,
        seed=seed,
    )
    return replace(score, digits=2)


def _proportion(name: str, num_correct: int, num_examples: int, settings: Mapping[str, str | int | float]) -> Score:
    made = {"n": num_examples, "interval": "clopper-pearson", "confidence": CONFIDENCE}
    return Score(
        name=name,
        value=num_correct / num_examples,
        interval=clopper_pearson(num_correct, num_examples),
        settings={**settings, **made},
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
