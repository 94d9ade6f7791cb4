"""Writing many sequences at once, which come and go as they please.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models" (2022), section 3.1:
sequences join and leave a running batch between two steps, and nobody waits for the longest.
https://www.usenix.org/conference/osdi22/presentation/yu

A request waits in a queue until a slot is free. Its prompt is then read, but
for the last token, and its state put into the slot; from there on all slots
take the same steps. A step reads the newest token of each row and chooses the
next. The batch has as many slots, and the slots as much room, as what is being
written needs: when that changes, the rows move to another batch.

Dimensions: `batch` sequences, `time` positions.
"""

from collections import OrderedDict, deque
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
from regard.generation.config import GenerationConfig
from regard.generation.graphs import MOST_STEPS, Batch, Room
from regard.models.convolutional import ConvolutionalConfig
from regard.models.families import AnyModel
from regard.models.protocols import State
from regard.models.transformer import TransformerConfig

_LEAST_CAPACITY, _LEAST_SOURCE = 64, 32
_AHEAD = 8
"""Waiting prompts that are read along with those whose turn it is, where they have the same length."""
_READ_TOGETHER = {"cpu": 4_096, "cuda": 8_192}
"""Tokens of prompts that are read at once, at most: each has a score for every token of the vocabulary."""
_WORTH_SHARING = 32
"""Tokens that all prompts of a run must begin with to have them read once."""
_ROOM_AHEAD = 512
"""Tokens that a row on a GPU has room for before it moves."""
_KEPT_GRAPHS = 16
"""Batches that are kept for the next time their size is wanted, where recording their step took time."""


@dataclass(frozen=True)
class Request:
    """What is to be written: the continuation of a prompt, where there is an encoder for a source."""

    prompt: list[int]
    """At least one token; in translation the start token."""
    limit: int
    """The most tokens to write. Fewer fit where the model's learned positions end."""
    seed: int = 0
    """Token t is drawn by a number that depends on the seed and t alone, whatever else is being written."""
    source: list[int] | None = None


class Written(NamedTuple):
    """What was written of a request."""

    number: int
    """Of the request, as `Engine.submit` gave it."""
    tokens: list[int]
    """The next ones. The end token is not handed out: there may be none where the text is over."""
    is_last: bool
    """Whether the text is over."""


@dataclass
class _Sequence:
    """A request on its way."""

    number: int
    request: Request
    limit: int
    stream: np.random.Generator
    num_written: int = 0
    state: State | None = None
    """That of its prompt, once it is read and until it has a slot; it may be a row among others'."""
    row: int = 0
    source_length: int = 0
    """With the padding that was read with it."""

    @property
    def num_left(self) -> int:
        """Tokens that may still be written."""
        return self.limit - self.num_written

    @property
    def num_read(self) -> int:
        """Tokens behind its state: all but the newest."""
        return len(self.request.prompt) + self.num_written - 1


@dataclass(frozen=True, eq=False)
class _Shared:
    """A beginning that was read once: all but its last token, so that a prompt may be no longer than it."""

    prefix: list[int]
    source: list[int] | None
    state: State

    def begins(self, request: Request) -> bool:
        return self.source == request.source and request.prompt[: len(self.prefix)] == self.prefix


@dataclass
class _Inbox:
    """What was written and not handed out yet."""

    everyone: list[Written] = field(default_factory=list)
    claimed: dict[int, list[Written]] = field(default_factory=dict)
    """Of requests whose tokens go to one reader alone."""

    def add(self, written: Written) -> None:
        self.claimed.get(written.number, self.everyone).append(written)

    def drop(self, number: int) -> None:
        """Hand nothing more out of this request; who reads it alone is told that it is over."""
        self.everyone = [written for written in self.everyone if written.number != number]
        if number in self.claimed:
            self.claimed[number][:] = [Written(number, [], is_last=True)]


class Engine:
    """Writes for up to `num_slots` requests at a time, each as if it were alone.

    `model` is in evaluation mode; one that `regard.generation.inference.ready`
    made is the fastest. Texts end with the token `end`, or one of several, or at their limit.
    An engine belongs to one thread.

    Example:
        >>> from regard.models.transformer import Transformer, TransformerConfig
        >>> config = TransformerConfig(num_layers=1, encoder_layers=0, model_dim=8, num_heads=2)
        >>> engine = Engine(Transformer(config, vocab_size=5).eval(), GenerationConfig(), end=None)
        >>> [len(text) for text in engine.run([Request([1], limit=3), Request([2, 4], limit=5)])]
        [3, 5]
    """

    def __init__(
        self,
        model: AnyModel,
        config: GenerationConfig,
        *,
        end: int | Collection[int] | None,
        num_slots: int = 32,
    ) -> None:
        if config.beam_size > 1:
            raise ConfigError(f"an engine writes one text for a request: beam_size must be 1, got {config.beam_size}")
        if num_slots < 1:
            raise ConfigError(f"num_slots must be at least 1, got {num_slots}")
        if model.decoder is None:
            raise ConfigError("an engine needs a model that has a decoder, got an encoder alone")
        self._model, self._config, self._num_slots = model, config, num_slots
        self._ends = frozenset([end] if isinstance(end, int) else end or ())
        self._device = model.embedding.weight.device
        self._wants_graphs = self._device.type == "cuda"
        self._reach, _ = reach(model)
        self._next_number = 0
        self._queue: deque[_Sequence] = deque()
        self._rows: dict[int, _Sequence] = {}
        """What is being written, by slot."""
        self._batch: Batch | None = None
        self._kept: OrderedDict[Room, Batch] = OrderedDict()
        self._shared: list[_Shared] = []
        self._inbox = _Inbox()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written, and nothing waits."""
        return not self._rows and not self._queue

    def submit(self, request: Request) -> int:
        """Put a request in the queue; returns the number by which its tokens are told from others'."""
        check_request(self._model, request)
        number, self._next_number = self._next_number, self._next_number + 1
        # The last token that is written need not be read any more.
        limit = request.limit if self._reach is None else min(request.limit, self._reach - len(request.prompt) + 1)
        stream = np.random.Generator(np.random.Philox(request.seed))
        self._queue.append(_Sequence(number, request, limit, stream))
        return number

    def cancel(self, number: int) -> None:
        """Write no more of this request, and hand nothing more out; one that is done already stays done."""
        self._queue = deque(sequence for sequence in self._queue if sequence.number != number)
        self._rows = {slot: sequence for slot, sequence in self._rows.items() if sequence.number != number}
        self._inbox.drop(number)

    def share(self, prefix: list[int], *, source: list[int] | None = None) -> None:
        """Read what many prompts begin with once; of requests that begin with it only the rest is read."""
        check_request(self._model, Request(prefix, limit=1, source=source))
        self._shared.append(self._read_prefix(prefix, source))

    def advance(self) -> list[Written]:
        """Let waiting requests join and write on; returns what was written since the last call.

        That is a token for each request being written, or a few; nothing when there is nothing to write.
        """
        self._write()
        news, self._inbox.everyone = self._inbox.everyone, []
        return news

    def stream(self, request: Request) -> Iterator[int]:
        """The tokens of a request, each as soon as it is written; others go on being written meanwhile.

        An iterator that is closed before its end cancels its request.
        """
        return self._tokens_of(self._claim(request))

    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """The texts of these requests, in their order; what all prompts begin with is read once."""
        for request in requests:
            check_request(self._model, request)
        shared = self._common_beginning(requests)
        self._shared += shared
        # Long ones first: those of like length are then read, and written, together.
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt) - len(requests[i].source or ()))
        numbers = {index: self._claim(requests[index]) for index in order}
        try:
            return [list(self._tokens_of(numbers[index])) for index in range(len(requests))]
        finally:
            for number in numbers.values():
                self._release(number)
            self._shared = [one for one in self._shared if one not in shared]

    def _claim(self, request: Request) -> int:
        """Submit a request whose tokens `advance` does not hand out."""
        number = self.submit(request)
        self._inbox.claimed[number] = []
        return number

    def _release(self, number: int) -> None:
        self.cancel(number)
        self._inbox.claimed.pop(number, None)

    def _tokens_of(self, number: int) -> Iterator[int]:
        news = self._inbox.claimed[number]
        try:
            is_over = False
            while not is_over:
                while not news:
                    self._write()
                written = news.pop(0)
                is_over = written.is_last
                yield from written.tokens
        finally:
            self._release(number)

    @torch.inference_mode()
    def _write(self) -> None:
        """Fill free slots, take a step or a few, and note what was written."""
        num_free = self._num_slots - len(self._rows)
        joining = [self._queue.popleft() for _ in range(min(num_free, len(self._queue)))]
        if not joining and not self._rows:
            return
        self._read_prompts(joining)
        num_steps = self._num_steps([*self._rows.values(), *joining])
        batch = self._make_room(joining, num_steps)
        self._join(batch, joining)
        if self._reach is not None:
            # Slots that nobody uses take the same steps, and must not run out of positions either.
            free = [slot for slot in range(batch.room.num_slots) if slot not in self._rows]
            if far := [slot for slot in free if batch.lengths[slot] + num_steps > self._reach]:
                batch.clear(far)
        written = batch.run(num_steps, self._draws(batch, num_steps))
        for slot, sequence in list(self._rows.items()):
            self._note(slot, sequence, written[slot])

    def _note(self, slot: int, sequence: _Sequence, tokens: list[int]) -> None:
        tokens = tokens[: sequence.num_left]
        is_ended = not self._ends.isdisjoint(tokens)
        tokens = list(takewhile(lambda token: token not in self._ends, tokens)) if is_ended else tokens
        sequence.num_written += len(tokens)
        is_last = is_ended or sequence.num_left == 0
        self._inbox.add(Written(sequence.number, tokens, is_last))
        if is_last:
            del self._rows[slot]

    def _num_steps(self, sequences: Sequence[_Sequence]) -> int:
        """How many steps to take before the host looks at what was written."""
        if self._device.type == "cpu":
            return 1
        most = MOST_STEPS // 2 if self._queue else MOST_STEPS
        num_steps = min(most, max(sequence.num_left for sequence in sequences))
        if self._reach is None:
            return num_steps
        return min(num_steps, *(self._reach - sequence.num_read for sequence in sequences))

    def _draws(self, batch: Batch, num_steps: int) -> NDArray[np.float64] | None:
        if self._config.temperature == 0:
            return None
        draws = np.zeros((num_steps, batch.room.num_slots))
        for slot, sequence in self._rows.items():
            draws[:, slot] = sequence.stream.random(num_steps)
        return draws

    def _make_room(self, joining: Sequence[_Sequence], num_steps: int) -> Batch:
        """The batch with room for all, as small as may be; what is being written moves there."""
        live, now = list(self._rows.values()), self._batch
        wanted = self._room_for([*live, *joining], num_steps)
        if now is not None and live:
            wanted = wanted._replace(source_length=max(wanted.source_length, now.room.source_length))
            fits = now.room.capacity >= wanted.capacity and now.room.source_length >= wanted.source_length
            if fits and now.room.num_slots == wanted.num_slots:
                return now
        if now is not None and now.room == wanted:
            return now
        self._batch = self._batch_of(wanted)
        if now is not None and live:
            self._batch.take(range(len(live)), now, list(self._rows))
            self._rows = dict(enumerate(live))
        return self._batch

    def _room_for(self, sequences: Sequence[_Sequence], num_steps: int) -> Room:
        # What is recorded for a size is worth nothing for the next, so a GPU is given room for longer.
        ahead = num_steps if self._device.type == "cpu" else max(num_steps, _ROOM_AHEAD)
        needed = max(sequence.num_read + min(ahead, sequence.num_left) for sequence in sequences)
        capacity = roomy(needed, least=_LEAST_CAPACITY)
        longest = max(sequence.source_length for sequence in sequences)
        return Room(
            num_slots=min(1 << (len(sequences) - 1).bit_length(), self._num_slots),
            capacity=capacity if self._reach is None else min(capacity, self._reach),
            source_length=roomy(longest, least=_LEAST_SOURCE) if longest else 0,
        )

    def _batch_of(self, room: Room) -> Batch:
        if room in self._kept:
            self._kept.move_to_end(room)
            return self._kept[room]
        batch = Batch(self._model, self._config, room, blank=self._blank(), wants_graph=self._wants_graphs)
        self._wants_graphs = batch.has_graph
        if batch.has_graph:
            self._kept[room] = batch
            if len(self._kept) > _KEPT_GRAPHS:
                self._kept.popitem(last=False)
        return batch

    def _join(self, batch: Batch, joining: Sequence[_Sequence]) -> None:
        """Put what was read of each prompt into a free slot, and its last token before it."""
        if not joining:
            return
        free = [slot for slot in range(batch.room.num_slots) if slot not in self._rows]
        taken = dict(zip(free, joining, strict=False))
        for _, group in groupby(taken.items(), key=lambda item: id(item[1].state)):
            slots, sequences = zip(*group, strict=True)
            state, rows = sequences[0].state, [sequence.row for sequence in sequences]
            assert state is not None
            batch.put(slots, state.select(self._tensor(rows)), [sequence.num_read for sequence in sequences])
        batch.tokens[self._tensor(list(taken)), 0] = self._tensor([s.request.prompt[-1] for s in joining])
        for sequence in joining:
            sequence.state = None
        self._rows.update(taken)

    def _read_prompts(self, joining: Sequence[_Sequence]) -> None:
        """Read the prompts of those that join, but for the last token; those that go on alike are read together."""
        unread = [sequence for sequence in joining if sequence.state is None]
        if unread:
            ahead = islice(self._queue, _AHEAD)
            unread += [sequence for sequence in ahead if sequence.state is None]
        found = {sequence.number: self._shared_by(sequence.request) for sequence in unread}

        def kind(sequence: _Sequence) -> tuple[int, int]:
            return len(sequence.request.prompt), id(found[sequence.number])

        for _, alike in groupby(sorted(unread, key=kind), key=kind):
            group = list(alike)
            width = max(len(sequence.request.prompt) + len(sequence.request.source or ()) for sequence in group)
            together = max(1, _READ_TOGETHER[self._device.type] // width)
            for first in range(0, len(group), together):
                self._read(group[first : first + together], found[group[0].number])

    def _read(self, group: Sequence[_Sequence], shared: "_Shared | None") -> None:
        """Read prompts of one length that begin with the same shared prefix, or with none."""
        if shared is None:
            known, state = 0, self._start([sequence.request.source for sequence in group])
        else:
            known, state = len(shared.prefix) - 1, shared.state.select(self._tensor([0] * len(group)))
        rest = [sequence.request.prompt[known:-1] for sequence in group]
        if rest[0]:
            _, state = self._model.step(self._tensor(rest), state)
        longest = max(len(sequence.request.source or ()) for sequence in group)
        for row, sequence in enumerate(group):
            sequence.state, sequence.row, sequence.source_length = state, row, longest

    def _start(self, sources: Sequence[list[int] | None]) -> State:
        """The state before the first token of prompts that belong to these sources."""
        given = [torch.tensor(source) for source in sources if source is not None]
        if not given:
            return self._model.start(batch_size=len(sources))
        lengths = torch.tensor([len(source) for source in given])
        is_padded = bool((lengths != lengths[0]).any())
        source = pad_sequence(given, batch_first=True).to(self._device)
        return self._model.start(self._model.encode(source, lengths.to(self._device) if is_padded else None))

    def _blank(self) -> State:
        """The state of a slot that nobody uses; where there is an encoder it looks at a source of one token."""
        return self._start([None if self._model.encoder is None else [0]])

    @torch.inference_mode()
    def _read_prefix(self, prefix: list[int], source: list[int] | None) -> _Shared:
        state = self._start([source])
        if len(prefix) > 1:
            _, state = self._model.step(self._tensor([prefix[:-1]]), state)
        return _Shared(prefix, source, state)

    def _shared_by(self, request: Request) -> _Shared | None:
        """The longest of the shared prefixes that a prompt begins with."""
        fitting = [shared for shared in self._shared if shared.begins(request)]
        return max(fitting, key=lambda shared: len(shared.prefix), default=None)

    def _common_beginning(self, requests: Sequence[Request]) -> list[_Shared]:
        """What all prompts begin with, read once, where that saves enough."""
        if len(requests) < 2 or any(request.source != requests[0].source for request in requests):
            return []
        # Whatever lies between the first and the last of them in order begins with what these two begin with.
        first, last = min(request.prompt for request in requests), max(request.prompt for request in requests)
        prefix = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))]
        if len(prefix) < _WORTH_SHARING:
            return []
        return [self._read_prefix(prefix, requests[0].source)]

    def _tensor(self, numbers: Sequence[int] | Sequence[list[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


def roomy(needed: int, *, least: int) -> int:
    """The first of least, 1.5 least, 2 least, 3 least, 4 least, ... that is enough.

    Example:
        >>> [roomy(needed, least=64) for needed in (1, 64, 65, 97, 129, 200)]
        [64, 64, 96, 128, 192, 256]
    """
    room = least
    while room < needed:
        if needed <= room * 3 // 2:
            return room * 3 // 2
        room *= 2
    return room


def check_request(model: AnyModel, request: Request) -> None:
    """A request that this model cannot read is a `DataError`."""
    if request.limit < 1:
        raise DataError(f"limit must be at least 1, got {request.limit}")
    if (request.source is None) != (model.encoder is None):
        needs, got = ("no", "one") if model.encoder is None else ("a", "none")
        raise DataError(f"this model reads {needs} source, got {got}")
    furthest, furthest_source = reach(model)
    _check_tokens(model, request.prompt, "prompt", furthest)
    if request.source is not None:
        _check_tokens(model, request.source, "source", furthest_source)


def reach(model: AnyModel) -> tuple[int | None, int | None]:
    """The most tokens that the decoder and the encoder can read; None where there is no such number."""
    config = model.config
    match config:
        case TransformerConfig():
            decoder, encoder = (own or config.positions for own in (config.decoder_positions, config.encoder_positions))
        case ConvolutionalConfig():
            decoder = encoder = config.positions
        case _:
            return None, None
    length = config.context_length
    return length if decoder == "learned" else None, length if encoder == "learned" else None


def _check_tokens(model: AnyModel, tokens: Sequence[int], name: str, furthest: int | None) -> None:
    if not tokens:
        raise DataError(f"a {name} needs at least one token, got none")
    vocab_size = model.embedding.num_embeddings
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        place, token = next((i, token) for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        raise DataError(
            f"the tokens of a {name} must be below vocab_size={vocab_size}, got {token} at position {place}"
        )
    if furthest is not None and len(tokens) > furthest:
        raise DataError(
            f"a {name} must not be longer than the learned positions reach, "
            f"got {len(tokens)} tokens and context_length={furthest}"
        )
