r"""Aspect sentiment: the label of an aspect of a text, such as praise of the soup in a review of a restaurant.

A row is a text, an aspect and a label. A query for the aspect attends to the
words of the text, and the label is predicted from what it retrieves, so the
weight of each word can be shown:

    $w_t = \mathrm{softmax}_t(\langle q_a, k_t \rangle / \sqrt d)$,    $y = \mathrm{head}(\sum_t w_t v_t)$

Where keys $k$ and values $v$ are the hidden states themselves, this is attention
without learned projections; with them, they are linear maps of the hidden states.

Wang et al., "Attention-based LSTM for Aspect-level Sentiment Classification" (2016), section 3,
https://aclanthology.org/D16-1058. For an aspect that is encoded with the text: Sun et al., "Utilizing BERT for
Aspect-Based Sentiment Analysis via Constructing Auxiliary Sentence" (2019), https://arxiv.org/abs/1903.09588.

Dimensions: `batch` rows, `time` positions, `model` width, `labels` classes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.baselines.linear import fit_classifier
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.labels import LabelCodec, format_frequencies
from regard.data.codecs.text import TextCodec
from regard.data.formats.layouts import Record
from regard.data.formats.messages import format_count, format_names
from regard.data.formats.tables import Table
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, open_source
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.models.family import ModelConfig, make_lookup
from regard.models.heads import HeadConfig, PredictionHead, build_body, default_pooling
from regard.models.linear_ngrams import LinearNgrams
from regard.nn.similarity import DotProduct
from regard.settings import read_toml
from regard.tasks.choices import ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import Attribution, Prediction, ReportContent, Section, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, repeat_batch, to_device
from regard.tasks.text import (
    SEPARATOR,
    TextBatch,
    TextSettings,
    TextTask,
    encode_texts,
    make_text_batch,
    pad_rows,
    pad_text_batch,
    regularized_tuning,
    segments_of,
)
from regard.tasks.text_classification import (
    BlendedParts,
    balanced_weights,
    blend_ngrams,
    choose_label_words,
    class_examples,
    class_targets,
    classification_loss,
    confusion_table,
    count_targets,
    default_ngrams,
    label_losses,
    most_probable,
    solve_ngrams,
)
from regard.text.statistics import TextStatistics

_ROLES = ("text", "aspect", "label")
Query = Literal["learned", "text", "both"]
_LABEL = _ROLES.index("label")
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")
_MOST_ASPECTS = 50
"""A text is not judged for more aspects than these at once."""
_ROWS_SCANNED = 10_000
"""Rows that are scanned for ignored labels, to be reported."""
_FEW_ROWS, _HEAD_DROPOUT, _SMOOTHING = 20_000, 0.5, 0.1
_ONE_LAYER = {"num_layers": 1, "dropout": 0.4, "token_dropout": 0.2}
"""With given embeddings and few rows. SemEval's restaurants: accuracy 0.81, with embeddings of width 128 0.79."""
_WIDEST, _WIDTHS = 512, 64
"""The model is as wide as its embeddings where that is at most the first, and a multiple of the second."""
_NUM_HIGHLIGHTED = 24
"""Texts whose words a report shades."""
_TEXT_COLUMNS = ("text", "sentence", "review")
_ASPECT_COLUMNS = ("aspect", "category", "target")
_TARGET_COLUMNS = ("label", "polarity", "sentiment")


class AspectSentimentSettings(TextSettings):
    """Settings of aspect sentiment."""

    name: str = "aspect-sentiment"
    query: Query
    """The query that attends to the text: a learned vector for each aspect (`learned`), the mean hidden state of the
    aspect's words, which are encoded after the text (`text`), or the sum of the two (`both`). Unset: both, but text
    where a model is fine-tuned or aspects are terms of the texts."""
    projections: bool = True
    """Whether keys and values are learned projections of the hidden states."""
    ngrams: int = Field(ge=0, le=5)
    """Up to this length, n-grams of tokens are the features of a linear model beside the network, as in text
    classification; 0 for none. Unset: 2, or 5 where tokens are characters or bytes; 0 for fine-tuning."""
    ignored_labels: list[str] = Field(default_factory=lambda: ["conflict"])
    """Rows with these labels are left out; SemEval labels mixed opinions `conflict`."""
    balance: bool = False
    """Weight rows so that all labels have the same weight in the loss."""


@dataclass(frozen=True)
class AspectBatch:
    """Texts with an aspect after each, and the index of the aspect."""

    texts: TextBatch
    aspects: Int[Tensor, " batch"]

    @property
    def num_targets(self) -> int:
        return self.texts.num_targets

    @property
    def num_tokens(self) -> int:
        return self.texts.num_tokens

    def tensors(self) -> list[Tensor | None]:
        return [*self.texts.tensors(), self.aspects]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "AspectBatch":
        *others, aspects = tensors
        assert aspects is not None
        return AspectBatch(self.texts.with_tensors(others), aspects)


class AspectSentiment(TextTask[AspectSentimentSettings]):
    """Texts, aspects and labels, by an encoder with a query for each aspect."""

    name = "aspect-sentiment"
    description = "aspect sentiment"
    output_description = "the label of an aspect of a text"
    other_names = ("absa", "aspects", "aspect-based-sentiment")
    Settings = AspectSentimentSettings
    roles = _ROLES
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, "label": LabelCodec, "aspect": LabelCodec}
    store_columns = ("text", "label")
    metrics = ("accuracy", "macro_f1", "matthews", "calibration_error")
    has_labels = True
    attention_kind = None

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.suffix == ".xml":
            return Detection("an XML file of aspects (SemEval)", confidence=0.9)
        if all(summary.has_column(*names) for names in (_TEXT_COLUMNS, _ASPECT_COLUMNS, _TARGET_COLUMNS)):
            return Detection("columns of a text, an aspect and a label", confidence=0.8)
        return None

    @property
    def label_codec(self) -> LabelCodec:
        return codec_of(self.codecs, "label", LabelCodec)

    @property
    def aspect_codec(self) -> LabelCodec:
        return codec_of(self.codecs, "aspect", LabelCodec)

    def cache_key(self) -> dict[str, Any]:
        return {**super().cache_key(), "ignored_labels": self.settings.ignored_labels}

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        source = open_source(config, _ROLES, rows)
        ignored = frozenset(self.settings.ignored_labels)
        if not ignored:
            return source
        train, valid, test = (
            None if table is None else _without(table, ignored) for table in (source.train, source.valid, source.test)
        )
        assert train is not None, "a source has a training table"
        return replace(source, train=train, valid=valid, test=test)

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        counts: dict[str, int] = {}
        for row in data.rows():
            counts[row[1].strip()] = counts.get(row[1].strip(), 0) + 1
        aspects = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        labels = LabelCodec.fit(row[-1] for row in data.rows())
        return {**super().fit_codecs(data), "label": labels, "aspect": LabelCodec(aspects)}

    def input_of(self, row: Sequence[str]) -> str:
        return SEPARATOR.join(row[:-1])

    def target_of(self, row: Sequence[str]) -> str:
        return row[-1].strip()

    def notes(self) -> list[str]:
        aspects = self.aspect_codec.counts
        return [
            *super().notes(),
            self.label_codec.describe(),
            f"{format_count(len(aspects), 'aspect')}: {format_frequencies(aspects)}",
        ]

    def expand_input(self, text: str, aspect: str | None) -> list[str]:
        """The text with one aspect, which may follow it after a tab already, or with each known aspect."""
        if aspect is not None:
            return [f"{text}{SEPARATOR}{aspect}"]
        if SEPARATOR in text:
            return [text]
        aspects = self.aspect_codec.labels
        if len(aspects) > _MOST_ASPECTS:
            raise ConfigError(f"the model has {format_count(len(aspects), 'aspect')}: name the one to be judged")
        return [f"{text}{SEPARATOR}{each}" for each in aspects]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        texts = encode_texts([row[:-1] for row in rows], self.tokenizer, self.settings.max_length)
        labels, aspects = self.label_codec.encode([row[-1] for row in rows]), self._aspect_indices(rows)
        return [texts, [[*label, aspect] for label, aspect in zip(labels, aspects, strict=True)]]

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        pairs = [self._split(text, number) for number, text in enumerate(inputs, start=1)]
        texts = encode_texts(pairs, self.tokenizer, self.settings.max_length)
        return [texts, [[0, aspect] for aspect in self._aspect_indices(pairs)]]

    def unseen_in(self, inputs: Iterable[str]) -> list[str]:
        return self.aspect_codec.unknown(text.rpartition(SEPARATOR)[2] for text in inputs)

    def _aspect_indices(self, rows: Sequence[Sequence[str]]) -> list[int]:
        return [index for (index,) in self.aspect_codec.encode([row[1] for row in rows])]

    def _split(self, text: str, number: int) -> tuple[str, str]:
        text, _, aspect = text.rpartition(SEPARATOR)
        if not text.strip() or not aspect.strip():
            raise DataError(f"input {number} must be a text, a tab and an aspect")
        self._require_known(aspect.strip(), "")
        return text, aspect.strip()

    def choose(self, context: ChoiceContext) -> Choices:
        reasons = {"model": "lstm: it learns labels of short texts fastest"}
        if self.settings.tokenizer is not None:
            return Choices(preset="lstm", reasons=reasons)
        statistics = TextStatistics.of([text for row in context.rows for text in self.texts_of(row)])
        values, why = choose_label_words(self, statistics, context)
        return Choices(values, "lstm", {**reasons, "tokenizer": why})

    def defaults(self, context: DefaultsContext) -> Defaults:
        is_open = context.is_finetuned or any("aspect terms" in note for note in context.data.notes)
        train = super().defaults(context).train
        task: dict[str, Any] = {"query": "text" if is_open else "both", "ngrams": default_ngrams(self, context)}
        head = {"pooling": default_pooling(context.model)}
        if context.is_finetuned:
            return replace(regularized_tuning(context) or Defaults(), train=train, task=task, head=head)
        if self.settings.embeddings is None or context.num_rows >= _FEW_ROWS:
            return Defaults(train, task, head)
        width = read_toml(Path(self.settings.embeddings) / "run.toml")["model"]["model_dim"]
        return Defaults(
            {**train, "label_smoothing": _SMOOTHING},
            task,
            {**head, "dropout": _HEAD_DROPOUT},
            model={**_ONE_LAYER, **({"model_dim": width} if width <= _WIDEST and width % _WIDTHS == 0 else {})},
            reasons={
                "model.num_layers": "1: with given embeddings and few rows, as wide as these and with more dropout"
            },
        )

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Mapping[str, Any]) -> None:
        for row in (row for rows in held_out.values() for row in rows):
            self._require_known(row[1].strip(), " of a held-out row")

    def _require_known(self, aspect: str, where: str) -> None:
        """Raise for an aspect without a query: one that training did not see, where its words are not read."""
        known = self.aspect_codec.labels
        if self.settings.query != "learned" or aspect in known:
            return
        meant = "".join(f"did you mean {name!r}? " for name in get_close_matches(aspect, known, n=1))
        raise DataError(
            f"unknown aspect {aspect!r}{where}; {meant}known: {format_names(known)}; with task.query=both the model "
            "reads the words of any aspect"
        )

    def build(self, model: ModelConfig, head: HeadConfig) -> "AspectClassifier":
        return AspectClassifier(
            model,
            head,
            self.tokenizer.vocab_size,
            len(self.label_codec),
            num_aspects=len(self.aspect_codec),
            query=self.settings.query,
            has_projections=self.settings.projections,
            ngrams=self.settings.ngrams,
        )

    def solve(self, model: "AspectClassifier", data: Prepared, *, seconds: float | None = None) -> bool:
        ids, _ = data.train.column(1)  # the label and the aspect of each row
        return solve_ngrams(self, model.ngrams, data, ids.reshape(-1, 2)[:, 0].astype(np.int64), "classes", seconds)

    @torch.no_grad()
    def blend(self, model: "AspectClassifier", batches: Iterator[AspectBatch], device: torch.device) -> None:
        def parts(batch: AspectBatch) -> BlendedParts:
            texts = batch.texts
            return (*model.parts(texts.source, texts.lengths, texts.segments, batch.aspects), texts.targets)

        blend_ngrams(model.ngrams, (parts(to_device(batch, device)) for batch in batches), "classes")

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> AspectBatch:
        texts, known = columns
        labels, aspects = np.stack(known).T
        targets = class_targets(labels, len(self.label_codec))
        weights = balanced_weights(self.label_codec)[targets] if is_training and self.settings.balance else None
        batch = make_text_batch(texts, targets, self.tokenizer, weights)
        # The start token may be the same as the end token, and does not end the text.
        segments = F.pad(segments_of(batch.source[:, 1:], self.tokenizer.end), (1, 0))
        return AspectBatch(replace(batch, segments=segments), torch.from_numpy(np.ascontiguousarray(aspects)))

    def pad_batch(self, batch: AspectBatch, num_rows: int, length: int) -> AspectBatch:
        texts = pad_text_batch(batch.texts, num_rows, length, self.tokenizer.pad)
        return AspectBatch(texts, pad_rows(batch.aspects, num_rows))

    def loss(self, model: "AspectClassifier", batch: AspectBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the rows."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        return classification_loss(_logits(model, batch), batch.texts.targets, batch.texts.weights, objective)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[AspectBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each row's label."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += label_losses(_logits(model, batch), batch.texts.targets).tolist()
            counts += count_targets(batch.texts.targets)
        return Likelihoods(losses, counts)

    def outputs(self, model: "AspectClassifier", batch: AspectBatch) -> list[tuple[list[float], list[float]]]:
        """The probability of each label, and the attention weight of each token."""
        recorded: list[Tensor] = []
        model.pooling.lookup.watcher = recorded.append
        try:
            probabilities = _logits(model, batch).double().softmax(dim=-1)
        finally:
            model.pooling.lookup.watcher = None
        return list(zip(probabilities.tolist(), recorded[0][:, 0, 0].double().tolist(), strict=True))

    def prediction(self, text: str, output: tuple[list[float], list[float]]) -> Prediction:
        text, _, aspect = text.rpartition(SEPARATOR)
        numbers, weights = output
        probabilities = dict(zip(self.label_codec.labels, numbers, strict=True))
        ((_, offsets),) = self.tokenizer.encode_with_offsets([text])
        words = word_weights(text, weights[1:], offsets)  # the first token is the start
        best = most_probable(probabilities)
        return AspectPrediction(text, best, None, probabilities, probabilities[best], aspect.strip(), words)

    def attribution(self, prediction: Prediction, target: str | None = None) -> Attribution:
        assert isinstance(prediction, AspectPrediction)
        probabilities = prediction.probabilities or {}
        return Attribution(prediction.aspect, prediction.output, probabilities, prediction.weights, target)

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        return fit_classifier([self.input_of(row) for row in rows], [self.target_of(row) for row in rows])

    def examples(self, data: EvaluationData) -> Examples:
        return class_examples(self.label_codec, data)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("accuracy", "matthews")

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        both = list(zip(data.predictions, (self.target_of(row) for row in data.rows), strict=True))
        wrong, right = (
            [each for each in both if (each[0].output == each[1]) is is_right] for is_right in (False, True)
        )
        shown = [*wrong[: _NUM_HIGHLIGHTED // 2], *right[: _NUM_HIGHLIGHTED // 2]]
        texts = [(prediction.input, [self.attribution(prediction, target)]) for prediction, target in shown]
        return ReportContent(
            samples=self.samples(model, data),
            confusion=confusion_table(self.label_codec, data),
            facts=self.facts(),
            sections=[Section("Word attributions", texts=texts)],
        )

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(("text", "aspect"), labels=tuple(self.label_codec.labels), output="label")


@dataclass(frozen=True)
class AspectPrediction(Prediction):
    """The label of one aspect of a text."""

    aspect: str = ""
    weights: list[tuple[str, float]] = field(default_factory=list)
    """The attention weight of each word of the text."""

    @property
    def key(self) -> str:
        return self.aspect


class AspectClassifier(nn.Module):
    """Token ids and an aspect in, a logit for each label out.

    A row is the start, the text, an end, the aspect, an end. With a learned query alone, the aspect is not encoded.
    """

    def __init__(
        self,
        config: ModelConfig,
        head: HeadConfig,
        vocab_size: int,
        num_outputs: int,
        *,
        num_aspects: int,
        query: Query,
        has_projections: bool,
        ngrams: int = 0,
    ) -> None:
        super().__init__()
        self.query: Query = query
        self.ngrams = LinearNgrams(ngrams, vocab_size, num_outputs) if ngrams else None
        self.body = build_body(config, vocab_size)
        self.pooling = AspectAttention(config, num_aspects, query=query, has_projections=has_projections)
        self.head = PredictionHead(
            config.model_dim, num_outputs, dropout=head.dropout, has_hidden_layer=head.hidden_layer
        )

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None,
        segments: Int[Tensor, "batch time"],
        aspects: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch outputs"]:
        """`segments` are 0 for a text and its end, and 1 for the aspect after it."""
        network, own = self.parts(source, lengths, segments, aspects)
        return network if own is None or self.ngrams is None else self.ngrams.blend(network, own)

    def parts(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None,
        segments: Int[Tensor, "batch time"],
        aspects: Int[Tensor, " batch"],
    ) -> tuple[Float[Tensor, "batch outputs"], Float[Tensor, "batch outputs"] | None]:
        """The logits of the network and those of the n-grams, which a model in training mode does not have."""
        own = None if self.ngrams is None or self.training else self.ngrams(source, lengths)
        time = torch.arange(source.size(1), device=source.device)
        if lengths is None:
            lengths = torch.full_like(source[:, 0], source.size(1))
        text_lengths = ((segments == 0) & (time < lengths[:, None])).sum(dim=1)
        encoded = text_lengths if self.query == "learned" else lengths
        hidden_states = self.body.encode(source, encoded, segments=segments).hidden_states
        is_word = (time > 0) & (time < text_lengths[:, None] - 1)
        is_aspect = (time >= text_lengths[:, None]) & (time < lengths[:, None] - 1)
        return self.head(self.pooling(hidden_states, is_word, is_aspect, aspects)), own


class AspectAttention(nn.Module):
    """What the query for an aspect retrieves from the words of a text.

    The query is a learned vector for each aspect, the mean hidden state of the aspect's words, or their sum. Learned
    vectors are initialized to zero, for which all words have the same weight. The vector of an aspect that training did
    not see, whose index is the number of aspects, is zero.
    """

    def __init__(self, config: ModelConfig, num_aspects: int, *, query: Query, has_projections: bool) -> None:
        super().__init__()
        model_dim = config.model_dim

        def projection() -> nn.Module:
            return nn.Linear(model_dim, model_dim) if has_projections else nn.Identity()

        self.queries = None if query == "text" else nn.Embedding(num_aspects, model_dim)
        self.query = None if query == "learned" else projection()
        self.key, self.value = projection(), projection()
        self.lookup = make_lookup(config, DotProduct(model_dim**-0.5))
        if self.queries is not None:
            nn.init.zeros_(self.queries.weight)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time model"],
        is_word: Bool[Tensor, "batch time"],
        is_aspect: Bool[Tensor, "batch time"],
        aspects: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch model"]:
        q = torch.zeros_like(hidden_states[:, 0])
        if self.queries is not None:
            is_known = aspects < self.queries.num_embeddings
            q = q + (self.queries(aspects * is_known) * is_known[:, None]).to(q.dtype)
        if self.query is not None:
            share = is_aspect.to(hidden_states.dtype) / is_aspect.sum(dim=1, keepdim=True).clamp(min=1)
            q = q + self.query(torch.einsum("btm,bt->bm", hidden_states, share.to(hidden_states.dtype)))
        k, v = self.key(hidden_states), self.value(hidden_states)
        found = self.lookup(q[:, None, None], k[:, None], v[:, None], is_word[:, None, None])
        return found[:, 0, 0]


def word_weights(text: str, weights: Sequence[float], offsets: Sequence[tuple[int, int]]) -> list[tuple[str, float]]:
    """The words and punctuation marks of a text, each with the summed weight of its tokens.

    A token belongs to the first word that ends after the token begins. Tokens that were truncated have no weight.

    Example:
        >>> word_weights("cold soup!", [0.25, 0.5, 0.125, 0.125], [(0, 2), (2, 4), (4, 9), (9, 10)])
        [('cold', 0.75), ('soup', 0.125), ('!', 0.125)]
    """
    words = list(_WORD.finditer(text))
    if not words:
        return []
    sums, place = [0.0] * len(words), 0
    for weight, (start, _) in zip(weights, offsets, strict=False):
        while place < len(words) - 1 and words[place].end() <= start:
            place += 1
        sums[place] += weight
    return [(word[0], total) for word, total in zip(words, sums, strict=True)]


def _logits(model: AspectClassifier, batch: AspectBatch) -> Float[Tensor, "batch labels"]:
    texts = batch.texts
    return model(texts.source, texts.lengths, texts.segments, batch.aspects).float()


def _without(table: Table, ignored: frozenset[str]) -> Table:
    """The table without rows of ignored labels."""
    scanned = islice(table.read(), _ROWS_SCANNED)
    found = sorted({values[_LABEL].strip() for _, values, _ in scanned if values} & ignored)
    inferred = [f"{table.name}: rows with the label {format_names(found)} are ignored"] if found else []
    return replace(table, inferred=[*table.inferred, *inferred], read=partial(_read_without, table.read, ignored))


def _read_without(read: Callable[[], Iterator[Record]], ignored: frozenset[str]) -> Iterator[Record]:
    return (record for record in read() if not record[1] or record[1][_LABEL].strip() not in ignored)
