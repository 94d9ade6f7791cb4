r"""Beam search: the best few prefixes, side by side.

Sutskever et al. (2014), section 3.2; Wu et al. (2016), arXiv 1609.08144, section 7.

**Ranking.** A finished hypothesis $y$ of $n$ tokens, its end token among them,
scores $\log p(y) / n^\alpha$, with $\alpha$ = `length_penalty`.

**Stopping.** A sentence is done when

- `enough`: `beam_size` of its hypotheses have ended, and no open one would
  overtake the best of them by ending next, at no cost; or
- `exact`: no open hypothesis can still overtake the best finished one. Log-
  probabilities only fall and lengths are limited to $N$, so an open hypothesis
  of log-probability $s$ can reach $s / N^\alpha$ at most. With a beam wide enough
  to hold every prefix this finds the best of all sequences of up to $N$ tokens.

and in any case when its limit is reached. If none has ended by then, the best
open hypothesis is returned.

**Speed.** All that is known of the hypotheses stands in tensors of fixed size,
`Beams`, and `advance` takes them a token further. So a GPU need not wait for
Python to look at what it has found, and where the state branches without
changing its size (`Branching`) a whole step is recorded once as a CUDA graph and
replayed. On a CPU, sentences that are done leave the batch. Where they can, the
hypotheses of a sentence share its source and what they begin with: nothing is
copied when one takes another's place.

Dimensions: `batch` sentences, `beam` hypotheses of each, `vocab` tokens, `time`
tokens written; `rows` = batch * beam.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ConfigError
from regard.generation.config import GenerationConfig
from regard.generation.graphs import fused_step, record
from regard.models.protocols import State, Stepper

_LOOK_EVERY = 8
"""Steps between two looks of the host at a GPU, each of which makes it wait."""
_ROUND_TO = 32
"""The room for tokens is rounded up to this, so that one recording serves limits of about the same size."""
_KEPT = 4
"""Sizes of batches for which a recording is kept."""
_GROUP = 128
"""Tokens of which first the best is looked for alone."""
_NOTHING = -1
"""Behind the last token of a hypothesis."""


@dataclass
class Hypothesis:
    """A way to continue: its tokens, the end left out, and the score it is ranked by."""

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Beams:
    """The hypotheses of each sentence: the open ones, and the best of those that have ended."""

    limits: Int[Tensor, " batch"]
    length: Int[Tensor, ""]
    """Tokens of each open hypothesis."""
    sums: Float[Tensor, "batch beam"]
    """Log-probabilities of the open ones, best first; -inf where there are fewer."""
    tokens: Int[Tensor, "batch beam time"]
    scores: Float[Tensor, "batch beam"]
    """Of those that have ended, best first; -inf where there are fewer."""
    ended: Int[Tensor, "batch beam time"]
    num_ended: Int[Tensor, " batch"]
    is_done: Bool[Tensor, " batch"]

    @classmethod
    def start(cls, limits: Sequence[int], config: GenerationConfig, *, room: int, device: torch.device) -> "Beams":
        """One empty hypothesis of each sentence, and room for so many tokens."""
        batch, beam = len(limits), config.beam_size
        nothing = torch.full((batch, beam, room), _NOTHING, device=device)
        impossible = torch.full((batch, beam), -torch.inf, device=device)
        return cls(
            limits=torch.tensor(limits, device=device),
            length=torch.zeros((), dtype=torch.long, device=device),
            sums=impossible.index_fill(1, torch.zeros(1, dtype=torch.long, device=device), 0.0),
            tokens=nothing,
            scores=impossible,
            ended=nothing.clone(),
            num_ended=torch.zeros(batch, dtype=torch.long, device=device),
            is_done=torch.zeros(batch, dtype=torch.bool, device=device),
        )

    def select(self, batch: Int[Tensor, " chosen"]) -> "Beams":
        """Those of these sentences."""
        return self._with(lambda part: part.index_select(0, batch) if part.dim() else part)

    def clone(self) -> "Beams":
        """The same in tensors of its own."""
        return self._with(Tensor.clone)

    def newest(self) -> Int[Tensor, "rows 1"]:
        """The last token of each open hypothesis."""
        return self.tokens.index_select(2, self.length[None] - 1).view(-1, 1)

    def copy_(self, other: "Beams") -> None:
        """Become `other`, in place."""
        for part in fields(self):
            getattr(self, part.name).copy_(getattr(other, part.name))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Of each sentence those that have ended, best first."""
        return [
            [
                Hypothesis([token for token in tokens if token != _NOTHING], score)
                for tokens, score in zip(*sentence, strict=True)
                if score > -torch.inf
            ]
            for sentence in zip(self.ended.tolist(), self.scores.tolist(), strict=True)
        ]

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Beams":
        return Beams(**{part.name: change(getattr(self, part.name)) for part in fields(self)})


def advance(
    beams: Beams, log_probabilities: Float[Tensor, "batch beam vocab"], *, end: int, config: GenerationConfig
) -> tuple[Beams, Int[Tensor, "batch beam"]]:
    """The hypotheses one token further, and which of the former ones each goes on from.

    The best extensions are sorted into those that end here, which are kept if
    they are good enough, and those that go on. Twice as many are looked at as
    can go on, for half of them may end.
    """
    beam, alpha = config.beam_size, config.length_penalty
    totals, parents, tokens = best_extensions(beams.sums, log_probabilities, 2 * beam)
    is_end = (tokens == end) & (totals > -torch.inf)
    histories = _rows(beams.tokens, parents)
    length = beams.length + 1
    penalty = length.to(totals.dtype) ** alpha

    # Sorting is stable: what has ended first stays first among equals.
    new_scores = (totals / penalty).masked_fill(~is_end | beams.is_done[:, None], -torch.inf)
    scores, order = _best_first(torch.cat([beams.scores, new_scores], dim=1), beam)
    ended = _rows(torch.cat([beams.ended, histories], dim=1), order)
    num_ended = beams.num_ended + is_end.sum(dim=1)

    sums, order = _best_first(totals.masked_fill(is_end, -torch.inf), beam)
    tokens, parents = tokens.gather(1, order), parents.gather(1, order)
    open_tokens = _rows(histories, order).index_copy_(2, beams.length[None], tokens[:, :, None])

    best_open = sums[:, 0]
    if config.stopping == "exact":
        has_enough, reach = num_ended >= 1, beams.limits
    else:
        has_enough, reach = num_ended >= beam, length + 1
    has_won = has_enough & (scores[:, 0] >= best_open / reach.to(totals.dtype) ** alpha)
    is_done = has_won | (best_open == -torch.inf) | (length >= beams.limits)

    is_unfinished = is_done & ~beams.is_done & (num_ended == 0)
    scores[:, 0] = torch.where(is_unfinished, best_open / penalty, scores[:, 0])
    ended[:, 0] = torch.where(is_unfinished[:, None], open_tokens[:, 0], ended[:, 0])
    after = Beams(beams.limits, length, sums, open_tokens, scores, ended, num_ended, is_done | beams.is_done)
    return after, parents


def best_extensions(
    sums: Float[Tensor, "batch beam"], log_probabilities: Float[Tensor, "batch beam vocab"], count: int
) -> tuple[Float[Tensor, "batch count"], Int[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    """The likeliest extensions of each sentence, best first: log-probabilities, hypotheses, tokens.

    The best `count` of many are among the `count` groups of them whose best are
    best, and a maximum is found much faster than an order.
    """
    _, beam, vocab_size = log_probabilities.shape
    flat = log_probabilities.flatten(1)
    num_groups = vocab_size // _GROUP
    count = min(count, beam * vocab_size)
    if beam * num_groups < 2 * count:
        totals, chosen = (sums[:, :, None] + log_probabilities).flatten(1).topk(count, dim=1)
        return totals, chosen // vocab_size, chosen % vocab_size
    grouped = log_probabilities[:, :, : num_groups * _GROUP].unflatten(2, (num_groups, _GROUP))
    best = (sums[:, :, None] + grouped.amax(dim=3)).flatten(1).topk(count, dim=1).indices
    numbers = torch.arange(vocab_size, device=sums.device)
    firsts = best // num_groups * vocab_size + best % num_groups * _GROUP
    rest = numbers[:beam, None] * vocab_size + numbers[num_groups * _GROUP :]
    places = torch.cat(
        [(firsts[:, :, None] + numbers[:_GROUP]).flatten(1), rest.flatten().expand(len(sums), -1)], dim=1
    )
    parents = places // vocab_size
    totals, chosen = (sums.gather(1, parents) + flat.gather(1, places)).topk(count, dim=1)
    return totals, parents.gather(1, chosen), (places % vocab_size).gather(1, chosen)


@runtime_checkable
class Branches(State, Protocol):
    """The state of all hypotheses of a batch, of fixed size: a step changes it in place."""

    def fits(self, state: State) -> bool:
        """Whether it is of the size that the hypotheses of `state` need."""
        ...

    def fill(self, state: State) -> None:
        """Start anew from `state`, before the first token."""
        ...

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let hypothesis i go on where `rows[i]` stands, which is one of the same sentence."""
        ...


@runtime_checkable
class Branching(State, Protocol):
    """A state before the first token, whose rows can branch into hypotheses that have their beginnings in common."""

    def tree(self) -> State:
        """A state that `select` does not copy, as long as each hypothesis stays with its row."""
        ...

    def branches(self, width: int, capacity: int) -> Branches:
        """Room for `width` hypotheses of each row, of up to `capacity` tokens."""
        ...


class BeamSearch:
    """Beam search with one decoder; what is recorded for one batch serves the next of about the same size."""

    def __init__(self, decoder: Stepper, *, end: int, config: GenerationConfig) -> None:
        self.decoder, self.end, self.config = decoder, end, config
        self._kept: list[_FixedSteps] = []
        self._can_record = True

    def search(self, state: State, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]) -> list[list[Hypothesis]]:
        """The finished hypotheses of each sentence, best first, at most `beam_size` of each."""
        if not limits:
            return []
        if prompt.is_cuda and isinstance(state, Branching):
            # Room for the longest hypothesis there may be can be more than a model has positions for, and
            # searches that take room as they need it mostly end before that matters.
            with suppress(ConfigError):
                return self.search_in_place(state, prompt, limits)
        if not prompt.is_cuda and isinstance(state, Branching):
            state = state.tree()
        return self.search_by_selection(state, prompt, limits)

    @torch.inference_mode()
    def search_by_selection(
        self, state: State, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """By `State.select`, which every state has; sentences that are done leave the batch."""
        device, every = prompt.device, _LOOK_EVERY if prompt.is_cuda else 1
        results: list[list[Hypothesis]] = [[] for _ in limits]
        live, num_steps = list(range(len(limits))), max(limits)
        beams = Beams.start(limits, self.config, room=num_steps, device=device)
        tokens = prompt
        for number in range(1, num_steps + 1):
            scores, state = self.decoder.step(tokens, state)
            beams, rows = self._advance(beams, scores)
            if number % every == 0 or number == num_steps:
                done, going = _divided(beams.is_done.tolist())
                if done:
                    found = beams.select(torch.tensor(done, device=device)).hypotheses()
                    for place, hypotheses in zip(done, found, strict=True):
                        results[live[place]] = hypotheses
                    if not going:
                        break
                    live, kept = [live[place] for place in going], torch.tensor(going, device=device)
                    beams, rows = beams.select(kept), rows.index_select(0, kept)
            tokens, state = beams.newest(), state.select(rows.flatten())
        return results

    @torch.inference_mode()
    def search_in_place(
        self, state: Branching, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """In tensors that never change their size, by steps that are recorded on a GPU."""
        room = -(-max(limits) // _ROUND_TO) * _ROUND_TO
        beams = Beams.start(limits, self.config, room=room, device=prompt.device)
        steps = next((kept for kept in self._kept if kept.fits(beams, state)), None)
        if steps is None:
            del self._kept[: 1 - _KEPT]  # their memory is free before more is asked for
            branches = state.branches(self.config.beam_size, room)
            step = fused_step(self.decoder, room) or self.decoder.step
            steps = _FixedSteps(step, self._advance, beams, branches)
            steps.start(beams, state, prompt)
            if prompt.is_cuda and self._can_record:
                self._can_record = steps.record()
            self._kept.append(steps)
        steps.start(beams, state, prompt)
        for number in range(1, max(limits) + 1):
            steps.take()
            if number % _LOOK_EVERY == 0 and steps.beams.is_done.all():
                break
        return steps.beams.hypotheses()

    def _advance(
        self, beams: Beams, scores: Float[Tensor, "rows new vocab"]
    ) -> tuple[Beams, Int[Tensor, "batch beam"]]:
        """The hypotheses one token further, and which row of the state each goes on from."""
        batch, beam = beams.sums.shape
        width = scores.size(0) // batch  # before the first token there may be one row for all hypotheses
        precision = torch.promote_types(scores.dtype, torch.float32)
        last = scores[:, -1].log_softmax(dim=-1, dtype=precision).unflatten(0, (batch, width))
        beams, parents = advance(beams, last.expand(batch, beam, -1), end=self.end, config=self.config)
        firsts = torch.arange(0, batch * width, width, device=parents.device)
        return beams, firsts[:, None] + parents.clamp(max=width - 1)


class _FixedSteps:
    """Steps in tensors that stay where they are, so that a GPU can be told to repeat one."""

    def __init__(
        self,
        step: Callable[[Tensor, State], tuple[Tensor, State]],
        advance: Callable[[Beams, Tensor], tuple[Beams, Tensor]],
        beams: Beams,
        branches: Branches,
    ) -> None:
        self._read, self._advance = step, advance
        self.beams, self._branches = beams.clone(), branches
        self._tokens = torch.zeros(beams.sums.numel(), 1, dtype=torch.long, device=beams.sums.device)
        self.take = self._step

    def fits(self, beams: Beams, state: State) -> bool:
        return self.beams.tokens.shape == beams.tokens.shape and self._branches.fits(state)

    def start(self, beams: Beams, state: State, prompt: Int[Tensor, "batch 1"]) -> None:
        """Stand before the first token of a batch."""
        self.beams.copy_(beams)
        self._branches.fill(state)
        self._tokens.copy_(prompt.repeat_interleave(beams.sums.size(1), dim=0))

    def record(self) -> bool:
        """Let `take` replay a step from now on, if one can be recorded; for that it is tried out, so start anew."""
        replay = record(self._step)
        self.take = replay or self._step
        return replay is not None

    def _step(self) -> None:
        scores, _ = self._read(self._tokens, self._branches)
        beams, rows = self._advance(self.beams, scores)
        self._branches.reorder(rows.flatten())
        self._tokens.copy_(beams.newest())
        self.beams.copy_(beams)


def beam_search(
    decoder: Stepper,
    state: State,
    prompt: Int[Tensor, "batch 1"],
    *,
    end: int,
    limits: list[int],
    config: GenerationConfig,
) -> list[list[Hypothesis]]:
    """The finished hypotheses of each sentence, best first, at most `beam_size` of each."""
    return BeamSearch(decoder, end=end, config=config).search(state, prompt, limits)


def _best_first(
    values: Float[Tensor, "batch all"], count: int
) -> tuple[Float[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    ordered, order = values.sort(dim=1, descending=True, stable=True)
    return ordered[:, :count].contiguous(), order[:, :count]


def _rows(
    histories: Int[Tensor, "batch all time"], chosen: Int[Tensor, "batch count"]
) -> Int[Tensor, "batch count time"]:
    return histories.gather(1, chosen[:, :, None].expand(-1, -1, histories.size(2)))


def _divided(is_done: list[bool]) -> tuple[list[int], list[int]]:
    """The places where it is true, and the others."""
    return [i for i, each in enumerate(is_done) if each], [i for i, each in enumerate(is_done) if not each]
