r"""Masked language modelling: which tokens are hidden?

A model that reads both ways cannot be asked what comes next, for it has seen it.
So some tokens of a text are hidden, and it is to tell them from all others, on
either side: with $H$ the hidden places and $\tilde x$ the text as it is shown,

$$ \sum_{t \in H} \log p(x_t \mid \tilde x) $$

What is hidden and how is said in `masking`. Text is read in windows that begin
with the start token and end with the end token; where documents are to be kept
apart, each in a window does, and attention stays inside each. No two epochs hide
the same, but validation always does.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for
Language Understanding" (2018). https://arxiv.org/abs/1810.04805

Dimensions: `batch` windows, `time` positions, `hidden` places of each window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import pad
from regard.data.config import DataConfig
from regard.data.documents import open_texts
from regard.data.permutation import mix
from regard.data.preparation import Prepared, prepare_text
from regard.data.sources import Rows
from regard.data.stream import TokenStream
from regard.data.windows import WindowSampler
from regard.errors import ConfigError, DataError
from regard.evaluation import metrics
from regard.evaluation.scores import Score
from regard.evaluation.tallies import Tally
from regard.generation.config import GenerationConfig
from regard.models.families import AnyConfig
from regard.models.heads import HeadConfig, MaskedModel
from regard.models.transformer import Transformer
from regard.nn.losses import IGNORED, consistent_cross_entropy, linear_cross_entropy
from regard.tasks.blanks import Filler, samples, with_mask
from regard.tasks.masking import Masking, vocabulary_of
from regard.tasks.objective import PLAIN, Objective, with_bias
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer

_AROUND = 2
"""Positions of a window that are its start and its end."""
_EVALUATION_TOKENS = 8_192
"""Scored together."""
_SCORED_AT_ONCE = 512
"""Hidden places whose scores for the whole vocabulary are held at once, in evaluation."""
_HELD_OUT_SEED = 15
"""Of what validation hides, whatever the seed of a run."""


@dataclass(frozen=True)
class MaskedBatch:
    """Windows of text as they are shown, and what they hide."""

    tokens: Int[Tensor, "batch time"]
    lengths: Int[Tensor, " batch"] | None
    """None where none is padded."""
    documents: Int[Tensor, "batch time"] | None
    """Numbers the documents of a window; None where they run on, or where there is one."""
    places: Int[Tensor, "batch hidden"]
    targets: Int[Tensor, "batch hidden"]
    """What stands there; `IGNORED` where a window hides fewer."""
    num_targets: int
    num_tokens: int

    def tensors(self) -> list[Tensor | None]:
        return [self.tokens, self.lengths, self.documents, self.places, self.targets]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "MaskedBatch":
        tokens, lengths, documents, places, targets = tensors
        assert tokens is not None
        assert places is not None
        assert targets is not None
        return replace(self, tokens=tokens, lengths=lengths, documents=documents, places=places, targets=targets)


@dataclass(frozen=True)
class MaskedLikelihoods(Likelihoods):
    """How probable the model holds what was hidden, and how often it held nothing else for likelier."""

    right: tuple[int, ...] = ()
    """Of each stretch of text."""


class MaskedWindows:
    """The windows of a stream in shuffled order, each time with something else hidden."""

    def __init__(
        self, stream: TokenStream, tokenizer: Tokenizer, config: DataConfig, *, batch_tokens: int, seed: int
    ) -> None:
        self._window = window_of(config)
        batch_size = max(1, batch_tokens // self._window)
        room = self._window - _AROUND
        self.sampler = WindowSampler(len(stream), window=room, batch_size=batch_size, seed=seed)
        self._ids, self._tokenizer, self._places = stream.ids, tokenizer, np.arange(room)
        self._masking, self._vocabulary = masking_of(config), vocabulary_of(tokenizer)
        self._seed, self._is_isolated = seed, bool(config.isolate)

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> MaskedBatch:
        ids = self._ids[self.sampler.starts(number)[:, None] + self._places].astype(np.int64)
        rows = [_framed(row, self._tokenizer, self._window, is_isolated=self._is_isolated) for row in ids]
        tokens, documents = (np.stack(parts) for parts in zip(*rows, strict=True))
        shown, is_hidden = self._masking.hide(tokens, self._vocabulary, _luck(self._seed, number))
        width = num_hidden(self._masking, self._window)
        return make_batch(tokens, shown, is_hidden, width=width, documents=documents if documents.any() else None)


class Masked:
    """Running text with something hidden, by an encoder alone."""

    name = "masked"
    description = "running text: which tokens are hidden"
    has_answers = False

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        data = prepare_text(open_texts(config, rows), config)
        return replace(data, tokenizer=with_mask(data.tokenizer))

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_texts(config, rows)
        return [(text,) for text in source.train.documents()], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return row[0]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> MaskedModel:
        if config.decoder_depth or not config.encoder_depth:
            raise ConfigError(
                "a masked model is an encoder alone: set model.decoder_layers to 0, "
                f"got encoder_layers={config.encoder_depth} and decoder_layers={config.decoder_depth}"
            )
        return MaskedModel(config, tokenizer.vocab_size)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> MaskedWindows:
        """Windows have one shape in any case, and so has what they hide."""
        assert isinstance(data.train, TokenStream)
        config = config.changed(isolate=data.is_isolated)
        return MaskedWindows(data.train, data.tokenizer, config, batch_tokens=batch_tokens, seed=seed)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[MaskedBatch]:
        assert isinstance(data.valid, TokenStream)
        return stream_as_batches(data.valid.ids, data.tokenizer, config.changed(isolate=data.is_isolated))

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[MaskedBatch]:
        ids = [tokenizer.end]
        for encoded in tokenizer.encode([row[0] for row in rows]):
            ids += [*encoded, tokenizer.end]
        return stream_as_batches(np.array(ids), tokenizer, config)

    def loss(self, model: MaskedModel, batch: MaskedBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the hidden places."""
        if objective.consistency:
            batch = twice(batch)
        states, targets = _states(model, batch).flatten(0, 1), batch.targets.flatten()
        smoothing = objective.label_smoothing
        if objective.consistency:
            scores = model.head.output(states)
            return consistent_cross_entropy(scores, targets, label_smoothing=smoothing, weight=objective.consistency)
        states, weight = with_bias(states, model.head.output)
        return linear_cross_entropy(states, weight, targets, label_smoothing=smoothing, is_float8=objective.is_float8)

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: MaskedModel, batches: Iterator[MaskedBatch], device: torch.device
    ) -> MaskedLikelihoods:
        """Of what each window hides."""
        losses: list[float] = []
        counts: list[int] = []
        right: list[int] = []
        for batch in batches:
            batch: MaskedBatch = moved(batch, device)
            found, is_right = _judge(model, _states(model, batch).flatten(0, 1), batch.targets.flatten())
            losses += found.view_as(batch.targets).sum(dim=1).tolist()
            right += is_right.view_as(batch.targets).sum(dim=1).tolist()
            counts += (batch.targets != IGNORED).sum(dim=1).tolist()
        return MaskedLikelihoods(losses, counts, right=tuple(right))

    def writer(
        self, model: MaskedModel, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> Filler:
        return Filler(model, tokenizer)

    def samples(
        self, model: MaskedModel, tokenizer: Tokenizer, rows: Sequence[Sequence[str]], config: DataConfig
    ) -> list[dict[str, Any]]:
        """Held-out text with words left out, and how the model fills it."""
        return samples(Filler(model, tokenizer), tokenizer, [row[0] for row in rows])

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "masked_accuracy"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        """The share of hidden tokens that are told right, and the perplexity of them; tokens of one window go together.

        It is a pseudo-perplexity: chances of hidden tokens given those on both sides do not multiply to the
        probability of a text.
        """
        assert isinstance(likelihoods, MaskedLikelihoods)
        how = {
            "window": window_of(config),
            "hidden": config.mask_share,
            "units": "spans" if config.mask_spans else "words" if config.mask_words else "tokens",
        }
        told = metrics.score_tally(tally_hidden(likelihoods.right, likelihoods.counts))
        accuracy = replace(told, settings={**told.settings, **how})
        perplexity = metrics.perplexity(likelihoods.losses, likelihoods.counts)
        return [accuracy, replace(perplexity, name="pseudo_perplexity", settings={**perplexity.settings, **how})]


def tally_hidden(right: Sequence[int], counts: Sequence[int]) -> Tally:
    """How many hidden tokens of each window are told right, of how many."""
    statistics = np.array([right, counts], np.int64).T
    settings = {"tokens": int(statistics[:, 1].sum())}
    return Tally(name="masked_accuracy", statistics=statistics, compute=_ratio, settings=settings)


def _ratio(sums: Float[np.ndarray, " statistics"]) -> float:
    return float(sums[0] / sums[1])


def window_of(config: DataConfig) -> int:
    """Positions of a window, its start and its end among them."""
    window = config.window or config.max_length
    if window <= _AROUND:
        raise ConfigError(
            f"data.window must exceed {_AROUND}, for a window has a start and an end of its own, got {window}"
        )
    if config.stride not in (None, window):
        raise ConfigError(f"masked windows lie side by side: data.stride must be unset, got {config.stride}")
    return window


def masking_of(config: DataConfig) -> Masking:
    """How the settings say that tokens are hidden."""
    return Masking(config.mask_share, has_spans=config.mask_spans, has_words=config.mask_words)


def num_hidden(masking: Masking, window: int) -> int:
    """The most places that a window hides."""
    return int(masking.budget(np.array([window - _AROUND]))[0])


def make_batch(
    tokens: Int[np.ndarray, "batch time"],
    shown: Int[np.ndarray, "batch time"],
    is_hidden: Bool[np.ndarray, "batch time"],
    *,
    width: int,
    lengths: Int[np.ndarray, " batch"] | None = None,
    documents: Int[np.ndarray, "batch time"] | None = None,
) -> MaskedBatch:
    """Texts as they are, and as `Masking.hide` shows them; each hides at most `width` places."""
    places = np.argsort(~is_hidden, axis=1, kind="stable")[:, :width]
    counts = np.arange(places.shape[1]) < is_hidden.sum(axis=1)[:, None]
    targets = np.where(counts, np.take_along_axis(tokens, places, axis=1), IGNORED)
    return MaskedBatch(
        tokens=torch.from_numpy(shown),
        lengths=None if lengths is None else torch.from_numpy(lengths),
        documents=None if documents is None else torch.from_numpy(documents),
        places=torch.from_numpy(np.where(counts, places, 0)),
        targets=torch.from_numpy(targets),
        num_targets=max(1, int(counts.sum())),  # what a loss is divided by
        num_tokens=tokens.size if lengths is None else int(lengths.sum()),
    )


def stream_as_batches(ids: NDArray, tokenizer: Tokenizer, config: DataConfig) -> Iterator[MaskedBatch]:
    """All of a text once, side by side, with the same hidden each time; `config` says what, and in which windows."""
    window, masking, vocabulary = window_of(config), masking_of(config), vocabulary_of(tokenizer)
    pieces = _pieces(ids, tokenizer, window - _AROUND, is_isolated=bool(config.isolate))
    is_empty = True
    for place in count():
        group = list(islice(pieces, max(1, _EVALUATION_TOKENS // window)))
        if not group:
            break
        tokens, lengths = pad(group, tokenizer.pad), np.array([len(piece) for piece in group])
        shown, is_hidden = masking.hide(tokens, vocabulary, _luck(_HELD_OUT_SEED, place), is_plain=True)
        kept = is_hidden.any(axis=1)
        if kept.any():
            is_empty = False
            is_padded = lengths.min() < lengths.max()
            yield make_batch(
                tokens[kept],
                shown[kept],
                is_hidden[kept],
                width=num_hidden(masking, window),
                lengths=lengths[kept] if is_padded else None,
            )
    if is_empty:
        raise DataError("the text has no tokens: there is nothing to hide")


def _luck(seed: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(mix(seed, number)))


def _pieces(ids: NDArray, tokenizer: Tokenizer, room: int, *, is_isolated: bool) -> Iterator[NDArray[np.int64]]:
    """The text in pieces of at most so many tokens, each between a start and an end; documents apart, or one text."""
    text = np.asarray(ids[1:], np.int64)
    ends = np.flatnonzero(text == tokenizer.end).tolist() if is_isolated else [len(text) - 1]
    first = 0
    for end in ends:
        for start in range(first, end, room):
            yield np.array([tokenizer.start, *text[start : min(start + room, end)], tokenizer.end])
        first = end + 1


def _framed(
    ids: NDArray[np.int64], tokenizer: Tokenizer, window: int, *, is_isolated: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A stretch of a stream between a start and an end, and the number of each position's document.

    Where documents are apart, each has a start of its own, and what is too much at the end is left out.
    """
    row = np.concatenate([[tokenizer.start], ids, [tokenizer.end]])
    if not is_isolated:
        return row, np.zeros(window, np.int64)
    starts = np.flatnonzero(ids[:-1] == tokenizer.end) + 2
    row = np.insert(row, starts, tokenizer.start)[:window]
    row[-1] = tokenizer.end
    begins, places = np.zeros(window, np.int64), starts + np.arange(len(starts))
    begins[places[places < window]] = 1
    return row, np.cumsum(begins)


def _states(model: MaskedModel, batch: MaskedBatch) -> Float[Tensor, "batch hidden model"]:
    """What the scores of hidden places are computed from; documents are apart where the model can keep them so."""
    documents = batch.documents if isinstance(model.body, Transformer) else None
    return model.states(batch.tokens, batch.places, batch.lengths, documents=documents)


def _judge(
    model: MaskedModel, states: Float[Tensor, "places model"], targets: Int[Tensor, " places"]
) -> tuple[Float[Tensor, " places"], Int[Tensor, " places"]]:
    """The negative log-likelihood of each target, and whether it is the likeliest; 0 where it is `IGNORED`."""
    losses: list[Tensor] = []
    right: list[Tensor] = []
    for some, goals in zip(states.split(_SCORED_AT_ONCE), targets.split(_SCORED_AT_ONCE), strict=True):
        scores = model.head.output(some)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        losses.append(F.cross_entropy(wide, goals, ignore_index=IGNORED, reduction="none"))
        right.append((wide.argmax(dim=-1) == goals).long())
    return torch.cat(losses), torch.cat(right)
