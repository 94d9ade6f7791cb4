"""Made-up models: what each of their training seeds made of the same examples."""

from collections.abc import Callable

import numpy as np
import pytest

from regard.evaluation.tallies import Tally, share

WORDS = ["der", "hund", "rennt", "und", "bellt", "laut", "weil", "drei", "katzen", "über", "straße", "sah"]


def tally_of_right(right: np.ndarray) -> Tally:
    """The tally of examples that were right or wrong."""
    statistics = np.stack([right, np.ones_like(right)], axis=1).astype(np.int64)
    return Tally(name="exact_match", statistics=statistics, compute=share, settings={})


def tally_of_mean(values: np.ndarray) -> Tally:
    """The tally of a mean: a score that is no proportion, and without ties."""
    statistics = np.stack([values, np.ones_like(values)], axis=1)
    return Tally(name="mean", statistics=statistics, compute=lambda sums: float(sums[0] / sums[1]), settings={})


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
def proportion() -> Callable[[np.ndarray], Tally]:
    return tally_of_right


@pytest.fixture
def mean() -> Callable[[np.ndarray], Tally]:
    return tally_of_mean


@pytest.fixture
def spread() -> Callable[..., list[np.ndarray]]:
    return errors_of_seeds


@pytest.fixture
def translations() -> Callable[..., tuple[list[str], list[str]]]:
    return translate
