"""A plug-in of regard: the trend of a series of numbers, by a model of its own.

A row is a series of numbers and a label, such as `0.1 0.4 0.9<TAB>up`. Nothing of it is text: a series is quantized
by a codec of this package and read by a family of this package.

Dimensions: `batch` series, `time` positions, `model` width, `labels` classes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.batches import TensorBatch
from regard.data.builtin import BuiltinData
from regard.data.codecs import Codec, LabelCodec
from regard.data.prepare import FitData, Prepared
from regard.data.settings import DataConfig
from regard.data.sources import Rows, Source, open_source
from regard.errors import CheckpointError, DataError
from regard.evaluation.counts import Counts, count_right
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric
from regard.interop.model import ExportableModel, Exporter, ImportedModel, token_names
from regard.lab.study import Study, StudyEntry, StudyTable
from regard.models.family import Family, ModelConfig, Preset, build_encoder
from regard.models.heads import HeadConfig
from regard.models.protocols import EncoderOutput
from regard.tasks.capabilities import SeriesForecast
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Curve, Panel, Plot, Prediction, ReportContent, Section, ServerSchema
from regard.tasks.task import PLAIN, Detection, EvaluationData, Likelihoods, Objective, Task, TaskSettings, to_device

_LEVELS = 256
_WIDTHS = {"tiny": 8, "small": 16, "base": 32, "big": 64}


@dataclass(frozen=True)
class SeriesCodec(Codec):
    """Numbers separated by spaces, quantized between the smallest and the largest of the training rows."""

    low: float = 0.0
    high: float = 1.0

    @classmethod
    def fit(cls, values: Iterable[str]) -> Self:
        numbers = [number for value in values for number in parse(value)]
        return cls(min(numbers), max(numbers))

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        scale = (_LEVELS - 1) / max(self.high - self.low, 1e-9)
        return [[round(min(max(n - self.low, 0.0) * scale, _LEVELS - 1)) for n in parse(value)] for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        step = (self.high - self.low) / (_LEVELS - 1)
        return [" ".join(f"{self.low + step * level:.3g}" for level in some) for some in ids]

    def to_json(self) -> str:
        return json.dumps({"low": self.low, "high": self.high})

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def parse(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split()]
    except ValueError:
        raise DataError(f"a series must be numbers separated by spaces, got {text!r}") from None


class PooledSeriesConfig(ModelConfig):
    """The settings of the family."""

    family: str = "pooled-series"
    model_dim: int = 8
    weighting: Literal["mean", "last"] = "mean"
    """Which positions count: all of them, or the last one."""

    input_kind: ClassVar[str] = "numbers"

    @property
    def encoder_depth(self) -> int:
        return 1


class PooledSeries(nn.Module):
    """An `Encoder` of series: a hidden layer at each position, of its level and of its change."""

    def __init__(self, config: PooledSeriesConfig, shape: None = None) -> None:
        super().__init__()
        self.config = config
        self.hidden = nn.Linear(2, config.model_dim)

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, *, segments: Any = None, extra_embeddings: Any = None,
        documents: Any = None,
    ) -> EncoderOutput:  # fmt: skip
        levels = source.to(self.hidden.weight.dtype) / _LEVELS
        changes = F.pad(levels.diff(dim=1), (1, 0)) * 8
        hidden_states = self.hidden(torch.stack([levels, changes], dim=-1)).tanh()
        if lengths is None:
            lengths = torch.full((len(source),), source.size(1), device=source.device)
        mask = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        return EncoderOutput(hidden_states, mask[:, None, None])


class PooledSeriesFamily(Family):
    """Models of series in two kinds."""

    name = "pooled-series"
    Config = PooledSeriesConfig
    Model = PooledSeries
    presets: ClassVar[Mapping[str, Preset]] = {
        "pooled": Preset({size: {"model_dim": width} for size, width in _WIDTHS.items()}),
        "last": Preset({size: {"model_dim": 8} for size in _WIDTHS}, {"weighting": "last"}),
    }


class TrendClassifier(nn.Module):
    def __init__(self, config: ModelConfig, num_labels: int) -> None:
        super().__init__()
        self.body: Any = build_encoder(config, None, reads="numbers", example="pooled")
        self.head = nn.Linear(config.model_dim, num_labels)

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        encoded = self.body.encode(source, lengths)
        mask = encoded.mask[:, 0, 0]
        if self.body.config.weighting == "last":
            return self.head(encoded.hidden_states[torch.arange(len(source)), lengths - 1])
        weights = mask / mask.sum(dim=1, keepdim=True)
        return self.head((encoded.hidden_states * weights[..., None]).sum(dim=1))


class TrendSettings(TaskSettings):
    """The settings of the task."""

    name: Literal["trend"] = "trend"
    most_numbers: int = 32
    """Longer series are truncated to their last numbers."""


@dataclass(frozen=True)
class SeriesBatch(TensorBatch):
    tensor_names = ("source", "lengths", "targets", "weights")
    source: Tensor
    lengths: Tensor
    targets: Tensor
    weights: Tensor
    num_targets: int
    num_tokens: int


class Trend(Task[TrendSettings]):
    """The label of a series of numbers."""

    name = "trend"
    description = "the trend of a series"
    Settings = TrendSettings
    roles = ("series", "label")
    codec_types: Mapping[str, type[Codec]] = {"series": SeriesCodec, "label": LabelCodec}
    store_columns = ("series", "label")
    metrics = ("accuracy", "share_of_up", "monotone")
    why_no_baseline = "the first two numbers of a series show its trend"
    input_kind: Any = "numbers"
    default_preset = "pooled"
    has_labels = True
    supports_shots = True
    unit = "series"
    attention_kind = None
    objectives = frozenset({"label_smoothing"})

    @classmethod
    def detect(cls, summary: Any) -> Detection | None:
        return Detection("a file of series", confidence=0.99) if summary.suffix == ".series" else None

    def open(self, config: DataConfig, rows: Rows | None = None) -> Source:
        return open_source(config, self.roles, rows)

    def fit_codecs(self, data: FitData) -> dict[str, Codec]:
        return {
            "series": SeriesCodec.fit(row[0] for row in data.rows()),
            "label": LabelCodec.fit(row[1] for row in data.rows()),
        }

    @property
    def label_codec(self) -> Any:
        return self.codecs["label"]

    def notes(self) -> list[str]:
        return [self.label_codec.describe()]

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        return [self._encode([row[0] for row in rows]), self.label_codec.encode([row[1] for row in rows])]

    def encode_inputs(self, inputs: Sequence[str]) -> list[list[list[int]]]:
        return [self._encode(inputs), [[0] for _ in inputs]]

    def _encode(self, series: Sequence[str]) -> list[list[int]]:
        return [ids[-self.settings.most_numbers :] for ids in self.codecs["series"].encode(series)]

    def defaults(self, context: DefaultsContext) -> Defaults:
        base = super().defaults(context)
        return Defaults(train={**base.train, "learning_rate": 0.05}, head={"pooling": "mean"})

    def num_positions(self, data: Prepared) -> int:
        return 0

    def build(self, model: ModelConfig, head: HeadConfig) -> TrendClassifier:
        return TrendClassifier(model, len(self.label_codec))

    def collate(self, columns: Sequence[list[Any]], *, is_training: bool = False) -> SeriesBatch:
        series, labels = columns
        lengths = [len(some) for some in series]
        source = np.zeros((len(series), max(lengths)), np.int64)
        for row, some in zip(source, series, strict=True):
            row[: len(some)] = some
        return SeriesBatch(
            torch.from_numpy(source),
            torch.tensor(lengths),
            torch.tensor([int(some[0]) for some in labels]).clamp(max=len(self.label_codec) - 1),
            torch.ones(len(series)),
            len(series),
            sum(lengths),
        )

    def loss(self, model: Any, batch: SeriesBatch, objective: Objective = PLAIN) -> Tensor:
        logits = model(batch.source, batch.lengths)
        losses = F.cross_entropy(logits, batch.targets, reduction="none", label_smoothing=objective.label_smoothing)
        return (losses * batch.weights).sum()

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[Any], device: torch.device) -> Likelihoods:
        losses: list[float] = []
        for batch in batches:
            batch = to_device(batch, device)
            losses += F.cross_entropy(model(batch.source, batch.lengths), batch.targets, reduction="none").tolist()
        return Likelihoods(losses, [1] * len(losses))

    def outputs(self, model: Any, batch: SeriesBatch) -> list[list[float]]:
        return model(batch.source, batch.lengths).softmax(dim=-1).tolist()

    def prediction(self, text: str, output: list[float]) -> Prediction:
        probabilities = dict(zip(self.label_codec.labels, output, strict=True))
        label = max(probabilities, key=lambda each: probabilities[each])
        numbers = parse(text)
        return TrendPrediction(text, label, probabilities=probabilities, change=round(numbers[-1] - numbers[0], 6))

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def examples(self, data: EvaluationData) -> Examples:
        return Examples(
            outputs=[each.output for each in data.predictions],
            targets=[row[1] for row in data.rows],
            labels=tuple(self.label_codec.labels),
            extras={"changes": [parse(row[0])[-1] - parse(row[0])[0] for row in data.rows]},
        )

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        """With a plot of the first series, and a table of all of them: a section that regard has no word for."""
        both = list(zip(data.rows, data.predictions, strict=True))
        panels = [
            Panel(each.output, [Curve("series", list(range(len(parse(row[0])))), parse(row[0]))])
            for row, each in both[:2]
        ]
        section = Section(
            "Trends", "The first series.", Plot(panels, per_row=2), columns=("target", "prediction"),
            rows=[(row[1], each.output) for row, each in both], note="Each has a row.",
        )  # fmt: skip
        return replace(super().report(model, data), sections=[section])

    def forecast(
        self, model: Any, data: Any, *, horizon: int | None = None, encoding: str | None = None
    ) -> list[SeriesForecast]:
        """The last number again: enough for a capability that regard knows from its own task."""
        steps, last = horizon or 1, parse(Path(data).read_text().split("\t")[0])[-1]
        times = [str(step) for step in range(steps)]
        return [SeriesForecast("", "value", times, *([last + spread] * steps for spread in (0.0, -1.0, 1.0)))]

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        return ServerSchema(("series",), labels=tuple(self.label_codec.labels), output="label")


@dataclass(frozen=True)
class TrendPrediction(Prediction):
    """A label, with the change of the series that it is for."""

    change: float = 0.0


def _count_up(examples: Examples) -> Counts:
    outputs, _ = examples.require("outputs", "targets")
    return count_right([output == "up" for output in outputs])


def _count_monotone(examples: Examples) -> Counts:
    outputs, changes = examples.require("outputs", "changes")
    return count_right([(output == "up") == (change > 0) for output, change in zip(outputs, changes, strict=True)])


MONOTONE = Metric(name="monotone", label="Monotone", counter=_count_monotone, needs=("outputs", "changes"))
"""How often the label agrees with the sign of the change, which only this package puts into examples."""


SHARE_OF_UP = Metric(name="share_of_up", label="Share of up", counter=_count_up)
"""How often `up` is predicted."""


class TrendImporter:
    """Reads a bag of words with weights from a JSON file: `{"words": ..., "labels": ...}`."""

    name = "trend-json"
    description = "a JSON file whose name ends in .trend.json"

    def recognizes(self, path: Path) -> bool:
        return path.name.endswith(".trend.json")

    def read(self, path: Path) -> ImportedModel:
        from regard.models.family import read_model_config
        from regard.text.tokenizer import train_tokenizer

        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            words, labels = values["words"], values["labels"]
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{path} has no words and labels: {error}") from None
        tokenizer = train_tokenizer([" ".join(words)] * 2, "words", 1_000)
        config = read_model_config({"num_layers": 0, "model_dim": len(labels), "num_heads": 1, "positions": "none",
                                    "scale_embeddings": False})  # fmt: skip
        table = torch.zeros(tokenizer.vocab_size, len(labels))
        for word, weights in words.items():
            table[tokenizer.encode([word])[0][0]] = torch.tensor(weights)
        weights = {
            "body.embedding.weight": table,
            "head.output.weight": torch.eye(len(labels)),
            "head.output.bias": torch.zeros(len(labels)),
        }
        return ImportedModel(
            name=path.name,
            architecture="bag of words",
            content_hash="0" * 64,
            head="labels",
            model_type="bag",
            config=config,
            weights=weights,
            tokenizer=tokenizer,
            labels=tuple(labels),
            pooling="mean",
        )


TREND_JSON = TrendImporter()


def write_trend_json(model: ExportableModel, path: Path) -> str:
    table = model.body.embedding.weight
    words = {name: table[number].tolist() for number, name in enumerate(token_names(model.tokenizer)) if name.isalpha()}
    path.write_text(json.dumps({"labels": model.spec.labels, "words": words}), encoding="utf-8")
    return "bag of words"


def trend_json_outputs(model: ExportableModel, path: Path) -> tuple[Tensor, Tensor]:
    found = TREND_JSON.read(path)
    assert found.config is not None
    return model.outputs(model.rebuild(found.config, found.weights)), model.outputs()


TREND_JSON_EXPORTER = Exporter(name="trend-json", write=write_trend_json, outputs=trend_json_outputs, suffix=".json")


def toss(*, quick: bool, seed: int) -> Study:
    from matplotlib.figure import Figure

    heads = int(np.random.default_rng(seed).integers(2, size=100).sum())
    return Study(
        name="coin",
        title="A coin",
        question="How often does a coin show heads?",
        findings=[f"{heads} of 100 tosses show heads."],
        tables=[StudyTable(name="tosses", columns=["heads"], rows=[[heads]])],
        figure=Figure(),
        settings={},
    )


def generate_walks(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    rng = np.random.default_rng(seed)
    for _ in range(num_rows):
        is_up = bool(rng.integers(2))
        steps = rng.uniform(0.01, 0.1, int(rng.integers(3, 12))) * (1 if is_up else -1)
        yield " ".join(f"{number:.3f}" for number in 0.5 + np.cumsum(steps)), "up" if is_up else "down"


WALKS = BuiltinData(
    name="walks",
    description="series that increase or decrease",
    columns=("series", "label"),
    num_rows=300,
    tokenizer="",
    generate=generate_walks,
)


COIN = StudyEntry(
    name="coin", title="A coin", question="How often does a coin show heads?", function="regard_trends:toss"
)
