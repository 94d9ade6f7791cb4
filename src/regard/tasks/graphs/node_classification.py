"""Node classification: the label of each node of a graph.

The target of a row is a JSON list with a label for each node, or null where it is not known. Graphs are split into
sets, not nodes: a model is evaluated on graphs that it has not seen.

Dimensions: `batch` graphs, `nodes` of the largest one, `labels` classes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.graphs import fit_node_classifier
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.graphs import GraphCodec
from regard.data.codecs.labels import LabelCodec, describe_unknown
from regard.data.formats.cells import as_text
from regard.data.formats.graphs import parse_graph
from regard.data.formats.json_lines import decode_json
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_count
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.errors import DataError
from regard.evaluation.examples import Examples
from regard.nn.losses import IGNORED
from regard.tasks.content import Prediction, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.graphs.batches import GraphBatch
from regard.tasks.graphs.model import GraphPredictor
from regard.tasks.graphs.task import GraphSettings, GraphTask
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, repeat_batch, to_device
from regard.tasks.text_classification import classification_loss, label_losses

_LIST_FIELDS = ("labels", "label", "targets", "target", "y")


class NodeClassificationSettings(GraphSettings):
    """Settings of node classification."""

    name: str = "node-classification"


class NodeClassification(GraphTask[NodeClassificationSettings]):
    """Graphs and the labels of their nodes, by an encoder of graphs with a classification head."""

    name = "node-classification"
    description = "node classification"
    output_description = "the predicted label of each node"
    Settings = NodeClassificationSettings
    roles = ("graph", "labels")
    target_role = "labels"
    codec_types: Mapping[str, type[Codec]] = {"graph": GraphCodec, "label": LabelCodec}
    metrics = ("accuracy", "macro_f1")
    of_nodes = True
    objectives = frozenset({"label_smoothing", "rdrop"})

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        found = [name for name in summary.lists if name in _LIST_FIELDS]
        if not {"nodes", "edges"} <= set(summary.lists) or not found:
            return None
        return Detection(f"graphs of nodes and edges, a label for each node ({found[0]})", confidence=0.96)

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        source = super().open(config, rows)
        tables = {
            split: None if table is None else replace(table, read=partial(_read_valid, table.read))
            for split, table in (("train", source.train), ("valid", source.valid), ("test", source.test))
        }
        return replace(source, **tables)

    @property
    def label_codec(self) -> LabelCodec:
        return codec_of(self.codecs, "label", LabelCodec)

    @property
    def num_outputs(self) -> int:
        return len(self.label_codec)

    def fit_target(self, data: FitData) -> LabelCodec:
        return LabelCodec.fit(label for row in data.rows() for label in read_labels(row[-1]) if label is not None)

    def labels_of(self, row: Sequence[str]) -> list[str]:
        """Those of its nodes that are known."""
        return [label for label in read_labels(row[-1]) if label is not None]

    def unknown_labels(self, rows: Sequence[Sequence[str]], where: str) -> str | None:
        return describe_unknown(self.label_codec.counts, map(self.labels_of, rows), where)

    def encode_targets(self, targets: Sequence[str]) -> list[list[int]]:
        """The index of each label; the number of labels for one that training did not see, or that is not known."""
        indices = {label: index for index, label in enumerate(self.label_codec.labels)}
        return [[indices.get(label or "", len(indices)) for label in read_labels(text)] for text in targets]

    def placeholder(self, num_nodes: int) -> list[int]:
        return [0] * num_nodes

    def notes(self) -> list[str]:
        return [*super().notes(), self.label_codec.describe()]

    def make_targets(self, targets: list[NDArray[np.int64]], sizes: Sequence[int]) -> Tensor:
        found = torch.full((len(sizes), max(sizes)), IGNORED)
        for row, numbers in zip(found, targets, strict=True):
            row[: len(numbers)] = torch.from_numpy(np.where(numbers < len(self.label_codec), numbers, IGNORED))
        return found

    def count_targets(self, targets: Tensor) -> int:
        return max(1, int((targets != IGNORED).sum()))

    def loss(self, model: GraphPredictor, batch: GraphBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the nodes with a label."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        logits = model(batch.inputs).float()
        weights = batch.weights[:, None] * (batch.targets != IGNORED)
        return classification_loss(logits.flatten(0, 1), batch.targets.flatten(), weights.flatten(), objective)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[GraphBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each graph's labels."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            found = label_losses(model(batch.inputs).float().flatten(0, 1), batch.targets.flatten())
            losses += found.view(batch.targets.shape).sum(dim=1).tolist()
            counts += (batch.targets != IGNORED).sum(dim=1).tolist()
        return Likelihoods(losses, counts)

    def outputs(self, model: Any, batch: GraphBatch) -> list[list[list[float]]]:
        probabilities = model(batch.inputs).double().softmax(dim=-1).tolist()
        sizes = batch.inputs.sizes.tolist()
        return [some[:size] for some, size in zip(probabilities, sizes, strict=True)]

    def prediction(self, text: str, output: list[list[float]]) -> Prediction:
        labels = self.label_codec.labels
        found = [labels[max(range(len(labels)), key=lambda label: some[label])] for some in output]
        return Prediction(text, write_labels(found), probability=float(np.prod([max(some) for some in output])))

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        return fit_node_classifier([row[0] for row in rows], [read_labels(row[-1]) for row in rows], join=write_labels)

    def examples(self, data: EvaluationData) -> Examples:
        """The labels of each graph, without the nodes whose label is not known."""
        pairs = [
            [(output, target) for output, target in zip(read_labels(each.output), read_labels(row[-1]), strict=True)
             if target is not None]
            for each, row in zip(data.predictions, data.rows, strict=True)
        ]  # fmt: skip
        pairs = [some for some in pairs if some]
        targets = [[target for _, target in some] for some in pairs]
        return Examples(
            outputs=[[output for output, _ in some] for some in pairs],
            targets=targets,
            labels=tuple(self.label_codec.labels_with(label for some in targets for label in some)),
        )

    def export_config(self) -> dict[str, Any]:
        return {"labels": list(self.label_codec.labels)}

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return replace(super().server_schema(rows), output="text")


def read_labels(text: str) -> list[str | None]:
    """The labels of the nodes of a graph; None for one that is not known.

    Example:
        >>> read_labels('["a", null, 3]')
        ['a', None, '3']
    """
    return [None if label is None else as_text(label) for label in decode_json(text)]


def write_labels(labels: Sequence[str]) -> str:
    return json.dumps(list(labels), ensure_ascii=False)


def _read_valid(read: Callable[[], Iterator[Record]]) -> Iterator[Record]:
    """The records, those without a label for each node as faulty ones."""
    for line, values, fault in read():
        if not fault and all(value.strip() for value in values):
            fault = _fault(*values[:2])
        yield line, () if fault else values, fault


def _fault(graph: str, text: str) -> str:
    try:
        labels = decode_json(text)
    except ValueError:
        labels = None
    if not isinstance(labels, list) or any(each is not None and as_text(each) is None for each in labels):
        return "labels that are not a list with a label, or null, for each node"
    try:
        num_nodes = parse_graph(graph).num_nodes
    except DataError as error:
        return str(error)
    if len(labels) != num_nodes:
        return f"{format_count(len(labels), 'label')} for {format_count(num_nodes, 'node')}"
    return "" if any(each is not None for each in labels) else "no known label"
