"""Metrics of the probability that a model assigns to text or images: perplexity, bits, and those of masked tokens."""

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from jaxtyping import Int, Real

from regard.errors import DataError
from regard.evaluation.counts import Counts, check_equal_lengths, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric

_LARGEST_EXPONENT = 700.0  # exp of it is still finite in float64


def count_perplexity(losses: Sequence[float], num_tokens: Sequence[int]) -> Counts:
    r"""Count the nats and the tokens of each sequence: perplexity is $\exp(\sum_i L_i / \sum_i T_i)$.

    A uniform distribution over $V$ tokens has perplexity $V$. Perplexities are
    comparable only between models that score the same text with the same tokenizer.

    Args:
        losses: The negative log-likelihood of each whole sequence, in nats: $L_i$.
        num_tokens: The number of predicted tokens of each sequence: $T_i$, at least 1.

    Example:
        >>> from math import log
        >>> round(count_perplexity([3 * log(5), 2 * log(5)], [3, 2]).value, 6)
        5.0
    """
    check_equal_lengths(losses, num_tokens, "losses and num_tokens")
    statistics = np.array([losses, num_tokens], dtype=np.float64).T
    for index, (nats, tokens) in enumerate(statistics):
        if tokens < 1:
            raise DataError(f"num_tokens must be at least 1, got {tokens:g} for sequence {index}")
        if not abs(nats / tokens) <= _LARGEST_EXPONENT:  # a comparison with nan is false
            raise DataError(
                f"the loss per token must be finite and at most {_LARGEST_EXPONENT:g}, "
                f"got {nats / tokens:g} for sequence {index}"
            )
    return Counts(
        statistics=statistics,
        compute=lambda sums: math.exp(sums[0] / sums[1]),
        settings={"tokens": int(statistics[:, 1].sum())},
    )


def count_bits_per_byte(losses: Sequence[float], num_tokens: Sequence[int], num_bytes: int) -> Counts:
    r"""Count the nats and the tokens of each span of a text of $B$ bytes: $\frac{1}{B \ln 2} \sum_i L_i$.

    The number of bits per byte with which the model would compress the text. It is
    comparable between models whatever their tokenizers, as long as none loses
    information (an unknown token does). A subset of the spans is assumed to have
    as many bytes per token as the whole text.

    Example:
        >>> from math import log
        >>> count_bits_per_byte([log(2) * 8], [1], 4).value
        2.0
    """
    if num_bytes < 1:
        raise DataError(f"num_bytes must be at least 1, got {num_bytes}")
    counts = count_perplexity(losses, num_tokens)
    tokens_per_byte = float(counts.statistics[:, 1].sum()) / num_bytes
    return Counts(
        statistics=counts.statistics,
        compute=lambda sums: float(sums[0] / sums[1]) * tokens_per_byte / math.log(2),
        settings={**counts.settings, "bytes": num_bytes},
    )


def count_bits_per_dimension(losses: Sequence[float], num_values: Sequence[int]) -> Counts:
    r"""Count the nats and the values of each image: $\sum_i L_i / (\ln 2 \sum_i D_i)$.

    The number of bits per value with which the model would compress the images without loss. The losses must be those
    of values of 8 bits: a model of $K$ levels, each of which stands for $256 / K$ values, pays $\ln(256 / K)$ more for
    each value.

    Args:
        losses: The negative log-likelihood of each image, in nats: $L_i$.
        num_values: The values of each image, such as 32 x 32 x 3: $D_i$, at least 1.

    Example:
        >>> from math import log
        >>> count_bits_per_dimension([12 * log(256)], [12]).value
        8.0
    """
    counts = count_perplexity(losses, num_values)
    return Counts(
        statistics=counts.statistics,
        compute=lambda sums: float(sums[0] / sums[1]) / math.log(2),
        settings={"values": counts.settings["tokens"]},
    )


def count_masked_accuracy(num_correct: Sequence[int], num_tokens: Sequence[int]) -> Counts:
    """Count the masked tokens of each window, and those predicted correctly.

    It is not a proportion of examples, which are windows: the tokens of one window
    are not independent, so the interval is that of a ratio.

    Example:
        >>> count_masked_accuracy([3, 1], [4, 4]).value
        0.5
    """
    check_equal_lengths(num_correct, num_tokens, "num_correct and num_tokens")
    statistics = np.array([num_correct, num_tokens], np.int64).T
    return Counts(statistics=statistics, compute=ratio, settings={"tokens": int(statistics[:, 1].sum())})


def _perplexity(examples: Examples) -> Counts:
    return count_perplexity(*examples.require("losses", "num_tokens"))


PERPLEXITY = Metric(
    name="perplexity",
    label="Perplexity",
    counter=_perplexity,
    needs=("losses", "num_tokens"),
    higher_is_better=False,
    digits=None,
    is_per_token=True,
)
PSEUDO_PERPLEXITY = Metric(
    # Probabilities of masked tokens given those on both sides do not multiply to the probability of a text.
    name="pseudo_perplexity",
    label="Pseudo-perplexity",
    counter=_perplexity,
    needs=("losses", "num_tokens"),
    higher_is_better=False,
    digits=None,
    is_per_token=True,
)
BITS_PER_BYTE = Metric(
    name="bits_per_byte",
    label="Bits per byte",
    counter=lambda examples: count_bits_per_byte(*examples.require("losses", "num_tokens", "num_bytes")),
    needs=("losses", "num_tokens", "num_bytes"),
    higher_is_better=False,
    digits=4,
)
BITS_PER_DIMENSION = Metric(
    name="bits_per_dimension",
    label="Bits per dimension",
    counter=lambda examples: count_bits_per_dimension(*examples.require("losses", "num_tokens")),
    needs=("losses", "num_tokens"),
    higher_is_better=False,
)
MASKED_ACCURACY = Metric(
    name="masked_accuracy",
    label="Masked accuracy",
    counter=lambda examples: count_masked_accuracy(*examples.require("num_correct", "num_tokens")),
    needs=("num_correct", "num_tokens"),
)


def shared_ends(num_tokens: Sequence[Sequence[int]]) -> Int[np.ndarray, " spans"]:
    """The positions at which windows of every model end, in tokens; the last one is the length of the text.

    A language model scores a text window by window, and windows may differ in length between models. Between two
    shared ends lies a span of the same bytes for all models, on which their likelihoods are compared.

    Args:
        num_tokens: For each model the number of tokens that each of its windows scored.

    Raises:
        DataError: If the models have scored different numbers of tokens.

    Example:
        >>> shared_ends([[4, 4, 4, 1], [6, 6, 1]]).tolist()
        [12, 13]
    """
    ends = [np.cumsum(some) for some in num_tokens]
    totals = sorted({int(each[-1]) for each in ends})
    if len(totals) > 1:
        raise DataError(f"models must score the same text, got texts of {' and '.join(map(str, totals))} tokens")
    return reduce(np.intersect1d, ends)


def sum_between(
    values: Sequence[float], num_tokens: Sequence[int], ends: Int[np.ndarray, " spans"]
) -> Real[np.ndarray, " spans"]:
    """The sums of a model's values over the windows of each span; `ends` must be among those of its windows.

    Example:
        >>> sum_between([0.5, 1.0, 2.0, 4.0], [4, 4, 4, 1], shared_ends([[4, 4, 4, 1], [6, 6, 1]])).tolist()
        [3.5, 4.0]
    """
    last_windows = np.searchsorted(np.cumsum(num_tokens), ends)
    return np.add.reduceat(np.asarray(values), np.concatenate([[0], last_windows[:-1] + 1]))
