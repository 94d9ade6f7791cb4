r"""Interpolated modified Kneser-Ney n-grams over token ids.

Kneser & Ney, "Improved Backing-off for M-gram Language Modeling" (1995).
Chen & Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (1999), equations 26 to 28 and
section 3 for the discounts.

With $c(hw)$ the count of the token $w$ after the context $h$, $D$ a discount that depends on the count, and $h'$ the
context without its first token,

$$ p(w \mid h) = \frac{c(hw) - D(c(hw))}{\sum_{w'} c(hw')} + \gamma(h)\, p(w \mid h'), \qquad
   \gamma(h) = \frac{\sum_{w'} D(c(hw'))}{\sum_{w'} c(hw')} $$

For all but the longest n-grams, $c$ is the number of different tokens that precede the n-gram. Below single tokens is
the uniform distribution over the vocabulary, so that every token has a probability.

Dimensions: `time` positions of a text, `ngrams` different n-grams of one order.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from regard.errors import DataError

_UNSEEN = -1
_SMALLEST_DISCOUNT = 0.1
"""Without a discount, what was not seen after a context would have no probability."""


@dataclass(frozen=True)
class _Order:
    """The n-grams of one order, each known by the index of its context, an n-gram one shorter, and its last token."""

    keys: Int[np.ndarray, " ngrams"]
    """Context times vocabulary plus token, sorted."""
    gains: Float[np.ndarray, " ngrams"]
    """The discounted count divided by the count of the context."""
    backoffs: Float[np.ndarray, " contexts"]
    """The weight of the shorter context, by the index of the context; 1 for a context that nothing follows."""


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
        if order < 1 or len(ids) <= order:
            raise DataError(f"n-grams of {order} tokens need a text of more tokens, got {len(ids)}")
        self.order, self._vocab_size = order, vocab_size
        ngrams = ids.astype(np.int64)  # at each position, the index of the n-gram that ends there
        tables = [(np.arange(vocab_size), ngrams)]
        for _ in range(order - 1):
            keys, ngrams = np.unique(_keys(tables[-1][1], ids, vocab_size), return_inverse=True)
            tables.append((keys, ngrams))
        self._orders = [self._estimate(tables, number) for number in range(order)]

    def _estimate(self, tables: list[tuple[np.ndarray, np.ndarray]], number: int) -> _Order:
        """The probabilities of the n-grams of one order, from the positions of those of this order and the next."""
        keys, ngrams = tables[number]
        if number == self.order - 1:
            counts = np.bincount(ngrams, minlength=len(keys))
        else:  # each longer n-gram that ends in this one is another token before it
            _, first = np.unique(tables[number + 1][1], return_index=True)
            counts = np.bincount(ngrams[1:][first], minlength=len(keys))
        num_contexts = 1 if number == 0 else len(tables[number - 1][0])
        contexts = np.zeros(len(keys), np.int64) if number == 0 else keys // self._vocab_size
        discounted = _discounts(counts)[np.minimum(counts, 3)]
        totals = np.bincount(contexts, counts, num_contexts)
        removed = np.bincount(contexts, discounted, num_contexts)
        safe = np.maximum(totals, 1)
        backoffs = np.where(totals > 0, removed / safe, 1.0)
        return _Order(keys, (counts - discounted) / safe[contexts], backoffs)

    def losses(self, ids: Int[np.ndarray, " time"]) -> Float[np.ndarray, " targets"]:
        """The negative log-probability of each token but the first, given those before it, in nats."""
        ids = ids.astype(np.int64)
        probabilities = np.full(len(ids), 1 / self._vocab_size)
        ngrams, contexts = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
        for number, order in enumerate(self._orders):
            if number:
                contexts = np.concatenate([[_UNSEEN], ngrams[:-1]])
            is_known = contexts != _UNSEEN
            keys = np.where(is_known, contexts * self._vocab_size + ids, _UNSEEN)
            places = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            is_seen = order.keys[places] == keys
            backoffs = np.where(is_known, order.backoffs[np.where(is_known, contexts, 0)], 1.0)
            probabilities = np.where(is_seen, order.gains[places], 0.0) + backoffs * probabilities
            ngrams = np.where(is_seen, places, _UNSEEN)
        return -np.log(probabilities[1:])


def _keys(
    ngrams: Int[np.ndarray, " some"], ids: Int[np.ndarray, " time"], vocab_size: int
) -> Int[np.ndarray, " fewer"]:
    """The n-grams one longer than those that end at each position."""
    return ngrams[:-1] * vocab_size + ids[len(ids) - len(ngrams) + 1 :].astype(np.int64)


def _discounts(counts: Int[np.ndarray, " ngrams"]) -> Float[np.ndarray, " four"]:
    r"""The discounts of counts of 0, 1, 2 and more, from how many n-grams have each count.

    With $n_r$ n-grams of count $r$ and $Y = n_1 / (n_1 + 2 n_2)$ they are $D_r = r - (r + 1) Y n_{r+1} / n_r$.
    Where a small text has no n-gram of some count, a discount is half of its count.
    """
    numbers = np.bincount(np.minimum(counts, 5), minlength=6).astype(np.float64)
    found = [0.0]
    for count in (1, 2, 3):
        enough = numbers[1] > 0 and numbers[2] > 0 and numbers[count] > 0
        share = numbers[1] / (numbers[1] + 2 * numbers[2]) if enough else 0.0
        discount = count - (count + 1) * share * numbers[count + 1] / numbers[count] if enough else count / 2
        found.append(min(max(discount, _SMALLEST_DISCOUNT), float(count)))
    return np.array(found)
