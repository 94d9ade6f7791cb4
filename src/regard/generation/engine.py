"""Continuous batching: many requests are generated in parallel, and join and leave a running batch.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022), section 3.1:
sequences join and leave between two steps, and none waits for the longest.
https://www.usenix.org/conference/osdi22/presentation/yu

A request waits in a queue until a slot is free. Its prompt, except for the last
token, is then processed and its state copied into the slot; from there on all slots
take the same steps. A step processes the newest token of each row and chooses the
next. The batch has as many slots, and the slots as much capacity, as the current
requests need: when that changes, the rows are copied to another batch.

Dimensions: `batch` sequences, `time` positions.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.errors import ConfigError, DataError
from regard.generation.batch import MAX_STEPS, BatchShape, DecodingBatch
from regard.generation.config import GenerationConfig
from regard.models.protocols import Decoder, DecoderState, EncoderOutput

_MIN_CAPACITY, _MIN_SOURCE = 64, 32
_LOOKAHEAD = 8
"""Waiting prompts that are processed together with the current ones, if they have the same length."""
_PREFILL_TOKENS = {"cpu": 4_096, "cuda": 8_192}
"""The most prompt tokens that are processed at once: each has logits for the whole vocabulary."""
_MIN_SHARED_PREFIX = 32
"""Tokens that all prompts of a run must have in common to be processed once."""
_GPU_CAPACITY_AHEAD = 512
"""Tokens for which a row on a GPU has capacity before it is copied to a larger batch."""
_MAX_GRAPHS = 16
"""Batches that are kept for the next time their shape is needed, where a CUDA graph was captured."""


@dataclass(frozen=True)
class Request:
    """A prompt to be continued; with an encoder, the source that it belongs to."""

    prompt: list[int]
    """At least one token; of an encoder-decoder the start token."""
    limit: int
    """The most tokens to generate; fewer where the learned positions of the model end."""
    seed: int = 0
    """Token t is sampled by a random number that depends on the seed and on t alone, not on other requests."""
    source: list[int] | None = None
    encoded: EncoderOutput | None = None
    """The encoded source, given instead of `source`: one row without padding."""

    @property
    def source_length(self) -> int:
        return len(self.source or ()) if self.encoded is None else self.encoded.hidden_states.size(1)


class NewTokens(NamedTuple):
    """Newly generated tokens of a request."""

    request_id: int
    """The id that `Engine.submit` returned."""
    tokens: list[int]
    """The next tokens, without the end token; possibly none in the last ones of a request."""
    is_last: bool
    """Whether the request is finished."""


@dataclass
class _Sequence:
    """A request in progress."""

    request_id: int
    request: Request
    limit: int
    stream: np.random.Generator
    num_generated: int = 0
    state: DecoderState | None = None
    """The state after its prompt, from its processing until it has a slot; it may be one row of several."""
    row: int = 0
    source_length: int = 0
    """Including padding."""

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.limit - self.num_generated

    @property
    def num_processed(self) -> int:
        """Tokens that are part of its state: all but the newest."""
        return len(self.request.prompt) + self.num_generated - 1


@dataclass(frozen=True, eq=False)
class _SharedPrefix:
    """A prefix that is processed once, except for its last token, since a prompt may be equal to it."""

    tokens: list[int]
    source: list[int] | None
    state: DecoderState

    def is_prefix_of(self, request: Request) -> bool:
        is_same = request.encoded is None and self.source == request.source
        return is_same and request.prompt[: len(self.tokens)] == self.tokens


@dataclass
class _Outbox:
    """Generated tokens that are not yet returned."""

    shared: list[NewTokens] = field(default_factory=list)
    claimed: dict[int, list[NewTokens]] = field(default_factory=dict)
    """Those of requests that `stream` and `run` return, by id."""

    def add(self, new: NewTokens) -> None:
        self.claimed.get(new.request_id, self.shared).append(new)

    def drop(self, request_id: int) -> None:
        """Remove the tokens of this request; an iterator over them ends."""
        self.shared = [new for new in self.shared if new.request_id != request_id]
        if request_id in self.claimed:
            self.claimed[request_id][:] = [NewTokens(request_id, [], is_last=True)]


class Engine:
    """Generates for up to `num_slots` requests at a time; each result is that of the request alone.

    A request ends with the token `end`, or one of several, or at its limit. Tokens in
    `suppress` are never generated. An engine belongs to one thread.

    Args:
        model: A decoder in eval mode; fastest after `prepare_for_inference`.
        config: How tokens are chosen; `beam_size` must be 1.
        end: The end token or tokens; None to generate up to the limits.
        num_slots: The most requests that are generated in parallel.
        suppress: Tokens that are never generated, such as padding.

    Example:
        >>> from regard.models import Transformer
        >>> model = Transformer.from_preset("gpt-tiny", vocab_size=5, num_layers=1).eval()
        >>> engine = Engine(model, GenerationConfig(), end=None)
        >>> [len(tokens) for tokens in engine.run([Request([1], limit=3), Request([2, 4], limit=5)])]
        [3, 5]
    """

    def __init__(
        self,
        model: Decoder,
        config: GenerationConfig,
        *,
        end: int | Collection[int] | None,
        num_slots: int = 32,
        suppress: Sequence[int] = (),
    ) -> None:
        if config.beam_size > 1:
            raise ConfigError(
                f"an engine generates one sequence per request: beam_size must be 1, got {config.beam_size}"
            )
        if num_slots < 1:
            raise ConfigError(f"num_slots must be at least 1, got {num_slots}")
        if not model.config.decoder_depth:
            raise ConfigError("an engine needs a model with a decoder, got an encoder")
        self._ends = frozenset([end] if isinstance(end, int) else end or ())
        require_suppressible(suppress, ends=self._ends, vocab_size=model.vocab_size)
        self._model = model.for_inference(quantization=config.quantization)
        self._config, self._num_slots, self._suppress = config, num_slots, tuple(suppress)
        self._device = model.device
        self._use_cuda_graphs = self._device.type == "cuda"
        self._max_positions = model.config.max_target_positions
        self._next_id = 0
        self._queue: deque[_Sequence] = deque()
        self._rows: dict[int, _Sequence] = {}
        """The sequences that are being generated, by slot."""
        self._batch: DecodingBatch | None = None
        self._kept: OrderedDict[BatchShape, DecodingBatch] = OrderedDict()
        self._prefixes: list[_SharedPrefix] = []
        self._last_kept: _SharedPrefix | None = None
        self._outbox = _Outbox()
        self._unused = Request([0], limit=1, source=[0] if model.config.encoder_depth else None)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being generated or waiting."""
        return not self._rows and not self._queue

    def submit(self, request: Request) -> int:
        """Add a request to the queue; returns its id, by which `advance` labels its tokens."""
        check_request(self._model, request)
        if request.encoded is not None:
            blank = torch.zeros_like(request.encoded.hidden_states[:, :1])
            self._unused = Request([0], limit=1, encoded=EncoderOutput(blank, None))
        request_id, self._next_id = self._next_id, self._next_id + 1
        limit = request.limit
        if self._max_positions is not None:
            # The last token is not processed, so it needs no position.
            limit = min(limit, self._max_positions - len(request.prompt) + 1)
        stream = np.random.Generator(np.random.Philox(request.seed))
        self._queue.append(_Sequence(request_id, request, limit, stream))
        return request_id

    def cancel(self, request_id: int) -> None:
        """Stop generating for this request and return no more of its tokens; a finished one is not affected."""
        self._queue = deque(sequence for sequence in self._queue if sequence.request_id != request_id)
        self._rows = {slot: sequence for slot, sequence in self._rows.items() if sequence.request_id != request_id}
        self._outbox.drop(request_id)

    def share(self, prefix: list[int], *, source: list[int] | None = None) -> None:
        """Process a common prefix of prompts once; of requests that begin with it only the rest is processed."""
        check_request(self._model, Request(prefix, limit=1, source=source))
        self._prefixes.append(self._process_prefix(prefix, source))

    def keep(self, prompt: list[int]) -> None:
        """Process a prompt, and keep its state for requests that begin with it, such as the next turn of a chat.

        Where it begins with the one that was kept before, only the rest is processed; that one is dropped.
        """
        check_request(self._model, Request(prompt, limit=1))
        kept = self._process_prefix(prompt, None)
        self._prefixes = [*(prefix for prefix in self._prefixes if prefix is not self._last_kept), kept]
        self._last_kept = kept

    def advance(self) -> list[NewTokens]:
        """Admit waiting requests and take a step or a few; returns the tokens generated since the last call.

        These are one token or a few for each running request, and none if the engine is idle.
        """
        self._generate()
        new, self._outbox.shared = self._outbox.shared, []
        return new

    def stream(self, request: Request) -> Iterator[int]:
        """Return the tokens of a request as they are generated, while other requests continue.

        Closing the iterator before its end cancels the request.
        """
        return self._tokens_of(self._claim(request))

    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return the tokens of each request, in order; a common prefix of all prompts is processed once."""
        for request in requests:
            check_request(self._model, request)
        shared = self._common_prefix(requests)
        self._prefixes += shared
        # Long ones first: those of similar length are then processed and generated together.
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt) - requests[i].source_length)
        ids = {index: self._claim(requests[index]) for index in order}
        try:
            return [list(self._tokens_of(ids[index])) for index in range(len(requests))]
        finally:
            for request_id in ids.values():
                self._release(request_id)
            self._prefixes = [prefix for prefix in self._prefixes if prefix not in shared]

    def _claim(self, request: Request) -> int:
        """Submit a request whose tokens `advance` does not return."""
        request_id = self.submit(request)
        self._outbox.claimed[request_id] = []
        return request_id

    def _release(self, request_id: int) -> None:
        self.cancel(request_id)
        self._outbox.claimed.pop(request_id, None)

    def _tokens_of(self, request_id: int) -> Iterator[int]:
        pending = self._outbox.claimed[request_id]
        try:
            is_finished = False
            while not is_finished:
                while not pending:
                    self._generate()
                new = pending.pop(0)
                is_finished = new.is_last
                yield from new.tokens
        finally:
            self._release(request_id)

    @torch.inference_mode()
    def _generate(self) -> None:
        """Fill free slots, take a step or a few, and record the generated tokens."""
        if self.is_idle:
            return
        num_free = self._num_slots - len(self._rows)
        joining = [self._queue.popleft() for _ in range(min(num_free, len(self._queue)))]
        self._process_prompts(joining)
        num_steps = self._num_steps([*self._rows.values(), *joining])
        batch = self._resize_batch(joining, num_steps)
        self._join(batch, joining)
        if (limit := self._max_positions) is not None:
            # Unused slots take the same steps, and must not exceed the learned positions either.
            unused = [slot for slot in range(batch.shape.num_slots) if slot not in self._rows]
            if full := [slot for slot in unused if batch.lengths[slot] + num_steps > limit]:
                batch.clear(full)
        tokens = batch.run(num_steps, self._draws(batch, num_steps))
        for slot, sequence in list(self._rows.items()):
            self._record(slot, sequence, tokens[slot])

    def _record(self, slot: int, sequence: _Sequence, tokens: list[int]) -> None:
        tokens = tokens[: sequence.num_left]
        is_ended = not self._ends.isdisjoint(tokens)
        tokens = list(takewhile(lambda token: token not in self._ends, tokens)) if is_ended else tokens
        sequence.num_generated += len(tokens)
        is_last = is_ended or sequence.num_left == 0
        self._outbox.add(NewTokens(sequence.request_id, tokens, is_last))
        if is_last:
            del self._rows[slot]

    def _num_steps(self, sequences: Sequence[_Sequence]) -> int:
        """Return how many steps to take before the host reads the tokens."""
        if self._device.type == "cpu":
            return 1
        most = MAX_STEPS // 2 if self._queue else MAX_STEPS
        num_steps = min(most, max(sequence.num_left for sequence in sequences))
        if self._max_positions is None:
            return num_steps
        return min(num_steps, *(self._max_positions - sequence.num_processed for sequence in sequences))

    def _draws(self, batch: DecodingBatch, num_steps: int) -> NDArray[np.float64] | None:
        if self._config.temperature == 0:
            return None
        draws = np.zeros((num_steps, batch.shape.num_slots))
        for slot, sequence in self._rows.items():
            draws[:, slot] = sequence.stream.random(num_steps)
        return draws

    def _resize_batch(self, joining: Sequence[_Sequence], num_steps: int) -> DecodingBatch:
        """Return the smallest batch for all sequences; running ones are copied to it."""
        live, now = list(self._rows.values()), self._batch
        shape = self._shape_for([*live, *joining], num_steps)
        if now is not None and live:
            shape = shape._replace(source_length=max(shape.source_length, now.shape.source_length))
            fits = now.shape.capacity >= shape.capacity and now.shape.source_length >= shape.source_length
            if fits and now.shape.num_slots == shape.num_slots:
                return now
        if now is not None and now.shape == shape:
            return now
        self._batch = self._batch_of(shape)
        if now is not None and live:
            self._batch.copy_from(range(len(live)), now, list(self._rows))
            self._rows = dict(enumerate(live))
        return self._batch

    def _shape_for(self, sequences: Sequence[_Sequence], num_steps: int) -> BatchShape:
        # A CUDA graph serves one shape only, so that a GPU gets more capacity in advance.
        ahead = num_steps if self._device.type == "cpu" else max(num_steps, _GPU_CAPACITY_AHEAD)
        needed = max(sequence.num_processed + min(ahead, sequence.num_left) for sequence in sequences)
        capacity = round_up_capacity(needed, least=_MIN_CAPACITY)
        longest = max(sequence.source_length for sequence in sequences)
        return BatchShape(
            num_slots=min(1 << (len(sequences) - 1).bit_length(), self._num_slots),
            capacity=capacity if self._max_positions is None else min(capacity, self._max_positions),
            source_length=round_up_capacity(longest, least=_MIN_SOURCE) if longest else 0,
        )

    def _batch_of(self, shape: BatchShape) -> DecodingBatch:
        if shape in self._kept:
            self._kept.move_to_end(shape)
            return self._kept[shape]
        batch = DecodingBatch(
            self._model,
            self._config,
            shape,
            # With an encoder, unused slots attend to a source of one token.
            initial_state=self._initial_state([self._unused]),
            use_cuda_graph=self._use_cuda_graphs,
            suppress=self._suppress,
        )
        self._use_cuda_graphs = batch.has_graph
        if batch.has_graph:
            self._kept[shape] = batch
            if len(self._kept) > _MAX_GRAPHS:
                self._kept.popitem(last=False)
        return batch

    def _join(self, batch: DecodingBatch, joining: Sequence[_Sequence]) -> None:
        """Copy the states of new sequences into free slots, and the last tokens of their prompts before them."""
        if not joining:
            return
        free = [slot for slot in range(batch.shape.num_slots) if slot not in self._rows]
        taken = dict(zip(free, joining, strict=False))
        for _, group in groupby(taken.items(), key=lambda item: id(item[1].state)):
            slots, sequences = zip(*group, strict=True)
            state, rows = sequences[0].state, [sequence.row for sequence in sequences]
            assert state is not None
            batch.put(slots, state.select(self._tensor(rows)), [sequence.num_processed for sequence in sequences])
        batch.tokens[self._tensor(list(taken)), 0] = self._tensor([s.request.prompt[-1] for s in joining])
        for sequence in joining:
            sequence.state = None
        self._rows.update(taken)

    def _process_prompts(self, joining: Sequence[_Sequence]) -> None:
        """Process the prompts of new sequences, except for the last token, those of equal length together."""
        new = [sequence for sequence in joining if sequence.state is None]
        if new:
            ahead = islice(self._queue, _LOOKAHEAD)
            new += [sequence for sequence in ahead if sequence.state is None]
        prefixes = {sequence.request_id: self._prefix_of(sequence.request) for sequence in new}
        groups: defaultdict[tuple[int, int], list[_Sequence]] = defaultdict(list)
        for sequence in new:
            groups[len(sequence.request.prompt), id(prefixes[sequence.request_id])].append(sequence)
        for _, group in sorted(groups.items()):
            width = max(len(sequence.request.prompt) + sequence.request.source_length for sequence in group)
            at_once = max(1, _PREFILL_TOKENS[self._device.type] // width)
            for first in range(0, len(group), at_once):
                self._process(group[first : first + at_once], prefixes[group[0].request_id])

    def _process(self, group: Sequence[_Sequence], prefix: "_SharedPrefix | None") -> None:
        """Process prompts of one length that begin with the same shared prefix, or with none."""
        if prefix is None:
            known, state = 0, self._initial_state([sequence.request for sequence in group])
        else:
            known, state = len(prefix.tokens) - 1, prefix.state.select(self._tensor([0] * len(group)))
        rest = [sequence.request.prompt[known:-1] for sequence in group]
        if rest[0]:
            _, state = self._model.step(self._tensor(rest), state)
        longest = max(sequence.request.source_length for sequence in group)
        for row, sequence in enumerate(group):
            sequence.state, sequence.row, sequence.source_length = state, row, longest

    def _initial_state(self, requests: Sequence[Request]) -> DecoderState:
        """Return the state before the first token of these requests."""
        encoded = [request.encoded.hidden_states for request in requests if request.encoded is not None]
        if encoded:
            return self._model.initial_state(EncoderOutput(torch.cat(encoded), None))
        given = [torch.tensor(request.source) for request in requests if request.source is not None]
        if not given:
            return self._model.initial_state(batch_size=len(requests))
        lengths = torch.tensor([len(source) for source in given])
        is_padded = bool((lengths != lengths[0]).any())
        source = pad_sequence(given, batch_first=True).to(self._device)
        return self._model.initial_state(self._model.encode(source, lengths.to(self._device) if is_padded else None))

    @torch.inference_mode()
    def _process_prefix(self, prefix: list[int], source: list[int] | None) -> _SharedPrefix:
        request = Request(prefix, limit=1, source=source)
        known = self._prefix_of(request)
        if known is None:
            rest, state = prefix[:-1], self._initial_state([request])
        else:
            rest, state = prefix[len(known.tokens) - 1 : -1], known.state.select(self._tensor([0]))
        if rest:
            _, state = self._model.step(self._tensor([rest]), state)
        return _SharedPrefix(prefix, source, state)

    def _prefix_of(self, request: Request) -> _SharedPrefix | None:
        """Return the longest shared prefix of a prompt."""
        fitting = [prefix for prefix in self._prefixes if prefix.is_prefix_of(request)]
        return max(fitting, key=lambda prefix: len(prefix.tokens), default=None)

    def _common_prefix(self, requests: Sequence[Request]) -> list[_SharedPrefix]:
        """Process the common prefix of all prompts, where it is long enough."""
        is_shared = all(request.source == requests[0].source and request.encoded is None for request in requests)
        if len(requests) < 2 or not is_shared:
            return []
        # The common prefix of all is that of the first and the last in lexicographic order.
        first, last = min(request.prompt for request in requests), max(request.prompt for request in requests)
        prefix = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))]
        if len(prefix) < _MIN_SHARED_PREFIX:
            return []
        return [self._process_prefix(prefix, requests[0].source)]

    def _tensor(self, numbers: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


def round_up_capacity(needed: int, *, least: int) -> int:
    """Return the first of least, 1.5 least, 2 least, 3 least, 4 least, ... that is not below `needed`.

    Example:
        >>> [round_up_capacity(needed, least=64) for needed in (1, 64, 65, 97, 129, 200)]
        [64, 64, 96, 128, 192, 256]
    """
    capacity = least
    while capacity < needed:
        if needed <= capacity * 3 // 2:
            return capacity * 3 // 2
        capacity *= 2
    return capacity


def check_request(model: Decoder, request: Request) -> None:
    """Raise a `DataError` if `model` cannot process the request."""
    config = model.config
    if request.limit < 1:
        raise DataError(f"limit must be at least 1, got {request.limit}")
    if (request.source is None and request.encoded is None) != (not config.encoder_depth):
        needs, got = ("no", "one") if not config.encoder_depth else ("a", "none")
        raise DataError(f"this model needs {needs} source, got {got}")
    _check_tokens(request.prompt, "prompt", model.vocab_size, config.max_target_positions)
    if request.source is not None:
        _check_tokens(request.source, "source", model.source_vocab_size, config.max_source_positions)


def require_suppressible(suppress: Sequence[int], *, ends: Collection[int], vocab_size: int) -> None:
    """Raise a `ConfigError` if a suppressed token is the end token or outside the vocabulary."""
    for token in suppress:
        if token in ends:
            raise ConfigError(f"an end token cannot be suppressed, got {token} in both")
        if not 0 <= token < vocab_size:
            raise ConfigError(f"suppressed tokens must be below vocab_size={vocab_size}, got {token}")


def _check_tokens(tokens: Sequence[int], name: str, vocab_size: int, max_positions: int | None) -> None:
    if not tokens:
        raise DataError(f"a {name} needs at least one token, got none")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        position, token = next((i, token) for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        raise DataError(
            f"the tokens of a {name} must be below vocab_size={vocab_size}, got {token} at position {position}"
        )
    if max_positions is not None and len(tokens) > max_positions:
        raise DataError(
            f"a {name} must not be longer than the learned positions, "
            f"got {len(tokens)} tokens and context_length={max_positions}"
        )
