r"""Series of numbers, standardized by the mean and standard deviation that each column has in the training part.

The text of a series has its steps in order, separated by spaces, and within a step a number for each column and for
each covariate, separated by commas: `1.5,20 1.7,21 nan,19`. A missing number is `nan`, a category is its place among
the categories, and the time of the first step may precede: `@2024-05-31T12:00 1.5,20 1.7,21`.

Covariates become features: numbers are standardized, and a category that occurs in the training part is 1 where it
applies. Features of the calendar follow them: the weekday, and waves with the periods of a day and of a year.

Dimensions: `time` steps, `columns` of numbers, `covariates`, `features`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec, checked_codec
from regard.data.formats.cells import parse_timestamp
from regard.data.formats.messages import format_column
from regard.data.formats.series import Clock, Covariate, Series, SeriesTable, fill_forward
from regard.data.stores.series import Segment
from regard.errors import DataError
from regard.files import load_json

SEASONS = (24, 7, 12, 168, 4, 52, 48, 96, 144, 288, 365, 672, 1_440)
"""Lengths of seasons: a day, a week and a year, in steps of minutes to quarters."""
_LEAST_CORRELATION = 0.3
"""A season has at least this autocorrelation, after differencing."""
_NEARLY = 0.9
_DAY, _WEEK, _YEAR = 86_400.0, 7 * 86_400.0, 365.2425 * 86_400.0
_MONDAY = 4 * _DAY
"""The first Monday of 1970, in seconds."""
_HARMONICS = {"day": 3, "week": 0, "year": 2}
"""Waves of a period: with so many times its frequency at most. There are none for a week, which has weekdays."""
_FEWEST_PERIODS = 2
"""The training part must have so many days, weeks or years, for features of each to be learned."""


@dataclass(frozen=True)
class SeriesCodec(Codec):
    """What is known of the columns by the training part, and the lengths of a window."""

    columns: tuple[str, ...] = ()
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    """The mean absolute difference between values a season apart, standardized: the unit of MASE."""
    season: int = 1
    """Steps of a season; 1 for none."""
    clock: Clock = field(default_factory=lambda: Clock("numbers", 1.0))
    input_length: int = 1
    """Steps that a forecast is made from."""
    horizon: int = 1
    """Steps that are forecast at once."""
    covariates: tuple[Covariate, ...] = ()
    covariate_means: tuple[float, ...] = ()
    covariate_stds: tuple[float, ...] = ()
    """Standard deviations of the numeric covariates."""
    categories_seen: tuple[tuple[int, ...], ...] = ()
    """For each covariate with categories, those that occur in the training part."""
    calendar: tuple[str, ...] = ()
    """Periods that the training part has several of, and that are longer than a step: day, week and year."""

    @property
    def num_covariate_features(self) -> int:
        """Features of covariates, before those of the calendar."""
        parts = zip(self.covariates, self.categories_seen, strict=True)
        return sum(len(seen) if each.categories else 1 for each, seen in parts)

    def num_features(self, *, has_calendar: bool) -> int:
        """Features of covariates and, with `has_calendar`, of the calendar."""
        waves = sum(7 if name == "week" else 2 * _HARMONICS[name] for name in self.calendar)
        return self.num_covariate_features + (waves if has_calendar else 0)

    @classmethod
    def fit(cls, table: SeriesTable, *, start: int, end: int, input_length: int, horizon: int) -> Self:
        """Compute statistics of the steps from `start` to `end`."""
        spans = [slice(max(0, start - each.start), max(0, end - each.start)) for each in table.series]
        parts = [(each.values[span], each.observed[span]) for each, span in zip(table.series, spans, strict=True)]
        parts = [(values, observed) for values, observed in parts if len(values)]
        means, stds = [], []
        for column, name in enumerate(table.columns):
            known = np.concatenate([values[observed[:, column], column] for values, observed in parts])
            if not len(known) or np.ptp(known) == 0:
                what = f"is always {known[0]:g}" if len(known) else "has no values"
                raise DataError(
                    f"{format_column(name)} {what} in the training part, so there is nothing to learn: leave it out"
                )
            means.append(float(known.mean()))
            stds.append(float(known.std()))
        scaled = [(values - means) / stds for values, _ in parts]
        season = find_season(scaled)
        inputs = np.concatenate([each.covariates[span] for each, span in zip(table.series, spans, strict=True)])
        statistics = [_statistics(inputs[:, column], each) for column, each in enumerate(table.covariates)]
        return cls(
            columns=table.columns,
            means=tuple(means),
            stds=tuple(stds),
            scales=tuple(_scale(scaled, season).tolist()),
            season=season,
            clock=table.clock,
            input_length=input_length,
            horizon=horizon,
            covariates=table.covariates,
            covariate_means=tuple(mean for mean, _, _ in statistics),
            covariate_stds=tuple(std for _, std, _ in statistics),
            categories_seen=tuple(seen for _, _, seen in statistics),
            calendar=_periods(table.clock, max(len(values) for values, _ in parts)),
        )

    def features(
        self, first: str | None, covariates: Float[np.ndarray, "time covariates"]
    ) -> Float[np.ndarray, "time features"]:
        """The features of steps from `first` on; those of the calendar are NaN where the time is not known."""
        parts: list[NDArray[Any]] = []
        filled = fill_forward(covariates)
        for column, (each, seen) in enumerate(zip(self.covariates, self.categories_seen, strict=True)):
            values = filled[:, column]
            if each.categories:
                parts += [values == place for place in seen]
            else:
                parts.append(np.nan_to_num((values - self.covariate_means[column]) / self.covariate_stds[column]))
        parts += self._calendar_features(first, len(covariates))
        return np.stack(parts, axis=1).astype(np.float32) if parts else np.empty((len(covariates), 0), np.float32)

    def _calendar_features(self, first: str | None, length: int) -> list[NDArray[Any]]:
        """Features of each period of the calendar."""
        if not self.calendar:
            return []
        moment = None if first is None else parse_timestamp(first)
        if moment is None:
            missing = self.num_features(has_calendar=True) - self.num_covariate_features
            return [np.full(length, np.nan)] * missing
        size = self.clock.size * (_YEAR / 12 if self.clock.unit == "months" else 1.0)
        times, found = moment.value + size * np.arange(length), []
        for name in self.calendar:
            if name == "week":
                weekdays = np.floor((times - _MONDAY) % _WEEK / _DAY)
                found += [weekdays == day for day in range(7)]
            for harmonic in range(1, _HARMONICS[name] + 1):
                phases = 2 * np.pi * harmonic * times / (_DAY if name == "day" else _YEAR)
                found += [np.sin(phases), np.cos(phases)]
        return found

    def segment(self, series: Series) -> Segment:
        """The arrays of a series; its gaps are filled again, so that a part and its text have the same values."""
        values = np.where(series.observed, series.values, np.nan)
        return self.standardize(fill_forward(values)), series.observed, self.features(series.first, series.covariates)

    def text(self, series: Series, digits: int = 9) -> str:
        """The text of a series."""
        values = np.where(series.observed, series.values, np.nan)
        return format_values(np.concatenate([values, series.covariates], axis=1), digits)

    def standardize(self, values: Float[np.ndarray, "time columns"]) -> Float[np.ndarray, "time columns"]:
        """Standardized values; the mean where nothing is known yet."""
        return np.nan_to_num((values - np.array(self.means)) / np.array(self.stds), nan=0.0).astype(np.float32)

    def restore(self, values: NDArray) -> NDArray[np.float64]:
        """The inverse of `standardize`, where columns are the last dimension."""
        return values.astype(np.float64) * np.array(self.stds) + np.array(self.means)

    def read(self, text: str, first: str | None = None) -> Segment:
        """The standardized values of a text, which of them are known, and the features of its steps."""
        if text.lstrip().startswith("@"):
            first, _, text = text.lstrip()[1:].partition(" ")
            if parse_timestamp(first) is None:
                raise DataError(f"a text that begins with @ must have the time of its first step there, got {first!r}")
        numbers = parse_values(text, self.num_numbers)
        values, covariates = numbers[:, : len(self.columns)], numbers[:, len(self.columns) :]
        return self.standardize(fill_forward(values)), np.isfinite(values), self.features(first, covariates)

    @property
    def num_numbers(self) -> int:
        """Numbers of each step in a text."""
        return len(self.columns) + len(self.covariates)

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """The bytes of the numbers as float32, step by step."""
        return [list(parse_values(value, self.num_numbers).astype(np.float32).tobytes()) for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        arrays = (np.frombuffer(bytes(some), np.float32).reshape(-1, self.num_numbers) for some in ids)
        return [format_values(array) for array in arrays]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = load_json(text)
        covariates = ("covariates", "covariate_means", "covariate_stds", "categories_seen")
        return checked_codec(cls, found, (("columns", "means", "stds", "scales"), covariates))


def parse_values(text: str, num_columns: int) -> Float[np.ndarray, "time columns"]:
    """The numbers of a text.

    Example:
        >>> parse_values("1,2 3,nan", 2).tolist()
        [[1.0, 2.0], [3.0, nan]]
    """
    steps = [step.split(",") for step in text.split()]
    if wrong := next((step for step in steps if len(step) != num_columns), None):
        raise DataError(
            f"a step of the series must have a number for each of the {num_columns} columns, separated by commas, "
            f"got {','.join(wrong)!r}"
        )
    try:
        return np.array(steps, np.float64).reshape(-1, num_columns)
    except ValueError:
        raise DataError(f"a series must be numbers separated by spaces, got {text[:60]!r}") from None


def format_values(values: Float[np.ndarray, "time columns"], digits: int = 9) -> str:
    """The text of an array."""
    return " ".join(",".join(f"{number:.{digits}g}" for number in step) for step in values)


def find_season(series: Sequence[Float[np.ndarray, "time columns"]]) -> int:
    """The length of the season with the highest mean autocorrelation of first differences; 1 where all are low.

    Example:
        >>> find_season([np.sin(np.arange(200) * 2 * np.pi / 7)[:, None]])
        7
    """
    found: dict[int, float] = {}
    for season in SEASONS:
        pairs = []
        for values in series:
            steps = np.diff(values, axis=0)
            steps = np.where(np.isfinite(steps), steps, 0.0)
            if len(steps) >= 3 * season:
                steps = steps - steps.mean(axis=0)
                variance = (steps * steps).mean(axis=0)
                products = (steps[season:] * steps[:-season]).mean(axis=0)
                pairs.append(products / np.where(variance == 0, 1.0, variance))
        if pairs:
            found[season] = float(np.mean(pairs))
    highest = max(found.values(), default=0.0)
    # Multiples of a season correlate as much as the season itself.
    alike = [season for season, value in found.items() if value >= _NEARLY * highest]
    return min(alike) if highest >= _LEAST_CORRELATION else 1


def _scale(series: Sequence[Float[np.ndarray, "time columns"]], season: int) -> NDArray[np.float64]:
    differences = [np.abs(values[season:] - values[:-season]) for values in series if len(values) > season]
    if not differences:
        return np.ones(series[0].shape[1])
    found = np.nanmean(np.concatenate(differences), axis=0)
    return np.where(found > 0, found, 1.0)


def _statistics(values: NDArray[np.float64], covariate: Covariate) -> tuple[float, float, tuple[int, ...]]:
    """The mean, the standard deviation and the categories of a covariate in the training part."""
    known = values[np.isfinite(values)]
    if covariate.categories:
        return 0.0, 1.0, tuple(int(place) for place in np.unique(known))
    if not len(known):
        raise DataError(f"the covariate {format_column(covariate.name)} has no values in the training part")
    return float(known.mean()), float(known.std()) or 1.0, ()


def _periods(clock: Clock, num_steps: int) -> tuple[str, ...]:
    """The periods of the calendar that are longer than a step, and that a series of this length has several of."""
    if clock.unit == "numbers":
        return ()
    size = clock.size * (_YEAR / 12 if clock.unit == "months" else 1.0)
    periods = {"day": _DAY, "week": _WEEK, "year": _YEAR}
    longest = {"day": _DAY / 2, "week": _DAY, "year": _YEAR / 2}
    return tuple(
        name
        for name, period in periods.items()
        if size <= longest[name] and num_steps * size >= _FEWEST_PERIODS * period
    )
