"""Prediction of events: which comes next, when, and how likely it is within a horizon.

`process` has the distribution of the next event, `model` the networks that predict it, their batches and what metrics
are computed from, `task` the task itself.
"""

from regard.tasks.event_prediction.model import EventPredictor
from regard.tasks.event_prediction.task import EventPrediction

__all__ = ["EventPrediction", "EventPredictor"]
