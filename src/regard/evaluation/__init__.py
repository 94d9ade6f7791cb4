"""Scores with intervals: how good a model is, how sure that is, and how to repeat it."""
