"""Graphs without a network: Weisfeiler-Lehman features with a linear model; forests of fingerprints for molecules.

Shervashidze et al., "Weisfeiler-Lehman Graph Kernels" (2011). https://jmlr.org/papers/v12/shervashidze11a.html

A node has its label; in each of a few rounds its next label is made of its own and those of its neighbors, with those
of the edges. A graph is the counts of all labels of its nodes, a node the labels that it had. Numbers of nodes are
added as features: their means for a graph.

Molecules have a random forest of Morgan fingerprints and descriptors for each property (Breiman, "Random Forests",
2001), the usual baseline of chemistry (Svetnik et al., 2003).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.baselines.baseline import Baseline, BaselinePredictions, limit_rows
from regard.baselines.linear import logistic_regression, most_probable_labels, quiet, require_two
from regard.data.chemistry import descriptor_values, morgan_bits
from regard.data.formats.graphs import Graph, parse_graph

_ROUNDS = 3
_MOST_GRAPHS = 20_000
_NAME = "Weisfeiler-Lehman features"
_MOST_ROWS, _MOST_FORESTS = 4_000, 12
"""With more rows a part of them is used; with more properties each has fewer trees."""
_NUM_TREES, _FEATURE_SHARE = 200, 0.05
_DIGITS = 8


def fit_graph_classifier(graphs: Sequence[str], labels: Sequence[str]) -> Baseline:
    """Logistic regression of the features of graphs."""
    graphs, labels = _limited(graphs, labels)
    require_two(labels)
    features = _Features([graph_features(parse_graph(text)) for text in graphs])
    with quiet():
        model = logistic_regression().fit(features.train, labels)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        found = model.predict_proba(features([graph_features(parse_graph(text)) for text in inputs]))
        return most_probable_labels(found, [str(each) for each in model.classes_])

    return Baseline(f"{_NAME} + logistic regression", predict, len(graphs))


def fit_graph_number(graphs: Sequence[str], numbers: Sequence[float]) -> Baseline:
    """Ridge regression of the features of graphs; the penalty is chosen by leaving out one row at a time."""
    from sklearn.linear_model import RidgeCV

    graphs, numbers = _limited(graphs, numbers)
    features = _Features([graph_features(parse_graph(text)) for text in graphs])
    with quiet():
        model = RidgeCV(alphas=np.logspace(-1, 3, 9)).fit(features.train, numbers)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        found = model.predict(features([graph_features(parse_graph(text)) for text in inputs]))
        return BaselinePredictions([f"{number:.6g}" for number in found])

    return Baseline(f"{_NAME} + ridge regression", predict, len(graphs))


def fit_graph_properties(
    graphs: Sequence[str], targets: Float[np.ndarray, "rows outputs"], *, are_labels: bool
) -> Baseline:
    """Ridge or logistic regression of the features of graphs, one for each property, on the rows that have it."""
    from sklearn.linear_model import RidgeCV

    kept = limit_rows(range(len(graphs)), _MOST_GRAPHS)
    targets = targets[kept]
    features = _Features([graph_features(parse_graph(graphs[row])) for row in kept])
    models = []
    with quiet():
        for column in targets.T:
            is_known = ~np.isnan(column)
            model: Any = logistic_regression() if are_labels else RidgeCV(alphas=np.logspace(-1, 3, 9))
            has_one = are_labels and len(set(column[is_known])) < 2
            models.append(
                float(column[is_known][0]) if has_one else model.fit(features.train[is_known], column[is_known])
            )

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        given = features([graph_features(parse_graph(text)) for text in inputs])
        found = [
            np.full(len(inputs), model) if isinstance(model, float) else _outputs(model, given, are_labels=are_labels)
            for model in models
        ]
        return BaselinePredictions([" ".join(f"{number:.{_DIGITS}g}" for number in row) for row in np.stack(found, 1)])

    return Baseline(f"{_NAME} + {'logistic' if are_labels else 'ridge'} regression", predict, len(kept))


def fit_node_classifier(
    graphs: Sequence[str], labels: Sequence[Sequence[str | None]], *, join: Any
) -> Baseline:  # fmt: skip
    """Logistic regression of the features of nodes; `join` writes the labels of a graph."""
    graphs, labels = _limited(graphs, labels)
    rows = [
        (features, label)
        for text, some in zip(graphs, labels, strict=True)
        for features, label in zip(node_features(parse_graph(text)), some, strict=True)
        if label is not None
    ]
    targets = [label for _, label in rows]
    require_two(targets)
    features = _Features([each for each, _ in rows])
    with quiet():
        model = logistic_regression().fit(features.train, targets)

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        found = [model.predict(features(node_features(parse_graph(text)))) for text in inputs]
        return BaselinePredictions([join([str(label) for label in some]) for some in found])

    return Baseline(f"{_NAME} + logistic regression", predict, len(graphs))


def graph_features(graph: Graph) -> dict[str, float]:
    """The counts of all labels of all rounds, and the means of the numbers of nodes."""
    rounds = weisfeiler_lehman(graph)
    counts = Counter(f"{number}:{label}" for number, labels in enumerate(rounds) for label in labels)
    means = {f"mean {place}": float(mean) for place, mean in enumerate(graph.nodes.numbers.mean(axis=0))}
    return {**counts, **means}


def node_features(graph: Graph) -> list[dict[str, float]]:
    """For each node its labels of all rounds, and its numbers."""
    rounds = weisfeiler_lehman(graph)
    found: list[dict[str, float]] = []
    for node in range(graph.num_nodes):
        numbers = {f"number {place}": float(number) for place, number in enumerate(graph.nodes.numbers[node])}
        found.append({**{f"{number}:{labels[node]}": 1.0 for number, labels in enumerate(rounds)}, **numbers})
    return found


def weisfeiler_lehman(graph: Graph, num_rounds: int = _ROUNDS) -> list[list[str]]:
    """The labels of the nodes in each round, that of their features first.

    Example:
        >>> path = parse_graph('{"nodes": ["a", "a", "a"], "edges": [[0, 1], [1, 2]]}')
        >>> [len(set(labels)) for labels in weisfeiler_lehman(path)]
        [1, 2, 2, 2]
    """
    neighbors: list[list[tuple[int, str]]] = [[] for _ in range(graph.num_nodes)]
    for (one, other), labels in zip(graph.ends.tolist(), graph.edges.labels, strict=True):
        kind = " ".join(labels)
        ways = (">", "<") if graph.is_directed else ("", "")
        neighbors[one].append((other, ways[0] + kind))
        neighbors[other].append((one, ways[1] + kind))
    rounds = [[" ".join(labels) for labels in graph.nodes.labels]]
    for _ in range(num_rounds):
        last = rounds[-1]
        around = (sorted(f"{kind}-{last[node]}" for node, kind in some) for some in neighbors)
        rounds.append([_shortened(f"{own}({','.join(some)})") for own, some in zip(last, around, strict=True)])
    return rounds


class _Features:
    """Dictionaries of features as rows of a sparse matrix, each divided by its largest value."""

    def __init__(self, rows: Sequence[dict[str, float]]) -> None:
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import MaxAbsScaler

        self._pipeline = make_pipeline(DictVectorizer(), MaxAbsScaler())
        self.train: Any = self._pipeline.fit_transform(list(rows))

    def __call__(self, rows: Sequence[dict[str, float]]) -> Any:
        return self._pipeline.transform(list(rows))


def _shortened(label: str) -> str:
    """A hash of the label, which would otherwise grow in each round."""
    from hashlib import blake2b

    return blake2b(label.encode(), digest_size=8).hexdigest()


def _limited(graphs: Sequence[str], targets: Sequence[Any]) -> tuple[list[str], list[Any]]:
    kept = limit_rows(list(zip(graphs, targets, strict=True)), _MOST_GRAPHS)
    return [text for text, _ in kept], [target for _, target in kept]


def fit_forests(
    texts: Sequence[str],
    targets: Float[np.ndarray, "rows outputs"],
    descriptors: Sequence[str],
    *,
    are_labels: bool,
) -> Baseline:
    """Fit a forest for each property to the rows that have it.

    Args:
        texts: Molecules.
        targets: Numbers, or labels 0 and 1; NaN where one is missing.
        descriptors: The names of the descriptors.
        are_labels: Whether targets are labels, of which the probability of 1 is predicted.
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kept = limit_rows(range(len(texts)), _MOST_ROWS)
    fitted, targets = [texts[row] for row in kept], targets[kept]

    def features(inputs: Sequence[str]) -> Float[np.ndarray, "rows features"]:
        return np.concatenate([morgan_bits(inputs), descriptor_values(inputs, descriptors)], axis=1)

    make: Any = RandomForestClassifier if are_labels else RandomForestRegressor
    num_trees = max(20, _NUM_TREES // max(1, targets.shape[1] // _MOST_FORESTS))
    known, forests = features(fitted), []
    for column in targets.T:
        is_known = ~np.isnan(column)
        forest = make(n_estimators=num_trees, max_features=_FEATURE_SHARE, random_state=0)
        forests.append(forest.fit(known[is_known], column[is_known]))

    def predict(inputs: Sequence[str]) -> BaselinePredictions:
        given = features(inputs)
        found = np.stack([_outputs(forest, given, are_labels=are_labels) for forest in forests], axis=1)
        return BaselinePredictions([" ".join(f"{number:.{_DIGITS}g}" for number in row) for row in found])

    return Baseline("random forest of fingerprints and descriptors", predict, len(fitted))


def _outputs(forest: Any, features: Float[np.ndarray, "rows features"], *, are_labels: bool) -> Any:
    """The predicted numbers, or the probability of the label 1; 0 or 1 where training rows have one label only."""
    if not are_labels:
        return forest.predict(features)
    if len(forest.classes_) == 1:
        return np.full(len(features), forest.classes_[0])
    return forest.predict_proba(features)[:, 1]
