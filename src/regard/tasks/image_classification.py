"""Image classification: the label of an image.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (2020).
https://arxiv.org/abs/2010.11929

A row is the path of an image and a label, and an input is a path. A patch is to
an image what a token is to a text: batch sizes and speed are counted in patches.

Dimensions: `batch` images, `channels`, `height` and `width` of each, `labels` classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real, UInt8
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from regard.baselines.baseline import Baseline
from regard.baselines.linear import draw_images, fit_pixels
from regard.data.batches import TensorBatch
from regard.data.codecs.codec import Codec
from regard.data.codecs.labels import LabelCodec
from regard.data.codecs.pixels import PixelCodec
from regard.data.formats.images import ImageConfig
from regard.data.image_sources import ImageSource, open_images, prepare_images
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.stores.images import ImageStore
from regard.errors import RunError
from regard.evaluation.examples import Examples
from regard.models.family import ModelConfig, build_encoder
from regard.models.heads import HeadConfig, Pool, PredictionHead, pooled
from regard.nn.augmentation import change_tones, crop_and_flip, mix_images, warp_images
from regard.tasks.capabilities import ExportGraph, LabeledVectors
from regard.tasks.choices import MUON_REASON, Defaults, DefaultsContext
from regard.tasks.content import ExportSpec, Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.images import (
    ImageTask,
    ShuffledImages,
    choose_flips,
    draw_distortions,
    draw_mixtures,
    draw_offsets,
    picture_samples,
)
from regard.tasks.task import (
    PLAIN,
    Detection,
    EvaluationData,
    ImportedCodecs,
    Likelihoods,
    Objective,
    TaskSettings,
    repeat_batch,
    to_device,
)
from regard.tasks.text_classification import (
    balanced_weights,
    class_examples,
    class_targets,
    classification_loss,
    confusion_table,
    count_targets,
    label_losses,
    most_probable,
)

_IMAGES_AT_ONCE = {"cpu": 32, "cuda": 512}
_FEWEST_AT_ONCE = 16
_ROWS_FOR_SMOOTHING = 10_000
"""With fewer images training has few steps, which label smoothing makes slower to learn from."""
_COMPILED_MINUTES = 4.0
"""A run of this length on a GPU gains more from torch.compile than the compilation takes."""
_FEWEST_PIXELS = 16
"""In smaller images, a shift by a pixel may remove what an image shows."""
_MOST_BYTES = 1 << 31
"""A GPU keeps the pixels of all training images up to this size: CIFAR-10 has less than a tenth of it."""


class ImageClassificationSettings(TaskSettings):
    """Settings of image classification."""

    name: str = "image-classification"
    balance: bool = False
    """Weight images so that all labels have the same weight in the loss."""
    crop_padding: int | None = Field(default=None, ge=0)
    """In training, images are shifted by up to this many pixels in each direction. Unset: an eighth of their size, and
    0 below 16 pixels."""
    flips: bool | None = None
    """In training, half of the images are mirrored. Unset: unless mirror images are harder for a linear model, as
    those of letters and digits are."""
    average_flips: bool | None = None
    """Predict from the mean of the embeddings of an image and of its mirror image. Unset: where images are mirrored in
    training."""
    mixup: float | None = Field(default=None, ge=0.0)
    """In training, images are mixed in pairs, with shares from Beta(mixup, mixup); 0 for none. Unset: 0.8 where a
    Vision Transformer is trained on a GPU on images that may be mirrored, otherwise 0."""
    cutmix: float | None = Field(default=None, ge=0.0, le=1.0)
    """In training, this share of the images has a rectangle of another image instead. Unset: 0.5 where images are
    mixed by default, otherwise 0."""
    distortion: float | None = Field(default=None, ge=0.0, le=1.0)
    """In training, images are rotated (by up to 30 degrees), sheared, resized, and changed in brightness, contrast and
    saturation, at this strength; 0 for none. Unset: 0.5 where a Vision Transformer is trained on a GPU, otherwise 0."""
    image: ImageConfig = Field(default_factory=ImageConfig)


class ImageClassification(ImageTask[ImageClassificationSettings]):
    """Images and their labels, by an encoder of images."""

    name = "image-classification"
    description = "image classification"
    other_names = ("vision", "image", "images", "recognition")
    Settings = ImageClassificationSettings
    roles = ("image", "label")
    codec_types: Mapping[str, type[Codec]] = {"image": PixelCodec, "label": LabelCodec}
    store_columns = ("image", "label")
    token_unit = "patches"
    metrics = ("accuracy", "macro_f1", "matthews", "calibration_error")
    input_kind = "pixels"
    default_preset = "cnn"
    has_labels = True
    head_kind = "image-labels"
    attention_kind = None

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.is_image_folder:
            return Detection("a folder of images for each label", confidence=0.95)
        if summary.num_columns == 2 and summary.are_images(0) and summary.are_labels(-1, fewest=2, repeated=2):
            return Detection("paths of images and their labels", confidence=0.9)
        return None

    @property
    def set_image(self) -> ImageConfig:
        return self.settings.image

    def open(self, config: DataConfig, rows: Rows | None = None) -> ImageSource:
        return open_images(config, rows)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared[ImageStore]:
        return prepare_images(self.open(config, rows), config, self)

    def cache_key(self) -> Mapping[str, Any]:
        return {"task": self.name, "image": self.settings.image.model_dump()}

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {"image": PixelCodec(self.settings.image), "label": LabelCodec.fit(row[-1] for row in data.rows())}

    def notes(self) -> list[str]:
        image = self.image
        return [
            f"images are resized to {image.size} x {image.size} pixels, {image.num_positions - 1:,} patches each",
            self.label_codec.describe(),
        ]

    def facts(self) -> dict[str, str]:
        image = self.image
        return {"images": f"{image.size} x {image.size} pixels, patches of {image.patch_size} x {image.patch_size}"}

    def defaults(self, context: DefaultsContext) -> Defaults:
        train, is_gpu = super().defaults(context).train, context.device == "cuda"
        # A batch normalization needs many images; more than a twentieth of the data would leave few steps.
        at_once = min(_IMAGES_AT_ONCE[context.device], max(_FEWEST_AT_ONCE, context.num_rows // 20))
        own = {
            "batch_tokens": at_once * self.image.num_positions,
            "label_smoothing": 0.1 if context.num_rows >= _ROWS_FOR_SMOOTHING else 0.0,
            "weight_decay": 0.05,
            "ema_decay": 0.998 if is_gpu else 0.99,
        }
        is_compiled = context.model.has_class_token and context.model.can_compile
        if is_gpu and is_compiled and (context.minutes or 0.0) >= _COMPILED_MINUTES:
            own["compile"] = "always"
        reasons: dict[str, str] = {}
        if is_gpu and context.model.can_use_muon and not context.is_finetuned:
            own["optimizer"] = "muon"
            reasons["train.optimizer"] = MUON_REASON
        flips = choose_flips(self.settings.flips, context.data.train)
        # What a convolutional network knows of images, a Vision Transformer learns from many different ones.
        has_little_bias = is_gpu and context.model.has_class_token and not context.is_finetuned
        is_mixed = flips and has_little_bias
        augmentation = {
            "crop_padding": self.settings.image.size // 8 if self.settings.image.size >= _FEWEST_PIXELS else 0,
            "flips": flips,
            "average_flips": flips,
            "mixup": 0.8 if is_mixed else 0.0,
            "cutmix": 0.5 if is_mixed else 0.0,
            "distortion": 0.5 if has_little_bias else 0.0,
        }
        pooling = "first" if context.model.has_class_token else "mean"
        return Defaults({**train, **own}, task=augmentation, head={"pooling": pooling}, reasons=reasons)

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.check_crop_padding(self.settings.crop_padding)

    def build(self, model: ModelConfig, head: HeadConfig) -> "ImageClassifier":
        averages_flips = bool(self.settings.average_flips)
        return ImageClassifier(model, self.image, head, len(self.label_codec), averages_flips=averages_flips)

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> "ImageBatches":
        assert isinstance(data.train, ImageStore)
        return ImageBatches(self, data.train, batch_tokens=batch_tokens, seed=seed, has_fixed_shapes=has_fixed_shapes)

    def validation_batches(self, data: Prepared) -> Iterator["ImageBatch"]:
        assert isinstance(data.valid, ImageStore)
        for some in self.ranges(len(data.valid)):
            rows = np.array(some)
            yield self.make_batch(data.valid.labels(rows), pixels=data.valid.pixels(rows))

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator["ImageBatch"]:
        codec = PixelCodec(self.image)
        for chosen in self.ranges(len(rows)):
            labels = [numbers[0] for numbers in self.label_codec.encode([rows[row][-1] for row in chosen])]
            pixels = codec.pixels([rows[row][0] for row in chosen])
            yield self.make_batch(np.array(labels, np.int64), pixels=pixels)

    def make_batch(
        self,
        labels: NDArray[np.int64],
        *,
        pixels: NDArray[np.uint8] | None = None,
        rows: NDArray[np.int64] | None = None,
        resident: "ResidentImages | None" = None,
        is_training: bool = False,
    ) -> "ImageBatch":
        """A batch of `pixels`, or of the images at `rows` of those that are `resident` on the device."""
        targets = class_targets(labels, len(self.label_codec))
        is_balanced = is_training and self.settings.balance
        return ImageBatch(
            pixels=None if pixels is None else torch.from_numpy(pixels),
            targets=targets,
            weights=balanced_weights(self.label_codec)[targets] if is_balanced else torch.ones(len(labels)),
            num_targets=len(labels),
            num_tokens=len(labels) * self.image.num_positions,
            rows=None if rows is None else torch.from_numpy(rows),
            resident=resident,
        )

    def augmented(self, batch: "ImageBatch", rng: np.random.Generator) -> "ImageBatch":
        """The batch with the random numbers of its augmentation; the loss applies it."""
        settings, count = self.settings, len(batch.targets)
        padding, mixup, cutmix = settings.crop_padding or 0, settings.mixup or 0.0, settings.cutmix or 0.0
        if padding or settings.flips:
            offsets, is_mirrored = draw_offsets(count, rng, padding=padding, flips=settings.flips)
            batch = replace(batch, offsets=offsets, is_mirrored=is_mirrored)
        if settings.distortion:
            matrices, tones = draw_distortions(count, rng, strength=settings.distortion)
            batch = replace(batch, matrices=matrices, tones=tones)
        if mixup or cutmix:
            shares, boxes = draw_mixtures(count, rng, size=self.image.size, mixup=mixup, cutmix=cutmix)
            batch = replace(batch, shares=shares, boxes=boxes if cutmix else None)
        return batch

    def loss(self, model: "ImageClassifier", batch: "ImageBatch", objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the images; a mixture has the labels of both of its images, by their shares."""
        if objective.rdrop:
            batch = repeat_batch(batch)
        pixels, targets, weights, shares = batch.images(), batch.targets, batch.weights, batch.shares
        if batch.offsets is not None and batch.is_mirrored is not None:
            pixels = crop_and_flip(pixels, batch.offsets, batch.is_mirrored)
        if batch.matrices is not None and batch.tones is not None:
            pixels = change_tones(warp_images(pixels, batch.matrices), batch.tones)
        if shares is None:
            return classification_loss(model(pixels).float(), targets, weights, objective)
        logits = model(mix_images(pixels, shares, batch.boxes)).float()
        own = classification_loss(logits, targets, weights * shares, objective)
        # Rows that fill up a batch have no weight and repeat its first image, which is mixed with the last of them.
        mixed_in = weights.roll(1)
        mixed_in = mixed_in.where(mixed_in > 0, weights).where(weights > 0, 0.0)
        return own + classification_loss(logits, targets.roll(1), mixed_in * (1.0 - shares), objective)

    def has_linear_head(self, head: HeadConfig) -> bool:
        return head.is_linear

    def head_inputs(self, model: "ImageClassifier", batch: "ImageBatch") -> LabeledVectors:
        return LabeledVectors(model.embed(batch.images()), batch.targets, batch.weights)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator["ImageBatch"], device: torch.device) -> Likelihoods:
        """Returns the likelihood of each image's label."""
        losses: list[float] = []
        counts: list[int] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += label_losses(model(batch.images()).float(), batch.targets).tolist()
            counts += count_targets(batch.targets)
        return Likelihoods(losses, counts)

    def predictor(self, model: Any, config: Any) -> "ImagePredictor":
        if not len(self.label_codec):
            raise RunError("this model has no labels: fine-tune it on labeled images")
        return ImagePredictor(self, model)

    def baseline(self, data: Prepared) -> Baseline:
        assert isinstance(data.train, ImageStore)
        drawn, names = draw_images(len(data.train)), self.label_codec.labels
        labels = [names[index] for index in data.train.labels(drawn)]
        return fit_pixels(data.train.pixels(drawn), labels, read=PixelCodec(self.image).pixels)

    def examples(self, data: EvaluationData) -> Examples:
        return class_examples(self.label_codec, data)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return ("accuracy", "matthews")

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        table = confusion_table(self.label_codec, data)
        return ReportContent(samples=self.samples(model, data), confusion=table, facts=self.facts())

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        return picture_samples(super().samples(model, data))

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(("path",), labels=tuple(self.label_codec.labels), output="label", reads_files=True)

    def export_spec(self) -> ExportSpec:
        return replace(super().export_spec(), labels=tuple(self.label_codec.labels))

    def export_graph(self, model: Any, rows: Sequence[Sequence[str]]) -> ExportGraph | None:
        """Pixels as bytes in, probabilities of labels out."""
        if not len(self.label_codec):
            return None
        pixels = torch.from_numpy(PixelCodec(self.image).pixels([row[0] for row in rows[:5]]))
        examples = []
        for some in (pixels[:3], pixels[-1:], pixels):
            with torch.inference_mode():
                examples.append(({"pixels": some}, (model(some).softmax(dim=-1),)))
        return ExportGraph(
            module=ExportedClassifier(model),
            axes={"pixels": {0: "batch"}},
            outputs=("probabilities",),
            examples=examples,
            config={"labels": list(self.label_codec.labels)},
        )

    @classmethod
    def imported_codecs(cls, imported: ImportedCodecs) -> dict[str, Codec]:
        """Without labels the codec is empty, and the model is a body to be fine-tuned."""
        return {"image": PixelCodec(imported.image), "label": LabelCodec(dict.fromkeys(imported.labels, 0))}

    def image_output(self, output: str) -> tuple[ImageConfig, int]:
        return self.image, self.label_codec.labels.index(output)

    @torch.inference_mode()
    def embed(self, model: Any, inputs: Sequence[str]) -> Float[np.ndarray, "inputs model"]:
        """Inputs are paths of images."""
        found = [model.embed(pixels).float() for pixels in self.pixel_batches(inputs, next(model.parameters()).device)]
        return F.normalize(torch.cat(found), dim=-1).cpu().numpy()


class ResidentImages:
    """The images of a store in the memory of a device, to which all of them are copied when some are first needed.

    A step then transfers the numbers of its images only, and a CUDA graph gathers their pixels.
    """

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._pixels: UInt8[Tensor, "images channels height width"] | None = None

    def on(self, device: torch.device) -> UInt8[Tensor, "images channels height width"]:
        """The pixels of all images, on a device."""
        if self._pixels is None or self._pixels.device != device:
            self._pixels = torch.from_numpy(self._store.pixels(slice(None)).copy()).to(device)
        return self._pixels

    def at(self, rows: Int[Tensor, " batch"]) -> UInt8[Tensor, "batch channels height width"]:
        """The pixels of the images at `rows`, on their device."""
        return self.on(rows.device).index_select(0, rows)


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """Images, and the label of each."""

    tensor_names = (
        "pixels", "targets", "weights", "offsets", "is_mirrored", "matrices", "tones", "shares", "boxes", "rows",
    )  # fmt: skip
    pixels: UInt8[Tensor, "batch channels height width"] | None
    """None where the images are `resident`."""
    targets: Int[Tensor, " batch"]
    weights: Float[Tensor, " batch"]
    """The weight of each image in the loss: 0 for one that only pads the batch."""
    num_targets: int
    num_tokens: int
    offsets: Int[Tensor, "batch 2"] | None = None
    """By how many pixels each image is shifted, by row and column; None without augmentation."""
    is_mirrored: Bool[Tensor, " batch"] | None = None
    matrices: Float[Tensor, "batch 2 2"] | None = None
    """How each image is rotated, sheared and resized; None without distortions."""
    tones: Float[Tensor, "batch 3"] | None = None
    """Factors of brightness, contrast and saturation."""
    shares: Float[Tensor, " batch"] | None = None
    """The share of each image in its mixture with the one before it; None where images are not mixed."""
    boxes: Int[Tensor, "batch 4"] | None = None
    """The part of each image that is of the one before it, by rows and columns; empty for an image without one."""
    rows: Int[Tensor, " batch"] | None = None
    """Which of the `resident` images these are."""
    resident: ResidentImages | None = None

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Self:
        """The same batch with other tensors, and its resident images on their device."""
        found = super().with_tensors(tensors)
        if found.resident is not None and found.rows is not None:
            found.resident.on(found.rows.device)  # before the loss, which may be compiled
        return found

    def images(self) -> UInt8[Tensor, "batch channels height width"]:
        """The pixels, on the device of the batch."""
        if self.pixels is not None:
            return self.pixels
        assert self.resident is not None, "without pixels, images are resident"
        assert self.rows is not None, "without pixels, rows are given"
        return self.resident.at(self.rows)


class ImageBatches:
    """Images of a store in shuffled order; with `has_fixed_shapes`, those that are not too large stay on the device."""

    def __init__(
        self, task: ImageClassification, store: ImageStore, *, batch_tokens: int, seed: int, has_fixed_shapes: bool
    ) -> None:
        self._task, self._store = task, store
        at_once = batch_tokens // task.image.num_positions
        self._order = ShuffledImages(len(store), at_once=at_once, seed=seed, has_fixed_shapes=has_fixed_shapes)
        self.per_epoch = self._order.per_epoch
        self._resident = ResidentImages(store) if has_fixed_shapes and store.num_bytes <= _MOST_BYTES else None

    def batch(self, number: int) -> ImageBatch:
        """Batch `number`, counted from 0 through all epochs."""
        rows = self._order.rows(number)
        labels = self._store.labels(rows)
        if self._resident is None:
            batch = self._task.make_batch(labels, pixels=self._store.pixels(rows), is_training=True)
        else:
            batch = self._task.make_batch(labels, rows=rows, resident=self._resident, is_training=True)
        batch = self._task.augmented(batch, self._order.generator(number))
        padded, more = self._order.padded(batch, len(rows))
        return replace(padded, weights=F.pad(batch.weights, (0, more))) if more else batch


class ImagePredictor:
    """Predicts the labels of the images at some paths."""

    def __init__(self, task: ImageClassification, model: "ImageClassifier") -> None:
        self._task, self._model = task, model

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        found: list[list[float]] = []
        for pixels in self._task.pixel_batches(inputs, next(self._model.parameters()).device):
            with torch.inference_mode():
                found += self._model(pixels).double().softmax(dim=-1).tolist()
        tables = (dict(zip(self._task.label_codec.labels, some, strict=True)) for some in found)
        return [
            Prediction(path, most_probable(table), probabilities=table, probability=max(table.values()))
            for path, table in zip(inputs, tables, strict=True)
        ]


class ImageClassifier(nn.Module):
    """Pixels in, a logit for each label out; without labels it is a body to be fine-tuned."""

    def __init__(
        self,
        config: ModelConfig,
        image: ImageConfig,
        head: HeadConfig,
        num_outputs: int,
        *,
        averages_flips: bool = False,
    ) -> None:
        super().__init__()
        self.averages_flips = averages_flips
        self.body: Any = build_encoder(config, image, reads="pixels", example="vit-tiny")
        self.pooling = Pool(config.model_dim, head.pooling)
        self.head = (
            PredictionHead(config.model_dim, num_outputs, dropout=head.dropout, has_hidden_layer=head.hidden_layer)
            if num_outputs
            else None
        )

    def forward(self, pixels: Real[Tensor, "batch channels height width"]) -> Float[Tensor, "batch outputs"]:
        if self.head is None:
            raise RunError("this model has no labels: fine-tune it on labeled images")
        return self.head(self.embed(pixels))

    def embed(self, pixels: Real[Tensor, "batch channels height width"]) -> Float[Tensor, "batch model"]:
        """The embedding of each image; outside of training, with its mirror image where both are averaged."""
        found = pooled(self.pooling, self.body.encode(pixels))
        if self.training or not self.averages_flips:
            return found
        return (found + pooled(self.pooling, self.body.encode(pixels.flip(3)))) / 2


class ExportedClassifier(nn.Module):
    """Pixels in, the probability of each label out."""

    def __init__(self, model: ImageClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        return (self.model(pixels).softmax(dim=-1),)
