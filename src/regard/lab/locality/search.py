"""Which networks are trained, in which order, and with which settings: the search on validation images."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regard.lab.locality.sizes import LAST, MAIN, METHODS, LocalityMethod, LocalitySizes, Rates, middle
from regard.lab.locality.training import TrainedNetwork


@dataclass(frozen=True)
class LocalityJob:
    """One network to train: a method, one of its settings, a seed, and for how many epochs."""

    method: LocalityMethod
    rates: Rates
    seed: int
    epochs: int


Trained = Mapping[LocalityJob, TrainedNetwork]
Results = dict[LocalityMethod, list[TrainedNetwork]]
"""Of each method the networks with the settings that are best on the validation images, one for each seed."""


def next_settings(settings: Sequence[Sequence[Rates]], scores: Mapping[Rates, float]) -> Rates | None:
    """Returns what to try after those with a score: the middle, then a neighbor of the best; None at the end.

    Neighbors in a row, which have the same learning rate, come first.
    """
    if not scores:
        return middle(middle(settings))
    best = max(scores, key=lambda rates: scores[rates])
    row, column = next((row, each.index(best)) for row, each in enumerate(settings) if best in each)
    places = [(row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column)]
    neighbors = [settings[r][c] for r, c in places if 0 <= r < len(settings) and 0 <= c < len(settings[r])]
    return next((each for each in neighbors if each not in scores), None)


def search_jobs(sizes: LocalitySizes, trained: Trained, *, seed: int, steps_per_epoch: int) -> Iterator[LocalityJob]:
    """Yield the networks to train, the most important first; each is in `trained` when the next one is asked for.

    The learning rates of SGD are compared after a share of the epochs, the settings of beta-lasso, where the number of
    epochs matters, after all of them. Without validation images, each method has the middle of its settings. A job may
    be yielded again.
    """
    seeds = range(seed, seed + sizes.num_seeds)

    def search(method: LocalityMethod, epochs: int, most: int) -> Generator[LocalityJob, None, Rates]:
        """Try at most so many settings; returns the best."""
        grid = sizes.rates(method, epochs * steps_per_epoch)
        scores: dict[Rates, float] = {}
        while len(scores) < most and (rates := next_settings(grid, scores)) is not None:
            jobs = [LocalityJob(method, rates, each, epochs) for each in seeds]
            yield from jobs
            scores[rates] = sum(trained[job].num_valid_correct for job in jobs)
        return max(scores, key=lambda rates: scores[rates])

    def train_at(method: LocalityMethod, rates: Rates) -> Iterator[LocalityJob]:
        return (LocalityJob(method, rates, each, sizes.epochs) for each in seeds)

    most = sizes.num_settings if sizes.valid_share else 1
    short = max(1, round(sizes.search_share * sizes.epochs)) if sizes.valid_share else sizes.epochs
    yield from search(LAST, sizes.epochs, 1)
    for method in reversed(METHODS):
        if method in MAIN and method.beta is None:
            yield from train_at(method, (yield from search(method, short, most)))
    best = yield from search(LAST, sizes.epochs, most)
    for method in METHODS:
        if method not in MAIN:
            rates = best if method.beta is not None else (yield from search(method, short, most))
            yield from train_at(method, rates)
    if sizes.valid_share:
        yield from search(LAST, sizes.epochs, sum(map(len, sizes.rates(LAST, 1))))


def known_jobs(known: Mapping[LocalityMethod, Rates], sizes: LocalitySizes, *, seed: int) -> Iterator[LocalityJob]:
    """Yield the networks with settings that are known, the most important first."""
    for method in sorted(known, key=lambda each: (each not in MAIN, -METHODS.index(each))):
        for number in range(sizes.num_seeds):
            yield LocalityJob(method, known[method], seed + number, sizes.epochs)


def planned_networks(method: LocalityMethod, sizes: LocalitySizes) -> float:
    """Returns for how many networks of a method, trained to the end, time is planned; others follow if time is left."""
    if not sizes.valid_share:
        return sizes.num_seeds
    if method not in MAIN:
        return 0.0
    searched = sizes.num_settings if method == LAST else 1 + sizes.search_share * sizes.num_settings
    return sizes.num_seeds * searched


def best_settings(trained: Trained) -> dict[LocalityMethod, Rates]:
    """Returns the settings of each method with the best mean accuracy on the validation images, after all epochs."""
    epochs = max((job.epochs for job in trained), default=0)
    scores: dict[tuple[LocalityMethod, Rates], list[int]] = {}
    for job, network in trained.items():
        if job.epochs == epochs:
            scores.setdefault((job.method, job.rates), []).append(network.num_valid_correct)
    best: dict[LocalityMethod, Rates] = {}
    for (method, rates), found in scores.items():
        if method not in best or np.mean(found) > np.mean(scores[method, best[method]]):
            best[method] = rates
    return best


def best_networks(trained: Trained) -> Results:
    """Returns the networks of each method with its best settings, after all epochs."""
    best, epochs = best_settings(trained), max((job.epochs for job in trained), default=0)
    results: Results = {}
    for job, network in trained.items():
        if job.epochs == epochs and best[job.method] == job.rates:
            results.setdefault(job.method, []).append(network)
    return {method: results[method] for method in METHODS if method in results}
