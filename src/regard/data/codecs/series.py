r"""Series of numbers, standardized by the mean and standard deviation that each column has in the training part.

The text of a series has its steps in order, separated by spaces, and within a step a number for each column, separated
by commas: `1.5,20 1.7,21 nan,19`. A missing number is `nan`.

Dimensions: `time` steps, `columns` of numbers.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec
from regard.data.formats.messages import format_column
from regard.data.formats.series import Clock, SeriesTable, fill_forward
from regard.errors import DataError

SEASONS = (24, 7, 12, 168, 4, 52, 48, 96, 144, 288, 365, 672, 1_440)
"""Lengths of seasons: a day, a week and a year, in steps of minutes to quarters."""
_LEAST_CORRELATION = 0.3
"""A season has at least this autocorrelation, after differencing."""
_NEARLY = 0.9


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
        return cls(
            columns=table.columns,
            means=tuple(means),
            stds=tuple(stds),
            scales=tuple(_scale(scaled, season).tolist()),
            season=season,
            clock=table.clock,
            input_length=input_length,
            horizon=horizon,
        )

    def standardize(self, values: Float[np.ndarray, "time columns"]) -> Float[np.ndarray, "time columns"]:
        """Standardized values; the mean where nothing is known yet."""
        return np.nan_to_num((values - np.array(self.means)) / np.array(self.stds), nan=0.0).astype(np.float32)

    def restore(self, values: NDArray) -> NDArray[np.float64]:
        """The inverse of `standardize`, where columns are the last dimension."""
        return values.astype(np.float64) * np.array(self.stds) + np.array(self.means)

    def read(self, text: str) -> tuple[Float[np.ndarray, "time columns"], Bool[np.ndarray, "time columns"]]:
        """The standardized values of a text, and which of them are known."""
        values = parse_values(text, len(self.columns))
        return self.standardize(fill_forward(values)), np.isfinite(values)

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        """The bytes of the numbers as float32, step by step."""
        return [list(parse_values(value, len(self.columns)).astype(np.float32).tobytes()) for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        arrays = (np.frombuffer(bytes(some), np.float32).reshape(-1, len(self.columns)) for some in ids)
        return [format_values(array) for array in arrays]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        lists = {name: tuple(found[name]) for name in ("columns", "means", "stds", "scales")}
        return cls(**{**found, **lists, "clock": Clock(**found["clock"])})


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
