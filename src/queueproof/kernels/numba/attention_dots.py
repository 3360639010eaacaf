"""The two products of attention with the dot instruction, for tiles of many rows: a block of keys and values made pairs first.

Keys are paired along the head's dimension, values along keys, both in panels as `linear` reads them. A key that a row may not see has
the weight 0 here: it adds 0 · v to a sum that is never -0 (`pairs`), which changes nothing. So a tile is the whole block,
whoever sees how much of it, and what it may not use must only be finite: a block where that is not so is left to
`attention_tiles`, as one with numbers too small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from queueproof.arithmetic.ieee1 import KEY_BLOCK
from queueproof.kernels.numba import dots
from queueproof.kernels.numba.attention_tiles import COLUMNS, GROUPS
from queueproof.kernels.numba.dots import DOTS
from queueproof.kernels.numba.ir import I16, I32, I64, carray, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.microkernel import MAX_ROWS, PAIR_BYTES, PANEL, SIZES, tile_rows
from queueproof.kernels.numba.pairs import need_of_sizes

MANY_ROWS = 12  # from so many on, making pairs takes less than it saves
_PER_PANEL = PANEL // COLUMNS  # groups of columns

if DOTS:
    _tiles = dots.make(SIZES)


@inner
def applies(d, dp):
    """Whether heads of this dimension, and of dp columns in the cache, can go this way."""
    return DOTS and d % 16 == 0 and dp % PANEL == 0


def scratch_words(d: int, dp: int, rows: int) -> int:
    """32-bit words per thread: pairs of q, of keys, of weights and of values."""
    return rows * (d // 2 + KEY_BLOCK // 2) + KEY_BLOCK * (d // 2) + KEY_BLOCK // 2 * dp if applies(d, dp) else 0


@intrinsic
def _interleave(typingctx: Any, src: Any, second: Any, step: Any, count: Any, dst: Any, sizes: Any) -> Any:
    """COLUMNS words of `count` (>= 1) rows of a panel: what is at src in the high halves, what is `second` bytes on in the low ones.

    All i64. step: bytes from one row's source to the next. sizes: address of u32 [2, COLUMNS], for each column the smallest
    bits without sign of a number that is no zero, less one, and the largest ones, so far.
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        src, second, step, count, dst, sizes = args
        words, halves = ir.VectorType(I32, COLUMNS), ir.VectorType(I16, COLUMNS)

        def number(value: int) -> Any:
            return ir.Constant(words, [value] * COLUMNS)

        def at(address: Any, kind: Any) -> Any:
            return b.inttoptr(address, kind.as_pointer())

        def larger(x: Any, y: Any) -> Any:
            return b.select(b.icmp_unsigned(">", x, y), x, y)

        def smaller(x: Any, y: Any) -> Any:
            return b.select(b.icmp_unsigned("<", x, y), x, y)

        kept = [at(b.add(sizes, ir.Constant(I64, 4 * COLUMNS * i)), words) for i in range(2)]
        before = [b.load(p, align=4) for p in kept]
        entry, loop, done = b.block, b.append_basic_block("pairs"), b.append_basic_block("paired")
        b.branch(loop)
        b.position_at_end(loop)
        i, least, most = b.phi(I64), b.phi(words), b.phi(words)
        for phi, value in zip((i, least, most), (ir.Constant(I64, 0), *before), strict=True):
            phi.add_incoming(value, entry)
        place = b.add(src, b.mul(i, step))
        first, other = (b.zext(b.load(at(p, halves), align=2), words) for p in (place, b.add(place, second)))
        row = at(b.add(dst, b.mul(i, ir.Constant(I64, PAIR_BYTES))), words)
        b.store(b.or_(b.shl(first, number(16)), other), row, align=4)
        magnitudes = [b.and_(value, number(0x7FFF)) for value in (first, other)]
        new_most = larger(most, larger(*magnitudes))
        new_least = smaller(least, smaller(*(b.sub(value, number(1)) for value in magnitudes)))  # a zero becomes the largest
        following = b.add(i, ir.Constant(I64, 1))
        for phi, value in zip((i, least, most), (following, new_least, new_most), strict=True):
            phi.add_incoming(value, loop)
        b.cbranch(b.icmp_signed("<", following, count), loop, done)
        b.position_at_end(done)
        for value, p in zip((new_least, new_most), kept, strict=True):
            b.store(value, p, align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


@inner
def _begin(sizes):
    found = carray(void_ptr(np.int64(sizes)), (2, COLUMNS), np.uint32)
    for j in range(COLUMNS):
        found[0, j], found[1, j] = np.uint32(0xFFFFFFFF), np.uint32(0)


@inner
def _need(sizes):
    found = carray(void_ptr(np.int64(sizes)), (2, COLUMNS), np.uint32)
    least, most = np.uint32(0xFFFFFFFF), np.uint32(0)
    for j in range(COLUMNS):
        least, most = min(least, found[0, j]), max(most, found[1, j])
    return need_of_sizes(np.int64(least) + 1, np.int64(most))


@inner
def pack_keys(table, d, page, out, sizes):
    """Panels [2, d / 2, PANEL] of the block whose groups are at `table`; what they need of q (see `pairs.need_of`)."""
    groups = carray(void_ptr(np.int64(table)), GROUPS, np.int64)
    _begin(sizes)
    for g in range(GROUPS):
        to = np.int64(out + g // _PER_PANEL * (d // 2) * PAIR_BYTES + g % _PER_PANEL * 4 * COLUMNS)
        _interleave(groups[g], np.int64(2 * page), np.int64(4 * page), np.int64(d // 2), to, np.int64(sizes))
    return _need(sizes)


@inner
def pack_values(table, dp, out, sizes):
    """Panels [dp / PANEL, KEY_BLOCK / 2, PANEL] of the block whose groups are at `table`; what they need of weights."""
    groups = carray(void_ptr(np.int64(table)), GROUPS, np.int64)
    _begin(sizes)
    for c in range(0, dp, COLUMNS):
        to = np.int64(out + c // PANEL * (KEY_BLOCK // 2) * PAIR_BYTES + c % PANEL * 4)
        for g in range(GROUPS):
            rows = COLUMNS // 2
            _interleave(np.int64(groups[g] + 2 * c), np.int64(2 * dp), np.int64(4 * dp), np.int64(rows),
                        np.int64(to + g * rows * PAIR_BYTES), np.int64(sizes))  # fmt: skip
    return _need(sizes)


@inner
def products(rows, x, count, w, panels, out, ldo):
    """out[rows, panels * PANEL], ldo f32 between rows: x, words [rows, count], times panels [panels, count, PANEL] at w."""
    for p in range(panels):
        r, tiles = 0, (rows + MAX_ROWS - 1) // MAX_ROWS
        while r < rows:
            here = tile_rows(rows - r, tiles)
            _tiles(here, np.int64(x + 4 * r * count), np.int64(count), np.int64(w + p * count * PAIR_BYTES),
                   np.int64(out + 4 * (r * ldo + p * PANEL)), np.int64(ldo), np.int64(count))  # fmt: skip
            r += here
            tiles = max(1, tiles - 1)
