"""The model of tasks on graphs: an encoder of graphs with a head.

Dimensions: `batch` graphs, `nodes` of the largest one, `outputs` logits or numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.family import ModelConfig, build_encoder
from regard.models.graphs import GraphInputs, GraphShape
from regard.models.heads import HeadConfig, Pool, PredictionHead, pooled


class GraphPredictor(nn.Module):
    """Graphs in, outputs for each graph or for each of its nodes out."""

    def __init__(
        self, config: ModelConfig, shape: GraphShape, head: HeadConfig, num_outputs: int, *, of_nodes: bool = False
    ) -> None:
        super().__init__()
        self.body: Any = build_encoder(config, shape, reads="graphs", example="graph-transformer")
        self.pooling = None if of_nodes else Pool(config.model_dim, head.pooling)
        self.head = PredictionHead(
            config.model_dim, num_outputs, dropout=head.dropout, has_hidden_layer=head.hidden_layer
        )

    def forward(self, graphs: GraphInputs) -> Float[Tensor, "batch *nodes outputs"]:
        return self.head(self.embed(graphs))

    def embed(self, graphs: GraphInputs) -> Float[Tensor, "batch *nodes model"]:
        """The vectors of the graphs, or of their nodes."""
        encoded = self.body.encode(graphs)
        return encoded.hidden_states[:, 1:] if self.pooling is None else pooled(self.pooling, encoded)


class ExportedGraphs(nn.Module):
    """A predictor from numbers of the data to predictions, with arrays as inputs.

    Degrees are counted and numbers are standardized in the graph; features that the graphs of training do not have are
    not among the inputs.
    """

    def __init__(
        self,
        model: GraphPredictor,
        scales: Sequence[tuple[Sequence[float], Sequence[float]]],
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.model, self.activation = model, activation
        for name, (means, stds) in zip(("node", "edge"), scales, strict=True):
            self.register_buffer(f"{name}_means", torch.tensor(list(means)))
            self.register_buffer(f"{name}_stds", torch.tensor(list(stds)))

    def forward(
        self,
        num_nodes: Tensor,
        edges: Tensor,
        distances: Tensor,
        node_labels: Tensor | None = None,
        node_numbers: Tensor | None = None,
        edge_labels: Tensor | None = None,
        edge_numbers: Tensor | None = None,
    ) -> tuple[Tensor]:
        (batch, most, _), num_edges = distances.shape, edges.size(1)
        is_end = (edges >= 0).long().flatten(1)
        degrees = edges.new_zeros(batch, most).scatter_add(1, edges.clamp(min=0).flatten(1), is_end)
        graphs = GraphInputs(
            sizes=num_nodes,
            degrees=degrees,
            labels=edges.new_zeros(batch, most, 0) if node_labels is None else node_labels,
            numbers=self._scaled(node_numbers, "node", distances.new_zeros(batch, most, 0)),
            ends=edges,
            edge_labels=edges.new_zeros(batch, num_edges, 0) if edge_labels is None else edge_labels,
            edge_numbers=self._scaled(edge_numbers, "edge", edges.new_zeros(batch, num_edges, 0)),
            distances=distances,
        )
        return (self.activation(self.model(graphs).float()),)

    def _scaled(self, numbers: Tensor | None, kind: str, nothing: Tensor) -> Tensor:
        if numbers is None:
            return nothing.float()
        return (numbers - getattr(self, f"{kind}_means")) / getattr(self, f"{kind}_stds")
