r"""Metrics of forecasts: squared and absolute errors, scaled errors, the quantile loss, the coverage of intervals.

Forecasts from successive origins overlap, and their errors are not independent: an example is a span of origins, and
has the sums of the errors of all forecasts from there.

Hyndman and Koehler, "Another look at measures of forecast accuracy" (2006): MASE.
Koenker and Bassett, "Regression Quantiles" (1978): the quantile loss
$\rho_\tau(e) = \max(\tau e, (\tau - 1) e)$ of an error $e = y - \hat y$.

Dimensions: `examples` spans of origins, `sums` over the forecasts of each.
"""

from collections.abc import Callable

import numpy as np

from regard.errors import DataError
from regard.evaluation.counts import Counts, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric

SUMS = ("count", "squared", "absolute", "scaled", "quantile", "magnitude", "covered")
"""Sums over the values of a span: their number; squared and absolute errors of standardized values; absolute errors in
units of the seasonal difference; twice the quantile loss, its mean over quantiles, and absolute values, both in the
units of the data; and how many are in their intervals."""
_NEEDS = ("forecasts",)


def _ratio_of(numerator: str, denominator: str = "count") -> Callable[[Examples], Counts]:
    """Counts of one sum divided by another."""

    def count(examples: Examples) -> Counts:
        (forecasts,) = examples.require(*_NEEDS)
        sums = np.asarray(forecasts, np.float64)
        if sums.ndim != 2 or sums.shape[1] != len(SUMS):
            raise DataError(
                f"forecasts must have {len(SUMS)} sums each ({', '.join(SUMS)}), got the shape {sums.shape}"
            )
        columns = [SUMS.index(numerator), SUMS.index(denominator)]
        return Counts(statistics=sums[:, columns], compute=ratio)

    return count


MSE = Metric(
    name="mse",
    label="MSE",
    counter=_ratio_of("squared"),
    needs=_NEEDS,
    higher_is_better=False,
    digits=4,
)
"""The mean squared error of standardized values."""
MAE = Metric(
    name="mae",
    label="MAE",
    counter=_ratio_of("absolute"),
    needs=_NEEDS,
    higher_is_better=False,
    digits=4,
)
"""The mean absolute error of standardized values."""
MASE = Metric(
    name="mase",
    label="MASE",
    counter=_ratio_of("scaled"),
    needs=_NEEDS,
    higher_is_better=False,
)
"""The mean absolute error in units of that of the seasonal naive forecast of one step on the training part."""
WEIGHTED_QUANTILE_LOSS = Metric(
    name="weighted_quantile_loss",
    label="Weighted quantile loss",
    counter=_ratio_of("quantile", "magnitude"),
    needs=_NEEDS,
    higher_is_better=False,
)
"""Twice the quantile loss, summed over all values and divided by the sum of their absolute values."""
COVERAGE = Metric(name="coverage", label="Coverage", counter=_ratio_of("covered"), needs=_NEEDS)
"""The share of values that are in their intervals."""
