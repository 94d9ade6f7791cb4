"""Classification: a text, or two, and which of some labels it has; one, or any number of them.

Howard & Ruder, "Universal Language Model Fine-tuning for Text Classification" (2018), and Devlin et al., "BERT"
(2018), section 4.1, for models that were trained on other text first; from scratch it is the task of Kim (2014).

One label is chosen by the softmax of the scores, several by the sigmoid of each.

Dimensions: `batch` texts, `labels` that there are.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import StoredBatches, batches_by_length
from regard.data.coding import LabelCoding, encode_texts, labels_of
from regard.data.columns import listing
from regard.data.config import DataConfig
from regard.data.preparation import Prepared, prepare
from regard.data.sources import Rows
from regard.errors import DataError
from regard.evaluation.classes import score_classes, score_label_sets
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.models.families import AnyConfig
from regard.models.heads import Classifier, HeadConfig
from regard.nn.contrast import contrast_losses
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
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer


class Classification:
    """Texts and their labels, by a model that reads."""

    name = "classification"
    description = "which label a text has"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        source, config, roles = open_rows(config, rows, "label")
        return prepare(
            source, config, roles, LabelCoding(max_length=config.max_length, separator=config.label_separator)
        )

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        return read_rows(config, rows, "label")

    def question(self, row: Sequence[str]) -> str:
        return SEPARATOR.join(row[:-1])

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> Classifier:
        assert data is not None, "labels are read off the data before a model is built"
        return Classifier(config, head or HeadConfig(), tokenizer.vocab_size, len(data.labels))

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> StoredBatches[TextsBatch]:
        weights = balanced_weights(data.learned.labels) if config.balance else None
        make = partial(_batch, tokenizer=data.tokenizer, config=config, weights=weights)
        return texts_of(data, make, batch_tokens=batch_tokens, seed=seed, has_few_shapes=has_few_shapes)

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator[TextsBatch]:
        return held_out_texts(data, partial(_batch, tokenizer=data.tokenizer, config=config))

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator[TextsBatch]:
        texts = encode_texts([row[:-1] for row in rows], tokenizer, config.max_length)
        labels = [numbers_of(row[-1], config) for row in rows]
        for chosen in batches_by_length([len(text) for text in texts], batch_tokens=BATCH_TOKENS):
            some_texts = [np.array(texts[row], np.int64) for row in chosen]
            yield _batch(some_texts, [np.array(labels[row], np.int64) for row in chosen], tokenizer, config)

    def loss(self, model: Classifier, batch: TextsBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the texts; with several labels, over the labels of each."""
        if objective.consistency:
            batch = twice(batch)
        vectors = model.embed(batch.source, batch.lengths, batch.segments)
        loss = total_loss(model.head(vectors).float(), batch.targets, batch.weights, objective)
        if not objective.contrast:
            return loss
        apart = contrast_losses(vectors.float(), batch.targets, batch.weights > 0) * batch.weights
        return loss + objective.contrast * apart.sum() / (2 if objective.consistency else 1)

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: Classifier, batches: Iterator[TextsBatch], device: torch.device
    ) -> Likelihoods:
        """Of the labels of each text."""
        losses: list[float] = []
        for batch in batches:
            batch = moved(batch, device)
            losses += label_losses(model(batch.source, batch.lengths, batch.segments).float(), batch.targets).tolist()
        return Likelihoods(losses, [1] * len(losses))

    def writer(
        self, model: Classifier, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Labeller":
        assert data is not None, "labels are read off the data before a model is built"
        return Labeller(model, tokenizer, data)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        return "accuracy"

    def scores(
        self,
        rows: Sequence[Sequence[str]],
        predictions: Sequence[Prediction],
        likelihoods: Likelihoods,
        config: DataConfig,
    ) -> list[Score]:
        if config.label_separator is not None:
            wanted = [labels_of(row[-1], config.label_separator) for row in rows]
            given = [labels_of(each.output, config.label_separator) for each in predictions]
            return score_label_sets(given, wanted, labels=config.labels)
        return score_classes(
            [each.output for each in predictions],
            [row[-1].strip() for row in rows],
            labels=config.labels,
            confidences=[(each.probabilities or {})[each.output] for each in predictions],
        )


class Labeller:
    """Says which label each text has, and how probable the model holds each."""

    def __init__(self, model: Classifier, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._model, self._tokenizer, self._data = model, tokenizer, data
        self._device = next(model.parameters()).device

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model says of each input, in order."""
        texts = encode_inputs(inputs, self._tokenizer, self._data.max_length)
        found: dict[int, list[float]] = {}
        for rows in batches_by_length([len(text) for text in texts], batch_tokens=BATCH_TOKENS):
            nothing = torch.zeros(len(rows), dtype=torch.long)
            batch = moved(make_batch([texts[row] for row in rows], nothing, self._tokenizer), self._device)
            with torch.inference_mode():
                scores = self._model(batch.source, batch.lengths, batch.segments).double()
            chances = scores.softmax(dim=-1) if self._data.label_separator is None else scores.sigmoid()
            found |= dict(zip(rows.tolist(), chances.tolist(), strict=True))
        return [self._prediction(text, found[number]) for number, text in enumerate(inputs)]

    def _prediction(self, text: str, chances: list[float]) -> Prediction:
        by_label = dict(zip(self._data.labels, chances, strict=True))
        separator = self._data.label_separator
        if separator is None:
            output = max(by_label, key=lambda label: by_label[label])
        else:
            output = f"{separator} ".join(label for label, chance in by_label.items() if chance > 0.5)
        return Prediction(text, output, probabilities=by_label)


def numbers_of(text: str, config: DataConfig) -> list[int]:
    """The numbers of a row's labels."""
    numbers = {label: number for number, label in enumerate(config.labels)}
    labels = labels_of(text, config.label_separator)
    for label in labels:
        if label not in numbers:
            raise DataError(f"the model knows no label {label!r}, it knows {listing(config.labels)}")
    return [numbers[label] for label in labels]


def balanced_weights(counts: Mapping[str, int]) -> Float[Tensor, " labels"]:
    """What a row of each label counts, so that all labels count alike and the rows 1 on average.

    Example:
        >>> balanced_weights({"rare": 1, "common": 3}).tolist()
        [2.0, 0.6666666865348816]
    """
    total = sum(counts.values())
    return torch.tensor([total / (len(counts) * count) for count in counts.values()], dtype=torch.float32)


def _batch(
    texts: list[NDArray[np.int64]],
    labels: list[NDArray[np.int64]],
    tokenizer: Tokenizer,
    config: DataConfig,
    weights: Float[Tensor, " labels"] | None = None,
) -> TextsBatch:
    if config.label_separator is not None:
        targets = torch.zeros(len(texts), len(config.labels))
        for row, numbers in zip(targets, labels, strict=True):
            row[torch.from_numpy(numbers)] = 1.0
        return make_batch(texts, targets, tokenizer)
    targets = torch.tensor([int(numbers[0]) for numbers in labels])
    return make_batch(texts, targets, tokenizer, None if weights is None else weights[targets])


def total_loss(
    scores: Float[Tensor, "batch labels"], targets: Tensor, weights: Float[Tensor, " batch"], objective: Objective
) -> Float[Tensor, ""]:
    """What the rows cost together; with consistency, of a batch that was read `twice`."""
    loss = (label_losses(scores, targets, objective.label_smoothing) * weights).sum()
    if not objective.consistency:
        return loss
    disagreement = _disagreement(scores, is_one=targets.dim() == 1) * weights.chunk(2)[0]
    return loss / 2 + objective.consistency / 4 * disagreement.sum()


def _disagreement(scores: Float[Tensor, "two labels"], *, is_one: bool) -> Float[Tensor, " one"]:
    r"""How far the two readings of each text are apart: $\mathrm{KL}(p \| q) + \mathrm{KL}(q \| p)$."""
    if is_one:
        one, other = scores.log_softmax(dim=-1).chunk(2)
        return ((one.exp() - other.exp()) * (one - other)).sum(dim=-1)
    one, other = scores.chunk(2)
    return ((one.sigmoid() - other.sigmoid()) * (one - other)).sum(dim=-1)


def label_losses(
    scores: Float[Tensor, "batch labels"], targets: Tensor, label_smoothing: float = 0.0
) -> Float[Tensor, " batch"]:
    """Cross-entropy of each row, whose target is the number of one label or tells of each whether it is there."""
    if targets.dim() == 1:
        return F.cross_entropy(scores, targets, reduction="none", label_smoothing=label_smoothing)
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none").sum(dim=1)
