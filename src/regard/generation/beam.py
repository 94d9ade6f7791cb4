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

Dimensions: `batch` sentences, `beam` hypotheses of each, `vocab` tokens.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.generation.config import GenerationConfig
from regard.models.protocols import State, Stepper


@dataclass
class Hypothesis:
    """A way to continue: its tokens, the end left out, and the score it is ranked by."""

    tokens: list[int]
    score: float


@dataclass
class _Sentence:
    """One sentence of the batch while it is being searched."""

    number: int
    limit: int
    open: list[list[int]] = field(default_factory=lambda: [[]])
    finished: list[Hypothesis] = field(default_factory=list)

    def is_done(self, best_open: float, config: GenerationConfig) -> bool:
        if len(self.open[0]) >= self.limit:
            return True
        is_exact = config.stopping == "exact"
        if len(self.finished) < (1 if is_exact else config.beam_size):
            return False
        length = self.limit if is_exact else len(self.open[0]) + 1
        return max(h.score for h in self.finished) >= best_open / length**config.length_penalty


@torch.inference_mode()
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
    beam, device = config.beam_size, prompt.device
    live = [_Sentence(number, limit) for number, limit in enumerate(limits)]
    results: list[list[Hypothesis]] = [[] for _ in limits]
    tokens, sums = prompt, torch.zeros(len(live), 1, device=device)
    while live:
        scores, state = decoder.step(tokens, state)
        totals = sums[:, :, None] + _log_probabilities(scores, sums)
        candidates = totals.flatten(1).topk(min(2 * beam, totals[0].numel()), dim=1)
        vocab_size, width = totals.size(2), totals.size(1)
        parents: list[int] = []
        nexts: list[int] = []
        kept_sums: list[list[float]] = []
        going: list[_Sentence] = []
        rows = zip(live, candidates.values.tolist(), candidates.indices.tolist(), strict=True)
        for place, (sentence, values, indices) in enumerate(rows):
            chosen = _advance(sentence, values, indices, vocab_size, end=end, config=config)
            if not chosen or sentence.is_done(chosen[0].total, config):
                results[sentence.number] = _ranked(sentence, chosen, config)
                continue
            going.append(sentence)
            # A sentence with fewer open hypotheses than its neighbours repeats its worst one, ruled out.
            filler = [_Extension(chosen[-1].parent, chosen[-1].token, -torch.inf)]
            padded = chosen + filler * (beam - len(chosen))
            parents += [place * width + extension.parent for extension in padded]
            nexts += [extension.token for extension in padded]
            kept_sums.append([extension.total for extension in padded])
        live = going
        if live:
            tokens = torch.tensor(nexts, device=device)[:, None]
            sums = torch.tensor(kept_sums, dtype=sums.dtype, device=device)
            state = state.select(torch.tensor(parents, device=device))
    return results


@dataclass
class _Extension:
    """An open hypothesis and the token put behind it."""

    parent: int
    token: int
    total: float


def _log_probabilities(
    scores: Float[Tensor, "rows new vocab"], sums: Float[Tensor, "batch beam"]
) -> Float[Tensor, "batch beam vocab"]:
    last = scores[:, -1]
    last = last if last.dtype == torch.float64 else last.float()
    return last.log_softmax(dim=-1).unflatten(0, sums.shape)


def _advance(
    sentence: _Sentence, values: list[float], indices: list[int], vocab_size: int, *, end: int, config: GenerationConfig
) -> list[_Extension]:
    """Sort the best extensions into those that end here, which are kept, and those that go on."""
    going: list[_Extension] = []
    for total, index in zip(values, indices, strict=True):
        if total == -torch.inf:
            break
        parent, token = divmod(index, vocab_size)
        if token == end:
            length = len(sentence.open[parent]) + 1
            sentence.finished.append(Hypothesis(sentence.open[parent], total / length**config.length_penalty))
        elif len(going) < config.beam_size:
            going.append(_Extension(parent, token, total))
    sentence.open = [[*sentence.open[extension.parent], extension.token] for extension in going]
    return going


def _ranked(sentence: _Sentence, going: list[_Extension], config: GenerationConfig) -> list[Hypothesis]:
    if not sentence.finished:
        best, tokens = going[0].total, sentence.open[0]
        return [Hypothesis(tokens, best / len(tokens) ** config.length_penalty)]
    return sorted(sentence.finished, key=lambda h: -h.score)[: config.beam_size]
