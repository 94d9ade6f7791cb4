r"""Language modelling: what comes next?

By the chain rule a text's probability is that of its tokens, each given those
before it:

$$ p(x_1 \dots x_n) = \prod_t p(x_t \mid x_1 \dots x_{t-1}) $$

The model is trained by teacher forcing on windows of running text: at each
position it has read the true tokens so far and is asked for the next. Documents
stand one behind another, each begun by the start token and ended by the end
token; where they are to be kept apart, attention stays inside each. A recurrent
model may also be trained on windows that go on where the last ones ended, with
the state that it had there.

Bengio et al., "A Neural Probabilistic Language Model" (2003).
Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

Dimensions: `batch` windows, `time` positions.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.config import DataConfig
from regard.data.documents import open_texts
from regard.data.permutation import mix
from regard.data.preparation import Prepared, prepare_text
from regard.data.sources import Rows
from regard.data.splits import row_hash
from regard.data.stream import TokenStream
from regard.data.windows import RunningSampler, WindowSampler, evaluation_windows
from regard.errors import ConfigError, DataError
from regard.evaluation import metrics
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.families import AnyConfig, AnyModel, longest_sequence, make_model
from regard.models.heads import HeadConfig
from regard.models.recurrent import Recurrent, RecurrentState
from regard.models.transformer import Transformer
from regard.nn.losses import IGNORED, linear_log_likelihoods
from regard.tasks.objective import PLAIN, Objective, next_token_loss, row_losses, with_bias
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import TextStreamer, Tokenizer

_NEW_TOKENS = 200
"""Written where no limit is set."""
_EVALUATION_TOKENS = 16_384
"""Scored together."""
_SLOTS = {"cpu": 32, "cuda": 256}
"""Texts written side by side."""


@dataclass(frozen=True)
class TextBatch:
    """Windows of text: `targets[t]` is what stands behind `tokens[t]`."""

    tokens: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch time"]
    """`IGNORED` where it does not count."""
    documents: Int[Tensor, "batch time"] | None
    """Numbers the documents of a window; None where they run on."""
    num_targets: int
    is_running: bool = False
    """Whether each row goes on where what counts of the one above it ended, so that a recurrent model may read all
    rows as one text."""
    goes_on: bool = False
    """Whether each row goes on where the same row of the last batch ended."""

    @property
    def num_tokens(self) -> int:
        return self.tokens.numel()

    def tensors(self) -> list[Tensor | None]:
        return [self.tokens, self.targets, self.documents]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "TextBatch":
        tokens, targets, documents = tensors
        assert tokens is not None
        assert targets is not None
        return replace(self, tokens=tokens, targets=targets, documents=documents)


class Windows:
    """The windows of a stream, in shuffled order."""

    def __init__(
        self, stream: TokenStream, tokenizer: Tokenizer, *, window: int, batch_tokens: int, seed: int, is_isolated: bool
    ) -> None:
        batch_size = max(1, batch_tokens // window)
        self.sampler = WindowSampler(len(stream), window=window, batch_size=batch_size, seed=seed)
        self._ids, self._tokenizer, self._is_isolated = stream.ids, tokenizer, is_isolated
        self._places = np.arange(window + 1)

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> TextBatch:
        ids = self._ids[self.sampler.starts(number)[:, None] + self._places].astype(np.int64)
        return make_batch(ids, self._tokenizer, is_isolated=self._is_isolated)


class RunningWindows:
    """The windows of a stream in the order of the text, read at as many places at once as a batch has rows."""

    def __init__(
        self, stream: TokenStream, tokenizer: Tokenizer, *, window: int, batch_tokens: int, seed: int, jitter: int
    ) -> None:
        batch_size = max(1, batch_tokens // window)
        self.sampler = RunningSampler(len(stream), window=window, batch_size=batch_size, seed=seed, jitter=jitter)
        self._ids, self._tokenizer = stream.ids, tokenizer

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> TextBatch:
        starts, length = self.sampler.windows(number)
        ids = self._ids[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        batch = make_batch(ids, self._tokenizer, is_isolated=False)
        return replace(batch, goes_on=not self.sampler.is_first(number))


class Language:
    """Running text, by a decoder alone."""

    name = "language"
    description = "running text: what comes next"
    has_answers = False

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        return prepare_text(open_texts(config, rows), config)

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_texts(config, rows)
        return [(text,) for text in source.train.documents()], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return row[0]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> AnyModel:
        if config.encoder_depth or not config.decoder_depth:
            raise ConfigError(
                "a language model is a decoder alone: set model.encoder_layers to 0, "
                f"got encoder_layers={config.encoder_depth} and decoder_layers={config.decoder_depth}"
            )
        return make_model(config, tokenizer.vocab_size)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> Windows:
        """Windows have one shape in any case."""
        assert isinstance(data.train, TokenStream)
        assert config.window is not None, "settings are resolved before training"
        return Windows(
            data.train,
            data.tokenizer,
            window=config.window,
            batch_tokens=batch_tokens,
            seed=seed,
            is_isolated=data.is_isolated,
        )

    def running_batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, jitter: float
    ) -> RunningWindows:
        assert isinstance(data.train, TokenStream)
        assert config.window is not None, "settings are resolved before training"
        return RunningWindows(
            data.train,
            data.tokenizer,
            window=config.window,
            batch_tokens=batch_tokens,
            seed=seed,
            jitter=int(jitter * config.window),
        )

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[TextBatch]:
        assert isinstance(data.valid, TokenStream)
        assert config.window is not None, "settings are resolved before training"
        return stream_as_batches(
            data.valid.ids, data.tokenizer, window=config.window, stride=config.window, is_isolated=data.is_isolated
        )

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[TextBatch]:
        assert config.window is not None, "settings are resolved before training"
        ids = [tokenizer.end]
        for encoded in tokenizer.encode([row[0] for row in rows]):
            ids += [*encoded, tokenizer.end]
        return stream_as_batches(
            np.array(ids),
            tokenizer,
            window=config.window,
            stride=config.stride or config.window,
            is_isolated=bool(config.isolate),
        )

    def loss(self, model: AnyModel, batch: TextBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the tokens that are to be foretold, and the penalties on states."""
        if objective.consistency:
            batch = twice(batch)
        states = model.states(batch.tokens, documents=_kept_apart(model, batch))
        return next_token_loss(model, states, batch.targets, objective)

    def running_loss(
        self,
        model: AnyModel,
        batch: TextBatch,
        carried: list[Tensor] | None,
        objective: Objective = PLAIN,
    ) -> tuple[Float[Tensor, ""], list[Tensor]]:
        """The `loss`, and the state behind the windows; with `consistency`, that of the first reading."""
        assert isinstance(model, Recurrent), "only a recurrent model has a state to carry"
        state = model.resume(carried) if carried is not None and batch.goes_on else None
        rows = torch.arange(batch.tokens.size(0), device=batch.tokens.device)
        if objective.consistency:
            batch, state = twice(batch), None if state is None else state.select(torch.cat([rows, rows]))
        states, last = model.running_states(batch.tokens, state)
        loss = next_token_loss(model, states, batch.targets, objective)
        last = last.select(rows) if objective.consistency else last
        return loss, [part.detach() for part in last.tensors()]

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: AnyModel, batches: Iterator[TextBatch], device: torch.device
    ) -> Likelihoods:
        """A recurrent model reads a text that runs on from its beginning to its end, however it is cut."""
        losses: list[float] = []
        counts: list[int] = []
        state = None
        for batch in batches:
            batch = moved(batch, device)
            if batch.is_running and isinstance(model, Recurrent):
                states, state = _read_on(model, batch, state)
            else:
                states = model.states(batch.tokens, documents=_kept_apart(model, batch))
            some_losses, some_counts = row_losses(model, states, batch.targets)
            losses += some_losses
            counts += some_counts
        return Likelihoods(losses, counts, is_carried=state is not None)

    def writer(
        self, model: AnyModel, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Continuer":
        return Continuer(model, tokenizer, config)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "perplexity"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        assert config.window is not None, "settings are resolved before training"
        how = {"window": config.window, "stride": config.stride or config.window}
        num_bytes = sum(len(row[0].encode()) for row in rows)
        found = [
            metrics.perplexity(likelihoods.losses, likelihoods.counts, settings=how),
            metrics.bits_per_byte(likelihoods.losses, likelihoods.counts, num_bytes=num_bytes, settings=how),
        ]
        state = {"state": "carried"} if likelihoods.is_carried else {}
        return [replace(score, settings={**score.settings, **state}) for score in found]


class Continuer:
    """Writes what may come behind prompts."""

    def __init__(self, model: AnyModel, tokenizer: Tokenizer, config: GenerationConfig) -> None:
        self._tokenizer, self._config = tokenizer, config
        device = model.embedding.weight.device.type
        self._engine = Engine(model, config, end=tokenizer.ends, num_slots=_SLOTS[device])

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """The continuation of each input, in order."""
        requests = [make_request(text, self._tokenizer, self._config) for text in inputs]
        texts = self._tokenizer.decode(self._engine.run(requests))
        return [Prediction(text, output) for text, output in zip(inputs, texts, strict=True)]

    def stream(self, prompt: str) -> Iterator[str]:
        """The continuation of a prompt, piece by piece as it is written."""
        request = make_request(prompt, self._tokenizer, self._config)
        # The end of the prompt is there already, and what follows may begin with a space.
        yield from self._written(request, request.prompt[-1:] if prompt else [])

    def answer(self, conversation: Sequence[int]) -> Iterator[str]:
        """What comes behind the tokens of a conversation, piece by piece as it is written."""
        seed = mix(self._config.seed, row_hash([str(token) for token in conversation]))
        limit = self._config.max_length or _NEW_TOKENS
        yield from self._written(Request(list(conversation), limit, seed=seed), [])

    def _written(self, request: Request, before: Sequence[int]) -> Iterator[str]:
        streamer = TextStreamer(self._tokenizer)
        for token in before:
            streamer.add(token)
        for token in self._engine.stream(request):
            if text := streamer.add(token):
                yield text
        if rest := streamer.flush():
            yield rest


@dataclass(frozen=True)
class TextScore:
    """How probable a text is, and each of its tokens given those before it."""

    text: str
    tokens: list[str]
    """The pieces of the text as a person would write them; the last is the end of the text."""
    log_probabilities: list[float]
    """In nats; they sum to the logarithm of the probability of the whole, its end included."""

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_probability / len(self.log_probabilities))

    @property
    def bits_per_byte(self) -> float:
        return -self.log_probability / math.log(2) / len(self.text.encode())


@torch.inference_mode()
def score_text(model: AnyModel, tokenizer: Tokenizer, text: str) -> TextScore:
    """The joint probability of a text by the chain rule, from its start to its end."""
    assert model.output is not None
    ids = tokenizer.encode([text])[0]
    limit = longest_sequence(model.config)
    if limit is not None and len(ids) + 1 > limit:
        raise DataError(f"the text has {len(ids):,} tokens, the model reads {limit - 1:,} at most")
    device = next(model.parameters()).device
    tokens = torch.tensor([[tokenizer.start, *ids]], device=device)
    targets = torch.tensor([*ids, tokenizer.end], device=device)
    found = linear_log_likelihoods(*with_bias(model.states(tokens)[0], model.output), targets)
    return TextScore(text, tokenizer.pieces([*ids, tokenizer.end]), found.tolist())


def make_request(prompt: str, tokenizer: Tokenizer, config: GenerationConfig) -> Request:
    """A wish to have `prompt` continued; the seed is mixed with the prompt, so that each text has its own luck."""
    return Request(
        tokenizer.prompt(prompt), limit=config.max_length or _NEW_TOKENS, seed=mix(config.seed, row_hash((prompt,)))
    )


def make_batch(
    ids: NDArray[np.int64], tokenizer: Tokenizer, *, is_isolated: bool, first_counted: NDArray[np.int64] | None = None
) -> TextBatch:
    """Windows of one token more than there are positions; of row i only targets from `first_counted[i]` on count."""
    read = torch.from_numpy(ids)
    tokens, targets = read[:, :-1], read[:, 1:].clone()
    is_start = tokens == tokenizer.end
    num_targets = targets.numel()
    if first_counted is not None:
        targets[torch.arange(targets.size(1)) < torch.from_numpy(first_counted)[:, None]] = IGNORED
        num_targets = int((targets != IGNORED).sum())
    documents = is_start.cumsum(dim=1) if is_isolated and bool(is_start[:, 1:].any()) else None
    return TextBatch(tokens.masked_fill(is_start, tokenizer.start), targets, documents, num_targets)


def _kept_apart(model: AnyModel, batch: TextBatch) -> Int[Tensor, "batch time"] | None:
    """The documents of a batch, where the model can keep them apart: a state that is carried on cannot."""
    return batch.documents if isinstance(model, Transformer) else None


def _read_on(
    model: Recurrent, batch: TextBatch, state: RecurrentState | None
) -> tuple[Float[Tensor, "batch time model"], RecurrentState]:
    """The states of rows that are read as one text, each token once; zeros where nothing counts."""
    counts = batch.targets != IGNORED
    found, state = model.running_states(batch.tokens[counts][None], state)
    states = found.new_zeros(*counts.shape, found.size(-1))
    states[counts] = found[0]
    return states, state


def stream_as_batches(
    ids: NDArray, tokenizer: Tokenizer, *, window: int, stride: int, is_isolated: bool
) -> Iterator[TextBatch]:
    """Every token but the first, scored once, each window `stride` behind the last."""
    if len(ids) < 2:
        raise DataError("the text has no tokens: there is nothing to score")
    windows = evaluation_windows(len(ids), window, stride)
    at_once = max(1, _EVALUATION_TOKENS // window)
    for first in range(0, len(windows), at_once):
        chosen = windows[first : first + at_once]
        last = chosen[-1]
        groups = [chosen] if last[1] - last[0] == window else [chosen[:-1], [last]]
        for group in (group for group in groups if group):
            rows = np.stack([np.asarray(ids[start : end + 1], np.int64) for start, end, _ in group])
            counted = np.array([first_scored - start - 1 for start, _, first_scored in group])
            batch = make_batch(rows, tokenizer, is_isolated=is_isolated, first_counted=counted)
            yield replace(batch, is_running=not is_isolated)
