r"""Speculative decoding: a cheap draft guesses ahead, and the model reads all guesses at once.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023). https://arxiv.org/abs/2211.17192
Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023). https://arxiv.org/abs/2302.01318
Saxena, "Prompt Lookup Decoding" (2023): the draft is what followed the same words before.
https://github.com/apoorvumang/prompt-lookup-decoding

The draft proposes tokens $x_1 \dots x_k$, each drawn from its distribution
$q_i$. One step of the model gives the distributions $p_1 \dots p_{k+1}$ that it
would have drawn from itself. Guess $x_i$ is taken with probability

$$ \min(1, p_i(x_i) / q_i(x_i)), $$

and the first that is not taken is replaced by a draw from
$\max(0, p_i - q_i)$, normalised. What is written then has exactly the
distribution that the model alone would write with (Leviathan et al., A.1):
token $x$ comes out with probability $\min(p, q)(x)$ by being taken, and with
$p(x) - \min(p, q)(x)$ by replacing another. When all are taken, one more is
drawn from $p_{k+1}$.

Dimensions: `new` tokens read at once, `guesses` of the draft, `vocab` tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError
from regard.generation.config import GenerationConfig
from regard.generation.engine import Request, check_request, reach
from regard.generation.sampling import distribution, pick, precise
from regard.models.families import AnyModel
from regard.models.protocols import State
from regard.models.transformer_states import TransformerState

Draw = Callable[[], float]
"""A number that is uniform on [0, 1), a fresh one at each call."""


@dataclass(frozen=True)
class LookUp:
    """A draft that costs nothing: what followed the last time that the newest tokens stood there.

    It looks for the `longest` newest tokens first, then for ever fewer of them.
    It proposes nothing where the newest token has not occurred before.
    """

    longest: int = 3

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow `text`.

        Example:
            >>> LookUp().propose([5, 6, 7, 8, 5, 6], count=3)
            [7, 8, 5]
        """
        for length in range(min(self.longest, len(text) - 1), 0, -1):
            newest = list(text[-length:])
            for start in range(len(text) - length - 1, -1, -1):
                if list(text[start : start + length]) == newest:
                    return list(text[start + length : start + length + count])
        return []


class Round(NamedTuple):
    """What one step of the model gave."""

    tokens: list[int]
    """The guesses that were taken, and one token more; the end token and what follows it are left out."""
    num_proposed: int
    num_accepted: int


@dataclass(frozen=True)
class Speculation:
    """A text, and what the draft had to do with it."""

    tokens: list[int]
    num_steps: int
    """Of the model; plain writing takes one for each token."""
    num_proposed: int
    num_accepted: int


def speculate(
    model: AnyModel,
    draft: AnyModel | LookUp,
    prompt: list[int],
    *,
    limit: int,
    end: int | None,
    config: GenerationConfig,
    seed: int = 0,
    lookahead: int = 4,
    source: list[int] | None = None,
) -> Speculation:
    """Write up to `limit` tokens behind `prompt`, or to the token `end`, which is not returned.

    Greedy, the text is the one that plain greedy writing gives. Sampled, it has the
    same distribution as plain sampling, but not the same text for the same seed.
    `draft` is a smaller model of the same vocabulary, or a `LookUp`; it proposes
    up to `lookahead` tokens at a time.
    """
    rounds = list(
        rounds_of(
            model, draft, prompt, limit=limit, end=end, config=config, seed=seed, lookahead=lookahead, source=source
        )
    )
    return Speculation(
        tokens=[token for one in rounds for token in one.tokens],
        num_steps=len(rounds),
        num_proposed=sum(one.num_proposed for one in rounds),
        num_accepted=sum(one.num_accepted for one in rounds),
    )


def rounds_of(
    model: AnyModel,
    draft: AnyModel | LookUp,
    prompt: list[int],
    *,
    limit: int,
    end: int | None,
    config: GenerationConfig,
    seed: int = 0,
    lookahead: int = 4,
    source: list[int] | None = None,
) -> Iterator[Round]:
    """What `speculate` writes, as it is written: a few tokens at a time."""
    request = Request(prompt, limit, seed, source)
    check_request(model, request)
    if config.beam_size > 1:
        raise ConfigError(f"speculation writes one text: beam_size must be 1, got {config.beam_size}")
    if lookahead < 1:
        raise ConfigError(f"lookahead must be at least 1, got {lookahead}")
    if not isinstance(draft, LookUp):
        sizes = model.embedding.num_embeddings, draft.embedding.num_embeddings
        if sizes[0] != sizes[1]:
            raise ConfigError(f"the draft must have the vocabulary of the model, got {sizes[1]} and {sizes[0]} tokens")
        check_request(draft, request)
    return _write(model, draft, request, end=end, config=config, lookahead=lookahead)


def _write(
    model: AnyModel,
    draft: AnyModel | LookUp,
    request: Request,
    *,
    end: int | None,
    config: GenerationConfig,
    lookahead: int,
) -> Iterator[Round]:
    drafter = _LookUpDraft(draft, model) if isinstance(draft, LookUp) else _ModelDraft(draft, request.source, config)
    reader, text = _Reader(model, request.source), list(request.prompt)
    draw = np.random.Generator(np.random.Philox(request.seed)).random
    last = len(request.prompt) + request.limit
    furthest, _ = reach(model)
    if furthest is not None:
        last = min(last, furthest + 1)  # the last token that is written need not be read any more
    while len(text) < last:
        with torch.inference_mode():
            guesses, q = drafter.propose(text, min(lookahead, last - len(text) - 1), draw)
            p = distribution(reader.read_to(text, guesses)[-len(guesses) - 1 :], config).double()
            num_accepted, token = accept(p, q, guesses, draw)
            new = [*guesses[:num_accepted], token]
            reader.forget_from(len(text) + num_accepted)
        is_over = end in new
        if is_over:
            new = new[: new.index(end)]
        text += new
        yield Round(new, len(guesses), num_accepted)
        if is_over:
            return


def accept(
    p: Float[Tensor, "new vocab"], q: Sequence[Float[Tensor, " vocab"]], guesses: Sequence[int], draw: Draw
) -> tuple[int, int]:
    """How many of the guesses are taken, and the token behind them.

    `p` has a row for each guess and one more; `q` are the distributions that the guesses were drawn from.
    """
    for place, (guess, proposed) in enumerate(zip(guesses, q, strict=True)):
        # With equality left out, what the model would never write is never taken.
        if draw() * float(proposed[guess]) < float(p[place, guess]):
            continue
        rest = (p[place] - proposed).clamp(min=0.0)
        # Where p and q are equal but for rounding nothing is left, and either will do.
        return place, _pick_one(rest if rest.sum() > 0 else p[place], draw)
    return len(guesses), _pick_one(p[-1], draw)


def _pick_one(weights: Float[Tensor, " vocab"], draw: Draw) -> int:
    return int(pick(weights[None], torch.tensor([draw()], dtype=weights.dtype, device=weights.device)))


class _LookUpDraft:
    """A `LookUp` as a draft: it is certain of what it proposes."""

    def __init__(self, lookup: LookUp, model: AnyModel) -> None:
        self._lookup, self._like = lookup, model.embedding.weight

    def propose(self, text: Sequence[int], count: int, draw: Draw) -> tuple[list[int], list[Float[Tensor, " vocab"]]]:
        guesses = self._lookup.propose(text, count) if count else []
        certain = torch.zeros(len(guesses), self._like.size(0), dtype=torch.float64, device=self._like.device)
        for row, guess in zip(certain, guesses, strict=True):
            row[guess] = 1.0
        return guesses, list(certain)


class _ModelDraft:
    """A smaller model as a draft, drawing as the larger one would draw."""

    def __init__(self, model: AnyModel, source: list[int] | None, config: GenerationConfig) -> None:
        self._reader, self._config = _Reader(model, source), config
        self._furthest, _ = reach(model)

    def propose(self, text: Sequence[int], count: int, draw: Draw) -> tuple[list[int], list[Float[Tensor, " vocab"]]]:
        """Draw tokens one after the other; none where the draft's own positions end."""
        if self._furthest is not None:
            count = max(0, min(count, self._furthest - len(text) + 1))
        self._reader.forget_from(len(text) - 1)
        guesses: list[int] = []
        q: list[Tensor] = []
        while len(guesses) < count:
            q.append(distribution(self._reader.read_to(text, guesses)[-1:], self._config)[0].double())
            guesses.append(_pick_one(q[-1], draw))
        return guesses, q


class _Reader:
    """A model, and its state behind the text that it has read; it can forget the newest tokens."""

    def __init__(self, model: AnyModel, source: list[int] | None) -> None:
        self._model, self._device = model, model.embedding.weight.device
        with torch.inference_mode():
            memory = None if source is None else model.encode(torch.tensor([source], device=self._device))
            self._state: State = model.start(memory)
        self._num_read = 0
        self._kept: tuple[int, State] | None = None
        """Where reading cannot be taken back: an earlier state, and how many tokens stand behind it."""

    def read_to(self, text: Sequence[int], guesses: Sequence[int]) -> Float[Tensor, "new vocab"]:
        """The scores behind each token that has not been read yet; that may be a part of `text` and the guesses."""
        if not isinstance(self._state, TransformerState) and self._num_read <= len(text):
            self._kept = self._num_read, self._copy(self._state)
        new = [*text, *guesses][self._num_read :]
        scores, self._state = self._model.step(torch.tensor([new], device=self._device), self._state)
        self._num_read += len(new)
        return precise(scores[0])

    def forget_from(self, place: int) -> None:
        """Forget what was read at `place` and behind it, and more where less is impossible."""
        if self._num_read <= place:
            return
        if isinstance(self._state, TransformerState):
            rewind(self._state, self._num_read - place)
            self._num_read = place
        else:
            assert self._kept is not None
            self._num_read, self._state = self._kept[0], self._copy(self._kept[1])

    def _copy(self, state: State) -> State:
        return state.select(torch.zeros(1, dtype=torch.long, device=self._device))


def rewind(state: TransformerState, num_tokens: int) -> None:
    """Take the newest tokens back: what was remembered of them is written over by the next ones."""
    for cache in state.caches:
        cache.length -= num_tokens
