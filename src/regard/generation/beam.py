r"""Beam search: the best few hypotheses are extended in parallel.

Sutskever et al. (2014), arXiv 1409.3215, section 3.2.

**Ranking.** A finished hypothesis $y$ of $n$ tokens, including its end token, has the
score $\log p(y) / n^\alpha$ with $\alpha$ = `length_penalty`. With $\alpha = 1$ it is the
mean log-probability of a token, the usual length normalization (Murray and Chiang,
"Correcting Length Bias in Neural Machine Translation", 2018, arXiv 1808.10006); the
power $\alpha$ is that of `length_penalty` in transformers and of `lenpen` in fairseq.
The penalty of Wu et al. (2016), arXiv 1609.08144, equation 14, is another one:
$((5 + n) / 6)^\alpha$.

**Stopping.** A sentence is finished when

- `enough`: `beam_size` of its hypotheses have ended, and no open one would become
  the best by ending in the next step with probability 1; or
- `exact`: no open hypothesis can become better than the best finished one. Log-
  probabilities only decrease and lengths are limited to $N$, so the score of an open
  hypothesis of log-probability $s$ is at most $s / N^\alpha$. With a beam that contains
  every prefix this finds the best of all sequences of up to $N$ tokens.

and in any case when its limit is reached. If no hypothesis has ended by then, the
best open one is returned; with `truncates`, as for language models, all open ones are
ranked with the finished ones then, by their scores so far.

**Speed.** The hypotheses are in tensors of fixed size, `Beams`, and `advance` extends
them by a token. So a GPU does not wait for the host, and with a `StaticBeamState` a
whole step is captured as a CUDA graph. On a CPU finished sentences leave the batch.

Dimensions: `batch` sentences, `beam` hypotheses of each, `vocab` tokens, `time`
generated tokens; `rows` = batch * beam.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.generation.config import GenerationConfig
from regard.generation.cuda_graphs import capture_cuda_graph
from regard.generation.engine import require_suppressible
from regard.generation.sampling import Constraint, suppress_tokens
from regard.models.protocols import Decoder, DecoderState, StaticBeamState

_SYNC_EVERY = 8
"""Steps on a GPU between two checks whether all sentences are finished, which synchronize."""
_CAPACITY_MULTIPLE = 32
"""The capacity for tokens is rounded up to this, so that one CUDA graph serves similar limits."""
_MAX_GRAPHS = 4
"""Shapes of batches for which a CUDA graph is kept."""
_GROUP = 128
"""Tokens whose maximum is computed before the best extensions are searched."""
_NO_TOKEN = -1
"""After the last token of a hypothesis."""


@dataclass
class Hypothesis:
    """A continuation: its tokens without the end token, and the score by which it is ranked."""

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Beams:
    """The open hypotheses of each sentence, and the best of the finished ones."""

    limits: Int[Tensor, " batch"]
    length: Int[Tensor, ""]
    """Tokens of each open hypothesis."""
    sums: Float[Tensor, "batch beam"]
    """Log-probabilities of the open hypotheses, best first; -inf where there are fewer."""
    tokens: Int[Tensor, "batch beam time"]
    scores: Float[Tensor, "batch beam"]
    """Scores of the finished hypotheses, best first; -inf where there are fewer."""
    finished: Int[Tensor, "batch beam time"]
    num_finished: Int[Tensor, " batch"]
    is_done: Bool[Tensor, " batch"]

    @classmethod
    def initial(
        cls, limits: Sequence[int], config: GenerationConfig, *, capacity: int, device: torch.device
    ) -> "Beams":
        """Return one empty hypothesis of each sentence, with a capacity of so many tokens."""
        batch, beam = len(limits), config.beam_size
        empty = torch.full((batch, beam, capacity), _NO_TOKEN, device=device)
        impossible = torch.full((batch, beam), -torch.inf, device=device)
        return cls(
            limits=torch.tensor(limits, device=device),
            length=torch.zeros((), dtype=torch.long, device=device),
            sums=impossible.index_fill(1, torch.zeros(1, dtype=torch.long, device=device), 0.0),
            tokens=empty,
            scores=impossible,
            finished=empty.clone(),
            num_finished=torch.zeros(batch, dtype=torch.long, device=device),
            is_done=torch.zeros(batch, dtype=torch.bool, device=device),
        )

    def select(self, batch: Int[Tensor, " chosen"]) -> "Beams":
        """Return the beams of these sentences."""
        return self._map(lambda part: part.index_select(0, batch) if part.dim() else part)

    def clone(self) -> "Beams":
        """Return a copy."""
        return self._map(Tensor.clone)

    def newest(self) -> Int[Tensor, "rows 1"]:
        """Return the last token of each open hypothesis."""
        return self.tokens.index_select(2, self.length[None] - 1).view(-1, 1)

    def copy_(self, other: "Beams") -> None:
        """Copy `other` in place."""
        for part in fields(self):
            getattr(self, part.name).copy_(getattr(other, part.name))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of each sentence, best first."""
        return [
            [
                Hypothesis([token for token in tokens if token != _NO_TOKEN], score)
                for tokens, score in zip(*sentence, strict=True)
                if score > -torch.inf
            ]
            for sentence in zip(self.finished.tolist(), self.scores.tolist(), strict=True)
        ]

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Beams":
        return Beams(**{part.name: function(getattr(self, part.name)) for part in fields(self)})


def advance(
    beams: Beams,
    log_probabilities: Float[Tensor, "batch beam vocab"],
    *,
    ends: Int[Tensor, " ends"],
    config: GenerationConfig,
    truncates: bool = False,
) -> tuple[Beams, Int[Tensor, "batch beam"]]:
    """Return the hypotheses extended by one token, and which of the previous ones each extends.

    The best extensions are divided into those that end here, which are kept if they
    are good enough, and those that continue. Twice as many as can continue are
    considered, because half of them may end.
    """
    beam, alpha = config.beam_size, config.length_penalty
    totals, parents, tokens = best_extensions(beams.sums, log_probabilities, 2 * beam)
    is_end = (tokens[:, :, None] == ends).any(dim=2) & (totals > -torch.inf)
    prefixes = _gather_rows(beams.tokens, parents)
    length = beams.length + 1
    penalty = length.to(totals.dtype) ** alpha

    # The sort is stable: of equal scores the earlier one is kept.
    new_scores = (totals / penalty).masked_fill(~is_end | beams.is_done[:, None], -torch.inf)
    scores, order = _best_first(torch.cat([beams.scores, new_scores], dim=1), beam)
    finished = _gather_rows(torch.cat([beams.finished, prefixes], dim=1), order)
    num_finished = beams.num_finished + is_end.sum(dim=1)

    sums, order = _best_first(totals.masked_fill(is_end, -torch.inf), beam)
    tokens, parents = tokens.gather(1, order), parents.gather(1, order)
    open_tokens = _gather_rows(prefixes, order).index_copy_(2, beams.length[None], tokens[:, :, None])

    best_open = sums[:, 0]
    if config.stopping == "exact":
        has_enough, best_length = num_finished >= 1, beams.limits
    else:
        has_enough, best_length = num_finished >= beam, length + 1
    is_settled = has_enough & (scores[:, 0] >= best_open / best_length.to(totals.dtype) ** alpha)
    is_done = is_settled | (best_open == -torch.inf) | (length >= beams.limits)

    if truncates:
        is_cut = (length >= beams.limits) & ~beams.is_done
        cut = (sums / penalty).masked_fill(~is_cut[:, None], -torch.inf)
        scores, order = _best_first(torch.cat([scores, cut], dim=1), beam)
        finished = _gather_rows(torch.cat([finished, open_tokens], dim=1), order)
    else:
        is_unfinished = is_done & ~beams.is_done & (num_finished == 0)
        scores[:, 0] = torch.where(is_unfinished, best_open / penalty, scores[:, 0])
        finished[:, 0] = torch.where(is_unfinished[:, None], open_tokens[:, 0], finished[:, 0])
    after = Beams(beams.limits, length, sums, open_tokens, scores, finished, num_finished, is_done | beams.is_done)
    return after, parents


def best_extensions(
    sums: Float[Tensor, "batch beam"], log_probabilities: Float[Tensor, "batch beam vocab"], count: int
) -> tuple[Float[Tensor, "batch count"], Int[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    """Return the most probable extensions of each sentence, best first: log-probabilities, hypotheses and tokens.

    The best `count` tokens are in the `count` groups of tokens with the highest
    maxima, and a maximum is computed much faster than a top-k.
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
    candidates = torch.cat(
        [(firsts[:, :, None] + numbers[:_GROUP]).flatten(1), rest.flatten().expand(len(sums), -1)], dim=1
    )
    parents = candidates // vocab_size
    totals, chosen = (sums.gather(1, parents) + flat.gather(1, candidates)).topk(count, dim=1)
    return totals, parents.gather(1, chosen), (candidates % vocab_size).gather(1, chosen)


class BeamSearch:
    """Beam search with one decoder; a CUDA graph captured for one batch is used for the next of similar size.

    `model` is the model for inference: sources are best encoded by `search.model`.
    A hypothesis ends with the token `end`, or one of several. Tokens in `suppress` are
    never generated. With `truncates`, a hypothesis may also end with its limit.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        end: int | Collection[int],
        config: GenerationConfig,
        suppress: Sequence[int] = (),
        truncates: bool = False,
    ) -> None:
        ends = sorted({end} if isinstance(end, int) else set(end))
        require_suppressible(suppress, ends=ends, vocab_size=model.vocab_size)
        self.model = model.for_inference(quantization=config.quantization)
        self.config, self._truncates = config, truncates
        self._ends = torch.tensor(ends, dtype=torch.long, device=model.device)
        self._suppressed = torch.tensor(suppress, device=model.device) if suppress else None
        self._kept: list[_StaticSearch] = []
        self._use_cuda_graphs = True

    def search(
        self,
        state: DecoderState,
        prompt: Int[Tensor, "batch 1"],
        limits: Sequence[int],
        *,
        constraint: Constraint | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of each sentence, best first, at most `beam_size` of each.

        Args:
            state: Before the prompt.
            prompt: The token of each sentence after which it is continued, such as the start token.
            limits: The most tokens of each sentence, its end included.
            constraint: Which tokens may come next, for each sentence; their log-probabilities are unchanged.
        """
        if not limits:
            return []
        static = self._static_search(state, prompt, limits) if prompt.is_cuda and constraint is None else None
        if static is None:
            return self.search_by_selection(self.model.beam_state(state), prompt, limits, constraint=constraint)
        return static.run(state, prompt, limits)

    @torch.inference_mode()
    def search_by_selection(
        self,
        state: DecoderState,
        prompt: Int[Tensor, "batch 1"],
        limits: Sequence[int],
        *,
        constraint: Constraint | None = None,
    ) -> list[list[Hypothesis]]:
        """Search by `DecoderState.select`; finished sentences leave the batch."""
        device, every = prompt.device, _SYNC_EVERY if prompt.is_cuda else 1
        results: list[list[Hypothesis]] = [[] for _ in limits]
        live, num_steps = list(range(len(limits))), max(limits)
        beams = Beams.initial(limits, self.config, capacity=num_steps, device=device)
        tokens = prompt
        for number in range(1, num_steps + 1):
            logits, state = self.model.step(tokens, state)
            beams, rows = self._advance(beams, logits, constraint)
            if number % every == 0 or number == num_steps:
                done, unfinished = _split_indices(beams.is_done.tolist())
                if done:
                    found = beams.select(torch.tensor(done, device=device)).hypotheses()
                    for index, hypotheses in zip(done, found, strict=True):
                        results[live[index]] = hypotheses
                    if not unfinished:
                        break
                    live, kept = [live[index] for index in unfinished], torch.tensor(unfinished, device=device)
                    beams, rows = beams.select(kept), rows.index_select(0, kept)
            tokens, state = beams.newest(), state.select(rows.flatten())
            if constraint is not None:
                constraint = constraint.select(rows.flatten()).advance(tokens[:, 0])
        return results

    @torch.inference_mode()
    def search_in_place(
        self, state: DecoderState, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """Search in tensors of fixed size, which the model must have a `StaticBeamState` for."""
        static = self._static_search(state, prompt, limits)
        assert static is not None, "this model has no static state for beam search"
        return static.run(state, prompt, limits)

    @torch.inference_mode()
    def _static_search(
        self, state: DecoderState, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]
    ) -> "_StaticSearch | None":
        """Return a search of this shape, an existing one if there is; None where the model has no static state."""
        capacity = -(-max(limits) // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
        beams = Beams.initial(limits, self.config, capacity=capacity, device=prompt.device)
        for kept in self._kept:
            if kept.fits(beams, state):
                return kept
        del self._kept[: 1 - _MAX_GRAPHS]  # frees their memory before more is allocated
        static_state = self.model.static_beam_state(state, self.config.beam_size, capacity)
        if static_state is None:
            return None
        search = _StaticSearch(self, beams, static_state)
        search.reset(state, prompt, limits)
        if prompt.is_cuda and self._use_cuda_graphs:
            self._use_cuda_graphs = search.capture()
        self._kept.append(search)
        return search

    def _advance(
        self, beams: Beams, logits: Float[Tensor, "rows new vocab"], constraint: Constraint | None = None
    ) -> tuple[Beams, Int[Tensor, "batch beam"]]:
        """Return the hypotheses extended by one token, and the row of the state that each extends."""
        batch, beam = beams.sums.shape
        width = logits.size(0) // batch  # before the first token there may be one row for all hypotheses
        dtype = torch.promote_types(logits.dtype, torch.float32)
        last = suppress_tokens(logits[:, -1].log_softmax(dim=-1, dtype=dtype), self._suppressed)
        if constraint is not None:
            last = last.masked_fill(~constraint.allowed(), -torch.inf)
        last = last.unflatten(0, (batch, width)).expand(batch, beam, -1)
        beams, parents = advance(beams, last, ends=self._ends, config=self.config, truncates=self._truncates)
        firsts = torch.arange(0, batch * width, width, device=parents.device)
        return beams, firsts[:, None] + parents.clamp(max=width - 1)


class _StaticSearch:
    """A search in tensors that keep their addresses, so that a step can be captured as a CUDA graph."""

    def __init__(self, search: BeamSearch, beams: Beams, state: StaticBeamState) -> None:
        self._search, self._beams, self._state = search, beams.clone(), state
        self._tokens = torch.zeros(beams.sums.numel(), 1, dtype=torch.long, device=beams.sums.device)
        self._advance = self._step

    def fits(self, beams: Beams, state: DecoderState) -> bool:
        return self._beams.tokens.shape == beams.tokens.shape and self._state.fits(state)

    def capture(self) -> bool:
        """Capture a step as a CUDA graph, if possible; this runs steps, so that `reset` must follow."""
        replay = capture_cuda_graph(self._step)
        self._advance = replay or self._step
        return replay is not None

    def reset(self, state: DecoderState, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]) -> None:
        """Restart before the first token of a batch."""
        capacity, device = self._beams.tokens.size(2), prompt.device
        self._beams.copy_(Beams.initial(limits, self._search.config, capacity=capacity, device=device))
        self._state.reset(state)
        self._tokens.copy_(prompt.repeat_interleave(self._beams.sums.size(1), dim=0))

    @torch.inference_mode()
    def run(self, state: DecoderState, prompt: Int[Tensor, "batch 1"], limits: Sequence[int]) -> list[list[Hypothesis]]:
        self.reset(state, prompt, limits)
        for number in range(1, max(limits) + 1):
            self._advance()
            if number % _SYNC_EVERY == 0 and self._beams.is_done.all():
                break
        return self._beams.hypotheses()

    def _step(self) -> None:
        logits, _ = self._search.model.step(self._tokens, self._state)
        beams, rows = self._search._advance(self._beams, logits)
        self._state.reorder(rows.flatten())
        self._tokens.copy_(beams.newest())
        self._beams.copy_(beams)


def _best_first(
    values: Float[Tensor, "batch all"], count: int
) -> tuple[Float[Tensor, "batch count"], Int[Tensor, "batch count"]]:
    ordered, order = values.sort(dim=1, descending=True, stable=True)
    return ordered[:, :count].contiguous(), order[:, :count]


def _gather_rows(
    tokens: Int[Tensor, "batch all time"], rows: Int[Tensor, "batch count"]
) -> Int[Tensor, "batch count time"]:
    return tokens.gather(1, rows[:, :, None].expand(-1, -1, tokens.size(2)))


def _split_indices(is_done: list[bool]) -> tuple[list[int], list[int]]:
    """Return the indices where `is_done` is True, and the others."""
    return [i for i, each in enumerate(is_done) if each], [i for i, each in enumerate(is_done) if not each]
