r"""Selections whose truth is known: hypotheses with given true scores, measured again and again, the best one taken.

A *world* draws, for each selection, how many of $N$ examples each of $M$
hypotheses gets right. In three of them the hypotheses are coins; in the fourth
they are classifiers of the built-in dates, and the examples are drawn, with
replacement, from a pool of rows on which the true scores are counted.

Dimensions: `selections`, `hypotheses`, `examples`, `rows` of the pool, `features`.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.data.builtin import builtin
from regard.logging import log_info, progress_bar

Counts = Int[np.ndarray, "selections hypotheses"]

TRUTH = 0.8
"""Of hypotheses that are all equally good."""
WORST = 0.6
"""Of hypotheses that are not: they lie between this and `TRUTH`."""
SHARED = 0.8
"""The share of answers that hypotheses which are alike have in common."""


@dataclass(frozen=True, eq=False)
class World:
    """Hypotheses by their true scores, and how they are measured."""

    name: str
    truths: Float[np.ndarray, " hypotheses"]
    draw: Callable[[int, int, int, np.random.Generator], Counts]
    """From how many selections, examples and hypotheses to how many examples each got right."""


def coins(num_hypotheses: int) -> list[World]:
    """Worlds of hypotheses that are right by chance: equally good, differently good, and much alike."""
    same, spread = np.full(num_hypotheses, TRUTH), np.linspace(TRUTH, WORST, num_hypotheses)

    def independently(truths: Float[np.ndarray, " hypotheses"]) -> World:
        name = "equally good" if (truths == TRUTH).all() else "differently good"
        return World(name, truths, lambda runs, n, m, rng: rng.binomial(n, truths[:m], size=(runs, m)))

    return [independently(same), independently(spread), World("equally good, alike", same, draw_alike)]


def draw_alike(num_selections: int, num_examples: int, num_hypotheses: int, rng: np.random.Generator) -> Counts:
    r"""Counts of hypotheses that on each example, with the chance `SHARED`, all give one common answer.

    Where the common answer is right, a hypothesis is right with the chance
    $s + (1 - s) p$, and where it is wrong with $(1 - s) p$: given how often the
    common answer was right, its count is a sum of two binomial ones.
    """
    common = rng.binomial(num_examples, TRUTH, size=(num_selections, 1))
    own = (1 - SHARED) * TRUTH
    size = (num_selections, num_hypotheses)
    return rng.binomial(common, SHARED + own, size=size) + rng.binomial(num_examples - common, own, size=size)


def classifiers(num_hypotheses: int, *, num_rows: int, num_training: int, seed: int) -> World:
    """Linear classifiers that tell from a few features of a written date whether it lies before July.

    Each sees training rows and features of its own; all are scored on one pool,
    which is all the world there is: a true score is counted, not estimated.
    """
    rng = np.random.default_rng(seed)
    rows = list(builtin("dates").generate(num_rows + 10 * num_training, seed))
    features = hashed([source for source, _ in rows])
    labels = np.array([int(target[5:7]) <= 6 for _, target in rows])
    log_info(f"{num_hypotheses:,} classifiers on {num_training} rows each, scored on {num_rows:,}")
    is_right = np.empty((num_rows, num_hypotheses), dtype=np.uint8)
    for i in progress_bar(range(num_hypotheses), "classifiers", total=num_hypotheses):
        picked = rng.choice(np.arange(num_rows, len(rows)), num_training, replace=False)
        columns = rng.choice(features.shape[1], features.shape[1] // 8, replace=False)
        is_right[:, i] = fit_and_answer(features[:, columns], labels, picked)[:num_rows] == labels[:num_rows]

    def draw(runs: int, n: int, m: int, rng: np.random.Generator) -> Counts:
        return np.stack([is_right[rng.integers(num_rows, size=n), :m].sum(axis=0, dtype=np.int64) for _ in range(runs)])

    return World("classifiers of dates", is_right.mean(axis=0, dtype=np.float64), draw)


def fit_and_answer(
    features: Float[np.ndarray, "rows features"],
    labels: Bool[np.ndarray, " rows"],
    picked: Int[np.ndarray, " training"],
) -> Bool[np.ndarray, " rows"]:
    """What a ridge regression on the picked rows answers for all rows."""
    x, y = features[picked], 2.0 * labels[picked] - 1.0
    weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)
    return features @ weights > 0


def hashed(texts: Sequence[str], *, num_features: int = 512, length: int = 3) -> Float[np.ndarray, "rows features"]:
    """How often each text has stretches of `length` letters, counted by a hash of the stretch; and one constant."""
    found = np.zeros((len(texts), num_features), dtype=np.float32)
    for row, text in enumerate(texts):
        for start in range(len(text) - length + 1):
            found[row, zlib.crc32(text[start : start + length].encode()) % num_features] += 1
    found[:, 0] = 1.0
    return found
