"""Windows over contiguous text, for training and for evaluation.

A window that starts at s has the inputs s, ..., s + window - 1 and their successors as targets, so it takes window + 1
tokens of the text.
"""

import numpy as np
from numpy.typing import NDArray

from regard.data.permutation import mix, permute
from regard.errors import ConfigError, DataError


class WindowSampler:
    """Shuffled windows; the batch of any step can be computed directly from the seed and the step number.

    In each epoch the text is cut into adjacent windows from another offset, so that the cuts differ between epochs. The
    windows are shuffled, and those that do not fill a batch are left out, others in each epoch.

    If the text has too few windows for one batch, batches consist of windows at random positions, which overlap: an
    epoch is then one batch and contains some tokens several times.

    Raises:
        DataError: If the text is too short for a single window.
    """

    def __init__(self, num_tokens: int, *, window: int, batch_size: int, seed: int) -> None:
        if num_tokens < window + 1:
            raise DataError(
                f"the text has {num_tokens:,} tokens, too few for one window of {window:,}: "
                "give more text, or a smaller task.window"
            )
        self.num_tokens, self.window, self.batch_size, self.seed = num_tokens, window, batch_size, seed
        full_batches = self._num_windows(phase=window - 1) // batch_size
        self.is_overlapping = full_batches == 0
        """Whether windows overlap, because there are too few adjacent ones."""
        self.batches_per_epoch = max(1, full_batches)

    def starts(self, step: int) -> NDArray[np.int64]:
        """The starts of the windows of batch number `step`, counted from 0 over all epochs."""
        if self.is_overlapping:
            num_starts = self.num_tokens - self.window
            return np.array([mix(self.seed, step, row) % num_starts for row in range(self.batch_size)], np.int64)
        epoch, batch = divmod(step, self.batches_per_epoch)
        phase = mix(self.seed, epoch, self.window) % self.window
        places = np.arange(batch * self.batch_size, (batch + 1) * self.batch_size)
        return phase + self.window * permute(places, self._num_windows(phase), mix(self.seed, epoch))

    def _num_windows(self, phase: int) -> int:
        """The number of adjacent windows after the first `phase` tokens, with one more token at the end."""
        return (self.num_tokens - 1 - phase) // self.window


class ContiguousSampler:
    """Windows in which each row continues the same row of the previous batch, for models that carry a state.

    The text is cut into as many segments of equal length as a batch has rows, and a batch consists of the next window
    of each. In each epoch the segments begin at another offset, so that all cuts differ; the remainder at the ends is
    left out. With `jitter` the cuts between windows are moved by up to that many tokens, so that windows differ in
    length. The batch of any step can be computed directly from the seed and the step number.

    Raises:
        DataError: If the text is too short for one batch.
    """

    def __init__(self, num_tokens: int, *, window: int, batch_size: int, seed: int, jitter: int = 0) -> None:
        assert 2 * jitter < window, "windows must not be empty"
        self.num_tokens, self.window, self.batch_size = num_tokens, window, batch_size
        self.seed, self.jitter = seed, jitter
        self.batches_per_epoch = (num_tokens - window) // (batch_size * window)
        if self.batches_per_epoch < 1:
            raise DataError(
                f"the text has {num_tokens:,} tokens, too few for {batch_size:,} adjacent windows of {window:,}: "
                "give more text, or a smaller train.batch_tokens"
            )

    def windows(self, step: int) -> tuple[NDArray[np.int64], int]:
        """The starts of the windows of batch number `step`, and their length."""
        epoch, batch = divmod(step, self.batches_per_epoch)
        length = self.batches_per_epoch * self.window
        phase = mix(self.seed, epoch) % (self.num_tokens - self.batch_size * length)
        start, end = self._cut(epoch, batch), self._cut(epoch, batch + 1)
        return phase + start + length * np.arange(self.batch_size), end - start

    def is_first(self, step: int) -> bool:
        """Whether batch number `step` begins an epoch, and so continues no other."""
        return step % self.batches_per_epoch == 0

    def _cut(self, epoch: int, number: int) -> int:
        """The start of window `number` of an epoch within its segment."""
        is_inner = 0 < number < self.batches_per_epoch
        moved = mix(self.seed, epoch, number) % (2 * self.jitter + 1) - self.jitter if is_inner else 0
        return number * self.window + moved


def evaluation_windows(num_tokens: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """Windows that score every token after the first exactly once, as `(start, end, first_scored)`.

    A window has the inputs `start` to `end - 1`, which predict the tokens `start + 1` to `end`; those from
    `first_scored` on are scored. Each window starts `stride` after the previous one, so that each token scored, except
    in the first window, is predicted from more than `window - stride` tokens.

    Example:
        >>> evaluation_windows(10, window=4, stride=3)
        [(0, 4, 1), (3, 7, 5), (6, 9, 8)]
    """
    if not 1 <= stride <= window:
        raise ConfigError(f"1 <= stride <= window must hold, got {stride=} and {window=}")
    windows: list[tuple[int, int, int]] = []
    start, end = 0, 0
    while end < num_tokens - 1:
        first_scored = end + 1
        end = min(start + window, num_tokens - 1)
        windows.append((start, end, first_scored))
        start += stride
    return windows
