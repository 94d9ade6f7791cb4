"""Simulated models: the results of each of their training seeds on the same examples."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from regard.evaluation.counts import Counts, count_right, ratio

WORDS = ["der", "hund", "rennt", "und", "bellt", "laut", "weil", "drei", "katzen", "über", "straße", "sah"]


def counts_of_right(right: np.ndarray) -> Counts:
    """The counts of examples that were right or wrong."""
    return replace(count_right(right.astype(bool).tolist()), name="exact_match")


def counts_of_mean(values: np.ndarray) -> Counts:
    """The counts of a mean: a score that is not a proportion, and without ties."""
    return Counts(name="mean", statistics=np.stack([values, np.ones_like(values)], axis=1), compute=ratio)


def errors_of_seeds(
    rng: np.random.Generator, *, num_seeds: int, num_examples: int, skill: float = 0.0, seed_deviation: float = 0.0
) -> list[np.ndarray]:
    """For each training seed its errors on examples: its own skill, and noise."""
    skills = skill + seed_deviation * rng.normal(size=num_seeds)
    return [rng.normal(seed_skill, 1.0, size=num_examples) for seed_skill in skills]


def translate(error_rate: float, *, seed: int) -> tuple[list[str], list[str]]:
    """The same references for every seed, and predictions with some of their words exchanged."""
    references_rng, rng = np.random.default_rng(1), np.random.default_rng([2, seed])
    references = [" ".join(references_rng.choice(WORDS, size=references_rng.integers(4, 13))) for _ in range(61)]
    predictions = [
        " ".join(str(rng.choice(WORDS)) if rng.random() < error_rate else word for word in reference.split())
        for reference in references
    ]
    return predictions, references


@pytest.fixture
def proportion() -> Callable[[np.ndarray], Counts]:
    return counts_of_right


@pytest.fixture
def mean() -> Callable[[np.ndarray], Counts]:
    return counts_of_mean


@pytest.fixture
def spread() -> Callable[..., list[np.ndarray]]:
    return errors_of_seeds


@pytest.fixture
def translations() -> Callable[..., tuple[list[str], list[str]]]:
    return translate
