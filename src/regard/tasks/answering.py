"""Answering: a question, a text that may hold the answer, and where in it the answer stands.

Devlin et al., "BERT" (2018), sections 4.2 and 4.3: each position is scored as the beginning and as the end of the
answer, and the start of the sequence stands for no answer. https://arxiv.org/abs/1810.04805

A context longer than a window of `max_length` tokens is read in windows that overlap, each of which is learned: those
without the whole answer have none. What is predicted is the best span of all windows, unless in each of them the
score of no answer is higher.

Dimensions: `windows` read together, `time` tokens, `ends` of an answer: its beginning and its end, always these two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length, pad
from regard.data.config import DataConfig
from regard.data.preparation import Prepared, prepare
from regard.data.questions import (
    ROLES,
    QuestionCoding,
    Window,
    most_windows,
    open_question_source,
    read_answers,
    windows_of,
)
from regard.data.sources import Rows
from regard.data.store import TokenStore
from regard.errors import DataError
from regard.evaluation.answers import score_answers
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.logging import log_info
from regard.models.families import AnyConfig
from regard.models.heads import HeadConfig, SpanFinder
from regard.tasks.objective import PLAIN, Objective
from regard.tasks.reading import BATCH_TOKENS, SEPARATOR
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer

LONGEST_ANSWER = 30
"""Tokens of an answer that is predicted."""
_ANY_LENGTH = 1 << 30


@dataclass(frozen=True)
class QuestionsBatch:
    """Windows of some questions, and where their answers stand."""

    source: Int[Tensor, "windows time"]
    lengths: Int[Tensor, " windows"]
    segments: Int[Tensor, "windows time"]
    """0 for the question, 1 for the context."""
    spans: Int[Tensor, "windows ends"]
    """The first and the last token of the answer; 0 where the window has none."""
    weights: Float[Tensor, " windows"]
    """How much each window counts: 0 for one that only fills a shape."""
    num_windows: tuple[int, ...]
    """Of each question, one behind the other."""
    num_targets: int
    """Two for each window: a beginning and an end."""
    num_tokens: int

    def tensors(self) -> list[Tensor | None]:
        return [self.source, self.lengths, self.segments, self.spans, self.weights]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "QuestionsBatch":
        names = ("source", "lengths", "segments", "spans", "weights")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name

    @property
    def may_end(self) -> Bool[Tensor, "windows time"]:
        """Where an answer may begin or end: in the context, or at the start, which is nowhere."""
        time = torch.arange(self.source.size(1), device=self.source.device)
        return (time == 0) | ((self.segments == 1) & (time < self.lengths[:, None] - 1))


class Answering:
    """Questions and where their answers stand, by a model that reads."""

    name = "answering"
    description = "where in a text the answer to a question stands"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        # The store has whole contexts: they are cut into windows when they are read.
        whole = config.changed(max_length=_ANY_LENGTH)
        return prepare(open_question_source(config, rows), whole, ROLES, QuestionCoding())

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_question_source(config, rows)
        for guess in source.train.guesses:
            log_info(guess)
        return [row.values for row in source.train], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return f"{row[1].replace(SEPARATOR, ' ')}{SEPARATOR}{row[0]}"

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> SpanFinder:
        return SpanFinder(config, head or HeadConfig(), tokenizer.vocab_size)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[QuestionsBatch]:
        """All windows of some questions together."""
        store, tokenizer = data.train, data.tokenizer
        assert isinstance(store, TokenStore)

        def make(rows: NDArray[np.int64]) -> QuestionsBatch:
            return _stored(store, rows, tokenizer, config)

        def fill(batch: QuestionsBatch, num_rows: int, longest: int) -> QuestionsBatch:
            each = most_windows(longest, max_length=config.max_length, stride=config.stride)
            return filled(batch, num_rows * each, min(longest, config.max_length), tokenizer.pad)

        return StoredBatches(store, make, fill if has_few_shapes else None, batch_tokens=batch_tokens, seed=seed)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[QuestionsBatch]:
        store = data.valid
        assert isinstance(store, TokenStore)
        for rows in batches_by_length(store.lengths(), batch_tokens=BATCH_TOKENS):
            yield _stored(store, rows, data.tokenizer, config)

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[QuestionsBatch]:
        tokens, places = QuestionCoding().encode(rows, tokenizer)
        for chosen in batches_by_length([len(some) for some in tokens], batch_tokens=BATCH_TOKENS):
            yield make_batch([_windows(tokens[row], places[row], config) for row in chosen], tokenizer)

    def loss(self, model: SpanFinder, batch: QuestionsBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy of where answers begin and of where they end, summed over the windows."""
        if objective.consistency:
            batch = twice(batch)
        logs = _log_probabilities(model, batch)
        loss = (_losses(logs, batch, objective.label_smoothing) * batch.weights).sum()
        if not objective.consistency:
            return loss
        one, other = logs.masked_fill(~batch.may_end[..., None], 0.0).chunk(2)
        disagreement = ((one.exp() - other.exp()) * (one - other)).sum(dim=(1, 2))
        return loss / 2 + objective.consistency / 4 * (disagreement * batch.weights.chunk(2)[0]).sum()

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: SpanFinder, batches: Iterator[QuestionsBatch], device: torch.device
    ) -> Likelihoods:
        """Of the beginning and the end of each question's answer, in all of its windows."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = moved(batch, device)
            by_question = _losses(_log_probabilities(model, batch), batch).split(batch.num_windows)
            losses += [float(some.sum()) for some in by_question]
            counts += [2 * number for number in batch.num_windows]
        return Likelihoods(losses, counts)

    def writer(
        self, model: SpanFinder, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "AnswerFinder":
        assert data is not None, "how long windows are is a setting of the data"
        return AnswerFinder(model, tokenizer, data)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "answer_f1"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        answers = [[answer.text for answer in read_answers(row[2])] for row in rows]
        return score_answers([each.output for each in predictions], answers)


class AnswerFinder:
    """Finds the answer to each question in its context; an empty one where it holds that there is none."""

    def __init__(self, model: SpanFinder, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._model, self._tokenizer, self._data = model, tokenizer, data
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model answers, in order; an input is a question, a tab, and the context."""
        pairs = [text.split(SEPARATOR, 1) for text in inputs]
        if wrong := [text for text, pair in zip(inputs, pairs, strict=True) if len(pair) != 2]:
            raise DataError(f"an input is a question, a tab, and the text to answer it from, got {wrong[0][:60]!r}")
        tokens, places = QuestionCoding().encode(
            [(context, question, "[]") for question, context in pairs], self._tokenizer
        )
        questions = [_windows(*both, self._data) for both in zip(tokens, places, strict=True)]
        found = iter(self._best_spans([window for windows in questions for window in windows]))
        offsets = [each[1] for each in self._tokenizer.encode_with_offsets([context for _, context in pairs])]
        answers = []
        for (_, context), windows, places_in_text in zip(pairs, questions, offsets, strict=True):
            spans = [(*next(found), window) for window in windows]
            score, _, first, last, window = max(spans, key=lambda span: span[0])
            shift = window.first - window.start
            is_none = min(span[1] for span in spans) >= score
            start, end = (0, 0) if is_none else (places_in_text[first + shift][0], places_in_text[last + shift][1])
            answers.append(context[start:end].strip())
        return [Prediction(text, answer) for text, answer in zip(inputs, answers, strict=True)]

    def _best_spans(self, windows: Sequence[Window]) -> list[tuple[float, float, int, int]]:
        """Of each window the score of its best span, that of no answer, and the first and last token of the span."""
        found: dict[int, tuple[float, float, int, int]] = {}
        for chosen in batches_by_length([len(window.tokens) for window in windows], batch_tokens=BATCH_TOKENS):
            batch = moved(make_batch([[windows[row]] for row in chosen], self._tokenizer), self._device)
            with torch.inference_mode():
                columns = best_spans(_scores(self._model, batch), batch.may_end)
            found |= dict(zip(chosen.tolist(), zip(*(x.tolist() for x in columns), strict=True), strict=True))
        return [found[number] for number in range(len(windows))]


def best_spans(
    scores: Float[Tensor, "windows time ends"], may_end: Bool[Tensor, "windows time"]
) -> tuple[Float[Tensor, " windows"], Float[Tensor, " windows"], Int[Tensor, " windows"], Int[Tensor, " windows"]]:
    """Of each window the score of the best span that an answer can be, that of none, and the span's two ends."""
    first, last = scores.masked_fill(~may_end[..., None], -torch.inf).unbind(dim=2)
    nothing = first[:, 0] + last[:, 0]
    first, last = first[:, 1:], last[:, 1:]
    longest = min(LONGEST_ANSWER, first.size(1))
    by_length = [
        F.pad(first[:, : first.size(1) - more] + last[:, more:], (0, more), value=-torch.inf) for more in range(longest)
    ]
    best, place = torch.stack(by_length, dim=1).flatten(1).max(dim=1)
    more, start = place // first.size(1), place % first.size(1) + 1
    return best, nothing, start, start + more


def make_batch(questions: Sequence[Sequence[Window]], tokenizer: Tokenizer) -> QuestionsBatch:
    """All windows of some questions as one rectangle."""
    windows = [window for some in questions for window in some]
    lengths = [len(window.tokens) for window in windows]
    source = torch.from_numpy(pad([np.array(window.tokens, np.int64) for window in windows], tokenizer.pad))
    time = torch.arange(source.size(1))
    return QuestionsBatch(
        source=source,
        lengths=torch.tensor(lengths),
        segments=(time >= torch.tensor([[window.start] for window in windows])).long(),
        spans=torch.tensor([window.span for window in windows]),
        weights=torch.ones(len(windows)),
        num_windows=tuple(len(some) for some in questions),
        num_targets=2 * len(windows),
        num_tokens=sum(lengths),
    )


def filled(batch: QuestionsBatch, num_rows: int, length: int, padding: int) -> QuestionsBatch:
    """The same batch, padded to so many windows of so many tokens; added ones repeat the first and do not count."""
    more = num_rows - batch.source.size(0)

    def with_rows(x: Tensor) -> Tensor:
        return torch.cat([x, x[:1].expand(more, *x.shape[1:])])

    def wide(x: Tensor, value: int) -> Tensor:
        return with_rows(F.pad(x, (0, length - x.size(1)), value=value))

    return replace(
        batch,
        source=wide(batch.source, padding),
        lengths=with_rows(batch.lengths),
        segments=wide(batch.segments, 1),
        spans=with_rows(batch.spans),
        weights=F.pad(batch.weights, (0, more)),
    )


def _stored(store: TokenStore, rows: NDArray[np.int64], tokenizer: Tokenizer, config: DataConfig) -> QuestionsBatch:
    both = zip(store.sequences(0, rows), store.sequences(1, rows), strict=True)
    return make_batch([_windows(tokens.tolist(), places.tolist(), config) for tokens, places in both], tokenizer)


def _windows(tokens: Sequence[int], places: Sequence[int], config: DataConfig) -> list[Window]:
    return windows_of(tokens, places, max_length=config.max_length, stride=config.stride)


def _scores(model: SpanFinder, batch: QuestionsBatch) -> Float[Tensor, "windows time ends"]:
    """In float32 at least."""
    scores = model(batch.source, batch.lengths, batch.segments)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _log_probabilities(model: SpanFinder, batch: QuestionsBatch) -> Float[Tensor, "windows time ends"]:
    """Of each position to be where the answer begins, and where it ends; 0 have those where it cannot."""
    return _scores(model, batch).masked_fill(~batch.may_end[..., None], -torch.inf).log_softmax(dim=1)


def _losses(
    logs: Float[Tensor, "windows time ends"], batch: QuestionsBatch, label_smoothing: float = 0.0
) -> Float[Tensor, " windows"]:
    """The negative log-likelihood of both ends of each window's answer."""
    losses = -logs.gather(1, batch.spans[:, None, :])[:, 0].sum(dim=1)
    if not label_smoothing:
        return losses
    may_end = batch.may_end
    evenly = -logs.masked_fill(~may_end[..., None], 0.0).sum(dim=(1, 2)) / may_end.sum(dim=1)
    return (1 - label_smoothing) * losses + label_smoothing * evenly
