"""The two products of attention on pages of the KV cache: register tiles of chains, as in `microkernel`.

A block of 64 keys is four groups of 16 consecutive ones, each in one page; a table holds where each group begins. So a tile
goes over columns of several groups, or keys of several pages, and keeps enough chains in flight for few rows too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from queueproof.arithmetic.ieee1 import KEY_BLOCK
from queueproof.kernels.numba.ir import F32, I16, I64, emit_prefetch
from queueproof.kernels.numba.memory import LINE
from queueproof.kernels.numba.microkernel import (
    AVX512,
    LANES,
    VF,
    VH,
    VHALF,
    VI,
    const_vi,
    emit_by_rows,
    emit_chains,
    splat,
)

COLUMNS = 16  # keys of a group, and columns of the narrowest value tile; pool blocks are multiples of it
GROUPS = KEY_BLOCK // COLUMNS
WIDE = 4 * LANES  # columns of a wide tile
NARROW = COLUMNS
SIZES = (1, 2, 3, 4, 5, 6) if AVX512 else (1, 2, 3)  # rows; four accumulators each
MAX_ROWS = SIZES[-1]


def _halves(b: Any, half: bool, address: Any, offset: int) -> Any:
    """LANES 16-bit numbers, `offset` after an address, as f32."""
    p = b.gep(b.inttoptr(address, I16.as_pointer()), [ir.Constant(I64, offset)])
    if half:
        return b.fpext(b.load(b.bitcast(p, VHALF.as_pointer()), align=2), VF)
    h = b.load(b.bitcast(p, VH.as_pointer()), align=2)
    return b.bitcast(b.shl(b.zext(h, VI), const_vi(16)), VF)


def _entry(b: Any, table: Any, i: Any) -> Any:
    return b.load(b.gep(b.inttoptr(table, I64.as_pointer()), [i]))


def _rows(b: Any, address: Any, stride: Any, rows: int) -> list[Any]:
    return [b.gep(b.inttoptr(address, F32.as_pointer()), [b.mul(stride, ir.Constant(I64, r))]) for r in range(rows)]


def _places(b: Any, rows: list[Any], vectors: int) -> list[Any]:
    at = [ir.Constant(I64, v * LANES) for v in range(vectors)]
    return [b.bitcast(b.gep(row, [a]), VF.as_pointer()) for row in rows for a in at]


def _scores(b: Any, args: list[Any], rows: int, half: bool, columns: int) -> None:
    xp, d, table, page, op, following = args
    x = _rows(b, xp, d, rows)
    out = _places(b, _rows(b, op, ir.Constant(I64, KEY_BLOCK), rows), columns // LANES)
    groups, ahead = ([_entry(b, t, ir.Constant(I64, g)) for g in range(columns // COLUMNS)] for t in (table, following))

    def links(i: Any) -> list[tuple[Any, Any]]:
        shift = b.shl(b.mul(i, page), ir.Constant(I64, 1))
        for group in ahead:
            emit_prefetch(b, b.add(group, shift), near=2)
        keys = [_halves(b, half, b.add(g, shift), c) for g in groups for c in range(0, COLUMNS, LANES)]
        return [(q, key) for q in (splat(b, b.load(b.gep(row, [i]))) for row in x) for key in keys]

    zero = ir.Constant(VF, [0.0] * LANES)
    emit_chains(b, ir.Constant(I64, 0), d, [zero] * len(out), links, out)


def _values(b: Any, args: list[Any], rows: int, half: bool, columns: int) -> None:
    pp, table, first, end, column, dp, op, following = args
    p = _rows(b, pp, ir.Constant(I64, KEY_BLOCK), rows)
    out = _places(b, _rows(b, b.add(op, b.shl(column, ir.Constant(I64, 2))), dp, rows), columns // LANES)
    shift = b.shl(column, ir.Constant(I64, 1))

    def links(j: Any) -> list[tuple[Any, Any]]:
        group, ahead = (_entry(b, t, b.lshr(j, ir.Constant(I64, 4))) for t in (table, following))
        row = b.mul(b.and_(j, ir.Constant(I64, COLUMNS - 1)), b.shl(dp, ir.Constant(I64, 1)))
        place = b.add(shift, row)
        for at in range(0, 2 * columns, LINE):
            emit_prefetch(b, b.add(b.add(ahead, place), ir.Constant(I64, at)), near=2)
        start = b.add(group, place)
        values = [_halves(b, half, start, c) for c in range(0, columns, LANES)]
        return [(w, value) for w in (splat(b, b.load(b.gep(row, [j]))) for row in p) for value in values]

    emit_chains(b, first, end, [b.load(place, align=4) for place in out], links, out)


def _make(emit: Callable[..., None], words: int, half: bool, columns: int) -> Callable[..., Any]:
    """`emit` as a numba intrinsic of `words` i64 that jumps by the first one, the number of rows."""

    @intrinsic
    def tile(typingctx: Any, args: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, values: Any) -> Any:
            given = cgutils.unpack_tuple(b, values[0], words)
            emit_by_rows(b, given[0], SIZES, lambda size: emit(b, given[1:], size, half, columns))
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, words)), codegen

    return tile


def scores(half: bool, columns: int) -> Callable[..., Any]:
    """out[r, j] = chain over i < d of (x[r, i], key j's element i), for `columns` keys.

    One tuple of i64: rows, x address (f32 [rows, d]), d, address of the table (from the first group on), page (keys between two
    elements of a key in the cache), out address (f32, KEY_BLOCK between rows), address of the table of the groups to ask for.
    """
    return _make(_scores, 7, half, columns)


def values(half: bool, columns: int) -> Callable[..., Any]:
    """out[r, c] goes on with the chain over keys j, first <= j < end, of (p[r, j], value j's column c), for `columns` columns.

    One tuple of i64: rows, p address (f32, KEY_BLOCK between rows), address of the table (of the block), first, end (more than
    first), the first column, dp (columns of a value in the cache, and of out), out address (f32 [rows, dp]), address of the table of
    the groups to ask for.
    """
    return _make(_values, 9, half, columns)
