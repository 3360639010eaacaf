"""Operations on one token's row: embedding, residual, RMSNorm, rotary embedding with the cache write, silu·mul.

Arguments are addresses and sizes; rows are split evenly over the threads (`tid` of `nt`), which no sum can see.
`half`: 0 for bfloat16, 1 for float16.
"""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.ieee1 import ROW_BLOCK, ROW_LANES, SEGMENTS
from queueproof.kernels.numba.ir import carray, f16_to_f32, float_of, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.math import ONE, bf16, bf16_bits, f16, f16_bits, halve, silu
from queueproof.kernels.numba.microkernel import PAIR_BYTES, PANEL
from queueproof.kernels.numba.pairs import pair_count, segment_pairs
from queueproof.kernels.numba.quantised import read_row

ZERO = np.float32(0)


@inner
def f32_at(address, n):
    return carray(void_ptr(np.int64(address)), n, np.float32)


@inner
def round16(x, half):
    return bf16(x) if half == 0 else f16(x)


@inner
def round16_bits(x, half):
    return np.uint16(bf16_bits(x) if half == 0 else f16_bits(x))


@inner
def row_sum(v, n, lanes):
    """The row sum of v[0:n] (docs/arithmetic.md section 2); destroys v. lanes: f32 [ROW_LANES] scratch."""
    while True:
        blocks = (n + ROW_BLOCK - 1) // ROW_BLOCK
        for b in range(blocks):
            i = b * ROW_BLOCK
            end = min(n, i + ROW_BLOCK)
            for lane in range(ROW_LANES):
                lanes[lane] = ZERO
            while i + ROW_LANES <= end:
                for lane in range(ROW_LANES):
                    lanes[lane] = lanes[lane] + v[i + lane]
                i += ROW_LANES
            for lane in range(end - i):
                lanes[lane] = lanes[lane] + v[i + lane]
            v[b] = halve(lanes, ROW_LANES)
        if blocks == 1:
            return v[0]
        n = blocks


@inner
def embed(tid, nt, half, table, k, ids, rows, out, kind):
    """out[i, :] = table[ids[i], :], read from the packed panels of `linear`; kind as there."""
    tokens = carray(void_ptr(ids), rows, np.int32)
    for i in range(tid * rows // nt, (tid + 1) * rows // nt):
        to = f32_at(out + 4 * i * k, k)
        if kind != 0:
            read_row(kind, table, k, tokens[i], to)
            continue
        p, lane = tokens[i] // PANEL, tokens[i] % PANEL
        if half == 0:
            seg, count = (k + SEGMENTS - 1) // SEGMENTS, pair_count(k)
            words = carray(void_ptr(np.int64(table + p * count * PAIR_BYTES)), count * PANEL, np.uint32)
            for s in range(SEGMENTS):
                first = s * segment_pairs(k) * PANEL + lane
                for i in range(min(seg, k - s * seg)):
                    word = words[first + i // 2 * PANEL]
                    to[s * seg + i] = float_of(np.int32(word << np.uint32(16) if i % 2 else word & np.uint32(0xFFFF0000)))
        else:
            panel = carray(void_ptr(np.int64(table + p * k * PANEL * 2)), k * PANEL, np.uint16)
            for j in range(k):
                to[j] = f16_to_f32(panel[j * PANEL + lane])


@inner
def add(tid, nt, h, delta, n):
    lo, hi = tid * n // nt, (tid + 1) * n // nt
    a, b = f32_at(h + 4 * lo, hi - lo), f32_at(delta + 4 * lo, hi - lo)
    for i in range(hi - lo):
        a[i] = a[i] + b[i]


@inner
def norm_factor(x, n, eps, work, lanes):
    """rsqrt(row_sum(x * x) / n + eps)."""
    for j in range(n):
        work[j] = x[j] * x[j]
    return ONE / np.sqrt(row_sum(work, n, lanes) / np.float32(n) + eps)


@inner
def rms_norm(tid, nt, half, scratch, h, delta, weight, eps_bits, rows, n, out, total):
    """out = round16((x * r) * weight) with x = h, or h + delta where delta is not 0; such an x also goes to `total` where that
    is not 0. scratch: 2 n + ROW_LANES f32."""
    eps = float_of(np.int32(eps_bits))
    w, lanes, work = f32_at(weight, n), f32_at(scratch, ROW_LANES), f32_at(scratch + 4 * ROW_LANES, n)
    for i in range(tid * rows // nt, (tid + 1) * rows // nt):
        x, y = f32_at(h + 4 * i * n, n), f32_at(out + 4 * i * n, n)
        if delta != 0:
            d, both = f32_at(delta + 4 * i * n, n), f32_at(scratch + 4 * (ROW_LANES + n), n)
            for j in range(n):
                both[j] = x[j] + d[j]
            if total != 0:
                to = f32_at(total + 4 * i * n, n)
                for j in range(n):
                    to[j] = both[j]
            x = both
        r = norm_factor(x, n, eps, work, lanes)
        if half == 0:
            for j in range(n):
                y[j] = bf16((x[j] * r) * w[j])
        else:
            for j in range(n):
                y[j] = f16((x[j] * r) * w[j])


@inner
def gate(half, g, u, n, out):
    """out = round16(silu(g) * u), n f32 each, at addresses."""
    a, b, y = f32_at(g, n), f32_at(u, n), f32_at(out, n)
    if half == 0:
        for j in range(n):
            y[j] = bf16(silu(a[j]) * b[j])
    else:
        for j in range(n):
            y[j] = f16(silu(a[j]) * b[j])


@inner
def silu_mul(tid, nt, half, gate_up, rows, n, out):
    """out [rows, n] = round16(silu(g) * u) with gate_up [rows, 2n]; split over columns too, for few rows."""
    for i in range(rows):
        lo, hi = tid * n // nt, (tid + 1) * n // nt
        g, u = gate_up + 4 * (2 * i * n + lo), gate_up + 4 * (2 * i * n + n + lo)
        gate(half, np.int64(g), np.int64(u), hi - lo, np.int64(out + 4 * (i * n + lo)))


@inner
def _head(x, d, half, cos, sin, norm, eps, work, lanes, y):
    """One head: norm where `norm` is not 0, then the rotation of halves (i, i + d/2), rounded, into y."""
    half_d = d // 2
    if norm != 0:
        w = f32_at(norm, d)
        r = norm_factor(x, d, eps, work, lanes)
        for j in range(d):
            work[j] = (x[j] * r) * w[j]
    else:
        for j in range(d):
            work[j] = x[j]
    for j in range(half_d):
        a, b = work[j], work[j + half_d]
        y[j] = round16(a * cos[j] - b * sin[j], half)
        y[j + half_d] = round16(b * cos[j] + a * sin[j], half)


@inner
def rope_and_cache(tid, nt, half, scratch, qkv, rows, heads, kv_heads, d, dp, page, positions, slots,
                   cos, sin, q_norm, k_norm, eps_bits, k_cache, v_cache, q_out):  # fmt: skip
    """q_out [rows, heads * d]; keys to k_cache u16 [block, kv_heads, d, page], values to v_cache [block, kv_heads, page, dp].

    scratch: ROW_LANES + 2 d f32. Columns d to dp of v_cache stay what they were (zero).
    """
    eps = float_of(np.int32(eps_bits))
    lanes, work = f32_at(scratch, ROW_LANES), f32_at(scratch + 4 * ROW_LANES, d)
    rotated = f32_at(scratch + 4 * (ROW_LANES + d), d)
    at_position = carray(void_ptr(positions), rows, np.int32)
    at_slot = carray(void_ptr(slots), rows, np.int64)
    width = (heads + 2 * kv_heads) * d
    for i in range(tid * rows // nt, (tid + 1) * rows // nt):
        c = f32_at(cos + 4 * at_position[i] * (d // 2), d // 2)
        s = f32_at(sin + 4 * at_position[i] * (d // 2), d // 2)
        block, offset = at_slot[i] // page, at_slot[i] % page
        for h in range(heads):
            x = f32_at(qkv + 4 * (i * width + h * d), d)
            _head(x, d, half, c, s, q_norm, eps, work, lanes, f32_at(q_out + 4 * (i * heads + h) * d, d))
        for h in range(kv_heads):
            x = f32_at(qkv + 4 * (i * width + (heads + h) * d), d)
            _head(x, d, half, c, s, k_norm, eps, work, lanes, rotated)
            k = carray(void_ptr(np.int64(k_cache + 2 * (block * kv_heads + h) * d * page)), d * page, np.uint16)
            for j in range(d):
                k[j * page + offset] = round16_bits(rotated[j], half)
            x = f32_at(qkv + 4 * (i * width + (heads + kv_heads + h) * d), d)
            v = carray(void_ptr(np.int64(v_cache + 2 * ((block * kv_heads + h) * page + offset) * dp)), d, np.uint16)
            for j in range(d):
                v[j] = round16_bits(x[j], half)


@inner
def take_rows(tid, nt, h, index, rows, n, out):
    picked = carray(void_ptr(index), rows, np.int32)
    for i in range(tid * rows // nt, (tid + 1) * rows // nt):
        x, y = f32_at(h + 4 * picked[i] * n, n), f32_at(out + 4 * i * n, n)
        for j in range(n):
            y[j] = x[j]
