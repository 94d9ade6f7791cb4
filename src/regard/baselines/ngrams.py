"""Interpolated modified Kneser-Ney n-grams over token ids: see `regard.nn.ngrams`.

Dimensions: `time` positions of a text.
"""

import numpy as np
import torch
from jaxtyping import Float, Int

from regard.nn.ngrams import NO_TOKEN, NgramTables, estimate_kneser_ney


class KneserNey:
    """An n-gram model of a text.

    Args:
        ids: The training text.
        vocab_size: The number of different tokens.
        order: The number of tokens of the longest n-grams.

    Example:
        >>> model = KneserNey(np.array([0, 1, 0, 1, 0, 1, 0, 2]), vocab_size=3, order=2)
        >>> after_zero = [np.exp(-model.losses(np.array([0, token]))[0]) for token in range(3)]
        >>> bool(after_zero[1] > after_zero[2] > after_zero[0]), round(float(sum(after_zero)), 6)
        (True, 1.0)
    """

    def __init__(self, ids: Int[np.ndarray, " time"], *, vocab_size: int, order: int) -> None:
        self.order = order
        self._tables = NgramTables(vocab_size, order)
        self._tables.fill(estimate_kneser_ney(ids, vocab_size=vocab_size, order=order))

    def losses(self, ids: Int[np.ndarray, " time"]) -> Float[np.ndarray, " targets"]:
        """The negative log-probability of each token but the first, given those before it, in nats."""
        read = torch.from_numpy(ids.astype(np.int64))[None]
        contexts = self._tables.contexts(read[:, :-1], torch.full((1, self.order - 1), NO_TOKEN))
        return -self._tables.log_probabilities(contexts, read[:, 1:])[0].numpy()
