"""Graph classification: the label of a graph.

Dimensions: `batch` graphs, `labels` classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.graphs import fit_graph_classifier
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.graphs import GraphCodec
from regard.data.codecs.labels import LabelCodec
from regard.data.prepare import FitData, Prepared
from regard.evaluation.examples import Examples
from regard.nn.losses import IGNORED
from regard.tasks.content import Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.graphs.batches import GraphBatch
from regard.tasks.graphs.model import GraphPredictor
from regard.tasks.graphs.task import GraphSettings, GraphTask, graph_column, is_json_graph, target_column
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, repeat_batch, to_device
from regard.tasks.text_classification import (
    balanced_weights,
    class_examples,
    class_targets,
    classification_loss,
    confusion_table,
    count_targets,
    label_losses,
    most_probable,
)


class GraphClassificationSettings(GraphSettings):
    """Settings of graph classification."""

    name: str = "graph-classification"
    balance: bool = False
    """Weight graphs so that all labels have the same weight in the loss, however frequent they are."""


class GraphClassification(GraphTask[GraphClassificationSettings]):
    """Graphs and their labels, by an encoder of graphs with a classification head."""

    name = "graph-classification"
    description = "graph classification"
    other_names = ("graphs", "molecule-classification")
    Settings = GraphClassificationSettings
    roles = ("graph", "label")
    codec_types: Mapping[str, type[Codec]] = {"graph": GraphCodec, "label": LabelCodec}
    metrics = ("accuracy", "macro_f1", "matthews", "calibration_error")
    has_labels = True
    supports_shots = True

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if is_json_graph(summary):
            return Detection("graphs of nodes and edges, each with a label", confidence=0.95)
        if (graphs := graph_column(summary)) is None or (target := target_column(summary)) is None:
            return None
        return Detection(f"graphs in {graphs.name}, labels in {target.name}", confidence=0.3)

    @property
    def label_codec(self) -> LabelCodec:
        return codec_of(self.codecs, "label", LabelCodec)

    @property
    def num_outputs(self) -> int:
        return len(self.label_codec)

    def fit_target(self, data: FitData) -> LabelCodec:
        return LabelCodec.fit(row[-1] for row in data.rows())

    def target_of(self, row: Sequence[str]) -> str:
        return row[-1].strip()

    def notes(self) -> list[str]:
        return [*super().notes(), self.label_codec.describe()]

    def make_targets(self, targets: list[NDArray[np.int64]], sizes: Sequence[int]) -> Tensor:
        return class_targets(np.array([numbers[0] for numbers in targets]), len(self.label_codec))

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> GraphBatch:
        batch = super().collate(columns, is_training=is_training)
        if not (is_training and self.settings.balance):
            return batch
        known = batch.targets.clamp(min=0)
        return replace(batch, weights=balanced_weights(self.label_codec)[known] * (batch.targets != IGNORED))

    def loss(self, model: GraphPredictor, batch: GraphBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the graphs."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        return classification_loss(model(batch.inputs).float(), batch.targets, batch.weights, objective)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[GraphBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each graph's label."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += label_losses(model(batch.inputs).float(), batch.targets).tolist()
            counts += count_targets(batch.targets)
        return Likelihoods(losses, counts)

    def outputs(self, model: Any, batch: GraphBatch) -> list[list[float]]:
        return model(batch.inputs).double().softmax(dim=-1).tolist()

    def prediction(self, text: str, output: list[float]) -> Prediction:
        probabilities = dict(zip(self.label_codec.labels, output, strict=True))
        best = most_probable(probabilities)
        return Prediction(text, best, probabilities=probabilities, probability=probabilities[best])

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        return fit_graph_classifier([row[0] for row in rows], [self.target_of(row) for row in rows])

    def examples(self, data: EvaluationData) -> Examples:
        return class_examples(self.label_codec, data)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("accuracy", "matthews")

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        return replace(super().report(model, data), confusion=confusion_table(self.label_codec, data))

    def export_config(self) -> dict[str, Any]:
        return {"labels": list(self.label_codec.labels)}

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return replace(super().server_schema(rows), labels=tuple(self.label_codec.labels))
