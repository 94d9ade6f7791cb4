"""Forecasting: the next steps of one or many series of numbers, with intervals.

A held-out row is a part of a series: its name, the time of its first step, and its values as text, which begin with the
steps that the first forecast is made from. It is evaluated from every origin, `task.stride` steps apart. A number of a
series is to it what a token is to a text: batch sizes and speed are counted in numbers.

Dimensions: `batch` windows, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.baselines.series import (
    Forecaster,
    SeriesBaseline,
    choose_weights,
    exponential_smoothing,
    seasonal_naive,
)
from regard.data.codecs.codec import Codec
from regard.data.codecs.series import SeriesCodec, format_values
from regard.data.formats.messages import format_count
from regard.data.formats.series import Series, read_series, require_columns
from regard.data.prepare import Prepared, prepare_series
from regard.data.series_sources import SeriesSource, open_series, plan_series
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.stores.series import Segments, SeriesStore
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.logging import log_info, log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.models.series import SeriesShape
from regard.tasks.detection import DetectionSummary
from regard.tasks.forecasting.model import ForecastOutput, SeriesForecaster, conformal_margins, quantile_losses
from regard.tasks.forecasting.windows import (
    ForecastBatch,
    ForecastBatches,
    ForecastLikelihoods,
    ForecastSums,
    evaluation_batches,
)
from regard.tasks.task import (
    PLAIN,
    ComparedRun,
    Defaults,
    DefaultsContext,
    Detection,
    EvaluationData,
    Objective,
    Prediction,
    ReportContent,
    SeriesForecast,
    ServerSchema,
    Task,
    TaskSettings,
    to_device,
)

SALES = ("date", "store", "sales")
"""The columns of the built-in data set."""
_TIME_NAMES = ("time", "timestamp", "ds")
"""A column of numbers with such a name is one of time."""
_DIGITS = 5
"""Significant digits of a forecast as text."""
_BATCH_WINDOWS, _BATCH_SEQUENCES = 128, 2_048
"""Windows of a batch; fewer where there are many columns."""
_MOST_VALIDATED = 1 << 15
"""Columns of windows that an evaluation during training reads: origins are further apart where there are more."""
_BASELINE_WINDOWS = 128
"""Windows of the training part that a baseline is fitted on."""
_NUM_DRAWN, _DRAWN_PAST = 4, 3
"""Forecasts that a report shows, and how many horizons of the past are drawn before one."""
_FEW_SPANS = 20
_TRAIN_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "label_smoothing": 0.0,
    "schedule": "cosine",
    "warmup_steps": 100,
    "beta2": 0.99,
    "weight_decay": 0.01,
    "ema_decay": 0.99,
}


class ForecastingSettings(TaskSettings):
    """Settings of forecasting."""

    name: str = "forecasting"
    horizon: int = Field(ge=1)
    """Steps that are forecast at once. Unset: 24 for hours, 14 for days, 12 for months, and so on."""
    input_length: int = Field(ge=2)
    """Steps that a forecast is made from. Unset: a quarter of the training part, at most 512."""
    quantiles: list[float] = Field(default_factory=lambda: [0.1, 0.5, 0.9], min_length=2)
    """Quantiles that are trained; intervals are between the first and the last."""
    coverage: float = Field(default=0.9, gt=0.0, lt=1.0)
    """The share of values that an interval should contain: margins are calibrated on the validation part."""
    stride: int = Field(default=1, ge=1)
    """The distance between origins of forecasts in evaluations."""
    split_rows: list[int] = Field(default_factory=list)
    """Steps of the training, the validation and the test part, from the first step on; the rest is not used. Unset:
    shares, by data.splits, or 70, 10 and 20 %."""
    time_column: str | None = None
    """The column of time. Unset: inferred and reported."""
    id_column: str | None = None
    """The column with the names of series. Unset: inferred and reported."""

    @model_validator(mode="after")
    def _quantiles_are_ascending(self) -> Self:
        if any(not 0 < each < 1 for each in self.quantiles) or sorted(set(self.quantiles)) != self.quantiles:
            raise ConfigError(f"task.quantiles must ascend between 0 and 1, got {self.quantiles}")
        if self.split_rows and (len(self.split_rows) != 3 or min(self.split_rows) < 0):
            raise ConfigError(f"task.split_rows must be three numbers of steps, got {self.split_rows}")
        return self


class Forecasting(Task[ForecastingSettings]):
    """Series of numbers, by an encoder of series."""

    name = "forecasting"
    description = "forecasting"
    other_names = ("forecast", "series", "time-series", "timeseries", "time-series-forecasting")
    Settings = ForecastingSettings
    roles = ("series", "start", "values")
    codec_types: Mapping[str, type[Codec]] = {"values": SeriesCodec}
    store_columns = ("values",)
    metrics = ("mse", "mae", "mase", "weighted_quantile_loss", "coverage")
    input_kind = "series"
    default_preset = "patchtst"
    has_targets = False
    unit = "step"
    attention_kind = None
    objectives = frozenset()

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.names == SALES and not summary.columns:
            return Detection("daily sales of several stores", confidence=0.9)
        columns = summary.columns
        dates = [column for column in columns if column.kind == "dates"]
        times = dates or [column for column in columns if column.kind == "numbers" and column.plain_name in _TIME_NAMES]
        kinds = [column.kind for column in columns]
        if len(times) != 1 or "text" in kinds or "images" in kinds or kinds.count("labels") > 1:
            return None
        numbers = [column for column in columns if column.kind == "numbers" and column is not times[0]]
        if not numbers or summary.columns_given == 1:
            return None
        time = times[0].name
        many = "" if "labels" not in kinds else ", for each of several series"
        return Detection(f"{format_count(len(numbers), 'column')} of numbers over time ({time}){many}", confidence=0.8)

    @property
    def codec(self) -> SeriesCodec:
        codec = self.codecs.get("values")
        return codec if isinstance(codec, SeriesCodec) else SeriesCodec()

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> SeriesSource:  # pyright: ignore[reportIncompatibleMethodOverride]  series are not rows of a table
        settings = self.settings
        return open_series(config, rows, time_column=settings.time_column, id_column=settings.id_column)

    def prepare(self, config: DataConfig, rows: Rows | None = None) -> Prepared[SeriesStore]:
        source, settings = self.open(config, rows), self.settings
        split = plan_series(
            source,
            config,
            horizon=settings.horizon,
            input_length=settings.input_length,
            split_rows=settings.split_rows,
        )
        return prepare_series(source, config, self, split)

    def read(self, config: DataConfig, rows: Rows | None = None) -> tuple[list[tuple[str, ...]], str]:
        """Whole series, which are evaluated from every origin that has enough steps before it."""
        source = self.open(config.changed(split_seed=config.split_seed), rows)
        for inferred in source.inferred:
            log_info(inferred)
        table = require_columns(source.train, self.codec.columns, "the table")
        self._require_clock(table.clock)
        window = self.codec.input_length + self.codec.horizon
        found = [_row_of(each) for each in table.series if len(each.values) >= window]
        if not found:
            raise DataError(
                f"an evaluation needs a series of at least {window:,} steps: {self.codec.input_length:,} that are "
                f"read and {self.codec.horizon:,} that are forecast; the longest has "
                f"{max(len(each.values) for each in table.series):,}"
            )
        return found, source.content_hash()

    def _require_clock(self, clock: Any) -> None:
        if clock != self.codec.clock:
            raise DataError(f"the model was trained on steps of {self.codec.clock}, and these are of {clock}")

    def cache_key(self) -> Mapping[str, Any]:
        return {"task": self.name, "time_column": self.settings.time_column, "id_column": self.settings.id_column}

    def notes(self) -> list[str]:
        codec = self.codec
        season = f"a season of {codec.season} steps" if codec.season > 1 else "no season"
        return [
            f"forecasts of {format_count(codec.horizon, 'step')} are made from {codec.input_length:,}; {season} is "
            "found in the training part"
        ]

    def facts(self) -> dict[str, str]:
        codec = self.codec
        return {
            "series": f"{format_count(len(codec.columns), 'column')}, a step of {codec.clock}",
            "forecast": f"{format_count(codec.horizon, 'step')} from {codec.input_length:,}",
        }

    def input_of(self, row: Sequence[str]) -> str:
        return row[-1]

    # Settings

    def defaults(self, context: DefaultsContext) -> Defaults:
        codec = context.data.codecs["values"]
        assert isinstance(codec, SeriesCodec)
        num_windows = max(4, min(_BATCH_WINDOWS, _BATCH_SEQUENCES // len(codec.columns)))
        return Defaults(
            train={**_TRAIN_DEFAULTS, "batch_tokens": num_windows * codec.input_length * len(codec.columns)},
            task={"horizon": codec.horizon, "input_length": codec.input_length},
        )

    def num_positions(self, data: Prepared) -> int:
        return 0  # positions are those of patches

    def with_stride(self, stride: int) -> Self:
        if stride < 1:
            raise ConfigError(f"stride must be at least 1, got {stride}")
        return type(self)(self.settings.changed(stride=stride), self.codecs)

    # Model and training

    def build(self, model: ModelConfig, head: HeadConfig) -> SeriesForecaster:
        if head.hidden_layer or head.pooling != "mean":
            raise ConfigError(
                "head.hidden_layer and head.pooling have no effect on forecasts, which read all positions"
            )
        shape = SeriesShape(self.codec.input_length, len(self.codec.columns))
        return SeriesForecaster(
            model, shape, head, horizon=self.codec.horizon, num_quantiles=len(self.settings.quantiles)
        )

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> ForecastBatches:
        assert isinstance(data.train, SeriesStore)
        return ForecastBatches(
            data.train.segments, self._codec_of(data), batch_tokens=batch_tokens, seed=seed,
            has_fixed_shapes=has_fixed_shapes,
        )  # fmt: skip

    def _codec_of(self, data: Prepared) -> SeriesCodec:
        """That of the data, since batches are also counted before the task has codecs."""
        codec = data.codecs["values"]
        assert isinstance(codec, SeriesCodec)
        return codec

    def validation_batches(self, data: Prepared) -> Iterator[ForecastBatch]:
        assert isinstance(data.valid, SeriesStore)
        codec, stride = self._codec_of(data), self.settings.stride
        num_read = len(data.valid.segments.windows(codec.input_length + codec.horizon, stride)) * len(codec.columns)
        return evaluation_batches(data.valid.segments, codec, stride=stride * max(1, -(-num_read // _MOST_VALIDATED)))

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[ForecastBatch]:
        return evaluation_batches(self._segments_of(rows), self.codec, stride=self.settings.stride)

    def _segments_of(self, rows: Sequence[Sequence[str]]) -> Segments:
        return Segments.join([self.codec.read(row[-1]) for row in rows])

    def loss(self, model: Any, batch: ForecastBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The squared error of the mean and the loss of the quantiles, summed over the known values."""
        return (self._losses(model(batch.values), batch) * batch.known).sum()

    def _losses(self, output: ForecastOutput, batch: ForecastBatch) -> Float[Tensor, "batch horizon columns"]:
        levels = torch.tensor(self.settings.quantiles, device=batch.targets.device, dtype=torch.float32)
        squares = (output.point - batch.targets).square()
        return squares + quantile_losses(output.quantiles, batch.targets, levels)

    @torch.no_grad()
    def likelihoods(self, model: Any, batches: Iterator[ForecastBatch], device: torch.device) -> ForecastLikelihoods:
        """The losses of windows, and the sums over their forecasts."""
        losses: list[float] = []
        counts: list[int] = []
        sums = ForecastSums(self.codec, self.settings.quantiles)
        for batch in batches:
            batch = to_device(batch, device)
            output = model(batch.values)
            losses += (self._losses(output, batch) * batch.known).sum(dim=(1, 2)).tolist()
            counts += batch.known.sum(dim=(1, 2)).tolist()
            sums.add(batch, output)
        return ForecastLikelihoods(losses, counts, sums=sums.rows())

    @torch.no_grad()
    def blend(self, model: Any, batches: Iterator[ForecastBatch], device: torch.device) -> None:
        """Calibrate the margins of the intervals on the validation part."""
        scores = []
        for batch in batches:
            batch = to_device(batch, device)
            found = model.conformal_scores(batch.values, batch.targets)
            scores.append(torch.where(batch.known, found, torch.nan))
        model.margins.copy_(conformal_margins(torch.cat(scores), self.settings.coverage))

    # Use

    def examples(self, data: EvaluationData) -> Examples:
        assert isinstance(data.likelihoods, ForecastLikelihoods)
        return self._examples(data.likelihoods.sums)

    def _examples(self, sums: Sequence[Sequence[float]]) -> Examples:
        if not sums:
            raise DataError("there is no known value to compare a forecast with")
        codec = self.codec
        return Examples(
            forecasts=[list(each) for each in sums],
            settings={"horizon": codec.horizon, "input": codec.input_length, "stride": self.settings.stride},
        )

    def predictor(self, model: Any, config: Any) -> "ForecastPredictor":
        return ForecastPredictor(self, model)

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        columns = ",".join(self.codec.columns)
        return ServerSchema(
            ("series",),
            placeholder=f"{self.codec.input_length} steps separated by spaces, each {columns}",
        )

    def forecast(self, model: Any, data: Any, *, horizon: int | None = None) -> list[SeriesForecast]:
        """The continuation of each series of a table: of `horizon` steps, or of as many as in training."""
        codec, settings = self.codec, self.settings
        horizon = codec.horizon if horizon is None else horizon
        if horizon < 1:
            raise ConfigError(f"horizon must be at least 1, got {horizon}")
        table = read_series(
            data, time_column=settings.time_column, id_column=settings.id_column, clock=codec.clock
        )  # fmt: skip
        for inferred in table.inferred:
            log_info(inferred)
        table = require_columns(table, codec.columns, "the table")
        inputs = [self._last_steps(each) for each in table.series]
        if horizon > codec.horizon:
            log_warning(
                f"{horizon:,} steps are more than the {codec.horizon:,} that the model was trained for: later ones are "
                "forecast from forecasts, and their intervals are too narrow"
            )
        found = self.forecast_values(model, np.stack(inputs), horizon)
        return [
            each
            for number, series in enumerate(table.series)
            for each in self._of_series(series, [part[number] for part in found], horizon)
        ]

    def _last_steps(self, series: Series) -> NDArray[np.float32]:
        length = self.codec.input_length
        if len(series.values) < length:
            name = f"the series {series.name!r}" if series.name else "the series"
            raise DataError(f"{name} has {len(series.values):,} steps, and a forecast is made from {length:,}")
        return self.codec.standardize(series.values[-length:])

    def _of_series(self, series: Series, parts: Sequence[NDArray], horizon: int) -> list[SeriesForecast]:
        clock, length = self.codec.clock, len(series.values)
        times = clock.after(clock.at(series.first, length - 1), horizon)
        num_past = min(length, _DRAWN_PAST * horizon)
        past = np.where(series.observed, series.values, np.nan)[length - num_past :]
        past_times = [clock.at(series.first, step) for step in range(length - num_past, length)]
        return [
            SeriesForecast(
                series.name, name, times, *(part[:, column].tolist() for part in parts),
                past_times=past_times, past=_known(past[:, column]),
            )
            for column, name in enumerate(self.codec.columns)
        ]  # fmt: skip

    @torch.inference_mode()
    def forecast_values(
        self, model: Any, values: Float[np.ndarray, "windows time columns"], horizon: int
    ) -> tuple[NDArray[np.float64], ...]:
        """The point, the lower and the upper end of each value, in the units of the data."""
        device = next(model.parameters()).device
        steps = -(-horizon // self.codec.horizon)
        found: list[list[Tensor]] = [[], [], []]
        at_once = max(1, (1 << 20) // (self.codec.input_length * values.shape[2]))
        for first in range(0, len(values), at_once):
            read = torch.from_numpy(values[first : first + at_once]).to(device)
            parts: list[list[Tensor]] = [[], [], []]
            for _ in range(steps):
                output = model(read)
                for part, each in zip(parts, (output.point, output.lower, output.upper), strict=True):
                    part.append(each)
                read = torch.cat([read, output.point.to(read.dtype)], dim=1)[:, -self.codec.input_length :]
            for some, part in zip(found, parts, strict=True):
                some.append(torch.cat(part, dim=1)[:, :horizon].float().cpu())
        return tuple(self.codec.restore(torch.cat(some).numpy()) for some in found)

    # The baseline

    def baseline(self, data: Prepared) -> Baseline:
        """The better of two on the validation part: the seasonal naive forecast, and exponential smoothing."""
        assert isinstance(data.train, SeriesStore)
        assert isinstance(data.valid, SeriesStore)
        codec = self.codec
        values, targets = _sample_windows(data.train.segments, codec)
        weights = choose_weights(values, targets, season=codec.season)

        def naive(read: NDArray) -> NDArray:
            return seasonal_naive(read, horizon=codec.horizon, season=codec.season)

        def smooth(read: NDArray) -> NDArray:
            return exponential_smoothing(read, weights, horizon=codec.horizon, season=codec.season)

        season = f", a season of {codec.season} steps" if codec.season > 1 else ""
        candidates: dict[str, Forecaster] = {f"seasonal naive{season}": naive, f"exponential smoothing{season}": smooth}
        if not season:
            candidates = {"the last value": naive, "exponential smoothing": smooth}
        valid_values, valid_targets = _sample_windows(data.valid.segments, codec)
        name = min(candidates, key=lambda name: float(((candidates[name](valid_values) - valid_targets) ** 2).mean()))
        forecast = candidates[name]

        def predict(inputs: Sequence[str]) -> BaselinePredictions:
            read = np.stack([codec.read(text)[0][-codec.input_length :] for text in inputs])
            found = codec.restore(forecast(read))
            return BaselinePredictions(outputs=[format_values(each, _DIGITS) for each in found])

        return SeriesBaseline(
            name=name, predict=predict, forecast=forecast, residuals=targets - forecast(values), unit="steps"
        )  # fmt: skip

    def baseline_examples(self, baseline: Baseline, rows: Sequence[Sequence[str]]) -> Examples:
        """Its quantiles and intervals are its point and quantiles of its residuals."""
        assert isinstance(baseline, SeriesBaseline)
        tails = [(1 - self.settings.coverage) / 2, (1 + self.settings.coverage) / 2]
        levels = [*self.settings.quantiles, *tails]
        quantiles = torch.from_numpy(np.quantile(baseline.residuals, levels, axis=0)).float().permute(1, 2, 0)
        sums = ForecastSums(self.codec, self.settings.quantiles)
        for batch in self.row_batches(rows):
            point = torch.from_numpy(baseline.forecast(batch.values.numpy())).float()
            found = point[..., None] + quantiles
            sums.add(batch, ForecastOutput(point, found[..., :-2], found[..., -2], found[..., -1]))
        return self._examples(sums.rows())

    def comparison_notes(self, runs: Sequence[ComparedRun]) -> list[str]:
        (spans,) = runs[0].examples.require("forecasts")
        notes = [
            f"scores are on the {runs[0].role} part, from every origin; intervals and tests are over "
            f"{format_count(len(spans), 'span')} of {format_count(self.codec.horizon, 'origin')}"
        ]
        return notes if len(spans) >= _FEW_SPANS else [*notes, f"{len(spans)} spans are few: intervals are too narrow"]

    def check_comparison(
        self, tasks: Mapping[str, Any], data: Prepared, config: DataConfig, *, batch_tokens: int,
        sizes: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Raise where models would be evaluated on different forecasts."""
        for name in ("horizon", "input_length", "split_rows", "quantiles", "coverage", "stride"):
            if len({str(getattr(task.settings, name)) for task in tasks.values()}) > 1:
                raise ConfigError(f"models are compared on the same forecasts: task.{name} must be the same for all")
        super().check_comparison(tasks, data, config, batch_tokens=batch_tokens, sizes=sizes)

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        return ReportContent(
            samples=self.samples(model, data),
            facts=self.facts(),
            forecasts=self._drawn(model, data.rows),
            coverage=self.settings.coverage,
        )

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        return []

    def _drawn(self, model: Any, rows: Sequence[Sequence[str]]) -> list[SeriesForecast]:
        """Forecasts from a few origins, with what was observed after them."""
        codec, found = self.codec, []
        window = codec.input_length + codec.horizon
        for number in range(_NUM_DRAWN):
            row = rows[number % len(rows)]
            values, known = codec.read(row[-1])
            last = len(values) - window
            start = last * number // max(1, _NUM_DRAWN - 1)
            read = values[start : start + codec.input_length]
            parts = [part[0] for part in self.forecast_values(model, read[None], codec.horizon)]
            origin = start + codec.input_length
            num_past = min(codec.input_length, _DRAWN_PAST * codec.horizon)
            actual = np.where(known, codec.restore(values), np.nan)
            column = number % len(codec.columns)
            found.append(
                SeriesForecast(
                    row[0],
                    codec.columns[column],
                    codec.clock.after(codec.clock.at(row[1], origin - 1), codec.horizon),
                    *(part[:, column].tolist() for part in parts),
                    past_times=[codec.clock.at(row[1], step) for step in range(origin - num_past, origin)],
                    past=_known(actual[origin - num_past : origin, column]),
                    actual=_known(actual[origin : origin + codec.horizon, column]),
                )
            )
        return found


class ForecastPredictor:
    """Continues series that are given as text."""

    def __init__(self, task: Forecasting, model: Any) -> None:
        self._task, self._model = task, model

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        codec = self._task.codec
        read = []
        for text in inputs:
            values, _ = codec.read(text)
            if len(values) < codec.input_length:
                raise DataError(f"a forecast is made from {codec.input_length:,} steps, got {len(values):,}")
            read.append(values[-codec.input_length :])
        found = self._task.forecast_values(self._model, np.stack(read), codec.horizon)
        texts = [[format_values(each, _DIGITS) for each in part] for part in found]
        return [
            Prediction(text, point, lower=lower, upper=upper)
            for text, point, lower, upper in zip(inputs, *texts, strict=True)
        ]


def _row_of(series: Series) -> tuple[str, str, str]:
    return series.name, series.first, format_values(np.where(series.observed, series.values, np.nan))


def _known(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _sample_windows(segments: Segments, codec: SeriesCodec) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The inputs and targets of some windows, at equal distances."""
    starts = segments.windows(codec.input_length + codec.horizon)
    starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), _BASELINE_WINDOWS)).astype(np.int64)]
    windows = segments.values[starts[:, None] + np.arange(codec.input_length + codec.horizon)]
    return windows[:, : codec.input_length], windows[:, codec.input_length :]
