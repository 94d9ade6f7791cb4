"""Token classification: a tag for each word of a sentence, such as entities or parts of speech.

Lample et al., "Neural Architectures for Named Entity Recognition" (2016). https://arxiv.org/abs/1603.01360
Devlin et al., "BERT" (2018), section 5.3: a word is classified by the hidden state of its first token.
https://arxiv.org/abs/1810.04805

Entity tags may be written in any scheme; the model is trained on and predicts BIO. Words beyond the first
`max_length` tokens of a sentence are not read: the tag `O` is predicted for them, or the most frequent tag where tags
are not those of entities.

Dimensions: `batch` sentences, `time` tokens, `words` of a sentence, `tags` classes.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.baselines.tags import fit_tagger
from regard.data.batches import TensorBatch, pad
from regard.data.codecs.codec import Codec, codec_of
from regard.data.codecs.labels import describe_unknown
from regard.data.codecs.text import TextCodec
from regard.data.formats.conll import tagged_columns
from regard.data.formats.messages import format_count, format_names
from regard.data.prepare import FitData, Prepared, unknown_label_warnings
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.classes import LabelCounts
from regard.evaluation.metrics.entities import (
    OUTSIDE,
    convert_tags,
    count_entities,
    describe_faults,
    detect_scheme,
    entities_of,
    find_faults,
    may_follow,
)
from regard.evaluation.registry import PAIRS
from regard.files import load_json
from regard.logging import log_info, log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, PredictionHead, build_body, default_pooling
from regard.nn.crf import ConditionalRandomField, transition_mask
from regard.nn.dropout import Dropout
from regard.nn.losses import IGNORED
from regard.tasks.capabilities import LabeledVectors
from regard.tasks.choices import ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import ExportSpec, Prediction, ServerSchema, rounded
from regard.tasks.detection import DetectionSummary
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
from regard.tasks.text import TextSettings, TextTask, pad_rows, pad_time, regularized_tuning, small_batches
from regard.tasks.token_classification.sentences import (
    AFFIX_BUCKETS,
    AFFIXES,
    NUM_FORMS,
    choose_words,
    encode_sentences,
    ignores_case,
    open_sentences,
    words_of,
)

SCHEME = "BIO"
"""The scheme in which entity tags are learned and predicted."""
_ENTITY_METRICS = ("entity_precision", "entity_recall", "entity_f1", "entity_macro_f1")
_TAG_METRICS = ("accuracy", "macro_f1")
_TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "chunk_tags")
_WORD_COLUMNS = ("tokens", "words")
_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
_MOST_LISTED = 12
_BUCKETS, _MULTIPLIER, _FEATURE_DROPOUT = 1 << 17, 1_000_003, 0.2
"""The table of a linear model of features, which are hashed, and the share that a training step drops."""
_TOKEN, _SHAPE, *_PARTS = range(2 + len(AFFIXES))
_NUM_COLUMNS = 2 + len(AFFIXES)
_MOVES = (0, 1, -1, 2, -2)
"""How many places before a word a neighbor is."""
_WINDOW = sorted(
    enumerate(
        [
            *(((_TOKEN, move),) for move in _MOVES),
            ((_TOKEN, 1), (_TOKEN, 0)), ((_TOKEN, 0), (_TOKEN, -1)), ((_TOKEN, 1), (_TOKEN, -1)),
            ((_SHAPE, 0), (_TOKEN, 0)), ((_SHAPE, 0), (_SHAPE, 1)), ((_SHAPE, 0), (_SHAPE, -1)),
            ((_SHAPE, 0), (_TOKEN, 1)),
            *(((part, 0),) for part in _PARTS), *(((part, 0), (_SHAPE, 0)) for part in _PARTS),
            *(((part, 1),) for part in _PARTS), *(((part, -1),) for part in _PARTS),
        ],
        start=1,
    ),
    key=lambda item: len(item[1]),
)  # fmt: skip
"""The features of the linear model, by number: a column of a neighbor, or a pair of these; single ones first."""
_CHARACTERS_PER_WORD = 100
"""The vocabulary has one word for each 100 characters of data: the others are rare, and known by their features."""
_TUNED_BATCH_TOKENS, _TUNED_LAYER_DECAY = 2_048, 0.85
"""CoNLL-2003, fine-tuned on a GPU with these, a CRF, a hidden layer and an average: F1 0.896, 0.887 without the last
three (docs/log.md)."""
_TOKENS_PER_SECOND = {"cpu": 16_000, "cuda": 28_000}
"""The rough speed of training from scratch, by device; a CPU with bfloat16 has 25,000."""
_MANY_EPOCHS, _DROPOUT, _REGULARIZED = 7.0, 0.5, {"ema_decay": 0.998}
"""From this many passes on, a tagger is regularized: CoNLL-2003, a minute on a GPU (9 epochs), validation F1 0.914 with
these and 0.904 with the dropout of the preset (docs/log.md)."""
_WORD = re.compile("[^ ]+")
"""A word of an input, as in `words_of`."""


@dataclass(frozen=True)
class TagCodec(Codec):
    """The tags of the training rows, in the order of their indices; index 0 is `O`, or the most frequent tag."""

    counts: dict[str, int]
    has_entities: bool

    @classmethod
    def fit(cls, sentences: Iterable[Sequence[str]], *, has_entities: bool) -> Self:
        """Collect tags; those of entities are converted to BIO."""
        counts = Counter(tag for tags in sentences for tag in (_as_entities(tags) if has_entities else tags))
        if len(counts) == 1:
            tag, count = next(iter(counts.items()))
            raise DataError(f"a tagger needs at least two tags: all {format_count(count, 'word')} have {tag!r}")
        outside = OUTSIDE if has_entities else None
        if has_entities:
            # A type whose entities all have one word may have longer ones among held-out rows.
            counts.update({f"I{tag[1:]}": 0 for tag in counts if tag.startswith("B")} | {OUTSIDE: 0})
        first = sorted(counts, key=lambda tag: (tag != outside, -counts[tag], tag))
        return cls({tag: counts[tag] for tag in first}, has_entities)

    @property
    def labels(self) -> list[str]:
        return list(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def written(self, tags: Sequence[str]) -> Sequence[str]:
        """Tags as the model predicts them."""
        return _as_entities(tags) if self.has_entities else tags

    def tags_of(self, row: Sequence[str]) -> Sequence[str]:
        """The tags of a row of words and tags, as the model predicts them."""
        return self.written(words_of(row[1]))

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """The indices of the tags of each sentence; `len(self)` for one that training did not see."""
        indices = {tag: index for index, tag in enumerate(self.counts)}
        return [[indices.get(tag, len(self)) for tag in self.written(words_of(value))] for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        labels = self.labels
        return [" ".join(labels[index] for index in some) for some in ids]

    def describe(self) -> str:
        frequent = sorted(self.counts, key=lambda tag: -self.counts[tag])
        more = f" and {len(frequent) - _MOST_LISTED} more" if len(frequent) > _MOST_LISTED else ""
        listed = ", ".join(f"{tag} ({self.counts[tag]:,})" for tag in frequent[:_MOST_LISTED])
        return f"{format_count(len(self), 'tag')}: {listed}{more}"

    def to_json(self) -> str:
        return json.dumps({"tags": self.counts, "has_entities": self.has_entities}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = load_json(text)
        return cls(values["tags"], values["has_entities"])


class TokenClassificationSettings(TextSettings):
    """Settings of token classification."""

    name: str = "token-classification"
    crf: bool
    """Whether the tags of a sentence are predicted together, by a conditional random field. Unset: for entities and
    chunks, by models that are trained from scratch, or fine-tuned on a GPU."""
    capitalization: bool
    """Whether the model gets capitalization features of each word. Unset: where the tokenizer lower-cases texts and
    the model has an encoder."""
    features: bool
    """Whether the first and last characters of each word are inputs, and a linear model of each word with its
    neighbors is added to the logits of the network. Unset: for models with an encoder that are trained from
    scratch."""


@dataclass(frozen=True)
class SentenceBatch(TensorBatch):
    """Sentences, and the tags of their words."""

    tensor_names = ("source", "lengths", "positions", "num_words", "tags", "weights", "forms", "affixes")
    source: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """In tokens; None where nothing is padded."""
    positions: Int[Tensor, "batch words"]
    """The position of each word's first token."""
    num_words: Int[Tensor, " batch"]
    tags: Int[Tensor, "batch words"]
    weights: Float[Tensor, " batch"]
    """The weight of each sentence in the loss: 0 for one that only pads the batch."""
    forms: Int[Tensor, "batch time"]
    """The capitalization of each token's word."""
    affixes: Int[Tensor, "batch time affixes"]
    """The buckets of its affixes."""
    num_targets: int
    num_tokens: int

    @property
    def is_word(self) -> Bool[Tensor, "batch words"]:
        """True for the words of a sentence, False for padding."""
        return torch.arange(self.positions.size(1), device=self.positions.device) < self.num_words[:, None]


class TokenClassification(TextTask[TokenClassificationSettings]):
    """Sentences and the tags of their words, by an encoder."""

    name = "token-classification"
    description = "token classification"
    other_names = ("ner", "tagging", "pos", "pos-tagging", "chunking", "named-entity-recognition", "slot-filling")
    Settings = TokenClassificationSettings
    roles = ("words", "tags")
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, "tags": TagCodec}
    store_columns = ("tokens", "positions", "tags", "forms", *(f"affix{number}" for number in range(len(AFFIXES))))
    metrics = (*_ENTITY_METRICS, *_TAG_METRICS)
    unit = "sentence"
    head_kind = "tags"
    prediction_columns: ClassVar[Mapping[str, str]] = {**TextTask.prediction_columns, "spans": "spans"}

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.suffix in _SUFFIXES:
            return Detection(f"a file of tagged words ({summary.suffix})", confidence=0.95)
        if summary.is_tagged:
            return Detection("lines of a word and its tags, and blank lines between sentences", confidence=0.95)
        found = tagged_columns({column.name: column.cells for column in summary.columns}) if summary.names else None
        if found is not None and not summary.columns_given and not summary.lists:
            what = "a word in each row" if len(found) > 2 else "lists of tags"
            return Detection(f"{what} ({format_names(found)})", confidence=0.9)
        if summary.has_column(*_WORD_COLUMNS) and summary.has_column(*_TAG_COLUMNS):
            return Detection("columns of words and tags", confidence=0.9)
        if summary.has_lists:
            return Detection("lists of words and tags", confidence=0.9)
        return None

    @property
    def tag_codec(self) -> TagCodec:
        return codec_of(self.codecs, "tags", TagCodec)

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_sentences(config, rows)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        source = self.open(config, rows)
        scheme = detect_scheme(words_of(row.values[1]) for row in source.train)
        notes = []
        if scheme is not None:
            notes.append(f"entity tags in {scheme}; they are learned in {SCHEME}")
            log_info(notes[0])
            if faults := find_faults((words_of(row.values[1]) for row in source.train), scheme):
                notes.append(f"{describe_faults(faults, scheme)}; an entity is taken to begin there")
                log_warning(notes[1])
        prepared = super().prepare(config, rows)
        codec = self.with_codecs(prepared.codecs).tag_codec
        for warning in unknown_label_warnings(codec.counts, prepared.held_out, codec.tags_of, "tag"):
            notes.append(warning)
            log_warning(warning)
        return replace(prepared, notes=[*prepared.notes, *notes])

    def unknown_labels(self, rows: Sequence[Sequence[str]], where: str) -> str | None:
        return describe_unknown(self.tag_codec.counts, map(self.tag_codec.tags_of, rows), where, "tag")

    def target_of(self, row: Sequence[str]) -> str:
        return " ".join(self.tag_codec.tags_of(row))

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row[:1]

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        scheme = detect_scheme(words_of(row[1]) for row in data.rows())
        tags = TagCodec.fit((words_of(row[1]) for row in data.rows()), has_entities=scheme is not None)
        return {**super().fit_codecs(data), "tags": tags}

    def notes(self) -> list[str]:
        return [*super().notes(), self.tag_codec.describe()]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        tags = self.tag_codec.encode([row[1] for row in rows])
        tokens, positions, *features = self._encode_words([row[0] for row in rows])
        kept = [some[: len(words)] for some, words in zip(tags, positions, strict=True)]
        return [tokens, positions, kept, *features]

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        tokens, positions, *features = self._encode_words(inputs)
        return [tokens, positions, [[0] * len(words) for words in positions], *features]

    def _encode_words(self, texts: Sequence[str]) -> list[list[list[int]]]:
        return encode_sentences([words_of(text) for text in texts], self.tokenizer, self.settings.max_length)

    def choose(self, context: ChoiceContext) -> Choices:
        return choose_words(
            self.settings.tokenizer, context, characters_per_word=_CHARACTERS_PER_WORD, model="it learns tags fastest",
            words="each word has a tag",
        )  # fmt: skip

    def defaults(self, context: DefaultsContext) -> Defaults:
        has_encoder = bool(context.model.encoder_depth)
        bound, is_new = self.with_codecs(context.data.codecs), not context.is_finetuned
        tuned = regularized_tuning(context, layer_decay=_TUNED_LAYER_DECAY, batch_tokens=_TUNED_BATCH_TOKENS)
        values = {
            "capitalization": has_encoder and ignores_case(bound.tokenizer),
            "features": has_encoder and is_new,
            "crf": bound.tag_codec.has_entities and (is_new or tuned is not None),
        }
        train, head = super().defaults(context).train, {"pooling": default_pooling(context.model)}
        if is_new:
            train = {**train, **small_batches(context)}
            if (epochs := self._epochs_to_regularize(context, train["batch_tokens"])) is not None:
                reasons = {"model.dropout": f"{_DROPOUT:g}: the budget allows about {epochs:,.0f} epochs"}
                return Defaults({**train, **_REGULARIZED}, values, head, {"dropout": _DROPOUT}, reasons=reasons)
        if tuned is None:
            return Defaults(train, values, head)
        reasons = {"head.hidden_layer": f"true: {context.num_rows:,} sentences, and a GPU to train on them"}
        if values["crf"]:
            reasons["task.crf"] = "true: tags of entities or chunks depend on each other"
        head = {**head, "hidden_layer": True}
        return replace(tuned, train=train, task=values, head=head, reasons={**tuned.reasons, **reasons})

    @staticmethod
    def _epochs_to_regularize(context: DefaultsContext, batch_tokens: int) -> float | None:
        """The epochs that the budget allows, where they are many and the model is not a Transformer."""
        speed = _TOKENS_PER_SECOND[context.device]
        epochs = context.num_epochs(tokens_per_second=speed, batch_tokens=batch_tokens)
        return None if context.model.can_use_muon or epochs is None or epochs < _MANY_EPOCHS else epochs

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        if self.settings.capitalization and not model.encoder_depth:
            raise ConfigError("task.capitalization is for models with an encoder, and this one is decoder-only")
        if self.settings.features and not model.encoder_depth:
            raise ConfigError("task.features is for models with an encoder, and this one is decoder-only")

    def objective_terms(self) -> frozenset[str]:
        """Both terms are of single words, and a CRF has a likelihood of the whole sentence."""
        return frozenset() if self.settings.crf else self.objectives

    def build(self, model: ModelConfig, head: HeadConfig) -> "TokenClassifier":
        allowed = transition_mask(self.tag_codec.labels, _may_follow) if self.tag_codec.has_entities else None
        return TokenClassifier(
            model,
            head,
            self.tokenizer.vocab_size,
            len(self.tag_codec),
            has_crf=self.settings.crf,
            has_forms=self.settings.capitalization,
            has_features=self.settings.features,
            allowed=allowed,
        )

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> SentenceBatch:
        tokens, positions, tags, forms, *affixes = columns
        lengths, num_words = [len(some) for some in tokens], [len(some) for some in positions]
        known = pad([some[:count] for some, count in zip(tags, num_words, strict=True)], 0)
        unknown = 0 if self.settings.crf else IGNORED  # a random field needs a tag for each word
        return SentenceBatch(
            source=torch.from_numpy(pad(tokens, self.tokenizer.pad)),
            lengths=torch.tensor(lengths) if min(lengths) < max(lengths) else None,
            positions=torch.from_numpy(pad(positions, 0)),
            num_words=torch.tensor(num_words),
            tags=torch.from_numpy(np.where(known < len(self.tag_codec), known, unknown)),
            weights=torch.ones(len(tokens)),
            forms=torch.from_numpy(pad(forms, 0)),
            affixes=torch.stack([torch.from_numpy(pad(column, 0)) for column in affixes], dim=-1),
            num_targets=sum(num_words),
            num_tokens=sum(lengths),
        )

    def pad_batch(self, batch: SentenceBatch, num_rows: int, length: int) -> SentenceBatch:
        """Pad to `num_rows` sentences of `length` tokens, and as many words; added ones have weight 0."""
        have = batch.source.size(0)
        lengths = batch.lengths if batch.lengths is not None else torch.full((have,), batch.source.size(1))
        return replace(
            batch,
            source=pad_rows(pad_time(batch.source, length, self.tokenizer.pad), num_rows),
            lengths=pad_rows(lengths, num_rows),
            positions=pad_rows(pad_time(batch.positions, length, 0), num_rows),
            num_words=pad_rows(batch.num_words, num_rows),
            tags=pad_rows(pad_time(batch.tags, length, 0), num_rows),
            weights=F.pad(batch.weights, (0, num_rows - have)),
            forms=pad_rows(pad_time(batch.forms, length, 0), num_rows),
            affixes=pad_rows(F.pad(batch.affixes, (0, 0, 0, length - batch.affixes.size(1))), num_rows),
        )

    def loss(self, model: "TokenClassifier", batch: SentenceBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the words; with a CRF, the negative log-likelihood of each tag sequence."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        logits = _logits(model, batch)
        loss = (_losses(model, logits, batch, objective.label_smoothing) * batch.weights).sum()
        if not objective.rdrop:
            return loss
        divergence = symmetric_kl(logits.log_softmax(dim=-1)).sum(dim=-1)
        by_sentence = (divergence * batch.is_word.chunk(2)[0]).sum(dim=1)
        return loss / 2 + objective.rdrop / 4 * (by_sentence * batch.weights.chunk(2)[0]).sum()

    def has_linear_head(self, head: HeadConfig) -> bool:
        return not (head.hidden_layer or self.settings.crf or self.settings.features)

    def head_inputs(self, model: "TokenClassifier", batch: SentenceBatch) -> LabeledVectors:
        """Returns the vectors and tags of the words of all sentences."""
        vectors = model.embed_words(batch.source, batch.positions, batch.lengths, batch.forms)
        weights = batch.weights[:, None] * batch.is_word
        return LabeledVectors(vectors.flatten(0, 1), batch.tags.flatten(), weights.flatten())

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[SentenceBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each sentence's tags, for the words that were read."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += _losses(model, _logits(model, batch), batch).tolist()
            counts += ((batch.tags != IGNORED) & batch.is_word).sum(dim=1).tolist()
        return Likelihoods(losses, counts)

    def outputs(self, model: "TokenClassifier", batch: SentenceBatch) -> list["TagOutput"]:
        logits, crf = _logits(model, batch), model.crf
        if crf is None:
            probabilities, tags = logits.softmax(dim=2).max(dim=2)
            rows = zip(tags.tolist(), probabilities.tolist(), batch.num_words.tolist(), strict=True)
            return [TagOutput(one[:n], some[:n], math.prod(some[:n])) for one, some, n in rows]
        paths, total = crf.viterbi(logits, batch.num_words), crf.log_partition(logits, batch.num_words).tolist()
        marginals = crf.marginals(logits, batch.num_words)
        found = []
        for row, path in enumerate(paths):
            words = marginals[row, range(len(path.tags)), path.tags].tolist()
            found.append(TagOutput(path.tags, words, min(1.0, math.exp(path.score - total[row]))))
        return found

    def prediction(self, text: str, output: "TagOutput") -> Prediction:
        """As many tags as there are words between spaces; those that were not read have no probability."""
        places = [match.span() for match in _WORD.finditer(text)]
        missing = len(places) - len(output.tags)
        (joined,) = self.tag_codec.decode([[*output.tags, *[0] * missing]])
        tags, shares = words_of(joined), [*output.probabilities, *[None] * missing]
        words = [TaggedSpan(text[start:end], tag, start, end, share)
                 for (start, end), tag, share in zip(places, tags, shares, strict=True)]  # fmt: skip
        spans = words
        if self.tag_codec.has_entities:
            spans = [_joined_words(text, entity.type, words[entity.start : entity.end]) for entity in entities_of(tags)]
        together = None if missing else output.probability
        return TaggedPrediction(text, joined, probability=together, words=words, spans=spans)

    def baseline(self, data: Prepared) -> Baseline:
        rows, codec = data.train_rows(), self.tag_codec
        words, tags = [words_of(row[0]) for row in rows], [codec.tags_of(row) for row in rows]
        return fit_tagger(words, tags, may_follow=_may_follow if codec.has_entities else None)

    def metric_names(self) -> tuple[str, ...]:
        return _ENTITY_METRICS if self.tag_codec.has_entities else _TAG_METRICS

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "entity_f1" if self.tag_codec.has_entities else "accuracy"

    def examples(self, data: EvaluationData) -> Examples:
        targets = [list(self.tag_codec.tags_of(row)) for row in data.rows]
        labels = dict.fromkeys([*self.tag_codec.labels, *(tag for tags in targets for tag in tags)])
        return Examples(
            outputs=[words_of(each.output) for each in data.predictions],
            targets=targets,
            labels=None if self.tag_codec.has_entities else tuple(labels),
        )

    def label_counts(self, examples: Examples) -> LabelCounts | None:
        if not self.tag_codec.has_entities:
            return super().label_counts(examples)
        return count_entities(*examples.require(*PAIRS))

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("entity_f1", "entity_precision", "entity_recall") if self.tag_codec.has_entities else _TAG_METRICS

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        return [{**sample, "kind": "tags"} for sample in super().samples(model, data)]

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        labels = tuple(self.tag_codec.labels)
        return ServerSchema(labels=labels, output="tags", placeholder="Words separated by spaces")

    def export_spec(self) -> ExportSpec:
        names = ("crf", "capitalization", "features")
        unsupported = {f"task.{name}": True for name in names if getattr(self.settings, name)}
        return replace(super().export_spec(), labels=tuple(self.tag_codec.labels), unsupported=unsupported)

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        unused = {"crf": False, "capitalization": False, "features": False}
        return {**super().imported_settings(max_length=max_length, window=window), **unused}

    @classmethod
    def imported_codecs(cls, imported: ImportedCodecs) -> dict[str, Codec]:
        has_entities = all(may_follow(label, None, scheme=SCHEME) for label in imported.labels)
        tags = TagCodec(dict.fromkeys(imported.labels, 0), has_entities)
        return {**super().imported_codecs(imported), "tags": tags}


@dataclass(frozen=True)
class TagOutput:
    """The most probable tags of the words of a sentence that were read."""

    tags: list[int]
    probabilities: list[float]
    """The probability of each tag; with a CRF, its marginal probability."""
    probability: float
    """The joint probability of all tags."""


class TokenClassifier(nn.Module):
    """Token ids and the positions of words in, logits for the tag of each word out.

    With a CRF, `allowed` is which tag may follow which. With forms, the capitalization of each word is an input; with
    features, so are its first and last characters, and the logits of a `WindowTerm` are added.
    """

    def __init__(
        self,
        config: ModelConfig,
        head: HeadConfig,
        vocab_size: int,
        num_tags: int,
        *,
        has_crf: bool = False,
        has_forms: bool = False,
        has_features: bool = False,
        allowed: Bool[Tensor, "before after"] | None = None,
    ) -> None:
        super().__init__()
        self.body = build_body(config, vocab_size)
        self.head = PredictionHead(config.model_dim, num_tags, dropout=head.dropout, has_hidden_layer=head.hidden_layer)
        self.crf = ConditionalRandomField(num_tags, allowed=allowed) if has_crf else None
        self.forms = nn.Embedding(NUM_FORMS, config.model_dim) if has_forms else None
        self.affixes = nn.Embedding(len(AFFIXES) * AFFIX_BUCKETS, config.model_dim) if has_features else None
        self.window = WindowTerm(num_tags) if has_features else None
        for table in (self.forms, self.affixes):
            if table is not None:
                nn.init.zeros_(table.weight)  # a pretrained body is initially unchanged

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        positions: Int[Tensor, "batch words"],
        lengths: Int[Tensor, " batch"] | None = None,
        forms: Int[Tensor, "batch time"] | None = None,
        affixes: Int[Tensor, "batch time affixes"] | None = None,
        is_word: Bool[Tensor, "batch words"] | None = None,
    ) -> Float[Tensor, "batch words outputs"]:
        logits = self.head(self.embed_words(source, positions, lengths, forms, affixes))
        if self.window is None:
            return logits
        assert forms is not None, "a tagger with features needs forms"
        assert affixes is not None, "a tagger with features needs affixes"
        return logits + self.window(source, positions, forms, affixes, is_word)

    def embed_words(
        self,
        source: Int[Tensor, "batch time"],
        positions: Int[Tensor, "batch words"],
        lengths: Int[Tensor, " batch"] | None = None,
        forms: Int[Tensor, "batch time"] | None = None,
        affixes: Int[Tensor, "batch time affixes"] | None = None,
    ) -> Float[Tensor, "batch words model"]:
        """The hidden state of the first token of each word."""
        extra = None
        if self.forms is not None:
            assert forms is not None, "a tagger with capitalization features needs forms"
            extra = self.forms(forms)
        if self.affixes is not None:
            assert affixes is not None, "a tagger with affix features needs affixes"
            numbers = AFFIX_BUCKETS * torch.arange(affixes.size(-1), device=affixes.device)
            found = self.affixes(affixes + numbers).sum(dim=-2)
            extra = found if extra is None else extra + found
        hidden_states = self.body.encode(source, lengths, extra_embeddings=extra).hidden_states
        return hidden_states.gather(1, positions[..., None].expand(-1, -1, hidden_states.size(-1)))


class WindowTerm(nn.Module):
    """A linear model of hashed features of each word and of its neighbors, as linear CRFs have them.

    Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016). https://arxiv.org/abs/1606.07792
    """

    numbers: Tensor
    firsts: Tensor
    seconds: Tensor

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        indices = {
            "numbers": [number for number, _ in _WINDOW],
            "firsts": [_place(*features[0]) for _, features in _WINDOW],
            "seconds": [_place(*features[1]) for _, features in _WINDOW if len(features) > 1],
        }
        for name, values in indices.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.table = nn.Embedding(_BUCKETS, num_tags)
        self.dropout = Dropout(_FEATURE_DROPOUT)
        nn.init.zeros_(self.table.weight)

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        positions: Int[Tensor, "batch words"],
        forms: Int[Tensor, "batch time"],
        affixes: Int[Tensor, "batch time affixes"],
        is_word: Bool[Tensor, "batch words"] | None = None,
    ) -> Float[Tensor, "batch words tags"]:
        columns = torch.cat([source[..., None], forms[..., None], affixes], dim=-1)
        found = columns.gather(1, positions[..., None].expand(-1, -1, columns.size(-1)))
        if is_word is not None:
            found = found * is_word[..., None]
        # Padding is 0, as is what lies beyond the ends of a sentence.
        moved = torch.stack([F.pad(found, (0, 0, by, -by)) for by in _MOVES], dim=-2).flatten(-2)
        single = _hashed(self.numbers, moved[..., self.firsts])
        double = _hashed(single[..., -len(self.seconds) :], moved[..., self.seconds])
        buckets = torch.cat([single[..., : -len(self.seconds)], double], dim=-1)[..., self.numbers.argsort()]
        return self.dropout(self.table(buckets)).sum(dim=-2)


def _place(column: int, move: int) -> int:
    """Where the value of this column is among those of a word and of its neighbors."""
    return _MOVES.index(move) * _NUM_COLUMNS + column


def _hashed(key: Int[Tensor, "*any features"], value: Int[Tensor, "*all features"]) -> Int[Tensor, "*all features"]:
    return (key * _MULTIPLIER + value) % _BUCKETS


def _logits(model: TokenClassifier, batch: SentenceBatch) -> Float[Tensor, "batch words tags"]:
    """In float32 at least."""
    logits = model(batch.source, batch.positions, batch.lengths, batch.forms, batch.affixes, batch.is_word)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _losses(
    model: TokenClassifier,
    logits: Float[Tensor, "batch words tags"],
    batch: SentenceBatch,
    label_smoothing: float = 0.0,
) -> Float[Tensor, " batch"]:
    """The negative log-likelihood of each sentence's tags."""
    if model.crf is not None:
        return -model.crf.log_likelihood(logits, batch.tags, batch.num_words)
    by_word = F.cross_entropy(
        logits.mT, batch.tags, reduction="none", label_smoothing=label_smoothing, ignore_index=IGNORED
    )
    return (by_word * batch.is_word).sum(dim=1)


@dataclass(frozen=True)
class TaggedSpan:
    """A part of an input with a label: an entity, or a word with its tag."""

    text: str
    label: str
    start: int
    """The position of its first character in the input, from 0."""
    end: int
    """The position after its last character."""
    probability: float | None
    """Of a word's tag, or the smallest one of an entity's words; None for words beyond `task.max_length`."""


@dataclass(frozen=True)
class TaggedPrediction(Prediction):
    """The tags of the words of a text."""

    words: list[TaggedSpan] = field(default_factory=list)
    """Each word of the input with its tag."""
    spans: list[TaggedSpan] = field(default_factory=list)
    """The entities of the input; all words, where tags are not those of entities."""

    def to_row(self) -> dict[str, Any]:
        spans = [{**vars(span), "probability": rounded(span.probability)} for span in self.spans]
        return {**super().to_row(), "spans": spans}


def _may_follow(before: str | None, after: str | None) -> bool:
    return may_follow(before, after, scheme=SCHEME)


def _joined_words(text: str, label: str, words: Sequence[TaggedSpan]) -> TaggedSpan:
    """The span of an entity, whose probability is the smallest one of its words."""
    start, end = words[0].start, words[-1].end
    shares = [word.probability for word in words if word.probability is not None]
    return TaggedSpan(text[start:end], label, start, end, min(shares, default=None))


def _as_entities(tags: Sequence[str]) -> Sequence[str]:
    return convert_tags(tags, SCHEME)
