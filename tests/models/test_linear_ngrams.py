"""The linear model of n-grams equals scikit-learn's, padding has no effect on it, and scales fit the rows."""

import random
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from torch import Tensor

from regard.models.linear_ngrams import MANY_CLASSES, LinearNgrams, Outputs, TokenRows, _fit
from regard.nn.losses import IGNORED

VOCAB, CLASSES = 40, 3


def make_rows(count: int, seed: int = 0, *, num_classes: int = CLASSES) -> tuple[list[list[int]], list[int]]:
    """Texts whose class some of their words tell."""
    rng = random.Random(seed)
    labels = [number % num_classes for number in range(count)]
    texts = [[10 * label + rng.randrange(20) for _ in range(rng.randint(1, 9))] for label in labels]
    return texts, labels


def stored(texts: list[list[int]]) -> TokenRows:
    return TokenRows(np.array([*chain(*texts)], np.uint16), np.cumsum([0, *map(len, texts)]))


def padded(texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, texts))
    return torch.tensor([[*text, *[7] * (longest - len(text))] for text in texts]), torch.tensor([*map(len, texts)])


def tfidf(longest: int) -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=(1, longest), binary=True, token_pattern=r"\w+")


def words(texts: list[list[int]]) -> list[str]:
    return [" ".join(map(str, text)) for text in texts]


def mean_of_two(features: Any, labels: Any, others: Any) -> NDArray[np.float64]:
    """Decision function of plain logistic regression, and of that on features scaled by the weights of naive Bayes."""
    present, labels = (features.toarray() > 0).astype(float), np.array(labels)
    ratios = []
    for label in np.unique(labels):
        inside, outside = (1 + present[mask].sum(axis=0) for mask in (labels == label, labels != label))
        ratios.append(np.log(inside / inside.sum()) - np.log(outside / outside.sum()))
    scales = np.sqrt(np.mean(np.square(ratios), axis=0))
    model = LogisticRegression(C=3.0, max_iter=1_000)
    plain = model.fit(features.toarray(), labels).decision_function(others.toarray())
    return (plain + model.fit(features.toarray() * scales, labels).decision_function(others.toarray() * scales)) / 2


@pytest.mark.parametrize("longest", [1, 3])
def test_classes_are_those_of_logistic_regression_on_binary_tfidf(longest: int):
    """Of so few texts, no two n-grams have the same slot."""
    (texts, labels), (others, _) = make_rows(30), make_rows(50, seed=1)
    term = LinearNgrams(longest, VOCAB, CLASSES).double()
    assert term.solve(stored(texts), np.array(labels), [""] * VOCAB, "classes")
    vectors = tfidf(longest)
    expected = mean_of_two(vectors.fit_transform(words(texts)), labels, vectors.transform(words(others)))
    torch.testing.assert_close(term(*padded(others)).softmax(1), torch.tensor(expected).softmax(1), atol=2e-3, rtol=0)


def test_many_classes_have_the_margins_of_linear_svms_as_logits():
    num_classes, vocab_size = MANY_CLASSES + 1, 10 * MANY_CLASSES + 20
    (texts, labels), (others, _) = make_rows(55, num_classes=num_classes), make_rows(50, 1, num_classes=num_classes)
    term = LinearNgrams(2, vocab_size, num_classes).double()
    assert term.solve(stored(texts), np.array(labels), [""] * vocab_size, "classes")
    vectors = tfidf(2)
    model = LinearSVC(random_state=0).fit(vectors.fit_transform(words(texts)), labels)
    expected = 4 * torch.tensor(model.decision_function(vectors.transform(words(others))))
    torch.testing.assert_close(term(*padded(others)).softmax(1), expected.softmax(1), atol=2e-3, rtol=0)


def test_without_time_for_logistic_regression_there_are_some_passes_of_an_svm():
    """A few iterations of logistic regression are far from its solution; a few passes of an SVM are close to its."""
    texts, labels = make_rows(300)
    features = tfidf(2).fit_transform(words(texts))
    weights, bias = _fit(features, np.array(labels), CLASSES, "classes", 1e-9)
    expected = LinearSVC(random_state=0).fit(features, labels).decision_function(features)
    assert np.mean((features @ weights + bias).argmax(1) == expected.argmax(1)) > 0.97


def test_two_classes_and_several_labels_and_numbers():
    texts, labels = make_rows(120)
    features = tfidf(2).fit_transform(words(texts))
    is_last = np.array(labels) == 2
    expected = 1 / (1 + np.exp(-mean_of_two(features, is_last, features)))

    two = LinearNgrams(2, VOCAB, 2).double()
    assert two.solve(stored(texts), is_last.astype(int), [""] * VOCAB, "classes")
    torch.testing.assert_close(two(*padded(texts)).softmax(1)[:, 1], torch.tensor(expected), atol=2e-3, rtol=0)

    several = LinearNgrams(2, VOCAB, 3).double()
    hot = np.stack([is_last, ~is_last, np.ones(120, bool)], axis=1).astype(float)
    assert several.solve(stored(texts), hot, [""] * VOCAB, "labels")
    found = several(*padded(texts)).sigmoid()
    torch.testing.assert_close(found[:, 0], torch.tensor(expected), atol=2e-3, rtol=0)
    assert (found[:, 2] > 0.99).all(), "a label that all rows have"

    number = LinearNgrams(2, VOCAB, 1).double()
    targets = np.array(labels) - 1.0
    assert number.solve(stored(texts), targets, [""] * VOCAB, "numbers")
    expected = Ridge().fit(features, targets).predict(features)
    torch.testing.assert_close(number(*padded(texts))[:, 0], torch.tensor(expected), atol=2e-3, rtol=0)


def test_spellings_are_shared_by_words_with_the_same_stem():
    """The weights of a word that no text has come from its characters."""
    names = [" walk ", " talk ", " walked ", " talked ", " walking "]
    texts = [[0], [1], [2], [3]] * 3
    labels = np.array([0, 0, 1, 1] * 3)
    term = LinearNgrams(1, 5, 2).double()
    assert term.solve(stored(texts), labels, names, "classes")
    assert term(torch.tensor([[0], [2]]), None).argmax(1).tolist() == [0, 1]
    torch.testing.assert_close(term.spelling[4].sum(), torch.tensor(0.0))
    assert term.spelling[4, 0] > 0, "a word that no text has is known by the characters that it shares with others"
    same = LinearNgrams(1, 5, 2).double()
    assert same.solve(stored(texts), labels, [""] * 5, "classes")
    apart = [each(torch.tensor([[0], [2]]), None)[1].diff().item() for each in (term, same)]
    assert apart[0] > apart[1], "two more features tell the classes apart, that of the ending among them"


def test_padding_and_other_rows_change_nothing():
    texts, labels = make_rows(100)
    term = LinearNgrams(2, VOCAB, CLASSES).double()
    term.solve(stored(texts), np.array(labels), [f" w{number} " for number in range(VOCAB)], "classes")
    together = term(*padded(texts))
    for number, text in enumerate(texts):
        torch.testing.assert_close(together[number], term(torch.tensor([text]), None)[0])


def test_an_ngram_that_occurs_twice_counts_once():
    texts, labels = make_rows(100)
    term = LinearNgrams(1, VOCAB, CLASSES).double()
    term.solve(stored(texts), np.array(labels), [f" w{number} " for number in range(VOCAB)], "classes")
    once, twice = torch.tensor([[3, 15]]), torch.tensor([[3, 15, 3, 3]])
    torch.testing.assert_close(term(once, None), term(twice, None))


def test_equal_targets_have_nothing_to_be_solved():
    texts, _ = make_rows(10)
    term = LinearNgrams(2, VOCAB, CLASSES)
    assert not term.solve(stored(texts), np.zeros(10, int), [""] * VOCAB, "classes")
    assert not term.is_solved


def test_without_a_feature_there_is_nothing_to_be_solved():
    """Of a thousand texts, n-grams of a single one are no features."""
    texts = [[2 * number, 2 * number + 1] for number in range(1_000)]
    term = LinearNgrams(2, 2_000, CLASSES)
    assert not term.solve(stored(texts), np.arange(1_000) % CLASSES, [""] * 2_000, "classes")
    assert not term.is_solved


def test_in_little_time_some_of_the_texts_are_used():
    texts, labels = make_rows(3_000)
    rows = stored(texts)
    whole, part = LinearNgrams(2, VOCAB, CLASSES), LinearNgrams(2, VOCAB, CLASSES)
    assert whole.solve(rows, np.array(labels), [""] * VOCAB, "classes")
    assert part.solve(rows, np.array(labels), [""] * VOCAB, "classes", seconds=len(rows.ids) / 3e6)
    assert 0 < (part.keys > 0).sum() < (whole.keys > 0).sum()
    right = (part(*padded(texts)).argmax(dim=1) == torch.tensor(labels)).double().mean()
    assert right > 0.6


def test_of_two_predictors_the_one_that_is_right_gets_the_weight():
    targets = torch.randint(CLASSES, (400,))
    right = 3 * torch.nn.functional.one_hot(targets, CLASSES).double() + torch.randn(400, CLASSES)
    noise = torch.randn(400, CLASSES)
    targets[:10] = IGNORED
    term = LinearNgrams(1, VOCAB, CLASSES)
    term.fit_scales(right, noise, targets, "classes")
    assert term.scales[0] > 0.8
    assert term.scales[1] < 0.3
    term.fit_scales(noise, right, targets, "classes")
    assert term.scales[1] > 0.8


@pytest.mark.parametrize("outputs", ["classes", "labels", "numbers"])
def test_a_network_that_lowers_the_loss_by_less_than_a_standard_error_is_not_used(outputs: Outputs):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(400, 1 if outputs == "numbers" else 2, generator=generator)
    targets = {"classes": hidden.argmax(dim=1), "labels": (hidden > 0).long(), "numbers": hidden[:, 0]}[outputs]
    linear, network, noise = (torch.randn(hidden.shape, generator=generator) for _ in range(3))
    term = LinearNgrams(1, VOCAB, hidden.size(1))
    term.fit_scales(noise, hidden + linear, targets, outputs)
    assert term.scales[0] == 0
    assert term.scales[1] > 0.2
    term.fit_scales(hidden + network, hidden + linear, targets, outputs)
    assert (term.scales > 0.2).all()


def test_few_rows_leave_the_scales_near_the_expected_value():
    targets = torch.tensor([0, 1])
    term = LinearNgrams(1, VOCAB, 2)
    term.fit_scales(torch.eye(2), torch.eye(2), targets, "classes")
    assert ((term.scales - 0.6).abs() < 0.2).all()
