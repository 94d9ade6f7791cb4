"""Sequence to sequence: translation, but also dates to ISO 8601, words to pronunciations, commands to actions.

Sutskever et al., "Sequence to Sequence Learning with Neural Networks" (2014), https://arxiv.org/abs/1409.3215.
Vaswani et al., "Attention Is All You Need" (2017), https://arxiv.org/abs/1706.03762.

The model is trained by teacher forcing: it is given the true prefix and predicts
the next token, which maximizes the likelihood of the whole target by the chain
rule. Source and target share a tokenizer, or have one each.

Dimensions: `batch` pairs, `source` and `target` positions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.baselines.pairs import fit_pairs
from regard.data.batches import TensorBatch, pad
from regard.data.codecs.codec import Codec
from regard.data.codecs.text import TextCodec
from regard.data.formats.messages import format_names
from regard.data.formats.summary import ColumnSummary
from regard.data.permutation import mix
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, open_source
from regard.data.splits.by_hash import row_hash
from regard.errors import ConfigError
from regard.evaluation.registry import find_metric
from regard.generation.beam import BeamSearch, Hypothesis
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.family import ModelConfig, build_model
from regard.models.heads import HeadConfig
from regard.nn.losses import IGNORED
from regard.tasks.choices import (
    BATCH_TOKENS,
    MUON_REASON,
    TRAIN_DEFAULTS,
    ChoiceContext,
    Choices,
    Defaults,
    DefaultsContext,
)
from regard.tasks.content import ExportSpec, Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.feature_tables import is_factor, is_free_text
from regard.tasks.labeled_columns import has_pair_names
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, repeat_batch, to_device
from regard.tasks.text import TextSettings, TextTask, fit_tokenizer, next_token_loss, pad_rows, pad_time, row_losses
from regard.text.statistics import TextStatistics, characters_per_token, choose_tokenizer
from regard.text.tokenizer import Tokenizer

_ROLES = ("source", "target")
_PIECES = {"bpe", "unigram"}
"""Tokenizers into pieces of words, beside which a vocabulary of whole characters or words is not limited."""
_PAIR_NAMES = ("source", "src", "input", "question", "prompt", "target", "tgt", "output", "answer")
_SEARCHED_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Source tokens that are searched together, each counted once for every hypothesis."""
_SLOTS = {"cpu": 64, "cuda": 256}
"""Sequences that are generated side by side."""
_SPELLED_CHARACTERS = 64
"""Shorter sources of targets that are spelled character by character are spelled, too."""
_FEW_PIECES, _LONG_PIECES = 800, 4.0
"""Unless a vocabulary of so few pieces has tokens of so many characters: names of numbers have 5.0, lemmas 3.1."""
_MUON_RATE = 0.064
"""Times model_dim ** -0.5, for Muon: Multi30k at a width of 256, on a GPU (docs/log.md)."""
_MANY_ROWS, _MANY_ROWS_BATCH = 20_000, 8_192
"""From so many rows on, batches on a GPU are larger: Multi30k, BLEU 43.5 against 42.7 (docs/log.md)."""
_RDROP, _RDROP_EPOCHS = 5.0, 20.0
"""Multi30k on a GPU: BLEU 43.3 in half a minute without R-Drop, 44.4 in four minutes with it."""
_PATIENT_EPOCHS = 300.0
"""So many epochs are trained to their end; in more, a model may overfit before the learning rate decays."""
_RDROP_TOKENS_PER_SECOND, _RDROP_WIDTH = 150_000, 256
"""A rough speed of a GPU with R-Drop, at this width."""
_LENGTH_MULTIPLE = 16
"""On a GPU the length of a batch of sources is a multiple of this, so that CUDA graphs can be reused."""


class Seq2SeqSettings(TextSettings):
    """Settings of sequence-to-sequence models."""

    name: str = "seq2seq"
    target_tokenizer: str | None = None
    """A tokenizer of its own for targets: bpe, unigram, characters, bytes, words, wordpunct, or the path of a
    tokenizer.json. Unset: sources and targets share one, unless different kinds suit them."""


@dataclass(frozen=True)
class PairBatch(TensorBatch):
    """Sources, and targets shifted by one: from `target_in[t]` and what precedes it, `target_out[t]` is predicted."""

    tensor_names = ("source", "lengths", "target_in", "target_out")
    source: Int[Tensor, "batch source"]
    lengths: Int[Tensor, " batch"] | None
    """The lengths of the sources; None where none is padded."""
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    """Padded with `IGNORED`."""
    num_targets: int
    num_tokens: int


_TWO_TOKENIZERS: Mapping[str, type[Codec]] = {"source": TextCodec, "target": TextCodec}


class Seq2Seq(TextTask[Seq2SeqSettings]):
    """Pairs of sequences, by an encoder-decoder model."""

    name = "seq2seq"
    description = "sequence to sequence"
    other_names = (
        "translation",
        "summarization",
        "text2text",
        "text2text-generation",
        "sequence-to-sequence",
        "mt",
        "g2p",
    )
    Settings = Seq2SeqSettings
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec, **_TWO_TOKENIZERS}
    store_columns = ("source", "target")
    metrics = ("exact_match", "bleu", "chrf", "word_error_rate", "character_error_rate", "perplexity")
    architecture = "encoder-decoder"
    supports_shots = True
    attention_kind = "cross"
    head_kind = "target-tokens"
    selection_rows = 200  # generation takes far longer than a forward pass

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.is_builtin and len(summary.names) == 2:
            return Detection("a built-in data set of pairs", confidence=0.9)
        if summary.num_columns != 2 or summary.is_series or summary.has_images:
            return None
        if _has_other_columns(summary):
            pair = _numbered_pair(summary)
            return Detection(f"two columns of text ({format_names(pair)})", 0.3, columns=pair) if pair else None
        dates = "; the targets are dates, which are generated as text" if summary.are_dates(-1) else ""
        return Detection(f"two columns of text{dates}", confidence=0.3)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the sources."""
        return _tokenizer_of(self.codecs.get("source", self.codecs.get("text")))

    @property
    def target_tokenizer(self) -> Tokenizer:
        return _tokenizer_of(self.codecs.get("target", self.codecs.get("text")))

    @property
    def max_row_length(self) -> int:
        return self.settings.max_length

    def cache_key(self) -> dict[str, Any]:
        return {**super().cache_key(), "target_tokenizer": self.settings.target_tokenizer}

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_source(config, _ROLES, rows)

    def fitted_codec_types(self) -> Mapping[str, type[Codec]]:
        return {"text": TextCodec} if self.settings.target_tokenizer is None else _TWO_TOKENIZERS

    def choose(self, context: ChoiceContext) -> Choices:
        """A tokenizer for each side; one for both where the same kind suits them."""
        if self.settings.tokenizer is not None:
            return Choices()
        sides = [TextStatistics.of([row[side] for row in context.rows]) for side in (0, 1)]
        (source, why), (target, target_why) = map(choose_tokenizer, sides)
        if target == "characters" and source != target and sides[0].mean_characters <= _SPELLED_CHARACTERS:
            source, why = "characters", "short texts, and targets that are spelled"
        if {source, target} == _PIECES:
            (source, why) = (source, why) if source == "unigram" else (target, target_why)
            target = source
        size = self.vocabulary("bpe" if "bpe" in (source, target) else source, context)
        preset, reasons, is_spelled = None, {}, not _PIECES & {source, target}
        if source == target == "characters":
            length = characters_per_token([row[0] for row in context.rows], _FEW_PIECES)
            if length >= _LONG_PIECES:
                source, size = "bpe", {"vocab_size": _FEW_PIECES}
                why = f"names of few parts, with tokens of {length:.1f} characters"
        if is_spelled and context.is_quick:
            preset, reasons = "lstm-attention", {"model": "lstm-attention: it learns to spell and to copy fastest"}
        elif source == target == "words":
            preset, reasons = (
                "lstm-attention",
                {"model": "lstm-attention: it generalizes best to longer sequences of symbols"},
            )
        if self.settings.target_tokenizer is not None or source == target:
            return Choices({"tokenizer": source, **size}, preset, {**reasons, "tokenizer": f"{source}: {why}"})
        sides = {"source tokenizer": f"{source}: {why}", "target tokenizer": f"{target}: {target_why}"}
        return Choices({"tokenizer": source, "target_tokenizer": target, **size}, preset, {**reasons, **sides})

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        kind = self.settings.target_tokenizer
        if kind is None:
            return {"text": fit_tokenizer((text for row in data.sample() for text in row), self.settings, data)}
        kinds, settings = {"source": self.settings.tokenizer, "target": kind}, self.settings
        if _PIECES & set(kinds.values()):
            whole = settings.model_copy(update={"vocab_size": None})
            sizes = {role: settings if each in _PIECES else whole for role, each in kinds.items()}
        else:
            sizes = dict.fromkeys(kinds, settings)
        return {
            role: fit_tokenizer((row[place] for row in data.sample()), sizes[role], data, kind=kinds[role])
            for place, role in enumerate(kinds)
        }

    def notes(self) -> list[str]:
        kind = self.settings.target_tokenizer
        if kind is None:
            return super().notes()
        return [
            f"source tokenizer {self.settings.tokenizer}: {self.tokenizer.vocab_size:,} tokens",
            f"target tokenizer {kind}: {self.target_tokenizer.vocab_size:,} tokens",
        ]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [
            self.tokenizer.encode([row[0] for row in rows]),
            self.target_tokenizer.encode([row[1] for row in rows]),
        ]

    def defaults(self, context: DefaultsContext) -> Defaults:
        plain = TRAIN_DEFAULTS | {"batch_tokens": BATCH_TOKENS[context.device]}
        if context.device != "cuda" or context.is_finetuned or not context.model.can_use_muon:
            return Defaults(train=plain)
        rate = _MUON_RATE / math.sqrt(context.model.model_dim) * context.model.lr_scale
        train = plain | {"optimizer": "muon", "learning_rate": float(f"{rate:.2g}"), "schedule": "trapezoid"}
        reasons = {"train.optimizer": MUON_REASON}
        if context.num_rows >= _MANY_ROWS:
            train["batch_tokens"] = _MANY_ROWS_BATCH
        epochs = self._rdrop_epochs(context, train["batch_tokens"])
        if epochs is not None and epochs <= _PATIENT_EPOCHS:
            train["patience"] = 0
            reasons["train.patience"] = "0: after the peak of the learning rate, all is gained by its decay"
        if epochs is not None and epochs >= _RDROP_EPOCHS and self._has_subwords:
            train["rdrop"] = _RDROP
            reasons["train.rdrop"] = (
                f"{_RDROP:g}: the budget allows about {epochs:,.0f} epochs, so it has to regularize"
            )
        return Defaults(train=train, reasons=reasons)

    @property
    def _has_subwords(self) -> bool:
        """Whether targets are running text, which has many right forms, rather than spelled words or symbols."""
        return (self.settings.target_tokenizer or self.settings.tokenizer) not in ("characters", "bytes", "words")

    def _rdrop_epochs(self, context: DefaultsContext, batch_tokens: int) -> float | None:
        """Roughly how many epochs with R-Drop the budget allows on a GPU."""
        speed = _RDROP_TOKENS_PER_SECOND * min(1.0, _RDROP_WIDTH / context.model.model_dim)
        return context.num_epochs(tokens_per_second=speed, batch_tokens=batch_tokens)

    def num_positions(self, data: Prepared) -> int:
        return 1 + super().num_positions(data)  # the start or the end token

    def build(self, model: ModelConfig, head: HeadConfig) -> nn.Module:
        if not (model.encoder_depth and model.decoder_depth):
            raise ConfigError(
                "a sequence-to-sequence model needs an encoder and a decoder, "
                f"got encoder_layers={model.encoder_depth} and decoder_layers={model.decoder_depth}"
            )
        source_size = self.tokenizer.vocab_size if "source" in self.codecs else None
        return build_model(model, self.target_tokenizer.vocab_size, source_vocab_size=source_size)

    def collate(self, columns: Sequence[list[NDArray[np.int64]]], *, is_training: bool = False) -> PairBatch:
        """Pad pairs; sources end with the end token, targets start and end with theirs.

        Whatever an imported tokenizer puts before a text precedes the sources.
        """
        sources, targets = columns
        reader, writer = self.tokenizer, self.target_tokenizer
        ended = [np.array([*reader.opening, *source, reader.end], np.int64) for source in sources]
        lengths = [len(source) for source in ended]
        num_targets = sum(len(target) + 1 for target in targets)
        return PairBatch(
            source=torch.from_numpy(pad(ended, reader.pad)),
            lengths=torch.tensor(lengths) if min(lengths) < max(lengths) else None,
            target_in=torch.from_numpy(pad([np.insert(t, 0, writer.start) for t in targets], writer.pad)),
            target_out=torch.from_numpy(pad([np.append(t, writer.end) for t in targets], IGNORED)),
            num_targets=num_targets,
            num_tokens=num_targets + sum(lengths),
        )

    def pad_batch(self, batch: PairBatch, num_rows: int, length: int) -> PairBatch:
        """Pad to `num_rows` rows of `length` tokens and an end; added rows have no target."""
        have = batch.source.size(0)
        lengths = batch.lengths if batch.lengths is not None else torch.full((have,), batch.source.size(1))
        reader, writer = self.tokenizer, self.target_tokenizer
        target_out = pad_time(batch.target_out, length + 1, IGNORED)
        return replace(
            batch,
            source=pad_rows(pad_time(batch.source, len(reader.opening) + length + 1, reader.pad), num_rows),
            lengths=pad_rows(lengths, num_rows),
            target_in=pad_rows(pad_time(batch.target_in, length + 1, writer.pad), num_rows),
            target_out=nn.functional.pad(target_out, (0, 0, 0, num_rows - have), value=IGNORED),
        )

    def loss(self, model: Any, batch: PairBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the target tokens."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        hidden_states = model.hidden_states(batch.target_in, model.encode(batch.source, batch.lengths))
        return next_token_loss(model, hidden_states, batch.target_out, objective)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[PairBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each whole target."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            hidden_states = model.hidden_states(batch.target_in, model.encode(batch.source, batch.lengths))
            some_losses, some_counts = row_losses(model, hidden_states, batch.target_out)
            losses += some_losses
            counts += some_counts
        return Likelihoods(losses, counts)

    def predictor(self, model: Any, config: GenerationConfig) -> "Seq2SeqPredictor":
        return Seq2SeqPredictor(self, model, config)

    def answer_messages(
        self, predictor: Any, messages: Sequence[Mapping[str, Any]], template: str | None
    ) -> Iterator[str]:
        """The target of the last message: pairs have no history."""
        yield predictor([str(messages[-1]["content"])])[0].output

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """BLEU counts n-grams of four words, so it is of no use for shorter targets."""
        num_words = [len(row[1].split()) for row in rows]
        return "bleu" if sum(num_words) >= 4 * len(num_words) else "exact_match"

    def selects_by_score(self, device: Literal["cpu", "cuda"]) -> bool:
        """On a CPU, where 200 rows take as long as three steps; a GPU captures CUDA graphs at each evaluation."""
        return device == "cpu"

    def selection_generation(self, rows: Sequence[Sequence[str]]) -> GenerationConfig:
        """Greedy, and no longer than the longest target: an untrained model would not end before its limit."""
        return GenerationConfig(max_tokens=1 + max(map(len, self.target_tokenizer.encode([row[1] for row in rows]))))

    def baseline(self, data: Prepared) -> Baseline:
        rows = data.train_rows()
        sources, targets = [row[0] for row in rows], [row[1] for row in rows]
        return fit_pairs(sources, targets, metric=find_metric(self.headline(rows)))

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return (headline, *(name for name in ("exact_match", "bleu", "chrf") if name != headline))

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        pairs = [(row[0], each.output) for row, each in zip(data.rows, data.predictions, strict=True)]
        return replace(super().report(model, data), attention_inputs=pairs)

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(has_beam_search=True)

    def export_spec(self) -> ExportSpec:
        if "source" in self.codecs:
            raise ConfigError("a model with two tokenizers cannot be exported: task.target_tokenizer must be unset")
        return super().export_spec()


class Seq2SeqPredictor:
    """Generates the targets of sources, greedily, by sampling, or by beam search."""

    def __init__(self, task: Seq2Seq, model: Any, config: GenerationConfig) -> None:
        self._task, self._model, self._config = task, model, config
        self._device = next(model.parameters()).device
        writer = task.target_tokenizer
        suppress = writer.never_generated
        if config.beam_size > 1:
            self._search = BeamSearch(model, end=writer.end, config=config, suppress=suppress)
        else:
            num_slots = _SLOTS[self._device.type]
            self._engine = Engine(model, config, end=writer.ends, num_slots=num_slots, suppress=suppress)

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        encoded = self._task.tokenizer.encode(inputs)
        found = self._beam_search(encoded) if self._config.beam_size > 1 else self._generate(inputs, encoded)
        texts = self._task.target_tokenizer.decode(tokens for tokens, _ in found)
        rows = zip(inputs, texts, found, strict=True)
        return [Prediction(text, output, score) for text, output, (_, score) in rows]

    def _generate(self, inputs: Sequence[str], encoded: Sequence[list[int]]) -> list[tuple[list[int], float | None]]:
        """Greedy, or sampled with a seed that depends on the configured seed and the input alone."""
        reader, writer, config = self._task.tokenizer, self._task.target_tokenizer, self._config
        requests = [
            Request(
                [writer.start],
                config.limit(len(ids)),
                seed=mix(config.seed, row_hash((text,))),
                source=[*reader.opening, *ids, reader.end],
            )
            for text, ids in zip(inputs, encoded, strict=True)
        ]
        return [(tokens, None) for tokens in self._engine.run(requests)]

    def _beam_search(self, encoded: Sequence[list[int]]) -> list[tuple[list[int], float | None]]:
        """Long inputs first, so that a batch has inputs of similar length."""
        order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
        results: dict[int, tuple[list[int], float | None]] = {}
        place = 0
        while place < len(order):
            length = self._rounded(len(encoded[order[place]]) + 1)
            num_rows = self._num_rows(len(order) - place, length)
            chosen = order[place : place + num_rows]
            place += len(chosen)
            found = self._search_batch([encoded[i] for i in chosen], length, num_rows)
            for i, hypotheses in zip(chosen, found, strict=False):
                results[i] = (hypotheses[0].tokens, hypotheses[0].score)
        return [results[i] for i in range(len(encoded))]

    def _search_batch(self, encoded: list[list[int]], length: int, num_rows: int) -> list[list[Hypothesis]]:
        sources = [np.array(ids, np.int64) for ids in encoded]
        batch = self._task.collate([sources, [np.empty(0, np.int64)] * len(sources)])
        limits = [self._config.limit(len(ids)) for ids in encoded]
        if self._device.type == "cuda":
            # Padded to a shape that recurs, so that its CUDA graph can be reused.
            batch = self._task.pad_batch(batch, num_rows, length - 1)
            limits += [1] * (num_rows - len(limits))
            batch = replace(batch, target_in=batch.target_in[:, :1])
        batch = to_device(batch, self._device)
        with torch.inference_mode():
            state = self._model.initial_state(self._model.encode(batch.source, batch.lengths))
        return self._search.search(state, batch.target_in, limits)

    def _num_rows(self, num_left: int, length: int) -> int:
        """The number of sources, of up to `length` tokens, that are searched together.

        On a CPU all batches have about the same size; on a GPU it is a power of two, which recurs.
        """
        most = max(1, _SEARCHED_TOKENS[self._device.type] // (length * self._config.beam_size))
        if self._device.type == "cuda":
            return 1 << (min(most.bit_length() - 1, (num_left - 1).bit_length()))
        return math.ceil(num_left / math.ceil(num_left / most))

    def _rounded(self, length: int) -> int:
        return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE if self._device.type == "cuda" else length


def _has_other_columns(summary: DetectionSummary) -> bool:
    """Whether a table has features among its columns, so that the first two of them need not be a pair."""
    if summary.columns_given or (summary.has_column(*_PAIR_NAMES) and not summary.is_table_of_features):
        return False
    if summary.is_table_of_features or (summary.names and len(summary.columns) < len(_ROLES)):
        return True
    num_others = len(summary.columns) - len(_ROLES)
    if num_others > 0 and not has_pair_names(summary.columns):
        # A single other column, such as a count, does not make words features.
        is_text = _is_varied if num_others == 1 else is_free_text
        if not (is_text(summary.source) and is_text(summary.target)):
            return True
    if summary.names and summary.has_decimals(-1) and not any(map(_has_letters, (row[0] for row in summary.sample))):
        return True
    return summary.is_table_of_numbers and (num_others > 0 or bool(summary.names))


def _is_varied(column: ColumnSummary) -> bool:
    return column.kind == "text" and not is_factor(column)


def _has_letters(text: object) -> bool:
    return any(map(str.isalpha, str(text)))


def _numbered_pair(summary: DetectionSummary) -> tuple[str, ...]:
    """The two columns of text of a table without names whose two other columns number the texts; none in another."""
    texts = [column for column in summary.columns if column.kind == "text"]
    others = [column for column in summary.columns if column not in texts]
    are_numbers = all(column.is_numeric and not column.has_fractions for column in others)
    are_distinct = all(column.num_distinct == len(column.cells) for column in others)
    is_pair = len(texts) == len(others) == len(_ROLES) and are_numbers and are_distinct and not summary.names
    return tuple(column.name for column in texts) if is_pair else ()


def _tokenizer_of(codec: Codec | None) -> Tokenizer:
    assert isinstance(codec, TextCodec), "a sequence-to-sequence task has a tokenizer for each side"
    return codec.tokenizer
