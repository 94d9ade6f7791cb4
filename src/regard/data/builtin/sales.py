r"""Sales of a few stores: daily series of a known process, so that the best possible score is known.

$$ y_{s,t} = a_s (1 + b_s t / 365 + 0.25 \sin(2 \pi (t + c_s) / 365)) w_{t \bmod 7} + \epsilon, \quad
   \epsilon \sim N(0, \sigma^2) $$

Everything but the noise can be learned: no forecast has a smaller expected squared error than $\sigma^2$.
"""

import math
from collections.abc import Iterator
from datetime import date, timedelta

from regard.data.builtin import BuiltinData

NOISE = 6.0
"""The standard deviation of the noise."""
STORES = ("north", "east", "south", "west")
_FIRST = date(2021, 1, 1)
_WEEK = (0.8, 0.75, 0.8, 0.9, 1.15, 1.5, 1.1)


def generate_sales(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of a date, a store and its sales, day by day.

    Example:
        >>> next(generate_sales(1, 0))
        ('2021-01-01', 'north', '93.01')
    """
    import numpy as np

    for store, day, mean in _means(num_rows, seed):
        noise = np.random.default_rng([seed, day, STORES.index(store)]).normal()
        yield str(_FIRST + timedelta(days=day)), store, f"{mean + NOISE * noise:.2f}"


def _means(num_rows: int, seed: int) -> Iterator[tuple[str, int, float]]:
    """The expected sales of each row."""
    import numpy as np

    rng = np.random.default_rng(seed)
    levels, trends = rng.uniform(60, 160, len(STORES)), rng.uniform(-0.05, 0.15, len(STORES))
    shifts = rng.uniform(0, 365, len(STORES))
    for row in range(num_rows):
        day, store = divmod(row, len(STORES))
        slow = 1 + trends[store] * day / 365 + 0.25 * math.sin(2 * math.pi * (day + shifts[store]) / 365)
        yield STORES[store], day, float(levels[store] * slow * _WEEK[day % 7])


SALES_DATA = BuiltinData(
    name="sales",
    description=f"daily sales of {len(STORES)} stores, with a trend, a week, a year and noise of known variance",
    columns=("date", "store", "sales"),
    num_rows=4 * 3 * 365,
    tokenizer="",
    generate=generate_sales,
)
