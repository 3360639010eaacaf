"""The inner loop of every matrix product: a register tile of chains.

`out[r, n] = chain over k of (x[r, k], w[k, n])` for MR rows and 2 * LANES columns.
Vectors run over n, never over k, so the order of additions is that of the definition whatever the tile is. The tile only
decides how many independent chains are in flight: an FMA takes 4 cycles and two can start per cycle, so 8 for the full rate.
Few rows have fewer and need no more: a panel that is read from memory in one stream takes longer than its chains. (Several
segments at once are several streams of 4 KB each, too short for the hardware to follow: a tenth less bandwidth.)

Weights are 16-bit in memory, and a panel's rows follow each other:
* `pair_bf16`: a row of a panel is PANEL 32-bit words, word j holding column j at k (high half) and at k + 1 (low half); a
  shift by whether k is odd and a mask make a vector of f32;
* `plain_f16`: PANEL halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from queueproof.kernels.numba.ir import F16, F32, I16, I32, I64, emit_prefetch
from queueproof.kernels.numba.jit import inner

Layout = Literal["pair_bf16", "plain_f16"]

AVX512: bool = bool(llvm.get_host_cpu_features().get("avx512f", False))
LANES: int = 16 if AVX512 else 8  # of one native vector; NEON takes two registers for it
PANEL: int = 2 * LANES  # columns of a tile
ROW_BYTES: int = 2 * PANEL  # of a panel, for one k
PAIR_BYTES: int = 2 * ROW_BYTES  # of a row of a `pair_bf16` panel
# Bytes ahead of what is read that are asked for, into the second cache: the hardware's own stream ends with each page of 4 KB.
LOOK_AHEAD = 4096
# Rows of a tile: 2 accumulators a row, 2 weights and 1 x fit the 16 registers, or the 32 of AVX-512.
SIZES: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12) if AVX512 else (1, 2, 3, 4, 5, 6)
MAX_ROWS: int = SIZES[-1]

_EVEN_ONLY = 6  # tiles of more rows come in even sizes


@inner
def tile_rows(rows, tiles):
    """Rows of the next of so many tiles, as even as possible: 8 rows are 4 + 4."""
    here = (rows + tiles - 1) // tiles
    return here - here % 2 if here > _EVEN_ONLY else here


VF = ir.VectorType(F32, LANES)
VI = ir.VectorType(I32, LANES)
VH = ir.VectorType(I16, LANES)
VHALF = ir.VectorType(F16, LANES)


def splat(b: Any, scalar: Any) -> Any:
    """A scalar in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), const_vi(0))


def const_vi(value: int) -> ir.Constant:
    return ir.Constant(VI, [value] * LANES)


def emit_by_rows(b: Any, rows: Any, sizes: tuple[int, ...], emit: Callable[[int], None]) -> None:
    """Jumps to what `emit` makes for the number of rows (i64) and goes on after it; does nothing for one that is none of `sizes`."""
    end = b.append_basic_block("end")
    jump = b.switch(rows, end)
    for size in sizes:
        block = b.append_basic_block(f"rows{size}")
        jump.add_case(ir.Constant(I64, size), block)
        b.position_at_end(block)
        emit(size)
        b.branch(end)
    b.position_at_end(end)


def emit_chains(
    b: Any,
    first: Any,
    end: Any,
    initial: list[Any],
    links: Callable[[Any], list[tuple[Any, Any]]],
    where: list[Any],
) -> None:
    """A chain of fused multiply-adds for each of `initial`, over k (i64) from first to end - 1, first < end; stores the sums.

    links: the two factors of every chain's next product.
    """
    fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(VF, [VF, VF, VF]), f"llvm.fma.v{LANES}f32")
    entry, loop, done = b.block, b.append_basic_block("chain"), b.append_basic_block("chained")
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(first, entry)
    sums = [b.phi(VF) for _ in initial]
    for a, before in zip(sums, initial, strict=True):
        a.add_incoming(before, entry)
    new = [b.call(fma, [x, w, a]) for (x, w), a in zip(links(k), sums, strict=True)]
    k_next = b.add(k, ir.Constant(I64, 1))
    k.add_incoming(k_next, loop)
    for a, value in zip(sums, new, strict=True):
        a.add_incoming(value, loop)
    b.cbranch(b.icmp_signed("<", k_next, end), loop, done)
    b.position_at_end(done)
    for value, p in zip(new, where, strict=True):
        b.store(value, p, align=4)


def _weights(b: Any, layout: Layout, base: Any, k: Any) -> list[Any]:
    """Columns [0, LANES) and [LANES, 2 LANES) at k as f32 vectors."""
    if layout == "pair_bf16":
        odd = b.and_(k, ir.Constant(I64, 1))
        up = splat(b, b.trunc(b.shl(odd, ir.Constant(I64, 4)), I32))  # the high half as it is, the low one by 16
        words = b.gep(b.inttoptr(base, I32.as_pointer()), [b.mul(b.lshr(k, ir.Constant(I64, 1)), ir.Constant(I64, PANEL))])
        places = [b.bitcast(b.gep(words, [ir.Constant(I64, v * LANES)]), VI.as_pointer()) for v in range(2)]
        return [b.bitcast(b.and_(b.shl(b.load(p, align=4), up), const_vi(0xFFFF0000)), VF) for p in places]
    halves = b.gep(b.inttoptr(base, I16.as_pointer()), [b.mul(k, ir.Constant(I64, PANEL))])
    places = [b.bitcast(b.gep(halves, [ir.Constant(I64, v * LANES)]), VHALF.as_pointer()) for v in range(2)]
    return [b.fpext(b.load(p, align=2), VF) for p in places]


def _tile(b: Any, args: list[Any], rows: int, layout: Layout) -> None:
    """Emits one tile of `rows` x PANEL; args as in `make`."""
    xp, ldx, wp, op, ldo, n = args
    x = b.inttoptr(xp, F32.as_pointer())
    out = b.inttoptr(op, F32.as_pointer())
    xrow = [b.gep(x, [b.mul(ldx, ir.Constant(I64, r))]) for r in range(rows)]
    where = []
    for r in range(rows):
        at = b.mul(ldo, ir.Constant(I64, r))
        where += [b.bitcast(b.gep(out, [b.add(at, ir.Constant(I64, v * LANES))]), VF.as_pointer()) for v in range(2)]
    ahead = b.add(wp, ir.Constant(I64, LOOK_AHEAD))

    def links(k: Any) -> list[tuple[Any, Any]]:
        emit_prefetch(b, b.add(ahead, b.mul(k, ir.Constant(I64, ROW_BYTES))), near=2)
        columns = _weights(b, layout, wp, k)
        return [(q, w) for row in xrow for q in [splat(b, b.load(b.gep(row, [k])))] for w in columns]

    zero = ir.Constant(VF, [0.0] * LANES)
    emit_chains(b, ir.Constant(I64, 0), n, [zero] * len(where), links, where)


def make(sizes: tuple[int, ...], layout: Layout) -> Callable[..., Any]:
    """Tiles of PANEL columns as one numba intrinsic that jumps to the tile of the given number of rows.

    Arguments, all i64: rows (one of `sizes`; for any other nothing is done), x address (f32), ldx (f32 between rows of x), w
    address, out address (f32), ldo (f32 between rows of out), K (>= 1).
    """

    @intrinsic
    def tiles(typingctx: Any, rows: Any, xp: Any, ldx: Any, wp: Any, op: Any, ldo: Any, n: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            emit_by_rows(b, args[0], sizes, lambda size: _tile(b, list(args[1:]), size, layout))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return tiles


@intrinsic
def add_segments(typingctx: Any, part: Any, lds: Any, out: Any, bias: Any, biased: Any) -> Any:
    """The balanced tree over 8 segments for one row of a panel; adds a bias after it where `biased` is not 0.

    Arguments, all i64: address of the first segment's PANEL sums (f32), f32 between segments, address of the output row,
    address of the bias, flag.
    """

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        part, lds, out, bias, biased = args
        p = b.inttoptr(part, F32.as_pointer())
        o = b.inttoptr(out, F32.as_pointer())
        sums = []
        for v in range(2):
            s = []
            for i in range(8):
                at = b.add(b.mul(lds, ir.Constant(I64, i)), ir.Constant(I64, v * LANES))
                s.append(b.load(b.bitcast(b.gep(p, [at]), VF.as_pointer()), align=4))
            left = b.fadd(b.fadd(s[0], s[1]), b.fadd(s[2], s[3]))
            right = b.fadd(b.fadd(s[4], s[5]), b.fadd(s[6], s[7]))
            sums.append(b.fadd(left, right))
        entry = b.block
        with b.if_then(b.icmp_signed("!=", biased, ir.Constant(I64, 0))):
            q = b.inttoptr(bias, F32.as_pointer())
            with_bias = []
            for v in range(2):
                at = b.gep(q, [ir.Constant(I64, v * LANES)])
                with_bias.append(b.fadd(sums[v], b.load(b.bitcast(at, VF.as_pointer()), align=4)))
            inside = b.block
        for v in range(2):
            phi = b.phi(VF)
            phi.add_incoming(sums[v], entry)
            phi.add_incoming(with_bias[v], inside)
            sums[v] = phi
        for v in range(2):
            at = b.gep(o, [ir.Constant(I64, v * LANES)])
            b.store(sums[v], b.bitcast(at, VF.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen
