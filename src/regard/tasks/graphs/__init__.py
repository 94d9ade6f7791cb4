"""Tasks on graphs: the label or the number of a graph, and the labels of its nodes.

`batches` has graphs as tensors, `model` the predictor, `task` what the tasks have in common, and there is a file for
each task.
"""

from regard.tasks.graphs.classification import GraphClassification
from regard.tasks.graphs.node_classification import NodeClassification
from regard.tasks.graphs.regression import GraphRegression

__all__ = ["GraphClassification", "GraphRegression", "NodeClassification"]
