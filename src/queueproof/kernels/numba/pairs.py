"""Pairs of bf16 along K, as the dot instruction of AVX-512 BF16 reads them, and where it gives the bits of the chain.

The instruction is two fused multiply-adds, each rounded to nearest even, but numbers below 2^-126 are zeros to it. A bf16 of
exponent e is a multiple of 2^(e - 7). So products of x and w, and sums of them however rounded, are multiples of
2^(ex - 7 + ew - 7), ex and ew being the smallest exponents among them; where that is 2^-126 or more, none but zero is smaller.
An empty half of a pair adds 0 · 0 to a sum that is never -0: those begin with +0, and a difference of equals is +0.

Each of the 8 segments of K has its own pairs; the last one of a segment of odd length is half empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from queueproof.arithmetic.ieee1 import SEGMENTS
from queueproof.kernels.numba.ir import I32, I64, carray, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.microkernel import LANES, VI, const_vi

# Exponents here are biased, as they are stored: 127 + e. ex + ew - 14 >= -126 with both biased:
_LEAST_SUM = 2 * 127 + 14 - 126
NEVER = 256  # what a panel needs of x where no x will do
_INFINITE = 0x7F80


@inner
def segment_pairs(k):
    """Pairs of one segment."""
    return ((k + SEGMENTS - 1) // SEGMENTS + 1) // 2


@inner
def pair_count(k):
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
    return need_of_sizes(int(size.min()), int(size.max())) if size.size else 0


@inner
def need_of_sizes(least, most):
    """`need_of` from the smallest and the largest bits without signs; least is above 2^15 where all are zeros."""
    if least > 0x7FFF:
        return 0
    if most >= _INFINITE or least < 0x80:
        return NEVER
    return max(1, _LEAST_SUM - (least >> 7))


@intrinsic
def _dense(typingctx: Any, x: Any, vectors: Any, out: Any) -> Any:
    """`make_pairs` of 2 * LANES * vectors (>= 1) f32 that lie one after another. All i64."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, vectors, out = args
        both = ir.VectorType(I32, 2 * LANES)
        undefined = ir.Constant(both, ir.Undefined)

        def every(which: int, value: Any) -> Any:
            order = ir.Constant(VI, [2 * lane + which for lane in range(LANES)])
            return b.shuffle_vector(value, undefined, order)

        def pick(sign: str, p: Any, q: Any) -> Any:
            return b.select(b.icmp_unsigned(sign, p, q), p, q)

        entry, loop, done = b.block, b.append_basic_block("pairs"), b.append_basic_block("paired")
        b.branch(loop)
        b.position_at_end(loop)
        i, least, most, below = b.phi(I64), b.phi(VI), b.phi(VI), b.phi(VI)
        starts = (ir.Constant(I64, 0), const_vi(0xFFFFFFFF), const_vi(0), const_vi(0))
        for phi, value in zip((i, least, most, below), starts, strict=True):
            phi.add_incoming(value, entry)
        place = b.inttoptr(b.add(x, b.mul(i, ir.Constant(I64, 8 * LANES))), both.as_pointer())
        values = b.load(place, align=4)
        first, second = every(0, values), every(1, values)
        words = b.or_(b.and_(first, const_vi(0xFFFF0000)), b.lshr(second, const_vi(16)))
        b.store(words, b.inttoptr(b.add(out, b.mul(i, ir.Constant(I64, 4 * LANES))), VI.as_pointer()), align=4)
        sizes = [b.and_(value, const_vi(0x7FFFFFFF)) for value in (first, second)]
        news = (
            b.add(i, ir.Constant(I64, 1)),
            pick("<", least, pick("<", *(b.sub(size, const_vi(1)) for size in sizes))),  # a zero becomes the largest
            pick(">", most, pick(">", *sizes)),
            b.or_(below, b.or_(first, second)),
        )
        for phi, value in zip((i, least, most, below), news, strict=True):
            phi.add_incoming(value, loop)
        b.cbranch(b.icmp_signed("<", news[0], vectors), loop, done)
        b.position_at_end(done)

        def reduce(how: str, vector: Any) -> Any:
            kind = ir.FunctionType(I32, [VI])
            return b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.{how}.v{LANES}i32"), [vector])

        smallest, largest, low = reduce("umin", news[1]), reduce("umax", news[2]), reduce("or", news[3])
        found = b.zext(b.lshr(b.add(smallest, ir.Constant(I32, 1)), ir.Constant(I32, 23)), I64)
        found = b.select(b.icmp_unsigned("==", largest, ir.Constant(I32, 0)), ir.Constant(I64, 255), found)
        no_number = b.icmp_unsigned(">=", largest, ir.Constant(I32, _INFINITE << 16))
        no_half = b.icmp_unsigned("!=", b.and_(low, ir.Constant(I32, 0xFFFF)), ir.Constant(I32, 0))
        return b.select(b.or_(no_number, no_half), ir.Constant(I64, -1), found)

    return types.int64(*[types.int64] * 3), codegen


@inner
def make_pairs(x, rows, k, out):
    """Words [rows, pair_count(k)] at out from the f32 [rows, k] at x. Returns the smallest exponent of a number that is no zero;
    -1 where one is infinite, NaN, or no bf16; 255 where all are zeros."""
    vectors = rows * k // (2 * LANES)
    if k % (2 * SEGMENTS) != 0 or vectors == 0:
        return _make_pairs(x, 0, rows, k, out)
    found, done = _dense(np.int64(x), np.int64(vectors), np.int64(out)), vectors * LANES
    if 2 * done == rows * k:
        return found
    # what is left lies in the last row
    rest = _make_pairs(x, rows - 1, rows, k, out)
    return np.int64(-1) if found < 0 or rest < 0 else min(found, rest)


@inner
def _make_pairs(x, first, rows, k, out):
    """`make_pairs` of the rows from `first` on."""
    seg = (k + SEGMENTS - 1) // SEGMENTS
    count = segment_pairs(k)
    least, most, below = np.uint32(0xFFFFFFFF), np.uint32(0), np.uint32(0)
    size, high, low = np.uint32(0x7FFFFFFF), np.uint32(0xFFFF0000), np.uint32(0xFFFF)
    for r in range(first, rows):
        row = carray(void_ptr(np.int64(x + 4 * r * k)), k, np.uint32)
        to = carray(void_ptr(np.int64(out + 4 * r * SEGMENTS * count)), SEGMENTS * count, np.uint32)
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
