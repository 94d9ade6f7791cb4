"""Comparison: models trained on the same data, in the same order, under one budget and with several seeds.

plan.py       the runs of a comparison; everything that is wrong with it is an error before training
run.py        `compare`: plan, train, test the differences, write the page
results.py    scores over examples and seeds, and the paired test of each difference
"""

from regard.experiments.compare.run import Comparison, compare

__all__ = ["Comparison", "compare"]
