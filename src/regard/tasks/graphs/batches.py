"""Encoded graphs as tensors.

Dimensions: `batch` graphs, `nodes` of the largest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from regard.data.codecs.graphs import FeatureScales, GraphCodec, read_numbers
from regard.models.graphs import GraphInputs, GraphShape
from regard.nn.losses import IGNORED
from regard.tasks.text import pad_rows

_EDGE_STEP = 32
"""Batches of fixed shapes have a multiple of so many edges, so that few shapes occur."""
_PADDING, _UNREACHABLE = -1, 255


@dataclass(frozen=True)
class GraphBatch:
    """Graphs, and the target of each, its properties, or the targets of its nodes."""

    inputs: GraphInputs
    targets: Shaped[Tensor, "batch *targets"]
    weights: Float[Tensor, " batch"]
    """The weight of each graph in the loss: 0 for one that only pads the batch."""
    num_targets: int
    num_tokens: int
    """The number of nodes."""

    def tensors(self) -> list[Tensor | None]:
        return [*self.inputs.tensors(), self.targets, self.weights]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "GraphBatch":
        *inputs, targets, weights = tensors
        assert targets is not None
        assert weights is not None
        return replace(self, inputs=self.inputs.with_tensors(inputs), targets=targets, weights=weights)


def graph_shape(codec: GraphCodec) -> GraphShape:
    """What a model needs to know of the graphs of a codec."""
    return GraphShape(
        node_sizes=codec.nodes.sizes,
        node_numbers=len(codec.nodes.means),
        edge_sizes=codec.edges.sizes,
        edge_numbers=len(codec.edges.means),
        mean_nodes=codec.mean_nodes,
        is_directed=codec.are_directed,
    )


def make_inputs(columns: Sequence[list[NDArray[np.int64]]], codec: GraphCodec) -> GraphInputs:
    """The graphs of some rows; `columns` are the parts that `codec` encodes."""
    degrees, labels, numbers, ends, edge_labels, edge_numbers, distances = columns
    sizes = np.array([len(some) for some in degrees], np.int64)
    counts = np.array([len(some) // 2 for some in ends], np.int64)
    row, place = _places(sizes)
    edge_row, edge_place = _places(counts)
    most, most_edges = int(sizes.max()), int(counts.max(initial=0))

    def filled(values: NDArray, rows: NDArray, places: NDArray, length: int, padding: int) -> Tensor:
        found = np.full((len(sizes), length, *values.shape[1:]), padding, values.dtype)
        found[rows, places] = values
        return torch.from_numpy(found)

    def features(scales: FeatureScales, ids: list, texts: list, rows: NDArray, places: NDArray, length: int):
        count, width = len(rows), len(scales.labels)
        found = np.concatenate(ids).reshape(count, width) if width else np.zeros((count, 0), np.int64)
        width = len(scales.means)
        values = read_numbers(np.concatenate(texts), width) if width and count else np.zeros((count, width), np.float32)
        return filled(found, rows, places, length, 0), filled(values, rows, places, length, 0)

    of_nodes = features(codec.nodes, labels, numbers, row, place, most)
    of_edges = features(codec.edges, edge_labels, edge_numbers, edge_row, edge_place, most_edges)
    pair_row, pair_place = _places(sizes**2)
    paths = np.full((len(sizes), most, most), _UNREACHABLE, np.uint8)
    paths[pair_row, pair_place // sizes[pair_row], pair_place % sizes[pair_row]] = np.concatenate(distances)
    pairs = np.concatenate(ends).reshape(-1, 2)
    return GraphInputs(
        sizes=torch.from_numpy(sizes),
        degrees=filled(np.concatenate(degrees), row, place, most, 0),
        labels=of_nodes[0],
        numbers=of_nodes[1],
        ends=filled(pairs, edge_row, edge_place, most_edges, _PADDING),
        edge_labels=of_edges[0],
        edge_numbers=of_edges[1],
        distances=torch.from_numpy(paths),
    )


def _places(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each item of rows of these lengths, one row after the other, its row and its place in it."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    firsts = np.cumsum(lengths) - lengths
    return rows, np.arange(len(rows)) - firsts[rows]


def pad_graph_batch(batch: GraphBatch, num_rows: int, num_nodes: int, *, of_nodes: bool) -> GraphBatch:
    """The batch padded to a shape that recurs; added graphs have no weight in the loss."""
    inputs, targets = batch.inputs, batch.targets
    num_edges = -(-inputs.ends.size(1) // _EDGE_STEP) * _EDGE_STEP
    if of_nodes:
        targets = torch.nn.functional.pad(targets, (0, num_nodes - targets.size(1)), value=IGNORED)
    more = num_rows - len(batch.weights)
    return replace(
        batch,
        inputs=inputs.padded(num_rows, num_nodes, num_edges),
        targets=pad_rows(targets, num_rows),
        weights=torch.nn.functional.pad(batch.weights, (0, more)),
    )
