"""Simple models that take seconds to fit, and that a trained model must beat to be worth its training.

`linear`: TF-IDF with logistic or ridge regression; `tags`: a linear-chain CRF; `pairs`: the source itself, or the
target of the most similar training source; `ngrams`: Kneser-Ney n-grams; `sequences`: series, events and actions;
`images`; `graphs`: graphs and molecules. A task chooses one of them by `Task.baseline`. scikit-learn is imported when a
baseline is fitted.
"""

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.baselines.linear import fit_classifier, fit_multi_label, fit_number, fit_pixels
from regard.baselines.ngrams import KneserNey
from regard.baselines.pairs import fit_pairs
from regard.baselines.tags import fit_tagger

__all__ = [
    "Baseline",
    "BaselinePredictions",
    "KneserNey",
    "fit_classifier",
    "fit_multi_label",
    "fit_number",
    "fit_pairs",
    "fit_pixels",
    "fit_tagger",
]
