"""Tasks on graphs: the label, the number or several properties of a graph, and the labels of its nodes.

`batches` has graphs as tensors, `model` the predictor, `task` what the tasks have in common, and there is a file for
each task.
"""

from regard.tasks.graphs.classification import GraphClassification
from regard.tasks.graphs.node_classification import NodeClassification
from regard.tasks.graphs.properties import GraphProperties
from regard.tasks.graphs.regression import GraphRegression

__all__ = ["GraphClassification", "GraphProperties", "GraphRegression", "NodeClassification"]
