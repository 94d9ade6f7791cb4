"""Graph regression: a number for a graph, such as the solubility of a molecule.

The model is trained on standardized numbers, by the squared error.

Dimensions: `batch` graphs.
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
from regard.baselines.graphs import fit_graph_number
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.graphs import GraphCodec
from regard.data.codecs.numbers import NumberCodec, parse_number
from regard.data.formats.decimals import with_numbers
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts
from regard.evaluation.scores import Score
from regard.tasks.content import Prediction, ReportContent, number_section
from regard.tasks.detection import DetectionSummary
from regard.tasks.graphs.batches import GraphBatch
from regard.tasks.graphs.model import GraphPredictor
from regard.tasks.graphs.task import GraphSettings, GraphTask, graph_column, target_column
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, to_device


class GraphRegressionSettings(GraphSettings):
    """Settings of graph regression."""

    name: str = "graph-regression"


class GraphRegression(GraphTask[GraphRegressionSettings]):
    """Graphs and numbers, by an encoder of graphs with one output."""

    name = "graph-regression"
    description = "graph regression"
    output_description = "the predicted number"
    other_names = ("molecule-regression", "property-prediction")
    Settings = GraphRegressionSettings
    roles = ("graph", "number")
    target_role = "number"
    codec_types: Mapping[str, type[Codec]] = {"graph": GraphCodec, "label": NumberCodec}
    metrics = ("rmse", "mean_absolute_error", "r_squared", "pearson", "spearman")
    supports_shots = True
    objectives = frozenset()

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        is_json, graphs, target = {"nodes", "edges"} <= set(summary.lists), graph_column(summary), None
        if is_json:
            target = summary.columns[-1] if len(summary.columns) == 1 else None
        elif graphs is not None:
            target = target_column(summary)
        if target is None or not target.is_measurement:
            return None
        where = "graphs of nodes and edges" if graphs is None else f"graphs in {graphs.name}"
        return Detection(f"{where}, numbers in {target.name}", confidence=0.96 if is_json else 0.35)

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        source = super().open(config, rows)
        tables = {
            split: None if table is None else with_numbers(table)
            for split, table in (("train", source.train), ("valid", source.valid), ("test", source.test))
        }
        return replace(source, **tables)

    @property
    def number_codec(self) -> NumberCodec:
        return codec_of(self.codecs, "label", NumberCodec)

    @property
    def num_outputs(self) -> int:
        return 1

    def fit_target(self, data: FitData) -> NumberCodec:
        return NumberCodec.fit(row[-1] for row in data.rows())

    def placeholder(self, num_nodes: int) -> list[int]:
        return [0, 0, 0, 0]

    def make_targets(self, targets: list[NDArray[np.int64]], sizes: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.number_codec.standardize(self.number_codec.numbers(targets))).float()

    def loss(self, model: GraphPredictor, batch: GraphBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Half of the squared error, summed over the graphs."""
        return (_losses(model, batch) * batch.weights).sum()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[GraphBatch], device: torch.device) -> Likelihoods:
        """Returns each number's likelihood under a normal distribution with the data's variance, up to a constant."""
        losses = [loss for batch in batches for loss in _losses(model, to_device(batch, device)).tolist()]
        return Likelihoods(losses, [1] * len(losses))

    def outputs(self, model: Any, batch: GraphBatch) -> list[float]:
        numbers = model(batch.inputs)[:, 0].double()
        return (numbers * self.number_codec.std + self.number_codec.mean).tolist()

    @property
    def export_output(self) -> str:
        return "numbers"

    def activation(self, outputs: Tensor) -> Tensor:
        return outputs * self.number_codec.std + self.number_codec.mean

    def prediction(self, text: str, output: float) -> Prediction:
        return Prediction(text, f"{output:.6g}")

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        return fit_graph_number([row[0] for row in rows], [parse_number(row[-1]) for row in rows])

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(
            outputs=[float(each.output) for each in data.predictions],
            targets=[parse_number(row[-1]) for row in data.rows],
        )

    def failure(self, scores: Mapping[str, Score], counts: LabelCounts | None, headline: str) -> str:
        explained = scores["r_squared"].value
        return "" if explained > 0 else f"R squared is {explained:.3f}, and that of the mean of all rows is 0"

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        examples = self.examples(data)
        pair = ([float(each) for each in examples.targets or ()], [float(each) for each in examples.outputs or ()])
        section = number_section([row[0] for row in data.rows], {self.target_role: pair})
        content = super().report(model, data)
        return replace(content, samples=[], sections=[*content.sections, section])

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("rmse", "r_squared")


def _losses(model: GraphPredictor, batch: GraphBatch) -> Float[Tensor, " batch"]:
    return (model(batch.inputs)[:, 0].float() - batch.targets).square() / 2
