r"""Charts of spans: sums and maxima over all binary trees of a sentence.

A tree over $n$ words is a set of nested spans; its score is the sum of the scores of its spans. With
$s(i, j)$ the score of the span from word $i$ to word $j$, the log of the sum over all binary trees of a span is

$$ \alpha(i, j) = s(i, j) + \ln \sum_{k=i}^{j-1} e^{\alpha(i, k) + \alpha(k+1, j)}, \qquad \alpha(i, i) = s(i, i) $$

the inside algorithm; with a maximum for the sum it finds the best tree (CKY). All spans of one width are computed
together.

Baker, "Trainable Grammars for Speech Recognition" (1979). Stern et al., "A Minimal Span-Based Neural Constituency
Parser" (2017), https://arxiv.org/abs/1705.03919. Zhang et al., "Fast and Accurate Neural CRF Constituency Parsing"
(2020), https://arxiv.org/abs/2008.03736.

Dimensions:
    batch         sentences
    first, last   words of a span, counted from 0 and both inside it; entries with last < first have no effect
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

IMPOSSIBLE = -1e6
"""Score of a span that no tree may have. Its exponential is zero, and so is its gradient, which would be NaN for
-inf."""


class SpanTree(NamedTuple):
    """The spans of a binary tree, each before those inside it, and its score."""

    spans: list[tuple[int, int]]
    """First and last word of each."""
    score: float


def log_partition(
    scores: Float[Tensor, "batch first last"], lengths: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, " batch"]:
    r"""Return $\alpha(0, n - 1)$, the log of the sum of $e^{score}$ over all binary trees of each sentence.

    Its gradient by the scores are the marginal probabilities of the spans.
    """
    return _root(_inside(scores, lambda splits: splits.logsumexp(dim=-1)), lengths)


@torch.no_grad()
def best_trees(
    scores: Float[Tensor, "batch first last"], lengths: Int[Tensor, " batch"] | None = None
) -> list[SpanTree]:
    """Return the binary tree with the highest score of each sentence (CKY)."""
    chosen: list[Int[Tensor, "batch starts"]] = [torch.zeros_like(scores[:, :, 0], dtype=torch.long)]

    def choose(splits: Float[Tensor, "batch starts splits"]) -> Float[Tensor, "batch starts"]:
        best, places = splits.max(dim=-1)
        chosen.append(places)
        return best

    best = _root(_inside(scores, choose), lengths).tolist()
    splits = [each.tolist() for each in chosen]
    last_words = [scores.size(1) - 1] * len(best) if lengths is None else (lengths - 1).tolist()
    found = []
    for row, last in enumerate(last_words):
        spans: list[tuple[int, int]] = []
        stack = [(0, last)]
        while stack:
            start, end = stack.pop()
            spans.append((start, end))
            if start < end:
                split = start + splits[end - start][row][start]
                stack += [(split + 1, end), (start, split)]
        found.append(SpanTree(spans, best[row]))
    return found


def _inside(
    scores: Float[Tensor, "batch first last"],
    reduce: Callable[[Float[Tensor, "batch starts splits"]], Float[Tensor, "batch starts"]],
) -> Float[Tensor, "batch widths"]:
    """Return the values of the spans that begin with the first word, by their width.

    `by_start` has the values of all spans that begin at some word, by their width, and `by_end` of those that end at
    some word. Of a span that is split, the left part is one of the former and the right part one of the latter.
    """
    values = scores.diagonal(dim1=1, dim2=2)
    by_start, by_end = values[..., None], values[..., None]
    firsts = [values[:, :1]]
    for width in range(2, scores.size(1) + 1):
        by_start, by_end = by_start[:, :-1], by_end[:, 1:]
        values = scores.diagonal(width - 1, dim1=1, dim2=2) + reduce(by_start + by_end.flip(-1))
        by_start, by_end = (torch.cat([some, values[..., None]], dim=-1) for some in (by_start, by_end))
        firsts.append(values[:, :1])
    return torch.cat(firsts, dim=1)


def _root(values: Float[Tensor, "batch widths"], lengths: Int[Tensor, " batch"] | None) -> Float[Tensor, " batch"]:
    return values[:, -1] if lengths is None else values.gather(1, lengths[:, None] - 1)[:, 0]
