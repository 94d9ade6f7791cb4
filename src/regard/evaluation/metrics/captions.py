r"""Metrics of captions: BLEU of shorter n-grams, CIDEr-D, and the attention that words have on what they name.

CIDEr-D is by Vedantam, Zitnick and Parikh, "CIDEr: Consensus-based Image Description Evaluation" (2015), equations 2
and 3 with the changes of section 5.3. https://arxiv.org/abs/1411.5726

$$ \mathrm{CIDEr}_n(c, S) = \frac{10}{m} \sum_{j=1}^m e^{-(l(c) - l(s_j))^2 / 2 \sigma^2} \,
   \frac{\min(g^n(c), g^n(s_j)) \cdot g^n(s_j)}{\|g^n(c)\| \, \|g^n(s_j)\|} $$

$g^n$ are the counts of n-grams, weighted by the logarithm of the inverse share of images in whose references they
occur; the score is the mean over n = 1 to 4, and over images. Words are separated by white space, and not stemmed.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.evaluation.counts import Counts, check_equal_lengths, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.text import (
    References,
    count_with_sacrebleu,
    make_bleu,
    num_references,
    reference_lists,
)
from regard.evaluation.registry import Metric, on_pairs

_LONGEST, _SIGMA = 4, 6.0
NGram = tuple[str, ...]


def count_short_bleu(predictions: Sequence[str], references: References, *, longest: int) -> Counts:
    """Count the matches of BLEU with n-grams of up to `longest` words.

    Example:
        >>> round(count_short_bleu(["a dog runs"], [["a dog sits", "a cat runs"]], longest=1).value, 6)
        100.0
    """
    return count_with_sacrebleu(make_bleu(longest=longest), predictions, references)


def count_cider(predictions: Sequence[str], references: References) -> Counts:
    """Compute CIDEr-D for each image, in [0, 10]; the shares of images are those of the references given here.

    Of a single image it is 0: its n-grams are in the references of all images.

    Example:
        >>> round(count_cider(["a red dog", "a blue cat"], [["a red dog"], ["a blue bird"]]).value, 3)
        5.0
    """
    check_equal_lengths(predictions, references)
    lists = reference_lists(references)
    found = [[_ngrams(text) for text in texts] for texts in lists]
    occurrences = Counter(ngram for texts in found for ngram in {ngram for each in texts for ngram in each})
    log_images = math.log(len(lists))
    weights = {ngram: log_images - math.log(count) for ngram, count in occurrences.items()}
    rows = []
    for text, texts in zip(predictions, found, strict=True):
        own = _ngrams(text)
        rows.append([sum(_similarity(own, each, weights, log_images) for each in texts) / len(texts), 1.0])
    return Counts(
        statistics=np.array(rows), compute=ratio, settings={"nrefs": num_references(lists), "idf": "references"}
    )


def _ngrams(text: str) -> Counter[NGram]:
    words = text.split()
    return Counter(
        tuple(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    )


def _similarity(
    own: Counter[NGram], reference: Counter[NGram], weights: dict[NGram, float], log_images: float
) -> float:
    """The term of one reference, its mean over the lengths of n-grams."""
    products, norms, others = np.zeros(_LONGEST), np.zeros(_LONGEST), np.zeros(_LONGEST)
    for ngram, count in own.items():
        weight, order = weights.get(ngram, log_images), len(ngram) - 1
        norms[order] += (count * weight) ** 2
        products[order] += min(count, reference[ngram]) * reference[ngram] * weight**2
    for ngram, count in reference.items():
        others[len(ngram) - 1] += (count * weights[ngram]) ** 2
    scale = np.sqrt(norms * others)
    difference = sum(count for ngram, count in own.items() if len(ngram) == 1) - sum(
        count for ngram, count in reference.items() if len(ngram) == 1
    )
    penalty = math.exp(-(difference**2) / (2 * _SIGMA**2))
    return 10 * penalty * float(np.divide(products, scale, out=np.zeros(_LONGEST), where=scale > 0).mean())


def _count_pointing(examples: Examples) -> Counts:
    (sums,) = examples.require("pointing")
    known = [each for each in sums if each[1] > 0]
    return Counts(statistics=np.array(known or [[0.0, 1.0]], np.float64), compute=ratio)


def _bleu(longest: int) -> Metric:
    def count(outputs: Sequence[str], targets: References) -> Counts:
        return count_short_bleu(outputs, targets, longest=longest)

    return Metric(name=f"bleu{longest}", label=f"BLEU-{longest}", counter=on_pairs(count), digits=2)


BLEU1 = _bleu(1)
BLEU2 = _bleu(2)
BLEU3 = _bleu(3)
CIDER = Metric(name="cider", label="CIDEr", counter=on_pairs(count_cider))
POINTING = Metric(name="pointing", label="Pointing accuracy", counter=_count_pointing, needs=("pointing",))
