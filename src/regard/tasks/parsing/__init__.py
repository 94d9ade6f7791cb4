"""Constituency parsing: a sentence in, a tree in brackets out.

task     data, settings, training, predictions and reports
model    an encoder of words with a chart of spans, or with a decoder of linearized trees
linear   trees as sequences of actions, and which action may come next
drawing  trees as text and as SVG
"""

from regard.tasks.parsing.task import Parsing

__all__ = ["Parsing"]
