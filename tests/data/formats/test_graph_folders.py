"""Folders of graphs in the format of the TU Dortmund collection."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.data.formats.graph_folders import is_graph_folder, read_graph_folder
from regard.data.formats.summary import describe
from regard.errors import DataError

EDGES = ["1, 2", "2, 1", "2, 3", "3, 2", "4, 5", "5, 4"]
NODES = [1, 1, 1, 2, 2]


def write(folder: Path, **files: Sequence[Any]) -> Path:
    found = {"A": EDGES, "graph_indicator": NODES, "graph_labels": [1, -1], **files}
    for part, lines in found.items():
        if lines:
            (folder / f"DS_{part}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_graphs_are_read_from_lines_about_all_of_them(tmp_path: Path):
    found = dict(read_graph_folder(write(tmp_path, node_labels=[0, 3, 0, 3, 3], edge_labels=[7, 7, 8, 8, 7, 7])))
    assert found == {
        1: {"nodes": ["0", "3", "0"], "edges": [[0, 1, "7"], [1, 0, "7"], [1, 2, "8"], [2, 1, "8"]], "label": "1"},
        2: {"nodes": ["3", "3"], "edges": [[0, 1, "7"], [1, 0, "7"]], "label": "-1"},
    }


def test_labels_beside_numbers_are_ones_and_zeros(tmp_path: Path):
    folder = write(tmp_path, node_labels=[0, 3, 0, 3, 3], node_attributes=["0.5,2", "1,1", "0,0", "3,3", "4,4"])
    assert dict(read_graph_folder(folder))[2]["nodes"] == [[3.0, 3.0, 0.0, 1.0], [4.0, 4.0, 0.0, 1.0]]


def test_graphs_with_numbers_have_no_label(tmp_path: Path):
    found = dict(read_graph_folder(write(tmp_path, graph_labels=[], graph_attributes=["0.5, 7", "1, 8"])))
    assert {name: found[1][name] for name in found[1] if name.startswith("number")} == {
        "number_1": 0.5,
        "number_2": 7.0,
    }
    summary = describe(tmp_path)
    assert (summary.format, summary.names, summary.lists) == ("graphs", ("number_1", "number_2"), ("nodes", "edges"))


def test_edges_that_lead_one_way_are_directed(tmp_path: Path):
    assert all("directed" not in graph for _, graph in read_graph_folder(write(tmp_path)))
    assert all(graph["directed"] for _, graph in read_graph_folder(write(tmp_path, A=EDGES[1:])))


def test_a_folder_without_targets_has_no_graphs(tmp_path: Path):
    assert not is_graph_folder(write(tmp_path, graph_labels=[]))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"A": ["1, 4"]}, "DS_A.txt, line 1: the nodes 1 and 4 are of different graphs"),
        ({"A": ["1, 6"]}, "DS_A.txt, line 1: the numbers of two nodes are needed, from 1 to 5, got '1, 6'"),
        ({"A": ["a, b"]}, "DS_A.txt, line 1: numbers separated by commas are needed, got 'a, b'"),
        ({"graph_indicator": [1, 1, 1, 2, 3]},
         "DS_graph_indicator.txt has graphs from 1 to 3, and DS_graph_labels.txt has 2 lines"),
        ({"graph_indicator": ["1, 1"]}, "DS_graph_indicator.txt, line 1: the number of a graph is needed, got '1, 1'"),
        ({"node_labels": [0, 1]}, "DS_node_labels.txt has 2 lines, and there are 5 nodes"),
        ({"edge_attributes": [0.5]}, "DS_edge_attributes.txt has 1 line, and there are 6 edges"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(tmp_path: Path, files: dict[str, Sequence[Any]], message: str):
    with pytest.raises(DataError) as error:
        list(read_graph_folder(write(tmp_path, **files)))
    assert str(error.value) == message
