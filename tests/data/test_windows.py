"""Windows over contiguous text: uniform for training, exact for evaluation."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.windows import ContiguousSampler, WindowSampler, evaluation_windows
from regard.errors import ConfigError, DataError


@st.composite
def samplers(draw: st.DrawFn) -> WindowSampler:
    window, more, batch_size = draw(st.integers(1, 13)), draw(st.integers(1, 150)), draw(st.integers(1, 11))
    return WindowSampler(window + more, window=window, batch_size=batch_size, seed=draw(st.integers(-3, 3)))


def epoch_of(sampler: WindowSampler, number: int) -> np.ndarray:
    first = number * sampler.batches_per_epoch
    return np.concatenate([sampler.starts(first + step) for step in range(sampler.batches_per_epoch)])


@given(samplers(), st.integers(0, 1000))
def test_a_batch_is_full_and_every_window_lies_in_the_text(sampler: WindowSampler, step: int):
    starts = sampler.starts(step)
    assert (starts.shape, starts.dtype) == ((sampler.batch_size,), np.int64)
    assert starts.min() >= 0
    assert starts.max() + sampler.window + 1 <= sampler.num_tokens
    assert starts.tolist() == sampler.starts(step).tolist()


@settings(deadline=None)
@given(samplers(), st.integers(0, 20))
def test_the_windows_of_an_epoch_lie_side_by_side(sampler: WindowSampler, epoch: int):
    if sampler.is_overlapping:
        return
    starts = np.sort(epoch_of(sampler, epoch))
    assert (np.diff(starts) > 0).all()
    assert (np.diff(starts) % sampler.window == 0).all()
    # What is left out is less than a batch, and at either end less than a window; of the first phases one more fits.
    fitting = (sampler.num_tokens - 1) // sampler.window
    assert fitting - len(starts) <= sampler.batch_size


def test_all_text_is_met_and_cut_elsewhere_in_each_epoch():
    sampler = WindowSampler(1009, window=17, batch_size=3, seed=5)
    assert sampler.batches_per_epoch == (1009 - 17) // 17 // 3
    counts = np.zeros(1009, int)
    phases = set()
    for epoch in range(200):
        starts = epoch_of(sampler, epoch)
        phases.add(int(starts[0] % 17))
        for start in starts:
            counts[start + 1 : start + 18] += 1
    assert phases == set(range(17))
    assert counts[0] == 0
    assert counts[40:-40].min() > 0.8 * counts.max() > 150


def test_the_seed_and_the_step_alone_decide():
    def drawn(seed: int) -> list[int]:
        return WindowSampler(1009, window=17, batch_size=3, seed=seed).starts(101).tolist()

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert epoch_of(WindowSampler(1009, window=17, batch_size=3, seed=0), 0).tolist() != sorted(drawn(0))


def test_the_left_out_windows_are_others_each_time():
    sampler = WindowSampler(7 * 11 + 7, window=7, batch_size=5, seed=0)
    assert sampler.batches_per_epoch == 2
    left_out = set()
    for epoch in range(50):
        starts = epoch_of(sampler, epoch)
        left_out |= set(range(11)) - set(((starts - starts.min() % 7) // 7).tolist())
    assert left_out == set(range(11))


def test_a_small_text_gives_windows_that_overlap():
    sampler = WindowSampler(101, window=31, batch_size=13, seed=0)
    assert sampler.is_overlapping
    assert sampler.batches_per_epoch == 1
    drawn = {int(start) for step in range(100) for start in sampler.starts(step)}
    assert drawn == set(range(70))
    assert sampler.starts(0).tolist() != sampler.starts(1).tolist()


def test_a_text_that_fits_exactly_is_one_window():
    assert set(WindowSampler(12, window=11, batch_size=3, seed=0).starts(7).tolist()) == {0}
    message = "the text has 11 tokens, too few for one window of 11: give more text, or a smaller task.window"
    with pytest.raises(DataError, match=message):
        WindowSampler(11, window=11, batch_size=3, seed=0)


@given(st.data(), st.integers(0, 200), st.integers(1, 23))
def test_every_token_after_the_first_is_scored_once_in_context(data: st.DataObject, num_tokens: int, window: int):
    stride = data.draw(st.integers(1, window))
    windows = evaluation_windows(num_tokens, window, stride)
    scored = [target for _, end, first in windows for target in range(first, end + 1)]
    assert scored == list(range(1, num_tokens))
    for index, (start, end, first) in enumerate(windows):
        assert start == index * stride
        assert start < end <= min(start + window, num_tokens - 1)
        assert first > start
        if index:
            assert first - start > window - stride


@pytest.mark.parametrize("stride", [0, 8])
def test_a_stride_that_leaves_gaps_is_an_error(stride: int):
    with pytest.raises(ConfigError, match=f"1 <= stride <= window must hold, got stride={stride} and window=7"):
        evaluation_windows(100, 7, stride)


@st.composite
def running_samplers(draw: st.DrawFn) -> ContiguousSampler:
    window, batch_size, more = draw(st.integers(2, 13)), draw(st.integers(1, 7)), draw(st.integers(0, 200))
    jitter, seed = draw(st.integers(0, (window - 1) // 2)), draw(st.integers(-3, 3))
    num_tokens = window * (batch_size + 1) + more
    return ContiguousSampler(num_tokens, window=window, batch_size=batch_size, seed=seed, jitter=jitter)


@given(running_samplers(), st.integers(0, 20))
def test_rows_go_on_where_they_ended_and_meet_every_token_of_their_stretch_once(sampler: ContiguousSampler, epoch: int):
    first = epoch * sampler.batches_per_epoch
    windows = [sampler.windows(first + step) for step in range(sampler.batches_per_epoch)]
    assert [sampler.is_first(first + step) for step in range(sampler.batches_per_epoch)].index(True) == 0
    assert sum(sampler.is_first(first + step) for step in range(sampler.batches_per_epoch)) == 1
    for (starts, length), (after, _) in pairwise(windows):
        assert (starts + length == after).all()
    met = np.concatenate([start + np.arange(length) for starts, length in windows for start in starts])
    assert len(np.unique(met)) == len(met) == sampler.batch_size * sampler.batches_per_epoch * sampler.window
    assert met.min() >= 0
    assert met.max() + 1 < sampler.num_tokens, "the last token of a window has a successor"
    assert sampler.num_tokens - len(met) <= (sampler.batch_size + 1) * sampler.window
    for starts, length in windows:
        assert (starts.shape, starts.dtype) == ((sampler.batch_size,), np.int64)
        assert abs(length - sampler.window) <= 2 * sampler.jitter
        assert length >= 1


def test_running_windows_are_cut_elsewhere_in_each_epoch():
    sampler = ContiguousSampler(1009, window=17, batch_size=3, seed=5)
    cuts = {int(sampler.windows(epoch * sampler.batches_per_epoch)[0][0]) for epoch in range(300)}
    assert cuts == set(range(1009 - 3 * 17 * sampler.batches_per_epoch))
    assert {sampler.windows(step)[1] for step in range(100)} == {17}
    moved = ContiguousSampler(1009, window=17, batch_size=3, seed=5, jitter=4)
    assert {moved.windows(step)[1] for step in range(500)} == set(range(9, 26))


def test_a_text_too_short_for_the_rows_of_a_batch_is_an_error():
    assert ContiguousSampler(28, window=7, batch_size=3, seed=0).batches_per_epoch == 1
    message = (
        "the text has 27 tokens, too few for 3 adjacent windows of 7: give more text, or a smaller train.batch_tokens"
    )
    with pytest.raises(DataError, match=message):
        ContiguousSampler(27, window=7, batch_size=3, seed=0)
