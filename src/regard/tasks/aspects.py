"""Aspects: a text, what of it is asked about, and which label that has, such as praise of the soup in a review.

A row is a text, an aspect and a label. The model is `AspectClassifier`: a query looks at the words of the text, and how
much each word weighed can be told.

Dimensions: `batch` rows, `labels` that there are.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.aspects import ROLES, AspectCoding, number_of, open_aspects, unknown_aspect
from regard.data.batches import StoredBatches, batches_by_length
from regard.data.coding import encode_texts
from regard.data.columns import count_of
from regard.data.config import DataConfig
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows
from regard.data.store import TokenStore
from regard.errors import ConfigError, DataError
from regard.evaluation.classes import score_classes
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.logging import log_info
from regard.models.aspects import AspectClassifier
from regard.models.families import AnyConfig
from regard.models.heads import HeadConfig
from regard.tasks.classification import balanced_weights, label_losses, numbers_of, total_loss
from regard.tasks.objective import PLAIN, Objective
from regard.tasks.reading import BATCH_TOKENS, SEPARATOR, TextsBatch, filled, make_batch, segments_of
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")
_MOST_ASKED = 50
"""More aspects than these are not all judged at once."""


@dataclass(frozen=True)
class AspectsBatch:
    """Texts with an aspect behind each, and the number of the aspect."""

    texts: TextsBatch
    aspects: Int[Tensor, " batch"]

    @property
    def num_targets(self) -> int:
        return self.texts.num_targets

    @property
    def num_tokens(self) -> int:
        return self.texts.num_tokens

    def tensors(self) -> list[Tensor | None]:
        return [*self.texts.tensors(), self.aspects]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "AspectsBatch":
        *others, aspects = tensors
        assert aspects is not None
        return AspectsBatch(self.texts.with_tensors(others), aspects)


class Aspects:
    """Texts and what is said about their aspects, by a model that asks for each."""

    name = "aspects"
    description = "what is said about an aspect of a text"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        return prepare(open_aspects(config, rows), config, ROLES, AspectCoding(max_length=config.max_length))

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_aspects(config, rows)
        for guess in source.train.guesses:
            log_info(guess)
        return [row.values for row in source.train], source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return SEPARATOR.join(row[:-1])

    def questions(self, text: str, aspect: str | None, config: DataConfig) -> list[str]:
        """What is asked about a text: one aspect, which may stand behind it already, or all that the model knows."""
        if aspect is not None:
            return [f"{text}{SEPARATOR}{aspect}"]
        if SEPARATOR in text:
            return [text]
        if len(config.aspects) > _MOST_ASKED:
            raise ConfigError(f"the model knows {count_of(len(config.aspects), 'aspect')}: name the one to be judged")
        return [f"{text}{SEPARATOR}{each}" for each in config.aspects]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> AspectClassifier:
        assert data is not None, "labels and aspects are read off the data before a model is built"
        return AspectClassifier(
            config, head or HeadConfig(), tokenizer.vocab_size, len(data.labels), num_aspects=len(data.aspects)
        )

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[AspectsBatch]:
        store = data.train
        assert isinstance(store, TokenStore)
        weights = balanced_weights(data.learned.labels) if config.balance else None
        fill = partial(_filled, padding=data.tokenizer.pad) if has_few_shapes else None
        make = partial(_stored, store, tokenizer=data.tokenizer, weights=weights)
        return StoredBatches(store, make, fill, batch_tokens=batch_tokens, seed=seed)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[AspectsBatch]:
        store = data.valid
        assert isinstance(store, TokenStore)
        for rows in batches_by_length(store.lengths(), batch_tokens=BATCH_TOKENS):
            yield _stored(store, rows, tokenizer=data.tokenizer)

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[AspectsBatch]:
        texts = encode_texts([row[:-1] for row in rows], tokenizer, config.max_length)
        known = np.array([[*numbers_of(row[-1], config), number_of(row[1], config.aspects)] for row in rows])
        for chosen in batches_by_length([len(text) for text in texts], batch_tokens=BATCH_TOKENS):
            yield _batch([np.array(texts[row], np.int64) for row in chosen], known[chosen], tokenizer)

    def loss(self, model: AspectClassifier, batch: AspectsBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the rows."""
        if objective.consistency:
            batch = twice(batch)
        return total_loss(_scores(model, batch), batch.texts.targets, batch.texts.weights, objective)

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: AspectClassifier, batches: Iterator[AspectsBatch], device: torch.device
    ) -> Likelihoods:
        """Of the label of each row."""
        losses: list[float] = []
        for batch in batches:
            batch = moved(batch, device)
            losses += label_losses(_scores(model, batch), batch.texts.targets).tolist()
        return Likelihoods(losses, [1] * len(losses))

    def writer(
        self, model: AspectClassifier, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Judge":
        assert data is not None, "labels and aspects are read off the data before a model is built"
        return Judge(model, tokenizer, data)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "accuracy"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        return score_classes(
            [each.output for each in predictions],
            [row[-1].strip() for row in rows],
            labels=config.labels,
            confidences=[(each.probabilities or {})[each.output] for each in predictions],
        )


class Judge:
    """Says what each text says about its aspect, and how much each word weighed."""

    def __init__(self, model: AspectClassifier, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._model, self._tokenizer, self._data = model, tokenizer, data
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model says of each input, in order; a text and its aspect are parted by a tab."""
        pairs = [self._parted(text, number) for number, text in enumerate(inputs, start=1)]
        texts = encode_texts(pairs, self._tokenizer, self._data.max_length)
        aspects = torch.tensor([number_of(aspect, self._data.aspects) for _, aspect in pairs])
        found: dict[int, tuple[list[float], list[float]]] = {}
        for rows in batches_by_length([len(text) for text in texts], batch_tokens=BATCH_TOKENS):
            some = make_batch([np.array(texts[row], np.int64) for row in rows], torch.zeros(len(rows)), self._tokenizer)
            batch = _with_aspects(some, aspects[torch.from_numpy(rows)], self._tokenizer)
            found |= dict(zip(rows.tolist(), self._judged(moved(batch, self._device)), strict=True))
        offsets = self._tokenizer.encode_with_offsets([text for text, _ in pairs])
        return [
            self._prediction(text, aspect, *found[number], offsets[number][1])
            for number, (text, aspect) in enumerate(pairs)
        ]

    def _parted(self, text: str, number: int) -> tuple[str, str]:
        text, _, aspect = text.rpartition(SEPARATOR)
        if not text.strip() or not aspect.strip():
            raise DataError(f"input {number} needs a text and an aspect with a tab between them")
        if self._model.asking != "pair" and aspect.strip() not in self._data.aspects:
            raise unknown_aspect(aspect, self._data.aspects)
        return text, aspect.strip()

    @torch.inference_mode()
    def _judged(self, batch: AspectsBatch) -> Iterator[tuple[list[float], list[float]]]:
        """For each row how probable each label is, and how much each token weighs."""
        watched: list[Tensor] = []
        lookup = self._model.pooling.lookup
        lookup.watcher = watched.append
        try:
            chances = _scores(self._model, batch).double().softmax(dim=-1)
        finally:
            lookup.watcher = None
        return zip(chances.tolist(), watched[0][:, 0, 0].double().tolist(), strict=True)

    def _prediction(
        self, text: str, aspect: str, chances: list[float], weights: list[float], offsets: Sequence[tuple[int, int]]
    ) -> Prediction:
        by_label = dict(zip(self._data.labels, chances, strict=True))
        best = max(by_label, key=lambda label: by_label[label])
        words = weights_of_words(text, weights[1:], offsets)  # the first token is the start
        return Prediction(text, best, probabilities=by_label, aspect=aspect, weights=words)


def weights_of_words(
    text: str, weights: Sequence[float], offsets: Sequence[tuple[int, int]]
) -> list[tuple[str, float]]:
    """The words and signs of a text, each with the weight of its tokens together.

    A token belongs to the first word that ends behind its beginning. Tokens without a
    weight, because a long text was cut, have none.

    Example:
        >>> weights_of_words("cold soup!", [0.25, 0.5, 0.125, 0.125], [(0, 2), (2, 4), (4, 9), (9, 10)])
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


def _scores(model: AspectClassifier, batch: AspectsBatch) -> Float[Tensor, "batch labels"]:
    texts = batch.texts
    return model(texts.source, texts.lengths, texts.segments, batch.aspects).float()


def _stored(
    store: TokenStore, rows: NDArray[np.int64], *, tokenizer: Tokenizer, weights: Float[Tensor, " labels"] | None = None
) -> AspectsBatch:
    return _batch(store.sequences(0, rows), np.stack(store.sequences(1, rows)), tokenizer, weights)


def _batch(
    texts: list[NDArray[np.int64]],
    known: NDArray[np.int64],
    tokenizer: Tokenizer,
    weights: Float[Tensor, " labels"] | None = None,
) -> AspectsBatch:
    """Rows whose label and aspect are the two columns of `known`."""
    targets, aspects = torch.from_numpy(known).unbind(dim=1)
    some = make_batch(texts, targets, tokenizer, None if weights is None else weights[targets])
    return _with_aspects(some, aspects, tokenizer)


def _with_aspects(texts: TextsBatch, aspects: Int[Tensor, " batch"], tokenizer: Tokenizer) -> AspectsBatch:
    # The start may be the same token as the end, and must not be taken for one.
    segments = F.pad(segments_of(texts.source[:, 1:], tokenizer.end), (1, 0))
    tensors = [texts.source, texts.lengths, segments, texts.targets, texts.weights]
    return AspectsBatch(texts.with_tensors(tensors), aspects)


def _filled(batch: AspectsBatch, num_rows: int, length: int, padding: int) -> AspectsBatch:
    more = num_rows - batch.aspects.size(0)
    return AspectsBatch(
        filled(batch.texts, num_rows, length, padding), torch.cat([batch.aspects, batch.aspects[:1].expand(more)])
    )
