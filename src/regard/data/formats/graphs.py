"""Graphs: nodes and edges, each with labels or numbers, from SMILES or JSON.

A graph as text is a SMILES string, such as `CCO`, or a JSON object, in which a node and the third part of an edge are a
label or a list of numbers:

    {"nodes": ["a", "b", "a"], "edges": [[0, 1], [1, 2]]}
    {"nodes": [[0.5, 1], [2, 3]], "edges": [[0, 1, "strong"]]}
    {"nodes": ["a", "b"], "edges": [[0, 1]], "directed": true}

Edges have no direction unless `directed` is true: then an edge leads from its first node to its second.

Molecules are read by RDKit (the extra `regard[chemistry]`): an atom has several labels, and so has a bond.
"""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.formats.cells import as_text, is_number
from regard.data.formats.json_lines import decode_object
from regard.data.formats.messages import format_count
from regard.errors import DataError

FIELDS = ("nodes", "edges")
DIRECTED = "directed"
"""The field of a graph whose edges have a direction."""
UNREACHABLE = 255
"""The distance between two nodes that no path connects."""
_FARTHEST = UNREACHABLE - 1
_LARGEST_RING = 8
_SHOWN = 60

ATOM_PARTS = ("element", "degree", "charge", "hydrogens", "aromatic", "hybridization", "ring", "chirality")
"""The labels of an atom. A ring is known by the atoms of the smallest one, 0 outside of rings."""
BOND_PARTS = ("type", "conjugated", "ring", "stereo")


@dataclass(frozen=True, eq=False)
class Features:
    """What is known of the nodes, or of the edges, of a graph."""

    labels: tuple[tuple[str, ...], ...]
    """For each item its labels; all have the same number of them."""
    numbers: NDArray[np.float32]
    """A row for each item."""

    @property
    def widths(self) -> tuple[int, int]:
        """The number of labels and of numbers of an item."""
        return len(self.labels[0]) if self.labels else 0, self.numbers.shape[1]


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and edges between them."""

    nodes: Features
    edges: Features
    ends: NDArray[np.int64]
    """The two nodes of each edge: the smaller number first, or the one that a directed edge begins at."""
    names: tuple[str, ...]
    """What each node is called in drawings."""
    is_directed: bool = False

    @property
    def num_nodes(self) -> int:
        return len(self.names)

    def degrees(self) -> NDArray[np.int64]:
        """The number of edges of each node."""
        return np.bincount(self.ends.reshape(-1), minlength=self.num_nodes)

    def distances(self) -> NDArray[np.int64]:
        """The edges on the shortest path from each node to each other; `UNREACHABLE` where there is none."""
        adjacency = np.zeros((self.num_nodes, self.num_nodes), np.float32)
        adjacency[self.ends[:, 0], self.ends[:, 1]] = 1
        if not self.is_directed:
            adjacency = np.maximum(adjacency, adjacency.T)
        found = np.full(adjacency.shape, UNREACHABLE, np.int64)
        reached, steps = np.eye(self.num_nodes, dtype=bool), 0
        while reached.any():
            found[reached] = min(steps, _FARTHEST)
            reached, steps = (reached @ adjacency > 0) & (found == UNREACHABLE), steps + 1
        return found

    def signature(self) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """The widths of nodes and of edges, None where there are no edges: graphs of one data set have the same."""
        return self.nodes.widths, self.edges.widths if len(self.ends) else None


@lru_cache(maxsize=1 << 13)
def parse_graph(text: str) -> Graph:
    """Read a graph from SMILES or JSON.

    Raises:
        DataError: If it is neither; the message completes the sentence "the row has".

    Example:
        >>> graph = parse_graph('{"nodes": ["a", "b", "c"], "edges": [[0, 1], [1, 2]]}')
        >>> graph.degrees().tolist(), graph.distances()[0].tolist()
        ([1, 2, 1], [0, 1, 2])
    """
    if not text.lstrip().startswith("{"):
        return read_molecule(text)
    record = decode_object(text)
    if record is None:
        raise DataError(f"invalid JSON {_cut(text)!r}")
    return graph_of_record(record)


def graph_of_record(record: Mapping[str, Any]) -> Graph:
    """A graph from its JSON object, whose numbers may be texts."""
    for field in FIELDS:
        if not isinstance(record.get(field), list):
            raise DataError(f"no list {field!r}")
    nodes, edges = record["nodes"], record["edges"]
    if not nodes:
        raise DataError("an empty graph: no nodes")
    pairs, parts = [], []
    for edge in edges:
        if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) not in (2, 3):
            raise DataError(f"an edge that is not [node, node] or [node, node, feature]: {_cut(json.dumps(edge))}")
        pairs.append([_node_number(end, len(nodes)) for end in edge[:2]])
        parts.append(edge[2] if len(edge) == 3 else None)
    if len({part is None for part in parts}) > 1:
        raise DataError("edges with and without a feature")
    is_directed = record.get(DIRECTED, False)
    if not isinstance(is_directed, bool):
        raise DataError(f"a field {DIRECTED!r} that is neither true nor false: {_cut(json.dumps(is_directed))}")
    pairs = pairs if is_directed else [sorted(pair) for pair in pairs]
    kept = _without_copies(pairs, parts)
    features = [parts[place] for place in kept]
    return Graph(
        nodes=_features(nodes, "node"),
        edges=_plain(len(features)) if not features or features[0] is None else _features(features, "edge"),
        ends=np.array([pairs[place] for place in kept], np.int64).reshape(-1, 2),
        names=tuple(text if (text := as_text(node)) is not None else str(place) for place, node in enumerate(nodes)),
        is_directed=is_directed,
    )


def graph_text(record: Mapping[str, Any]) -> str:
    """The nodes and edges of a record as one line of JSON, its input as text."""
    fields = [*FIELDS, *([DIRECTED] if record.get(DIRECTED) else [])]
    return json.dumps({field: record[field] for field in fields}, ensure_ascii=False, separators=(",", ":"))


def read_molecule(smiles: str) -> Graph:
    """A graph from SMILES: a node for each heavy atom, an edge for each bond.

    Raises:
        DataError: If it is not valid, with the reason.
    """
    return _molecule_graph(parse_smiles(smiles))


def parse_smiles(smiles: str) -> Any:
    """RDKit's molecule.

    Raises:
        DataError: If the SMILES is not valid, with the reason.
    """
    chemistry, base = _rdkit()
    text = smiles.strip()
    with base.BlockLogs():
        molecule = chemistry.MolFromSmiles(text)
    if molecule is None:
        raise DataError(f"an invalid SMILES {_cut(text)!r}: {_why_invalid(text)}")
    if not molecule.GetNumAtoms():
        raise DataError("an empty molecule")
    return molecule


def molecule_positions(smiles: str) -> NDArray[np.float64]:
    """The coordinates of the atoms in a drawing."""
    from rdkit.Chem import rdDepictor

    molecule = parse_smiles(smiles)
    rdDepictor.Compute2DCoords(molecule)
    return np.asarray(molecule.GetConformer().GetPositions())[:, :2]


def _rdkit() -> tuple[Any, Any]:
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise DataError("reading SMILES needs the package rdkit: install regard[chemistry]") from error
    return Chem, rdBase


def _why_invalid(smiles: str) -> str:
    """The first line of RDKit's own message, which it only logs."""
    chemistry, base = _rdkit()
    with redirect_stderr(io.StringIO()) as log:
        base.LogToPythonStderr()
        chemistry.MolFromSmiles(smiles)
        base.LogToCppStreams()
    lines = [line.partition("] ")[2] or line for line in log.getvalue().splitlines() if line.strip()]
    reason = lines[0].partition(" for input:")[0].partition(" while parsing:")[0] if lines else "it cannot be read"
    return reason.removeprefix("SMILES Parse Error: ").strip()


def _molecule_graph(molecule: Any) -> Graph:
    rings = molecule.GetRingInfo()
    atoms, bonds = list(molecule.GetAtoms()), list(molecule.GetBonds())
    labels = tuple(
        (
            atom.GetSymbol(),
            str(atom.GetDegree()),
            str(atom.GetFormalCharge()),
            str(atom.GetTotalNumHs()),
            str(atom.GetIsAromatic()),
            str(atom.GetHybridization()),
            str(min(rings.MinAtomRingSize(atom.GetIdx()), _LARGEST_RING)),
            atom.GetProp("_CIPCode")
            if atom.HasProp("_CIPCode")
            else "",  # R or S: the tag depends on the order of atoms
        )
        for atom in atoms
    )
    kinds = tuple(
        (str(bond.GetBondType()), str(bond.GetIsConjugated()), str(bond.IsInRing()), str(bond.GetStereo()))
        for bond in bonds
    )
    ends = [sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in bonds]
    return Graph(
        nodes=Features(labels, np.zeros((len(atoms), 0), np.float32)),
        edges=Features(kinds, np.zeros((len(bonds), 0), np.float32)),
        ends=np.array(ends, np.int64).reshape(-1, 2),
        names=tuple(atom.GetSymbol() for atom in atoms),
    )


def _features(items: Sequence[Any], kind: str) -> Features:
    """Labels, or lists of numbers of one length."""
    are_lists = [isinstance(item, list | tuple) for item in items]
    if not any(are_lists):
        texts = [as_text(item) for item in items]
        if None in texts:
            raise DataError(f"a {kind} that is neither a label nor a list of numbers: {_cut(str(items[0]))}")
        return Features(tuple((text or "",) for text in texts), np.zeros((len(items), 0), np.float32))
    if not all(are_lists):
        raise DataError(f"{kind}s that are labels beside {kind}s that are lists of numbers")
    lengths = sorted({len(item) for item in items})
    if len(lengths) > 1 or not lengths[0]:
        what = f"lists of {' and '.join(map(str, lengths))} numbers" if lengths[-1] else "empty lists"
        raise DataError(f"{kind} features of different lengths: {what}" if len(lengths) > 1 else f"{kind}s of {what}")
    for number in (number for item in items for number in item):
        if isinstance(number, bool) or not is_number(str(number)):
            raise DataError(f"a {kind} feature that is not a finite number: {_cut(str(number))!r}")
    return Features(tuple(() for _ in items), np.array(items, np.float64).astype(np.float32))


def _plain(count: int) -> Features:
    return Features(tuple(() for _ in range(count)), np.zeros((count, 0), np.float32))


def _node_number(end: Any, num_nodes: int) -> int:
    text = as_text(end)
    if text is None or not text.removeprefix("-").isdigit():
        raise DataError(f"an edge whose end is not the number of a node: {_cut(str(end))!r}")
    if not 0 <= int(text) < num_nodes:
        raise DataError(f"an edge to node {text}, which does not exist: {format_count(num_nodes, 'node')}, from 0 on")
    return int(text)


def _without_copies(pairs: Sequence[Sequence[int]], parts: Sequence[Any]) -> list[int]:
    """The places of distinct edges."""
    found: dict[tuple[int, int], int] = {}
    for place, (one, other) in enumerate(pairs):
        if one == other:
            raise DataError(f"an edge from node {one} to itself")
        first = found.setdefault((one, other), place)
        if parts[first] != parts[place]:
            raise DataError(f"two edges between the nodes {one} and {other}, with different features")
    return list(found.values())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def same_kind(expected: Graph | None, graph: Graph) -> str:
    """What differs between the features of two graphs of one data set; empty where nothing does."""
    if expected is None:
        return ""
    if expected.is_directed != graph.is_directed:
        kinds = ("directed", "undirected") if graph.is_directed else ("undirected", "directed")
        return f"{kinds[0]} edges, where others have {kinds[1]} ones"
    for kind, one, other in zip(("node", "edge"), expected.signature(), graph.signature(), strict=True):
        if one is None or other is None or one == other:
            continue
        return f"{_describe(kind, other)}, where others have {_describe(kind, one)}"
    return ""


def _describe(kind: str, widths: tuple[int, int]) -> str:
    labels, numbers = widths
    if labels:
        return f"{kind}s with {format_count(labels, 'label')}"
    return f"{kind}s with {format_count(numbers, 'number')}" if numbers else f"{kind}s without features"
