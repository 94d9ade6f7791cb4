"""Batches with a token budget; the batch of any step can be computed directly.

Rows of similar length are in one bucket, so that there is little padding. The number of batches in an epoch is fixed,
and both the order of the batches and the rows within a bucket are shuffled by computed permutations: the seed and the
step number determine the batch, in constant memory for data of any size.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.permutation import mix, permute
from regard.data.stores.arrays import flush_to_disk, map_array
from regard.data.stores.rows import TokenStore
from regard.errors import ConfigError, DeviceError

BatchType = TypeVar("BatchType")
"""The type of a task's batches."""

_SCAN = 1 << 20
"""Rows whose lengths are read at a time when buckets are made."""
_BATCHES_PER_BUCKET = 8
"""The minimum number of full batches of a bucket, without which a small file would have many incomplete ones."""
_GROWTH = 1.15
"""The ratio of the longest to the shortest row from which a bucket with enough rows is closed."""


@dataclass(frozen=True)
class TensorBatch:
    """A batch whose tensors are fields: they can be moved to a device, or replaced, all at once."""

    tensor_names: ClassVar[tuple[str, ...]]
    """The fields that are tensors or None."""

    def tensors(self) -> list[Tensor | None]:
        """The tensors, in the order of their names."""
        return [getattr(self, name) for name in self.tensor_names]

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> Self:
        """The same batch with other tensors."""
        return replace(self, **dict(zip(self.tensor_names, tensors, strict=True)))


@dataclass(frozen=True)
class Bucket:
    """Rows of similar length: their start in the order of all rows, and their number of batches."""

    first: int
    num_rows: int
    num_batches: int
    max_length: int


class BatchSampler:
    """Assigns rows to the batch of each step.

    Each epoch contains every row once. The rows of a bucket are distributed evenly over its batches, so that no batch
    is a small remainder.
    """

    def __init__(self, store: TokenStore, *, batch_tokens: int, seed: int) -> None:
        if len(store) == 0:
            raise ConfigError("there are no rows to make batches of")
        histogram = _length_histogram(store)
        limits = _bucket_limits(histogram, batch_tokens)
        self.seed = seed
        self.buckets = _make_buckets(histogram, limits, batch_tokens)
        self._first_batch = np.cumsum([0, *(bucket.num_batches for bucket in self.buckets)])
        self._order = _order_by_bucket(store, limits, batch_tokens)

    @property
    def batches_per_epoch(self) -> int:
        return int(self._first_batch[-1])

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of batch number `step`, counted from 0 over all epochs."""
        number, batch = self._place(step)
        bucket, epoch = self.buckets[number], step // self.batches_per_epoch
        start, end = (bucket.num_rows * b // bucket.num_batches for b in (batch, batch + 1))
        inside = permute(np.arange(start, end), bucket.num_rows, mix(self.seed, epoch, number))
        return np.asarray(self._order[bucket.first + inside], dtype=np.int64)

    def shape(self, step: int) -> tuple[int, int]:
        """The maximum number of rows, and of tokens of a column, of all batches in the bucket of batch `step`."""
        bucket = self.buckets[self._place(step)[0]]
        return -(-bucket.num_rows // bucket.num_batches), bucket.max_length

    def _place(self, step: int) -> tuple[int, int]:
        """The bucket of a batch, and its number within the bucket."""
        epoch, index = divmod(step, self.batches_per_epoch)
        shuffled = int(permute(np.array([index]), self.batches_per_epoch, mix(self.seed, epoch))[0])
        number = int(np.searchsorted(self._first_batch, shuffled, side="right")) - 1
        return number, shuffled - int(self._first_batch[number])


class StoredBatches(Generic[BatchType]):
    """Shuffled batches of the rows of a store, with rows of similar length together.

    `make` builds a batch of the given rows. `fill`, if given, pads a batch to a number of rows and of tokens, so that
    all batches of a bucket have one shape, for which a CUDA graph can be replayed.
    """

    def __init__(
        self,
        store: TokenStore,
        make: Callable[[NDArray[np.int64]], BatchType],
        fill: Callable[[BatchType, int, int], BatchType] | None,
        *,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self.sampler = BatchSampler(store, batch_tokens=batch_tokens, seed=seed)
        self._make, self._fill = make, fill

    @property
    def per_epoch(self) -> int:
        return self.sampler.batches_per_epoch

    def batch(self, number: int) -> BatchType:
        """Batch `number`, counted from 0 over all epochs."""
        batch = self._make(self.sampler.rows(number))
        return batch if self._fill is None else self._fill(batch, *self.sampler.shape(number))


def batches_by_length(lengths: Sequence[int] | NDArray[np.int64], *, batch_tokens: int) -> list[NDArray[np.int64]]:
    """Every row once, short ones first, in batches within the budget, for data that fits into memory."""
    batches: list[list[int]] = [[]]
    for row in np.argsort(lengths, kind="stable").tolist():
        if batches[-1] and (len(batches[-1]) + 1) * (int(lengths[row]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(row)
    return [np.array(batch, np.int64) for batch in batches if batch]


def pad(sequences: list[NDArray[np.int64]], padding: int) -> NDArray[np.int64]:
    """The sequences as rows of one array, padded on the right."""
    result = np.full((len(sequences), max(map(len, sequences), default=0)), padding, dtype=np.int64)
    for row, sequence in zip(result, sequences, strict=True):
        row[: len(sequence)] = sequence
    return result


def _length_histogram(store: TokenStore) -> NDArray[np.int64]:
    histogram = np.zeros(1, np.int64)
    for start in range(0, len(store), _SCAN):
        counts = np.bincount(store.lengths(start, min(start + _SCAN, len(store))))
        histogram, counts = sorted((histogram, counts), key=len)
        counts[: len(histogram)] += histogram
        histogram = counts
    return histogram


def _bucket_limits(histogram: NDArray[np.int64], batch_tokens: int) -> list[int]:
    """The maximum length of each bucket, ascending."""
    limits: list[int] = []
    shortest, num_rows = 0, 0
    for length in np.flatnonzero(histogram).tolist():
        if num_rows == 0:
            shortest = length
        num_rows += int(histogram[length])
        is_full = num_rows * (length + 1) >= _BATCHES_PER_BUCKET * batch_tokens
        if is_full and length + 1 >= _GROWTH * (shortest + 1):
            limits.append(length)
            num_rows = 0
    if num_rows:
        longest = len(histogram) - 1
        too_few = num_rows * (longest + 1) < batch_tokens and limits
        limits = [*limits[:-1], longest] if too_few else [*limits, longest]
    return limits


def _make_buckets(histogram: NDArray[np.int64], limits: list[int], batch_tokens: int) -> list[Bucket]:
    buckets, first, shortest = [], 0, 0
    for limit in limits:
        num_rows = int(histogram[shortest : limit + 1].sum())
        # One position more than the row: a start or an end token is added to every sequence.
        rows_per_batch = max(1, batch_tokens // (limit + 1))
        buckets.append(Bucket(first, num_rows, -(-num_rows // rows_per_batch), limit))
        first, shortest = first + num_rows, limit + 1
    return buckets


def _order_by_bucket(store: TokenStore, limits: list[int], batch_tokens: int) -> NDArray[np.int64]:
    """The numbers of all rows, bucket after bucket, in a file in the folder of the store."""
    path = store.folder / f"order-{batch_tokens}.bin"
    if not path.exists() or path.stat().st_size != len(store) * np.dtype(np.int64).itemsize:
        _write_order(path, store, limits)
    return map_array(path, np.dtype(np.int64))


def _write_order(path: Path, store: TokenStore, limits: list[int]) -> None:
    work = path.with_suffix(f".{os.getpid()}.part")
    try:
        # Not through a memory map: on a full disk it kills the process, whereas a write raises an error.
        with open(work, "wb") as file:
            for chunk in _rows_by_bucket(store, limits):
                file.write(chunk.tobytes())
            flush_to_disk(file)
        os.replace(work, path)
    except OSError as error:
        raise DeviceError(f"cannot write the order of rows to {path}: {error.strerror or error}") from None
    finally:
        work.unlink(missing_ok=True)


def _rows_by_bucket(store: TokenStore, limits: list[int]) -> Iterator[NDArray[np.int64]]:
    scans = [(start, min(start + _SCAN, len(store))) for start in range(0, len(store), _SCAN)]
    for number in range(len(limits)):
        for start, end in scans:
            bucket_of = np.searchsorted(limits, store.lengths(start, end), side="left")
            yield (start + np.flatnonzero(bucket_of == number)).astype(np.int64)
