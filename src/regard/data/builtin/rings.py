"""Graphs of two rings, which are fused or joined: a label that no count of neighbors reveals.

Two rings of n + 1 nodes that share an edge, as in decalin, and two rings of n nodes that an edge joins, as in
bicyclopentyl, have equally many nodes, edges, and nodes of each degree. The Weisfeiler-Lehman test, and so message
passing from equal nodes, cannot distinguish these; distances can. Some nodes of a ring have a further neighbor, so that
there are many graphs.
"""

import json
from collections.abc import Iterator

from regard.data.builtin import BuiltinData

_SMALLEST, _LARGEST = 4, 7
"""Nodes of a ring that is joined."""
_SHARE_OF_LEAVES = 0.15


def generate_rings(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of a graph, as JSON, and its label.

    Example:
        >>> graph, label = next(generate_rings(1, 0))
        >>> label, sorted(json.loads(graph))
        ('fused', ['edges', 'nodes'])
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    for _ in range(num_rows):
        size, is_fused = int(rng.integers(_SMALLEST, _LARGEST, endpoint=True)), bool(rng.integers(2))
        total = 2 * size
        # Fused: one ring of all nodes with a chord. Joined: the same chord, and the ring cut into two.
        edges = [(node, (node + 1) % total) for node in range(total)]
        if is_fused:
            edges.append((0, size))
        else:
            edges = [(start + node, start + (node + 1) % size) for start in (0, size) for node in range(size)]
            edges.append((0, size))
        leaves = np.flatnonzero(rng.random(total) < _SHARE_OF_LEAVES).tolist()
        edges += [(node, total + number) for number, node in enumerate(leaves)]
        order = rng.permutation(total + len(leaves))
        shuffled = [sorted((int(order[one]), int(order[other]))) for one, other in edges]
        content = {"nodes": ["a"] * len(order), "edges": sorted(shuffled)}
        yield json.dumps(content, separators=(",", ":")), "fused" if is_fused else "joined"


RINGS_DATA = BuiltinData(
    name="rings",
    description="graphs of two rings that are fused or joined, which distances distinguish and degrees do not",
    columns=("graph", "label"),
    num_rows=2_000,
    tokenizer="",
    generate=generate_rings,
)
