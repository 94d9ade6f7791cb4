r"""Interpolated modified Kneser-Ney n-grams over token ids: their estimation, and tables of them as tensors.

Kneser & Ney, "Improved Backing-off for M-gram Language Modeling" (1995).
Chen & Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling" (1999), equations 26 to 28 and
section 3 for the discounts.

With $c(hw)$ the count of the token $w$ after the context $h$, $D$ a discount that depends on the count, and $h'$ the
context without its first token,

$$ p(w \mid h) = \frac{c(hw) - D(c(hw))}{\sum_{w'} c(hw')} + \gamma(h)\, p(w \mid h'), \qquad
   \gamma(h) = \frac{\sum_{w'} D(c(hw'))}{\sum_{w'} c(hw')} $$

For all but the longest n-grams, $c$ is the number of different tokens that precede the n-gram. Below single tokens is
the uniform distribution over the vocabulary, so that every token has a probability.

Dimensions: `batch` texts, `time` positions of a text, `vocab` tokens, `ngrams` different n-grams of one order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from regard.errors import DataError

_UNSEEN = -1
NO_TOKEN = -1
"""In place of a token before the first one of a text."""
_SMALLEST_DISCOUNT = 0.1
"""Without a discount, what was not seen after a context would have no probability."""
_PARTS = ("keys", "gains", "backoffs")


@dataclass(frozen=True)
class NgramOrder:
    """The n-grams of one order, each known by the index of its context, an n-gram one shorter, and its last token."""

    keys: Int[np.ndarray, " ngrams"]
    """Context times vocabulary plus token, sorted."""
    gains: Float[np.ndarray, " ngrams"]
    """The discounted count divided by the count of the context."""
    backoffs: Float[np.ndarray, " contexts"]
    """The weight of the shorter context, by the index of the context; 1 for a context that nothing follows."""


def estimate_kneser_ney(ids: Integer[np.ndarray, " time"], *, vocab_size: int, order: int) -> list[NgramOrder]:
    """Estimate the n-grams of each order, from single tokens to those of `order` tokens, of a text."""
    if order < 1 or len(ids) <= order:
        raise DataError(f"n-grams of {order} tokens need a text of more tokens, got {len(ids)}")
    ngrams = ids.astype(np.int64)  # at each position, the index of the n-gram that ends there
    tables = [(np.arange(vocab_size), ngrams)]
    for _ in range(order - 1):
        keys, ngrams = np.unique(_keys(tables[-1][1], ids, vocab_size), return_inverse=True)
        tables.append((keys, ngrams))
    return [_estimate(tables, number, vocab_size) for number in range(order)]


class NgramTables(nn.Module):
    """The n-grams of a text as buffers, whose sizes depend on the text, and the probabilities that follow from them.

    Until `fill` is called they are those of a text that repeats one token.

    Args:
        vocab_size: The number of different tokens.
        order: The number of tokens of the longest n-grams.
    """

    def __init__(self, vocab_size: int, order: int) -> None:
        super().__init__()
        self.vocab_size, self.order = vocab_size, order
        for number in range(order):
            for part in _PARTS:
                self.register_buffer(f"{part}_{number + 1}", torch.empty(0))
        self.fill(estimate_kneser_ney(np.zeros(order + 1, np.int64), vocab_size=vocab_size, order=order))

    def fill(self, orders: Sequence[NgramOrder]) -> None:
        """Replace the n-grams by those that `estimate_kneser_ney` returned."""
        for number, order in enumerate(orders, start=1):
            for part in _PARTS:
                own = self.get_buffer(f"{part}_{number}")
                setattr(self, f"{part}_{number}", torch.from_numpy(getattr(order, part)).to(own.device))

    def resize_buffers(self, shapes: Mapping[str, torch.Size]) -> None:
        """Replace buffers by new ones of these shapes, whose values are to be loaded."""
        for name, shape in shapes.items():
            setattr(self, name, self.get_buffer(name).new_zeros(shape))

    def contexts(
        self, tokens: Int[Tensor, "batch time"], recent: Int[Tensor, "batch before"], *, boundary: int | None = None
    ) -> list[Int[Tensor, "batch time"]]:
        """Return, for each order from the second on, the index of the context after each token, -1 for an unseen one.

        Args:
            tokens: The tokens.
            recent: The `order - 1` tokens before them, or `NO_TOKEN`.
            boundary: A token that no context extends beyond; None for none.
        """
        read = torch.cat([recent, tokens], dim=1)
        ngrams, found = read.where(read != NO_TOKEN, _UNSEEN), []
        for number in range(2, self.order + 1):
            found.append(ngrams[:, -tokens.size(1) :])
            if number < self.order:
                before = torch.cat([torch.full_like(ngrams[:, :1], _UNSEEN), ngrams[:, :-1]], dim=1)
                ngrams, _ = self._find(number, before, read)
                if boundary is not None:
                    ngrams = ngrams.where(read != boundary, _UNSEEN)
        return found

    def log_probabilities(
        self, contexts: Sequence[Int[Tensor, "batch time"]], targets: Int[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time"]:
        """Return the log-probability of a target after each context that `contexts` returned."""
        probabilities = torch.full(targets.shape, 1 / self.vocab_size, dtype=torch.float64, device=targets.device)
        for number, context in enumerate([torch.zeros_like(targets), *contexts], start=1):
            _, gains = self._find(number, context, targets)
            probabilities = gains + self._backoffs(number, context) * probabilities
        return probabilities.log()

    def distributions(
        self, contexts: Sequence[Int[Tensor, " rows"]], *, num_rows: int, dtype: torch.dtype
    ) -> Float[Tensor, "rows vocab"]:
        """Return the probability of each token after each context; there are `num_rows`, also for single tokens."""
        unigrams = self.get_buffer("gains_1") + self.get_buffer("backoffs_1") / self.vocab_size
        found = unigrams.to(dtype).repeat(num_rows, 1)
        for number, context in enumerate(contexts, start=2):
            found *= self._backoffs(number, context).to(dtype)[:, None]
            keys = self.get_buffer(f"keys_{number}")
            # The n-grams of a context are adjacent; there are none of an unseen one, whose keys would be negative.
            first, end = (torch.searchsorted(keys, (context + more) * self.vocab_size) for more in (0, 1))
            counts = torch.where(context == _UNSEEN, 0, end - first)
            rows = torch.arange(num_rows, device=keys.device).repeat_interleave(counts)
            offsets = torch.arange(len(rows), device=keys.device) - (counts.cumsum(0) - counts)[rows]
            places = first[rows] + offsets
            found[rows, keys[places] % self.vocab_size] += self.get_buffer(f"gains_{number}")[places].to(dtype)
        return found

    def _find(self, number: int, contexts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The index and the gain of the n-gram of each context and token; -1 and 0 where it is unseen."""
        keys, gains = self.get_buffer(f"keys_{number}"), self.get_buffer(f"gains_{number}")
        wanted = torch.where(contexts == _UNSEEN, _UNSEEN, contexts * self.vocab_size + tokens)
        places = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        is_seen = keys[places] == wanted
        return places.where(is_seen, _UNSEEN), gains[places].where(is_seen, 0.0)

    def _backoffs(self, number: int, contexts: Tensor) -> Tensor:
        return self.get_buffer(f"backoffs_{number}")[contexts.clamp(min=0)].where(contexts != _UNSEEN, 1.0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NgramTables":
        """Move the tables but keep their dtype: probabilities in bfloat16 would not sum to 1."""
        before: dict[str, Any] = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            setattr(self, name, buffer.to(self.get_buffer(name).device))
        return self


def _estimate(tables: list[tuple[np.ndarray, np.ndarray]], number: int, vocab_size: int) -> NgramOrder:
    """The probabilities of the n-grams of one order, from the positions of those of this order and the next."""
    keys, ngrams = tables[number]
    if number == len(tables) - 1:
        counts = np.bincount(ngrams, minlength=len(keys))
    else:  # each longer n-gram that ends in this one is another token before it
        _, first = np.unique(tables[number + 1][1], return_index=True)
        counts = np.bincount(ngrams[1:][first], minlength=len(keys))
    num_contexts = 1 if number == 0 else len(tables[number - 1][0])
    contexts = np.zeros(len(keys), np.int64) if number == 0 else keys // vocab_size
    discounted = _discounts(counts)[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, num_contexts)
    removed = np.bincount(contexts, discounted, num_contexts)
    safe = np.maximum(totals, 1)
    backoffs = np.where(totals > 0, removed / safe, 1.0)
    return NgramOrder(keys, (counts - discounted) / safe[contexts], backoffs)


def _keys(
    ngrams: Int[np.ndarray, " some"], ids: Integer[np.ndarray, " time"], vocab_size: int
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
