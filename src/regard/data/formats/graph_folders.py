"""Folders of graphs in the format of the TU Dortmund collection: files of lines about all graphs of a data set.

    DS_A.txt                  `i, j` for each edge: the numbers of its nodes, from 1 on over all graphs
    DS_graph_indicator.txt    for each node the number of its graph
    DS_graph_labels.txt       for each graph its label, or in
    DS_graph_attributes.txt   one or several numbers
    DS_node_labels.txt, DS_node_attributes.txt, DS_edge_labels.txt, DS_edge_attributes.txt    where there are any

A graph is read as the JSON object that `regard.data.formats.graphs` describes. Nodes with attributes and labels have
the attributes followed by a 1 for the label and 0 for each other one; edges likewise. Nodes without either are alike.

Morris et al., "TUDataset: A collection of benchmark datasets for learning with graphs" (2020).
https://arxiv.org/abs/2007.08663
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regard.data.formats.cells import is_number
from regard.data.formats.files import iter_lines
from regard.data.formats.graphs import DIRECTED
from regard.data.formats.messages import format_count, format_names
from regard.errors import DataError
from regard.files import require_inside

_EDGES, _INDICATOR = "A", "graph_indicator"
_TARGETS = ("graph_labels", "graph_attributes")
"""Files of the targets of graphs; the first that there is has them."""
_PARTS = (_EDGES, _INDICATOR, *_TARGETS, "node_labels", "node_attributes", "edge_labels", "edge_attributes")
_PLAIN_NODE = "node"
"""The label of nodes that have none."""

_Lines = list[list[str]]
"""The numbers on each line."""


def is_graph_folder(folder: Path) -> bool:
    """Whether a folder has the edges of graphs, the graph of each node, and targets."""
    return os.path.isdir(folder) and len(_names(folder)) == 1


def graph_folder_paths(folder: Path) -> tuple[Path, ...]:
    """The files of a folder of graphs that are read."""
    found = _files(folder)
    unused = _TARGETS[1:] if _TARGETS[0] in found else ()
    return tuple(path for part, path in found.items() if part not in unused)


def describe_graph_folder(folder: Path) -> str:
    """What is read of a folder, in a sentence."""
    parts = _files(folder)
    unused = [parts[name].name for name in _TARGETS[1:] if name in parts and _TARGETS[0] in parts]
    left_out = f"; not used: {unused[0]}, since graphs have labels" if unused else ""
    names = format_names([path.name for path in graph_folder_paths(folder)])
    return f"read the graphs in {folder.name}: {names}{left_out}"


def read_graph_folder(folder: Path, encoding: str | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and the JSON object of each graph: its nodes, its edges, and `label`, or its numbers.

    Raises:
        DataError: If files do not have as many lines as there are nodes, edges or graphs, or name others.
    """
    files = _files(folder)
    lines = {part: list(_numbers(path, encoding)) for part, path in files.items()}
    graph_of = [_number(cells, files[_INDICATOR], place) for place, cells in enumerate(lines[_INDICATOR], 1)]
    target = next(part for part in _TARGETS if part in lines)
    num_graphs = len(lines[target])
    if graph_of and not 1 <= min(graph_of) <= max(graph_of) <= num_graphs:
        raise DataError(
            f"{files[_INDICATOR].name} has graphs from {min(graph_of)} to {max(graph_of)}, and {files[target].name} "
            f"has {format_count(num_graphs, 'line')}"
        )
    nodes = _features(files, lines, "node", len(graph_of)) or [_PLAIN_NODE] * len(graph_of)
    ends = [_ends(cells, files[_EDGES], place, graph_of) for place, cells in enumerate(lines[_EDGES], 1)]
    parts = _features(files, lines, "edge", len(ends))
    members: defaultdict[int, dict[int, int]] = defaultdict(dict)  # by graph, the place of each node in it
    for node, graph in enumerate(graph_of, 1):
        members[graph][node] = len(members[graph])
    edges: defaultdict[int, list[list[Any]]] = defaultdict(list)
    for place, (one, other) in enumerate(ends):
        own = members[graph_of[one - 1]]
        edges[graph_of[one - 1]].append([own[one], own[other], *([parts[place]] if parts else [])])
    pairs = set(ends)
    is_directed = any((other, one) not in pairs for one, other in pairs)
    for graph, cells in enumerate(lines[target], 1):
        record: dict[str, Any] = {"nodes": [nodes[node - 1] for node in members[graph]], "edges": edges[graph]}
        yield graph, record | ({DIRECTED: True} if is_directed else {}) | _targets(cells, target)


def _names(folder: Path) -> list[str]:
    """The names of the data sets in a folder: what precedes `_A.txt`."""
    found = {path.name for path in folder.iterdir() if path.is_file()}
    names = [name.removesuffix(f"_{_EDGES}.txt") for name in found if name.endswith(f"_{_EDGES}.txt")]
    return sorted(
        name
        for name in names
        if f"{name}_{_INDICATOR}.txt" in found and any(f"{name}_{target}.txt" in found for target in _TARGETS)
    )


def _files(folder: Path) -> dict[str, Path]:
    (name,) = _names(folder)
    paths = {part: folder / f"{name}_{part}.txt" for part in _PARTS}
    return {part: require_inside(path, folder) for part, path in paths.items() if path.exists()}


def _numbers(path: Path, encoding: str | None) -> Iterator[list[str]]:
    for number, line in enumerate(iter_lines(path, encoding=encoding), 1):
        cells = [cell.strip() for cell in line.replace("\t", ",").split(",")]
        if line.strip():
            if not all(map(is_number, cells)):
                raise DataError(
                    f"{path.name}, line {number:,}: numbers separated by commas are needed, got {line[:60]!r}"
                )
            yield cells


def _number(cells: Sequence[str], path: Path, line: int) -> int:
    if len(cells) != 1 or not cells[0].isdigit():
        raise DataError(f"{path.name}, line {line:,}: the number of a graph is needed, got {', '.join(cells)!r}")
    return int(cells[0])


def _ends(cells: Sequence[str], path: Path, line: int, graph_of: Sequence[int]) -> tuple[int, int]:
    if len(cells) != 2 or not all(cell.isdigit() and 1 <= int(cell) <= len(graph_of) for cell in cells):
        limit = f"from 1 to {len(graph_of):,}"
        raise DataError(
            f"{path.name}, line {line:,}: the numbers of two nodes are needed, {limit}, got {', '.join(cells)!r}"
        )
    one, other = map(int, cells)
    if graph_of[one - 1] != graph_of[other - 1]:
        raise DataError(f"{path.name}, line {line:,}: the nodes {one} and {other} are of different graphs")
    return one, other


def _features(files: dict[str, Path], lines: dict[str, _Lines], kind: str, number: int) -> list[Any]:
    """What is known of each node or edge: a label, or a list of numbers; empty where nothing is."""
    labels, numbers = lines.get(f"{kind}_labels"), lines.get(f"{kind}_attributes")
    for part, some in ((f"{kind}_labels", labels), (f"{kind}_attributes", numbers)):
        if some is not None and len(some) != number:
            raise DataError(
                f"{files[part].name} has {format_count(len(some), 'line')}, and there are {number:,} {kind}s"
            )
    if labels is None:
        return [] if numbers is None else [list(map(float, cells)) for cells in numbers]
    if numbers is None:
        return [" ".join(cells) for cells in labels]
    known = sorted({" ".join(cells) for cells in labels})
    return [
        [*map(float, cells), *(float(" ".join(own) == label) for label in known)]
        for cells, own in zip(numbers, labels, strict=True)
    ]


def _targets(cells: Sequence[str], part: str) -> dict[str, Any]:
    if part == _TARGETS[0]:
        return {"label": " ".join(cells)}
    if len(cells) == 1:
        return {"number": float(cells[0])}
    return {f"number_{place}": float(cell) for place, cell in enumerate(cells, 1)}
