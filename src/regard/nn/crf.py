r"""A linear-chain conditional random field: the tags of a sequence are scored jointly.

Lafferty et al., "Conditional Random Fields: Probabilistic Models for Segmenting and Labeling Sequence Data" (2001).
https://repository.upenn.edu/cis_papers/159
Lample et al., "Neural Architectures for Named Entity Recognition" (2016), section 2.2. https://arxiv.org/abs/1603.01360

With $P_{t,y}$ the logit of tag $y$ at position $t$, and $A$, $a$, $b$ learned scores of transitions between tags, of
the first tag and of the last,

$$ s(y) = a_{y_1} + \sum_{t=1}^T P_{t, y_t} + \sum_{t=2}^T A_{y_{t-1}, y_t} + b_{y_T}, \qquad
   p(y) = e^{s(y)} \Big/ \sum_{y'} e^{s(y')} $$

The sum over the exponentially many sequences of tags is computed in one pass by the forward algorithm: the sum over
the prefixes that end in a tag follows from the sums at the position before.

Dimensions:
    batch, time     sequences, and their positions
    tags            tags of a position
    before, after   consecutive tags; the last index is the boundary of the sequence
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError

_MOST_TAGS_AT_ONCE = 24
"""With more tags, the sums of all pairs of steps need too much memory."""
_IMPOSSIBLE = -1e6
"""Score of a forbidden transition in sums over paths. Its exponential is zero, and so is its gradient, which would be
NaN for -inf."""


class TagPath(NamedTuple):
    """A sequence of tag indices and its score."""

    tags: list[int]
    score: float
    """The $s(y)$ above; minus the `log_partition` of its row it is the log-probability of the path."""


class ConditionalRandomField(nn.Module):
    """Learned transition scores, and the likelihood and the best path that follow from them and from logits.

    All scores are initialized to zero, for which the tags of a row are independent
    with the softmax of their logits as probabilities. Sums over paths are computed
    in float32 or more, whatever the dtype of the logits.

    `lengths` are at least 1; without them no row is padded. Logits and tags of
    padded positions have no effect, also if the tags are out of range.

    Args:
        num_tags: Number of tags.
        allowed: Mask of the transitions that may occur, see `transition_mask`; by default all.
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
        # Not saved with the weights: it follows from the tags.
        self.register_buffer("allowed", allowed, persistent=False)

    def log_likelihood(
        self,
        logits: Float[Tensor, "batch time tags"],
        tags: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return the log-probability of the tags of each row.

        For tags with a forbidden transition it is about -1e6.
        """
        return self._path_score(logits, tags, lengths) - self.log_partition(logits, lengths)

    def log_partition(
        self, logits: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        r"""Return $\ln \sum_y e^{s(y)}$ over all sequences of tags, for each row.

        Its gradient by the logits are the marginal probabilities of the tags.
        """
        starts, transitions, ends = self._transition_scores(logits, _IMPOSSIBLE)
        logits, is_real = logits.to(starts.dtype), _is_real(logits, lengths)
        sums = starts + logits[:, 0]
        if logits.is_cuda and logits.size(2) <= _MOST_TAGS_AT_ONCE:
            steps = transitions + logits[:, 1:, None, :]
            sums = (sums[:, :, None] + sum_over_paths(steps, is_real[:, 1:])).logsumexp(dim=1)
            return (sums + ends).logsumexp(dim=1)
        for time in range(1, logits.size(1)):
            extended = (sums[:, :, None] + transitions).logsumexp(dim=1) + logits[:, time]
            sums = extended.where(is_real[:, time, None], sums)
        return (sums + ends).logsumexp(dim=1)

    def marginals(
        self, logits: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch time tags"]:
        """Return the probability of each tag at each position, whatever the other tags are; 0 for padding."""
        with torch.inference_mode(False), torch.enable_grad():
            logits = logits.detach().clone().requires_grad_()
            partition = self.log_partition(logits, None if lengths is None else lengths.clone())
            return torch.autograd.grad(partition.sum(), logits)[0]

    @torch.no_grad()
    def viterbi(
        self, logits: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None = None
    ) -> list[TagPath]:
        """Return the most probable sequence of tags of each row, without forbidden transitions.

        Where every sequence is forbidden, the score is -inf and the tags are arbitrary.
        """
        starts, transitions, ends = self._transition_scores(logits, -torch.inf)
        logits, is_real = logits.to(starts.dtype), _is_real(logits, lengths)
        same = torch.arange(logits.size(2), device=logits.device).expand(logits.size(0), -1)
        best, predecessors = starts + logits[:, 0], [same]
        for time in range(1, logits.size(1)):
            extended, before = (best[:, :, None] + transitions).max(dim=1)
            here = is_real[:, time, None]
            best = (extended + logits[:, time]).where(here, best)
            predecessors.append(before.where(here, same))
        best_scores, tag = (best + ends).max(dim=1)
        backwards = []
        for before in reversed(predecessors):
            backwards.append(tag)
            tag = before.gather(1, tag[:, None])[:, 0]
        paths = torch.stack(backwards[::-1], dim=1).tolist()
        return [
            TagPath(path[:length], score)
            for path, length, score in zip(paths, is_real.sum(1).tolist(), best_scores.tolist(), strict=True)
        ]

    def _path_score(
        self,
        logits: Float[Tensor, "batch time tags"],
        tags: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None,
    ) -> Float[Tensor, " batch"]:
        starts, transitions, ends = self._transition_scores(logits, _IMPOSSIBLE)
        is_real = _is_real(logits, lengths)
        tags = tags.where(is_real, 0)
        emitted = logits.to(starts.dtype).gather(2, tags[:, :, None])[:, :, 0]
        stepped = transitions[tags[:, :-1], tags[:, 1:]]
        last = tags.gather(1, is_real.sum(1, keepdim=True) - 1)[:, 0]
        within = emitted.where(is_real, 0.0).sum(1) + stepped.where(is_real[:, 1:], 0.0).sum(1)
        return starts[tags[:, 0]] + within + ends[last]

    def _transition_scores(
        self, logits: Float[Tensor, "batch time tags"], forbidden: float
    ) -> tuple[Float[Tensor, " tags"], Float[Tensor, "tags tags"], Float[Tensor, " tags"]]:
        """Return the scores of the first tag, of each transition and of the last tag, in the dtype to compute in."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        starts, transitions, ends = (x.to(dtype) for x in (self.starts, self.transitions, self.ends))
        if self.allowed is None:
            return starts, transitions, ends
        return (
            starts.masked_fill(~self.allowed[-1, :-1], forbidden),
            transitions.masked_fill(~self.allowed[:-1, :-1], forbidden),
            ends.masked_fill(~self.allowed[:-1, -1], forbidden),
        )


def transition_mask(
    tags: Sequence[str], may_follow: Callable[[str | None, str | None], bool]
) -> Bool[Tensor, "before after"]:
    """Return which tag may follow which, by a rule for two tags; None is the boundary of a sequence.

    Example:
        >>> transition_mask(["O", "B", "I"], lambda before, after: after != "I" or before in ("B", "I")).int().tolist()
        [[1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]]
    """
    names = [*tags, None]
    return torch.tensor([[may_follow(before, after) for after in names] for before in names])


def sum_over_paths(
    steps: Float[Tensor, "batch time before after"], is_real: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch before after"]:
    """The log of the sum over all paths from a first tag to a last one.

    Pairs of neighbors are joined until one is left, in as many rounds as the logarithm of the time: on a GPU, the many
    small operations of one step after the other take longer.
    """
    stay = torch.full(steps.shape[-2:], _IMPOSSIBLE, dtype=steps.dtype, device=steps.device).fill_diagonal_(0.0)
    steps = torch.where(is_real[:, :, None, None], steps, stay)
    while steps.size(1) != 1:
        if steps.size(1) % 2 or steps.size(1) == 0:
            steps = torch.cat([steps, stay.expand(len(steps), 1, -1, -1)], dim=1)
        else:
            steps = (steps[:, 0::2, :, :, None] + steps[:, 1::2, None, :, :]).logsumexp(dim=-2)
    return steps[:, 0]


def _is_real(
    logits: Float[Tensor, "batch time tags"], lengths: Int[Tensor, " batch"] | None
) -> Bool[Tensor, "batch time"]:
    """Return the mask of the positions before the end of each row."""
    if lengths is None:
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    return torch.arange(logits.size(1), device=logits.device) < lengths[:, None]
