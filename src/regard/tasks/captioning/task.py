"""Captioning: a sentence about an image.

A row is an image, by its path or as a data URI, and all of its captions: see `regard.data.caption_sources`. All of them
are references of an evaluation. The image encoder is the model of the run, so that one that is pretrained on labels
can be fine-tuned; the decoder is `task.decoder`.

Dimensions: `batch` images, `captions` of each, `target` positions, `cells` of an image, `channels`, `height`, `width`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from regard.baselines.baseline import Baseline
from regard.baselines.images import fit_nearest_picture
from regard.data.caption_sources import CAPTION_ROLES, Caption, open_captions, prepare_captions, read_captions
from regard.data.codecs.codec import Codec
from regard.data.codecs.pixels import PixelCodec
from regard.data.codecs.text import TextCodec
from regard.data.formats.images import ImageConfig
from regard.data.formats.messages import format_count
from regard.data.image_sources import ImageSource
from regard.data.permutation import mix, permute
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.splits.by_hash import row_hash
from regard.data.stores.captions import CaptionStore
from regard.errors import ConfigError
from regard.evaluation.examples import Examples
from regard.evaluation.registry import find_metric
from regard.evaluation.scores import Score
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.models.protocols import EncoderOutput
from regard.nn.augmentation import crop_and_flip
from regard.tasks.capabilities import ExportGraph
from regard.tasks.captioning.model import (
    CaptionBatch,
    CaptionBatches,
    Captioner,
    CaptionLikelihoods,
    ExportedCaptioner,
    Memory,
    decoder_config,
    make_caption_batch,
    pointing_of,
)
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Prediction, ReportContent, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.images import ImageTask, draw_offsets, picture_samples
from regard.tasks.task import (
    PLAIN,
    Detection,
    EvaluationData,
    Likelihoods,
    Objective,
    Task,
    TaskSettings,
    to_device,
)
from regard.tasks.text import next_token_loss, target_log_likelihoods
from regard.text.tokenizer import SPECIAL_TOKENS, Tokenizer, size_with_pieces

SCENES = ("image", "caption", "grounding")
"""The columns of the built-in data set."""
_IMAGES_AT_ONCE = {"cpu": 32, "cuda": 64}
_SLOTS = {"cpu": 64, "cuda": 256}
"""Captions that are generated side by side."""
_SEARCHED = 64
"""Images that are searched together by beam search."""
_RARE, _FEW_CAPTIONS = 4, 2_000
"""Words that occur less often than this are not learned, where there are this many captions."""
_CLOSED_VOCABULARY = 100
"""Captions of so few words are written by a rule, so that a model can be exactly right."""
_SIDES = ("left", "right", "links", "rechts", "gauche", "droite", "izquierda", "derecha", "sinistra", "destra")
_MANY_SIDES = 0.02
"""The share of captions with such a word from which on mirror images would be wrong too often."""
_LARGE_IMAGE = 64
_PUNCTUATION = re.compile(r"[^\w\s'-]")
_BASELINE_IMAGES = 20_000


class CaptioningSettings(TaskSettings):
    """Settings of captioning."""

    name: str = "captioning"
    tokenizer: str = "wordpunct"
    """How captions are split: wordpunct (words and punctuation marks), words, bpe, unigram, characters or bytes."""
    vocab_size: int | None = Field(default=None, ge=5)
    """The largest vocabulary. Unset: all words; of 2,000 captions or more, those that occur at least 4 times."""
    lowercase: bool = True
    """Lower-case captions; references are lower-cased too when captions are scored."""
    decoder: str = "lstm-attention-tiny"
    """The preset of the decoder: lstm-attention, gru-attention, transformer, or lstm, with its size."""
    decoder_dim: int | None = Field(default=None, ge=1)
    """Width of the decoder, if not that of its preset."""
    decoder_layers: int | None = Field(default=None, ge=1)
    """Layers of the decoder, if not as many as its preset has."""
    decoder_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of the decoder, if not that of its preset."""
    memory: Memory = "map"
    """map: the decoder attends to the cells of the image; mean: it reads one vector, their mean, without attention."""
    images: str | None = None
    """The folder of the images. Unset: paths are relative to the table, or to a folder `images` beside it."""
    crop_padding: int | None = Field(default=None, ge=0)
    """In training, images are shifted by up to this many pixels in each direction. Unset: a sixteenth of their size,
    and 0 below 64 pixels."""
    flips: bool | None = None
    """In training, half of the images are mirrored. Unset: unless 2 % of the captions have a word such as left."""
    image: ImageConfig = Field(default_factory=ImageConfig)


class Captioning(ImageTask[CaptioningSettings]):
    """Images and their captions, by an encoder of images and a decoder."""

    name = "captioning"
    description = "captioning"
    output_description = "the caption of an image"
    other_names = ("caption", "captions", "image-captioning", "image-to-text", "image2text")
    Settings = CaptioningSettings
    roles = CAPTION_ROLES
    codec_types: Mapping[str, type[Codec]] = {"image": PixelCodec, "caption": TextCodec}
    store_columns = ("image", "caption")
    metrics = ("exact_match", "bleu", "bleu1", "bleu2", "bleu3", "chrf", "cider", "perplexity")
    architecture = "encoder-decoder"
    input_kind = "pixels"
    default_preset = "cnn"
    attention_kind = None
    objectives = frozenset({"label_smoothing"})
    selection_rows = 200  # generation takes far longer than a forward pass

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.names == SCENES and not summary.columns:
            return Detection("images of colored shapes and their captions", confidence=0.9)
        if summary.is_coco:
            return Detection("images and captions in COCO's annotations", confidence=0.97)
        kinds = [column.kind for column in summary.columns]
        texts = [column for column in summary.columns if column.kind in ("text", "labels") and column.mean_words >= 2]
        if kinds.count("images") != 1 or not texts or len(kinds) > len(SCENES):
            return None
        return Detection("images and a text about each", confidence=0.85)

    @property
    def set_image(self) -> ImageConfig:
        return self.settings.image

    @property
    def tokenizer(self) -> Tokenizer:
        return _tokenizer_of(self.codecs)

    @property
    def target_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> ImageSource:
        return open_captions(config, rows, folder=self.settings.images)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared[CaptionStore]:
        if config.shots is not None:
            raise ConfigError(f"data.shots is for rows with labels, and captions have none, got {config.shots}")
        return prepare_captions(self.open(config, rows), config, self)

    def cache_key(self) -> Mapping[str, Any]:
        names = ("tokenizer", "vocab_size", "lowercase")
        key = {"task": self.name, **self.settings.model_dump(include=set(names)), "image": self.image.model_dump()}
        key["rare"] = _RARE  # the vocabulary is that of frequent words, and pieces beside all of them
        if (path := Path(self.settings.tokenizer)).is_file():
            key["tokenizer"] = path.read_text(encoding="utf-8")
        return key

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        texts = [caption.text for row in data.rows() for caption in read_captions(row[-1])]
        settings = self.settings
        size = settings.vocab_size or _num_frequent(texts, settings.tokenizer, is_lowercased=settings.lowercase)
        codec = TextCodec.fit(texts, kind=settings.tokenizer, vocab_size=size, lowercase=settings.lowercase)
        return {"image": PixelCodec(settings.image), "caption": codec}

    def notes(self) -> list[str]:
        image, kind = self.image, self.settings.tokenizer
        return [
            f"images are resized to {image.size} x {image.size} pixels, {image.num_positions - 1:,} cells each",
            f"tokenizer {Path(kind).name}{', lower-cased' if self.settings.lowercase else ''}: "
            f"{self.tokenizer.vocab_size:,} tokens",
        ]

    def facts(self) -> dict[str, str]:
        image = self.image
        reads = "attends to cells" if self.settings.memory == "map" else "reads their mean"
        return {
            "images": f"{image.size} x {image.size} pixels, cells of {image.patch_size} x {image.patch_size}",
            "decoder": f"{self.settings.decoder}, {reads}",
            "vocabulary": f"{self.tokenizer.vocab_size:,} tokens ({Path(self.settings.tokenizer).name})",
        }

    def target_of(self, row: Sequence[str]) -> str:
        return read_captions(row[-1])[0].text

    # Settings

    def defaults(self, context: DefaultsContext) -> Defaults:
        train, is_gpu = super().defaults(context).train, context.device == "cuda"
        at_once = min(_IMAGES_AT_ONCE[context.device], max(8, context.num_rows // 20))
        own = {
            "batch_tokens": at_once * self.settings.image.num_positions,
            "weight_decay": 0.05,
            "ema_decay": 0.998 if is_gpu else 0.99,
            # The model of the run is the encoder; the decoder may be one whose steps cannot be captured.
            "cuda_graphs": self._decoder_config().can_use_cuda_graphs,
        }
        size = self.settings.image.size
        flips, reason = self._default_flips(context)
        return Defaults(
            train={**train, **own},
            task={"crop_padding": size // 16 if size >= _LARGE_IMAGE else 0, "flips": flips},
            finetune_train={"learning_rate": 1e-3 if context.method == "head" else 3e-4, "ema_decay": 0.99},
            reasons={"task.flips": f"{str(flips).lower()}: {reason}"},
        )

    def _default_flips(self, context: DefaultsContext) -> tuple[bool, str]:
        """Whether mirror images have the same captions, and why."""
        store, tokenizer = context.data.train, _tokenizer_of(context.data.codecs)
        assert isinstance(store, CaptionStore)
        encoded = [ids[0] for ids in tokenizer.encode(_SIDES) if len(ids) == 1 and not tokenizer.count_unknown([ids])]
        count = int(np.isin(store.captions.column(0)[0], encoded).sum())
        share = f"{count:,} of {format_count(len(store.captions), 'caption')} have a word such as left and right"
        return count < _MANY_SIDES * len(store.captions), share

    def check(self, *, model: ModelConfig, is_finetuned: bool, held_out: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.check_crop_padding(self.settings.crop_padding)

    @classmethod
    def check_base(cls, base: Task[Any], model: ModelConfig, where: str) -> None:
        if model.input_kind != cls.input_kind:
            raise ConfigError(
                f"{cls.description} needs a model that reads {cls.input_kind}, and {where} reads {model.input_kind}"
            )

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> Captioner:
        if head.hidden_layer:
            raise ConfigError("head.hidden_layer has no effect on captions, which a decoder predicts")
        return Captioner(
            model,
            self.image,
            self._decoder_config(),
            self.tokenizer.vocab_size,
            memory=self.settings.memory,
            dropout=head.dropout,
        )

    def _decoder_config(self) -> ModelConfig:
        settings = self.settings
        changes = {
            "model_dim": settings.decoder_dim,
            "decoder_layers": settings.decoder_layers,
            "dropout": settings.decoder_dropout,
        }
        return decoder_config(settings.decoder, **{name: each for name, each in changes.items() if each is not None})

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> CaptionBatches:
        assert isinstance(data.train, CaptionStore)
        return CaptionBatches(
            data.train,
            _tokenizer_of(data.codecs),
            self._augmented,
            num_positions=self.image.num_positions,
            batch_tokens=batch_tokens,
            seed=seed,
            has_fixed_shapes=has_fixed_shapes,
        )

    def _augmented(self, batch: CaptionBatch, rng: np.random.Generator) -> CaptionBatch:
        """The batch with the random numbers of its augmentation; the loss applies it."""
        settings, count = self.settings, batch.pixels.size(0)
        padding = settings.crop_padding or 0
        if not (padding or settings.flips):
            return batch
        offsets, is_mirrored = draw_offsets(count, rng, padding=padding, flips=settings.flips)
        return replace(batch, offsets=offsets, is_mirrored=is_mirrored)

    def validation_batches(self, data: Prepared) -> Iterator[CaptionBatch]:
        assert isinstance(data.valid, CaptionStore)
        for some in self.ranges(len(data.valid)):
            rows = np.array(some)
            yield self._batch(data.valid.pixels(rows), data.valid.captions_of(rows))

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[CaptionBatch]:
        codec = PixelCodec(self.image)
        for chosen in self.ranges(len(rows)):
            captions = [tuple(read_captions(rows[row][-1])) for row in chosen]
            encoded = [[np.array(ids, np.int64) for ids in self._encode(some)] for some in captions]
            batch = self._batch(codec.pixels([rows[row][0] for row in chosen]), encoded)
            yield replace(batch, captions=tuple(captions))

    def _batch(self, pixels: NDArray[np.uint8], captions: list[list[NDArray[np.int64]]]) -> CaptionBatch:
        return make_caption_batch(pixels, captions, self.tokenizer, num_positions=self.image.num_positions)

    def _encode(self, captions: Sequence[Caption]) -> list[list[int]]:
        return self.tokenizer.encode([caption.text for caption in captions])

    def loss(self, model: Captioner, batch: CaptionBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """Cross-entropy summed over the tokens of all captions."""
        pixels = batch.pixels
        if batch.offsets is not None and batch.is_mirrored is not None:
            pixels = crop_and_flip(pixels, batch.offsets, batch.is_mirrored)
        hidden_states = model.hidden_states(model.encode(pixels), batch.target_in)
        return next_token_loss(model.decoder, hidden_states, batch.target_out.flatten(0, 1), objective)

    @torch.no_grad()
    def likelihoods(
        self, model: Captioner, batches: Iterator[CaptionBatch], device: torch.device
    ) -> CaptionLikelihoods:
        """Returns the likelihood of all captions of each image; where words have boxes, also the attention on them."""
        losses: list[float] = []
        counts: list[int] = []
        pointing: list[tuple[float, float]] = []
        for batch in batches:
            batch = to_device(batch, device)
            encoded, targets = model.encode(batch.pixels), batch.target_out.flatten(0, 1)
            found = -target_log_likelihoods(model.decoder, model.hidden_states(encoded, batch.target_in), targets)
            losses += found.sum(dim=1).unflatten(0, batch.target_out.shape[:2]).sum(dim=1).tolist()
            counts += (batch.target_out >= 0).sum(dim=(1, 2)).tolist()
            if model.has_maps and any(each.grounding for some in batch.captions for each in some):
                weights = mean_attention(model, encoded, batch.target_in).unflatten(0, batch.target_in.shape[:2])
                maps = weights.float().cpu().numpy()
                pointing += [
                    pointing_of(some, self.tokenizer, own) for some, own in zip(batch.captions, maps, strict=True)
                ]
        return CaptionLikelihoods(losses, counts, pointing=tuple(pointing))

    # Use

    def predictor(self, model: Captioner, config: GenerationConfig) -> "CaptionPredictor":
        return CaptionPredictor(self, model, config)

    def headline(self, rows: Sequence[Sequence[str]]) -> str:
        """Exact match where captions have few words, which are written by a rule; otherwise BLEU."""
        words = {word for row in rows for caption in read_captions(row[-1]) for word in caption.text.lower().split()}
        return "exact_match" if len(words) <= _CLOSED_VOCABULARY else "bleu"

    def selects_by_score(self, device: Literal["cpu", "cuda"]) -> bool:
        """On a CPU, where 200 rows take as long as a few steps; a GPU captures CUDA graphs at each evaluation."""
        return device == "cpu"

    def selection_generation(self, rows: Sequence[Sequence[str]]) -> GenerationConfig:
        """Greedy, and no longer than the longest caption: an untrained model would not end before its limit."""
        encoded = self._encode([caption for row in rows for caption in read_captions(row[-1])])
        return GenerationConfig(max_tokens=1 + max(map(len, encoded)))

    def examples(self, data: EvaluationData) -> Examples:
        """Captions without punctuation, and all references of each image."""
        found: Likelihoods = data.likelihoods
        pointing = found.pointing if isinstance(found, CaptionLikelihoods) else ()
        return Examples(
            outputs=[self.normalized(each.output) for each in data.predictions],
            targets=[[self.normalized(each.text) for each in read_captions(row[-1])] for row in data.rows],
            losses=found.losses,
            num_tokens=found.counts,
            extras={"pointing": [list(each) for each in pointing]} if any(count for _, count in pointing) else {},
            settings={"case": "lower" if self.settings.lowercase else "mixed", "punctuation": "no"},
        )

    def normalized(self, text: str) -> str:
        """A caption as it is scored: without punctuation, and lower-cased where captions are."""
        text = text.lower() if self.settings.lowercase else text
        return " ".join(_PUNCTUATION.sub(" ", text).split())

    def scores(self, data: EvaluationData) -> list[Score]:
        examples = self.examples(data)
        names = [*self.metric_names(), *examples.extras]
        return [score for name in names for score in find_metric(name).scores(examples)]

    def baseline(self, data: Prepared) -> Baseline:
        store = data.train
        assert isinstance(store, CaptionStore)
        drawn = permute(np.arange(min(len(store), _BASELINE_IMAGES)), len(store), 0)
        captions = _tokenizer_of(data.codecs).decode([some[0].tolist() for some in store.captions_of(drawn)])
        return fit_nearest_picture(store.pixels(drawn), captions, read=PixelCodec(self.image).pixels)

    def comparison_metrics(self, headline: str) -> tuple[str, ...]:
        return (headline, *(name for name in ("exact_match", "bleu", "cider") if name != headline))

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def report(self, model: Captioner, data: EvaluationData) -> ReportContent:
        content = ReportContent(samples=self.samples(model, data), facts=self.facts())
        if not model.has_maps:
            return content
        pairs = [(row[0], each.output) for row, each in zip(data.rows, data.predictions, strict=True)]
        return replace(content, attention_inputs=pairs)

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        rows = []
        for row, each in zip(data.rows, data.predictions, strict=True):
            references = [caption.text for caption in read_captions(row[-1])]
            right = self.normalized(each.output) in map(self.normalized, references)
            rows.append({"source": row[0], "target": "\n".join(references), "prediction": each.output, "right": right})
        return picture_samples(rows)

    def export_graph(self, model: Captioner, rows: Sequence[Sequence[str]]) -> ExportGraph:
        """An image and the beginning of a caption in, the logits of the next token after each position out."""
        if self._decoder_config().is_step_by_step:
            raise ConfigError(
                "task.decoder must be lstm-attention, lstm or transformer to export a captioner, to onnx, got "
                f"{self.settings.decoder}: no single graph has attention between two steps of a recurrent layer"
            )
        examples = []
        for some in (rows[:3], rows[-1:], rows[:5]):
            batch = next(self.row_batches(some))
            inputs = {"pixels": batch.pixels, "input_ids": batch.target_in[:, 0]}
            with torch.inference_mode():
                examples.append((inputs, ExportedCaptioner(model)(**inputs)))
        tokenizer = self.tokenizer
        return ExportGraph(
            module=ExportedCaptioner(model),
            axes={"pixels": {0: "batch"}, "input_ids": {0: "batch", 1: "time"}},
            outputs=("logits",),
            examples=examples,
            config={"start": tokenizer.start, "end": tokenizer.end, "tokenizer": json.loads(tokenizer.to_json())},
        )

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(("image",), has_beam_search=True, reads_files=True)

    @torch.inference_mode()
    def picture_attention(
        self, model: Captioner, image: str, caption: str
    ) -> tuple[list[str], list[Float[np.ndarray, "heads target cells"]], int]:
        if not model.has_maps:
            raise ConfigError("this model has no attention over the image: its decoder reads one vector")
        tokenizer = self.tokenizer
        ids = tokenizer.encode([caption])[0]
        device = next(model.parameters()).device
        tokens = torch.tensor([[[tokenizer.start, *ids]]], device=device)
        (pixels,) = self.pixel_batches([image], device)
        layers = model.attention(model.encode(pixels), tokens)
        weights = [layer[0].float().cpu().numpy() for layer in layers]
        return tokenizer.pieces([*ids, tokenizer.end]), weights, self.image.size


class CaptionPredictor:
    """Generates captions of images, greedily, by sampling, or by beam search."""

    def __init__(self, task: Captioning, model: Captioner, config: GenerationConfig) -> None:
        self._task, self._model, self._config = task, model, config
        self._device = next(model.parameters()).device
        writer = task.tokenizer
        suppress = writer.never_generated
        if config.beam_size > 1:
            self._search = BeamSearch(model.decoder, end=writer.end, config=config, suppress=suppress)
        else:
            num_slots = _SLOTS[self._device.type]
            self._engine = Engine(model.decoder, config, end=writer.ends, num_slots=num_slots, suppress=suppress)

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        with torch.inference_mode():
            pixels = self._task.pixel_batches(inputs, self._device)
            cells = torch.cat([self._model.encode(some).hidden_states for some in pixels])
        found = self._beam_search(cells) if self._config.beam_size > 1 else self._generate(inputs, cells)
        texts = self._task.tokenizer.decode(tokens for tokens, _ in found)
        rows = zip(inputs, texts, found, strict=True)
        return [Prediction(image, text, score) for image, text, (_, score) in rows]

    def _generate(self, inputs: Sequence[str], cells: Tensor) -> list[tuple[list[int], float | None]]:
        """Greedy, or sampled with a seed that depends on the configured seed and the input alone."""
        writer, config = self._task.tokenizer, self._config
        requests = [
            Request(
                [writer.start],
                config.limit(0),
                seed=mix(config.seed, row_hash((image,))),
                encoded=EncoderOutput(cells[number : number + 1], None),
            )
            for number, image in enumerate(inputs)
        ]
        return [(tokens, None) for tokens in self._engine.run(requests)]

    def _beam_search(self, cells: Tensor) -> list[tuple[list[int], float | None]]:
        results: list[tuple[list[int], float | None]] = []
        for some in cells.split(_SEARCHED):
            start = torch.full((len(some), 1), self._task.tokenizer.start, device=self._device)
            with torch.inference_mode():
                state = self._model.decoder.initial_state(EncoderOutput(some, None))
            found = self._search.search(state, start, [self._config.limit(0)] * len(some))
            results += [(hypotheses[0].tokens, hypotheses[0].score) for hypotheses in found]
        return results


def mean_attention(model: Captioner, encoded: EncoderOutput, tokens: Tensor) -> Float[Tensor, "rows target cells"]:
    """The weights of the cells, averaged over layers and heads."""
    layers = model.attention(encoded, tokens)
    return torch.stack([layer.mean(dim=1) for layer in layers]).mean(dim=0)


def _tokenizer_of(codecs: Mapping[str, Codec]) -> Tokenizer:
    codec = codecs["caption"]
    assert isinstance(codec, TextCodec)
    return codec.tokenizer


def _num_frequent(texts: Sequence[str], kind: str, *, is_lowercased: bool) -> int | None:
    """The size of a vocabulary of words without rare ones; None for other kinds of tokens."""
    if kind not in ("words", "wordpunct"):
        return None
    pattern = re.compile(r"\S+" if kind == "words" else r"\w+|[^\w\s]+")
    counts = Counter(word for text in texts for word in pattern.findall(text.lower() if is_lowercased else text))
    least = _RARE if len(texts) >= _FEW_CAPTIONS else 1
    num_words = max(1, sum(count >= least for count in counts.values()))
    return size_with_pieces(num_words) if kind == "wordpunct" else len(SPECIAL_TOKENS) + num_words
