import math

import numpy as np
import pytest
import torch
from scipy import stats

from regard.evaluation.means import mean_interval


def test_the_interval_is_students_by_scipy():
    values = [0.81, 0.9, 0.84, 0.79]
    low, high = stats.t.interval(0.9, 3, loc=np.mean(values), scale=stats.sem(values))
    assert mean_interval(values, confidence=0.9) == pytest.approx((np.mean(values), low, high))
    assert mean_interval(torch.tensor(values)) == pytest.approx(mean_interval(values))


def test_it_covers_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(size=(4_000, 4))
    covered = sum(low <= 0 <= high for _, low, high in map(mean_interval, draws))
    assert stats.binomtest(covered, 4_000, 0.95).pvalue > 1e-3


def test_one_run_says_nothing_of_others():
    mean, low, high = mean_interval([0.8])
    assert mean == 0.8
    assert math.isnan(low)
    assert math.isnan(high)
