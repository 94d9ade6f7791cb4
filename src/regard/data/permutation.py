"""A shuffled order that is computed, not stored.

A Feistel network over the numbers below a power of four is a permutation of
them; walking on from a result that is too large until it is not makes it one
of 0..n-1 ("cycle walking", Black & Rogaway, 2002). Any position of the order
can be asked for at once, for any n, in constant memory.
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_WORD = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def permute(positions: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """Where the items at `positions` of a shuffled 0..n-1 come from; `key` chooses the order.

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
    """One well-stirred 64-bit number from several, so that nearby seeds have nothing in common."""
    state = 0
    for number in numbers:
        state = _stir_one(state ^ (number & _WORD))
    return state


def _network(values: NDArray[np.uint64], half_bits: int, key: int) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for round_number in range(_ROUNDS):
        left, right = right, left ^ (_stir(right ^ np.uint64(mix(key, round_number))) & mask)
    return (left << shift) | right


def _stir(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele et al., 2014), wrapping at 64 bits as arrays do."""
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def _stir_one(x: int) -> int:
    """The same for one plain integer, without an array's overhead."""
    x = (x + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)
