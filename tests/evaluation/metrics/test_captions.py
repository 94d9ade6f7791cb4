"""BLEU of short n-grams against sacrebleu, and CIDEr-D against a computation by hand."""

import math

import pytest
import sacrebleu

from regard.evaluation import Examples, find_metric
from regard.evaluation.metrics.captions import count_cider, count_short_bleu


def test_short_bleu_is_that_of_sacrebleu():
    outputs = ["a dog runs on the grass", "two men sit", "a cat"]
    references = [["a dog runs over grass", "the dog is on the grass"], ["two men sit down", "men sit"], ["a bird"] * 2]
    for longest in (1, 2, 3):
        expected = sacrebleu.BLEU(max_ngram_order=longest, force=True).corpus_score(
            outputs, [list(each) for each in zip(*references, strict=True)]
        )
        assert count_short_bleu(outputs, references, longest=longest).value == pytest.approx(expected.score)


def test_cider_is_what_the_formula_says():
    """Two images; `a` is in the references of both, so that its weight is log 2 - log 2 = 0."""
    outputs, references = ["a red red dog", "a cat"], [["a red dog", "a dog"], ["a big cat"]]
    w = math.log(2)
    # Image 1, n = 1. Output: red 2, dog 1; reference 1: red 1, dog 1; reference 2: dog 1. All of weight w.
    # Clipped: red min(2, 1) * 1 + dog 1 * 1 = 2; norms sqrt(5) and sqrt(2).
    one_first, one_second = 2 / math.sqrt(10), 1 / math.sqrt(5)
    # n = 2. Output: `a red`, `red red`, `red dog`; reference 1: `a red`, `red dog`; reference 2: `a dog`.
    two_first, two_second = 2 / math.sqrt(6), 0.0
    # n = 3. Output: `a red red`, `red red dog`; reference 1: `a red dog`: nothing in common, and none of 4 words.
    shorter, much_shorter = math.exp(-1 / 72), math.exp(-4 / 72)
    first = (10 * shorter * (one_first + two_first) / 4 + 10 * much_shorter * (one_second + two_second) / 4) / 2
    # Image 2, n = 1: cat of weight w; reference: big and cat. n = 2: `a cat` against `a big`, `big cat`: nothing.
    second = 10 * math.exp(-1 / 72) * (1 / math.sqrt(2)) / 4
    assert w > 0
    counts = count_cider(outputs, references)
    assert counts.statistics[:, 0].tolist() == pytest.approx([first, second])
    assert counts.value == pytest.approx((first + second) / 2)


def test_a_caption_that_is_longer_than_its_reference_gains_nothing_by_repetition():
    references = [["a red dog on a beach"], ["two men sit down"]]
    plain, repeated = (count_cider([text, "two men"], references).value for text in ("a red dog", "a red dog " * 4))
    assert repeated < plain


def test_of_one_image_all_ngrams_are_in_the_references_of_all():
    assert count_cider(["a dog"], [["a dog"]]).value == 0.0


def test_pointing_is_a_mean_over_words_and_not_over_images():
    metric = find_metric("pointing")
    counts = metric.count(Examples(extras={"pointing": [[1.0, 1.0], [1.0, 3.0], [0.0, 0.0]]}))
    assert len(counts) == 2
    assert counts.value == pytest.approx(0.5)
