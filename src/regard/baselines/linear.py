"""Linear models of TF-IDF vectors: logistic regression or an SVM for labels, ridge regression for numbers.

Joachims, "Text Categorization with Support Vector Machines: Learning with Many Relevant Features" (1998), for linear
models of many features; Wang & Manning, "Baselines and Bigrams: Simple, Good Sentiment and Topic Classification"
(2012), for n-grams of words.

Features are n-grams of 1 to 2 words and, unless the texts are long, of 2 to 5 characters inside words, with logarithmic
term frequencies; each of the two blocks has unit length.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.errors import DataError
from regard.models.linear_ngrams import MANY_CLASSES, LinearSVM

_MOST_ROWS = 50_000
_MOST_CHARACTERS, _MOST_CHARACTERS_OF_WORDS = 3_000_000, 15_000_000
"""Counting the n-grams of a million characters takes about three seconds; those of words alone, a fifth of it."""
_MANY_ROWS = 1_000
"""From this many texts on, an n-gram of a single text is not a feature: faster and better."""
_MOST_WEIGHTS = 8_000_000
"""Features times labels, which bounds the time of the fit."""
_FEWEST_FEATURES, _MOST_FEATURES = 2_000, 200_000
_WORD = r"(?u)\w+|[^\w\s]"
_INVERSE_PENALTY = 10.0
"""Blocks of unit length have small features, for which the default of 1 is too strong a penalty."""
_MOST_ITERATIONS = 100
_MOST_IMAGES, _IMAGE_SIZE = 10_000, 16
"""Images are averaged down to this many pixels a side."""
_FEWEST_FOR_FLIPS = 100
"""With fewer images of each half, a difference between images and mirror images is not significant."""
_STRONG_PENALTY = 10.0
_SIGNIFICANT = 2.0
"""In standard errors."""
_COLORFUL = 8.0
"""The mean difference between the channels of a pixel, from 0 to 255, from which on images are in color."""


def fit_classifier(texts: Sequence[str], labels: Sequence[str]) -> Baseline:
    """TF-IDF and logistic regression, or for many labels a linear SVM, for texts with one label each.

    Raises:
        DataError: If all labels are equal.
    """
    is_svm = len(require_two(labels)) > MANY_CLASSES
    texts, labels, name = _limited(texts, labels, "linear SVM" if is_svm else "logistic regression")
    features = make_features(texts, num_outputs=len(require_two(labels)))
    with quiet():
        model = (LinearSVM() if is_svm else logistic_regression()).fit(features.fit_transform(texts), labels)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        return most_probable_labels(
            model.predict_proba(features.transform(inputs)), [str(each) for each in model.classes_]
        )

    return Baseline(name, predict, len(texts))


def fit_multi_label(
    texts: Sequence[str], labels: Sequence[Sequence[str]], *, join: Callable[[Sequence[str]], str]
) -> Baseline:
    """TF-IDF and one logistic regression for each label, for texts with any number of labels; `join` writes them."""
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    texts, labels, name = _limited(texts, labels, "logistic regression for each label")
    binarizer = MultiLabelBinarizer()
    targets = binarizer.fit_transform(labels)
    names = [str(each) for each in binarizer.classes_]
    if not names:
        raise DataError(f"logistic regression needs labels, and none of {len(texts):,} rows has one")
    features = make_features(texts, num_outputs=len(names))
    with quiet():
        model = OneVsRestClassifier(logistic_regression()).fit(features.fit_transform(texts), targets)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        found = np.asarray(model.predict_proba(features.transform(inputs))).reshape(len(inputs), len(names))
        chosen = [[name for name, share in zip(names, row, strict=True) if share > 0.5] for row in found]
        return BaselinePredictions([join(some) for some in chosen])

    return Baseline(name, predict, len(texts))


def fit_number(texts: Sequence[str], numbers: Sequence[float]) -> Baseline:
    """TF-IDF and ridge regression, for texts with a number each."""
    from sklearn.linear_model import Ridge

    texts, numbers, name = _limited(texts, numbers, "ridge regression")
    features = make_features(texts, num_outputs=1)
    with quiet():
        model = Ridge(solver="lsqr").fit(features.fit_transform(texts), numbers)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        return BaselinePredictions([f"{number:.6g}" for number in model.predict(features.transform(inputs))])

    return Baseline(name, predict, len(texts))


def fit_preferences(pairs: Sequence[Sequence[str]], *, separator: str, outputs: tuple[str, str]) -> Baseline:
    """A linear reward of the TF-IDF vectors of answers and of their lengths, by Bradley and Terry.

    Args:
        pairs: A prompt, a chosen and a rejected answer each.
        separator: Between the prompt and the two answers of an input.
        outputs: What is predicted where the first or the second answer is preferred.
    """
    from scipy.sparse import csr_matrix, hstack, vstack

    rows, _, _ = _limited([" ".join(pair) for pair in pairs], pairs, "")
    kept = limit_rows(pairs, len(rows))
    answers = [answer for _, chosen, rejected in kept for answer in (chosen, rejected)]
    features = make_features(answers, num_outputs=1)
    longest = max(map(len, answers))

    def vectors(texts: Sequence[str]) -> Any:
        lengths = csr_matrix([[len(text) / longest] for text in texts])
        return hstack([features.transform(texts), lengths]).tocsr()

    with quiet():
        features.fit(answers)
        found = vectors(answers)
        gaps = found[::2] - found[1::2]
        model = logistic_regression(fit_intercept=False)
        model.fit(vstack([gaps, -gaps]), [1] * gaps.shape[0] + [0] * gaps.shape[0])

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        parts = [text.split(separator) for text in inputs]
        gaps = vectors([some[1] for some in parts]) - vectors([some[2] for some in parts])
        # The classes are 0 and 1 in this order.
        return most_probable_labels(model.predict_proba(gaps), [outputs[1], outputs[0]])

    return Baseline("TF-IDF differences + logistic regression", predict, len(kept))


def fit_pixels(
    pixels: NDArray[np.uint8], labels: Sequence[str], *, read: Callable[[Sequence[str]], NDArray[np.uint8]]
) -> Baseline:
    """Logistic regression of pixels, for images with one label each.

    Args:
        pixels: By image, channel, row and column.
        labels: The label of each image.
        read: Reads the pixels of the images at some paths.
    """
    require_two(labels)
    with quiet():
        model = logistic_regression(penalty=1.0).fit(_averaged(pixels), labels)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        return most_probable_labels(
            model.predict_proba(_averaged(read(inputs))), [str(each) for each in model.classes_]
        )

    return Baseline("logistic regression of pixels", predict, len(labels), "images")


def check_flips(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[bool, str]:
    """Whether images may be mirrored without changing their labels, and why.

    A linear model of half of the images predicts the labels of the other half, and of their mirror images. Where
    orientation matters, as for letters and digits, it is wrong more often for these. Where the linear model cannot
    be used, color images are taken for photographs, and gray ones are not mirrored.

    Args:
        pixels: By image, channel, row and column; in random order.
        labels: The index of the label of each image.
    """
    half = len(pixels) // 2
    fitted, others = slice(0, half), slice(half, None)
    classes, counts = np.unique(labels[fitted], return_counts=True)
    if half >= _FEWEST_FOR_FLIPS and len(classes) > 1:
        with quiet():
            model = logistic_regression(penalty=_STRONG_PENALTY).fit(_averaged(pixels[fitted]), labels[fitted])
        right, mirrored = (
            model.predict(_averaged(each)) == labels[others] for each in (pixels[others], pixels[others][..., ::-1])
        )
        usual = labels[others] == classes[counts.argmax()]
        if _gain(right, usual) > _SIGNIFICANT:
            shares = f"a linear model is right for {right.mean():.0%} of the images and {mirrored.mean():.0%} mirrored"
            return _gain(right, mirrored) <= _SIGNIFICANT, shares.replace("%", " %")
    is_color = bool(np.ptp(pixels.astype(np.int16), axis=1).mean() >= _COLORFUL)
    return (
        is_color,
        "the images are photographs in color" if is_color else "the images are gray, as letters and digits are",
    )


def _gain(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """The difference of two paired counts in standard errors (McNemar, 1947)."""
    wins, losses = int((one & ~other).sum()), int((other & ~one).sum())
    return (wins - losses) / max(1, wins + losses) ** 0.5


def draw_images(num_images: int) -> NDArray[np.int64]:
    """The numbers of the images that `fit_pixels` is to be given."""
    return np.array(limit_rows(range(num_images), _MOST_IMAGES), np.int64)


def make_features(texts: Sequence[str], *, num_outputs: int) -> Any:
    """The TF-IDF vectorizers for these texts; the more outputs, the fewer features."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    most = max(_FEWEST_FEATURES, min(_MOST_FEATURES, _MOST_WEIGHTS // num_outputs)) // 2
    shared = {"sublinear_tf": True, "max_features": most, "min_df": 2 if len(texts) >= _MANY_ROWS else 1}
    has_characters, are_single = _have_characters(texts), not any(" " in text.strip() for text in texts)
    blocks = []
    if not (has_characters and are_single):  # single words occur once each, and would be no features
        blocks.append(("words", TfidfVectorizer(ngram_range=(1, 2), token_pattern=_WORD, **shared)))
    if has_characters:
        blocks.append(("characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **shared)))
    return FeatureUnion(blocks)


def _have_characters(texts: Sequence[str]) -> bool:
    """Whether texts are few and short enough for n-grams of characters."""
    return sum(map(len, texts)) <= _MOST_CHARACTERS


def logistic_regression(*, penalty: float = 1 / _INVERSE_PENALTY, fit_intercept: bool = True) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1 / penalty, max_iter=_MOST_ITERATIONS, fit_intercept=fit_intercept)


def _limited(texts: Sequence[str], targets: Sequence[Any], method: str) -> tuple[list[str], list[Any], str]:
    """Texts and targets up to the limits of rows and characters, and the name of the baseline on them."""
    rows = list(zip(texts, targets, strict=True))
    num_characters = sum(map(len, texts))
    most = max(1, len(rows) * _MOST_CHARACTERS_OF_WORDS // max(_MOST_CHARACTERS_OF_WORDS, num_characters))
    kept = limit_rows(rows, min(_MOST_ROWS, most))
    chosen, kept_targets = [text for text, _ in kept], [target for _, target in kept]
    vectors = "TF-IDF" if _have_characters(chosen) else "TF-IDF of words"
    return chosen, kept_targets, f"{vectors} + {method}"


def require_two(labels: Sequence[str]) -> set[str]:
    found = set(labels)
    if len(found) < 2:
        raise DataError(f"logistic regression needs two labels, and all {len(labels):,} rows have {labels[0]!r}")
    return found


def most_probable_labels(probabilities: NDArray[np.float64], labels: list[str]) -> BaselinePredictions:
    tables = [dict(zip(labels, row, strict=True)) for row in probabilities.tolist()]
    return BaselinePredictions([labels[best] for best in probabilities.argmax(axis=1).tolist()], tables)


def _averaged(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Pixels from 0 to 1, averaged over squares, as one vector for each image."""
    images, channels, size = pixels.shape[:3]
    side = -(-size // _IMAGE_SIZE)
    cut = size // side * side
    squares = pixels[:, :, :cut, :cut].reshape(images, channels, cut // side, side, cut // side, side)
    return squares.mean(axis=(3, 5)).reshape(images, -1) / 255


@contextmanager
def quiet() -> Iterator[None]:
    """Without scikit-learn's warnings: a fit that ends by its number of iterations is a baseline nevertheless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
