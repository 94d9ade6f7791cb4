"""Text classification: the label of a text or of a pair of texts; one label, or any number of them.

Howard & Ruder, "Universal Language Model Fine-tuning for Text Classification" (2018), and Devlin et al., "BERT"
(2018), section 4.1, for pretrained models; from scratch it is the task of Kim (2014).

One label is predicted by the softmax of the logits, several by the sigmoid of each.

Dimensions: `batch` texts, `labels` classes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.linear import fit_classifier, fit_multi_label
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.labels import LabelCodec, split_labels
from regard.data.codecs.text import FEWEST_TOKENS, MOST_TOKENS, TextCodec
from regard.data.formats.flags import join_flags
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.summary import ColumnSummary
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows, Rows, Source, open_source
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import confusion
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, SequenceClassifier, default_pooling
from regard.models.linear_ngrams import LinearNgrams, Outputs, TokenRows
from regard.nn.losses import IGNORED, contrastive_losses
from regard.tasks.capabilities import LabeledVectors
from regard.tasks.choices import ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import ExportSpec, Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.labeled_columns import (
    FEWEST_LABELED,
    LABEL_COLUMNS,
    PAIR_COLUMNS,
    find_label_lists,
    find_labeled_columns,
)
from regard.tasks.task import (
    PLAIN,
    Detection,
    EvaluationData,
    ImportedCodecs,
    Likelihoods,
    Objective,
    repeat_batch,
    symmetric_kl,
    to_device,
)
from regard.tasks.text import (
    SEPARATOR,
    TextBatch,
    TextSettings,
    TextTask,
    encode_texts,
    make_text_batch,
    pad_text_batch,
    regularized_tuning,
    small_batches,
)
from regard.text.statistics import TextStatistics, choose_tokenizer
from regard.text.tokenizer import CONTINUED, Tokenizer

_MOST_COLUMNS = 3
"""With more columns than those of a pair and its label, the last one need not be the label."""
_SEPARATORS = (",", ";", "|", "\n")
_LISTS_OF_LABELS = {*LABEL_COLUMNS, "tags", "tokens", "words"}
"""Names of lists in which a row has several labels; beside other lists, a column of labels may be one."""
_CHARACTERS_PER_WORD = 25
"""The vocabulary has a token for each 25 characters of data: most words of a small file."""
_LONG_WORDS, _LONG_TOKENS = 60, 4_096
"""On a CPU, an LSTM takes too long to read texts with more words on average; a bag of words reads all of them."""
_WORD_NGRAMS, _CHARACTER_NGRAMS = 2, 5
"""Tokens of the longest n-grams beside the network."""
MOST_CONFUSED = 30
"""A confusion matrix of more labels cannot be read."""
_FEW_ROWS, _CONTRASTIVE_FOR_FEW = 1_000, 1.0
"""With fewer rows the contrastive term helps fine-tuning (docs/log.md)."""
_TUNED_RDROP, _TUNED_LAYER_DECAY = 4.0, 0.85
"""SST-2, fine-tuned on a GPU: accuracy 0.904 with both and an average of the weights, 0.894 without (docs/log.md)."""


_NEARLY_ALL = 0.95
_TEXT_ROLES = ("text", "other")


BlendedParts = tuple[Tensor, Tensor | None, Tensor]
"""The outputs of a network and of the linear model beside it for the rows of a batch, and their targets."""


class LabeledTextSettings(TextSettings):
    """Settings of tasks on texts with a target each."""

    ngrams: int = Field(ge=0, le=5)
    """Up to this length, n-grams of tokens are the features of a linear model beside the network, which is solved
    before training and whose outputs are added to those of the trained network; 0 for none. Unset: 2, or 5 where
    tokens are characters or bytes; 0 for fine-tuning."""


LabeledTextSettingsT = TypeVar("LabeledTextSettingsT", bound=LabeledTextSettings)


class LabeledTextTask(TextTask[LabeledTextSettingsT]):
    """A task on rows of one text or two and a target in the last column."""

    target_role = "label"
    store_columns = ("text", "label")
    outputs_are: Outputs = "classes"

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        roles = self.roles_of(config, rows)
        if rows is None or isinstance(rows, NamedRows):
            config = _with_pair_columns(config, roles, rows)
        return open_source(config, roles, rows)

    def roles_of(self, config: DataConfig, rows: Rows | None) -> tuple[str, ...]:
        """What the columns of a row are: one text or two, and the target."""
        single, pair = (_TEXT_ROLES[0], self.target_role), (*_TEXT_ROLES, self.target_role)
        if config.columns or rows is not None:
            if isinstance(rows, NamedRows) and not config.columns:
                return pair if _has_pair(rows.names) else single
            width = len(config.columns) or (len(rows[0]) if rows else 2)
            if width not in (2, 3):
                named = f" ({format_names(config.columns)})" if config.columns else ""
                given = format_count(width, "column") + named
                raise DataError(f"a row needs one text or two and a {self.target_role} in one column, got {given}")
            return single if width == 2 else pair
        return pair if _has_pair(open_source(config, single).train.names) else single

    def input_of(self, row: Sequence[str]) -> str:
        return SEPARATOR.join(row[:-1])

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        texts = encode_texts([row[:-1] for row in rows], self.tokenizer, self.settings.max_length)
        return [texts, self.codecs["label"].encode([row[-1] for row in rows])]

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        """The two texts of a pair are separated by a tab."""
        encoded = [
            encode_texts([text.split(SEPARATOR)], self.tokenizer, self.settings.max_length)[0] for text in inputs
        ]
        return [encoded, [self.placeholder() for _ in inputs]]

    def placeholder(self) -> list[int]:
        """A stored target where there is none."""
        return [0]

    def pad_batch(self, batch: TextBatch, num_rows: int, length: int) -> TextBatch:
        return pad_text_batch(batch, num_rows, length, self.tokenizer.pad)

    def choose(self, context: ChoiceContext) -> Choices:
        """Words and an LSTM for short texts, embeddings of words alone for long ones; n-grams beside them."""
        statistics = TextStatistics.of([text for row in context.rows for text in self.texts_of(row)])
        is_long = statistics.mean_words > _LONG_WORDS
        preset, reason = ("bag", "long texts") if is_long else ("lstm", "it learns labels of short texts fastest")
        reasons = {"model": f"{preset}: {reason}"}
        values: dict[str, Any] = {"max_length": _LONG_TOKENS} if is_long else {}
        if self.settings.tokenizer is not None:
            return Choices(values, preset, reasons)
        words, why = choose_label_words(self, statistics, context)
        return Choices({**values, **words}, preset, {**reasons, "tokenizer": why})

    def defaults(self, context: DefaultsContext) -> Defaults:
        values = {"ngrams": default_ngrams(self, context)}
        train = {**super().defaults(context).train, **small_batches(context)}
        return Defaults(train, values, {"pooling": default_pooling(context.model)})

    def solve(self, model: SequenceClassifier, data: Prepared, *, seconds: float | None = None) -> bool:
        return solve_ngrams(self, model.ngrams, data, self.stored_targets(data), self.outputs_are, seconds)

    @torch.no_grad()
    def blend(self, model: SequenceClassifier, batches: Iterator[TextBatch], device: torch.device) -> None:
        def parts(batch: TextBatch) -> BlendedParts:
            return (*model.parts(batch.source, batch.lengths, batch.segments), batch.targets)

        blend_ngrams(model.ngrams, (parts(to_device(batch, device)) for batch in batches), self.outputs_are)

    def stored_targets(self, data: Prepared) -> NDArray[Any]:
        """The targets of all training rows: class indices, rows of zeros and ones, or numbers."""
        raise NotImplementedError

    def has_linear_head(self, head: HeadConfig) -> bool:
        return head.is_linear and not self.settings.ngrams

    def head_inputs(self, model: SequenceClassifier, batch: TextBatch) -> LabeledVectors:
        vectors = model.embed(batch.source, batch.lengths, batch.segments)
        return LabeledVectors(vectors, batch.targets, batch.weights)

    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        from regard.tasks.sentence_embedding import embed_texts

        return embed_texts(model, self.tokenizer, inputs, max_length=self.settings.max_length)

    def export_spec(self) -> ExportSpec:
        return replace(super().export_spec(), only_onnx=("task.ngrams",) if self.settings.ngrams else ())

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        return {**super().imported_settings(max_length=max_length, window=window), "ngrams": 0}

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        is_pair = bool(rows) and len(rows[0]) == 3
        return ServerSchema(inputs=("first text", "second text") if is_pair else ("text",), output="label")


class TextClassificationSettings(LabeledTextSettings):
    """Settings of text classification."""

    name: str = "text-classification"
    label_separator: str | None = Field(default=None, min_length=1)
    """The string between the labels of a row that may have several; a row without labels has the separator alone.
    Unset: each row has one label."""
    label_columns: list[str] = Field(default_factory=list)
    """The last ones of `data.columns`, where each is a label that a row has (1, true) or has not (0, false)."""
    balance: bool = False
    """Weight rows so that all labels have the same weight in the loss, however frequent they are."""
    contrastive: float
    """Weight of a supervised contrastive term in the loss: embeddings of texts with the same label are pulled together.
    Unset: 0, but 1 where a pretrained model is fine-tuned on fewer than 1,000 rows with one label each."""


class TextClassification(LabeledTextTask[TextClassificationSettings]):
    """Texts and their labels, by an encoder with a classification head."""

    name = "text-classification"
    description = "text classification"
    other_names = ("classification", "sentiment", "sentiment-analysis", "intent", "topic", "nli")
    Settings = TextClassificationSettings
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, "label": LabelCodec}
    metrics = ("accuracy", "macro_f1", "matthews", "calibration_error")
    multi_label_metrics = ("micro_f1", "macro_f1", "subset_accuracy")
    has_labels = True
    supports_shots = True
    head_kind = "labels"

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        found = cls._detect(summary)
        if found is None or summary.label_separator is None:
            return found
        return replace(found, settings={**found.settings, "label_separator": summary.label_separator})

    @classmethod
    def _detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.is_text_folder:
            return Detection("a folder of texts for each label", confidence=0.95)
        if not summary.columns_given and not set(summary.lists) & _LISTS_OF_LABELS and not summary.has_images:
            if summary.names and (lists := find_label_lists(summary.columns)) is not None:
                columns, separator = lists
                reason = f"several labels in a row ({format_column(columns.labels[0])}, separated by {separator!r})"
                return Detection(reason, 0.65, columns=columns.columns, settings={"label_separator": separator})
            found = find_labeled_columns(summary.columns, has_names=bool(summary.names))
            if found is not None:
                settings = {} if len(found.labels) == 1 else _settings_of_columns(found.labels)
                return Detection(str(found), 0.6 if found.is_named else 0.5, columns=found.columns, settings=settings)
        if summary.num_columns not in (2, 3) or summary.has_images or summary.is_series or summary.is_table_of_numbers:
            return None
        if summary.is_table_of_features and not summary.has_label_separator:
            return None
        if summary.sample and summary.has_decimals(0):
            return None
        if summary.has_label_separator or summary.columns_given == 3:
            return Detection("one text or two and a label", confidence=0.6)
        if summary.has_column(*LABEL_COLUMNS) and not _are_distinct(summary.target):
            return Detection(f"a column of labels ({summary.named_column(*LABEL_COLUMNS)})", confidence=0.6)
        is_wide = not summary.columns_given and len(summary.columns) > _MOST_COLUMNS
        if summary.are_labels(-1) and not summary.target.is_measurement and not is_wide:
            return Detection("few distinct short values in the last column", confidence=0.5)
        if summary.num_columns == 2 and not summary.columns_given and summary.names and _is_label_first(summary):
            return Detection("few distinct whole numbers in the first column", confidence=0.5)
        return None

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        if len(config.columns) < _MOST_COLUMNS or not self.settings.label_columns:
            return super().open(config, rows)
        names, separator = self.settings.label_columns, self.settings.label_separator
        num_texts = len(config.columns) - len(names)
        if separator is None or not 0 < num_texts <= len(_TEXT_ROLES) or config.columns[num_texts:] != names:
            raise ConfigError(
                f"task.label_columns must be the last ones of data.columns after one text or two, and needs "
                f"task.label_separator, got data.columns={config.columns}, task.label_columns={names}, "
                f"task.label_separator={separator!r}"
            )
        roles = (*_TEXT_ROLES[:num_texts], *(f"label {number}" for number in range(1, len(names) + 1)))
        source = open_source(config, roles, rows)
        tables = {"train": source.train, "valid": source.valid, "test": source.test}
        return replace(
            source, **{split: table and join_flags(table, names, separator) for split, table in tables.items()}
        )

    @property
    def label_codec(self) -> LabelCodec:
        return codec_of(self.codecs, "label", LabelCodec)

    @property
    def is_multi_label(self) -> bool:
        return self.settings.label_separator is not None

    def cache_key(self) -> dict[str, Any]:
        columns = {"label_columns": self.settings.label_columns} if self.settings.label_columns else {}
        return {**super().cache_key(), "label_separator": self.settings.label_separator, **columns}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        labels = LabelCodec.fit((row[-1] for row in data.rows()), separator=self.settings.label_separator)
        return {**super().fit_codecs(data), "label": labels}

    @property
    def outputs_are(self) -> Outputs:  # pyright: ignore[reportIncompatibleVariableOverride]  depends on the settings
        return "labels" if self.is_multi_label else "classes"

    def stored_targets(self, data: Prepared) -> NDArray[Any]:
        ids, offsets = data.train.column(1)
        if self.is_multi_label:
            return multi_hot(np.split(ids.astype(np.int64), offsets[1:-1]), len(self.label_codec)).numpy()
        return ids[offsets[:-1]].astype(np.int64)

    def labels_of(self, row: Sequence[str]) -> Sequence[str]:
        return split_labels(row[-1], self.settings.label_separator)

    def target_of(self, row: Sequence[str]) -> str:
        """The label, or several as a prediction has them: in the order of the codec."""
        if not self.is_multi_label:
            return row[-1].strip()
        own = self.labels_of(row)
        return self._join_labels([label for label in self.label_codec.labels_with([row[-1]]) if label in own])

    def notes(self) -> list[str]:
        return [*super().notes(), self.label_codec.describe()]

    def defaults(self, context: DefaultsContext) -> Defaults:
        base = super().defaults(context)
        is_few = context.is_finetuned and context.num_rows < _FEW_ROWS and not self.is_multi_label
        values = {**base.task, "contrastive": _CONTRASTIVE_FOR_FEW if is_few else 0.0}
        tuned = regularized_tuning(context, rdrop=_TUNED_RDROP, layer_decay=_TUNED_LAYER_DECAY) or Defaults()
        return replace(tuned, train=base.train, task=values, head=base.head)

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        if self.settings.contrastive and self.is_multi_label:
            raise ConfigError(
                f"task.contrastive is for texts with one label each, got {self.settings.contrastive} with "
                f"task.label_separator={self.settings.label_separator!r}"
            )

    def objective_terms(self) -> frozenset[str]:
        """Labels that are predicted one by one have no distribution to be smoothed."""
        return self.objectives - {"label_smoothing"} if self.is_multi_label else self.objectives

    def build(self, model: ModelConfig, head: HeadConfig) -> SequenceClassifier:
        size, num_labels = self.tokenizer.vocab_size, len(self.label_codec)
        return SequenceClassifier(model, head, size, num_labels, ngrams=self.settings.ngrams)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> TextBatch:
        texts, labels = columns
        if self.is_multi_label:
            return make_text_batch(texts, multi_hot(labels, len(self.label_codec)), self.tokenizer)
        targets = class_targets(np.array([numbers[0] for numbers in labels]), len(self.label_codec))
        weights = balanced_weights(self.label_codec)[targets] if is_training and self.settings.balance else None
        return make_text_batch(texts, targets, self.tokenizer, weights)

    def loss(self, model: SequenceClassifier, batch: TextBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the texts; with several labels, over the labels of each."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        vectors = model.embed(batch.source, batch.lengths, batch.segments)
        logits = model.head(vectors).float()
        loss = classification_loss(logits, batch.targets, batch.weights, objective)
        if not self.settings.contrastive:
            return loss
        terms = contrastive_losses(vectors.float(), batch.targets, batch.weights > 0) * batch.weights
        return loss + self.settings.contrastive * terms.sum() / (2 if objective.rdrop else 1)

    @property
    def uses_whole_batch(self) -> bool:
        return self.settings.contrastive > 0

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[TextBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each text's labels."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += label_losses(model(batch.source, batch.lengths, batch.segments).float(), batch.targets).tolist()
            counts += count_targets(batch.targets)
        return Likelihoods(losses, counts)

    def outputs(self, model: Any, batch: TextBatch) -> list[list[float]]:
        logits = model(batch.source, batch.lengths, batch.segments).double()
        return (logits.sigmoid() if self.is_multi_label else logits.softmax(dim=-1)).tolist()

    def prediction(self, text: str, output: list[float]) -> Prediction:
        probabilities = dict(zip(self.label_codec.labels, output, strict=True))
        if self.is_multi_label:
            chosen = [label for label, probability in probabilities.items() if probability > 0.5]
            # Labels are predicted independently of each other, so the probability of the set is a product.
            together = math.prod(max(probability, 1 - probability) for probability in probabilities.values())
            return Prediction(text, self._join_labels(chosen), probabilities=probabilities, probability=together)
        best = most_probable(probabilities)
        return Prediction(text, best, probabilities=probabilities, probability=probabilities[best])

    def _join_labels(self, labels: Sequence[str]) -> str:
        return f"{self.settings.label_separator} ".join(labels)

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        texts, labels = [self.input_of(row) for row in rows], [self.labels_of(row) for row in rows]
        if self.is_multi_label:
            return fit_multi_label(texts, labels, join=self._join_labels)
        return fit_classifier(texts, [some[0] for some in labels])

    def metric_names(self) -> tuple[str, ...]:
        return self.multi_label_metrics if self.is_multi_label else self.metrics

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return self.metric_names()[0]

    def examples(self, data: EvaluationData) -> Examples:
        if self.is_multi_label:
            separator = self.settings.label_separator
            return Examples(
                outputs=[frozenset(split_labels(each.output, separator)) for each in data.predictions],
                targets=[frozenset(split_labels(row[-1], separator)) for row in data.rows],
                labels=tuple(self.label_codec.labels_with(row[-1] for row in data.rows)),
            )
        return class_examples(self.label_codec, data)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return self.multi_label_metrics if self.is_multi_label else ("accuracy", "matthews")

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        table = None if self.is_multi_label else confusion_table(self.label_codec, data)
        return ReportContent(samples=self.samples(model, data), confusion=table, facts=self.facts())

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return replace(super().server_schema(rows), labels=tuple(self.label_codec.labels))

    def export_spec(self) -> ExportSpec:
        labels = tuple(self.label_codec.labels)
        return replace(super().export_spec(), labels=labels, is_multi_label=self.is_multi_label)

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        return {**super().imported_settings(max_length=max_length, window=window), "contrastive": 0.0}

    @classmethod
    def imported_codecs(cls, imported: ImportedCodecs) -> dict[str, Codec]:
        return {**super().imported_codecs(imported), "label": LabelCodec(dict.fromkeys(imported.labels, 0))}


def choose_label_words(
    task: TextTask[Any], statistics: TextStatistics, context: ChoiceContext
) -> tuple[dict[str, Any], str]:
    """The tokenizer of texts whose labels depend on words, and the reason: words and punctuation marks, lower-cased."""
    kind, why = choose_tokenizer(statistics)
    is_of_words = kind in ("bpe", "words") or (kind == "unigram" and not statistics.is_unspaced)
    if not is_of_words:
        return {"tokenizer": kind, **task.vocabulary(kind, context)}, f"{kind}: {why}"
    size = max(FEWEST_TOKENS, min(MOST_TOKENS, context.num_characters // _CHARACTERS_PER_WORD))
    values = {"tokenizer": "wordpunct", "lowercase": True, "vocab_size": size}
    return values, "wordpunct, lower-cased: most depends on single words and phrases"


def default_ngrams(task: TextTask[Any], context: DefaultsContext) -> int:
    """The length of the n-grams beside a network that is trained from scratch."""
    if context.is_finetuned:
        return 0
    return _CHARACTER_NGRAMS if task.settings.tokenizer in ("characters", "bytes") else _WORD_NGRAMS


def solve_ngrams(
    task: TextTask[Any],
    ngrams: LinearNgrams | None,
    data: Prepared,
    targets: NDArray[Any],
    outputs: Outputs,
    seconds: float | None,
) -> bool:
    """Solve the linear model beside a network for the training rows; False where there is none."""
    if ngrams is None:
        return False
    rows = TokenRows(*data.train.column(0))
    spellings = spellings_of(task.tokenizer, are_words=task.settings.tokenizer in ("words", "wordpunct"))
    return ngrams.solve(rows, targets, spellings, outputs, seconds=seconds)


def blend_ngrams(ngrams: LinearNgrams | None, parts: Iterable[BlendedParts], outputs: Outputs) -> None:
    """Fit the scales of a network and of the linear model beside it on the validation rows."""
    if ngrams is None or not ngrams.is_solved:
        return
    found = []
    for network, own, targets in parts:
        assert own is not None, "a model in evaluation mode has both"
        found.append((network.float(), own.float(), targets))
    network, own, targets = (torch.cat(part) for part in zip(*found, strict=True))
    ngrams.fit_scales(network, own, targets, outputs)


def spellings_of(tokenizer: Tokenizer, *, are_words: bool) -> list[str]:
    """The characters of each token, words with a space on both sides; none for special tokens."""

    def spelled(name: str) -> str:
        if not are_words:
            return name
        return name.removeprefix(CONTINUED) if name.startswith(CONTINUED) else f" {name} "

    ids = range(tokenizer.vocab_size)
    pieces = zip(ids, tokenizer.pieces(ids), strict=True)
    return ["" if number in tokenizer.specials else spelled(piece) for number, piece in pieces]


def _are_distinct(labels: ColumnSummary) -> bool:
    """Whether nearly all values of many rows occur once: texts in a column called `label`, as those of pictures."""
    return len(labels.cells) >= FEWEST_LABELED and labels.num_distinct >= _NEARLY_ALL * len(labels.cells)


def _is_label_first(summary: DetectionSummary) -> bool:
    """Whether the first of two columns has the numbers of classes and the other one text."""
    return summary.are_labels(0) and summary.is_numeric(0) and not summary.is_numeric(1) and not summary.are_dates(1)


def class_examples(codec: LabelCodec, data: EvaluationData) -> Examples:
    """Examples of one label each, with the confidence of each prediction; a label that training did not see is one."""
    targets = [row[-1].strip() for row in data.rows]
    return Examples(
        outputs=[each.output for each in data.predictions],
        targets=targets,
        labels=tuple(codec.labels_with(targets)),
        confidences=[(each.probabilities or {})[each.output] for each in data.predictions],
    )


def confusion_table(codec: LabelCodec, data: EvaluationData) -> dict[str, Any] | None:
    """The confusion matrix, where it has few enough labels to be read."""
    targets = [row[-1].strip() for row in data.rows]
    labels = codec.labels_with(targets)
    if len(labels) > MOST_CONFUSED:
        return None
    found = confusion([each.output for each in data.predictions], targets, labels=labels)
    return {"labels": list(found.labels), "counts": found.counts.tolist()}


def most_probable(probabilities: Mapping[str, float]) -> str:
    return max(probabilities, key=lambda label: probabilities[label])


def class_targets(indices: NDArray[np.int64], num_labels: int) -> Tensor:
    """Class indices as targets; a label that training did not see is ignored by the loss."""
    return torch.from_numpy(np.where(indices < num_labels, indices, IGNORED))


def count_targets(targets: Tensor) -> list[int]:
    """1 for each row, but 0 for one whose label training did not see, which has no likelihood."""
    return (targets != IGNORED).long().tolist() if targets.dim() == 1 else [1] * len(targets)


def multi_hot(labels: Sequence[NDArray[np.int64]], num_labels: int) -> Float[Tensor, "batch labels"]:
    """A row of zeros and ones for each list of class indices."""
    targets = torch.zeros(len(labels), num_labels)
    for row, numbers in zip(targets, labels, strict=True):
        row[torch.from_numpy(numbers[numbers < num_labels])] = 1.0
    return targets


def balanced_weights(codec: LabelCodec) -> Float[Tensor, " labels"]:
    """The weight of a row of each label, such that all labels weigh the same and rows 1 on average.

    Example:
        >>> balanced_weights(LabelCodec({"rare": 1, "common": 3})).tolist()
        [2.0, 0.6666666865348816]
    """
    total = sum(codec.counts.values())
    return torch.tensor([total / (len(codec) * count) for count in codec.counts.values()], dtype=torch.float32)


def classification_loss(
    logits: Float[Tensor, "batch labels"], targets: Tensor, weights: Float[Tensor, " batch"], objective: Objective
) -> Float[Tensor, ""]:
    """The weighted loss summed over rows; with R-Drop, of a repeated batch."""
    loss = (label_losses(logits, targets, objective.label_smoothing) * weights).sum()
    if not objective.rdrop:
        return loss
    divergence = _divergence(logits, is_single=targets.dim() == 1) * weights.chunk(2)[0]
    return loss / 2 + objective.rdrop / 4 * divergence.sum()


def label_losses(
    logits: Float[Tensor, "batch labels"], targets: Tensor, label_smoothing: float = 0.0
) -> Float[Tensor, " batch"]:
    """The cross-entropy of each row, whose target is a class index or a row of zeros and ones."""
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=label_smoothing, ignore_index=IGNORED)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)


def _divergence(logits: Float[Tensor, "two labels"], *, is_single: bool) -> Float[Tensor, " one"]:
    """The symmetric KL divergence between the two passes of each text."""
    if is_single:
        return symmetric_kl(logits.log_softmax(dim=-1)).sum(dim=-1)
    one, other = logits.chunk(2)
    return ((one.sigmoid() - other.sigmoid()) * (one - other)).sum(dim=-1)


def _settings_of_columns(names: Sequence[str]) -> dict[str, Any]:
    """The settings with which columns of 0 and 1 are the labels of a row, separated by what no name has."""
    separator = next((each for each in _SEPARATORS if not any(each in name for name in names)), _SEPARATORS[-1])
    return {"label_columns": list(names), "label_separator": separator}


def _has_pair(names: Sequence[str]) -> bool:
    """Whether columns have the names of two texts that belong together."""
    plain = {name.rpartition(".")[2].lower() for name in names}
    return any(set(both) <= plain for both in PAIR_COLUMNS)


def _with_pair_columns(config: DataConfig, roles: Sequence[str], rows: Rows | None = None) -> DataConfig:
    """The settings with the columns of a pair, by the names that the table has, where none are set."""
    if config.columns or len(roles) != 3 or not (config.train or rows):
        return config
    found = rows.names if isinstance(rows, NamedRows) else open_source(config, (roles[0], roles[-1])).train.names
    names = {name.rpartition(".")[2].lower(): name for name in found}
    both = next((pair for pair in PAIR_COLUMNS if set(pair) <= set(names)), None)
    if both is None:
        return config
    labels = [name for plain, name in names.items() if plain in _PAIR_TARGETS]
    if not labels:
        raise DataError(f"which column is the {roles[-1]}? The table has {format_names(found)}")
    return config.changed(columns=[names[both[0]], names[both[1]], labels[0]])


_PAIR_TARGETS = ("label", "gold_label", "labels", "class", "category", "score", "similarity", "target", "is_duplicate")
