"""A block of scores to weights, row by row: scale, largest, exp, sum (docs/arithmetic.md section 5).

A row is KEY_BLOCK numbers, which stay in registers for the largest one and for the sum; LLVM's vectors of COLUMNS become
whatever the machine has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from queueproof.arithmetic.ieee1 import KEY_BLOCK
from queueproof.kernels.numba.attention_tiles import COLUMNS, GROUPS
from queueproof.kernels.numba.elementwise import f32_at
from queueproof.kernels.numba.ir import F32, I32, I64
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.math import bf16, exp, f16

ZERO = np.float32(0)
_VECTOR, _INDEX = ir.VectorType(F32, COLUMNS), ir.VectorType(I32, COLUMNS)


def _places(b: Any, address: Any) -> list[Any]:
    """Pointers to the row's vectors."""
    row = b.inttoptr(address, F32.as_pointer())
    return [b.bitcast(b.gep(row, [ir.Constant(I64, g * COLUMNS)]), _VECTOR.as_pointer()) for g in range(GROUPS)]


def _splat(b: Any, scalar: Any) -> Any:
    kind = ir.VectorType(scalar.type, COLUMNS)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_INDEX, [0] * COLUMNS))


def _fold(b: Any, vectors: list[Any], join: Any) -> Any:
    """The halving tree of `join` over the lanes of a row's vectors: number i with number i + n / 2, until one is left."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [join(vectors[i], vectors[i + half]) for i in range(half)]
    v, n = vectors[0], COLUMNS
    while n > 1:
        n //= 2
        undefined = ir.Constant(v.type, ir.Undefined)
        low, high = (b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(I32, n), list(range(at, at + n)))) for at in (0, n))
        v = join(low, high)
    return b.extract_element(v, ir.Constant(I32, 0))


@intrinsic
def _scale(typingctx: Any, row: Any, lo: Any, hi: Any, scale: Any, top: Any) -> Any:
    """Multiplies the row at an address by `scale`; the larger of `top` and what is then the largest in [lo, hi), i64.

    A maximum is the same in any order, but for the sign of a zero: exp has none. A NaN is never the largest.
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        row, lo, hi, scale, top = args
        factor, low = _splat(b, scale), _splat(b, b.trunc(lo, I32))
        width = b.sub(_splat(b, b.trunc(hi, I32)), low)
        lowest = ir.Constant(_VECTOR, [float("-inf")] * COLUMNS)
        seen = []
        for g, place in enumerate(_places(b, row)):
            v = b.fmul(b.load(place, align=4), factor)
            b.store(v, place, align=4)
            at = ir.Constant(_INDEX, list(range(g * COLUMNS, (g + 1) * COLUMNS)))
            inside = b.icmp_unsigned("<", b.sub(at, low), width)  # lo <= at < hi
            seen.append(b.select(b.and_(inside, b.fcmp_ordered(">", v, lowest)), v, lowest))
        best = _fold(b, seen, lambda x, y: b.select(b.fcmp_ordered(">", y, x), y, x))
        return b.select(b.fcmp_ordered(">", best, top), best, top)

    return types.float32(types.int64, types.int64, types.int64, types.float32, types.float32), codegen


@intrinsic
def _sum(typingctx: Any, row: Any) -> Any:
    """The halving tree over the row at an address (i64)."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return _fold(b, [b.load(place, align=4) for place in _places(b, args[0])], b.fadd)

    return types.float32(types.int64), codegen


@inner
def visible(p, key0, window):
    """Keys of the block at key0 that position p may see, from the block's first one: [lo, hi), perhaps none."""
    return max(0, p - window + 1 - key0) if window != 0 else 0, min(KEY_BLOCK, p + 1 - key0)


@inner
def _weights(half, s, lo, hi, top):
    """One row's scaled scores to weights exp(s - top) in place; zero outside [lo, hi)."""
    if half == 0:
        for j in range(KEY_BLOCK):
            w = bf16(exp(s[j] - top))
            s[j] = w if j >= lo and j < hi else ZERO
    else:
        for j in range(KEY_BLOCK):
            w = f16(exp(s[j] - top))
            s[j] = w if j >= lo and j < hi else ZERO


@inner
def softmax(half, i0, i1, group, pos0, window, key0, s, scale, m, den, alpha):
    """Scores of a block, f32 [rows, KEY_BLOCK] at s, to weights in place, for the queries from i0 to i1 - 1 of `group` rows each.

    Updates m and den of the rows and leaves the factors for what they have accumulated in alpha. In passes over all rows, so
    that the processor works on several at a time.
    """
    r0, r1 = i0 * group, i1 * group
    for i in range(i0, i1):
        lo, hi = visible(pos0 + i, key0, window)
        for r in range(i * group, (i + 1) * group):
            alpha[r] = _scale(np.int64(s + 4 * r * KEY_BLOCK), np.int64(lo), np.int64(max(lo, hi)), scale, m[r])
    for r in range(r0, r1):
        top = alpha[r]
        alpha[r] = exp(m[r] - top)
        m[r] = top
    for i in range(i0, i1):
        lo, hi = visible(pos0 + i, key0, window)
        for r in range(i * group, (i + 1) * group):
            _weights(half, f32_at(s + 4 * r * KEY_BLOCK, KEY_BLOCK), lo, hi, m[r])
    for r in range(r0, r1):
        den[r] = den[r] * alpha[r] + _sum(np.int64(s + 4 * r * KEY_BLOCK))
