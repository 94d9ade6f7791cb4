"""Constituency parsing: the tree of a sentence, whose words are separated by spaces.

By default, the labels of all spans are scored, and the tree with the highest score is found by CKY: see
`regard.tasks.parsing.model`. With `task.decoder` the tree is generated as a sequence of brackets: see
`regard.tasks.parsing.linear`. Either way every output is a tree over exactly the words of the input, with a predicted
tag for each word.

Words beyond the first `max_length` tokens of a sentence are not read: they become children of the outermost
constituent, with the most frequent tag.

Dimensions: `batch` sentences, `time` tokens, `words` of a sentence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.trees import fit_span_counts
from regard.data.batches import pad
from regard.data.codecs.codec import Codec
from regard.data.codecs.labels import describe_unknown
from regard.data.codecs.text import TextCodec
from regard.data.codecs.trees import EncodedTree, LabeledSpan, TreeCodec, collapse_chains
from regard.data.formats.files import content_hash
from regard.data.formats.messages import format_names
from regard.data.formats.trees import TREE_ROLES, Tree, constituents_of, parse_tree, tree_table, trees_in_memory
from regard.data.permutation import mix
from regard.data.prepare import FitData, Prepared, unknown_label_warnings
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, hash_of_table, require_files, with_folder, with_held_out
from regard.data.splits.by_hash import row_hash
from regard.data.splits.plan import reject_split_columns, with_split_keys
from regard.errors import ConfigError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.brackets import bracket_counts
from regard.evaluation.metrics.classes import LabelCounts
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.generation.sampling import sample
from regard.logging import log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.nn.chart import best_trees
from regard.nn.losses import IGNORED
from regard.tasks.captioning.model import decoder_config
from regard.tasks.choices import ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import Drawing, Prediction, ReportContent, Section, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.parsing.drawing import draw_as_svg, draw_as_text
from regard.tasks.parsing.linear import END, PADDING, START, Actions, TreeConstraint, action_limit, empty_tree
from regard.tasks.parsing.model import CROSSING, Parser, SpanChart, TreeDecoder, as_chart, tree_log_likelihood
from regard.tasks.task import (
    PLAIN,
    BatchPredictor,
    Detection,
    EvaluationData,
    Likelihoods,
    Objective,
    Predictor,
    to_device,
)
from regard.tasks.text import TextSettings, TextTask, next_token_loss, row_losses
from regard.tasks.token_classification.sentences import AFFIXES, choose_words, encode_sentences, words_of

CHART = "chart"
_CHARACTERS_PER_WORD = 500
"""The vocabulary has one word for each 500 characters of data, trees included: the others are rare, and known by their
features."""
_DROPOUT, _TUNED_DROPOUT, _TUNED_RATE = 0.33, 0.2, 2.4
"""Dropout from scratch and of the head of a pretrained model; its learning rate times model_dim ** 1.5, which is
twice that of other tasks: all layers of a chart are new. Chosen on validation rows of the Penn Treebank sample."""
_DRAWN_TREES, _DRAWN_WORDS = 4, 16
"""Trees that a report draws, and the words of the longest one."""
_TREES_LEAD = "Predicted trees of short held-out sentences, each with the true one below it."
_SEARCHED_WORDS = 512
"""Words of the sentences that are decoded together, each counted once for every hypothesis."""


class ParsingSettings(TextSettings):
    """Settings of parsing."""

    name: str = "parsing"
    decoder: str = CHART
    """chart: the labels of all spans are scored, and the best tree is found by CKY. Or the preset of a decoder that
    generates the tree as a sequence of brackets: transformer, lstm-attention, gru-attention, with or without a size."""
    span_dim: int = Field(default=256, ge=1)
    """Width of the hidden layer from which the labels of a span are scored."""
    features: bool
    """Whether the capitalization and the first and last characters of each word are inputs. Unset: for models with an
    encoder."""


@dataclass(frozen=True)
class TreeBatch:
    """Sentences, and the tags and constituents of each."""

    source: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """In tokens; None where nothing is padded."""
    positions: Int[Tensor, "batch positions"]
    """Positions of the start, of each word's first token, and of the end, which is repeated as padding."""
    num_words: Int[Tensor, " batch"]
    tags: Int[Tensor, "batch words"]
    """`IGNORED` for padding, and for a tag that training did not see."""
    labels: Int[Tensor, "batch words words"]
    """The label of the span from one word to another: `NO_LABEL` where it is no constituent, `CROSSING` where it
    crosses one."""
    actions: Int[Tensor, "batch actions"] | None
    """The linearized trees between a start and an end, padded with `PADDING`; None for a chart."""
    forms: Int[Tensor, "batch time"]
    affixes: Int[Tensor, "batch time affixes"]
    num_targets: int
    num_tokens: int

    _NAMES = ("source", "lengths", "positions", "num_words", "tags", "labels", "actions", "forms", "affixes")

    def tensors(self) -> list[Tensor | None]:
        return [getattr(self, name) for name in self._NAMES]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "TreeBatch":
        return replace(self, **dict(zip(self._NAMES, tensors, strict=True)))  # pyright: ignore[reportArgumentType]

    @property
    def is_position(self) -> Bool[Tensor, "batch positions"]:
        """True for the start, the words and the end."""
        return torch.arange(self.positions.size(1), device=self.positions.device) < self.num_words[:, None] + 2


class Parsing(TextTask[ParsingSettings]):
    """Sentences and their constituency trees."""

    name = "parsing"
    description = "parsing"
    other_names = ("constituency", "constituency-parsing", "parser", "treebank", "syntax")
    Settings = ParsingSettings
    roles = TREE_ROLES
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, "trees": TreeCodec}
    store_columns = ("tokens", "positions", "tags", "starts", "ends", "labels", "forms",
                     *(f"affix{number}" for number in range(len(AFFIXES))))  # fmt: skip
    metrics = ("bracket_f1", "bracket_precision", "bracket_recall", "exact_trees", "tag_accuracy")
    unit = "sentence"
    default_preset = "lstm"
    objectives = frozenset({"label_smoothing"})

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.has_trees:
            return Detection("trees in brackets", confidence=0.97)
        return None

    @property
    def tree_codec(self) -> TreeCodec:
        codec = self.codecs["trees"]
        assert isinstance(codec, TreeCodec)
        return codec

    @property
    def is_chart(self) -> bool:
        return self.settings.decoder == CHART

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        def open_file(paths: Sequence[str]) -> Any:
            if len(paths) != 1:
                raise ConfigError(f"trees are read from one file, got {len(paths)}: {format_names(paths)}")
            return tree_table(paths[0], encoding=config.encoding, skip_bad=config.skip_bad)

        if rows is not None:
            reject_split_columns(config, "trees in memory")
            train = with_split_keys(trees_in_memory(rows, skip_bad=config.skip_bad), config)
            return with_held_out(config, train, open_file, lambda: hash_of_table(train))
        require_files(config, "a file of trees in brackets, or a folder of them")
        config = with_folder(config)
        reject_split_columns(config, "a file of trees")
        train = with_split_keys(open_file(config.train), config)
        return with_held_out(config, train, open_file, lambda: content_hash(train.paths))

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        prepared = super().prepare(config, rows)
        codec = self.with_codecs(prepared.codecs).tree_codec
        warnings = unknown_label_warnings(codec.labels, prepared.held_out, _labels_of)
        for warning in warnings:
            log_warning(warning)
        return replace(prepared, notes=[*prepared.notes, *warnings])

    def unknown_labels(self, rows: Sequence[Sequence[str]], where: str) -> str | None:
        return describe_unknown(self.tree_codec.labels, map(_labels_of, rows), where)

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row[:1]

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {**super().fit_codecs(data), "trees": TreeCodec.fit(parse_tree(row[1]) for row in data.rows())}

    def notes(self) -> list[str]:
        return [*super().notes(), self.tree_codec.describe()]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        tokens, positions, *features = self._encode_words([row[0] for row in rows])
        found = [
            self.tree_codec.encode_tree(parse_tree(row[1]), len(some))
            for row, some in zip(rows, positions, strict=True)
        ]
        return [tokens, positions, *_tree_columns(found), *features]

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        tokens, positions, *features = self._encode_words(inputs)
        return [tokens, positions, *_tree_columns([empty_tree(len(some)) for some in positions]), *features]

    def _encode_words(self, texts: Sequence[str]) -> list[list[list[int]]]:
        return encode_sentences([words_of(text) for text in texts], self.tokenizer, self.settings.max_length)

    def choose(self, context: ChoiceContext) -> Choices:
        return choose_words(
            self.settings.tokenizer, context, characters_per_word=_CHARACTERS_PER_WORD, model="it learns trees fastest",
            words="constituents are made of words",
        )  # fmt: skip

    def defaults(self, context: DefaultsContext) -> Defaults:
        values, train = {"features": bool(context.model.encoder_depth)}, super().defaults(context).train
        if not context.is_finetuned:
            return Defaults(train, values, {"dropout": _DROPOUT}, {"dropout": _DROPOUT})
        rate = float(f"{_TUNED_RATE / context.model.model_dim**1.5:.2g}")
        tuned = {"learning_rate": rate} if context.method in ("all", "top") else {}
        return Defaults(train, values, {"dropout": _TUNED_DROPOUT}, finetune_train=tuned)

    def objective_terms(self) -> frozenset[str]:
        """A chart has the likelihood of the whole tree."""
        return frozenset() if self.is_chart else self.objectives

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        if self.settings.features and not model.encoder_depth:
            raise ConfigError("task.features is for models with an encoder, and this one is decoder-only")
        if not self.is_chart:
            decoder_config(self.settings.decoder)

    def build(self, model: ModelConfig, head: HeadConfig) -> Parser:
        size, settings = self.tokenizer.vocab_size, self.settings
        if self.is_chart:
            part = SpanChart(model.model_dim, self.tree_codec, hidden_dim=settings.span_dim, dropout=head.dropout)
        else:
            actions = len(Actions.of(self.tree_codec))
            part = TreeDecoder(model.model_dim, decoder_config(settings.decoder), actions)
        return Parser(model, size, part, has_features=settings.features)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> TreeBatch:
        tokens, positions, tags, starts, ends, labels, forms, *affixes = columns
        lengths, num_words = [len(some) for some in tokens], [len(some) for some in positions]
        kinds = [np.concatenate([[0], some, [length - 1]]) for some, length in zip(positions, lengths, strict=True)]
        known = [np.where(some < len(self.tree_codec.tags), some, IGNORED) for some in tags]
        spans = [
            list(map(LabeledSpan, *(each.tolist() for each in row))) for row in zip(starts, ends, labels, strict=True)
        ]
        actions = None if self.is_chart else self._linearized(tags, spans)
        is_padded = min(lengths) < max(lengths)
        return TreeBatch(
            source=torch.from_numpy(pad(tokens, self.tokenizer.pad)),
            lengths=torch.tensor(lengths) if is_padded else None,
            positions=torch.from_numpy(pad(kinds, 0)),
            num_words=torch.tensor(num_words),
            tags=torch.from_numpy(pad(known, IGNORED)),
            labels=torch.from_numpy(np.stack([span_labels(some, max(num_words)) for some in spans])),
            actions=actions,
            forms=torch.from_numpy(pad(forms, 0)),
            affixes=torch.stack([torch.from_numpy(pad(column, 0)) for column in affixes], dim=-1),
            num_targets=sum(num_words) if actions is None else int((actions[:, 1:] != PADDING).sum()),
            num_tokens=sum(lengths),
        )

    def _linearized(
        self, tags: Sequence[NDArray[np.int64]], spans: Sequence[list[LabeledSpan]]
    ) -> Int[Tensor, "batch actions"]:
        vocabulary, chains = Actions.of(self.tree_codec), ["", *self.tree_codec.labels]
        rows = [
            np.array([START, *vocabulary.linearize(EncodedTree(some.tolist(), each), chains), END])
            for some, each in zip(tags, spans, strict=True)
        ]
        return torch.from_numpy(pad(rows, PADDING))

    def loss(self, model: Parser, batch: TreeBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The negative log-likelihood of the trees and of the tags of their words."""
        vectors = self._vectors(model, batch)
        if isinstance(model.head, SpanChart):
            return self._chart_losses(model.head, vectors, batch).sum()
        assert batch.actions is not None, "a decoder is trained on linearized trees"
        decoder, memory = model.head.decoder, model.head.memory(vectors, batch.is_position)
        targets = _targets_of(batch.actions)
        return next_token_loss(decoder, decoder.hidden_states(batch.actions[:, :-1], memory), targets, objective)

    def _vectors(self, model: Parser, batch: TreeBatch) -> Float[Tensor, "batch positions model"]:
        return model.embed_words(batch.source, batch.positions, batch.lengths, batch.forms, batch.affixes)

    def _chart_losses(
        self, chart: SpanChart, vectors: Float[Tensor, "batch positions model"], batch: TreeBatch
    ) -> Float[Tensor, " batch"]:
        scores = chart.span_scores(vectors, batch.num_words)
        logits = chart.tag_logits(vectors)
        tags = F.cross_entropy(logits.mT.float(), batch.tags, reduction="none", ignore_index=IGNORED).sum(dim=1)
        return tags - tree_log_likelihood(scores, batch.labels, batch.num_words)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[TreeBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each tree with its tags, as far as its words are read."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            vectors = self._vectors(model, batch)
            if isinstance(model.head, SpanChart):
                losses += self._chart_losses(model.head, vectors, batch).tolist()
                counts += batch.num_words.tolist()
                continue
            assert batch.actions is not None, "a decoder is evaluated on linearized trees"
            decoder, memory = model.head.decoder, model.head.memory(vectors, batch.is_position)
            hidden_states = decoder.hidden_states(batch.actions[:, :-1], memory)
            some_losses, some_counts = row_losses(decoder, hidden_states, _targets_of(batch.actions))
            losses += some_losses
            counts += some_counts
        return Likelihoods(losses, counts)

    def predictor(self, model: Any, config: GenerationConfig) -> Predictor:
        return BatchPredictor(self, model) if self.is_chart else LinearPredictor(self, model, config)

    def outputs(self, model: Parser, batch: TreeBatch) -> list["ParsedSentence"]:
        chart = model.head
        assert isinstance(chart, SpanChart), "a decoder has a predictor of its own"
        vectors = self._vectors(model, batch)
        scores = chart.span_scores(vectors, batch.num_words)
        size = batch.labels.size(1)
        best, labels = (as_chart(values, size) for values in scores.max(dim=2))
        tags, chosen = chart.tag_logits(vectors).argmax(dim=2).tolist(), labels.tolist()
        trees = []
        for row, tree in enumerate(best_trees(best, batch.num_words)):
            spans = [LabeledSpan(start, end + 1, chosen[row][start][end]) for start, end in tree.spans]
            kept = [span for span in spans if span.label]
            trees.append(EncodedTree(tags[row][: int(batch.num_words[row])], kept))
        found = torch.from_numpy(np.stack([span_labels(each.spans, size) for each in trees])).to(scores.device)
        shares = tree_log_likelihood(scores, found, batch.num_words).exp().clamp(max=1.0).tolist()
        return [ParsedSentence(tree, share) for tree, share in zip(trees, shares, strict=True)]

    def prediction(self, text: str, output: "ParsedSentence") -> Prediction:
        words = words_of(text)
        tree = self.tree_codec.decode_tree(_with_unread(output.tree, len(words)), words)
        return Prediction(text, str(tree), score=output.score, probability=output.probability)

    def baseline(self, data: Prepared) -> Baseline:
        return fit_span_counts([parse_tree(row[1]) for row in data.train_rows()])

    def label_counts(self, examples: Examples) -> LabelCounts:
        return bracket_counts(examples)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return self.metrics[:3]

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(
            outputs=[each.output for each in data.predictions], targets=[self.target_of(row) for row in data.rows]
        )

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        """With drawings of short trees that are wrong, beside the true ones."""
        content = super().report(model, data)
        short = [sample for sample in content.samples if len(words_of(sample["source"])) <= _DRAWN_WORDS]
        drawings = [
            Drawing(f"{number}. {name}", draw_as_svg(sample[part]))
            for number, sample in enumerate(short[:_DRAWN_TREES], 1)
            for name, part in (("predicted", "prediction"), ("true", "target"))
        ]
        sections = [Section("Trees", _TREES_LEAD, drawings=drawings)] if drawings else []
        return replace(content, sections=sections)

    def output_as_text(self, output: str) -> str:
        return draw_as_text(output)

    def output_as_svg(self, output: str) -> str:
        return draw_as_svg(output)

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(
            output="tree", has_beam_search=not self.is_chart, placeholder="Words and punctuation separated by spaces"
        )


@dataclass(frozen=True)
class ParsedSentence:
    """The best tree of the words that were read."""

    tree: EncodedTree
    probability: float | None = None
    score: float | None = None


class LinearPredictor:
    """Generates trees as sequences of actions, greedily, by sampling, or by beam search."""

    def __init__(self, task: Parsing, model: Parser, config: GenerationConfig) -> None:
        assert isinstance(model.head, TreeDecoder), "a chart has no decoder"
        self._task, self._model, self._config = task, model, config
        self._head = model.head
        self._actions = Actions.of(task.tree_codec)
        self._search = BeamSearch(model.head.decoder, end=END, config=config)

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        columns = self._task.encode_inputs(inputs)
        order = sorted(range(len(inputs)), key=lambda row: len(columns[1][row]))
        found: dict[int, Prediction] = {}
        while order:
            longest = len(columns[1][order[-1]])
            some = order[-max(1, _SEARCHED_WORDS // (longest * self._config.beam_size)) :]
            order = order[: -len(some)]
            batch = self._task.collate([[np.array(column[row], np.int64) for row in some] for column in columns])
            found |= dict(zip(some, self._parse([inputs[row] for row in some], batch), strict=True))
        return [found[row] for row in range(len(inputs))]

    @torch.inference_mode()
    def _parse(self, texts: Sequence[str], batch: TreeBatch) -> list[Prediction]:
        batch = to_device(batch, self._search.model.device)
        memory = self._head.memory(self._task._vectors(self._model, batch), batch.is_position)
        constraint = TreeConstraint.initial(batch.num_words, self._actions)
        state = self._search.model.initial_state(memory)
        start = torch.full((len(texts), 1), START, device=batch.source.device)
        limits = [action_limit(count) for count in batch.num_words.tolist()]
        scores: Sequence[float | None] = [None] * len(texts)
        if self._config.beam_size > 1:
            best = [some[0] for some in self._search.search(state, start, limits, constraint=constraint)]
            sequences, scores = [each.tokens for each in best], [each.score for each in best]
        else:
            seeds = [mix(self._config.seed, row_hash((text,))) for text in texts]
            sequences = sample(
                self._search.model, state, start, end=END, limits=limits, seeds=seeds, config=self._config,
                constraint=constraint,
            )  # fmt: skip
        return [self._prediction(*row) for row in zip(texts, sequences, scores, strict=True)]

    def _prediction(self, text: str, actions: Sequence[int], score: float | None) -> Prediction:
        words = words_of(text)
        num_read = sum(action >= self._actions.first_tag for action in actions)
        tree = self._actions.tree(actions, words[:num_read])
        codec = self._task.tree_codec
        unread = [Tree(next(iter(codec.tags)), word=word) for word in words[num_read:]]
        if unread:
            inner = (tree,) if tree.word is not None else tree.children
            label = next(iter(codec.labels)) if tree.word is not None else tree.label
            tree = Tree(label, (*inner, *unread))
        return Prediction(text, str(tree), score=score)


def span_labels(spans: Sequence[LabeledSpan], size: int) -> Int[np.ndarray, "words words"]:
    """The label of each span of a sentence of up to `size` words, by its first and its last word.

    Example:
        >>> span_labels([LabeledSpan(0, 3, 2), LabeledSpan(1, 3, 4)], 3).tolist()
        [[0, -1, 2], [0, 0, 4], [0, 0, 0]]
    """
    labels = np.zeros((size, size), np.int64)
    for start, end, _ in spans:
        labels[:start, start : end - 1] = CROSSING
        labels[start + 1 : end, end:] = CROSSING
    for start, end, label in spans:
        labels[start, end - 1] = label
    return labels


def _tree_columns(trees: Sequence[EncodedTree]) -> list[list[list[int]]]:
    """Tags, and the first word, the end and the label of each span."""
    spans = [[[span[part] for span in tree.spans] for tree in trees] for part in range(3)]
    return [[tree.tags for tree in trees], *spans]


def _with_unread(tree: EncodedTree, num_words: int) -> EncodedTree:
    """The tree with all words: those that were not read are children of the outermost constituent."""
    num_read = len(tree.tags)
    if num_read == num_words:
        return tree
    spans = [span._replace(end=num_words) if (span.start, span.end) == (0, num_read) else span for span in tree.spans]
    if not spans or spans[0].end < num_words:
        spans = [LabeledSpan(0, num_words, 1), *spans]
    return EncodedTree([*tree.tags, *[0] * (num_words - num_read)], spans)


def _targets_of(actions: Int[Tensor, "batch actions"]) -> Int[Tensor, "batch targets"]:
    return actions[:, 1:].masked_fill(actions[:, 1:] == PADDING, IGNORED)


def _labels_of(row: Sequence[str]) -> list[str]:
    return [each.label for each in collapse_chains(constituents_of(parse_tree(row[1])))]
