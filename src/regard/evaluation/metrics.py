"""Scores of predictions against references, each with its 95 % interval.

Proportions (`exact_match`, `accuracy`) carry Clopper and Pearson's interval,
all others the percentile bootstrap over examples; see `bootstrap` for when each
holds. BLEU and chrF are sacrebleu's own, and so are the fields of their
signatures. What is counted for each example stands in `tallies`. Resampling
test sets for BLEU: Koehn, "Statistical Significance Tests for Machine
Translation Evaluation" (2004).
https://aclanthology.org/W04-3250
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from regard.evaluation.bootstrap import CONFIDENCE, NUM_RESAMPLES, bootstrap_interval, clopper_pearson
from regard.evaluation.scores import Score
from regard.evaluation.tallies import (
    BleuTokenizer,
    References,
    Tally,
    tally_accuracy,
    tally_bits_per_byte,
    tally_bleu,
    tally_chrf,
    tally_exact_match,
    tally_perplexity,
)


def exact_match(predictions: Sequence[str], references: References) -> Score:
    """The proportion of predictions equal to their reference, or to one of them, in [0, 1].

    Equal means the same characters: case, spaces and Unicode form all count.

    Example:
        >>> exact_match(["2024-05-01", "1999-12-31"], ["2024-05-01", "1999-12-30"]).value
        0.5
    """
    return score_tally(tally_exact_match(predictions, references))


def accuracy(predictions: Sequence[str] | Sequence[int], references: Sequence[str] | Sequence[int]) -> Score:
    """The proportion of labels that are right, in [0, 1].

    The interval speaks of independent labels. Those of the words of one
    sentence are not: their interval comes out too narrow.

    Example:
        >>> print(str(accuracy([1, 0, 2, 2], [1, 0, 2, 1])).split(" = ")[1])
        0.750 [0.194, 0.994]
    """
    return score_tally(tally_accuracy(predictions, references))


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
    counts = tally_bleu(predictions, references, tokenizer=tokenizer)
    return score_tally(counts, num_resamples=num_resamples, seed=seed)


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
    return score_tally(tally_chrf(predictions, references), num_resamples=num_resamples, seed=seed)


def perplexity(
    negative_log_likelihoods: Sequence[float],
    num_tokens: Sequence[int],
    *,
    settings: Mapping[str, int] | None = None,
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
        settings: What else it depended on, for the signature.
        num_resamples: How many test sets the bootstrap draws.
        seed: Of those draws.

    Example:
        >>> from math import log
        >>> round(perplexity([3 * log(5), 2 * log(5)], [3, 2]).value, 6)
        5.0
    """
    counts = tally_perplexity(negative_log_likelihoods, num_tokens)
    return score_tally(_with(counts, settings), num_resamples=num_resamples, seed=seed)


def bits_per_byte(
    negative_log_likelihoods: Sequence[float],
    num_tokens: Sequence[int],
    *,
    num_bytes: int,
    settings: Mapping[str, int] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Score:
    r"""How many bits a byte of text costs, were it compressed by the model; resampled by stretches of text.

    $$ \frac{1}{B \ln 2} \sum_i L_i $$

    with $B$ the bytes of the text in UTF-8. It compares between models whatever
    their tokenizers, as long as none loses anything (an unknown token does).

    Example:
        >>> from math import log
        >>> bits_per_byte([log(2) * 8], [1], num_bytes=4).value
        2.0
    """
    counts = tally_bits_per_byte(negative_log_likelihoods, num_tokens, num_bytes)
    return score_tally(_with(counts, settings), num_resamples=num_resamples, seed=seed)


def _with(tally: Tally, settings: Mapping[str, int] | None) -> Tally:
    return replace(tally, settings={**tally.settings, **(settings or {})})


def score_tally(
    tally: Tally, *, confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Score:
    """The score of all examples of a tally, with the interval that suits it.

    For a proportion that is Clopper and Pearson's, which draws nothing; for any
    other score the bootstrap's. The signature gets, beside the settings of the
    tally, the number of examples and how the interval was made. Of a single
    example the bootstrap has no interval: it is None, and `interval:none` in the
    signature.
    """
    made: dict[str, str | int | float] = {"n": len(tally)}
    interval = None
    if tally.is_proportion:
        interval = clopper_pearson(int(tally.statistics[:, 0].sum()), len(tally), confidence=confidence)
        made |= {"interval": "clopper-pearson", "confidence": confidence}
    elif len(tally) == 1:
        made |= {"interval": "none"}
    else:
        interval = bootstrap_interval(
            tally.statistics, tally.compute, confidence=confidence, num_resamples=num_resamples, seed=seed
        )
        made |= {"interval": "bootstrap", "confidence": confidence, "resamples": num_resamples, "seed": seed}
    return Score(
        name=tally.name,
        value=tally.value,
        interval=interval,
        settings={**tally.settings, **made},
        digits=tally.digits,
    )
