"""Forecasting: the next steps of series of numbers.

`model` has the forecaster and its intervals, `windows` the batches and sums of errors, `task` the task itself.
"""

from regard.tasks.forecasting.model import SeriesForecaster
from regard.tasks.forecasting.task import Forecasting

__all__ = ["Forecasting", "SeriesForecaster"]
