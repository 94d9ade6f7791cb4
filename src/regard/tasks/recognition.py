"""Recognition: which of some labels a picture has.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2020).
https://arxiv.org/abs/2010.11929

A row is the path of a picture and a label, and an input is a path. Patches are
to pictures what tokens are to texts: the size of a batch and speed are counted
in them.

Dimensions: `batch` pictures, `channels`, `height` and `width` of each, `labels` that there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.data.config import DataConfig, PictureConfig
from regard.data.permutation import mix, permute
from regard.data.picture_preparation import prepare_pictures
from regard.data.picture_sources import open_pictures
from regard.data.picture_store import PictureStore
from regard.data.pictures import read_picture
from regard.data.preparation import Prepared
from regard.data.sources import Rows
from regard.errors import RunError
from regard.evaluation.classes import score_classes
from regard.evaluation.scores import Score
from regard.generation.config import GenerationConfig
from regard.logging import log_info
from regard.models.families import AnyConfig
from regard.models.heads import HeadConfig
from regard.models.vision import PictureClassifier, require_reader
from regard.tasks.classification import balanced_weights, label_losses, numbers_of, total_loss
from regard.tasks.objective import PLAIN, Objective
from regard.tasks.reading import BATCH_TOKENS
from regard.tasks.task import Likelihoods, Prediction, moved, twice
from regard.text.tokenizer import Tokenizer


class Recognition:
    """Pictures and their labels, by a Vision Transformer."""

    name = "recognition"
    description = "which label a picture has"
    has_answers = True

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared:
        return prepare_pictures(open_pictures(config, rows), config)

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        source = open_pictures(config, rows)
        for guess in source.guesses:
            log_info(guess)
        return list(source.train.rows), source.content_hash()

    def question(self, row: Sequence[str]) -> str:
        return row[0]

    def build_model(
        self, config: AnyConfig, tokenizer: Tokenizer, *, data: DataConfig | None = None, head: HeadConfig | None = None
    ) -> PictureClassifier:
        assert data is not None, "labels are read off the data before a model is built"
        return PictureClassifier(require_reader(config), data.picture, head or HeadConfig(), len(data.labels))

    def batches(
        self, data: Prepared, config: DataConfig, *, batch_tokens: int, seed: int, has_few_shapes: bool = False
    ) -> "PictureBatches":
        assert isinstance(data.train, PictureStore)
        weights = balanced_weights(data.learned.labels) if config.balance else None
        return PictureBatches(
            data.train, config.picture, weights, batch_tokens=batch_tokens, seed=seed, is_filled=has_few_shapes
        )

    def held_out(self, data: Prepared, config: DataConfig) -> Iterator["PictureBatch"]:
        assert isinstance(data.valid, PictureStore)
        for some in _in_order(len(data.valid), config.picture):
            rows = np.array(some)
            yield _batch(data.valid.pixels(rows), data.valid.labels(rows), config.picture)

    def rows_as_batches(
        self, rows: Sequence[Sequence[str]], tokenizer: Tokenizer, config: DataConfig
    ) -> Iterator["PictureBatch"]:
        for chosen in _in_order(len(rows), config.picture):
            pixels = np.stack([read_picture(rows[row][0], config.picture) for row in chosen])
            labels = [numbers_of(rows[row][-1], config)[0] for row in chosen]
            yield _batch(pixels, np.array(labels, np.int64), config.picture)

    def loss(self, model: PictureClassifier, batch: "PictureBatch", objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the pictures."""
        if objective.consistency:
            batch = twice(batch)
        return total_loss(model(batch.pixels).float(), batch.targets, batch.weights, objective)

    @torch.no_grad()
    def negative_log_likelihoods(
        self, model: PictureClassifier, batches: Iterator["PictureBatch"], device: torch.device
    ) -> Likelihoods:
        """Of the label of each picture."""
        losses: list[float] = []
        for batch in batches:
            batch = moved(batch, device)
            losses += label_losses(model(batch.pixels).float(), batch.targets).tolist()
        return Likelihoods(losses, [1] * len(losses))

    def writer(
        self, model: PictureClassifier, tokenizer: Tokenizer, config: GenerationConfig, data: DataConfig | None = None
    ) -> "Recognizer":
        assert data is not None, "labels are read off the data before a model is built"
        return Recognizer(model, data)

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


@dataclass(frozen=True)
class PictureBatch:
    """Pictures, and the label of each."""

    pixels: UInt8[Tensor, "batch channels height width"]
    targets: Int[Tensor, " batch"]
    weights: Float[Tensor, " batch"]
    """How much each picture counts: 0 for one that only fills a shape."""
    num_targets: int
    num_tokens: int

    def tensors(self) -> list[Tensor | None]:
        return [self.pixels, self.targets, self.weights]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> "PictureBatch":
        pixels, targets, weights = tensors
        assert pixels is not None
        assert targets is not None
        assert weights is not None
        return replace(self, pixels=pixels, targets=targets, weights=weights)


class PictureBatches:
    """Pictures of a store in shuffled order; all are equally long, so any may stand together.

    Where `is_filled`, all batches have one shape, so that recorded work meets it again.
    """

    def __init__(
        self,
        store: PictureStore,
        picture: PictureConfig,
        weights: Float[Tensor, " labels"] | None,
        *,
        batch_tokens: int,
        seed: int,
        is_filled: bool,
    ) -> None:
        self._store, self._picture, self._weights, self._seed = store, picture, weights, seed
        at_once = max(1, batch_tokens // picture.num_positions)
        self.per_epoch = -(-len(store) // at_once)
        self._num_filled = -(-len(store) // self.per_epoch) if is_filled else 0

    def batch(self, number: int) -> PictureBatch:
        """Batch `number`, counted from 0 through all epochs."""
        epoch, place = divmod(number, self.per_epoch)
        start, end = (len(self._store) * each // self.per_epoch for each in (place, place + 1))
        rows = permute(np.arange(start, end), len(self._store), mix(self._seed, epoch))
        labels = self._store.labels(rows)
        batch = _batch(self._store.pixels(rows), labels, self._picture)
        if self._weights is not None:
            batch = replace(batch, weights=self._weights[batch.targets])
        more = max(0, self._num_filled - len(rows))
        if not more:
            return batch
        pixels, targets = (torch.cat([x, x[:1].expand(more, *x.shape[1:])]) for x in (batch.pixels, batch.targets))
        return replace(batch, pixels=pixels, targets=targets, weights=torch.nn.functional.pad(batch.weights, (0, more)))


class Recognizer:
    """Says which label each picture has, and how probable the model holds each."""

    def __init__(self, model: PictureClassifier, data: DataConfig) -> None:
        if not data.labels:
            raise RunError("this model tells no labels apart: fine-tune it on pictures that have some")
        self._model, self._data = model, data

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        """What the model says of the picture at each path, in order."""
        chances: list[list[float]] = []
        for pixels in _read(inputs, self._data.picture, self._model):
            with torch.inference_mode():
                chances += self._model(pixels).double().softmax(dim=-1).tolist()
        tables = (dict(zip(self._data.labels, some, strict=True)) for some in chances)
        return [
            Prediction(path, max(table, key=lambda label: table[label]), probabilities=table)
            for path, table in zip(inputs, tables, strict=True)
        ]


@torch.inference_mode()
def embed_pictures(
    model: PictureClassifier, paths: Sequence[str], config: DataConfig
) -> Float[np.ndarray, "pictures model"]:
    """A vector of length 1 for each picture, in float32: their products are cosines."""
    found = [model.embed(pixels).float() for pixels in _read(paths, config.picture, model)]
    return torch.nn.functional.normalize(torch.cat(found), dim=-1).cpu().numpy()


def _read(
    paths: Sequence[str], config: PictureConfig, model: PictureClassifier
) -> Iterator[UInt8[Tensor, "batch channels height width"]]:
    """Pixels on the device of the model, some pictures at a time."""
    device = model.body.start.device
    for rows in _in_order(len(paths), config):
        yield torch.from_numpy(np.stack([read_picture(paths[row], config) for row in rows])).to(device)


def _in_order(num_pictures: int, config: PictureConfig) -> list[range]:
    """Which pictures are read together when scoring."""
    at_once = max(1, BATCH_TOKENS // config.num_positions)
    return [range(start, min(start + at_once, num_pictures)) for start in range(0, num_pictures, at_once)]


def _batch(pixels: NDArray[np.uint8], labels: NDArray[np.int64], config: PictureConfig) -> PictureBatch:
    return PictureBatch(
        pixels=torch.from_numpy(pixels),
        targets=torch.from_numpy(labels),
        weights=torch.ones(len(labels)),
        num_targets=len(labels),
        num_tokens=len(labels) * config.num_positions,
    )
