"""Everything between the matrix products, element by element or over one row (docs/arithmetic-tensorcore.md, section 3).

A program takes one row, or some heads of it. Accesses have 16 bytes; where h16 and f32 meet, threads hold 4 consecutive
elements of both, so that nothing is exchanged between threads. The number of rows is the grid alone: no build depends on it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from queueproof.kernels.triton.launch import begin, options
from queueproof.kernels.triton.math import pow2, quantised, rsqrt, silu, sum_value

SILU_BLOCK = 1024
ROPE_HEADS = 8  # of one program


@triton.jit
def _load(row, i, N: tl.constexpr):
    """row[i] as f32, zeros past N."""
    if i.shape[0] == N:
        return tl.load(row + i).to(tl.float32)
    return tl.load(row + i, mask=i < N, other=0.0).to(tl.float32)


@triton.jit
def _store(row, i, values, N: tl.constexpr):
    """Rounds to the type of the row."""
    values = values.to(row.dtype.element_ty)
    if i.shape[0] == N:
        tl.store(row + i, values)
    else:
        tl.store(row + i, values, mask=i < N)


@triton.jit
def _fours(BLOCK: tl.constexpr):
    """0, 1, 2, …, with threads told to hold 4 consecutive ones."""
    return tl.max_contiguous(tl.arange(0, BLOCK), 4)


@triton.jit
def norm_scale(m, N: tl.constexpr):
    """Of f32 maxima m = max |x|: (first, second, p, q), the powers of two that scale x down and its mean square up."""
    field = (m.to(tl.int32, bitcast=True) >> 23) & 255
    e = tl.maximum(field - 127, -126)
    half = e >> 1
    down = -half - (e & 1)  # -e // 2
    return pow2(down), pow2(-e - down), pow2(half), pow2(e - half)


@triton.jit
def norm_factor(total, p, q, eps, N: tl.constexpr):
    """1 / sqrt(mean square + eps) from the i64 sum of the quantised squares of N scaled values."""
    s = tl.div_rn(sum_value(total), N * 1.0)
    return rsqrt((((s * p) * p) * q) * q + eps)


@triton.jit
def _embed(table, token_ids, drawn, last_tokens, out, H: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = _fours(BLOCK)
    begin(PDL)
    token = tl.load(token_ids + row)
    from_draw = tl.load(drawn + row)
    if from_draw >= 0:
        token = tl.load(last_tokens + from_draw)
    _store(out + row * H, i, _load(table + token.to(tl.int64) * H, i, H), H)


@triton.jit
def _add(h, delta, H: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = _fours(BLOCK)
    begin(PDL)
    _store(h + row * H, i, _load(h + row * H, i, H) + _load(delta + row * H, i, H), H)


@triton.jit
def _rms_norm(
    h, weight, delta, out, eps, HAS_DELTA: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = _fours(BLOCK) if HAS_DELTA else tl.arange(0, BLOCK)
    w = _load(weight, i, H)  # before `begin`: no kernel writes it
    begin(PDL)
    x = _load(h + row * H, i, H)
    if HAS_DELTA:
        x = x + _load(delta + row * H, i, H)
    down, down_too, p, q = norm_scale(tl.max(tl.abs(x)), H)
    u = (x * down) * down_too
    r = norm_factor(tl.sum(quantised(u * u)), p, q, eps, H)
    _store(out + row * H, i, (x * r) * w, H)
    if HAS_DELTA:
        _store(h + row * H, i, x, H)


@triton.jit
def _silu_mul(gate_up, out, F: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    i = tl.arange(0, BLOCK)
    begin(PDL)
    source = gate_up + row * (2 * F) + first
    if F % BLOCK == 0:
        g = tl.load(source + i).to(tl.float32)
        u = tl.load(source + F + i).to(tl.float32)
        tl.store(out + row * F + first + i, (silu(g) * u).to(out.dtype.element_ty))
    else:
        inside = first + i < F
        g = tl.load(source + i, mask=inside, other=0.0).to(tl.float32)
        u = tl.load(source + F + i, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * F + first + i, (silu(g) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotated(a, b, c, s, weight, i, inside, eps, HAS_NORM: tl.constexpr, D: tl.constexpr):
    """Halves of heads f32 [heads, D / 2], normed where there is a weight, then rotated by c and s."""
    if HAS_NORM:
        wa = tl.load(weight + i, mask=i < D // 2, other=0.0)
        wb = tl.load(weight + D // 2 + i, mask=i < D // 2, other=0.0)
        m = tl.maximum(tl.max(tl.abs(a), 1), tl.max(tl.abs(b), 1))
        down, down_too, p, q = norm_scale(m, D)
        ua = (a * down[:, None]) * down_too[:, None]
        ub = (b * down[:, None]) * down_too[:, None]
        total = tl.sum(quantised(ua * ua) + quantised(ub * ub), 1)
        r = norm_factor(total, p, q, eps, D)[:, None]
        a = (a * r) * wa
        b = (b * r) * wb
    return a * c - b * s, b * c + a * s


@triton.jit
def _rope_and_cache(
    qkv,
    cos,
    sin,
    positions,
    slots,
    keys,
    values,
    out,
    q_norm,
    k_norm,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: rows, and groups of GROUP heads: those of q, then those of k, then those of v."""
    row = tl.program_id(0).to(tl.int64)
    Q_GROUPS: tl.constexpr = (HEADS + GROUP - 1) // GROUP
    KV_GROUPS: tl.constexpr = (KV_HEADS + GROUP - 1) // GROUP
    group = tl.program_id(1)
    is_q = group < Q_GROUPS
    is_v = group >= Q_GROUPS + KV_GROUPS
    # (first head of the part in qkv, heads of the part, group in the part)
    base = tl.where(is_q, 0, tl.where(is_v, HEADS + KV_HEADS, HEADS))
    count = tl.where(is_q, HEADS, KV_HEADS)
    in_part = group - tl.where(is_q, 0, tl.where(is_v, Q_GROUPS + KV_GROUPS, Q_GROUPS))
    head = in_part * GROUP + tl.arange(0, GROUP)[:, None]
    # A full tile, though every head reads the same angles: 16 bytes at a time, and already where they are used
    i = tl.broadcast_to(tl.arange(0, HALF)[None, :], (GROUP, HALF))
    inside = (head < count) & (i < D // 2)
    begin(PDL)
    source = qkv + row * ((HEADS + 2 * KV_HEADS) * D) + (base + head) * D + i
    a16 = tl.load(source, mask=inside, other=0.0)
    b16 = tl.load(source + D // 2, mask=inside, other=0.0)
    slot = tl.load(slots + row)
    at = (slot // BLOCK_SIZE * KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    cached = inside & (slot >= 0)
    if is_v:
        tl.store(values + at * D + i, a16, mask=cached)
        tl.store(values + at * D + D // 2 + i, b16, mask=cached)
    else:
        angle = tl.load(positions + row).to(tl.int64) * (D // 2) + i
        c = tl.load(cos + angle, mask=i < D // 2, other=0.0)
        s = tl.load(sin + angle, mask=i < D // 2, other=0.0)
        a, b = a16.to(tl.float32), b16.to(tl.float32)
        if is_q:
            a, b = _rotated(a, b, c, s, q_norm, i, inside, eps, HAS_Q_NORM, D)
            target = out + row * (HEADS * D) + head * D + i
            tl.store(target, a.to(out.dtype.element_ty), mask=inside)
            tl.store(target + D // 2, b.to(out.dtype.element_ty), mask=inside)
        else:
            a, b = _rotated(a, b, c, s, k_norm, i, inside, eps, HAS_K_NORM, D)
            tl.store(keys + at * D + i, a.to(keys.dtype.element_ty), mask=cached)
            tl.store(keys + at * D + D // 2 + i, b.to(keys.dtype.element_ty), mask=cached)


@triton.jit
def _gather_rows(h, rows, out, H: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    begin(PDL)
    source = tl.load(rows + row).to(tl.int64)
    _store(out + row * H, i, _load(h + source * H, i, H), H)


def warps_for(elements: int) -> int:
    """Of a program over a row: 16 elements a thread."""
    return max(1, min(16, elements // 512))


@cache
def _row_options(h: int, pdl: bool, num_warps: int | None) -> dict[str, Any]:
    block = triton.next_power_of_2(h)
    return {"H": h, "BLOCK": block, **options(num_warps or warps_for(block), pdl=pdl)}


def embed(
    table: torch.Tensor,
    token_ids: torch.Tensor,
    drawn: torch.Tensor,
    last_tokens: torch.Tensor,
    out: torch.Tensor,
    pdl: bool = False,
    num_warps: int | None = None,
) -> None:
    """out f32 [R, H] = rows of table h16 [V, H]: of last_tokens[drawn] where drawn >= 0, else of token_ids. i32 [R] each."""
    _embed[(out.shape[0],)](table, token_ids, drawn, last_tokens, out, **_row_options(out.shape[1], pdl, num_warps))


def add(h: torch.Tensor, delta: torch.Tensor, pdl: bool = False, num_warps: int | None = None) -> None:
    """h f32 [R, H] += delta h16."""
    _add[(h.shape[0],)](h, delta, **_row_options(h.shape[1], pdl, num_warps))


def rms_norm(
    h: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    delta: torch.Tensor | None,
    out: torch.Tensor,
    pdl: bool = False,
    num_warps: int | None = None,
) -> None:
    """out h16 [R, H] = round16(norm(h + delta) * weight); h f32 [R, H] is changed where delta h16 is given. weight f32 [H]."""
    _rms_norm[(h.shape[0],)](
        h,
        weight,
        h if delta is None else delta,
        out,
        eps,
        HAS_DELTA=delta is not None,
        **_row_options(h.shape[1], pdl, num_warps),
    )


@cache
def _silu_options(f: int, pdl: bool, num_warps: int | None) -> tuple[int, dict[str, Any]]:
    block = min(SILU_BLOCK, triton.next_power_of_2(f))
    return -(-f // block), {"F": f, "BLOCK": block, **options(num_warps or max(1, block // 256), pdl=pdl)}


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor, pdl: bool = False, num_warps: int | None = None) -> None:
    """out h16 [R, F] = round16(silu(g) * u) of gate_up h16 [R, 2 F], g before u."""
    blocks, launch = _silu_options(out.shape[1], pdl, num_warps)
    _silu_mul[(out.shape[0], blocks)](gate_up, out, **launch)


@cache
def _rope_options(
    heads: int, kv_heads: int, d: int, block_size: int, norms: tuple[bool, bool], pdl: bool, num_warps: int | None
) -> tuple[int, dict[str, Any]]:
    half = triton.next_power_of_2(d // 2)
    group = min(ROPE_HEADS, triton.next_power_of_2(heads))
    groups = -(-heads // group) + 2 * -(-kv_heads // group)
    return groups, {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "D": d,
        "BLOCK_SIZE": block_size,
        "HAS_Q_NORM": norms[0],
        "HAS_K_NORM": norms[1],
        "GROUP": group,
        "HALF": half,
        **options(num_warps or max(1, min(4, group * half // 256)), pdl=pdl),
    }


def rope_and_cache(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_out: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    pdl: bool = False,
    num_warps: int | None = None,
) -> None:
    """Norms (weights f32 [D]) and rotates q and k of qkv h16 [R, (heads + 2 kv_heads) D]; k and v go to the cache.

    cos, sin: f32 [max_len, D / 2]. positions: i32 [R]. slots: i64 [R], block * block_size + offset; -1 writes nothing.
    k_cache, v_cache: h16 [blocks, kv_heads, block_size, D]. q_out: h16 [R, heads * D].
    """
    _, kv_heads, block_size, d = k_cache.shape
    norms = (q_norm is not None, k_norm is not None)
    groups, launch = _rope_options(q_out.shape[1] // d, kv_heads, d, block_size, norms, pdl, num_warps)
    _rope_and_cache[(qkv.shape[0], groups)](
        qkv,
        cos,
        sin,
        positions,
        slots,
        k_cache,
        v_cache,
        q_out,
        cos if q_norm is None else q_norm,
        cos if k_norm is None else k_norm,
        eps,
        **launch,
    )


def gather_rows(
    h: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, pdl: bool = False, num_warps: int | None = None
) -> None:
    """out f32 [R, H] = h f32 [T, H] at rows i32 [R]."""
    _gather_rows[(out.shape[0],)](h, rows, out, **_row_options(h.shape[1], pdl, num_warps))
