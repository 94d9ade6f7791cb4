"""Forecasting: the next steps of one or many series of numbers, with intervals.

A held-out row is a part of a series: its name, the time of its first step, and its values as text, which begin with the
steps that the first forecast is made from. It is evaluated from every origin, `task.stride` steps apart. A number of a
series is to it what a token is to a text: batch sizes and speed are counted in numbers.

Dimensions: `batch` windows, `time` steps that are read, `horizon` steps that are forecast, `columns` of numbers.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from regard.baselines.baseline import Baseline, BaselinePredictions
from regard.baselines.sequences import (
    PointForecast,
    SeriesBaseline,
    choose_weights,
    exponential_smoothing,
    seasonal_naive,
)
from regard.data.codecs.codec import Codec
from regard.data.codecs.series import SeriesCodec, format_values
from regard.data.formats.columns import is_identifier
from regard.data.formats.layouts import ReadOptions
from regard.data.formats.messages import format_column, format_count, format_names
from regard.data.formats.series import TIME_NAMES, Series, fill_forward, read_series, require_columns
from regard.data.formats.summary import ColumnSummary
from regard.data.prepare import Prepared
from regard.data.series_sources import SeriesSource, open_series, plan_series, prepare_series
from regard.data.settings import DataConfig
from regard.data.sources import Rows
from regard.data.stores.series import Segments, SeriesStore
from regard.errors import ConfigError, DataError
from regard.evaluation.examples import Examples
from regard.logging import format_duration, log_info, log_warning
from regard.models.family import ModelConfig
from regard.models.heads import HeadConfig
from regard.models.series import SeriesShape
from regard.tasks.capabilities import ExportGraph, SeriesForecast, forecast_plot
from regard.tasks.choices import Defaults, DefaultsContext
from regard.tasks.content import Prediction, ReportContent, Section, ServerSchema
from regard.tasks.detection import DetectionSummary
from regard.tasks.feature_tables import find_interactions
from regard.tasks.forecasting.linear import LinearForecast
from regard.tasks.forecasting.model import (
    ExportedForecaster,
    ForecastBatch,
    ForecastBatches,
    ForecastLikelihoods,
    ForecastOutput,
    ForecastSums,
    SeriesForecaster,
    conformal_margins,
    evaluation_batches,
    make_batch,
    quantile_losses,
)
from regard.tasks.task import PLAIN, ComparedRun, Detection, EvaluationData, Objective, Task, TaskSettings, to_device

SALES = ("date", "store", "sales")
"""The columns of the built-in data set."""
_TIME_NAMES = ("time", "timestamp", "ds")
"""A column of numbers with such a name is one of time."""
_FEWEST_YEARS, _MOSTLY = 10, 0.9
"""The fewest rows of a series of years, and the share of rows after the year before, or with a time of their own."""
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
_LEAST_GAIN = 0.02
"""Features of the calendar are used where they lower the validation error of a linear forecast by this share."""
_SAMPLED_COLUMNS = 4_096
"""Columns of windows on which that is found out."""
_NUMBERS_AT_ONCE = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Numbers that a forecast reads at once: hidden states of more are not in the cache of a CPU."""
_SOLVING_SECONDS = 60.0
_OPERATIONS_PER_SECOND = {"cpu": 1e10, "cuda": 1e13}
"""The approximate speed of the linear forecast's solver."""
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
    known: list[str] = Field(default_factory=list)
    """Covariates: columns whose values are known in advance, such as holidays. They are inputs, and not forecast."""
    static: list[str] = Field(default_factory=list)
    """Covariates with one value for each series. Columns of text that are constant in each series are inferred."""
    calendar: bool
    """Whether the time of day, the weekday and the time of the year are inputs. Unset: where a linear forecast of the
    validation part is better with them."""
    resample: str | None = None
    """A step such as `1 hour`, to which rows are averaged. Unset: rows must be whole numbers of steps apart."""
    linear: bool = True
    """Whether a linear forecast, which is solved exactly, is averaged with that of the network."""

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
    next_command = "forecast {run} FILE"
    output_description = "the next steps of each series, with intervals"
    default_preset = "patchtst"
    has_targets = False
    has_rows = False
    unit = "step"
    token_unit = "values"
    attention_kind = None
    objectives = frozenset()

    @classmethod
    def detect(cls, summary: DetectionSummary) -> Detection | None:
        if summary.names == SALES and not summary.columns:
            return Detection("daily sales of several stores", confidence=0.9)
        columns = summary.columns
        dates = [column for column in columns if column.kind == "dates"]
        times = dates or [column for column in columns if column.kind == "numbers" and _is_clock(column, columns)]
        kinds = [column.kind for column in columns]
        settings: dict[str, Any] = {}
        if not times and (year := _find_years(columns)) is not None:
            times, settings = [year], {"time_column": year.name}
        if find_interactions(columns) is not None or len(times) != 1 or "text" in kinds or "images" in kinds:
            return None
        numbers = [column for column in columns if column.kind == "numbers" and column is not times[0]]
        if not numbers or summary.columns_given == 1:
            return None
        time = times[0].name
        labels = [format_column(column.name) for column in columns if column.kind == "labels"]
        many = f", and labels ({format_names(labels)})" if labels else ""
        reason = f"{format_count(len(numbers), 'column')} of numbers over time ({time}){many}"
        # Of several columns of labels, all but one are covariates, or the table is another one.
        return Detection(reason, confidence=0.8 if kinds.count("labels") <= 1 else 0.6, settings=settings)

    @property
    def codec(self) -> SeriesCodec:
        codec = self.codecs.get("values")
        return codec if isinstance(codec, SeriesCodec) else SeriesCodec()

    # Data

    def open(self, config: DataConfig, rows: Rows | None = None) -> SeriesSource:  # pyright: ignore[reportIncompatibleMethodOverride]  series are not rows of a table
        settings = self.settings
        return open_series(
            config,
            rows,
            time_column=settings.time_column,
            id_column=settings.id_column,
            known=settings.known,
            static=settings.static,
            resample=settings.resample,
        )

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
        found = [(each.name, each.first, self.codec.text(each)) for each in table.series if len(each.values) >= window]
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
        names = ("time_column", "id_column", "known", "static", "resample")
        return {"task": self.name, **{name: getattr(self.settings, name) for name in names}}

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
        """The text of a part; with covariates that are known in advance, its last steps are those to forecast."""
        if not self.num_features:
            return row[-1]
        steps, codec = row[-1].split(), self.codec
        if any(not each.is_static for each in codec.covariates):
            blank = ["nan"] * len(codec.columns)
            future = [step.split(",")[len(blank) :] for step in steps[-codec.horizon :]]
            steps[-codec.horizon :] = [",".join([*blank, *step]) for step in future]
        return " ".join([f"@{row[1].replace(' ', 'T')}", *steps])

    @property
    def num_features(self) -> int:
        """Features of a step that are known in advance."""
        return self._num_features(self.codec)

    def _num_features(self, codec: SeriesCodec) -> int:
        return codec.num_features(has_calendar=bool(self.settings.calendar))

    # Settings

    def defaults(self, context: DefaultsContext) -> Defaults:
        codec = context.data.codecs["values"]
        assert isinstance(codec, SeriesCodec)
        num_windows = max(4, min(_BATCH_WINDOWS, _BATCH_SEQUENCES // len(codec.columns)))
        has_calendar, reasons = self.settings.calendar, {}
        if has_calendar is None:
            has_calendar, reason = self._choose_calendar(context.data)
            reasons = {"task.calendar": reason} if has_calendar else {}
        return Defaults(
            train={**_TRAIN_DEFAULTS, "batch_tokens": num_windows * codec.input_length * len(codec.columns)},
            task={"horizon": codec.horizon, "input_length": codec.input_length, "calendar": has_calendar},
            reasons=reasons,
        )

    def _choose_calendar(self, data: Prepared) -> tuple[bool, str]:
        """Whether a linear forecast of the validation part is better with features of the calendar, and why."""
        codec = self._codec_of(data)
        if not codec.calendar:
            return False, ""
        errors = []
        for num_features in (codec.num_covariate_features, codec.num_features(has_calendar=True)):
            shape = SeriesShape(codec.input_length, len(codec.columns), codec.horizon, num_features)
            train, valid = (
                partial(self._sampled_batches, store.segments, codec, num_features)
                for store in (data.train, data.valid)
            )
            with torch.device("cpu"):  # also where models are only counted, without memory
                errors.append(LinearForecast(shape).solve(train, valid))
        lower = 1 - errors[1] / errors[0] if errors[0] else 0.0
        return lower >= _LEAST_GAIN, f"true: the error of a linear forecast is {100 * lower:.0f} % lower with it"

    def _sampled_batches(self, segments: Segments, codec: SeriesCodec, num_features: int) -> Iterator[ForecastBatch]:
        """Windows at equal distances, few enough to be solved in a moment."""
        num_windows = len(segments.windows(codec.input_length + codec.horizon))
        stride = max(1, num_windows * len(codec.columns) // _SAMPLED_COLUMNS)
        return evaluation_batches(segments, codec, stride=stride, num_features=num_features)

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
        codec, settings = self.codec, self.settings
        shape = SeriesShape(codec.input_length, len(codec.columns), codec.horizon, self.num_features)
        return SeriesForecaster(
            model, shape, head, num_quantiles=len(settings.quantiles), has_linear=settings.linear
        )  # fmt: skip

    def batches(
        self, data: Prepared, *, batch_tokens: int, seed: int, has_fixed_shapes: bool = False
    ) -> ForecastBatches:
        assert isinstance(data.train, SeriesStore)
        codec = self._codec_of(data)
        return ForecastBatches(
            data.train.segments, codec, num_features=self._num_features(codec), batch_tokens=batch_tokens, seed=seed,
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
        stride *= max(1, -(-num_read // _MOST_VALIDATED))
        return evaluation_batches(
            data.valid.segments, codec, stride=stride, num_features=self._num_features(codec)
        )  # fmt: skip

    def row_batches(self, rows: Sequence[Sequence[str]]) -> Iterator[ForecastBatch]:
        return evaluation_batches(
            self._segments_of(rows), self.codec, stride=self.settings.stride, num_features=self.num_features
        )  # fmt: skip

    def _segments_of(self, rows: Sequence[Sequence[str]]) -> Segments:
        return Segments.join([self.codec.read(row[-1], row[1]) for row in rows])

    def loss(self, model: Any, batch: ForecastBatch, objective: Objective = PLAIN) -> Float[Tensor, ""]:
        """The squared error of the mean and the loss of the quantiles, summed over the known values."""
        return (self._losses(model(batch.values, batch.features), batch) * batch.known).sum()

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
            output = model(batch.values, batch.features)
            losses += (self._losses(output, batch) * batch.known).sum(dim=(1, 2)).tolist()
            counts += batch.known.sum(dim=(1, 2)).tolist()
            sums.add(batch, output)
        return ForecastLikelihoods(losses, counts, sums=sums.rows())

    def solve(self, model: Any, data: Prepared, *, seconds: float | None = None) -> bool:
        """Solve the linear forecast on windows of the training part, as many as the time allows."""
        if model.linear is None:
            return False
        assert isinstance(data.train, SeriesStore)
        codec, segments, device = self.codec, data.train.segments, model.margins.device
        window = codec.input_length + codec.horizon
        work = 2.0 * len(segments.windows(window)) * len(codec.columns) * codec.input_length * window
        allowed = min(_SOLVING_SECONDS, seconds or _SOLVING_SECONDS) * _OPERATIONS_PER_SECOND[device.type]
        stride = max(1, math.ceil(work / allowed))

        def train() -> Iterator[ForecastBatch]:
            batches = evaluation_batches(segments, codec, stride=stride, num_features=self.num_features)
            return (to_device(batch, device) for batch in batches)

        def valid() -> Iterator[ForecastBatch]:
            return (to_device(batch, device) for batch in self.validation_batches(data))

        began = time.perf_counter()
        error = model.linear.solve(train, valid)
        if math.isnan(error):
            log_warning("no linear forecast: in every window of the training part, too many values are missing")
            return False
        log_info(
            f"linear forecast: solved in {format_duration(time.perf_counter() - began)}, mean squared error on the "
            f"validation part {error:.4f}; it is averaged with the network's, with weights fitted there"
        )
        return True

    @torch.no_grad()
    def blend(self, model: Any, batches: Iterator[ForecastBatch], device: torch.device) -> None:
        """Fit the weights of the network and of the linear forecast, and calibrate the margins of the intervals."""
        found = [to_device(batch, device) for batch in batches]
        if model.linear is not None and model.linear.weight.any():
            points = [model.network(batch.values, batch.features)[..., 0] for batch in found]
            own = [model.linear(batch.values, batch.features) for batch in found]
            targets, known = (torch.cat([getattr(batch, name) for batch in found]) for name in ("targets", "known"))
            spans = torch.tensor([span for batch in found for span in batch.spans], device=device)
            model.linear.fit_weight(torch.cat(points), torch.cat(own), targets, known, spans)
        scores = []
        for batch in found:
            outside = model.conformal_scores(model(batch.values, batch.features), batch.values, batch.targets)
            scores.append(torch.where(batch.known, outside, torch.nan))
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
            extras={"forecasts": [list(each) for each in sums]},
            settings={"horizon": codec.horizon, "input": codec.input_length, "stride": self.settings.stride},
        )

    def predictor(self, model: Any, config: Any) -> "ForecastPredictor":
        return ForecastPredictor(self, model)

    def sources(self, rows: Sequence[Sequence[str]]) -> list[str]:
        return []

    def server_schema(self, rows: Sequence[Sequence[str]]) -> ServerSchema:
        columns = ",".join([*self.codec.columns, *(each.name for each in self.codec.covariates)])
        return ServerSchema(
            ("series",),
            placeholder=f"{self.codec.input_length} steps separated by spaces, each {columns}",
        )

    def forecast(
        self, model: Any, data: Any, *, horizon: int | None = None, encoding: str | None = None
    ) -> list[SeriesForecast]:
        """The continuation of each series of a table: of `horizon` steps, or of as many as in training."""
        codec, settings = self.codec, self.settings
        horizon = codec.horizon if horizon is None else horizon
        if horizon < 1:
            raise ConfigError(f"horizon must be at least 1, got {horizon}")
        table = read_series(
            data, time_column=settings.time_column, id_column=settings.id_column, clock=codec.clock,
            covariates=codec.covariates, resample=settings.resample, options=ReadOptions(encoding=encoding),
        )  # fmt: skip
        for inferred in table.inferred:
            log_info(inferred)
        table = require_columns(table, codec.columns, "the table")
        ends = [self._end_of(each) for each in table.series]
        pairs = list(zip(table.series, ends, strict=True))
        inputs = codec.standardize(np.stack([each.values[end - codec.input_length : end] for each, end in pairs]))
        features = None
        if self.num_features:
            features = np.stack([self._features_of(each, end, horizon) for each, end in pairs])
        if horizon > codec.horizon:
            log_warning(
                f"{horizon:,} steps are more than the {codec.horizon:,} that the model was trained for: later ones are "
                "forecast from forecasts, and their intervals are too narrow"
            )
        found = self.forecast_values(model, inputs, horizon, features)
        times: dict[tuple[str, int], list[str]] = {}
        return [
            each
            for number, (series, end) in enumerate(pairs)
            for each in self._of_series(series, end, [part[number] for part in found], horizon, times)
        ]

    def _end_of(self, series: Series) -> int:
        """The steps up to the last one that has a value; those after it are to be forecast."""
        length, known = self.codec.input_length, np.flatnonzero(series.observed.any(axis=1))
        end = int(known[-1]) + 1 if len(known) else 0
        if end < length:
            raise DataError(f"{_named(series)} has {end:,} steps, and a forecast is made from {length:,}")
        return end

    def _features_of(self, series: Series, end: int, horizon: int) -> NDArray[np.float32]:
        """The features of the steps that are read and of those to forecast, which must have all known covariates."""
        codec = self.codec
        for column, covariate in enumerate(codec.covariates):
            given = series.covariates[end : end + horizon, column]
            places = np.flatnonzero(~np.isfinite(given))
            missing = int(places[0]) if len(places) else len(given)
            if not covariate.is_static and missing < horizon:
                raise DataError(
                    f"{format_column(covariate.name)} is known in advance and has no value for "
                    f"{codec.clock.at(series.first, end + missing)}{' of ' + _named(series) if series.name else ''}: a "
                    f"forecast of {format_count(horizon, 'step')} needs a row for each, with its covariates"
                )
        first, last = end - codec.input_length, end + -(-horizon // codec.horizon) * codec.horizon
        covariates = np.full((last, len(codec.covariates)), np.nan)
        covariates[: min(last, end + horizon)] = _padded(series.covariates, min(last, end + horizon))
        features = codec.features(codec.clock.at(series.first, first), fill_forward(covariates)[first:])
        return features[:, : self.num_features]

    def _of_series(
        self, series: Series, end: int, parts: Sequence[NDArray], horizon: int, times: dict[tuple[str, int], list[str]]
    ) -> list[SeriesForecast]:
        """The forecasts of the columns of a series; `times` are those of the steps of series before it."""
        clock, num_past = self.codec.clock, min(end, _DRAWN_PAST * horizon)
        if (series.first, end) not in times:
            times[series.first, end] = [clock.at(series.first, step) for step in range(end - num_past, end + horizon)]
        steps = times[series.first, end]
        past = np.where(series.observed, series.values, np.nan)[end - num_past : end]
        return [
            SeriesForecast(
                series.name, name, steps[num_past:], *(part[:, column].tolist() for part in parts),
                past_times=steps[:num_past], past=_known(past[:, column]), coverage=self.settings.coverage,
            )
            for column, name in enumerate(self.codec.columns)
        ]  # fmt: skip

    @torch.inference_mode()
    def forecast_values(
        self, model: Any, values: Float[np.ndarray, "windows time columns"], horizon: int,
        features: Float[np.ndarray, "windows steps features"] | None = None,
    ) -> tuple[NDArray[np.float64], ...]:  # fmt: skip
        """The point, the lower and the upper end of each value, in the units of the data.

        `features` are of the steps that are read, and of as many horizons as are forecast.
        """
        device, length, step = next(model.parameters()).device, self.codec.input_length, self.codec.horizon
        found: list[list[Tensor]] = [[], [], []]
        at_once = max(1, _NUMBERS_AT_ONCE[device.type] // (length * values.shape[2]))
        for first in range(0, len(values), at_once):
            read = torch.from_numpy(values[first : first + at_once]).to(device)
            known = None if features is None else torch.from_numpy(features[first : first + at_once]).to(device)
            parts: list[list[Tensor]] = [[], [], []]
            for start in range(0, horizon, step):
                output = model(read, None if known is None else known[:, start : start + length + step])
                for part, each in zip(parts, (output.point, output.lower, output.upper), strict=True):
                    part.append(each)
                read = torch.cat([read, output.point.to(read.dtype)], dim=1)[:, -length:]
            for some, part in zip(found, parts, strict=True):
                some.append(torch.cat(part, dim=1)[:, :horizon].float().cpu())
        return tuple(self.codec.restore(torch.cat(some).numpy()) for some in found)

    def export_graph(self, model: Any, rows: Sequence[Sequence[str]]) -> ExportGraph:
        """The last steps of a series in, the forecast of all steps at once out."""
        codec, segments = self.codec, self._segments_of(rows)
        starts = segments.windows(codec.input_length + codec.horizon)
        examples = []
        for chosen in (starts[:3], starts[-1:], starts[:: max(1, len(starts) // 8)][:8]):
            batch = make_batch(segments, chosen, codec, num_features=self.num_features)
            inputs = {"values": torch.from_numpy(codec.restore(batch.values.numpy()).astype(np.float32))}
            inputs |= {} if batch.features is None else {"features": batch.features}
            features = None if batch.features is None else batch.features.numpy()
            found = self.forecast_values(model, batch.values.numpy(), codec.horizon, features)
            examples.append((inputs, tuple(torch.from_numpy(each) for each in found)))
        return ExportGraph(
            module=ExportedForecaster(model, codec.means, codec.stds),
            axes={name: {0: "batch"} for name in examples[0][0]},
            outputs=("point", "lower", "upper"),
            examples=examples,
            config={"columns": list(codec.columns), "input_length": codec.input_length, "horizon": codec.horizon,
                    "coverage": self.settings.coverage, "covariates": [each.name for each in codec.covariates],
                    "covariate_means": list(codec.covariate_means), "covariate_stds": list(codec.covariate_stds),
                    "calendar": list(codec.calendar) if self.settings.calendar else []},
        )  # fmt: skip

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
        candidates: dict[str, PointForecast] = {
            f"seasonal naive{season}": naive,
            f"exponential smoothing{season}": smooth,
        }
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
        for name in (
            "horizon",
            "input_length",
            "split_rows",
            "quantiles",
            "coverage",
            "stride",
            "known",
            "static",
            "calendar",
        ):
            if len({str(getattr(task.settings, name)) for task in tasks.values()}) > 1:
                raise ConfigError(f"models are compared on the same forecasts: task.{name} must be the same for all")
        super().check_comparison(tasks, data, config, batch_tokens=batch_tokens, sizes=sizes)

    def report(self, model: Any, data: EvaluationData) -> ReportContent:
        return ReportContent(
            samples=self.samples(model, data),
            facts=self.facts(),
            sections=[Section("Forecasts", plot=forecast_plot(self._drawn(model, data.rows)))],
        )

    def samples(self, model: Any, data: EvaluationData) -> list[dict[str, Any]]:
        return []

    def _drawn(self, model: Any, rows: Sequence[Sequence[str]]) -> list[SeriesForecast]:
        """Forecasts from a few origins, with what was observed after them."""
        codec, found = self.codec, []
        window = codec.input_length + codec.horizon
        for number in range(_NUM_DRAWN):
            row = rows[number % len(rows)]
            values, known, features = codec.read(row[-1], row[1])
            last = len(values) - window
            start = last * number // max(1, _NUM_DRAWN - 1)
            read = values[start : start + codec.input_length]
            some = features[None, start : start + window, : self.num_features] if self.num_features else None
            parts = [part[0] for part in self.forecast_values(model, read[None], codec.horizon, some)]
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
                    coverage=self.settings.coverage,
                )
            )
        return found


@dataclass(frozen=True)
class ForecastPrediction(Prediction):
    """A forecast as text, with its intervals."""

    lower: str = ""
    """The lower ends of the intervals, in the form of the output."""
    upper: str = ""


class ForecastPredictor:
    """Continues series that are given as text."""

    def __init__(self, task: Forecasting, model: Any) -> None:
        self._task, self._model = task, model

    def __call__(self, inputs: Sequence[str]) -> list[Prediction]:
        task, codec = self._task, self._task.codec
        windows = [self._window(text) for text in inputs]
        values = np.stack([values for values, _ in windows])
        features = np.stack([features for _, features in windows]) if task.num_features else None
        found = task.forecast_values(self._model, values, codec.horizon, features)
        texts = [[format_values(each, _DIGITS) for each in part] for part in found]
        return [
            ForecastPrediction(text, point, lower=lower, upper=upper)
            for text, point, lower, upper in zip(inputs, *texts, strict=True)
        ]

    def _window(self, text: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The steps that a forecast is made from, and the features of those and of the ones to forecast."""
        codec, num_features = self._task.codec, self._task.num_features
        if num_features and all(each.is_static for each in codec.covariates):
            text += f" {','.join(['nan'] * codec.num_numbers)}" * codec.horizon
        values, known, features = codec.read(text)
        end = int(np.flatnonzero(known.any(axis=1))[-1]) + 1 if num_features and known.any() else len(values)
        if end < codec.input_length:
            raise DataError(f"a forecast is made from {codec.input_length:,} steps, got {end:,}")
        features = features[end - codec.input_length : end + codec.horizon, :num_features]
        if num_features and len(features) < codec.input_length + codec.horizon:
            names = ", ".join(format_column(each.name) for each in codec.covariates if not each.is_static)
            raise DataError(
                f"a forecast needs {names} at each of the next {codec.horizon:,} steps, as steps with nan for the "
                f"columns, got {len(values) - end:,}"
            )
        if np.isnan(features).any():
            raise DataError(
                "the model reads the calendar: a text must begin with the time of its first step, such as "
                "@2024-05-31T12:00"
            )
        return values[end - codec.input_length : end], features


def _is_clock(time: ColumnSummary, columns: Sequence[ColumnSummary]) -> bool:
    """Whether a column of numbers has the name of one of time, and a series has one row at each.

    The rows of one time are distinguished by labels and identifiers; without them they are cases, as of survival data.
    """
    if time.name.strip().lower() not in _TIME_NAMES:
        return False
    keys = [time, *(column for column in columns if column.kind == "labels" or is_identifier(column.name))]
    keys = [column for column in keys if len(column.cells) == len(time.cells)]
    rows = set(zip(*(column.cells for column in keys), strict=True))
    return len(rows) >= _MOSTLY * len(time.cells)


def _find_years(columns: Sequence[ColumnSummary]) -> ColumnSummary | None:
    """A column of whole numbers with the name of a time, such as `year`, that ascend by one in each series."""
    labels = [column for column in columns if column.kind == "labels"]
    for column in columns:
        if column.kind != "numbers" or column.name.strip().lower() not in TIME_NAMES or len(labels) > 1:
            continue
        rows = len(column.cells)
        names = labels[0].cells if labels else ("",) * rows
        if rows < _FEWEST_YEARS or len(names) != rows or len(column.numbers) != rows:
            continue
        of_series: dict[str, list[float]] = {}
        for name, number in zip(names, column.numbers, strict=True):
            of_series.setdefault(name, []).append(number)
        steps = np.concatenate([np.diff(numbers) for numbers in of_series.values()])
        if len(steps) and (steps > 0).all() and (steps == 1).mean() >= _MOSTLY:
            return column
    return None


def _named(series: Series) -> str:
    return f"the series {series.name!r}" if series.name else "the series"


def _padded(rows: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """The first rows, and missing ones after the last."""
    return np.concatenate([rows[:length], np.full((max(0, length - len(rows)), rows.shape[1]), np.nan)])


def _known(values: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _sample_windows(segments: Segments, codec: SeriesCodec) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The inputs and targets of some windows, at equal distances."""
    starts = segments.windows(codec.input_length + codec.horizon)
    starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), _BASELINE_WINDOWS)).astype(np.int64)]
    windows = segments.values[starts[:, None] + np.arange(codec.input_length + codec.horizon)]
    return windows[:, : codec.input_length], windows[:, codec.input_length :]
