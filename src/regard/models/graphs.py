r"""Encoders of graphs: attention with biases from distances and edges, and message passing.

    GraphTransformer   Ying et al., "Do Transformers Really Perform Bad for Graph Representation?" (Graphormer, 2021),
                       section 3.1. https://arxiv.org/abs/2106.05234
    MessagePassing     Yang et al., "Analyzing Learned Molecular Representations for Property Prediction" (directed
                       message passing, 2019). https://arxiv.org/abs/1904.01561

Both return the hidden state of the whole graph and, after it, that of each node. Neither depends on the order of nodes
and edges. The bias of an edge is between its two nodes only; the average over the edges of a shortest path, as in
section 3.1.3, would depend on the order of nodes where there are several shortest paths.

Dimensions: `batch` graphs, `nodes` of the largest one, `edges`, `labels` and `numbers` of a node or an edge, `model`
width, `heads`, `positions`: the graph and its nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from pydantic import Field
from torch import Tensor, nn

from regard.models.encoders import ATTENTION, AttentionEncoderConfig, InputEncoder
from regard.models.family import Family, InputKind, ModelConfig, Preset
from regard.models.transformer.model import TransformerStack, initialize_transformer
from regard.nn.dropout import Dropout
from regard.nn.masks import padding_mask

_UNREACHABLE = 255
"""The distance between nodes that no path connects."""
_DIRECTION_STD = 0.3
"""Standard deviation of the initial vectors that distinguish messages along an edge and against it."""
_PADDING = -1
"""An end of an edge that only pads the batch."""


@dataclass(frozen=True)
class GraphShape:
    """What is known of the nodes and edges of graphs."""

    node_sizes: tuple[int, ...] = ()
    """The number of indices of each label of a node."""
    node_numbers: int = 0
    edge_sizes: tuple[int, ...] = ()
    edge_numbers: int = 0
    mean_nodes: float = 1.0
    """The mean number of nodes of a graph, by which sums over nodes are divided."""
    is_directed: bool = False
    """Whether edges lead from their first node to their second."""

    @property
    def has_edge_features(self) -> bool:
        return bool(self.edge_sizes or self.edge_numbers)


@dataclass(frozen=True)
class GraphInputs:
    """A batch of graphs, padded to the largest one."""

    sizes: Int[Tensor, " batch"]
    """The number of nodes of each graph."""
    degrees: Int[Tensor, "batch nodes"]
    labels: Int[Tensor, "batch nodes labels"]
    numbers: Float[Tensor, "batch nodes numbers"]
    ends: Int[Tensor, "batch edges 2"]
    """The nodes of each edge; -1 for edges that only pad the batch."""
    edge_labels: Int[Tensor, "batch edges edge_labels"]
    edge_numbers: Float[Tensor, "batch edges edge_numbers"]
    distances: UInt8[Tensor, "batch nodes nodes"]
    """The length of the shortest path from each node to each other; 255 where there is none."""

    def tensors(self) -> list[Tensor]:
        return [getattr(self, each.name) for each in fields(self)]

    def with_tensors(self, tensors: Any) -> "GraphInputs":
        return replace(self, **{each.name: tensor for each, tensor in zip(fields(self), tensors, strict=True)})

    def padded(self, num_rows: int, num_nodes: int, num_edges: int) -> "GraphInputs":
        """The batch with more graphs of one node, and room for more nodes and edges."""
        rows, nodes = num_rows - len(self.sizes), num_nodes - self.degrees.size(1)
        edges = num_edges - self.ends.size(1)
        return GraphInputs(
            sizes=F.pad(self.sizes, (0, rows), value=1),
            degrees=F.pad(self.degrees, (0, nodes, 0, rows)),
            labels=F.pad(self.labels, (0, 0, 0, nodes, 0, rows)),
            numbers=F.pad(self.numbers, (0, 0, 0, nodes, 0, rows)),
            ends=F.pad(self.ends, (0, 0, 0, edges, 0, rows), value=_PADDING),
            edge_labels=F.pad(self.edge_labels, (0, 0, 0, edges, 0, rows)),
            edge_numbers=F.pad(self.edge_numbers, (0, 0, 0, edges, 0, rows)),
            distances=F.pad(self.distances, (0, nodes, 0, nodes, 0, rows), value=_UNREACHABLE),
        )


class GraphTransformerConfig(AttentionEncoderConfig):
    """The settings of `GraphTransformer`: those of a Transformer's encoder, and the ranges of its encodings."""

    family: str = "graph-attention"
    has_attention_kinds: ClassVar[bool] = False
    input_kind: ClassVar[InputKind] = "graphs"
    has_class_token: ClassVar[bool] = True
    max_distance: int = Field(default=20, ge=1, lt=_UNREACHABLE)
    """Longer shortest paths have the bias of this length."""
    max_degree: int = Field(default=15, ge=1)
    """Nodes with more edges have the embedding of this degree."""
    local_layers: int = Field(default=1, ge=0)
    """Steps of message passing before the first block, from which a node knows its edges; 0 for none."""

    @property
    def lr_scale(self) -> float:
        return 0.5


class MessagePassingConfig(ModelConfig):
    """The settings of `MessagePassing`."""

    family: str = "message-passing"
    input_kind: ClassVar[InputKind] = "graphs"
    has_class_token: ClassVar[bool] = True
    model_dim: int = Field(default=300, ge=1)
    """Width of the messages and of the hidden states."""
    num_layers: int = Field(default=3, ge=1)
    """Steps of message passing: a node depends on those at most so many edges away."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on messages and hidden states."""

    @property
    def encoder_depth(self) -> int:
        return self.num_layers


class FeatureEmbedding(nn.Module):
    """The sum of the embeddings of all labels and of a linear map of the numbers."""

    def __init__(self, sizes: tuple[int, ...], num_numbers: int, width: int) -> None:
        super().__init__()
        self.labels = nn.Embedding(sum(sizes), width) if sizes else None
        self.numbers = nn.Linear(num_numbers, width) if num_numbers else None
        self.first: Tensor
        self.register_buffer("first", torch.tensor([0, *sizes[:-1]] if sizes else []).cumsum(0), persistent=False)

    def forward(
        self, labels: Int[Tensor, "batch items labels"], numbers: Float[Tensor, "batch items numbers"]
    ) -> Float[Tensor, "batch items model"]:
        found = [] if self.labels is None else [self.labels(labels + self.first).sum(dim=-2)]
        if self.numbers is not None:
            found.append(self.numbers(numbers.to(self.numbers.weight.dtype)))
        return found[0] if len(found) == 1 else found[0] + found[1]


class GraphEncoder(InputEncoder):
    """What encoders of graphs have in common: they return the hidden state of each graph, and of its nodes."""

    Inputs: ClassVar[type] = GraphInputs

    def mask(self, graphs: GraphInputs) -> Bool[Tensor, "batch 1 1 positions"]:
        return padding_mask(graphs.sizes + 1, graphs.degrees.size(1) + 1)


class GraphTransformer(GraphEncoder):
    """Every node attends to every other one; what it knows of their places are biases.

    The score of two nodes has a learned bias for the length of the shortest path between them, and one for the
    features of the edge between neighbors. The degree of a node is embedded, and so are the numbers of nodes at larger
    distances from it: weights of attention sum to 1, and cannot count. The whole graph is a further node, which has a
    bias of its own.

    Where edges have a direction, so have paths: the score of node i for node j has a bias for the path from i to j,
    and another one for that from j to i, and the bias of an edge is added where it leads from i to j.
    """

    def __init__(self, config: GraphTransformerConfig, shape: GraphShape) -> None:
        super().__init__()
        self.config, width = config, config.model_dim
        self.nodes = FeatureEmbedding(shape.node_sizes, shape.node_numbers, width)
        self.degrees = nn.Embedding(config.max_degree + 1, width)
        self.profile = nn.Linear(config.max_distance + 2, width, bias=False)
        self.graph = nn.Parameter(torch.zeros(width))
        self.distances = nn.Embedding(config.max_distance + 3, config.num_heads)
        self.edge_bias = (
            FeatureEmbedding(shape.edge_sizes, shape.edge_numbers, config.num_heads)
            if shape.has_edge_features
            else None
        )
        if shape.is_directed:
            self.back_profile = nn.Linear(config.max_distance + 2, width, bias=False)
            self.back_distances = nn.Embedding(config.max_distance + 3, config.num_heads)
        self.is_directed = shape.is_directed
        self.local = LocalMessages(shape, width, config.local_layers) if config.local_layers else None
        self.encoder = TransformerStack(config, config.encoder_depth)
        initialize_transformer(self, config)

    def hidden_states(self, graphs: GraphInputs) -> Float[Tensor, "batch positions model"]:
        x, mask = self.nodes(graphs.labels, graphs.numbers), self.mask(graphs)
        kinds = self.kinds(graphs)
        x = x + self.degrees(graphs.degrees.clamp(max=self.config.max_degree))
        x = x + self.profile(self.counts(kinds, mask).to(x.dtype))
        if self.is_directed:
            x = x + self.back_profile(self.counts(kinds.mT, mask).to(x.dtype))
        if self.local is not None:
            x = self.local(x, graphs)
        x = torch.cat([self.graph.to(x.dtype).expand(x.size(0), 1, -1), x], dim=1)
        return self.encoder(x, mask, bias=self.bias(graphs, kinds))

    def kinds(self, graphs: GraphInputs) -> Int[Tensor, "batch nodes nodes"]:
        """The distances up to `max_distance`, and a number above it for nodes that no path connects."""
        farthest, lengths = self.config.max_distance, graphs.distances.long()
        return torch.where(lengths == _UNREACHABLE, farthest + 1, lengths.clamp(max=farthest))

    def counts(
        self, kinds: Int[Tensor, "batch nodes nodes"], mask: Bool[Tensor, "batch 1 1 positions"]
    ) -> Float[Tensor, "batch nodes kinds"]:
        """The logarithm of 1 and the number of nodes at each distance from a node."""
        is_node = mask[:, 0, :, 1:].to(self.profile.weight.dtype).expand(kinds.shape)
        found = is_node.new_zeros(*kinds.shape[:2], self.profile.in_features)
        return found.scatter_add(2, kinds, is_node).log1p()

    def bias(
        self, graphs: GraphInputs, kinds: Int[Tensor, "batch nodes nodes"]
    ) -> Float[Tensor, "batch heads positions positions"]:
        """What is added to the attention scores: position 0 is the graph, the others are its nodes."""
        kinds = F.pad(kinds, (1, 0, 1, 0), value=self.config.max_distance + 2)
        found = self.distances(kinds)
        if self.is_directed:
            found = found + self.back_distances(kinds.mT)
        if self.edge_bias is not None:
            of_edges = self.edge_bias(graphs.edge_labels, graphs.edge_numbers).to(found.dtype)
            found = found + pair_values(of_edges, graphs, is_directed=self.is_directed)
        return found.permute(0, 3, 1, 2)


def pair_values(
    values: Float[Tensor, "batch edges heads"], graphs: GraphInputs, *, is_directed: bool = False
) -> Float[Tensor, "batch positions positions heads"]:
    """The values of edges at both places of their pair of nodes, or at that of their direction; 0 elsewhere.

    Position 0 is the graph.
    """
    width = graphs.degrees.size(1) + 1
    one, other = (graphs.ends + 1).unbind(dim=-1)  # an edge of the padding is between the graph and itself
    places = one * width + other
    values = values.masked_fill(graphs.ends[..., :1] < 0, 0.0)
    if not is_directed:
        places, values = torch.cat([places, other * width + one], dim=1), torch.cat([values, values], dim=1)
    found = values.new_zeros(values.size(0), width * width, values.size(2))
    places = places[..., None].expand(-1, -1, values.size(2))
    return found.scatter_add(1, places, values).unflatten(1, (width, width))


def message_features(
    edges: "FeatureEmbedding | None", directions: Float[Tensor, "two model"] | None, graphs: GraphInputs
) -> Float[Tensor, "some directed model"] | None:
    """What is added to messages along each edge, in the order of `directed_edges`; None where nothing is known."""
    found = None
    if edges is not None:
        features = edges(graphs.edge_labels, graphs.edge_numbers)
        found = torch.cat([features, features], dim=1)
    if directions is not None:
        of_edges = directions[:, None].expand(-1, graphs.ends.size(1), -1).flatten(0, 1)[None]
        found = of_edges if found is None else found + of_edges.to(found.dtype)
    return found


class LocalMessages(nn.Module):
    r"""Sums over neighbors with the features of edges, added to each node (GINE: Hu et al., 2020, arXiv 1905.12265).

    $$ x_v + W \sum_{w \in N(v)} \mathrm{relu}(x_w + e_{vw}) $$
    """

    def __init__(self, shape: GraphShape, width: int, num_layers: int) -> None:
        super().__init__()
        self.edges = FeatureEmbedding(shape.edge_sizes, shape.edge_numbers, width) if shape.has_edge_features else None
        self.directions = nn.Parameter(_DIRECTION_STD * torch.randn(2, width)) if shape.is_directed else None
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, x: Float[Tensor, "batch nodes model"], graphs: GraphInputs) -> Float[Tensor, "batch nodes model"]:
        source, target, is_edge = directed_edges(graphs)
        features = message_features(self.edges, self.directions, graphs)
        for layer in self.layers:
            messages = take_nodes(x, source)
            if features is not None:
                messages = messages + features.to(messages.dtype)
            x = x + layer(sum_at(F.relu(messages) * is_edge, target, x.size(1)))
        return x


class MessagePassing(GraphEncoder):
    r"""Messages along both directions of each edge, which do not return at once to the node they come from.

    $$ h^0_{vw} = \mathrm{relu}(x_v + e_{vw}), \quad
       h^{t+1}_{vw} = \mathrm{relu}(h^0_{vw} + W \sum_{u \in N(v) \setminus w} h^t_{uv}) $$

    A node is a layer of its features and of the sum of its last messages; the graph is a layer of the mean and of the
    sum of its nodes.
    """

    def __init__(self, config: MessagePassingConfig, shape: GraphShape) -> None:
        super().__init__()
        self.config, width = config, config.model_dim
        self.mean_nodes = shape.mean_nodes
        self.nodes = FeatureEmbedding(shape.node_sizes, shape.node_numbers, width)
        self.edges = FeatureEmbedding(shape.edge_sizes, shape.edge_numbers, width) if shape.has_edge_features else None
        self.directions = nn.Parameter(_DIRECTION_STD * torch.randn(2, width)) if shape.is_directed else None
        self.message = nn.Linear(width, width, bias=False)
        self.node = nn.Linear(2 * width, width)
        self.graph = nn.Linear(2 * width, width)
        self.dropout = Dropout(config.dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.3)

    def hidden_states(self, graphs: GraphInputs) -> Float[Tensor, "batch positions model"]:
        x, mask = self.nodes(graphs.labels, graphs.numbers), self.mask(graphs)
        source, target, is_edge = directed_edges(graphs)
        first = take_nodes(x, source)
        features = message_features(self.edges, self.directions, graphs)
        first = F.relu(first if features is None else first + features.to(first.dtype))
        messages, num_edges = first, graphs.ends.size(1)
        for _ in range(self.config.num_layers - 1):
            sums = sum_at(messages * is_edge, target, x.size(1))
            back = torch.cat([messages[:, num_edges:], messages[:, :num_edges]], dim=1)  # the reverse edges
            messages = self.dropout(F.relu(first + self.message(take_nodes(sums, source) - back)))
        sums = sum_at(messages * is_edge, target, x.size(1))
        nodes = self.dropout(F.relu(self.node(torch.cat([x, sums.to(x.dtype)], dim=-1))))
        is_node = mask[:, 0, 0, 1:, None]
        nodes = nodes * is_node
        total = nodes.sum(dim=1)
        both = torch.cat([total / graphs.sizes[:, None], total / self.mean_nodes], dim=-1)
        graph = F.relu(self.graph(both.to(nodes.dtype)))
        return torch.cat([graph[:, None].to(nodes.dtype), nodes], dim=1)


def directed_edges(
    graphs: GraphInputs,
) -> tuple[Int[Tensor, "batch directed"], Int[Tensor, "batch directed"], Shaped[Tensor, "batch directed 1"]]:
    """Where each edge begins and ends, first in one direction and then in the other, and which are not padding."""
    one, other = graphs.ends.clamp(min=0).unbind(dim=-1)
    is_edge = graphs.ends[..., :1] >= 0
    return torch.cat([one, other], dim=1), torch.cat([other, one], dim=1), torch.cat([is_edge, is_edge], dim=1)


def take_nodes(
    x: Float[Tensor, "batch nodes model"], places: Int[Tensor, "batch directed"]
) -> Float[Tensor, "batch directed model"]:
    """The vectors of the nodes at these places."""
    return x.gather(1, places[..., None].expand(-1, -1, x.size(2)))


def sum_at(
    values: Float[Tensor, "batch directed model"], places: Int[Tensor, "batch directed"], num_nodes: int
) -> Float[Tensor, "batch nodes model"]:
    """The sum of the values at each node."""
    found = values.new_zeros(values.size(0), num_nodes, values.size(2))
    return found.scatter_add(1, places[..., None].expand(-1, -1, values.size(2)), values)


class GraphFamily(Family):
    """A family of models that read graphs."""

    default_shape: ClassVar[GraphShape] = GraphShape(node_sizes=(2,))


class GraphTransformerFamily(GraphFamily):
    """Transformers of graphs."""

    name = "graph-attention"
    Config = GraphTransformerConfig
    Model = GraphTransformer
    presets: ClassVar[Mapping[str, Preset]] = {
        "graph-transformer": Preset(
            {
                "tiny": {"num_layers": 4, "model_dim": 128, "num_heads": 8, "feedforward_dim": 256},
                "small": {"num_layers": 6, "model_dim": 256, "num_heads": 8, "feedforward_dim": 512},
                "base": {"num_layers": 12, "model_dim": 512, "num_heads": 16, "feedforward_dim": 1024},
                "big": {"num_layers": 12, "model_dim": 768, "num_heads": 32, "feedforward_dim": 1536},
            },
            {**ATTENTION, "positions": "none"},
        )
    }


class MessagePassingFamily(GraphFamily):
    """Directed message passing; `tiny` has the width and the steps of Yang et al. (2019)."""

    name = "message-passing"
    Config = MessagePassingConfig
    Model = MessagePassing
    presets: ClassVar[Mapping[str, Preset]] = {
        "message-passing": Preset(
            {
                "tiny": {"num_layers": 3, "model_dim": 300},
                "small": {"num_layers": 4, "model_dim": 600},
                "base": {"num_layers": 5, "model_dim": 1200},
                "big": {"num_layers": 6, "model_dim": 2000},
            }
        )
    }
