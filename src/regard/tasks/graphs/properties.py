"""Properties of graphs: several numbers or binary labels for a graph, any of which may be missing.

A missing property has no loss and is not scored. The network has an output for each property, all of which share its
encoder.

Dimensions: `batch` graphs, `outputs` properties.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.graphs import fit_graph_properties
from regard.data.codecs.codec import Codec
from regard.data.codecs.graphs import GraphCodec
from regard.data.codecs.properties import PropertyCodec
from regard.data.formats.graphs import DIRECTED, FIELDS
from regard.data.formats.summary import ColumnSummary
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.models.gaussian_process import property_losses
from regard.tasks.detection import DetectionSummary
from regard.tasks.graphs.batches import GraphBatch
from regard.tasks.graphs.model import GraphPredictor
from regard.tasks.graphs.task import (
    GRAPH_COLUMNS,
    GraphSettings,
    GraphTask,
    graph_column,
    is_graph_data,
    open_graphs,
)
from regard.tasks.properties import (
    PropertyColumns,
    PropertyTask,
    choose_property_columns,
    describe_columns,
    find_properties,
    property_columns,
    require_properties,
    without_none,
)
from regard.tasks.task import PLAIN, Detection, Likelihoods, Objective, to_device


class GraphPropertiesSettings(GraphSettings):
    """Settings of properties of graphs."""

    name: str = "graph-properties"


class GraphProperties(PropertyTask[GraphPropertiesSettings], GraphTask[GraphPropertiesSettings]):
    """Graphs and their properties, by an encoder of graphs with an output for each."""

    name = "graph-properties"
    description = "properties of graphs"
    output_description = "the predicted properties"
    other_names = ("multi-task", "graph-multitask")
    Settings = GraphPropertiesSettings
    roles = ("graph", "properties")
    target_role = "properties"
    codec_types: Mapping[str, type[Codec]] = {"graph": GraphCodec, "properties": PropertyCodec}
    objectives = frozenset()

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        graphs = graph_column(summary)
        found = find_properties([column for column in summary.columns if column is not graphs])
        names = ", ".join(column.name for column in found)
        if set(FIELDS) <= set(summary.lists):
            # Below that of labels of nodes, and above that of one number.
            return Detection(f"graphs of nodes and edges, properties: {names}", 0.97) if len(found) > 1 else None
        if graphs is None or not found or (summary.columns_given and len(found) < len(summary.columns) - 1):
            return None
        return Detection(f"graphs in {graphs.name}, properties: {names}", 0.4 if len(found) > 1 else 0.25)

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        if rows is not None and not is_graph_data(config, rows):
            rows = without_none(rows)
        columns = self._columns(config, rows)
        return open_graphs(config, "properties", rows, max_nodes=self.settings.max_nodes, properties=columns)

    def _columns(self, config: DataConfig, rows: Rows | None) -> PropertyColumns:
        """Those of training, where the task has codecs and the user has named none."""
        codec = self.codecs.get("properties")
        if isinstance(codec, PropertyCodec) and not config.columns:
            return PropertyColumns.of_codec(codec)
        if not is_graph_data(config, rows):
            return choose_property_columns(config, rows, _find_graphs, objects="graphs", role="graph")
        others = [column for column in describe_columns(config.changed(columns=[]), rows) if column.name != DIRECTED]
        if named := [name for name in config.columns if name not in (*FIELDS, "graph")]:
            by_name = {column.name: column for column in others}
            return property_columns("graph", named, [by_name.get(name) for name in named])
        where = "the table in memory" if rows is not None else config.train[0]
        found = require_properties(others, where, "name them")
        return property_columns("graph", [column.name for column in found], found)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        columns = self._columns(config, rows)
        named = PropertyCodec(columns.properties, source=columns.source)
        return super(GraphProperties, self.with_codecs({"properties": named})).prepare(config, rows)

    def cache_key(self) -> dict[str, Any]:
        return {**super().cache_key(), "properties": list(self.property_codec.names)}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        named = self.property_codec
        fitted = PropertyCodec.fit((row[-1] for row in data.rows()), named.names, named.source)
        return {"graph": GraphCodec.fit(row[0] for row in data.rows()), "properties": fitted}

    def encode_targets(self, targets: Sequence[str]) -> list[list[int]]:
        return self.property_codec.encode(targets)

    def placeholder(self, num_nodes: int) -> list[int]:
        codec = self.property_codec
        return codec.encode([codec.write([math.nan] * len(codec))])[0]

    def notes(self) -> list[str]:
        return [*super().notes(), self.property_codec.describe()]

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "properties": ", ".join(self.property_codec.names)}

    # Model and training

    @property
    def num_outputs(self) -> int:
        return len(self.property_codec)

    def make_targets(self, targets: list[NDArray[np.int64]], sizes: Sequence[int]) -> Tensor:
        """NaN where a property is missing."""
        codec = self.property_codec
        return torch.from_numpy(codec.standardize(codec.numbers(targets))).float()

    def count_targets(self, targets: Tensor) -> int:
        return int(targets.isfinite().sum())

    def loss(self, model: GraphPredictor, batch: GraphBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The cross-entropy, or half of the squared error, summed over the known properties."""
        return (self._losses(model, batch).sum(dim=1) * batch.weights).sum()

    def _losses(self, model: GraphPredictor, batch: GraphBatch) -> Float[Tensor, "batch outputs"]:
        targets = batch.targets.nan_to_num()
        losses = property_losses(model(batch.inputs).float(), targets, are_labels=self.property_codec.are_labels)
        return losses * batch.targets.isfinite()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[GraphBatch], device: torch.device) -> Likelihoods:
        """Of the known properties of each graph; those of numbers up to a constant."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += self._losses(model, batch).sum(dim=1).tolist()
            counts += batch.targets.isfinite().sum(dim=1).tolist()
        return Likelihoods(losses, counts)

    # Use

    def outputs(self, model: Any, batch: GraphBatch) -> list[list[float]]:
        return self.property_outputs(model(batch.inputs))

    def fit_baseline(self, texts: Sequence[str], targets: Float[np.ndarray, "batch outputs"]) -> Baseline:
        return fit_graph_properties(texts, targets, are_labels=self.property_codec.are_labels)

    def activation(self, outputs: Tensor) -> Tensor:
        codec = self.property_codec
        if codec.are_labels:
            return outputs.sigmoid()
        return outputs * torch.tensor(codec.stds, dtype=outputs.dtype) + torch.tensor(codec.means, dtype=outputs.dtype)

    @property
    def export_output(self) -> str:
        return "probabilities" if self.property_codec.are_labels else "numbers"

    def export_config(self) -> dict[str, Any]:
        codec = self.property_codec
        return {"properties": list(codec.names), "labels": [list(each) for each in codec.labels]}


def _find_graphs(columns: Sequence[ColumnSummary]) -> ColumnSummary | None:
    return next((column for column in columns if column.plain_name in GRAPH_COLUMNS), None)
