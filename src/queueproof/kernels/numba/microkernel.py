"""The inner loop of every matrix product: a register tile of chains.

`out[r, n] = chain over k of (x[r, k], w[k, n])` for MR rows and 2 * LANES columns, and for SG segments of K at once.
Vectors run over n, never over k, so the order of additions is that of the definition whatever the tile is. The tile only
decides how many independent chains are in flight: an FMA takes 4 cycles and two can start per cycle, so at least 8.

Weights are 16-bit in memory:
* `pair_bf16`: a row of a panel is PANEL 32-bit words, word j holding column j at k (high half) and at k + 1 (low half), so one
  mask and one shift make two vectors of f32;
* `plain_f16`, `plain_bf16`: 2 * LANES consecutive halves, with any stride between rows (also used on the KV cache).

`dot_bf16` reads `pair_bf16` panels and x in the same pairs with the dot instruction of AVX-512 BF16, at twice the rate. It is
two fused multiply-adds one after the other, the high half first, each rounded to nearest even: the chain, in its order.
It would take subnormal numbers for zeros; `linear` uses it only where there can be none (docs/arithmetic.md section 2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from queueproof.kernels.numba.ir import F16, F32, I8, I16, I32, I64, emit_prefetch

Layout = Literal["pair_bf16", "dot_bf16", "plain_bf16", "plain_f16"]

AVX512: bool = bool(llvm.get_host_cpu_features().get("avx512f", False))
DOTS: bool = AVX512 and bool(llvm.get_host_cpu_features().get("avx512bf16", False))
LANES: int = 16 if AVX512 else 8  # of one native vector; NEON takes two registers for it
PANEL: int = 2 * LANES  # columns of a tile
PAIR_BYTES: int = 4 * PANEL  # of a row of a `pair_bf16` panel
# The cache into which the next panel is asked for: at K = 576 one of AVX-512 has 36 KB, more than the nearest holds.
PANEL_CACHE = 2 if AVX512 else 3
# Rows of a tile: 2 accumulators a row, 2 weights and 1 x fit the 16 registers, or the 32 of AVX-512.
SIZES: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12) if AVX512 else (1, 2, 3, 4, 5, 6)
MAX_ROWS: int = SIZES[-1]

VF = ir.VectorType(F32, LANES)
VI = ir.VectorType(I32, LANES)
VH = ir.VectorType(I16, LANES)
VHALF = ir.VectorType(F16, LANES)


def _splat(b: Any, scalar: Any) -> Any:
    vector = ir.VectorType(scalar.type, LANES)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), const_vi(0))


def const_vi(value: int) -> ir.Constant:
    return ir.Constant(VI, [value] * LANES)


def _at(b: Any, base: Any, row: Any, step: int, vector: Any) -> Any:
    """Pointer to a vector: `row` (i64) times `step` bytes from the address `base`."""
    place = b.gep(b.inttoptr(base, I8.as_pointer()), [b.mul(row, ir.Constant(I64, step))])
    return b.bitcast(place, vector.as_pointer())


def _weights(b: Any, layout: Layout, vectors: int, base: Any, row: Any, ldw: Any) -> list[Any]:
    """Columns [0, LANES), [LANES, 2 LANES), … of row `row` as f32 vectors; layout plain."""
    halves = []
    offset = b.mul(row, ldw)
    for v in range(vectors):
        p = b.gep(b.inttoptr(base, I16.as_pointer()), [b.add(offset, ir.Constant(I64, v * LANES))])
        if layout == "plain_f16":
            halves.append(b.fpext(b.load(b.bitcast(p, VHALF.as_pointer()), align=2), VF))
        else:
            h = b.load(b.bitcast(p, VH.as_pointer()), align=2)
            halves.append(b.bitcast(b.shl(b.zext(h, VI), const_vi(16)), VF))
    return halves


def _pair(b: Any, base: Any, row: Any) -> list[Any]:
    """The PANEL words of row `row` of a `pair_bf16` panel as two vectors."""
    at = [b.add(base, ir.Constant(I64, 4 * LANES * v)) for v in range(2)]
    return [b.load(_at(b, address, row, PAIR_BYTES, VI), align=4) for address in at]


def _first(b: Any, words: list[Any]) -> list[Any]:
    return [b.bitcast(b.and_(w, const_vi(0xFFFF0000)), VF) for w in words]


def _second(b: Any, words: list[Any]) -> list[Any]:
    return [b.bitcast(b.shl(w, const_vi(16)), VF) for w in words]


def _loop(b: Any, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """`values = body(i, values)` for i (i64) from 0 to count - 1; count may be 0. Returns the last values."""
    entry, loop, done = b.block, b.append_basic_block("chain"), b.append_basic_block("chained")
    none = b.icmp_signed("<", count, ir.Constant(I64, 1))
    b.cbranch(none, done, loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(ir.Constant(I64, 0), entry)
    values = [b.phi(v.type) for v in initial]
    for value, first in zip(values, initial, strict=True):
        value.add_incoming(first, entry)
    new = body(i, values)
    following = b.add(i, ir.Constant(I64, 1))
    i.add_incoming(following, b.block)
    for value, v in zip(values, new, strict=True):
        value.add_incoming(v, b.block)
    b.cbranch(b.icmp_signed("<", following, count), loop, done)
    inside = b.block
    b.position_at_end(done)
    last = [b.phi(v.type) for v in initial]
    for value, first, v in zip(last, initial, new, strict=True):
        value.add_incoming(first, entry)
        value.add_incoming(v, inside)
    return last


def _tile(b: Any, args: list[Any], rows: int, segments: int, layout: Layout, vectors: int, resume: bool) -> None:
    """Emits one tile of `rows` x `vectors * LANES` for `segments` segments; args as in `make`."""
    xp, ldx, wp, ldw, op, ldo, n, lds = args
    fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(VF, [VF, VF, VF]), f"llvm.fma.v{LANES}f32")
    x = b.inttoptr(xp, (I32 if layout == "dot_bf16" else F32).as_pointer())
    out = b.inttoptr(op, F32.as_pointer())
    xrow = [b.gep(x, [b.mul(ldx, ir.Constant(I64, r))]) for r in range(rows)]
    where = []
    for s in range(segments):
        for r in range(rows):
            at = b.add(b.mul(lds, ir.Constant(I64, s)), b.mul(ldo, ir.Constant(I64, r)))
            for v in range(vectors):
                p = b.gep(out, [b.add(at, ir.Constant(I64, v * LANES))])
                where.append(b.bitcast(p, VF.as_pointer()))
    zero = ir.Constant(VF, [0.0] * LANES)
    initial = [b.load(p, align=4) if resume else zero for p in where]
    one = ir.Constant(I64, 1)
    pairs = n if layout == "dot_bf16" else b.ashr(b.add(n, one), one)  # rows of a segment's panel, the last half full for odd n

    def link(acc: list[Any], k: Any, columns: list[Any]) -> list[Any]:
        """One more product for every chain of a segment."""
        new: list[Any] = []
        for r in range(rows):
            q = _splat(b, b.load(b.gep(xrow[r], [k])))
            for w in columns:
                new.append(dot(b, q, w, acc[len(new)]) if layout == "dot_bf16" else b.call(fma, [q, w, acc[len(new)]]))
        return new

    def chains(acc: list[Any], segment: int) -> list[Any]:
        return acc[segment * rows * vectors : (segment + 1) * rows * vectors]

    def words(i: Any, segment: int) -> list[Any]:
        row = b.add(i, b.mul(pairs, ir.Constant(I64, segment)))
        for line in range(0, PAIR_BYTES, 64):
            ahead = b.add(b.add(wp, ldw), b.mul(row, ir.Constant(I64, PAIR_BYTES)))
            emit_prefetch(b, b.add(ahead, ir.Constant(I64, line)), near=PANEL_CACHE)
        return _pair(b, wp, row)

    def plain(k: Any, acc: list[Any]) -> list[Any]:
        new: list[Any] = []
        for s in range(segments):
            ks = b.add(k, b.mul(n, ir.Constant(I64, s)))
            new += link(chains(acc, s), ks, _weights(b, layout, vectors, wp, ks, ldw))
        return new

    def two(i: Any, acc: list[Any]) -> list[Any]:
        new: list[Any] = []
        for s in range(segments):
            w = words(i, s)
            k = b.add(b.shl(i, one), b.mul(n, ir.Constant(I64, s)))
            half = link(chains(acc, s), k, _first(b, w))
            new += link(half, b.add(k, one), _second(b, w))
        return new

    def last_of_odd(_: Any, acc: list[Any]) -> list[Any]:
        new: list[Any] = []
        for s in range(segments):
            k = b.add(b.sub(n, one), b.mul(n, ir.Constant(I64, s)))
            new += link(chains(acc, s), k, _first(b, words(b.sub(pairs, one), s)))
        return new

    def dots(i: Any, acc: list[Any]) -> list[Any]:
        new: list[Any] = []
        for s in range(segments):
            w = words(i, s)
            new += link(chains(acc, s), b.add(i, b.mul(pairs, ir.Constant(I64, s))), w)
        return new

    if layout == "pair_bf16":
        sums = _loop(b, b.ashr(n, one), initial, two)
        sums = _loop(b, b.and_(n, one), sums, last_of_odd)
    else:
        sums = _loop(b, n, initial, dots if layout == "dot_bf16" else plain)
    for value, p in zip(sums, where, strict=True):
        b.store(value, p, align=4)


def dot(b: Any, x: Any, w: Any, acc: Any) -> Any:
    """acc + high halves' product, then + low halves' product, each an fma; x, w: VI of bf16 pairs. In assembly, as llvmlite
    has no name for the type that the intrinsic takes."""
    llvm.initialize_native_asmparser()
    kind = ir.FunctionType(VF, [VI, VI, VF])
    return b.call(ir.InlineAsm(kind, "vdpbf16ps $1, $2, $0", "=v,v,v,0", side_effect=False), [x, w, acc])


def make(
    sizes: tuple[int, ...], segments: int, layout: Layout, vectors: int = 2, resume: bool = False
) -> Callable[..., Any]:
    """Tiles of `vectors * LANES` columns as one numba intrinsic that jumps to the tile of the given number of rows.

    Arguments, all i64: rows (one of `sizes`; for any other nothing is done), x address (f32), ldx (f32 between rows of x), w
    address, ldw (elements between rows of w; for pairs bytes of look-ahead), out address (f32), ldo (f32 between rows of
    out), K (per segment, >= 1), lds (f32 between segments of out). Segment s reads x columns from s * K on and rows of w after
    those of the segments before it, and writes at out + s * lds. With `resume` the chains go on from what is in out.
    For dot_bf16, x, ldx and K are in words of pairs.

    Tiles on pairs ask for the memory `ldw` bytes ahead of what they read: few rows are bound by memory, and a panel's
    segments are too short for the hardware to see the stream.
    """

    @intrinsic
    def tiles(
        typingctx: Any, rows: Any, xp: Any, ldx: Any, wp: Any, ldw: Any, op: Any, ldo: Any, n: Any, lds: Any
    ) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            end = b.append_basic_block("end")
            jump = b.switch(args[0], end)
            for size in sizes:
                jump.add_case(ir.Constant(I64, size), b.append_basic_block(f"rows{size}"))
            for size, (_, block) in zip(sizes, list(jump.cases), strict=True):
                b.position_at_end(block)
                _tile(b, list(args[1:]), size, segments, layout, vectors, resume)
                b.branch(end)
            b.position_at_end(end)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

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
