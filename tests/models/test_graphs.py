"""Encoders of graphs: against direct computations, and without an influence of order and padding."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.data.codecs.graphs import GraphCodec
from regard.data.formats.graphs import parse_graph
from regard.errors import ConfigError, DataError
from regard.models.family import find_family, read_model_config
from regard.models.graphs import GraphInputs
from regard.models.presets import find_preset
from regard.tasks.graphs.batches import graph_shape, make_inputs

TEXTS = (
    '{"nodes": [[1, 2], [3, 5], [7, 1], [2, 2], [0, 4]], '
    '"edges": [[0, 1, "x"], [1, 2, "y"], [2, 3, "x"], [3, 0, "y"], [3, 4, "x"]]}',
    '{"nodes": [[2, 1], [6, 3], [1, 1]], "edges": [[0, 1, "y"]]}',
    '{"nodes": [[4, 4]], "edges": []}',
)
SMALL = {"num_layers": 3, "model_dim": 14, "dropout": 0.0}
SETTINGS = {
    "graph-transformer": {**SMALL, "num_layers": 2, "num_heads": 7, "feedforward_dim": 11, "max_distance": 2},
    "message-passing": SMALL,
}


def build(kind: str, codec: GraphCodec, **more: Any) -> Any:
    config = read_model_config({**find_preset(kind)[1], **SETTINGS[kind], **more})
    family: Any = find_family(config.family)
    model = family.build(config, shape=graph_shape(codec))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def inputs_of(codec: GraphCodec, texts: Any) -> GraphInputs:
    parts = [codec.encode_parts(text) for text in texts]
    return make_inputs([[np.array(each[place], np.int64) for each in parts] for place in range(7)], codec)


@pytest.fixture
def codec() -> GraphCodec:
    return GraphCodec.fit(TEXTS)


@pytest.fixture(params=list(SETTINGS))
def model(request: pytest.FixtureRequest, codec: GraphCodec) -> Any:
    return build(request.param, codec)


def permuted(graphs: GraphInputs, order: list[int], edges: list[int]) -> GraphInputs:
    """One graph with node `order[i]` at place i, its edges in another order and direction."""
    place = torch.tensor(order).argsort()
    return GraphInputs(
        sizes=graphs.sizes,
        degrees=graphs.degrees[:, order],
        labels=graphs.labels[:, order],
        numbers=graphs.numbers[:, order],
        ends=place[graphs.ends[:, edges]].flip(2),
        edge_labels=graphs.edge_labels[:, edges],
        edge_numbers=graphs.edge_numbers[:, edges],
        distances=graphs.distances[:, order][:, :, order],
    )


def test_another_order_of_nodes_and_edges_only_permutes_the_hidden_states(model: Any, codec: GraphCodec):
    graphs, order = inputs_of(codec, TEXTS[:1]), [3, 0, 4, 1, 2]
    one = model.encode(graphs).hidden_states
    other = model.encode(permuted(graphs, order, [4, 2, 0, 1, 3])).hidden_states
    torch.testing.assert_close(other[:, 0], one[:, 0])
    torch.testing.assert_close(other[:, 1:], one[:, 1:][:, order])


def test_padding_and_other_graphs_of_a_batch_have_no_effect(model: Any, codec: GraphCodec):
    together = model.encode(inputs_of(codec, TEXTS))
    wider = model.encode(inputs_of(codec, TEXTS).padded(5, 8, 32))
    for row, text in enumerate(TEXTS):
        alone = model.encode(inputs_of(codec, [text])).hidden_states[0]
        size = len(alone)
        assert together.mask[row, 0, 0].sum() == size == parse_graph(text).num_nodes + 1
        torch.testing.assert_close(together.hidden_states[row, :size], alone)
        torch.testing.assert_close(wider.hidden_states[row, :size], alone)


def test_the_bias_is_that_of_distances_and_of_edges(codec: GraphCodec):
    model = build("graph-transformer", codec)
    graphs = inputs_of(codec, TEXTS)
    found = model.bias(graphs, model.kinds(graphs))
    farthest = model.config.max_distance
    for row, text in enumerate(TEXTS):
        graph = parse_graph(text)
        kinds = {tuple(pair): kind for pair, kind in zip(graph.ends.tolist(), graph.edges.labels, strict=True)}
        for one in range(graph.num_nodes):
            for other in range(graph.num_nodes):
                length = int(graph.distances()[one, other])
                bucket = farthest + 1 if length == 255 else min(length, farthest)
                expected = model.distances.weight[bucket]
                kind = kinds.get((min(one, other), max(one, other)))
                if kind is not None:
                    expected = expected + model.edge_bias.labels.weight[1 + codec.edges.labels[0].index(kind[0])]
                torch.testing.assert_close(found[row, :, one + 1, other + 1], expected)
        virtual = model.distances.weight[farthest + 2]
        for place in range(graph.num_nodes + 1):
            torch.testing.assert_close(found[row, :, 0, place], virtual)
            torch.testing.assert_close(found[row, :, place, 0], virtual)


def test_a_graph_transformer_is_attention_with_that_bias_written_out(codec: GraphCodec):
    model = build("graph-transformer", codec, num_layers=1, local_layers=0)
    graphs = inputs_of(codec, TEXTS[:1])
    nodes = graphs.numbers[0].double() @ model.nodes.numbers.weight.T + model.nodes.numbers.bias
    kinds, lengths = model.kinds(graphs), parse_graph(TEXTS[0]).distances().clip(max=2)
    counts = torch.tensor([[(row == length).sum() for length in range(4)] for row in lengths], dtype=torch.float64)
    places = model.degrees.weight[graphs.degrees[0]] + (1 + counts).log() @ model.profile.weight.T
    x = torch.cat([model.graph[None], nodes + places])
    block, bias = model.encoder.blocks[0], model.bias(graphs, kinds)[0]
    attention, y = block.attention, block.attention_norm(x)
    q, k, v = (layer(y).view(len(x), 7, 2) for layer in (attention.query, attention.key, attention.value))
    heads = [((q[:, h] @ k[:, h].T) / 2**0.5 + bias[h]).softmax(-1) @ v[:, h] for h in range(7)]
    x = x + attention.output(torch.cat(heads, dim=-1))
    x = x + block.feedforward(block.feedforward_norm(x))
    torch.testing.assert_close(model.encode(graphs).hidden_states[0], model.encoder.final_norm(x))


def test_message_passing_equals_a_product_with_the_adjacency_of_directed_edges(codec: GraphCodec):
    model = build("message-passing", codec)
    graph, graphs = parse_graph(TEXTS[0]), inputs_of(codec, TEXTS[:1])
    one = [(int(a), int(b)) for a, b in graph.ends]
    directed = one + [(b, a) for a, b in one]
    # Message u -> v continues in v -> w unless w is u.
    follows = torch.tensor([[float(v == a and w != u) for u, v in directed] for a, w in directed])
    arrives = torch.tensor([[float(v == node) for _, v in directed] for node in range(graph.num_nodes)])
    x = graphs.numbers[0].double() @ model.nodes.numbers.weight.T + model.nodes.numbers.bias
    edges = model.edges.labels.weight[graphs.edge_labels[0, :, 0]]
    first = (x[[a for a, _ in directed]] + torch.cat([edges, edges])).relu()
    messages = first
    for _ in range(model.config.num_layers - 1):
        messages = (first + follows @ messages @ model.message.weight.T).relu()
    nodes = model.node(torch.cat([x, arrives @ messages], dim=-1)).relu()
    whole = model.graph(torch.cat([nodes.mean(dim=0), nodes.sum(dim=0) / codec.mean_nodes])).relu()
    found = model.encode(graphs).hidden_states[0]
    torch.testing.assert_close(found[1:], nodes)
    torch.testing.assert_close(found[0], whole)


def spread(hidden: Tensor) -> float:
    return float((hidden[0, 0] - hidden[1, 0]).detach().abs().max())


def test_distances_distinguish_what_message_passing_cannot():
    """Decalin and bicyclopentyl, without the sizes of rings: the Weisfeiler-Lehman test gives them equal labels."""
    fused = [[node, (node + 1) % 10] for node in range(10)] + [[0, 5]]
    joined = [[start + node, start + (node + 1) % 5] for start in (0, 5) for node in range(5)] + [[0, 5]]
    texts = [f'{{"nodes": {["C"] * 10}, "edges": {edges}}}'.replace("'", '"') for edges in (fused, joined)]
    codec = GraphCodec.fit(texts)
    assert spread(build("message-passing", codec).encode(inputs_of(codec, texts)).hidden_states) < 1e-9
    assert (
        spread(build("graph-transformer", codec, max_distance=9).encode(inputs_of(codec, texts)).hidden_states) > 1e-6
    )


def test_a_model_of_graphs_reads_nothing_else(model: Any):
    with pytest.raises(ConfigError, match="reads graphs"):
        model.encode(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match="no decoder"):
        find_family(model.config.family).decoder_only({})


def test_mixed_precision_has_finite_gradients(codec: GraphCodec, model: Any):
    model.float().train()
    with torch.autocast("cpu", torch.bfloat16):
        found = model.encode(inputs_of(codec, TEXTS)).hidden_states
    found.float().square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


DIRECTED = (
    '{"nodes": ["a", "b", "a", "c"], "edges": [[0, 1, "x"], [1, 2, "y"], [2, 0, "x"], [1, 0, "y"], [2, 3, "x"]], '
    '"directed": true}',
    '{"nodes": ["a", "b", "a", "c"], "edges": [[1, 0, "x"], [2, 1, "y"], [0, 2, "x"], [0, 1, "y"], [3, 2, "x"]], '
    '"directed": true}',
)
"""A graph, and the same one with the directions of all edges reversed."""


def test_paths_follow_the_directions_of_edges():
    graph = parse_graph(DIRECTED[0])
    assert graph.ends.tolist() == [[0, 1], [1, 2], [2, 0], [1, 0], [2, 3]]
    assert graph.distances().tolist() == [[0, 1, 2, 3], [1, 0, 1, 2], [1, 2, 0, 1], [255, 255, 255, 0]]
    assert np.array_equal(parse_graph(DIRECTED[1]).distances(), graph.distances().T)
    codec = GraphCodec.fit(DIRECTED)
    assert GraphCodec.from_json(codec.to_json()) == codec
    (decoded,) = codec.decode(codec.encode(DIRECTED[:1]))
    assert parse_graph(decoded).distances().tolist() == graph.distances().tolist()


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_directions_of_edges_are_read(kind: str):
    codec = GraphCodec.fit(DIRECTED)
    model = build(kind, codec)
    one, other = (model.encode(inputs_of(codec, [text])).hidden_states for text in DIRECTED)
    assert not torch.allclose(one, other, atol=1e-3)
    plain = [text.replace(', "directed": true', "").replace(', "y"', ', "x"') for text in DIRECTED]
    codec = GraphCodec.fit(plain)
    model = build(kind, codec)
    one, other = (model.encode(inputs_of(codec, [text])).hidden_states for text in plain)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_the_order_of_nodes_and_padding_have_no_effect_on_directed_graphs(kind: str):
    codec = GraphCodec.fit(DIRECTED)
    model = build(kind, codec)
    order = [2, 0, 3, 1]
    nodes, edges = ["a", "b", "a", "c"], [[0, 1, "x"], [1, 2, "y"], [2, 0, "x"], [1, 0, "y"], [2, 3, "x"]]
    place = {node: position for position, node in enumerate(order)}
    moved = {
        "nodes": [nodes[node] for node in order],
        "edges": [[place[one], place[other], label] for one, other, label in reversed(edges)],
        "directed": True,
    }
    larger = '{"nodes": ["a", "a", "b", "a", "c", "c"], "edges": [[5, 1, "x"]], "directed": true}'
    expected = model.encode(inputs_of(codec, DIRECTED[:1])).hidden_states[0]
    found = model.encode(inputs_of(codec, [larger, json.dumps(moved)])).hidden_states[1]
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1:5], expected[1:][order])


def test_message_passing_along_an_edge_and_against_it_is_written_out():
    codec = GraphCodec.fit(['{"nodes": ["a", "b"], "edges": [[1, 0]], "directed": true}'])
    model = build("message-passing", codec, num_layers=1)
    found = model.encode(inputs_of(codec, ['{"nodes": ["a", "b"], "edges": [[1, 0]], "directed": true}']))
    a, b = (model.nodes.labels.weight[1 + codec.nodes.labels[0].index(label)] for label in "ab")
    along, against = model.directions
    to_a, to_b = torch.relu(b + along), torch.relu(a + against)
    expected = torch.relu(model.node(torch.stack([torch.cat([a, to_a]), torch.cat([b, to_b])])))
    torch.testing.assert_close(found.hidden_states[0, 1:], expected)


def test_directed_and_undirected_graphs_are_not_mixed():
    codec = GraphCodec.fit(DIRECTED)
    with pytest.raises(DataError, match="edges of training are directed, and those of this graph undirected"):
        codec.read(DIRECTED[0].replace(', "directed": true', "").replace('"y"', '"x"'))
    with pytest.raises(DataError, match="'directed' that is neither true nor false"):
        parse_graph('{"nodes": ["a"], "edges": [], "directed": 1}')
