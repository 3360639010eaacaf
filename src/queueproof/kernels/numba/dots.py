"""The register tile of `microkernel` with the dot instruction of AVX-512 BF16, at twice the rate of fused multiply-adds.

`vdpbf16ps` adds to each f32 the product of the high halves of two words and then that of the low halves, each as a fused
multiply-add that rounds to nearest even: two links of the chain, in its order. It takes numbers below 2^-126 for zeros, so
it is only used where there can be none (`pairs`). The canary holds its bits against the recorded ones before anything is served.

In assembly, because LLVM's scheduler asks for all values of x before it uses the first and so runs out of registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from queueproof.kernels.numba.ir import F32, I64
from queueproof.kernels.numba.microkernel import AVX512, LANES, PAIR_BYTES, PANEL_CACHE, VF, emit_by_rows

DOTS: bool = AVX512 and bool(llvm.get_host_cpu_features().get("avx512bf16", False))
_NEAR = 3  # rows that one pointer reaches: itself, and by one and two row lengths
_HINT = {2: "prefetcht1", 3: "prefetcht0"}[PANEL_CACHE]


def _assembly(rows: int, segments: int) -> tuple[str, int, int]:
    """The loop over pairs; numbers of its accumulators and pointers. Operands: accumulators, 2 weights, 1 x, pointers to x, pointers
    to w, the counter; then bytes between rows of x, and of look-ahead."""
    sums = 2 * rows * segments
    groups = -(-rows // _NEAR)  # pointers into x for each segment
    w0, w1, x = (f"${sums + i}" for i in range(3))
    first = sums + 3
    pointers = segments * (groups + 1)
    counter = first + pointers
    stride, ahead = (f"${counter + 1 + pointers + 1 + i}" for i in range(2))  # after the inputs that are tied to pointers
    lines = [f"vpxord ${i}, ${i}, ${i}" for i in range(sums)]
    lines.append("1:")
    for s in range(segments):
        w = f"${first + segments * groups + s}"
        lines += [f"{_HINT} {line}({w}, {ahead})" for line in range(0, PAIR_BYTES, 64)]
        lines += [f"vmovups ({w}), {w0}", f"vmovups 64({w}), {w1}"]
        for r in range(rows):
            base, step = f"${first + s * groups + r // _NEAR}", r % _NEAR
            place = f"({base}, {stride}, {step})" if step else f"({base})"
            at = 2 * (s * rows + r)
            lines += [f"vbroadcastss {place}, {x}", f"vdpbf16ps {x}, {w0}, ${at}", f"vdpbf16ps {x}, {w1}, ${at + 1}"]
    lines += [f"addq $$4, ${first + i}" for i in range(segments * groups)]
    lines += [f"addq $${PAIR_BYTES}, ${first + segments * groups + s}" for s in range(segments)]
    lines += [f"decq ${counter}", "jnz 1b"]
    return "\n".join(lines), sums, pointers


def _tile(b: Any, args: list[Any], rows: int, segments: int) -> None:
    xp, ldx, wp, ahead, op, ldo, count, lds = args
    text, sums, pointers = _assembly(rows, segments)
    row = b.shl(ldx, ir.Constant(I64, 2))
    where = [
        b.add(xp, b.add(b.mul(count, ir.Constant(I64, 4 * s)), b.mul(row, ir.Constant(I64, r))))
        for s in range(segments)
        for r in range(0, rows, _NEAR)
    ]
    where += [b.add(wp, b.mul(count, ir.Constant(I64, PAIR_BYTES * s))) for s in range(segments)]
    where.append(count)
    result = ir.LiteralStructType([VF] * (sums + 3) + [I64] * (pointers + 1))
    constraints = ["=&v"] * (sums + 3) + ["=&r"] * (pointers + 1)
    constraints += [str(sums + 3 + i) for i in range(pointers + 1)] + ["r", "r", "~{cc}", "~{memory}"]
    kind = ir.FunctionType(result, [I64] * (pointers + 3))
    llvm.initialize_native_asmparser()
    found = b.call(ir.InlineAsm(kind, text, ",".join(constraints), side_effect=True), [*where, row, ahead])
    out = b.inttoptr(op, F32.as_pointer())
    for s in range(segments):
        for r in range(rows):
            for v in range(2):
                row = b.add(b.mul(lds, ir.Constant(I64, s)), b.mul(ldo, ir.Constant(I64, r)))
                at = b.add(row, ir.Constant(I64, v * LANES))
                p = b.bitcast(b.gep(out, [at]), VF.as_pointer())
                b.store(b.extract_value(found, 2 * (s * rows + r) + v), p, align=4)


def make(sizes: tuple[int, ...], segments: int = 1) -> Callable[..., Any]:
    """Tiles as one numba intrinsic that jumps to the tile of the given number of rows.

    Arguments, all i64: rows (one of `sizes`; for any other nothing is done), x address (words of pairs), ldx (words between rows
    of x), w address (`pair_bf16`), bytes of look-ahead, out address (f32), ldo (f32 between rows of out), pairs of a segment
    (>= 1), lds (f32 between segments of out). Segments of x and of w follow each other.
    """

    @intrinsic
    def tiles(typingctx: Any, rows: Any, xp: Any, ldx: Any, wp: Any, ahead: Any, op: Any, ldo: Any, count: Any, lds: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            emit_by_rows(b, args[0], sizes, lambda size: _tile(b, list(args[1:]), size, segments))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return tiles
