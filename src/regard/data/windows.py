"""Windows over running text: which to train on at a step, and which to score it by.

A window that starts at s reads the tokens s, ..., s + window - 1 and is asked for
each one's successor, so it takes window + 1 tokens of the text.
"""

import numpy as np
from numpy.typing import NDArray

from regard.data.permutation import mix, permute
from regard.errors import ConfigError, DataError


class WindowSampler:
    """Which windows make the batch of a step, from a sampler that can be asked for any step at once.

    In each epoch the text is cut into windows side by side, from another place on,
    so that a model does not meet the same cuts again; they are shuffled, and those
    that do not fill a batch are left out, others in each epoch.

    A text that has not windows enough for one batch gives batches of windows from
    anywhere, which overlap: an epoch is then one batch, and meets some tokens
    several times. The seed and the step number give the batch in either case.

    Raises:
        DataError: If the text is too short for a single window.
    """

    def __init__(self, num_tokens: int, *, window: int, batch_size: int, seed: int) -> None:
        if num_tokens < window + 1:
            raise DataError(
                f"the text has {num_tokens:,} tokens, too few for one window of {window:,}: "
                "give more text, or a smaller data.window"
            )
        self.num_tokens, self.window, self.batch_size, self.seed = num_tokens, window, batch_size, seed
        full_batches = self._num_windows(phase=window - 1) // batch_size
        self.is_dense = full_batches == 0
        """Whether windows overlap, for there are too few side by side."""
        self.batches_per_epoch = max(1, full_batches)

    def starts(self, step: int) -> NDArray[np.int64]:
        """Where the windows of batch number `step` start, counted from 0 through all epochs."""
        if self.is_dense:
            num_starts = self.num_tokens - self.window
            return np.array([mix(self.seed, step, row) % num_starts for row in range(self.batch_size)], np.int64)
        epoch, batch = divmod(step, self.batches_per_epoch)
        phase = mix(self.seed, epoch, self.window) % self.window
        places = np.arange(batch * self.batch_size, (batch + 1) * self.batch_size)
        return phase + self.window * permute(places, self._num_windows(phase), mix(self.seed, epoch))

    def _num_windows(self, phase: int) -> int:
        """How many fit side by side behind the first `phase` tokens, with one token more at the end."""
        return (self.num_tokens - 1 - phase) // self.window


class RunningSampler:
    """Which windows make the batch of a step, where each row goes on where the same row of the last batch ended.

    The text is cut into as many stretches of one length as a batch has rows, and a
    batch has the next window of each. In each epoch the stretches begin at another
    place, and so all cuts lie elsewhere; what is too much at the ends is left out.
    With `jitter` the cuts between windows are moved by up to so many tokens, and
    windows differ in length. The seed and the step number give the batch.

    Raises:
        DataError: If the text is too short for one batch.
    """

    def __init__(self, num_tokens: int, *, window: int, batch_size: int, seed: int, jitter: int = 0) -> None:
        assert 2 * jitter < window, "a window must not be empty"
        self.num_tokens, self.window, self.batch_size = num_tokens, window, batch_size
        self.seed, self.jitter = seed, jitter
        self.batches_per_epoch = (num_tokens - window) // (batch_size * window)
        if self.batches_per_epoch < 1:
            raise DataError(
                f"the text has {num_tokens:,} tokens, too few for {batch_size:,} windows of {window:,} side by side: "
                "give more text, or a smaller train.batch_tokens"
            )

    def windows(self, step: int) -> tuple[NDArray[np.int64], int]:
        """Where the windows of batch number `step` start, and how long they are."""
        epoch, batch = divmod(step, self.batches_per_epoch)
        length = self.batches_per_epoch * self.window
        phase = mix(self.seed, epoch) % (self.num_tokens - self.batch_size * length)
        start, end = self._cut(epoch, batch), self._cut(epoch, batch + 1)
        return phase + start + length * np.arange(self.batch_size), end - start

    def is_first(self, step: int) -> bool:
        """Whether batch number `step` begins an epoch, and so goes on from nowhere."""
        return step % self.batches_per_epoch == 0

    def _cut(self, epoch: int, number: int) -> int:
        """How far into its stretch window `number` of an epoch starts."""
        is_inner = 0 < number < self.batches_per_epoch
        moved = mix(self.seed, epoch, number) % (2 * self.jitter + 1) - self.jitter if is_inner else 0
        return number * self.window + moved


def evaluation_windows(num_tokens: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """Windows that score every token after the first exactly once, as `(start, end, first_scored)`.

    A window reads the tokens `start` to `end - 1`, which predict the tokens `start + 1`
    to `end`, and of those counts the ones from `first_scored` on. Each window starts
    `stride` after the one before it, so that whatever it counts, the first window's
    tokens excepted, is predicted from more than `window - stride` tokens.

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
