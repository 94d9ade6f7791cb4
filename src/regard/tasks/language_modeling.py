r"""Language modeling: predict the next token of running text.

By the chain rule a text's probability is that of its tokens, each given those
before it:

$$ p(x_1 \dots x_n) = \prod_t p(x_t \mid x_1 \dots x_{t-1}) $$

The model is trained by teacher forcing on windows of the text. Documents are
concatenated, each begun by the start token and ended by the end token; where
they are isolated, attention stays inside each. A recurrent model may also carry
its state from each window to the next (truncated backpropagation through time).
With `task.ngrams` the model that is evaluated and used is a mixture of the network
with n-grams: see `regard.models.ngram_mixture`.

Bengio et al., "A Neural Probabilistic Language Model" (2003).
Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).

Dimensions: `batch` windows, `time` positions, `model` width.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.baselines.ngrams import KneserNey
from regard.data.conversation_sources import parse_prompt
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.summary import ColumnSummary
from regard.data.permutation import mix
from regard.data.prepare import Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.splits.by_hash import row_hash
from regard.data.stores.tokens import TokenStream
from regard.data.text_sources import TextSource, open_texts, prepare_text
from regard.data.windows import ContiguousSampler, WindowSampler, evaluation_windows
from regard.errors import ConfigError, DataError, RunError
from regard.evaluation.examples import Examples
from regard.evaluation.metrics.likelihood import shared_ends, sum_between
from regard.evaluation.metrics.molecules import GENERATION_METRICS
from regard.evaluation.registry import score_examples
from regard.evaluation.scores import Score
from regard.generation.beam import BeamSearch, Hypothesis
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request, check_request
from regard.logging import log_warning, quiet_logs
from regard.models.family import ModelConfig, build_model
from regard.models.heads import HeadConfig
from regard.models.ngram_mixture import NgramMixture
from regard.models.protocols import Decoder, StatefulDecoder
from regard.nn.losses import IGNORED
from regard.nn.ngrams import NgramTables, estimate_kneser_ney
from regard.tasks.capabilities import TextScore
from regard.tasks.choices import ChoiceContext, Choices, Defaults, DefaultsContext
from regard.tasks.content import ExportSpec, Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DOCUMENT_COLUMNS, DetectionSummary
from regard.tasks.labeled_columns import has_pair_names
from regard.tasks.task import (
    PLAIN,
    ComparedRun,
    Detection,
    EvaluationData,
    Likelihoods,
    Objective,
    repeat_batch,
    to_device,
)
from regard.tasks.text import TextSettings, TextTask, next_token_loss, target_log_likelihoods
from regard.text.alphabets import describe_kind, sequence_kind
from regard.text.chat import Chat
from regard.text.tokenizer import TextStreamer, Tokenizer

_NEW_TOKENS = 200
"""Tokens that are generated where no limit is set."""
_EVALUATION_TOKENS = 16_384
_SLOTS = {"cpu": 32, "cuda": 256}
"""Texts that are generated side by side."""
_BATCH_TOKENS = {"cpu": 1_024, "cuda": 8_192}
_WINDOW = {"cpu": 128, "cuda": 256}
_WIDE, _WIDE_WINDOW = 512, 1_024
"""A model at least this wide is trained on windows of this length on a GPU."""
_FEWEST_WINDOWS, _SHORTEST_WINDOW = 8, 8
DECODER_TRAIN_DEFAULTS: dict[str, Any] = {
    "label_smoothing": 0.0,
    "schedule": "trapezoid",
    "warmup_steps": 40,
    "beta2": 0.95,
    "weight_decay": 0.1,
    "ema_decay": 0.98,
}
"""What learns fastest by the experiments in docs/log.md."""
_VERY_SHORT_MINUTES, _VERY_SHORT_RATE = 0.5, 0.1
_VERY_SHORT = Defaults(model={"num_layers": 2}, task={"window": 64}, train={"warmup_steps": 10})
"""For so short a run of a small Transformer on a CPU: two layers reach 1.92 in 15 s, four 2.12 (docs/log.md)."""
_UNKNOWN_WORD, _UNKNOWN_SHARE, _WORD_MINUTES = "<unk>", 0.001, 5.0
"""How texts that are cut into words mark rare ones, and the share of such marks in them; a GPU needs these minutes."""
_RDROP_EPOCHS, _RDROP_TOKENS_PER_SECOND, _LEAST_TOKENS = 40.0, 130_000, 200_000
"""From so many epochs on, at a rough speed of a GPU, a model of so many words or more is regularized strongly."""
_GPT_RECIPE = Defaults(
    model={
        "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048, "dropout": 0.55, "token_dropout": 0.15,
        "attention_dropout": 0.1,
    },
    task={"window": 256, "stride": 64},
    train={"rdrop": 4.0, "weight_decay": 0.5, "ema_decay": 0.995, "patience": 0},
)  # fmt: skip
"""Penn Treebank, 8.6 minutes on a GPU: test perplexity 62.4 (docs/log.md)."""
_LSTM_RECIPE = Defaults(
    model={
        "num_layers": 3, "model_dim": 384, "hidden_dim": 1024, "locked_dropout": True, "weight_dropout": 0.5,
        "token_dropout": 0.1, "dropout": 0.4, "input_dropout": 0.4, "layer_dropout": 0.25,
    },
    task={
        "window": 70, "carry_state": True, "window_jitter": 0.1, "activation_penalty": 2.0, "change_penalty": 0.6,
    },
    train={
        "clip_norm": 0.25, "batch_tokens": 4480, "learning_rate": 0.002, "schedule": "cosine", "warmup_steps": 300,
        "beta2": 0.99, "weight_decay": 0.02, "ema_decay": 0.999, "rdrop": 1.0, "patience": 0,
    },
)  # fmt: skip
"""As in Merity et al. (2017), but for AdamW with a decaying learning rate in place of averaged gradient descent. Penn
Treebank, 8.8 minutes on a GPU: test perplexity 62.6."""
_NUM_PROMPTS, _PROMPT_CHARACTERS = 8, 60
"""Prompts that a report has the model continue, and their length."""
_NGRAM_ORDERS, _OTHER_ORDER = {"characters": 5, "bytes": 5}, 3
"""The longest n-grams of the baseline, by the kind of tokenizer."""
_NGRAM_TOKENS = 4_000_000
"""The last tokens of the training text, from which the n-grams of the baseline are counted in seconds."""
_NGRAM_TOKENS_PER_SECOND = 500_000
"""Tokens from which 3-grams are counted in a second, on one core."""
_BLENDED_TOKENS = 16_384
"""Validation tokens on which the weight of the network is fitted: one number needs no more."""
_SAMPLED_TEXTS = 200
"""Texts by which molecules are recognized."""
_FEW_SPANS = 50
"""Bootstrap intervals from fewer spans are too narrow."""


class RunningTextSettings(TextSettings):
    """Settings of tasks on running text."""

    documents: Literal["auto", "file", "lines"] = "auto"
    """What a document of a plain text is: the whole file, or each line; auto: lines where the tokenizer is words or
    one of molecules and biological sequences, else the file."""
    isolate: bool
    """Whether each document is read on its own. Unset: true for rows of a table and for many files, false for lines
    and for one file."""
    window: int = Field(ge=2)
    """Positions of a training window. Unset: chosen for the model, the device and the length of the text."""
    stride: int | None = Field(default=None, ge=1)
    """The distance between the starts of evaluation windows: a smaller one gives each token more context and takes
    longer. Unset: windows do not overlap."""


class LanguageModelingSettings(RunningTextSettings):
    """Settings of language models."""

    name: str = "language-modeling"
    activation_penalty: float = Field(default=0.0, ge=0.0)
    """Weight of the mean square of the hidden states in the loss (AR of Merity et al., 2017)."""
    change_penalty: float = Field(default=0.0, ge=0.0)
    """Weight of the mean squared change of the hidden states between positions (TAR)."""
    carry_state: bool = False
    """For recurrent models: each training window continues the previous one, with the state reached there. The state
    is reset at each epoch."""
    window_jitter: float = Field(default=0.0, ge=0.0, lt=0.5)
    """With carry_state: the largest random shift of the cuts between windows, as a share of the window."""
    ngrams: int | None = Field(default=None, ge=0, le=5)
    """Mix the network's probabilities with those of Kneser-Ney n-grams of up to so many tokens, with the weight that
    is best on the validation text; 0 for the network alone. Unset: 3 for words and pieces of words in runs from scratch
    of up to 15 minutes on a CPU, otherwise 0."""

    @model_validator(mode="after")
    def _jitter_needs_a_carried_state(self) -> Self:
        if self.window_jitter and not self.carry_state:
            raise ConfigError(
                f"task.window_jitter needs task.carry_state, got window_jitter={self.window_jitter} without it"
            )
        return self


RunningTextSettingsT = TypeVar("RunningTextSettingsT", bound=RunningTextSettings)


class RunningTextTask(TextTask[RunningTextSettingsT]):
    """A task on running text, which is stored as one stream of tokens and read in windows."""

    roles = ("text",)
    store_columns = ("text",)
    has_targets = False
    has_rows = False
    unit = "document"

    def open(self, config: DataConfig, rows: Rows | None = None) -> TextSource:  # pyright: ignore[reportIncompatibleMethodOverride]  documents are not rows of a table
        settings = self.settings
        return open_texts(
            config, rows, tokenizer=settings.tokenizer, documents=settings.documents, isolate=settings.isolate
        )

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared[TokenStream]:
        return prepare_text(self.open(config, rows), config, self)

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = self.open(config, rows)
        found = [(text,) for text in source.train.documents()]
        for table in source.train.tables:
            if table.bad_rows.total:
                log_warning(f"skipped: {table.bad_rows}")
        return found, source.content_hash()

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        values = super().imported_settings(max_length=max_length, window=window)
        return {**values, "window": window, "isolate": False}

    def texts_of(self, row: Sequence[str]) -> Sequence[str]:
        return row

    def cache_key(self) -> dict[str, Any]:
        """A stream of tokens serves every task on running text, whatever the limit of a row."""
        return {**super().cache_key(), "task": "running text", "max_length": None}

    def choose(self, context: ChoiceContext) -> Choices:
        """The tokens of molecules and biological sequences; other running text has a byte-level BPE."""
        kind = sequence_kind([line for (text,) in context.rows for line in text.splitlines() if line.strip()])
        if kind is None or self.settings.tokenizer is not None:
            return Choices()
        return Choices({"tokenizer": kind}, reasons={"tokenizer": f"{kind}: {describe_kind(kind)}"})

    def running_defaults(self, context: DefaultsContext) -> dict[str, Any]:
        """The window, and whether documents are isolated."""
        return {"window": default_window(context), "isolate": context.data.is_isolated}

    def num_positions(self, data: Prepared) -> int:
        return self.settings.window

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        settings = self.settings
        if settings.stride is not None and settings.stride > settings.window:
            raise ConfigError(f"task.stride must be at most task.window, got {settings.stride} and {settings.window}")
        if settings.isolate and not model.can_isolate_documents:
            log_warning(f"models of family {model.family} cannot isolate documents: each is read as a continuation")

    def with_stride(self, stride: int) -> Self:
        window = self.settings.window
        if not 1 <= stride <= window:
            raise ConfigError(f"stride must be between 1 and the window of {window} tokens, got {stride}")
        return type(self)(self.settings.changed(stride=stride), self.codecs)

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def train_size(self, data: Prepared) -> int:
        return data.train.num_documents

    def check_comparison(
        self,
        tasks: Mapping[str, Any],
        data: Prepared,
        config: DataConfig,
        *,
        batch_tokens: int,
        sizes: Sequence[int] = (),
    ) -> None:
        """Raise where the text has no window for each model, or not two spans that all models score."""
        for task in tasks.values():
            task.batches(data, batch_tokens=batch_tokens, seed=0)
        _require_spans(list(tasks.values()), data)
        if sizes and not data.is_isolated:
            raise ConfigError(
                "a smaller training set is made of some of many documents, and this text is continuous: "
                f"sizes must be unset, got {', '.join(map(str, sizes))}"
            )
        super().check_comparison(tasks, data, config, batch_tokens=batch_tokens, sizes=sizes)
        for size in sizes:  # the number of their tokens is known only once they are prepared
            with quiet_logs():
                fewer = self.prepare(config.changed(train_rows=size))
            for task in tasks.values():
                task.batches(fewer, batch_tokens=batch_tokens, seed=0)

    def token_ids(self, rows: Sequence[Sequence[str]]) -> NDArray[np.int64]:
        """Documents as one stream of ids, with an end token before the first and after each."""
        ids = [self.tokenizer.end]
        for encoded in self.tokenizer.encode([row[0] for row in rows]):
            ids += [*encoded, self.tokenizer.end]
        return np.array(ids)


def _are_documents(column: ColumnSummary) -> bool:
    """Whether cells are texts, most of which are not empty."""
    return column.kind in ("text", "labels") and 2 * sum(map(bool, column.cells)) > len(column.cells)


def _is_very_short(context: DefaultsContext) -> bool:
    """Whether a small Transformer is trained on a CPU for half a minute at most."""
    is_short = context.minutes is not None and context.minutes <= _VERY_SHORT_MINUTES
    return context.device == "cpu" and is_short and context.model.can_use_muon


def default_window(context: DefaultsContext) -> int:
    """What fits the device and the model, provided that the text has several such windows."""
    is_wide = context.device == "cuda" and context.model.model_dim >= _WIDE
    window = _WIDE_WINDOW if is_wide else _WINDOW[context.device]
    window = min(window, context.model.max_positions or window, len(context.data.train) // _FEWEST_WINDOWS)
    return max(_SHORTEST_WINDOW, window)


@dataclass(frozen=True)
class WindowBatch:
    """Windows of text: `targets[t]` is the token after `tokens[t]`."""

    tokens: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch time"]
    """`IGNORED` where it does not count."""
    documents: Int[Tensor, "batch time"] | None
    """The number of each position's document in its window; None where documents are not isolated."""
    num_targets: int
    is_one_text: bool = False
    """Whether each row continues where what counts of the row above it ended, so that a recurrent model may read all
    rows as one text."""
    continues: bool = False
    """Whether each row continues the same row of the previous batch."""
    num_padding: int = 0
    """Positions without a token."""

    @property
    def num_tokens(self) -> int:
        return self.tokens.numel() - self.num_padding

    def tensors(self) -> list[Tensor | None]:
        return [self.tokens, self.targets, self.documents]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "WindowBatch":
        names = ("tokens", "targets", "documents")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name


class WindowBatches:
    """The windows of a stream, in shuffled order."""

    def __init__(
        self, stream: TokenStream, tokenizer: Tokenizer, *, window: int, batch_tokens: int, seed: int, isolate: bool
    ) -> None:
        batch_size = max(1, batch_tokens // window)
        self.sampler = WindowSampler(len(stream), window=window, batch_size=batch_size, seed=seed)
        self._ids, self._tokenizer, self._isolate = stream.ids, tokenizer, isolate
        self._offsets = np.arange(window + 1)

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> WindowBatch:
        ids = self._ids[self.sampler.starts(number)[:, None] + self._offsets].astype(np.int64)
        return make_window_batch(ids, self._tokenizer, isolate=self._isolate)


class ContinuousBatches:
    """The windows of a stream in the order of the text, each row of a batch at a place of its own."""

    def __init__(
        self, stream: TokenStream, tokenizer: Tokenizer, *, window: int, batch_tokens: int, seed: int, jitter: int
    ) -> None:
        batch_size = max(1, batch_tokens // window)
        self.sampler = ContiguousSampler(len(stream), window=window, batch_size=batch_size, seed=seed, jitter=jitter)
        self._ids, self._tokenizer = stream.ids, tokenizer

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> WindowBatch:
        starts, length = self.sampler.windows(number)
        ids = self._ids[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        batch = make_window_batch(ids, self._tokenizer, isolate=False)
        return replace(batch, continues=not self.sampler.is_first(number))


class LanguageModeling(RunningTextTask[LanguageModelingSettings]):
    """Running text, by a decoder-only model."""

    name = "language-modeling"
    description = "language modeling"
    other_names = ("lm", "language-model", "causal-lm", "causal-language-modeling", "text-generation", "generation")
    Settings = LanguageModelingSettings
    metrics = ("perplexity", "bits_per_byte")
    architecture = "decoder"
    default_preset = "gpt"
    attention_kind = "causal"
    head_kind = "next-token"

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.is_plain_text:
            return Detection("running text", confidence=0.9)
        if summary.has_column(*DOCUMENT_COLUMNS) and not summary.columns_given and not summary.has_images:
            name = summary.named_column(*DOCUMENT_COLUMNS)
            if any(column.plain_name == name and not _are_documents(column) for column in summary.columns):
                return None
            if has_pair_names([column for column in summary.columns if column.kind == "text"]):
                return None
            others = [column.name for column in summary.columns if column.plain_name != name]
            others = [format_column(other) for other in (*others, *summary.lists)]
            unused = f"; not used: {format_names(others)}" if others else ""
            return Detection(f"a column of text ({name}){unused}", confidence=0.4)
        return None

    def choose(self, context: ChoiceContext) -> Choices:
        """Words, where a text was cut into words before, and rare ones were replaced; on a GPU with some minutes."""
        if self.settings.tokenizer is not None or context.device != "cuda" or (context.minutes or 0.0) < _WORD_MINUTES:
            return super().choose(context)
        words = [word for row in context.rows for word in row[0].split()]
        if words.count(_UNKNOWN_WORD) < _UNKNOWN_SHARE * max(1, len(words)):
            return super().choose(context)
        reason = f"words: rare ones are {_UNKNOWN_WORD} in this text, so that the others are a closed set"
        return Choices({"tokenizer": "words"}, reasons={"tokenizer": reason})

    def defaults(self, context: DefaultsContext) -> Defaults:
        train = {
            **DECODER_TRAIN_DEFAULTS,
            "optimizer": "muon" if context.model.can_use_muon else "adamw",
            "batch_tokens": _BATCH_TOKENS[context.device],
        }
        found = self._with_ngrams(context, Defaults(train=train, task=self.running_defaults(context)))
        if context.is_finetuned:
            return found
        if _is_very_short(context):
            rate = _VERY_SHORT_RATE / math.sqrt(context.model.model_dim) * context.model.lr_scale
            short = replace(_VERY_SHORT, train={**_VERY_SHORT.train, "learning_rate": float(f"{rate:.2g}")})
            return self._with(found, short, {"model.num_layers": "2: fewer layers learn more in half a minute"})
        recipe, epochs = self._recipe(context)
        if recipe is None:
            return found
        why = f"the budget allows about {epochs:,.0f} epochs of this text, so it has to regularize"
        values = {"model.dropout": recipe.model["dropout"], "train.rdrop": recipe.train["rdrop"]}
        reasons = {name: f"{value:g}: {why}" for name, value in values.items()}
        width = f"{recipe.model['model_dim']}: wider, for so much dropout"
        return self._with(found, recipe, {"model.model_dim": width, **reasons})

    def _recipe(self, context: DefaultsContext) -> tuple[Defaults | None, float]:
        """What regularizes a model of words, where a GPU has time for many epochs, and their number."""
        epochs = context.num_epochs(tokens_per_second=_RDROP_TOKENS_PER_SECOND, batch_tokens=_BATCH_TOKENS["cuda"])
        is_small = context.device == "cuda" and epochs is not None and epochs >= _RDROP_EPOCHS
        if epochs is None or not is_small or self.settings.tokenizer != "words" or context.num_rows < _LEAST_TOKENS:
            return None, 0.0
        if context.model.can_carry_state:
            return None if context.data.is_isolated else _LSTM_RECIPE, epochs
        return _GPT_RECIPE if context.model.can_use_muon else None, epochs

    def _with(self, defaults: Defaults, recipe: Defaults, reasons: Mapping[str, str]) -> Defaults:
        """The defaults, with the values of a recipe that the user's own allow."""
        task = dict(recipe.task)
        task["window"] = min(task["window"], defaults.task["window"])
        if "stride" in task:
            task["stride"] = min(task["stride"], self.settings.window or task["window"])
        if "carry_state" in self.settings.model_fields_set and not self.settings.carry_state:
            task.pop("window_jitter", None)
        return Defaults(
            train={**defaults.train, **recipe.train},
            task={**defaults.task, **task},
            model=recipe.model,
            reasons={**defaults.reasons, **reasons},
        )

    def _with_ngrams(self, context: DefaultsContext, defaults: Defaults) -> Defaults:
        """The defaults, with n-grams beside the network where that gains from them."""
        if self.settings.ngrams is not None:
            return defaults
        order = _OTHER_ORDER if self._gains_from_ngrams(context) else 0
        reason = f"{order}: in a short run on a CPU they predict better than the network alone"
        return replace(
            defaults, task={**defaults.task, "ngrams": order}, reasons={"task.ngrams": reason} if order else {}
        )

    def _gains_from_ngrams(self, context: DefaultsContext) -> bool:
        """Whether the run is too short for the network to predict as well; of characters it soon does."""
        is_spelled = self.settings.tokenizer in _NGRAM_ORDERS
        return context.is_quick and not context.is_finetuned and not is_spelled and context.num_rows > _OTHER_ORDER

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        super().check(model=model, is_finetuned=is_finetuned, held_out=held_out)
        if self.settings.ngrams and is_finetuned:
            raise ConfigError(
                f"task.ngrams is for models that are trained from scratch: it must be 0, got {self.settings.ngrams}"
            )
        if self.settings.carry_state and not model.can_carry_state:
            raise ConfigError(f"task.carry_state is for recurrent models, got model.family={model.family}")

    def build(self, model: ModelConfig, head: HeadConfig) -> nn.Module:
        network, order = build_decoder(model, self.tokenizer.vocab_size), self.settings.ngrams
        if not order:
            return network
        tables = NgramTables(self.tokenizer.vocab_size, order)
        start, end = self.tokenizer.start, self.tokenizer.end
        return NgramMixture(network, tables, start=start, end=end, isolates=self.settings.isolate)

    def solve(self, model: Any, data: Prepared, *, seconds: float | None = None) -> bool:
        """Count n-grams, of fewer tokens where there is little time."""
        if not isinstance(model, NgramMixture):
            return False
        assert isinstance(data.train, TokenStream)
        order, vocab_size = model.tables.order, model.tables.vocab_size
        most = _NGRAM_TOKENS if seconds is None else min(_NGRAM_TOKENS, int(_NGRAM_TOKENS_PER_SECOND * seconds))
        ids = np.asarray(data.train.ids[-max(most, order + 1) :])
        model.tables.fill(estimate_kneser_ney(ids, vocab_size=vocab_size, order=order))
        return True

    def blend(self, model: Any, batches: Iterator[WindowBatch], device: torch.device) -> None:
        """Fit the weight of the network in the mixture with n-grams."""
        if not isinstance(model, NgramMixture):
            return
        network: list[Tensor] = []
        ngrams: list[Tensor] = []
        for found in _log_likelihoods(model, batches, device, is_weighted=False):
            assert found.ngrams is not None, "a mixture has n-grams"
            counts = found.targets != IGNORED
            network.append(found.network[counts])
            ngrams.append(found.ngrams[counts])
            if sum(map(len, network)) >= _BLENDED_TOKENS:
                break
        model.fit_weight(torch.cat(network), torch.cat(ngrams))

    def batches(self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False) -> WindowBatches:
        """Windows have one shape in any case."""
        assert isinstance(data.train, TokenStream)
        window, isolate = self.settings.window, data.is_isolated
        return WindowBatches(
            data.train, self.tokenizer, window=window, batch_tokens=batch_tokens, seed=seed, isolate=isolate
        )

    @property
    def carries_state(self) -> bool:
        return self.settings.carry_state

    def stateful_batches(self, data: Prepared, *, batch_tokens: int, seed: int) -> ContinuousBatches:
        assert isinstance(data.train, TokenStream)
        window, jitter = self.settings.window, int(self.settings.window_jitter * self.settings.window)
        return ContinuousBatches(
            data.train, self.tokenizer, window=window, batch_tokens=batch_tokens, seed=seed, jitter=jitter
        )

    def validation_batches(self, data: Prepared) -> Iterator[WindowBatch]:
        assert isinstance(data.valid, TokenStream)
        window = self.settings.window
        return stream_batches(data.valid.ids, self.tokenizer, window=window, stride=window, isolate=data.is_isolated)

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[WindowBatch]:
        settings = self.settings
        return stream_batches(
            self.token_ids(rows),
            self.tokenizer,
            window=settings.window,
            stride=settings.stride or settings.window,
            isolate=settings.isolate,
        )

    def loss(self, model: Any, batch: WindowBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the targets, and the penalties on hidden states."""
        network = _network_of(model)
        if objective.rdrop:
            batch = repeat_batch(batch)
        hidden_states = network.hidden_states(batch.tokens, documents=documents_for(network, batch))
        return self._loss_of(network, hidden_states, batch, objective)

    def stateful_loss(
        self, model: Any, batch: WindowBatch, state: list[Tensor] | None, objective: Objective = PLAIN
    ) -> tuple[Float[Tensor, ""], list[Tensor]]:
        """The `loss`, and the state after the windows; with R-Drop, that of the first pass."""
        network = _network_of(model)
        before = network.restore_state(state) if state is not None and batch.continues else None
        rows = torch.arange(batch.tokens.size(0), device=batch.tokens.device)
        if objective.rdrop:
            batch, before = repeat_batch(batch), None if before is None else before.select(torch.cat([rows, rows]))
        hidden_states, after = network.hidden_states_from(batch.tokens, before)
        loss = self._loss_of(network, hidden_states, batch, objective)
        after = after.select(rows) if objective.rdrop else after
        return loss, [part.detach() for part in after.tensors()]

    def _loss_of(
        self, model: Decoder, hidden_states: Float[Tensor, "batch time model"], batch: WindowBatch, objective: Objective
    ) -> Float[Tensor, ""]:
        loss = next_token_loss(model, hidden_states, batch.targets, objective)
        activation, change = self.settings.activation_penalty, self.settings.change_penalty
        if activation or change:
            penalty = hidden_state_penalty(hidden_states, activation=activation, change=change)
            loss = loss + (penalty / 2 if objective.rdrop else penalty)
        return loss

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[WindowBatch], device: torch.device) -> Likelihoods:
        """Returns each window's likelihood; a recurrent model keeps its state across windows of contiguous text."""
        losses: list[float] = []
        counts: list[int] = []
        carries_state = False
        for found in _log_likelihoods(model, batches, device):
            losses += (-found.mixed(model).sum(dim=1)).tolist()
            counts += (found.targets != IGNORED).sum(dim=1).tolist()
            carries_state = carries_state or found.carries_state
        return Likelihoods(losses, counts, carries_state=carries_state)

    def predictor(self, model: Any, config: GenerationConfig) -> "LanguageModelingPredictor":
        return LanguageModelingPredictor(model, self.tokenizer, config)

    def examples(self, data: EvaluationData) -> Examples:
        settings = self.settings
        how: dict[str, str | int | float] = {"window": settings.window, "stride": settings.stride or settings.window}
        if data.likelihoods.carries_state:
            how["state"] = "carried"
        if settings.ngrams:
            how["ngrams"] = settings.ngrams
        return Examples(
            losses=data.likelihoods.losses,
            num_tokens=data.likelihoods.counts,
            num_bytes=sum(len(row[0].encode()) for row in data.rows),
            settings=how,
        )

    def baseline(self, data: Prepared) -> Baseline:
        """N-grams of the model's own tokens, so that the likelihoods of both are comparable."""
        assert isinstance(data.train, TokenStream)
        order = _NGRAM_ORDERS.get(self.settings.tokenizer, _OTHER_ORDER)
        ids = np.asarray(data.train.ids[-_NGRAM_TOKENS:])
        ngrams = KneserNey(ids, vocab_size=self.tokenizer.vocab_size, order=order)
        window, stride = self.settings.window, self.settings.stride or self.settings.window

        def predict(texts: Sequence[str]) -> BaselinePredictions:
            read = self.token_ids([(text,) for text in texts])
            windows = evaluation_windows(len(read), window, stride)
            starts = [first - 1 for _, _, first in windows]
            counts = [end - first + 1 for _, end, first in windows]
            return BaselinePredictions(losses=np.add.reduceat(ngrams.losses(read), starts).tolist(), num_tokens=counts)

        return Baseline(f"Kneser-Ney {order}-grams", predict, len(ids), "tokens")

    def align(self, examples: Sequence[Examples]) -> list[Examples]:
        """Sums over spans of text that start and end at window ends of every model."""
        found = [each.require("losses", "num_tokens") for each in examples]
        ends = shared_ends([counts for _, counts in found])
        sums = [[sum_between(column, both[1], ends).tolist() for column in both] for both in found]
        return [
            replace(each, losses=losses, num_tokens=counts)
            for each, (losses, counts) in zip(examples, sums, strict=True)
        ]

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        """Bits per byte first: perplexities compare only for one vocabulary, and fewer documents give another."""
        return ("bits_per_byte", "perplexity")

    def comparison_notes(self, runs: Sequence[ComparedRun]) -> list[str]:
        first = next(run for run in runs if run.train_rows is None)
        spans, num_bytes = first.examples.require("losses", "num_bytes")
        notes = [f"scores are on the {first.role} text, {format_count(num_bytes, 'byte')}"]
        if len(spans) < _FEW_SPANS:
            notes.append(f"{len(spans)} spans of text are few: the intervals are too narrow")
        return [*notes, *_notes_on_ngrams(runs), *_notes_on_context(runs), *_notes_on_vocabularies(runs)]

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        text = " ".join(data.rows[0][0][: 2 * _PROMPT_CHARACTERS].split())[:_PROMPT_CHARACTERS]
        shown = self._readable(model, text)
        inputs = [(shown, shown)] if shown.strip() else []
        facts = {**self.facts(), **_facts_of(model)}
        names = ("text", "continuation", "generated")
        return ReportContent(self.samples(model, data), names, facts=facts, attention_inputs=inputs)

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        """Prompts from held-out text, how the text continues, and how the model continues it."""
        texts = [row[0] for row in data.rows if len(row[0]) > 2 * _PROMPT_CHARACTERS]
        places = [
            (text, len(text) * part // _NUM_PROMPTS) for part in range(_NUM_PROMPTS) for text in texts[:_NUM_PROMPTS]
        ]
        samples = []
        for text, place in places[:_NUM_PROMPTS]:
            start = place + text[place:].find(" ") + 1
            middle, end = (_word_end(text, start + length * _PROMPT_CHARACTERS, start) for length in (1, 4))
            prompt = self._readable(model, text[start:middle])
            if prompt.strip():
                samples.append({"source": prompt, "target": text[start + len(prompt) : end]})
        config = GenerationConfig(temperature=0.8, max_tokens=100)
        found = self.predictor(model, config)([sample["source"] for sample in samples])
        return [{**sample, "prediction": each.output} for sample, each in zip(samples, found, strict=True)]

    def _readable(self, model: Any, text: str) -> str:
        """As much of a text as leaves half of the model's positions free, where these are limited."""
        limit = model.config.max_positions
        return text if limit is None else self.tokenizer.decode([self.tokenizer.encode([text])[0][: limit // 2]])[0]

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(inputs=("prompt",), streams=True, placeholder="The beginning of a text")

    def export_spec(self) -> ExportSpec:
        order = self.settings.ngrams
        return replace(super().export_spec(), unsupported={"task.ngrams": order} if order else {})

    @torch.inference_mode()
    def score_samples(self, texts: Sequence[str], known: Sequence[str]) -> list[Score]:
        """Validity, uniqueness and novelty of molecules."""
        if sequence_kind(known[:_SAMPLED_TEXTS]) not in ("smiles", "selfies"):
            raise RunError("metrics of generated texts are for molecules, and this model was trained on other texts")
        examples = Examples(outputs=[text.strip() for text in texts], extras={"references": known})
        return score_examples([metric.name for metric in GENERATION_METRICS], examples)

    def score_text(self, model: Any, text: str) -> TextScore:
        return score_text(model, self.tokenizer, text)

    def answer_messages(
        self, predictor: Any, messages: Sequence[Mapping[str, Any]], template: str | None
    ) -> Iterator[str]:
        return answer_by_template(predictor, messages, template, self.tokenizer)


class LanguageModelingPredictor:
    """Continues prompts."""

    def __init__(self, model: Any, tokenizer: Tokenizer, config: GenerationConfig) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._device = next(model.parameters()).device
        self._search = self._engine = None
        suppress = tokenizer.never_generated
        if config.beam_size > 1:
            self._search = BeamSearch(model, end=tokenizer.ends, config=config, suppress=suppress, truncates=True)
        else:
            slots = _SLOTS[self._device.type]
            self._engine = Engine(model, config, end=tokenizer.ends, num_slots=slots, suppress=suppress)

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """The continuation of each prompt."""
        requests = [self._request(text) for text in inputs]
        if self._engine is None:
            best = [self._best(request) for request in requests]
            texts = self._tokenizer.decode([each.tokens for each in best])
            return [
                Prediction(text, output, each.score) for text, output, each in zip(inputs, texts, best, strict=True)
            ]
        texts = self._tokenizer.decode(self._engine.run(requests))
        return [Prediction(text, output) for text, output in zip(inputs, texts, strict=True)]

    def stream(self, prompt: str) -> Iterator[str]:
        """The continuation of a prompt, piece by piece."""
        request = self._request(prompt)
        # The last token of the prompt decides whether the continuation begins with a space.
        yield from self._decode(request, request.prompt[-1:] if prompt else [])

    def stream_tokens(self, prompt: Sequence[int]) -> Iterator[str]:
        """The continuation of token ids, such as a conversation, piece by piece.

        The state after the prompt is kept: of the next prompt that begins with it, only the rest is processed.
        """
        seed = mix(self._config.seed, row_hash([str(token) for token in prompt]))
        if self._engine is not None:
            self._engine.keep(list(prompt))
        yield from self._decode(Request(list(prompt), self._limit, seed=seed), [])

    @property
    def _limit(self) -> int:
        return self._config.max_tokens or _NEW_TOKENS

    def _request(self, prompt: str) -> Request:
        """The seed is combined with the prompt, so that each text is sampled independently."""
        seed = mix(self._config.seed, row_hash((prompt,)))
        return Request(self._tokenizer.prompt(prompt), self._limit, seed=seed)

    @torch.inference_mode()
    def _best(self, request: Request) -> Hypothesis:
        """The best hypothesis of beam search; the prompt but for its last token is processed once for all of them."""
        assert self._search is not None, "a beam of one is generated by the engine"
        model = self._search.model
        check_request(model, request)
        most = model.config.max_target_positions
        limit = request.limit if most is None else max(1, min(request.limit, most + 1 - len(request.prompt)))
        prompt = torch.tensor([request.prompt], device=self._device)
        state = model.initial_state(batch_size=1)
        if prompt.size(1) > 1:
            _, state = model.step(prompt[:, :-1], state)
        return self._search.search_by_selection(model.beam_state(state), prompt[:, -1:], [limit])[0][0]

    def _decode(self, request: Request, before: Sequence[int]) -> Iterator[str]:
        streamer = TextStreamer(self._tokenizer)
        for token in before:
            streamer.add(token)
        tokens = self._best(request).tokens if self._engine is None else self._engine.stream(request)
        for token in tokens:
            if text := streamer.add(token):
                yield text
        if rest := streamer.flush():
            yield rest


def build_decoder(model: ModelConfig, vocab_size: int) -> nn.Module:
    """A new decoder-only model."""
    if model.encoder_depth or not model.decoder_depth:
        raise ConfigError(
            "a language model is decoder-only: set model.encoder_layers to 0, "
            f"got encoder_layers={model.encoder_depth} and decoder_layers={model.decoder_depth}"
        )
    return build_model(model, vocab_size)


def answer_by_template(
    predictor: LanguageModelingPredictor,
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    tokenizer: Tokenizer,
) -> Iterator[str]:
    """The answer to a conversation that a chat template formats, piece by piece."""
    if template is None:
        raise RunError("the model has no chat template: it can only continue a prompt")
    return predictor.stream_tokens(Chat(template, tokenizer).encode(messages))


def encode_prompt(prompt: str, tokenizer: Tokenizer, chat: Chat | None) -> list[int]:
    """The tokens that the answer to a prompt follows: by a chat template, or those of a text that it continues."""
    messages = parse_prompt(prompt)
    if chat is not None:
        return chat.encode(messages)
    if len(messages) > 1 or messages[0]["content"] != prompt:
        raise DataError("a prompt is a list of messages, and the base has no chat template: set task.template")
    return tokenizer.prompt(prompt)


@torch.inference_mode()
def score_text(model: Any, tokenizer: Tokenizer, text: str) -> TextScore:
    """The log-probability of a text, from its start to its end, by the chain rule."""
    ids = tokenizer.encode([text])[0]
    limit = model.config.max_positions
    if limit is not None and len(ids) + 1 > limit:
        raise DataError(f"the text has {len(ids):,} tokens, the model reads at most {limit - 1:,}")
    device = next(model.parameters()).device
    tokens, targets = torch.tensor([[tokenizer.start, *ids]]), torch.tensor([[*ids, tokenizer.end]])
    batch = WindowBatch(tokens, targets, documents=None, num_targets=targets.numel())
    [found] = _log_likelihoods(model, iter([batch]), device)
    return TextScore(text, tokenizer.pieces([*ids, tokenizer.end]), found.mixed(model)[0].tolist())


def hidden_state_penalty(
    hidden_states: Float[Tensor, "batch time model"], *, activation: float, change: float
) -> Float[Tensor, ""]:
    r"""A penalty on large hidden states, and on changes between positions.

    Merity et al., "Revisiting Activation Regularization for Language RNNs" (2017), AR and TAR.
    https://arxiv.org/abs/1708.01009

    With hidden states $h_t$ of width $d$, after dropout, and weights $\alpha$ and $\beta$ it is

    $$ \frac1d \sum_t \alpha \lVert h_t \rVert^2 + \beta \lVert h_{t+1} - h_t \rVert^2 $$

    summed over positions as the loss is, and divided by their number with it.
    """
    wide = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
    sizes, changes = wide.square().sum(), wide.diff(dim=1).square().sum()
    return (activation * sizes + change * changes) / wide.size(-1)


def make_window_batch(
    ids: NDArray[np.int64], tokenizer: Tokenizer, *, isolate: bool, first_counted: NDArray[np.int64] | None = None
) -> WindowBatch:
    """Windows with one token more than positions; of row i only targets from `first_counted[i]` on count."""
    read = torch.from_numpy(ids)
    tokens, targets = read[:, :-1], read[:, 1:].clone()
    is_start = tokens == tokenizer.end
    num_targets = targets.numel()
    if first_counted is not None:
        targets[torch.arange(targets.size(1)) < torch.from_numpy(first_counted)[:, None]] = IGNORED
        num_targets = int((targets != IGNORED).sum())
    documents = is_start.cumsum(dim=1) if isolate and bool(is_start[:, 1:].any()) else None
    return WindowBatch(tokens.masked_fill(is_start, tokenizer.start), targets, documents, num_targets)


def stream_batches(
    ids: NDArray, tokenizer: Tokenizer, *, window: int, stride: int, isolate: bool
) -> Iterator[WindowBatch]:
    """Every token but the first as a target once, in windows `stride` tokens apart."""
    if len(ids) < 2:
        raise DataError("the text has no tokens to be evaluated on")
    windows = evaluation_windows(len(ids), window, stride)
    at_once = max(1, _EVALUATION_TOKENS // window)
    for first in range(0, len(windows), at_once):
        chosen = windows[first : first + at_once]
        last = chosen[-1]
        groups = [chosen] if last[1] - last[0] == window else [chosen[:-1], [last]]
        for group in (group for group in groups if group):
            rows = np.stack([np.asarray(ids[start : end + 1], np.int64) for start, end, _ in group])
            counted = np.array([first_scored - start - 1 for start, _, first_scored in group])
            batch = make_window_batch(rows, tokenizer, isolate=isolate, first_counted=counted)
            yield replace(batch, is_one_text=not isolate)


@dataclass(frozen=True)
class _LogLikelihoods:
    """The log-probability of each target of a batch, by the network and by n-grams; 0 where it is `IGNORED`."""

    targets: Int[Tensor, "batch time"]
    network: Float[Tensor, "batch time"]
    ngrams: Float[Tensor, "batch time"] | None
    """None where the model has none."""
    carries_state: bool

    def mixed(self, model: Any) -> Float[Tensor, "batch time"]:
        """Those by the model."""
        if self.ngrams is None:
            return self.network
        return model.mix(self.network, self.ngrams).where(self.targets != IGNORED, 0.0)


@torch.no_grad()
def _log_likelihoods(
    model: Any, batches: Iterator[WindowBatch], device: torch.device, *, is_weighted: bool = True
) -> Iterator[_LogLikelihoods]:
    """Yields the log-likelihoods of each batch; in contiguous text, n-grams and recurrent states are carried over.

    With `is_weighted`, those by a network whose weight is 0, before its training, are not computed, but 0.
    """
    network, state, recent = _network_of(model), None, None
    is_used = not (is_weighted and isinstance(model, NgramMixture) and float(model.network_weight) == 0.0)
    for batch in batches:
        batch = to_device(batch, device)
        reads_on = batch.is_one_text and isinstance(network, StatefulDecoder)
        found, ngrams = torch.zeros(batch.targets.shape, device=device), None
        if is_used:
            if reads_on:
                hidden_states, state = _read_on(network, batch, state)
            else:
                hidden_states = network.hidden_states(batch.tokens, documents=documents_for(network, batch))
            found = target_log_likelihoods(network, hidden_states, batch.targets)
        if isinstance(model, NgramMixture):
            ngrams, recent = _ngram_log_likelihoods(model, batch, recent)
        yield _LogLikelihoods(batch.targets, found, ngrams, reads_on)


def _ngram_log_likelihoods(
    model: NgramMixture, batch: WindowBatch, recent: Tensor | None
) -> tuple[Float[Tensor, "batch time"], Tensor | None]:
    """Those of a batch by n-grams, and the last tokens, where the next batch continues the text."""
    counts = batch.targets != IGNORED
    if not batch.is_one_text:
        contexts, _ = model.contexts(batch.tokens)
        return model.tables.log_probabilities(contexts, batch.targets.where(counts, 0)).where(counts, 0.0), None
    contexts, recent = model.contexts(batch.tokens[counts][None], recent)
    found = model.tables.log_probabilities(contexts, batch.targets[counts][None])[0]
    return found.new_zeros(counts.shape).masked_scatter(counts, found), recent


def _network_of(model: Any) -> Any:
    """The network of a mixture with n-grams, or the model itself."""
    return model.body if isinstance(model, NgramMixture) else model


def _facts_of(model: Any) -> dict[str, str]:
    """What the output of a mixture is made of."""
    if not isinstance(model, NgramMixture):
        return {}
    weight = float(model.network_weight)
    return {"probabilities": f"{weight:.2f} network + {1 - weight:.2f} Kneser-Ney {model.tables.order}-grams"}


def documents_for(model: Any, batch: WindowBatch) -> Int[Tensor, "batch time"] | None:
    """The documents of a batch, where the model can isolate them."""
    return batch.documents if model.config.can_isolate_documents else None


def _read_on(model: StatefulDecoder, batch: WindowBatch, state: Any) -> tuple[Float[Tensor, "batch time model"], Any]:
    """Hidden states of rows that are read as one text, each token once; zeros where nothing counts."""
    counts = batch.targets != IGNORED
    found, state = model.hidden_states_from(batch.tokens[counts][None], state)
    hidden_states = found.new_zeros(*counts.shape, found.size(-1))
    hidden_states[counts] = found[0]
    return hidden_states, state


def _require_spans(tasks: Sequence[RunningTextTask[Any]], data: Prepared) -> None:
    """Raise if there are not two spans of held-out text that all models score: no difference could be tested."""
    texts = [row[0] for row in data.held_out["test"] or data.held_out["valid"]]
    num_tokens = 1 + sum(len(ids) + 1 for ids in tasks[0].with_codecs(data.codecs).tokenizer.encode(texts))
    ways = {(task.settings.window, task.settings.stride or task.settings.window) for task in tasks}
    windows = [evaluation_windows(num_tokens, window, stride) for window, stride in sorted(ways)]
    num_shared = len(shared_ends([[end + 1 - first for _, end, first in some] for some in windows]))
    if num_shared < 2:
        lengths = " and ".join(f"{window:,}" for window, _ in sorted(ways))
        raise DataError(
            "models of text are compared on spans that all of them score, at least two, but the "
            f"{num_tokens - 1:,} held-out tokens have {num_shared} for windows of {lengths}: "
            "give more text, or a smaller task.window for all"
        )


def _notes_on_ngrams(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Which models are mixtures, whose networks differ more than they do."""
    orders = {run.name: run.task.settings.ngrams for run in runs if run.task.settings.ngrams}
    if orders:
        mixed = ", ".join(f"{name} with {order}-grams" for name, order in orders.items())
        yield f"scores are of mixtures ({mixed}); task.ngrams=0 compares the networks alone"


def _notes_on_context(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """How models differ in the context that they have when they predict a token."""
    by_name = {run.name: run for run in runs}
    crossing = [name for name, run in by_name.items() if not run.model.can_isolate_documents]
    if runs[0].task.settings.isolate and crossing:
        yield f"documents are separate contexts, but not for {', '.join(crossing)}, which cannot isolate them"
    carrying = [name for name, run in by_name.items() if "state" in run.examples.settings]
    if 0 < len(carrying) < len(by_name):
        yield f"{', '.join(carrying)}: the state is carried from window to window; other models start each without one"
    windows = {name: run.examples.settings["window"] for name, run in by_name.items()}
    if len(set(windows.values())) > 1:
        lengths = ", ".join(f"{name} {window:,}" for name, window in windows.items())
        yield f"windows differ ({lengths} tokens): a span ends where windows of all models end"


def _notes_on_vocabularies(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Whether bits per byte are of the whole text; runs on equally many documents share a tokenizer."""
    texts = [row[0] for row in runs[0].rows]
    for size, run in {run.train_rows: run for run in runs}.items():
        tokenizer = run.task.codecs["text"]
        if tokenizer.decode(tokenizer.encode(texts)) != texts:
            which = "the vocabulary" if size is None else f"the vocabulary of {size:,} documents"
            yield f"{which} does not cover all of the text: bits per byte compare only for the same vocabulary"


def _word_end(text: str, place: int, start: int) -> int:
    """The last end of a word up to `place`, or `place` if there is none after `start`.

    Example:
        >>> _word_end("to be or not", 7, 0), _word_end("to be or not", 8, 0), _word_end("honorificabilitudinitas", 7, 0)
        (5, 8, 7)
    """
    space = text.rfind(" ", start + 1, place + 1)
    return place if space < 0 else space
