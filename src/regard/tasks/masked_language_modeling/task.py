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

A prediction fills the blanks of a text. A blank is written [MASK], <mask> or ____, and is one token.

Dimensions: `batch` windows or texts, `time` positions, `hidden` masked positions of each, `vocab` tokens.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.baselines.ngrams import MaskedBaseline, fit_masked
from regard.data.batches import TensorBatch, batches_by_length, pad
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
from regard.nn.losses import IGNORED
from regard.nn.ngrams import NO_TOKEN
from regard.tasks.choices import BATCH_TOKENS, READING_DEFAULTS, Defaults, DefaultsContext
from regard.tasks.content import Prediction, ServerSchema
from regard.tasks.language_modeling import RunningTextSettings, RunningTextTask
from regard.tasks.masked_language_modeling.masking import PART_OF_CHARACTER, Masking, texts_within, vocabulary_of
from regard.tasks.task import PLAIN, ComparedRun, EvaluationData, Likelihoods, Objective, Task, repeat_batch, to_device
from regard.tasks.text import output_loss
from regard.text.tokenizer import Tokenizer

_NUM_FRAME = 2
"""Positions of a window that are its start and end tokens."""
_EVALUATION_TOKENS = 8_192
_LOGITS_AT_ONCE = 512
"""Masked positions whose logits are in memory at the same time, in evaluation."""
_VALIDATION_SEED = 15
"""The seed of the validation masks, the same for every run."""
_BLANK = re.compile(r"\[MASK\]|<mask>|_{3,}")
_WRITTEN, _MASK = "____", "<mask>"
_BATCH_TOKENS = 8_192
"""Tokens read together."""
_NUM_TOKENS, _NUM_FILLERS = 10, 5
"""The most probable tokens of a blank that are considered, and the most probable fillers that are returned."""
_NGRAM_ORDERS, _OTHER_ORDER = {"characters": 5, "bytes": 5}, 3
"""The longest n-grams of the baseline, by the kind of tokenizer."""
_NGRAM_TOKENS = 2_000_000
"""The last tokens of the training text, from which the n-grams of the baseline are counted in seconds."""
_SAMPLES, _SAMPLE_WORDS = 40, 16
"""Spans of text that a report shows with a blank, and their length in words."""


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
class MaskedBatch(TensorBatch):
    """Windows of masked text, and the tokens that are masked."""

    tensor_names = ("tokens", "lengths", "documents", "positions", "targets")
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


class MaskedLanguageModeling(RunningTextTask[MaskedLanguageModelingSettings]):
    """Masked running text, by an encoder."""

    name = "masked-language-modeling"
    description = "masked language modeling"
    next_command = "predict {run} 'a text with [MASK]'"
    output_description = "the most probable token at [MASK]"
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
        return output_loss(model.head.output, states, targets, objective)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[MaskedBatch], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each window's masked tokens, and how many of them are predicted correctly."""
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

    def predictor(self, model: Any, config: Any) -> "FillingPredictor":
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

    def baseline(self, data: Prepared) -> MaskedBaseline:
        """N-grams of the model's own tokens, so that the likelihoods of both are comparable."""
        assert isinstance(data.train, TokenStream)
        order = _NGRAM_ORDERS.get(self.settings.tokenizer or "", _OTHER_ORDER)
        ids = np.asarray(data.train.ids[-_NGRAM_TOKENS:])
        return fit_masked(ids, vocab_size=self.tokenizer.vocab_size, order=order)

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        """Of the same masked tokens as the model's."""
        assert isinstance(baseline, MaskedBaseline)
        assert baseline.ngrams is not None
        is_ordinary = torch.from_numpy(vocabulary_of(self.tokenizer).is_ordinary)
        losses, counts, correct = list[float](), list[int](), list[int]()
        for batch in self.row_batches(rows):
            is_hidden = torch.zeros(batch.tokens.shape, dtype=torch.bool)
            is_target = batch.targets != IGNORED
            windows, _ = is_target.nonzero(as_tuple=True)
            is_hidden[windows, batch.positions[is_target]] = True
            known = batch.tokens.where(is_ordinary[batch.tokens], NO_TOKEN)
            targets, start = batch.targets[is_target], 0  # ordered by window and position, as the distributions are
            found, right = torch.zeros(len(targets)), torch.zeros(len(targets))
            for some in baseline.ngrams.log_probabilities(known, is_hidden):
                own = slice(start, start := start + len(some))
                found[own] = -some.gather(1, targets[own, None])[:, 0]
                right[own] = (some.argmax(dim=1) == targets[own]).float()
            size = len(batch.tokens)
            losses += torch.bincount(windows, found, size).tolist()
            correct += torch.bincount(windows, right, size).long().tolist()
            counts += is_target.sum(dim=1).tolist()
        return self.examples(EvaluationData(rows, [], Likelihoods(losses, counts, num_correct=tuple(correct))))

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


def with_mask(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a mask token, which is appended to the vocabulary where there is none.

    No text is encoded to it, and all other tokens keep their ids.
    """
    if tokenizer.mask is not None:
        return tokenizer
    layout = json.loads(tokenizer.to_json())
    layout["added_tokens"].append(_entry(tokenizer.vocab_size, _MASK))
    return Tokenizer.from_json(json.dumps(layout, ensure_ascii=False))


def has_blank(text: str) -> bool:
    """Whether a text has a blank."""
    return _BLANK.search(text) is not None


class FillingPredictor:
    """Fills each blank of a text with its most probable token."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._reader, self._name = _reading_blanks(tokenizer)
        self._device = next(model.parameters()).device
        self._is_ordinary = torch.from_numpy(vocabulary_of(tokenizer).is_ordinary.copy()).to(self._device)
        self._is_ordinary[list(tokenizer.never_generated)] = False

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """Each input with its blanks filled; the probabilities are those of the fillers of the first blank."""
        texts = [self._encoded(text) for text in inputs]
        found: dict[int, list[dict[str, float]]] = {}
        for rows in batches_by_length([len(text) for text in texts], batch_tokens=_BATCH_TOKENS):
            probabilities = self._probabilities([texts[row] for row in rows])
            for row, scores in zip(rows.tolist(), probabilities, strict=True):
                found[row] = [self._fillers(blank) for blank in scores]
        return [self._prediction(text, found[number]) for number, text in enumerate(inputs)]

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text, with the mask token where a blank is."""
        tokenizer = self._tokenizer
        if not has_blank(text):
            raise DataError(f"the input must have a blank, written [MASK] or {_WRITTEN}, got {text!r}")
        ids = [tokenizer.start, *self._reader.encode([_BLANK.sub(self._name, text)])[0], tokenizer.end]
        limit = self._model.body.config.max_positions
        if limit is not None and len(ids) > limit:
            raise DataError(f"the text has {len(ids) - 2:,} tokens, the model reads at most {limit - 2:,}")
        return ids

    def _probabilities(self, texts: Sequence[list[int]]) -> list[Float[Tensor, "hidden vocab"]]:
        """The probability of each token for each blank of each text."""
        blanks = [[place for place, token in enumerate(text) if token == self._tokenizer.mask] for text in texts]
        tokens, places = (
            torch.from_numpy(pad([np.array(row, np.int64) for row in rows], padding)).to(self._device)
            for rows, padding in ((texts, self._tokenizer.pad), (blanks, 0))
        )
        lengths = torch.tensor([len(text) for text in texts], device=self._device)
        with torch.inference_mode():
            states = self._model.masked_states(tokens, places, lengths if len(texts) > 1 else None)
            return [
                self._model.head.output(some[: len(own)]).double().softmax(dim=-1)
                for some, own in zip(states, blanks, strict=True)
            ]

    def _fillers(self, probabilities: Float[Tensor, " vocab"]) -> dict[str, float]:
        """The most probable texts for a blank; the probabilities of tokens with the same text are added."""
        best = probabilities.where(self._is_ordinary, -1.0).topk(min(_NUM_TOKENS, int(self._is_ordinary.sum())))
        found: dict[str, float] = {}
        tokens = best.indices.tolist()
        texts, names = texts_within(self._tokenizer, tokens), self._tokenizer.pieces(tokens)
        for text, name, probability in zip(texts, names, best.values.tolist(), strict=True):
            plain = name if PART_OF_CHARACTER in text else text.strip() or text
            found[plain] = found.get(plain, 0.0) + probability
        order = sorted(found, key=lambda text: -found[text])
        return {text: found[text] for text in order[:_NUM_FILLERS]}

    def _prediction(self, text: str, found: Sequence[dict[str, float]]) -> Prediction:
        answers = iter([next(iter(each)) for each in found])
        return Prediction(text, _BLANK.sub(lambda _: next(answers), text), probabilities=found[0])


def filled_samples(fill: FillingPredictor, tokenizer: Tokenizer, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Spans of text with one word left out, and how the model fills them; errors first."""
    words = [word for text in texts for word in text.split()]
    spans = [words[place : place + _SAMPLE_WORDS] for place in range(0, len(words), _SAMPLE_WORDS)]
    apart = max(1, len(spans) // _SAMPLES)
    chosen = [span for span in spans[::apart] if not _BLANK.search(" ".join(span))][:_SAMPLES]
    places = [_place_of_blank(span, tokenizer, number) for number, span in enumerate(chosen)]
    wanted = [" ".join(span) for span in chosen]
    asked = [
        " ".join(_WRITTEN if number == place else word for number, word in enumerate(span))
        for span, place in zip(chosen, places, strict=True)
    ]
    rows = [
        {"source": each.input, "target": target, "prediction": each.output, "right": each.output == target}
        for each, target in zip(fill(asked) if asked else [], wanted, strict=True)
    ]
    return sorted(rows, key=lambda row: row["right"])


def _place_of_blank(span: Sequence[str], tokenizer: Tokenizer, number: int) -> int:
    """The word to leave out: one of a single token, if there is one."""
    encoded = tokenizer.encode([f" {word}" for word in span])
    single = [place for place, ids in enumerate(encoded) if len(ids) == 1] or list(range(len(span)))
    return single[mix(number) % len(single)]


def _reading_blanks(tokenizer: Tokenizer) -> tuple[Tokenizer, str]:
    """The same tokenizer, which however encodes the name of the mask token as that token; and this name."""
    vocabulary, layout = vocabulary_of(tokenizer), json.loads(tokenizer.to_json())
    entries = [entry for entry in layout["added_tokens"] if entry["id"] == vocabulary.mask]
    if not entries:
        (name,) = tokenizer.pieces([vocabulary.mask])
        entries = [_entry(vocabulary.mask, name)]
        layout["added_tokens"] += entries
    texts = texts_within(tokenizer, vocabulary.ordinary.tolist())
    # Special tokens are never encoded from text; and the space before a word is part of the masked token.
    entries[0] |= {"special": False, "lstrip": any(len(text) > 1 and text[0] == " " for text in texts)}
    before = layout["pre_tokenizer"]
    if before and before["type"] == "Metaspace" and before.get("prepend_scheme") == "always":
        before["prepend_scheme"] = "first"  # otherwise a space would be inserted after a blank
    return Tokenizer.from_json(json.dumps(layout, ensure_ascii=False)), entries[0]["content"]


def _entry(token: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name, **flags, "special": True}
