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
from queueproof.kernels.numba.microkernel import AVX512, LANES, LOOK_AHEAD, PAIR_BYTES, VF, emit_by_rows

DOTS: bool = AVX512 and bool(llvm.get_host_cpu_features().get("avx512bf16", False))
_NEAR = 3  # rows that one pointer reaches: itself, and by one and two row lengths


def _assembly(rows: int) -> tuple[str, int, int]:
    """The loop over pairs; numbers of its accumulators and pointers to x. Operands: accumulators, 2 weights, 1 x, pointers to x,
    pointer to w, the counter; then bytes between rows of x."""
    sums, groups = 2 * rows, -(-rows // _NEAR)
    w0, w1, x = (f"${sums + i}" for i in range(3))
    first = sums + 3
    w, counter, stride = (f"${n}" for n in (first + groups, first + groups + 1, first + 2 * (groups + 2)))
    lines = [f"vpxord ${i}, ${i}, ${i}" for i in range(sums)]
    lines.append("1:")
    lines += [f"prefetcht1 {LOOK_AHEAD + line}({w})" for line in range(0, PAIR_BYTES, 64)]
    lines += [f"vmovups ({w}), {w0}", f"vmovups 64({w}), {w1}"]
    for r in range(rows):
        base, step = f"${first + r // _NEAR}", r % _NEAR
        place = f"({base}, {stride}, {step})" if step else f"({base})"
        lines += [f"vbroadcastss {place}, {x}", f"vdpbf16ps {x}, {w0}, ${2 * r}", f"vdpbf16ps {x}, {w1}, ${2 * r + 1}"]
    lines += [f"addq $$4, ${first + i}" for i in range(groups)]
    lines += [f"addq $${PAIR_BYTES}, {w}", f"decq {counter}", "jnz 1b"]
    return "\n".join(lines), sums, groups


def _tile(b: Any, args: list[Any], rows: int) -> None:
    xp, ldx, wp, op, ldo, count = args
    text, sums, groups = _assembly(rows)
    row = b.shl(ldx, ir.Constant(I64, 2))
    where = [*(b.add(xp, b.mul(row, ir.Constant(I64, r))) for r in range(0, rows, _NEAR)), wp, count]
    changed = groups + 2  # by the loop: inputs that are tied to results
    result = ir.LiteralStructType([VF] * (sums + 3) + [I64] * changed)
    constraints = ["=&v"] * (sums + 3) + ["=&r"] * changed
    constraints += [str(sums + 3 + i) for i in range(changed)] + ["r", "~{cc}", "~{memory}"]
    kind = ir.FunctionType(result, [I64] * (changed + 1))
    llvm.initialize_native_asmparser()
    found = b.call(ir.InlineAsm(kind, text, ",".join(constraints), side_effect=True), [*where, row])
    out = b.inttoptr(op, F32.as_pointer())
    for r in range(rows):
        for v in range(2):
            at = b.add(b.mul(ldo, ir.Constant(I64, r)), ir.Constant(I64, v * LANES))
            p = b.bitcast(b.gep(out, [at]), VF.as_pointer())
            b.store(b.extract_value(found, 2 * r + v), p, align=4)


def make(sizes: tuple[int, ...]) -> Callable[..., Any]:
    """Tiles as one numba intrinsic that jumps to the tile of the given number of rows.

    Arguments, all i64: rows (one of `sizes`; for any other nothing is done), x address (words of pairs), ldx (words between rows
    of x), w address (`pair_bf16`), out address (f32), ldo (f32 between rows of out), pairs (>= 1).
    """

    @intrinsic
    def tiles(typingctx: Any, rows: Any, xp: Any, ldx: Any, wp: Any, op: Any, ldo: Any, count: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            emit_by_rows(b, args[0], sizes, lambda size: _tile(b, list(args[1:]), size))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return tiles
