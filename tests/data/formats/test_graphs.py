"""Graphs from JSON and SMILES: distances against SciPy, and one line for each mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from regard.data.formats.graphs import ATOM_PARTS, BOND_PARTS, UNREACHABLE, Graph, parse_graph
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import DataError
from regard.tasks.graphs.task import open_graphs


def random_graph(num_nodes: int, num_edges: int, seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    pairs = rng.permutation([(a, b) for a in range(num_nodes) for b in range(a)])[:num_edges].tolist()
    return parse_graph(json.dumps({"nodes": ["a"] * num_nodes, "edges": pairs}))


@pytest.mark.parametrize("seed", range(4))
def test_distances_are_those_of_scipy(seed: int):
    graph = random_graph(13, 11, seed)
    rows, columns = graph.ends.T
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(13, 13))
    expected = shortest_path(matrix, directed=False, unweighted=True)
    assert np.isinf(expected).any()
    assert (graph.distances() == np.where(np.isinf(expected), UNREACHABLE, expected)).all()
    assert graph.degrees().sum() == 22


def test_an_edge_in_both_directions_is_one_edge():
    graph = parse_graph('{"nodes": [6, 8], "edges": [[0, 1, "d"], [1, 0, "d"]]}')
    assert graph.ends.tolist() == [[0, 1]]
    assert graph.nodes.labels == (("6",), ("8",))


MISTAKES = {
    '{"nodes": ["a"], "edges": [[0, 3]]}': "an edge to node 3, which does not exist: 1 node, from 0 on",
    '{"nodes": ["a"], "edges": [[0, -1]]}': "an edge to node -1, which does not exist",
    '{"nodes": ["a"], "edges": [[0, "x"]]}': "an edge whose end is not the number of a node: 'x'",
    '{"nodes": ["a"], "edges": [[0]]}': "an edge that is not",
    '{"nodes": ["a"], "edges": [[0, 0]]}': "an edge from node 0 to itself",
    '{"nodes": [], "edges": []}': "an empty graph: no nodes",
    '{"nodes": ["a"]}': "no list 'edges'",
    '{"nodes": [[1, "x"]], "edges": []}': "a node feature that is not a finite number: 'x'",
    '{"nodes": [[1, 2], [1]], "edges": []}': "node features of different lengths: lists of 1 and 2 numbers",
    '{"nodes": [[]], "edges": []}': "nodes of empty lists",
    '{"nodes": ["a", [1]], "edges": []}': "nodes that are labels beside nodes that are lists of numbers",
    '{"nodes": ["a", null], "edges": []}': "a node that is neither a label nor a list of numbers",
    '{"nodes": ["a", "b"], "edges": [[0, 1, "x"], [1, 0, "y"]]}': "two edges between the nodes 0 and 1",
    '{"nodes": ["a", "b", "c"], "edges": [[0, 1, "x"], [1, 2]]}': "edges with and without a feature",
    '{"nodes": ["a"': "invalid JSON",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_has_its_reason(text: str):
    with pytest.raises(DataError) as error:
        parse_graph(text)
    assert MISTAKES[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_molecule_has_atoms_bonds_and_their_labels():
    pytest.importorskip("rdkit")
    graph = parse_graph("C[C@H](N)C(=O)O")
    assert graph.names == ("C", "C", "N", "C", "O", "O")
    assert {len(labels) for labels in graph.nodes.labels} == {len(ATOM_PARTS)}
    assert {len(labels) for labels in graph.edges.labels} == {len(BOND_PARTS)}
    assert graph.nodes.labels[1][ATOM_PARTS.index("chirality")] in ("R", "S")
    assert graph.edges.labels[3][0] == "DOUBLE"


@pytest.mark.parametrize(("one", "other"), [("OC[C@@H](C)N", "C[C@H](CO)N"), ("F/C=C/Cl", "Cl/C=C/F")])
def test_the_order_of_atoms_in_smiles_does_not_change_their_labels(one: str, other: str):
    chemistry = pytest.importorskip("rdkit.Chem")
    assert chemistry.CanonSmiles(one) == chemistry.CanonSmiles(other)
    first, second = parse_graph(one), parse_graph(other)
    assert sorted(first.nodes.labels) == sorted(second.nodes.labels)
    assert sorted(first.edges.labels) == sorted(second.edges.labels)


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [("C1CC", "unclosed ring"), ("CC(C)(C)(C)C", "Explicit valence for atom # 1 C, 5"), ("hello", "syntax error")],
)
def test_an_invalid_smiles_has_its_reason(smiles: str, reason: str, capfd: pytest.CaptureFixture[str]):
    pytest.importorskip("rdkit")
    with pytest.raises(DataError) as error:
        parse_graph(smiles)
    assert f"an invalid SMILES {smiles!r}: {reason}" in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_bad_rows_are_reported_together_with_their_lines(tmp_path: Path):
    lines = [
        {"nodes": ["a", "b"], "edges": [[0, 1]], "label": "x"},
        {"nodes": ["a"], "edges": [[0, 5]], "label": "x"},
        {"nodes": [[1.5]], "edges": [], "label": "y"},
        {"nodes": ["a"] * 9, "edges": [], "label": "y"},
        {"nodes": ["a"], "edges": []},
    ]
    path = tmp_path / "graphs.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(DataError) as error:
        list(open_graphs(DataConfig(train=[str(path)]), "label", max_nodes=8).train)
    message = str(error.value)
    for part in ("line 2", "line 3", "line 4", "line 5", "an edge to node 5", "where others have nodes with 1 label",
                 "9 nodes, more than task.max_nodes=8", "no field 'label'"):  # fmt: skip
        assert part in message
    kept = open_graphs(DataConfig(train=[str(path)], skip_bad=True), "label", max_nodes=8).train
    assert [row.values for row in kept] == [('{"nodes":["a","b"],"edges":[[0,1]]}', "x")]


def test_the_target_is_found_or_asked_for():
    rows = NamedRows([{"nodes": ["a"], "edges": [], "speed": 3, "mass": 4}])
    with pytest.raises(DataError, match=r"which field .* is the target"):
        open_graphs(DataConfig(), "number", rows, max_nodes=8)
    found = open_graphs(DataConfig(columns=["mass"]), "number", rows, max_nodes=8).train
    assert next(iter(found)).values[-1] == "4"
    with pytest.raises(DataError, match="must name the target among speed, mass"):
        open_graphs(DataConfig(columns=["height"]), "number", rows, max_nodes=8)
