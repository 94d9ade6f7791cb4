"""Interpolated modified Kneser-Ney n-grams over token ids, read in one direction or in both: see `regard.nn.ngrams`.

Dimensions: `batch` texts, `time` positions of a text, `hidden` masked positions, `vocab` tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.nn.ngrams import NO_TOKEN, NgramTables, estimate_kneser_ney

_ROWS_AT_ONCE = 512
"""Masked positions whose probabilities of all tokens are in memory at the same time."""
_ADDED = 0.5
"""Added to the count of each token, so that none is impossible."""


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


class BidirectionalNgrams:
    r"""The probability of a masked token by the n-grams that end in it, and by those that begin with it.

    With $l$ and $r$ the tokens before and after it, as if these were independent given the token $w$,

    $$ p(w \mid l, r) \propto \frac{p(w \mid l)\, p(w \mid r)}{p(w)} $$

    where both factors are Kneser-Ney n-grams. A side whose next token is not known has no factor.

    Args:
        ids: The training text.
        vocab_size: The number of different tokens.
        order: The number of tokens of the longest n-grams.

    Example:
        >>> text = np.array([0, 1, 2, 0, 3, 4] * 20)
        >>> model = BidirectionalNgrams(text, vocab_size=5, order=2)
        >>> tokens, is_hidden = torch.tensor([[0, -1, 2], [0, -1, 4]]), torch.tensor([[False, True, False]] * 2)
        >>> (found,) = model.log_probabilities(tokens, is_hidden)
        >>> found.argmax(dim=1).tolist(), bool(torch.allclose(found.exp().sum(dim=1), torch.ones(2)))
        ([1, 3], True)
    """

    def __init__(self, ids: Int[np.ndarray, " time"], *, vocab_size: int, order: int) -> None:
        self._order = order
        self._sides = [NgramTables(vocab_size, order) for _ in range(2)]
        for tables, text in zip(self._sides, (ids, ids[::-1]), strict=True):
            tables.fill(estimate_kneser_ney(text, vocab_size=vocab_size, order=order))
        counts = torch.from_numpy(np.bincount(ids, minlength=vocab_size) + _ADDED)
        self._frequencies = (counts / counts.sum()).float()

    def log_probabilities(
        self, tokens: Int[Tensor, "batch time"], is_hidden: Bool[Tensor, "batch time"]
    ) -> Iterator[Float[Tensor, "some vocab"]]:
        """The log-probabilities of all tokens at the masked positions, in their order, some positions at a time.

        Args:
            tokens: Texts, with `NO_TOKEN` in place of what is masked, and of special tokens.
            is_hidden: Which positions are masked.
        """
        recent = torch.full((len(tokens), self._order - 1), NO_TOKEN)
        before = self._sides[0].contexts(torch.cat([recent[:, :1], tokens[:, :-1]], dim=1), recent)
        reverse = torch.cat([recent[:, :1], tokens.flip(1)[:, :-1]], dim=1)
        after = [context.flip(1) for context in self._sides[1].contexts(reverse, recent)]
        contexts = [torch.stack([context[is_hidden] for context in side]) for side in (before, after)]
        for some in zip(*(side.split(_ROWS_AT_ONCE, dim=1) for side in contexts), strict=True):
            found = self._frequencies.log().repeat(some[0].size(1), 1)
            for tables, own in zip(self._sides, some, strict=True):
                is_known = own[0] != NO_TOKEN  # the token beside the position, without which there is no longer n-gram
                shares = tables.distributions(list(own), num_rows=own.size(1), dtype=torch.float32)
                found += torch.where(is_known[:, None], shares.log() - self._frequencies.log(), 0.0)
            yield found.log_softmax(dim=1)


@dataclass(frozen=True)
class MaskedBaseline(Baseline):
    """A baseline for masked tokens, which reads texts as tokens and predicts no outputs."""

    ngrams: BidirectionalNgrams | None = None


def fit_masked(ids: Int[np.ndarray, " time"], *, vocab_size: int, order: int) -> MaskedBaseline:
    """Kneser-Ney n-grams of both directions, for masked tokens."""
    ngrams = BidirectionalNgrams(ids, vocab_size=vocab_size, order=order)
    name = f"Kneser-Ney {order}-grams of both directions"
    return MaskedBaseline(name, lambda inputs: BaselinePredictions(), len(ids), "tokens", ngrams=ngrams)
