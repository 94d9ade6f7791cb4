"""Numbers, standardized by the mean and standard deviation of the training rows."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from regard.data.codecs.codec import Codec, checked_codec
from regard.data.formats.messages import format_count
from regard.errors import DataError
from regard.files import load_json


@dataclass(frozen=True)
class NumberCodec(Codec):
    """Numbers as text, stored as the four bytes of a float32."""

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def fit(cls, values: Iterable[str]) -> Self:
        """Compute mean and standard deviation in one pass."""
        count, mean, squares = 0, 0.0, 0.0
        for value in values:  # Welford (1962): deviations from a mean that is not known beforehand
            number = parse_number(value)
            count += 1
            before = number - mean
            mean += before / count
            squares += before * (number - mean)
        if squares == 0.0:
            raise DataError(f"the target must vary: all {format_count(count, 'row')} have the number {mean:g}")
        return cls(mean, math.sqrt(squares / count))

    def encode(self, values: Sequence[str]) -> list[list[int]]:
        return [list(np.float32(parse_number(value)).tobytes()) for value in values]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [f"{number:.6g}" for number in self.numbers(ids)]

    def numbers(self, ids: Sequence[Sequence[int]] | Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """The numbers that `encode` stored."""
        return np.stack([np.asarray(some) for some in ids]).astype(np.uint8).view(np.float32)[:, 0]

    def standardize(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        return (numbers - self.mean) / self.std

    def to_json(self) -> str:
        return json.dumps({"mean": self.mean, "std": self.std})

    @classmethod
    def from_json(cls, text: str) -> Self:
        return checked_codec(cls, load_json(text))


def parse_number(text: str) -> float:
    """Read a finite number.

    Example:
        >>> parse_number(" 3.5 ")
        3.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"a target must be a finite number, got {text!r}")
    return number
