"""A random permutation that is computed rather than stored.

A Feistel network over the numbers below a power of four is a permutation of them; applying it again to results that are
too large makes it one of 0..n-1 ("cycle walking", Black & Rogaway, 2002). Any position can be computed directly, for
any n, in constant memory.
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_WORD = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def permute(positions: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """The items at `positions` of a random permutation of 0..n-1, which `key` selects.

    Example:
        >>> sorted(permute(np.arange(5), 5, key=1).tolist())
        [0, 1, 2, 3, 4]
    """
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    result = _network(positions.astype(np.uint64), half_bits, key)
    while (outside := result >= n).any():
        result[outside] = _network(result[outside], half_bits, key)
    return result.astype(np.int64)


def mix(*numbers: int) -> int:
    """Hash several integers to one of 64 bits, so that similar seeds give unrelated results."""
    state = 0
    for number in numbers:
        state = _finalize_int(state ^ (number & _WORD))
    return state


def _network(values: NDArray[np.uint64], half_bits: int, key: int) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for round_number in range(_ROUNDS):
        left, right = right, left ^ (_finalize(right ^ np.uint64(mix(key, round_number))) & mask)
    return (left << shift) | right


def _finalize(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele et al., 2014), with the overflow of arrays at 64 bits."""
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def _finalize_int(x: int) -> int:
    """The same for one Python integer, without the overhead of an array."""
    x = (x + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)
