"""Batches: each row once per epoch, within the budget, and determined by seed and step."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from regard.data import batches
from regard.data.batches import BatchSampler, batches_by_length, pad
from regard.data.permutation import mix, permute
from regard.data.stores.rows import TokenStore, write_store
from regard.errors import ConfigError, DeviceError


def store_of(folder: Path, lengths: list[int]) -> TokenStore:
    rows = [("x" * length, "y") for length in lengths]

    def encode(some):
        return [[[0] * len(row[column]) for row in some] for column in (0, 1)]

    return write_store(folder, rows, encode, columns=("source", "target"), dtype=np.dtype(np.uint16), max_length=10_000)


@pytest.fixture(scope="module", params=[1, 2, 37, 1000], ids=lambda number: f"{number} rows")
def store(request, tmp_path_factory) -> TokenStore:
    rng = np.random.default_rng(7)
    lengths = [int(length) for length in 1 + rng.gamma(2.0, 9.0, size=request.param)]
    return store_of(tmp_path_factory.mktemp("data") / "store", lengths)


@pytest.mark.slow
@pytest.mark.parametrize("batch_tokens", [1, 100, 1009, 10**6])
def test_each_epoch_meets_every_row_once(store: TokenStore, batch_tokens: int):
    sampler = BatchSampler(store, batch_tokens=batch_tokens, seed=3)
    number = sampler.batches_per_epoch
    for epoch in (0, 1, 5):
        rows = [sampler.rows(step) for step in range(epoch * number, (epoch + 1) * number)]
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(store)))
        assert all(len(some) for some in rows)


@pytest.mark.parametrize("batch_tokens", [100, 1009])
def test_a_batch_keeps_to_the_budget(store: TokenStore, batch_tokens: int):
    sampler = BatchSampler(store, batch_tokens=batch_tokens, seed=3)
    lengths = store.lengths()
    for step in range(sampler.batches_per_epoch):
        rows = sampler.rows(step)
        # One position more than a row has tokens; a row longer than the budget goes alone.
        assert len(rows) * (int(lengths[rows].max()) + 1) <= batch_tokens or len(rows) == 1


def test_seed_and_step_give_the_batch(store: TokenStore):
    one, two = (BatchSampler(store, batch_tokens=100, seed=3) for _ in range(2))
    steps = range(3 * one.batches_per_epoch)
    forwards = [one.rows(step).tolist() for step in steps]
    backwards = [two.rows(step).tolist() for step in reversed(steps)]
    assert forwards == backwards[::-1]


def test_epochs_and_seeds_differ(tmp_path: Path):
    store = store_of(tmp_path / "store", [1 + i % 40 for i in range(1000)])
    sampler, other = (BatchSampler(store, batch_tokens=200, seed=seed) for seed in (3, 4))
    number = sampler.batches_per_epoch

    def epoch(which: BatchSampler, index: int) -> list[list[int]]:
        return [sorted(which.rows(step).tolist()) for step in range(index * number, (index + 1) * number)]

    first, second, third = epoch(sampler, 0), epoch(sampler, 1), epoch(other, 0)
    assert first not in (second, third)
    # Not the same batches in another order, either: rows meet other rows.
    assert sorted(first) != sorted(second)
    lengths = store.lengths()
    order = [int(lengths[rows].max()) for rows in first]
    assert order != sorted(order), "lengths are mixed within an epoch"


def test_no_batch_is_a_small_remainder(tmp_path: Path):
    store = store_of(tmp_path / "store", [9] * 1002)
    sampler = BatchSampler(store, batch_tokens=1000, seed=0)
    sizes = [len(sampler.rows(step)) for step in range(sampler.batches_per_epoch)]
    assert sum(sizes) == 1002
    assert max(sizes) - min(sizes) <= 1


def test_rows_of_like_length_go_together(tmp_path: Path):
    rng = np.random.default_rng(1)
    store = store_of(tmp_path / "store", [int(length) for length in rng.integers(1, 100, size=5000)])
    sampler = BatchSampler(store, batch_tokens=1000, seed=0)
    lengths = store.lengths()
    rows = [sampler.rows(step) for step in range(sampler.batches_per_epoch)]
    padded = sum(len(some) * int(lengths[some].max()) for some in rows)
    assert int(lengths.sum()) / padded > 0.9


def test_the_order_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch):
    store = store_of(tmp_path / "store", [3, 1, 2] * 10)
    before = sorted(store.folder.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(batches.os, "fsync", full)
    with pytest.raises(DeviceError, match=r"cannot write the order of rows .*: No space left on device"):
        BatchSampler(store, batch_tokens=100, seed=0)
    assert sorted(store.folder.iterdir()) == before


def test_no_rows_make_no_batch(tmp_path: Path):
    with pytest.raises(ConfigError, match="no row"):
        BatchSampler(store_of(tmp_path / "store", []), batch_tokens=10, seed=0)


def test_batches_for_evaluation_have_every_row_once_short_ones_first():
    lengths = np.array([5, 1, 9, 1, 30, 2])
    found = batches_by_length(lengths, batch_tokens=12)
    assert [rows.tolist() for rows in found] == [[1, 3, 5], [0], [2], [4]]
    assert batches_by_length(np.array([], np.int64), batch_tokens=12) == []


def test_padding_fills_up_on_the_right():
    assert pad([np.array([1, 2, 3]), np.array([4])], 7).tolist() == [[1, 2, 3], [4, 7, 7]]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 1000, 4097])
def test_a_computed_order_is_a_permutation(n: int):
    for key in (0, 1, mix(3, 4)):
        assert sorted(permute(np.arange(n), n, key).tolist()) == list(range(n))
    single = [int(permute(np.array([i]), n, 5)[0]) for i in range(min(n, 50))]
    assert single == permute(np.arange(n), n, 5).tolist()[:50]


def test_a_computed_order_is_well_shuffled():
    """Each item is about as often at each place: chi-squared with 16 degrees of freedom, the limit of p = 1e-4."""
    found = np.array([permute(np.arange(5), 5, mix(0, key)) for key in range(2000)])
    table = np.array([np.bincount(found[:, place], minlength=5) for place in range(5)])
    assert ((table - 400) ** 2 / 400).sum() < 45.9


def test_mixed_numbers_have_nothing_in_common():
    numbers = {mix(seed, step) for seed in range(40) for step in range(40)}
    assert len(numbers) == 1600
    assert len({number % 1024 for number in numbers}) > 750
    assert mix(1, 2) != mix(2, 1)
    assert mix(-1, 0) == mix((1 << 64) - 1, 0)
