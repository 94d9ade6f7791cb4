"""The model of tasks on graphs: an encoder of graphs with a head.

Dimensions: `batch` graphs, `nodes` of the largest one, `outputs` logits or numbers.
"""

from typing import Any

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
