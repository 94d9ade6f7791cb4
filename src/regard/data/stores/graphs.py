"""Graphs on disk: a store of rows whose length is the number of nodes, not that of the longest part."""

import numpy as np
from numpy.typing import NDArray

from regard.data.stores.rows import TokenStore


class GraphStore(TokenStore):
    """Encoded graphs; the first column has a number for each node."""

    def lengths(self, start: int = 0, end: int | None = None) -> NDArray[np.int64]:
        """The number of nodes of each graph."""
        _, offsets = self.column(0)
        return np.diff(offsets[start : (self.num_rows if end is None else end) + 1])
