"""Regression: a text, or two, and a number, such as a rating or how alike the two are.

The model is trained on numbers with their mean taken off and divided by their spread, by the squared error.

Dimensions: `batch` texts.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length
from regard.data.coding import NumberCoding, encode_texts, number_of
from regard.data.config import DataConfig
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows
from regard.evaluation.regression import score_numbers
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.models.families import AnyConfig
from regard.models.heads import Classifier, HeadConfig
from regard.tasks.objective import PLAIN, Objective
from regard.tasks.reading import (
    BATCH_TOKENS,
    SEPARATOR,
    TextsBatch,
    encode_inputs,
    held_out_texts,
    make_batch,
    open_rows,
    read_rows,
    texts_of,
)
from regard.tasks.task import Likelihoods, Prediction, moved
from regard.text.tokenizer import Tokenizer


class Regression:
    """Texts and numbers, by a model that reads."""

    name = "regression"
    description = "which number belongs to a text"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        source, config, roles = open_rows(config, rows, "number")
        return prepare(source, config, roles, NumberCoding(max_length=config.max_length))

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        return read_rows(config, rows, "number")

    def question(self, row: Sequence[str]) -> str:
        return SEPARATOR.join(row[:-1])

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> Classifier:
        return Classifier(config, head or HeadConfig(), tokenizer.vocab_size, 1)

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[TextsBatch]:
        make = partial(_batch, tokenizer=data.tokenizer, config=config)
        return texts_of(data, make, batch_tokens=batch_tokens, seed=seed, has_few_shapes=has_few_shapes)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[TextsBatch]:
        return held_out_texts(data, partial(_batch, tokenizer=data.tokenizer, config=config))

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[TextsBatch]:
        texts = encode_texts([row[:-1] for row in rows], tokenizer, config.max_length)
        numbers = torch.tensor([number_of(row[-1], beside=row[0]) for row in rows])
        targets = (numbers - config.center) / config.spread
        for chosen in batches_by_length([len(text) for text in texts], batch_tokens=BATCH_TOKENS):
            some = [np.array(texts[row], np.int64) for row in chosen]
            yield make_batch(some, targets[torch.from_numpy(chosen)].float(), tokenizer)

    def loss(self, model: Classifier, batch: TextsBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Half of the squared error, summed over the texts."""
        return (_losses(model, batch) * batch.weights).sum()

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: Classifier, batches: Iterator[TextsBatch], device: torch.device
    ) -> Likelihoods:
        """Of each number, under a normal distribution of the spread that all have, up to a constant."""
        losses = [loss for batch in batches for loss in _losses(model, moved(batch, device)).tolist()]
        return Likelihoods(losses, [1] * len(losses))

    def writer(
        self, model: Classifier, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Estimator":
        assert data is not None, "what numbers are like is read off the data before a model is built"
        return Estimator(model, tokenizer, data)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "pearson"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        given = [float(each.output) for each in predictions]
        return score_numbers(given, [number_of(row[-1], beside=row[0]) for row in rows])


class Estimator:
    """Says which number belongs to each text."""

    def __init__(self, model: Classifier, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._model, self._tokenizer, self._data = model, tokenizer, data
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model says of each input, in order."""
        texts = encode_inputs(inputs, self._tokenizer, self._data.max_length)
        found: dict[int, float] = {}
        for rows in batches_by_length([len(text) for text in texts], batch_tokens=BATCH_TOKENS):
            batch = make_batch([texts[row] for row in rows], torch.zeros(len(rows)), self._tokenizer)
            batch = moved(batch, self._device)
            with torch.inference_mode():
                numbers = self._model(batch.source, batch.lengths, batch.segments)[:, 0].double()
            numbers = numbers * self._data.spread + self._data.center
            found |= dict(zip(rows.tolist(), numbers.tolist(), strict=True))
        return [Prediction(text, f"{found[number]:.6g}") for number, text in enumerate(inputs)]


def _batch(
    texts: list[NDArray[np.int64]], numbers: list[NDArray[np.int64]], tokenizer: Tokenizer, config: DataConfig
) -> TextsBatch:
    values = np.stack(numbers).astype(np.uint8).view(np.float32)[:, 0]
    return make_batch(texts, torch.from_numpy((values - config.center) / config.spread).float(), tokenizer)


def _losses(model: Classifier, batch: TextsBatch) -> Float[Tensor, " batch"]:
    found = model(batch.source, batch.lengths, batch.segments)[:, 0].float()
    return (found - batch.targets).square() / 2
