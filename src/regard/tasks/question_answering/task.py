"""Extractive question answering: the span of a context that answers a question.

Devlin et al., "BERT" (2018), sections 4.2 and 4.3: each position has a logit as the start and one as the end of the
answer, and the start token stands for no answer. https://arxiv.org/abs/1810.04805

A context longer than a window of `max_length` tokens is read in overlapping windows, each of which is a training
example: those without the whole answer have none. The prediction is the best span of all windows, unless in each of
them the score of no answer is higher.

A row has three texts: the context, the question and its answers as JSON, a list of objects with `text` and `start`,
the offset of the answer's first character; an empty list where the context has no answer. The context comes first
because rows are split by their first text: all questions about a context are in the same set.

Dimensions: `windows` read together, `time` tokens, `ends` of an answer: its start and its end.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.baselines.answers import fit_answers
from regard.baselines.baseline import Baseline
from regard.data.batches import TensorBatch, batches_by_length, pad
from regard.data.codecs.codec import Codec
from regard.data.codecs.text import TextCodec
from regard.data.formats.columns import choose_columns
from regard.data.formats.files import content_hash
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_names
from regard.data.formats.squad import QUESTION_ROLES, Answer, Question, Questions, open_questions
from regard.data.formats.tables import Table
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, hash_of_table, require_files, with_folder, with_held_out
from regard.data.splits.plan import reject_split_columns, with_split_keys
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, PredictionHead, build_body, default_pooling
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Prediction, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.task import (
    EVALUATION_TOKENS,
    PLAIN,
    Detection,
    EvaluationData,
    Likelihoods,
    Objective,
    repeat_batch,
    symmetric_kl,
    to_device,
)
from regard.tasks.text import SEPARATOR, TextSettings, TextTask, pad_rows, pad_time, regularized_tuning
from regard.text.tokenizer import Tokenizer

LONGEST_ANSWER = 30
"""Tokens of a predicted answer."""
_TUNED_RDROP = 1.0
"""SQuAD, fine-tuned on a GPU: F1 0.707 with R-Drop, 0.686 without it (docs/log.md)."""
SPAN_ROLES = ("context", "question", "answers")
_HALF = 1 << 16
"""A position is stored as two 16-bit numbers."""
_QUESTION_SHARE = 4
"""A question has at most this part of a window."""
_SHORTEST = 12
_TITLE = "title"
"""What questions can be grouped by: the article of their context."""


class QuestionAnsweringSettings(TextSettings):
    """Settings of question answering."""

    name: str = "question-answering"
    stride: int | None = Field(default=None, ge=1)
    """The distance between the starts of overlapping windows of a long context, in tokens. Unset: half of
    max_length."""


@dataclass(frozen=True)
class QuestionBatch(TensorBatch):
    """Windows of some questions, and the spans of their answers."""

    tensor_names = ("source", "lengths", "segments", "spans", "weights")
    source: Int[Tensor, "windows time"]
    lengths: Int[Tensor, " windows"]
    segments: Int[Tensor, "windows time"]
    """0 for the question, 1 for the context."""
    spans: Int[Tensor, "windows ends"]
    """The first and the last token of the answer; 0 where the window has none."""
    weights: Float[Tensor, " windows"]
    """The weight of each window in the loss: 0 for one that only pads the batch."""
    num_windows: tuple[int, ...]
    """The number of windows of each question, in order."""
    num_targets: int
    """Two for each window: a start and an end."""
    num_tokens: int

    @property
    def is_candidate(self) -> Bool[Tensor, "windows time"]:
        """Where an answer may start or end: in the context, or at the start token, which stands for no answer."""
        time = torch.arange(self.source.size(1), device=self.source.device)
        return (time == 0) | ((self.segments == 1) & (time < self.lengths[:, None] - 1))


class QuestionAnswering(TextTask[QuestionAnsweringSettings]):
    """Questions, contexts and answers, by an encoder."""

    name = "question-answering"
    description = "question answering"
    other_names = ("qa", "squad", "extractive-qa", "answering")
    Settings = QuestionAnsweringSettings
    roles = SPAN_ROLES
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec}
    store_columns = ("tokens", "positions")
    metrics = ("answer_exact_match", "answer_f1")
    unit = "question"
    head_kind = "spans"

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.is_squad:
            return Detection("a JSON file of questions (SQuAD)", confidence=0.9)
        if summary.has_column("question") and summary.has_column("context"):
            return Detection("columns question and context", confidence=0.9)
        return None

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_question_source(config, rows)

    def cache_key(self) -> dict[str, Any]:
        """The store has whole contexts, which are split into windows when they are read."""
        return {**super().cache_key(), "max_length": None}

    def input_of(self, row: Sequence[str]) -> str:
        return f"{row[1].replace(SEPARATOR, ' ')}{SEPARATOR}{row[0]}"

    def target_of(self, row: Sequence[str]) -> str:
        """The first of several right answers."""
        return next((answer.text for answer in read_answers(row[2])), "")

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row[:2]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return list(encode_questions(rows, self.tokenizer))

    def defaults(self, context: DefaultsContext) -> Defaults:
        tuned = regularized_tuning(context, rdrop=_TUNED_RDROP, averages=False) or Defaults()
        return replace(tuned, train=super().defaults(context).train, head={"pooling": default_pooling(context.model)})

    def num_positions(self, data: Prepared) -> int:
        return min(super().num_positions(data), self.settings.max_length)

    def build(self, model: ModelConfig, head: HeadConfig) -> "SpanClassifier":
        return SpanClassifier(model, head, self.tokenizer.vocab_size)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> QuestionBatch:
        """All windows of some questions."""
        both = zip(*columns, strict=True)
        return make_question_batch(
            [self.windows(tokens.tolist(), positions.tolist()) for tokens, positions in both], self.tokenizer.pad
        )

    def windows(self, tokens: Sequence[int], positions: Sequence[int]) -> "list[QuestionWindow]":
        """The windows of an encoded question."""
        return windows_of(tokens, positions, max_length=self.settings.max_length, stride=self.settings.stride)

    def pad_batch(self, batch: QuestionBatch, num_rows: int, length: int) -> QuestionBatch:
        """Pad to the windows of `num_rows` questions of `length` tokens; added ones have weight 0."""
        most = self.settings.max_length
        num_windows = num_rows * most_windows(length, max_length=most, stride=self.settings.stride)
        width, more = min(length, most), num_windows - batch.source.size(0)
        return replace(
            batch,
            source=pad_rows(pad_time(batch.source, width, self.tokenizer.pad), num_windows),
            lengths=pad_rows(batch.lengths, num_windows),
            segments=pad_rows(pad_time(batch.segments, width, 1), num_windows),
            spans=pad_rows(batch.spans, num_windows),
            weights=F.pad(batch.weights, (0, more)),
        )

    def loss(self, model: "SpanClassifier", batch: QuestionBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy of the starts and of the ends of answers, summed over the windows."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        log_probs = _log_probs(model, batch)
        loss = (_losses(log_probs, batch, objective.label_smoothing) * batch.weights).sum()
        if not objective.rdrop:
            return loss
        divergence = symmetric_kl(log_probs.masked_fill(~batch.is_candidate[..., None], 0.0)).sum(dim=(1, 2))
        return loss / 2 + objective.rdrop / 4 * (divergence * batch.weights.chunk(2)[0]).sum()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[QuestionBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of the start and the end of each answer, over all windows of its question."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            by_question = _losses(_log_probs(model, batch), batch).split(batch.num_windows)
            losses += [float(some.sum()) for some in by_question]
            counts += [2 * number for number in batch.num_windows]
        return Likelihoods(losses, counts)

    def predictor(self, model: Any, config: Any) -> "AnswerPredictor":
        return AnswerPredictor(self, model)

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(
            outputs=[each.output for each in data.predictions],
            targets=[[answer.text for answer in read_answers(row[2])] for row in data.rows],
        )

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "answer_f1"

    def baseline(self, data: Prepared) -> Baseline:
        questions = [(row[0], row[1], read_answers(row[2])) for row in data.train_rows()]
        return fit_answers(questions, separator=SEPARATOR)

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(("question", "text"), output="span")


class SpanClassifier(nn.Module):
    """Token ids in, for each position a logit as the start and one as the end of an answer out."""

    def __init__(self, config: ModelConfig, head: HeadConfig, vocab_size: int) -> None:
        super().__init__()
        self.body = build_body(config, vocab_size)
        self.head = PredictionHead(config.model_dim, 2, dropout=head.dropout, has_hidden_layer=head.hidden_layer)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time ends"]:
        return self.head(self.body.encode(source, lengths, segments=segments).hidden_states)


class AnswerPredictor:
    """Finds the answer to each question in its context; an empty one where the model predicts that there is none."""

    def __init__(self, task: QuestionAnswering, model: SpanClassifier) -> None:
        self._task, self._model = task, model
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """An input is a question, a tab, and the context."""
        pairs = [text.split(SEPARATOR, 1) for text in inputs]
        if wrong := [text for text, pair in zip(inputs, pairs, strict=True) if len(pair) != 2]:
            raise DataError(f"an input must be a question, a tab and a context, got {wrong[0][:60]!r}")
        tokenizer = self._task.tokenizer
        columns = encode_questions([(context, question, "[]") for question, context in pairs], tokenizer)
        questions = [self._task.windows(*both) for both in zip(*columns, strict=True)]
        found = iter(self._best_spans([window for windows in questions for window in windows]))
        offsets = [each[1] for each in tokenizer.encode_with_offsets([context for _, context in pairs])]
        answers = []
        for (_, context), windows, places_in_text in zip(pairs, questions, offsets, strict=True):
            spans = [(*next(found), window) for window in windows]
            score, _, first, last, window = max(spans, key=lambda span: span[0])
            shift = window.first - window.start
            is_none = min(span[1] for span in spans) >= score
            start, end = (0, 0) if is_none else (places_in_text[first + shift][0], places_in_text[last + shift][1])
            answers.append(context[start:end].strip())
        return [Prediction(text, answer) for text, answer in zip(inputs, answers, strict=True)]

    def _best_spans(self, windows: "Sequence[QuestionWindow]") -> list[tuple[float, float, int, int]]:
        """For each window the score of its best span, that of no answer, and the span's first and last token."""
        found: dict[int, tuple[float, float, int, int]] = {}
        for chosen in batches_by_length([len(window.tokens) for window in windows], batch_tokens=EVALUATION_TOKENS):
            batch = make_question_batch([[windows[row]] for row in chosen], self._task.tokenizer.pad)
            batch = to_device(batch, self._device)
            with torch.inference_mode():
                columns = best_spans(_logits(self._model, batch), batch.is_candidate)
            found |= dict(zip(chosen.tolist(), zip(*(x.tolist() for x in columns), strict=True), strict=True))
        return [found[number] for number in range(len(windows))]


def best_spans(
    logits: Float[Tensor, "windows time ends"], is_candidate: Bool[Tensor, "windows time"]
) -> tuple[Float[Tensor, " windows"], Float[Tensor, " windows"], Int[Tensor, " windows"], Int[Tensor, " windows"]]:
    """For each window the score of the best span, that of no answer, and the two ends of the span."""
    first, last = logits.masked_fill(~is_candidate[..., None], -torch.inf).unbind(dim=2)
    nothing = first[:, 0] + last[:, 0]
    first, last = first[:, 1:], last[:, 1:]
    longest = min(LONGEST_ANSWER, first.size(1))
    by_length = [
        F.pad(first[:, : first.size(1) - more] + last[:, more:], (0, more), value=-torch.inf) for more in range(longest)
    ]
    best, place = torch.stack(by_length, dim=1).flatten(1).max(dim=1)
    more, start = place // first.size(1), place % first.size(1) + 1
    return best, nothing, start, start + more


def make_question_batch(questions: "Sequence[Sequence[QuestionWindow]]", padding: int) -> QuestionBatch:
    """All windows of some questions, padded to one length."""
    windows = [window for some in questions for window in some]
    lengths = [len(window.tokens) for window in windows]
    source = torch.from_numpy(pad([np.array(window.tokens, np.int64) for window in windows], padding))
    time = torch.arange(source.size(1))
    return QuestionBatch(
        source=source,
        lengths=torch.tensor(lengths),
        segments=(time >= torch.tensor([[window.start] for window in windows])).long(),
        spans=torch.tensor([window.span for window in windows]),
        weights=torch.ones(len(windows)),
        num_windows=tuple(len(some) for some in questions),
        num_targets=2 * len(windows),
        num_tokens=sum(lengths),
    )


def _logits(model: SpanClassifier, batch: QuestionBatch) -> Float[Tensor, "windows time ends"]:
    """In float32 at least."""
    logits = model(batch.source, batch.lengths, batch.segments)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _log_probs(model: SpanClassifier, batch: QuestionBatch) -> Float[Tensor, "windows time ends"]:
    """Log-probabilities of each position as the start, and as the end, of the answer."""
    return _logits(model, batch).masked_fill(~batch.is_candidate[..., None], -torch.inf).log_softmax(dim=1)


def _losses(
    log_probs: Float[Tensor, "windows time ends"], batch: QuestionBatch, label_smoothing: float = 0.0
) -> Float[Tensor, " windows"]:
    """The negative log-likelihood of both ends of each window's answer."""
    losses = -log_probs.gather(1, batch.spans[:, None, :])[:, 0].sum(dim=1)
    if not label_smoothing:
        return losses
    is_candidate = batch.is_candidate
    uniform = -log_probs.masked_fill(~is_candidate[..., None], 0.0).sum(dim=(1, 2)) / is_candidate.sum(dim=1)
    return (1 - label_smoothing) * losses + label_smoothing * uniform


class QuestionWindow(NamedTuple):
    """A part of a context, with the question before it."""

    tokens: list[int]
    """The start, the question, an end, the part of the context, an end."""
    first: int
    """The position of the part in the context, in tokens."""
    start: int
    """The position of the part in the window; it ends before the last token."""
    span: tuple[int, int]
    """The first and the last token of the answer in the window; 0, the start token, for both without an answer."""


def encode_questions(rows: Sequence[Sequence[str]], tokenizer: Tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """Questions in two columns: all their tokens, and the positions of context and answer.

    The tokens are the start, the question, an end, the whole context, an end. The
    positions are the number of tokens of the question and, where there is an answer,
    its first and last token in the context, each as two 16-bit numbers. Of several
    answers the first is learned.
    """
    contexts = tokenizer.encode_with_offsets([row[0] for row in rows])
    questions = tokenizer.encode([row[1] for row in rows])
    tokens, positions = [], []
    for row, question, (context, offsets) in zip(rows, questions, contexts, strict=True):
        answers = read_answers(row[2])
        found = (len(question), *(tokens_of(answers[0], offsets) if answers else ()))
        tokens.append([tokenizer.start, *question, tokenizer.end, *context, tokenizer.end])
        positions.append([part for place in found for part in divmod(place, _HALF)])
    return tokens, positions


def windows_of(
    tokens: Sequence[int], positions: Sequence[int], *, max_length: int, stride: int | None = None
) -> list[QuestionWindow]:
    """An encoded question as overlapping windows of at most `max_length` tokens, `stride` tokens apart.

    Unset, `stride` is half of a window. A window without the whole answer has none.
    """
    step = stride_of(max_length, stride)
    num_question, *span = (high * _HALF + low for high, low in zip(positions[::2], positions[1::2], strict=True))
    start, end = tokens[0], tokens[-1]
    question = tokens[1 : 1 + num_question][: max_length // _QUESTION_SHARE]
    context = tokens[2 + num_question : -1]
    limit, before = max_length - 3 - len(question), 2 + len(question)
    windows = []
    for first in range(0, max(1, len(context) - limit + step), step):
        piece = context[first : first + limit]
        is_inside = span and first <= span[0] and span[1] < first + len(piece)
        inside = (span[0] - first + before, span[1] - first + before) if is_inside else (0, 0)
        windows.append(QuestionWindow([start, *question, end, *piece, end], first, before, inside))
    return windows


def most_windows(num_tokens: int, *, max_length: int, stride: int | None = None) -> int:
    """The largest number of windows of an encoded question with this many tokens."""
    return 1 + max(0, -(-(num_tokens - max_length) // stride_of(max_length, stride)))


def stride_of(max_length: int, stride: int | None) -> int:
    """The distance between windows: what is set, but no more than their length."""
    if max_length < _SHORTEST:
        raise ConfigError(f"a window of question and context needs max_length of {_SHORTEST}, got {max_length}")
    return min(stride or max_length // 2, max_length - max_length // _QUESTION_SHARE - 3)


def tokens_of(answer: Answer, offsets: Sequence[tuple[int, int]]) -> tuple[int, int] | tuple[()]:
    """The first and the last token of an answer, by the offsets of its context; empty if it has no token."""
    inside = [
        number
        for number, (start, end) in enumerate(offsets)
        if start < answer.end and end > answer.start and start < end
    ]
    return (inside[0], inside[-1]) if inside else ()


def write_answers(answers: Sequence[Answer]) -> str:
    """Answers as the text of a row.

    Example:
        >>> write_answers([Answer("Rome", 4)]), read_answers('[{"text": "Rome", "start": 4}]')
        ('[{"text": "Rome", "start": 4}]', [Answer(text='Rome', start=4)])
    """
    return json.dumps([answer._asdict() for answer in answers], ensure_ascii=False)


def read_answers(text: str) -> list[Answer]:
    """The answers of a row."""
    try:
        return [Answer(each["text"], each["start"]) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError):
        raise DataError(f"answers are a JSON list of objects with text and start, got {text[:60]!r}") from None


def open_question_source(config: DataConfig, rows: Sequence[Any] | None = None) -> Source:
    """Open the questions that the settings name, or those in memory.

    A row in memory is a question, a context, and the answer, in this order. The answer
    is a text, located at its first occurrence in the context, a list of texts, an
    empty text or list where there is none, or what `write_answers` returns.
    """
    open_file = partial(_open, config)
    if rows is not None:
        reject_split_columns(config, "questions in memory")
        if isinstance(rows, NamedRows):
            picks = choose_columns(rows.names, config.columns or None, QUESTION_ROLES, where="the table in memory")
            rows = [tuple(row[pick] for pick in picks) for row in rows]
        train = _table((), [], config.skip_bad, partial(_read_rows, list(rows)))
        return with_held_out(config, with_split_keys(train, config), open_file, partial(hash_of_table, train))
    require_files(config, "a file of questions, or a folder of them")
    config = with_folder(config)
    reject_split_columns(config, "a file of questions", group=_TITLE)
    train = with_split_keys(open_file(config.train, has_titles=config.group is not None), config)
    return with_held_out(config, train, open_file, lambda: content_hash(train.paths))


def _open(config: DataConfig, paths: Sequence[str], *, has_titles: bool = False) -> Table:
    if len(paths) != 1:
        raise ConfigError(f"questions are read from one file, got {len(paths)}: {format_names(paths)}")
    # Bad questions are counted by the table.
    questions = open_questions(paths[0], columns=config.columns or None, format=config.format, encoding=config.encoding)
    read = partial(_read, questions, has_titles=has_titles)
    return _table((questions.path,), questions.inferred, config.skip_bad, read, key=_TITLE if has_titles else None)


def _table(
    paths: tuple[Path, ...],
    inferred: list[str],
    skip_bad: bool | None,
    read: Callable[[], Iterator[Record]],
    key: str | None = None,
) -> Table:
    columns = tuple(str(position) for position in range(1, len(SPAN_ROLES) + 1))
    # The unit of messages is the question: a line of a file may have several.
    return Table(
        paths=paths,
        format="rows",
        roles=SPAN_ROLES,
        columns=columns,
        key=key,
        inferred=inferred,
        skip_bad=skip_bad,
        read=read,
    )


def _read(questions: Questions, *, has_titles: bool) -> Iterator[Record]:
    for number, (_, found) in enumerate(questions.read(), 1):
        if isinstance(found, Question):
            values = found.context, found.question, write_answers(found.answers)
            yield number, (*values, found.title) if has_titles else values, ""
        else:
            yield number, (), found.removeprefix("has ").removeprefix("is ")


def _read_rows(rows: Sequence[Any]) -> Iterator[Record]:
    for number, row in enumerate(rows, 1):
        if len(row) != len(SPAN_ROLES):
            yield number, (), f"{len(row)} values instead of {len(SPAN_ROLES)}"
            continue
        question, context, given = row
        answers = _answers_in(given, context)
        lost = [answer.text for answer in answers if not context.startswith(answer.text, answer.start)]
        lost += [answer.text for answer in answers if answer.start < 0 or not answer.text.strip()]
        if lost:
            yield number, (), f"the answer {lost[0]!r}, which is not at its offset in the context"
        else:
            yield number, (context, question, write_answers(answers)), ""


def _answers_in(given: Any, context: str) -> list[Answer]:
    """Answers of a row in memory; one that does not occur has a start below 0."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            return read_answers(given)
        except DataError:  # a text that begins like this
            pass
    texts = [given] if isinstance(given, str) else given
    return [Answer(text, context.find(text)) for text in texts if text]
