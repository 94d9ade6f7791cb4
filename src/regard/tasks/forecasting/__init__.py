"""Forecasting: the next steps of series of numbers.

`model` has the forecaster, its intervals and its batches, `linear` the linear forecast, `task` the task itself.
"""

from regard.tasks.forecasting.model import SeriesForecaster
from regard.tasks.forecasting.task import Forecasting

__all__ = ["Forecasting", "SeriesForecaster"]
