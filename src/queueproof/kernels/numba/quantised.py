"""Weights that stay 8- or 4-bit in memory, and the 16-bit panel that a thread makes of them just before it is read.

A step with few rows takes as long as reading the weights does, so half or a quarter of the bytes is worth some integer
work. The values are those that `gguf.dequantize` and the rounding to bfloat16 give, bit for bit: `d · q` is exact in f32
(11 bits times 8), so `d · q + m` rounds once whether it is fused or not. What follows is the matmul on bf16 weights; the
tree does not know how they were stored. Where AVX-512 has the rounding to bfloat16 as an instruction it is used: it would take
subnormal f32 for zeros, but all values here are multiples of 2^-24, the smallest f16.

A packed panel is K / 32 blocks after another. A block holds, for PANEL columns, the f16 scales d, for Q4_1 the f16 minima
m, and the quants: a word of a group has a column's values of 8 (4-bit) or 4 (8-bit) k after another, lowest bits first.
Bytes are those of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from queueproof.kernels.numba.dots import DOTS
from queueproof.kernels.numba.ir import I8, I16, I32, I64, carray, emit_prefetch, f16_to_f32, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.math import bf16
from queueproof.kernels.numba.microkernel import LANES, PAIR_BYTES, PANEL, VF, VHALF, VI, const_vi
from queueproof.kernels.numba.pairs import need_of
from queueproof.kernels.ops import QUANT_BLOCK, QUANT_SCALES, U8, Quantised

# No value is smaller than 2^-24 (a power of two that is a bf16), and zeros do not count.
NEED = need_of(np.array([(127 - 24) << 7], np.uint16))
LOOK_AHEAD = 6144  # bytes ahead of what is read; a thread's panels lie one after another


@dataclass(frozen=True)
class Kind:
    """code: of the kind in an instruction (0 is for 16-bit weights). scales: f16 before the quants. bits: of a quant."""

    code: int
    scales: int
    bits: int

    @property
    def per_word(self) -> int:
        return 32 // self.bits

    @property
    def block_bytes(self) -> int:
        """Of PANEL columns."""
        return PANEL * (2 * self.scales + QUANT_BLOCK * self.bits // 8)


_KEPT: Final[tuple[tuple[Quantised, int], ...]] = (("Q8_0", 8), ("Q4_0", 4), ("Q4_1", 4))
KINDS: Final = {name: Kind(code, QUANT_SCALES[name], bits) for code, (name, bits) in enumerate(_KEPT, 1)}
_Q4_0, _Q4_1 = KINDS["Q4_0"].code, KINDS["Q4_1"].code
_BYTES = np.array([0, *(k.block_bytes for k in KINDS.values())])
_SCALES = np.array([0, *(k.scales for k in KINDS.values())])
_BITS = np.array([0, *(k.bits for k in KINDS.values())])


def _bf16_bits(b: Any, value: Any) -> Any:
    """The bits of finite f32 values after rounding to bf16 (nearest, even), with whatever in the low halves."""
    bits = b.bitcast(value, VI)
    odd = b.and_(b.lshr(bits, const_vi(16)), const_vi(1))
    return b.add(bits, b.add(odd, const_vi(0x7FFF)))


def _pairs(b: Any, first: Any, second: Any) -> Any:
    """LANES words of two bf16 from f32: the first in the high halves."""
    if DOTS:  # in assembly, as llvmlite has no name for the type of the intrinsic; the later operand comes first
        llvm.initialize_native_asmparser()
        kind, halves = ir.FunctionType(VI, [VF, VF]), ir.VectorType(I16, 2 * LANES)
        both = b.call(ir.InlineAsm(kind, "vcvtne2ps2bf16 $2, $1, $0", "=v,v,v", side_effect=False), [first, second])
        order = ir.Constant(ir.VectorType(I32, 2 * LANES), [i // 2 + i % 2 * LANES for i in range(2 * LANES)])
        return b.bitcast(b.shuffle_vector(b.bitcast(both, halves), ir.Constant(halves, ir.Undefined), order), VI)
    high, low = _bf16_bits(b, first), _bf16_bits(b, second)
    return b.or_(b.lshr(low, const_vi(16)), b.and_(high, const_vi(0xFFFF0000)))


def _block(b: Any, kind: Kind, src: Any, dst: Any) -> None:
    """Emits one block: QUANT_BLOCK rows of a `pair_bf16` panel at dst."""
    fma = cgutils.get_or_insert_function(b.module, ir.FunctionType(VF, [VF, VF, VF]), f"llvm.fma.v{LANES}f32")

    def at(pointer: Any, offset: int, vector: Any) -> Any:
        place = b.gep(b.inttoptr(pointer, I8.as_pointer()), [ir.Constant(I64, offset)])
        return b.bitcast(place, vector.as_pointer())

    def scale(which: int, half: int) -> Any:
        return b.fpext(b.load(at(src, 2 * (which * PANEL + half * LANES), VHALF), align=2), VF)

    def value(half: int, words: Any, k: int) -> Any:
        """Quant k of each word as f32."""
        if kind.bits == 8:
            q = b.ashr(b.shl(words, const_vi(24 - 8 * k)), const_vi(24))
        else:
            q = b.and_(b.lshr(words, const_vi(4 * k)), const_vi(15))
            q = q if m else b.sub(q, const_vi(8))
        q = b.sitofp(q, VF)
        return b.call(fma, [d[half], q, m[half]]) if m else b.fmul(d[half], q)

    d = [scale(0, half) for half in range(2)]
    m = [scale(1, half) for half in range(2)] if kind.scales == 2 else None
    for group in range(QUANT_BLOCK // kind.per_word):
        first = 2 * kind.scales * PANEL + group * 8 * LANES
        words = [b.load(at(src, first + half * 4 * LANES, VI), align=4) for half in range(2)]
        for i in range(0, kind.per_word, 2):
            for half in range(2):
                values = [value(half, words[half], k) for k in (i, i + 1)]
                offset = (group * kind.per_word + i) // 2 * PAIR_BYTES + half * 4 * LANES
                b.store(_pairs(b, *values), at(dst, offset, VI), align=4)


@intrinsic
def expand(typingctx: Any, code: Any, src: Any, dst: Any, blocks: Any) -> Any:
    """Makes the `pair_bf16` panel of a quantised one. All i64: code of the kind, addresses of both, blocks (>= 1)."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        code, src, dst, blocks = args
        end = b.append_basic_block("expanded")
        jump = b.switch(code, end)
        for name, kind in KINDS.items():
            before, loop = b.append_basic_block(name), b.append_basic_block(f"{name}_block")
            jump.add_case(ir.Constant(I64, kind.code), before)
            b.position_at_end(before)
            b.branch(loop)
            b.position_at_end(loop)
            i = b.phi(I64)
            i.add_incoming(ir.Constant(I64, 0), before)
            from_ = b.add(src, b.mul(i, ir.Constant(I64, kind.block_bytes)))
            for line in range(0, kind.block_bytes, 64):
                emit_prefetch(b, b.add(from_, ir.Constant(I64, LOOK_AHEAD + line)), near=2)
            _block(b, kind, from_, b.add(dst, b.mul(i, ir.Constant(I64, QUANT_BLOCK * 4 * LANES))))
            following = b.add(i, ir.Constant(I64, 1))
            i.add_incoming(following, b.block)
            b.cbranch(b.icmp_signed("<", following, blocks), loop, end)
        b.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@inner
def panel_bytes(code, k):
    return np.int64(k // QUANT_BLOCK * _BYTES[code])


@inner
def read_row(code, table, k, row, out):
    """Row `row` of a quantised matrix at `table` as f32 into out [k]."""
    p, lane = row // PANEL, row % PANEL
    bits, scales = _BITS[code], _SCALES[code]
    per_word, low = 32 // bits, (1 << bits) - 1
    panel = np.int64(table + p * panel_bytes(code, k))
    for block in range(k // QUANT_BLOCK):
        at = np.int64(panel + block * _BYTES[code])
        scale = carray(void_ptr(at), scales * PANEL, np.uint16)
        words = carray(void_ptr(np.int64(at + 2 * scales * PANEL)), QUANT_BLOCK // per_word * PANEL, np.uint32)
        d = f16_to_f32(scale[lane])
        for i in range(QUANT_BLOCK):
            word = words[i // per_word * PANEL + lane]
            q = np.int64((word >> np.uint32(bits * (i % per_word))) & np.uint32(low))
            if code == _Q4_1:
                value = d * np.float32(q) + f16_to_f32(scale[PANEL + lane])
            else:
                value = d * np.float32(q - 8 if code == _Q4_0 else (q + 128) % 256 - 128)
            out[block * QUANT_BLOCK + i] = bf16(value)


def pack_rows(kind: Kind, raw: U8, panel: NDArray[np.uint8], lane: int) -> None:
    """Puts rows of a GGUF tensor, u8 [rows, K / 32 * bytes of a block], into one panel u8 [K / 32, block_bytes] from column `lane` on."""
    rows, blocks = raw.shape[0], panel.shape[0]
    columns = slice(lane, lane + rows)
    cells = raw.reshape(rows, blocks, -1)
    head = 2 * kind.scales
    scales = np.ascontiguousarray(cells[:, :, :head]).view(np.uint16)  # [rows, blocks, scales]
    into = panel[:, : head * PANEL].view(np.uint16).reshape(blocks, kind.scales, PANEL)
    into[:, :, columns] = scales.transpose(1, 2, 0)
    quants = cells[:, :, head:]
    if kind.bits == 4:  # byte j holds k = j and j + 16; two neighbours in k make a byte here
        in_order = np.concatenate([quants & 15, quants >> 4], axis=2)
        quants = in_order[:, :, 0::2] | in_order[:, :, 1::2] << 4
    words = np.ascontiguousarray(quants).view("<u4")  # [rows, blocks, groups]
    to = panel[:, head * PANEL :].view(np.uint32).reshape(blocks, words.shape[2], PANEL)
    to[:, :, columns] = words.transpose(1, 2, 0)
