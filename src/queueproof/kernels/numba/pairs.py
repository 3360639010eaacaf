"""Pairs of bf16 along K, as the dot instruction of AVX-512 BF16 reads them, and where it gives the bits of the chain.

The instruction is two fused multiply-adds, each rounded to nearest even, but numbers below 2^-126 are zeros to it. A bf16 of
exponent e is a multiple of 2^(e - 7). So products of x and w, and sums of them however rounded, are multiples of
2^(ex - 7 + ew - 7), ex and ew being the smallest exponents among them; where that is 2^-126 or more, none but zero is smaller.
An empty half of a pair adds 0 · 0 to a sum that is never -0: those begin with +0, and a difference of equals is +0.

Each of the 8 segments of K has its own pairs; the last one of a segment of odd length is half empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.ieee1 import SEGMENTS
from queueproof.kernels.numba.ir import carray, void_ptr
from queueproof.kernels.numba.jit import inner

# Exponents here are biased, as they are stored: 127 + e. ex + ew - 14 >= -126 with both biased:
_LEAST_SUM = 2 * 127 + 14 - 126
NEVER = 256  # what a panel needs of x where no x will do
_INFINITE = 0x7F80


def segment_pairs(k: int) -> int:
    """Pairs of one segment."""
    return (-(-k // SEGMENTS) + 1) // 2


def pair_count(k: int) -> int:
    return SEGMENTS * segment_pairs(k)


def as_pairs(rows: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """u16 [n, k] to words [n, pair_count(k)]: the earlier k in the high half."""
    n, k = rows.shape
    seg = -(-k // SEGMENTS)
    whole = np.zeros((n, SEGMENTS, 2 * segment_pairs(k)), np.uint16)
    for s in range(SEGMENTS):
        piece = rows[:, s * seg : (s + 1) * seg]
        whole[:, s, : piece.shape[1]] = piece
    halves = whole.reshape(n, -1, 2).astype(np.uint32)
    return halves[:, :, 0] << np.uint32(16) | halves[:, :, 1]


def need_of(values: NDArray[np.uint16]) -> int:
    """The smallest exponent of x with which these weights have no sum below 2^-126; NEVER where some are not normal."""
    size = values & np.uint16(0x7FFF)
    size = size[size != 0]
    if not size.size:
        return 0
    if size.max() >= _INFINITE or size.min() < 0x80:
        return NEVER
    return max(1, _LEAST_SUM - (int(size.min()) >> 7))


@inner
def make_pairs(x, rows, k, out):
    """Words [rows, pair_count(k)] at out from the f32 [rows, k] at x. Returns the smallest exponent of a number that is no zero;
    -1 where one is infinite, NaN, or no bf16; 255 where all are zeros."""
    seg = (k + SEGMENTS - 1) // SEGMENTS
    count = (seg + 1) // 2
    least, most, below = np.uint32(0xFFFFFFFF), np.uint32(0), np.uint32(0)
    size, high, low = np.uint32(0x7FFFFFFF), np.uint32(0xFFFF0000), np.uint32(0xFFFF)
    for r in range(rows):
        row = carray(void_ptr(np.int64(x + 4 * r * k)), k, np.uint32)
        to = carray(void_ptr(np.int64(out + 4 * r * SEGMENTS * count)), SEGMENTS * count, np.uint32)
        if k == 2 * SEGMENTS * count:
            for i in range(SEGMENTS * count):
                a, b = row[2 * i], row[2 * i + 1]
                to[i] = (a & high) | (b >> np.uint32(16))
        else:
            for s in range(SEGMENTS):
                k0 = min(k, s * seg)
                k1 = min(k, k0 + seg)
                for i in range(count):
                    at = k0 + 2 * i
                    a = row[at] & high if at < k1 else np.uint32(0)
                    b = row[at + 1] >> np.uint32(16) if at + 1 < k1 else np.uint32(0)
                    to[s * count + i] = a | b
        for j in range(k):
            bits = row[j] & size
            below |= row[j] & low
            most = max(most, bits)
            least = min(least, np.uint32(bits - np.uint32(1)))  # a zero becomes the largest
    if below != 0 or most >= np.uint32(_INFINITE << 16):
        return np.int64(-1)
    return np.int64(255) if most == 0 else np.int64((least + np.uint32(1)) >> np.uint32(23))
