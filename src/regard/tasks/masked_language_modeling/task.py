r"""Masked language modeling: predict tokens of a text that are masked.

A bidirectional model cannot be trained to predict the next token, which it has
read. Instead some tokens are masked, and it predicts them from all others, on
either side: with $H$ the masked positions and $\tilde x$ the text as it is read,

$$ \sum_{t \in H} \log p(x_t \mid \tilde x) $$

Which tokens are masked is in `masking`. Text is read in windows that begin with
the start token and end with the end token; where documents are isolated, each of
them does, and attention stays inside each. Every epoch masks other tokens,
validation always the same.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for
Language Understanding" (2018). https://arxiv.org/abs/1810.04805

Dimensions: `batch` windows, `time` positions, `hidden` masked positions of each window, `vocab` tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.data.batches import pad
from regard.data.codecs.codec import Codec
from regard.data.codecs.text import TextCodec
from regard.data.permutation import mix
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.stores.tokens import TokenStream
from regard.data.windows import WindowSampler
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig, MaskedHead, Pool, build_body, pooled
from regard.nn.losses import IGNORED, linear_cross_entropy, rdrop_cross_entropy
from regard.tasks.language_modeling import RunningTextSettings, RunningTextTask
from regard.tasks.masked_language_modeling.filling import FillingPredictor, filled_samples, has_blank, with_mask
from regard.tasks.masked_language_modeling.masking import Masking, vocabulary_of
from regard.tasks.task import (
    BATCH_TOKENS,
    PLAIN,
    READING_DEFAULTS,
    ComparedRun,
    Defaults,
    DefaultsContext,
    EvaluationData,
    Likelihoods,
    Objective,
    ServerSchema,
    Task,
    repeat_batch,
    to_device,
)
from regard.tasks.text import append_bias
from regard.text.tokenizer import Tokenizer

_NUM_FRAME = 2
"""Positions of a window that are its start and end tokens."""
_EVALUATION_TOKENS = 8_192
_LOGITS_AT_ONCE = 512
"""Masked positions whose logits are in memory at the same time, in evaluation."""
_VALIDATION_SEED = 15
"""Of the masks of validation, whatever the seed of a run."""


class MaskedLanguageModelingSettings(RunningTextSettings):
    """Settings of masked language models."""

    name: str = "masked-language-modeling"
    mask_share: float = Field(default=0.15, gt=0.0, lt=1.0)
    """The share of tokens that are masked."""
    mask_spans: bool = False
    """Mask spans of one to ten words, short ones more often, rather than single words."""
    mask_words: bool = True
    """Mask all tokens of a word together, rather than each on its own."""


@dataclass(frozen=True)
class MaskedBatch:
    """Windows of masked text, and the tokens that are masked."""

    tokens: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """None where nothing is padded."""
    documents: Int[Tensor, "batch time"] | None
    """The number of each position's document in its window; None where documents are not isolated."""
    positions: Int[Tensor, "batch hidden"]
    targets: Int[Tensor, "batch hidden"]
    """The tokens at these positions; `IGNORED` where a window has fewer."""
    num_targets: int
    num_tokens: int

    def tensors(self) -> list[Tensor | None]:
        return [self.tokens, self.lengths, self.documents, self.positions, self.targets]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "MaskedBatch":
        names = ("tokens", "lengths", "documents", "positions", "targets")
        return replace(self, **dict(zip(names, tensors, strict=True)))  # pyright: ignore[reportArgumentType]  by name


class MaskedLanguageModeling(RunningTextTask[MaskedLanguageModelingSettings]):
    """Masked running text, by an encoder."""

    name = "masked-language-modeling"
    description = "masked language modeling"
    other_names = ("mlm", "masked-lm", "fill-mask", "masked")
    Settings = MaskedLanguageModelingSettings
    codec_types: Mapping[str, type[Codec]] = {"text": TextCodec}
    metrics = ("masked_accuracy", "pseudo_perplexity")
    head_kind = "masked-tokens"

    def cache_key(self) -> dict[str, Any]:
        """As for language modeling, but the tokenizer has a mask token."""
        return {**super().cache_key(), "task": "masked text"}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        codec = super().fit_codecs(data)["text"]
        assert isinstance(codec, TextCodec)
        return {"text": TextCodec(with_mask(codec.tokenizer))}

    def defaults(self, context: DefaultsContext) -> Defaults:
        train = READING_DEFAULTS | {"batch_tokens": BATCH_TOKENS[context.device], "warmup_steps": 40}
        return Defaults(train=train, task=self.running_defaults(context), head={"pooling": "mean"})

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Any) -> None:
        super().check(model=model, is_finetuned=is_finetuned, held_out=held_out)
        settings = self.settings
        if settings.window <= _NUM_FRAME:
            raise ConfigError(
                f"task.window must exceed {_NUM_FRAME}, since it includes a start and an end, got {settings.window}"
            )
        if settings.stride not in (None, settings.window):
            raise ConfigError(
                f"windows of masked text do not overlap: task.stride must be unset, got {settings.stride}"
            )

    @classmethod
    def check_base(cls, base: Task[Any], model: ModelConfig, where: str) -> None:
        super().check_base(base, model, where)
        codec = base.codecs.get("text")
        if not isinstance(codec, TextCodec) or codec.tokenizer.mask is None:
            raise ConfigError(f"masked language modeling needs a mask token, which {where} does not have")

    def build(self, model: ModelConfig, head: HeadConfig) -> "MaskedLanguageModel":
        if model.decoder_depth or not model.encoder_depth:
            raise ConfigError(
                "a masked language model is encoder-only: set model.decoder_layers to 0, "
                f"got encoder_layers={model.encoder_depth} and decoder_layers={model.decoder_depth}"
            )
        return MaskedLanguageModel(model, self.tokenizer.vocab_size)

    @property
    def masking(self) -> Masking:
        settings = self.settings
        return Masking(settings.mask_share, has_spans=settings.mask_spans, has_words=settings.mask_words)

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> "MaskedBatches":
        """Windows have one shape in any case."""
        assert isinstance(data.train, TokenStream)
        return MaskedBatches(self, data.train, isolate=data.is_isolated, batch_tokens=batch_tokens, seed=seed)

    def validation_batches(self, data: Prepared) -> Iterator[MaskedBatch]:
        assert isinstance(data.valid, TokenStream)
        return self.stream_batches(data.valid.ids, isolate=data.is_isolated)

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[MaskedBatch]:
        return self.stream_batches(self.token_ids(rows), isolate=self.settings.isolate)

    def stream_batches(self, ids: NDArray, *, isolate: bool) -> Iterator[MaskedBatch]:
        """All of a text once, in windows that do not overlap, with the same tokens masked each time."""
        window, masking, tokenizer = self.settings.window, self.masking, self.tokenizer
        vocabulary = vocabulary_of(tokenizer)
        pieces = _pieces(ids, tokenizer, window - _NUM_FRAME, isolate=isolate)
        is_empty = True
        for number in count():
            group = list(islice(pieces, max(1, _EVALUATION_TOKENS // window)))
            if not group:
                break
            tokens, lengths = pad(group, tokenizer.pad), np.array([len(piece) for piece in group])
            shown, is_hidden = masking.hide(tokens, vocabulary, _rng(_VALIDATION_SEED, number), is_plain=True)
            kept = is_hidden.any(axis=1)
            if kept.any():
                is_empty = False
                is_padded = lengths.min() < lengths.max()
                yield make_masked_batch(
                    tokens[kept],
                    shown[kept],
                    is_hidden[kept],
                    width=self.num_hidden,
                    lengths=lengths[kept] if is_padded else None,
                )
        if is_empty:
            raise DataError("the text has no tokens that could be masked")

    @property
    def num_hidden(self) -> int:
        """The largest number of masked positions of a window."""
        return int(self.masking.budget(np.array([self.settings.window - _NUM_FRAME]))[0])

    def loss(self, model: "MaskedLanguageModel", batch: MaskedBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the masked positions."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        states, targets = _masked_states(model, batch).flatten(0, 1), batch.targets.flatten()
        smoothing = objective.label_smoothing
        if objective.rdrop:
            logits = model.head.output(states)
            return rdrop_cross_entropy(logits, targets, label_smoothing=smoothing, weight=objective.rdrop)
        states, weight = append_bias(states, model.head.output)
        return linear_cross_entropy(states, weight, targets, label_smoothing=smoothing, is_float8=objective.is_float8)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[MaskedBatch], device: torch.device) -> Likelihoods:
        """Of the masked tokens of each window, and how many of them are predicted correctly."""
        losses: list[float] = []
        counts: list[int] = []
        correct: list[int] = []
        for batch in batches:
            batch: MaskedBatch = to_device(batch, device)
            found, is_correct = _evaluate(model, _masked_states(model, batch).flatten(0, 1), batch.targets.flatten())
            losses += found.view_as(batch.targets).sum(dim=1).tolist()
            correct += is_correct.view_as(batch.targets).sum(dim=1).tolist()
            counts += (batch.targets != IGNORED).sum(dim=1).tolist()
        return Likelihoods(losses, counts, num_correct=tuple(correct))

    def predictor(self, model: Any, config: Any) -> FillingPredictor:
        return FillingPredictor(model, self.tokenizer)

    def examples(self, data: EvaluationData) -> Examples:
        """Masked tokens of one window are one example.

        The perplexity is a pseudo-perplexity: probabilities of tokens given both sides do not multiply to the
        probability of a text.
        """
        settings = self.settings
        return Examples(
            losses=data.likelihoods.losses,
            num_tokens=data.likelihoods.counts,
            num_correct=data.likelihoods.num_correct,
            settings={
                "window": settings.window,
                "hidden": settings.mask_share,
                "units": "spans" if settings.mask_spans else "words" if settings.mask_words else "tokens",
            },
        )

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("pseudo_perplexity", "masked_accuracy")

    def align(self, examples: Sequence[Examples]) -> list[Examples]:
        assert len({tuple(each.num_tokens or ()) for each in examples}) == 1, (
            "the same tokens are masked for all models"
        )
        return list(examples)

    def check_comparison(
        self,
        tasks: Mapping[str, Any],
        data: Prepared,
        config: DataConfig,
        *,
        batch_tokens: int,
        sizes: Sequence[int] = (),
    ) -> None:
        windows = {name: task.settings.window for name, task in tasks.items()}
        if len(set(windows.values())) > 1:
            given = ", ".join(f"{window} for {name}" for name, window in windows.items())
            raise ConfigError(f"masked models are compared in windows of one length, got {given}: set task.window")
        super().check_comparison(tasks, data, config, batch_tokens=batch_tokens, sizes=sizes)

    def comparison_notes(self, runs: Sequence[ComparedRun]) -> list[str]:
        notes = [f"scores are on the {runs[0].role} text, with the same tokens masked for all models"]
        if any(run.train_rows is not None for run in runs):
            notes.append("fewer documents may give another vocabulary, whose perplexities do not compare")
        return notes

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        """Held-out text with words left out, and how the model fills it."""
        return filled_samples(FillingPredictor(model, self.tokenizer), self.tokenizer, [row[0] for row in data.rows])

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(placeholder="A text with a blank: The capital of France is ____.")

    def output_for(self, model: Any, text: str) -> str:
        if has_blank(text):
            return super().output_for(model, text)
        return f"a vector of {len(self.embed(model, [text])[0])} numbers"

    @classmethod
    def imported_settings(cls, *, max_length: int, window: int) -> dict[str, Any]:
        return super().imported_settings(max_length=max_length, window=max_length)

    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        from regard.tasks.sentence_embedding import embed_texts

        return embed_texts(model, self.tokenizer, inputs, max_length=self.settings.max_length)


class MaskedBatches:
    """The windows of a stream in shuffled order, each time with other tokens masked."""

    def __init__(
        self, task: MaskedLanguageModeling, stream: TokenStream, *, isolate: bool, batch_tokens: int, seed: int
    ) -> None:
        self._task, self._window = task, task.settings.window
        batch_size, length = max(1, batch_tokens // self._window), self._window - _NUM_FRAME
        self.sampler = WindowSampler(len(stream), window=length, batch_size=batch_size, seed=seed)
        self._ids, self._offsets = stream.ids, np.arange(length)
        self._vocabulary = vocabulary_of(task.tokenizer)
        self._seed, self._isolate = seed, isolate

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> MaskedBatch:
        task = self._task
        ids = self._ids[self.sampler.starts(number)[:, None] + self._offsets].astype(np.int64)
        rows = [_framed(row, task.tokenizer, self._window, isolate=self._isolate) for row in ids]
        tokens, documents = (np.stack(parts) for parts in zip(*rows, strict=True))
        shown, is_hidden = task.masking.hide(tokens, self._vocabulary, _rng(self._seed, number))
        found = documents if documents.any() else None
        return make_masked_batch(tokens, shown, is_hidden, width=task.num_hidden, documents=found)


class MaskedLanguageModel(nn.Module):
    """Token ids in, logits for the token at each position out."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.body = build_body(config, vocab_size)
        self.head = MaskedHead(self.body.embedding, norm_epsilon=config.head_norm_epsilon)
        self.pooling = Pool(config.model_dim, "mean")

    def forward(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch time vocab"]:
        return self.head(self.body.encode(source, lengths, segments=segments).hidden_states)

    def masked_states(
        self,
        source: Int[Tensor, "batch time"],
        positions: Int[Tensor, "batch hidden"],
        lengths: Int[Tensor, " batch"] | None = None,
        *,
        documents: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch hidden model"]:
        """The states at some positions of each text, from which logits are computed."""
        hidden_states = self.body.encode(source, lengths, documents=documents).hidden_states
        return self.head.transform_states(
            hidden_states.gather(1, positions[..., None].expand(-1, -1, hidden_states.size(-1)))
        )

    def embed(
        self,
        source: Int[Tensor, "batch time"],
        lengths: Int[Tensor, " batch"] | None = None,
        segments: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch model"]:
        """The mean of each text's hidden states."""
        return pooled(self.pooling, self.body.encode(source, lengths, segments=segments))


def make_masked_batch(
    tokens: Int[np.ndarray, "batch time"],
    shown: Int[np.ndarray, "batch time"],
    is_hidden: Bool[np.ndarray, "batch time"],
    *,
    width: int,
    lengths: Int[np.ndarray, " batch"] | None = None,
    documents: Int[np.ndarray, "batch time"] | None = None,
) -> MaskedBatch:
    """Texts, and what `Masking.hide` makes of them; each has at most `width` masked positions."""
    positions = np.argsort(~is_hidden, axis=1, kind="stable")[:, :width]
    counts = np.arange(positions.shape[1]) < is_hidden.sum(axis=1)[:, None]
    targets = np.where(counts, np.take_along_axis(tokens, positions, axis=1), IGNORED)
    return MaskedBatch(
        tokens=torch.from_numpy(shown),
        lengths=None if lengths is None else torch.from_numpy(lengths),
        documents=None if documents is None else torch.from_numpy(documents),
        positions=torch.from_numpy(np.where(counts, positions, 0)),
        targets=torch.from_numpy(targets),
        num_targets=max(1, int(counts.sum())),  # the loss is divided by it
        num_tokens=tokens.size if lengths is None else int(lengths.sum()),
    )


def _rng(seed: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(mix(seed, number)))


def _pieces(ids: NDArray, tokenizer: Tokenizer, length: int, *, isolate: bool) -> Iterator[NDArray[np.int64]]:
    """The text in pieces of at most `length` tokens, each between a start and an end."""
    text = np.asarray(ids[1:], np.int64)
    ends = np.flatnonzero(text == tokenizer.end).tolist() if isolate else [len(text) - 1]
    first = 0
    for end in ends:
        for start in range(first, end, length):
            yield np.array([tokenizer.start, *text[start : min(start + length, end)], tokenizer.end])
        first = end + 1


def _framed(
    ids: NDArray[np.int64], tokenizer: Tokenizer, window: int, *, isolate: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A part of a stream between a start and an end, and the number of each position's document.

    Isolated documents have a start token each, and what exceeds the window is cut off.
    """
    row = np.concatenate([[tokenizer.start], ids, [tokenizer.end]])
    if not isolate:
        return row, np.zeros(window, np.int64)
    starts = np.flatnonzero(ids[:-1] == tokenizer.end) + 2
    row = np.insert(row, starts, tokenizer.start)[:window]
    row[-1] = tokenizer.end
    begins, places = np.zeros(window, np.int64), starts + np.arange(len(starts))
    begins[places[places < window]] = 1
    return row, np.cumsum(begins)


def _masked_states(model: MaskedLanguageModel, batch: MaskedBatch) -> Float[Tensor, "batch hidden model"]:
    """The states of masked positions; documents are isolated where the model can do so."""
    documents = batch.documents if model.body.config.can_isolate_documents else None
    return model.masked_states(batch.tokens, batch.positions, batch.lengths, documents=documents)


def _evaluate(
    model: MaskedLanguageModel, states: Float[Tensor, "places model"], targets: Int[Tensor, " places"]
) -> tuple[Float[Tensor, " places"], Int[Tensor, " places"]]:
    """The negative log-likelihood of each target, and whether it is the most probable token; 0 for `IGNORED` ones."""
    losses: list[Tensor] = []
    correct: list[Tensor] = []
    for some, goals in zip(states.split(_LOGITS_AT_ONCE), targets.split(_LOGITS_AT_ONCE), strict=True):
        logits = model.head.output(some)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(F.cross_entropy(wide, goals, ignore_index=IGNORED, reduction="none"))
        correct.append((wide.argmax(dim=-1) == goals).long())
    return torch.cat(losses), torch.cat(correct)
