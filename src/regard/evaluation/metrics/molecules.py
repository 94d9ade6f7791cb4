"""Metrics of generated molecules: how many are molecules, how many of these are different, and how many are new.

Polykovskiy et al., "Molecular Sets (MOSES): A Benchmarking Platform for Molecular Generation Models" (2020), section 3.
https://arxiv.org/abs/1811.12823
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from regard.data.chemistry import canonical_smiles, is_molecule
from regard.evaluation.counts import Counts, count_right, ratio
from regard.evaluation.registry import Metric
from regard.evaluation.scores import Score, score_counts


def count_valid(outputs: Sequence[str]) -> Counts:
    """The share of outputs that are molecules.

    Example:
        >>> count_valid(["CCO", "C1CC", "CCO"]).value  # doctest: +SKIP
        0.6666666666666666
    """
    return count_right([is_molecule(output) for output in outputs])


def count_unique(outputs: Sequence[str]) -> Counts:
    """The share of valid outputs that are not a molecule that came before; 0 where none is valid."""
    molecules = _canonical(outputs)
    rows = [
        [is_first, molecule is not None] for molecule, is_first in zip(molecules, _are_first(molecules), strict=True)
    ]
    return Counts(statistics=np.array(rows, np.int64), compute=_share)


def count_novel(outputs: Sequence[str], known: Sequence[str]) -> Counts:
    """The share of different valid outputs that are not among the `known` molecules; 0 where none is valid."""
    molecules, trained = _canonical(outputs), set(_canonical(known))
    rows = [
        [is_first and molecule not in trained, is_first]
        for molecule, is_first in zip(molecules, _are_first(molecules), strict=True)
    ]
    return Counts(statistics=np.array(rows, np.int64), compute=_share)


def _are_first(molecules: Sequence[str | None]) -> list[bool]:
    """Which of these are molecules that did not come before."""
    seen: set[str | None] = {None}
    return [not (molecule in seen or seen.add(molecule)) for molecule in molecules]


def _share(sums: np.ndarray) -> float:
    return ratio(sums) if sums[1] else 0.0


def _canonical(texts: Sequence[str]) -> list[str | None]:
    return [canonical_smiles(text) if is_molecule(text) else None for text in texts]


def _score(counts: Counts, name: str) -> Score:
    return score_counts(replace(counts, name=name))


VALIDITY = Metric(
    name="validity",
    label="Validity",
    counter=lambda examples: count_valid(*examples.require("outputs")),
    needs=("outputs",),
)
# Whether an output is different from all others is no count of its own, so that these have no paired test.
UNIQUENESS = Metric(
    name="uniqueness",
    label="Uniqueness",
    scorer=lambda examples: _score(count_unique(*examples.require("outputs")), "uniqueness"),
    needs=("outputs",),
)
NOVELTY = Metric(
    name="novelty",
    label="Novelty",
    scorer=lambda examples: _score(count_novel(*examples.require("outputs", "references")), "novelty"),
    needs=("outputs", "references"),
)
GENERATION_METRICS = (VALIDITY, UNIQUENESS, NOVELTY)
