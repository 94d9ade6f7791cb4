"""Linear baselines against scikit-learn, written out."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.svm import LinearSVC

from regard.baselines import fit_classifier, fit_multi_label, fit_number, fit_pixels
from regard.baselines import linear as module
from regard.baselines.linear import draw_images
from regard.errors import DataError

NOUNS, PRAISE, BLAME = ["film", "plot", "cast", "song"], ["good", "great", "fine"], ["bad", "weak", "slow"]
RNG = np.random.default_rng(3)


def opinion(words: list[str]) -> str:
    return f"a {RNG.choice(words)} {RNG.choice(NOUNS)}, number {RNG.integers(100)}"


TEXTS = [opinion(PRAISE if number % 2 else BLAME) for number in range(61)]
LABELS = ["praise" if number % 2 else "blame" for number in range(61)]


def reference() -> FeatureUnion:
    return FeatureUnion(
        [
            ("w", TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True)),
            ("c", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)),
        ]
    )


def test_labels_are_those_of_a_scikit_learn_pipeline():
    expected = make_pipeline(reference(), LogisticRegression(C=10.0)).fit(TEXTS, LABELS)
    found = fit_classifier(TEXTS, LABELS)
    inputs = ["a great film", "a weak song, number 3", "the cast"]
    predictions = found.predict(inputs)
    assert found.name == "TF-IDF + logistic regression"
    assert list(predictions.outputs) == list(expected.predict(inputs))
    assert predictions.probabilities is not None
    given = [[table["blame"], table["praise"]] for table in predictions.probabilities]
    np.testing.assert_allclose(given, expected.predict_proba(inputs), rtol=1e-6)


def test_many_labels_are_those_of_a_linear_svm():
    names = [f"kind {number}" for number in range(12)]
    texts = [f"{name} {word}" for name in names for word in ("film", "song", "cast", "plot")]
    labels = [name for name in names for _ in range(4)]
    expected = make_pipeline(reference(), LinearSVC(random_state=0)).fit(texts, labels)
    found = fit_classifier(texts, labels)
    predictions = found.predict(["a kind 7 film", "song of kind 11"])
    assert found.name == "TF-IDF + linear SVM"
    assert list(predictions.outputs) == list(expected.predict(["a kind 7 film", "song of kind 11"]))
    assert predictions.probabilities is not None
    assert [sum(table.values()) for table in predictions.probabilities] == pytest.approx([1, 1])


def test_single_words_of_which_each_occurs_once_have_a_baseline():
    words = [f"{first}{second}{third}" for first in "abcdefghij" for second in "klmnopqrst" for third in "uvwxyzabcd"]
    baseline = fit_number(words, [float(word[0] in "abc") for word in words])
    assert [round(float(each)) for each in baseline.predict(["akv", "jkv"]).outputs] == [1, 0]


def test_numbers_are_those_of_a_scikit_learn_pipeline():
    numbers = [float(PRAISE.index(text.split()[1])) if label == "praise" else -1.0
               for text, label in zip(TEXTS, LABELS, strict=True)]  # fmt: skip
    expected = make_pipeline(reference(), Ridge(solver="lsqr")).fit(TEXTS, numbers)
    inputs = ["a great film", "a weak song, number 3"]
    found = [float(output) for output in fit_number(TEXTS, numbers).predict(inputs).outputs]
    np.testing.assert_allclose(found, expected.predict(inputs), rtol=1e-4)


def test_a_text_may_have_several_labels_or_none():
    texts = ["cat and sea", "cat only", "sea only", "nothing"] * 12
    labels = [["cat", "sea"], ["cat"], ["sea"], []] * 12
    baseline = fit_multi_label(texts, labels, join=", ".join)
    assert list(baseline.predict(["sea and cat", "cat only", "nothing"]).outputs) == ["cat, sea", "cat", ""]


def test_a_label_of_every_row_is_predicted_for_every_text():
    baseline = fit_multi_label(
        ["red cat", "red sea", "cat"] * 5, [["all", "red"], ["all", "red"], ["all"]] * 5, join="+".join
    )
    assert list(baseline.predict(["cat", "red sea"]).outputs) == ["all", "all+red"]


def test_one_label_alone_is_an_error_that_names_it():
    with pytest.raises(DataError, match="two labels, and all 3 rows have 'praise'"):
        fit_classifier(["a", "b", "c"], ["praise"] * 3)


def test_many_rows_are_sampled_and_the_name_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_ROWS", 40)
    found = fit_classifier([*TEXTS, *TEXTS], sorted([*LABELS, *LABELS]))
    assert found.name_for(122) == "TF-IDF + logistic regression on 40 of 122 rows"
    assert found.predict(["x"]).probabilities is not None  # both labels, although the rows are sorted by label


def test_long_texts_are_sampled_by_their_characters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_CHARACTERS_OF_WORDS", sum(map(len, TEXTS)) // 2)
    assert fit_classifier(TEXTS, LABELS).num_used == 30


def test_long_texts_have_no_features_of_characters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_CHARACTERS", 100)
    found = fit_classifier(TEXTS, LABELS)
    assert found.name == "TF-IDF of words + logistic regression"
    known, unknown = found.predict(["great", "greatest"]).probabilities or ()
    assert known["praise"] > unknown["praise"]


def test_pixels_are_classified_by_their_averages():
    images = np.zeros((40, 3, 37, 37), np.uint8)
    images[::2, :, :18] = 200  # bright above
    images += RNG.integers(0, 50, images.shape, dtype=np.uint8)
    labels = ["above", "none"] * 20
    baseline = fit_pixels(images[:30], labels[:30], read=lambda paths: images[[int(path) for path in paths]])
    assert baseline.name_for(300) == "logistic regression of pixels on 30 of 300 images"
    assert list(baseline.predict(["30", "31", "38"]).outputs) == ["above", "none", "above"]
    assert draw_images(7).tolist() == list(range(7))
