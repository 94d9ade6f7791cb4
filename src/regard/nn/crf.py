r"""A linear-chain conditional random field: tags that know of their neighbours.

Lafferty et al., "Conditional Random Fields: Probabilistic Models for Segmenting and Labeling Sequence Data" (2001).
https://repository.upenn.edu/cis_papers/159
Lample et al., "Neural Architectures for Named Entity Recognition" (2016), section 2.2. https://arxiv.org/abs/1603.01360

With $P_{t,y}$ the score that a network gives tag $y$ at position $t$, and $A$, $a$, $b$ learned scores of a tag behind
another, of the first tag and of the last,

$$ s(y) = a_{y_1} + \sum_{t=1}^T P_{t, y_t} + \sum_{t=2}^T A_{y_{t-1}, y_t} + b_{y_T}, \qquad
   p(y) = e^{s(y)} \Big/ \sum_{y'} e^{s(y')} $$

The sum over all sequences of tags, of which there are exponentially many, takes one pass: what ends in a tag at a
position follows from what ends in each tag at the position before.

Dimensions:
    batch, time     sequences, and their positions
    tags            what a position can be
    before, after   tags side by side, or the boundary, which stands last
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError

_IMPOSSIBLE = -1e6
"""The score of a forbidden step where sums over paths are made: its exponential is zero, and a gradient through it is
too, where -inf would have made it NaN."""


class Path(NamedTuple):
    """A sequence of tags, by number, and its score."""

    tags: list[int]
    score: float
    """The $s(y)$ above. Less the `log_partition` of its row it is the logarithm of the path's probability."""


class ConditionalRandomField(nn.Module):
    """Scores of neighbouring tags, and what follows from them and the scores of each position by itself.

    All scores start at zero, where the tags of a row are independent and have the
    softmax of their scores as probabilities. Everything is computed in float32 at
    least, whatever the scores come in: sums over paths need the digits.

    `lengths` are at least 1; without them no row is padded. What stands in padded
    positions changes nothing, tags outside the vocabulary included.

    Args:
        num_tags: How many tags there are.
        allowed: Which tag may follow which: see `allowed_steps`. Without it, any.
    """

    def __init__(self, num_tags: int, *, allowed: Bool[Tensor, "before after"] | None = None) -> None:
        super().__init__()
        if allowed is not None and allowed.shape != (num_tags + 1, num_tags + 1):
            raise ConfigError(
                f"allowed must have a row and a column for each tag and for the boundary, {num_tags + 1} of each, got "
                f"the shape {tuple(allowed.shape)}"
            )
        self.transitions = nn.Parameter(torch.zeros(num_tags, num_tags))
        self.starts = nn.Parameter(torch.zeros(num_tags))
        self.ends = nn.Parameter(torch.zeros(num_tags))
        self.allowed: Tensor | None
        # It follows from the tags, so it is no part of what is saved.
        self.register_buffer("allowed", allowed, persistent=False)

    def log_likelihood(
        self,
        scores: Float[Tensor, "batch time tags"],
        tags: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """The log-probability of each row's tags, all together.

        Tags that are forbidden have one so far below zero that it cannot be overlooked;
        to find out before, look whether `allowed` has each step.
        """
        return self._path_score(scores, tags, lengths) - self.log_partition(scores, lengths)

    def log_partition(
        self, scores: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        r"""For each row $\ln \sum_y e^{s(y)}$, over all sequences of tags."""
        *_, last = self._forward_scores(scores, lengths)
        _, _, ends = self._step_scores(scores, _IMPOSSIBLE)
        return (last + ends).logsumexp(dim=1)

    @torch.no_grad()
    def marginals(
        self, scores: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch time tags"]:
        """The probability of each tag at each position, all that may stand around it taken together; 0 in padding.

        By forward-backward: the sum over all beginnings that end in the tag, times
        that over all continuations.
        """
        forward = torch.stack(self._forward_scores(scores, lengths), dim=1)
        backward = torch.stack(self._backward_scores(scores, lengths), dim=1)
        return (forward + backward).softmax(dim=2) * _is_real(scores, lengths)[:, :, None]

    @torch.no_grad()
    def viterbi(
        self, scores: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None = None
    ) -> list[Path]:
        """The most probable sequence of tags of each row, without a forbidden step.

        Where every sequence is forbidden, the score is -inf and the tags mean nothing.
        """
        starts, transitions, ends = self._step_scores(scores, -torch.inf)
        scores, is_real = scores.to(starts.dtype), _is_real(scores, lengths)
        unmoved = torch.arange(scores.size(2), device=scores.device).expand(scores.size(0), -1)
        best, came_from = starts + scores[:, 0], [unmoved]
        for time in range(1, scores.size(1)):
            reached, before = (best[:, :, None] + transitions).max(dim=1)
            here = is_real[:, time, None]
            best = (reached + scores[:, time]).where(here, best)
            came_from.append(before.where(here, unmoved))
        best_scores, tag = (best + ends).max(dim=1)
        backwards = []
        for before in reversed(came_from):
            backwards.append(tag)
            tag = before.gather(1, tag[:, None])[:, 0]
        paths = torch.stack(backwards[::-1], dim=1).tolist()
        return [
            Path(path[:length], score)
            for path, length, score in zip(paths, is_real.sum(1).tolist(), best_scores.tolist(), strict=True)
        ]

    def _path_score(
        self,
        scores: Float[Tensor, "batch time tags"],
        tags: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None,
    ) -> Float[Tensor, " batch"]:
        starts, transitions, ends = self._step_scores(scores, _IMPOSSIBLE)
        is_real = _is_real(scores, lengths)
        tags = tags.where(is_real, 0)
        emitted = scores.to(starts.dtype).gather(2, tags[:, :, None])[:, :, 0]
        stepped = transitions[tags[:, :-1], tags[:, 1:]]
        last = tags.gather(1, is_real.sum(1, keepdim=True) - 1)[:, 0]
        within = emitted.where(is_real, 0.0).sum(1) + stepped.where(is_real[:, 1:], 0.0).sum(1)
        return starts[tags[:, 0]] + within + ends[last]

    def _forward_scores(
        self, scores: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None
    ) -> list[Float[Tensor, "batch tags"]]:
        """For each position the logarithm of the sum over all beginnings that end there, by their last tag.

        In padding it stays as it was at the end of the row.
        """
        starts, transitions, _ = self._step_scores(scores, _IMPOSSIBLE)
        scores, is_real = scores.to(starts.dtype), _is_real(scores, lengths)
        sums = [starts + scores[:, 0]]
        for time in range(1, scores.size(1)):
            reached = (sums[-1][:, :, None] + transitions).logsumexp(dim=1) + scores[:, time]
            sums.append(reached.where(is_real[:, time, None], sums[-1]))
        return sums

    def _backward_scores(
        self, scores: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None
    ) -> list[Float[Tensor, "batch tags"]]:
        """For each position the logarithm of the sum over all that may follow, by the tag it follows."""
        _, transitions, ends = self._step_scores(scores, _IMPOSSIBLE)
        scores, is_real = scores.to(ends.dtype), _is_real(scores, lengths)
        sums = [ends.expand(scores.size(0), -1)]
        for time in reversed(range(1, scores.size(1))):
            follows = (transitions + (sums[-1] + scores[:, time])[:, None, :]).logsumexp(dim=2)
            sums.append(follows.where(is_real[:, time, None], sums[-1]))
        return sums[::-1]

    def _step_scores(
        self, scores: Float[Tensor, "batch time tags"], forbidden: float
    ) -> tuple[Float[Tensor, " tags"], Float[Tensor, "tags tags"], Float[Tensor, " tags"]]:
        """Of the first tag, of a tag behind another, and of the last, in the precision to compute in."""
        dtype = torch.promote_types(scores.dtype, torch.float32)
        starts, transitions, ends = (x.to(dtype) for x in (self.starts, self.transitions, self.ends))
        if self.allowed is None:
            return starts, transitions, ends
        return (
            starts.masked_fill(~self.allowed[-1, :-1], forbidden),
            transitions.masked_fill(~self.allowed[:-1, :-1], forbidden),
            ends.masked_fill(~self.allowed[:-1, -1], forbidden),
        )


def allowed_steps(
    tags: Sequence[str], may_follow: Callable[[str | None, str | None], bool]
) -> Bool[Tensor, "before after"]:
    """Which tag may stand behind which, by a rule for two of them; None is the boundary of a sequence.

    Example:
        >>> allowed_steps(["O", "B", "I"], lambda before, after: after != "I" or before in ("B", "I")).int().tolist()
        [[1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]]
    """
    names = [*tags, None]
    return torch.tensor([[may_follow(before, after) for after in names] for before in names])


def _is_real(
    scores: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None
) -> Bool[Tensor, "batch time"]:
    """True where a row has not ended."""
    if lengths is None:
        return torch.ones(scores.shape[:2], dtype=torch.bool, device=scores.device)
    return torch.arange(scores.size(1), device=scores.device) < lengths[:, None]
