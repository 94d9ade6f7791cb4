"""Graphs as arrays: labels by index, numbers standardized, and the distances between all nodes.

A graph is encoded once, as several lists of integers: `PARTS` are their names. A number is the four bytes of a float32.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec
from regard.data.formats.graphs import DIRECTED, Features, Graph, parse_graph
from regard.data.formats.messages import format_count
from regard.errors import DataError
from regard.files import load_json

PARTS = ("degrees", "labels", "numbers", "ends", "edge_labels", "edge_numbers", "distances")
"""What a graph is stored as; the first part has one number for each node."""


@dataclass(frozen=True)
class FeatureScales:
    """How the features of nodes, or of edges, are encoded."""

    labels: tuple[tuple[str, ...], ...] = ()
    """The known labels of each place; index 0 is for all others, 1 for the first of these."""
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of indices of each label."""
        return tuple(len(known) + 1 for known in self.labels)

    def encode(self, features: Features) -> tuple[list[int], list[int]]:
        """The indices of all labels and the bytes of all numbers, item by item."""
        tables = [{label: index for index, label in enumerate(known, start=1)} for known in self.labels]
        ids = [table.get(label, 0) for labels in features.labels for table, label in zip(tables, labels, strict=True)]
        scaled = (features.numbers.astype(np.float64) - np.array(self.means)) / np.array(self.stds)
        return ids, list(scaled.astype(np.float32).tobytes()) if self.means else []

    def decode(self, ids: Sequence[int], numbers: Sequence[int], count: int) -> list[Any]:
        """A label, a list of labels or a list of numbers for each of `count` items; None without features."""
        if self.means:
            scaled = read_numbers(np.array(numbers, np.int64), len(self.means)).astype(np.float64)
            found = scaled * np.array(self.stds) + np.array(self.means)
            return [[float(f"{number:.6g}") for number in row] for row in found]
        if not self.labels or not ids:
            return [None] * count
        width = len(self.labels)
        rows = [ids[place : place + width] for place in range(0, len(ids), width)]
        named = [
            [known[index - 1] if index else "?" for known, index in zip(self.labels, row, strict=True)] for row in rows
        ]
        return [row[0] if width == 1 else row for row in named]

    def to_json(self) -> dict[str, Any]:
        return {"labels": self.labels, "means": self.means, "stds": self.stds}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(tuple(map(tuple, values["labels"])), tuple(values["means"]), tuple(values["stds"]))


class _ScaleFitter:
    """Collects labels, and the sums of numbers and of their squares, graph by graph."""

    def __init__(self) -> None:
        self._labels: list[Counter[str]] = []
        self._count, self._sums, self._squares = 0, np.zeros(0), np.zeros(0)

    def add(self, features: Features) -> None:
        self._labels = self._labels or [Counter() for _ in range(features.widths[0])]
        for counts, labels in zip(self._labels, zip(*features.labels, strict=True), strict=False):
            counts.update(labels)
        numbers = features.numbers.astype(np.float64)
        if numbers.shape[1]:
            self._count += len(numbers)
            self._sums = numbers.sum(axis=0) + (self._sums if len(self._sums) else 0.0)
            self._squares = (numbers**2).sum(axis=0) + (self._squares if len(self._squares) else 0.0)

    def scales(self) -> FeatureScales:
        """The labels, the frequent ones first, and the mean and standard deviation of each number."""
        means = self._sums / max(1, self._count)
        variances = self._squares / max(1, self._count) - means**2
        # A number that never varies is 0 for all nodes, and another one later is not magnified.
        stds = np.sqrt(np.where(variances > 1e-12 * np.maximum(means**2, 1e-12), variances, 1.0))
        known = (tuple(sorted(some, key=lambda label, some=some: (-some[label], label))) for some in self._labels)
        return FeatureScales(tuple(known), tuple(means.tolist()), tuple(stds.tolist()))


@dataclass(frozen=True)
class GraphCodec(Codec):
    """The labels and the scales of the numbers of the training graphs."""

    nodes: FeatureScales = FeatureScales()
    edges: FeatureScales = FeatureScales()
    mean_nodes: float = 1.0
    """The mean number of nodes of a graph."""
    are_molecules: bool = False
    are_directed: bool = False

    @classmethod
    def fit(cls, values: Iterable[str]) -> Self:
        nodes, edges = _ScaleFitter(), _ScaleFitter()
        num_graphs, num_nodes, are_molecules, are_directed = 0, 0, False, False
        for text in values:
            graph = parse_graph(text)
            nodes.add(graph.nodes)
            if len(graph.ends):
                edges.add(graph.edges)
            num_graphs, num_nodes = num_graphs + 1, num_nodes + graph.num_nodes
            are_molecules, are_directed = not text.lstrip().startswith("{"), graph.is_directed
        return cls(nodes.scales(), edges.scales(), num_nodes / max(1, num_graphs), are_molecules, are_directed)

    def read(self, text: str) -> Graph:
        """Parse a graph, which must have the features of training.

        Raises:
            DataError: If it is invalid, or has other features.
        """
        try:
            graph = parse_graph(text)
        except DataError as error:
            raise DataError(f"an input must be a graph, and this one has {error}") from None
        if graph.is_directed != self.are_directed:
            kinds = ("directed", "undirected") if self.are_directed else ("undirected", "directed")
            raise DataError(f"edges of training are {kinds[0]}, and those of this graph {kinds[1]}")
        for kind, scales, features in (("node", self.nodes, graph.nodes), ("edge", self.edges, graph.edges)):
            expected = (len(scales.labels), len(scales.means))
            if features.labels and features.widths != expected and (kind == "node" or any(expected)):
                raise DataError(
                    f"a {kind} of training had {format_count(expected[0], 'label')} and "
                    f"{format_count(expected[1], 'number')}, and this graph's have {features.widths[0]} and "
                    f"{features.widths[1]}"
                )
        return graph

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """All parts of each graph, one after the other, each after its length."""
        return [[number for part in self.encode_parts(text) for number in (len(part), *part)] for text in values]

    def encode_parts(self, text: str) -> list[list[int]]:
        """The parts of a graph, in the order of `PARTS`."""
        graph = self.read(text)
        labels, numbers = self.nodes.encode(graph.nodes)
        has_features = bool(self.edges.labels or self.edges.means) and len(graph.ends) > 0
        edge_labels, edge_numbers = self.edges.encode(graph.edges) if has_features else ([], [])
        return [
            graph.degrees().tolist(),
            labels,
            numbers,
            graph.ends.reshape(-1).tolist(),
            edge_labels,
            edge_numbers,
            graph.distances().reshape(-1).tolist(),
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Graphs as JSON; a label that training did not see is `?`, and an atom is the list of its labels."""
        return [self._decode(some) for some in ids]

    def _decode(self, ids: Sequence[int]) -> str:
        parts: list[Sequence[int]] = []
        place = 0
        while place < len(ids):
            parts.append(ids[place + 1 : place + 1 + ids[place]])
            place += 1 + ids[place]
        degrees, labels, numbers, ends, edge_labels, edge_numbers, _ = parts
        of_edges = self.edges.decode(edge_labels, edge_numbers, len(ends) // 2)
        pairs = [list(ends[place : place + 2]) for place in range(0, len(ends), 2)]
        edges = [pair if feature is None else [*pair, feature] for pair, feature in zip(pairs, of_edges, strict=True)]
        content = {"nodes": self.nodes.decode(labels, numbers, len(degrees)), "edges": edges}
        content |= {DIRECTED: True} if self.are_directed else {}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    def describe(self) -> str:
        """One line for the log."""
        if self.are_molecules:
            return f"molecules of {self.mean_nodes:.1f} atoms on average, {len(self.nodes.labels[0])} elements"
        known = [f"{format_count(len(some), 'label')} of nodes" for some in self.nodes.labels]
        numbers = [f"{format_count(len(self.nodes.means), 'number')} of each node"] if self.nodes.means else []
        kind = "directed graphs" if self.are_directed else "graphs"
        return f"{kind} of {self.mean_nodes:.1f} nodes on average, {', '.join([*known, *numbers])}"

    def to_json(self) -> str:
        return json.dumps(
            {
                "nodes": self.nodes.to_json(),
                "edges": self.edges.to_json(),
                "mean_nodes": self.mean_nodes,
                "are_molecules": self.are_molecules,
                "are_directed": self.are_directed,
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = load_json(text)
        nodes, edges = (FeatureScales.from_json(values[kind]) for kind in ("nodes", "edges"))
        return cls(nodes, edges, values["mean_nodes"], values["are_molecules"], values.get("are_directed", False))


def read_numbers(ids: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Numbers that were stored as bytes, `width` in a row."""
    return ids.astype(np.uint8).view(np.float32).reshape(-1, width)
