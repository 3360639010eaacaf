"""Matrix products of `tensorcore/1`: out = round16(chain over K of (x, w) + b), and the gated form of the MLP.

Every kernel here walks K in ascending steps of the matrix unit with one f32 accumulator, so that all of them, with all
tiles, warps and stages, give the same bits (docs/arithmetic-tensorcore.md, sections 1 and 3.3). 16-bit products
accumulate in f32 whatever `input_precision` and `max_num_imprecise_acc` say: those are for f32 and fp8 factors.

`narrow` holds the weights' rows on the matrix unit's M axis and loads by pointer: for few tokens, and for shapes that the
copy engine (TMA) cannot address. `wide` is persistent and loads through TMA descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from queueproof.kernels.triton.launch import begin, options
from queueproof.kernels.triton.math import silu


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix of weights. data: h16 [n, k], contiguous. bias: f32 [n] or None. A gated one has the n/2 rows of the
    gate, then those of up."""

    data: torch.Tensor
    n: int
    k: int
    bias: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


@dataclass(frozen=True, slots=True)
class Tile:
    """A schedule of one of the kernels below: output tile BN x BM, walked in steps of BK. No field can move a bit.

    wide: through TMA. swap: the weights' rows on the M axis of the matrix unit (always so in a narrow one). group: row
    tiles of x that share a pass over the weights. per_processor: programs of a wide one for each multiprocessor. ahead:
    steps of BK of a program's first tile that are asked for in L2 while the kernels before it still run.
    """

    wide: bool
    bn: int
    bm: int
    bk: int
    warps: int
    stages: int
    swap: bool = True
    group: int = 8
    ahead: int = 0
    per_processor: int = 1


@triton.jit
def prefetch(pointers, BYTES: tl.constexpr):
    """Asks for BYTES (a multiple of 16) at each address in L2. Compute capability 9.0."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // dummy $0",
        "=r,l,r",
        [pointers, BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def ask_ahead(w_ptr, rows, N, K, GATED: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr):
    """The first AHEAD steps of these rows of w, and of those N further down. No kernel writes weights: before `begin`."""
    pointers = w_ptr + rows[:, None].to(tl.int64) * K + tl.arange(0, AHEAD)[None, :] * BK
    prefetch(pointers, BK * 2)
    if GATED:
        prefetch(pointers + N.to(tl.int64) * K, BK * 2)


@triton.jit
def place(tile, row_tiles, col_tiles, GROUP: tl.constexpr):
    """Row and column of a tile: GROUP row tiles go over all columns before the next ones."""
    first = tile // (GROUP * col_tiles) * GROUP
    rows = tl.minimum(row_tiles - first, GROUP)
    within = tile % (GROUP * col_tiles)
    return first + within % rows, within // rows


@triton.jit
def gated(gate, up, dtype: tl.constexpr):
    """round16(silu(g) * u) of two f32 chains, each rounded to h16 first."""
    g = gate.to(dtype).to(tl.float32)
    u = up.to(dtype).to(tl.float32)
    return (silu(g) * u).to(dtype)


@triton.jit
def load_rows(p, inside, left, cols, EVEN_K: tl.constexpr):
    """A step of BK of some rows; zeros past K, rows not `inside` hold anything or zeros."""
    if EVEN_K:
        return tl.load(p, mask=inside, other=0.0)
    return tl.load(p, mask=inside & (cols < left), other=0.0)


@triton.jit
def load_weights(p, left, cols, EVEN_K: tl.constexpr):
    if EVEN_K:
        return tl.load(p)
    return tl.load(p, mask=cols < left, other=0.0)


@triton.jit(do_not_specialize=["M"])
def narrow_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    o_ptr,
    M,
    N,
    K,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [M, K], w [N, K] (GATED: [2N, K]), b [N], o [M, N]. Tile of the output: [BN, BM], transposed."""
    pid = tl.program_id(0)
    row_tiles = tl.cdiv(M, BM)
    pm = pid % row_tiles
    pn = pid // row_tiles
    rn = pn * BN + tl.arange(0, BN)
    rm = pm * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    # Rows past N read the last one: their results are not stored.
    wn = rn if EVEN_N else tl.minimum(rn, N - 1)
    wp = w_ptr + wn[:, None].to(tl.int64) * K + rk[None, :]
    up = wp + N.to(tl.int64) * K
    if AHEAD > 0:
        ask_ahead(w_ptr, wn, N, K, GATED, BK, AHEAD)
    begin(PDL)
    inside = (rm < M)[None, :]
    xp = x_ptr + rm[None, :].to(tl.int64) * K + rk[:, None]
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    acc_up = tl.zeros((BN, BM), dtype=tl.float32)
    for k in range(0, K, BK):
        w = load_weights(wp, K - k, rk[None, :], EVEN_K)
        x = load_rows(xp, inside, K - k, rk[:, None], EVEN_K)
        acc = tl.dot(w, x, acc)
        if GATED:
            acc_up = tl.dot(load_weights(up, K - k, rk[None, :], EVEN_K), x, acc_up)
            up += BK
        wp += BK
        xp += BK
    if BIAS:
        acc += tl.load(b_ptr + wn)[:, None]
        if GATED:
            acc_up += tl.load(b_ptr + N + wn)[:, None]
    op = o_ptr + rm[None, :].to(tl.int64) * N + rn[:, None]
    stored = inside if EVEN_N else inside & (rn < N)[:, None]
    if GATED:
        tl.store(op, gated(acc, acc_up, o_ptr.dtype.element_ty), mask=stored)
    else:
        tl.store(op, acc.to(o_ptr.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["M"])
def wide_kernel(
    x_desc,
    w_desc,
    o_desc,
    w_ptr,
    b_ptr,
    o_ptr,
    M,
    N,
    K,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    STORE_TMA: tl.constexpr,
    SWAP: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `narrow_kernel`, persistent, with TMA: reads past an edge give zeros, stores past one do nothing.

    Gate tiles that reach past N read rows of up, and are cut off by the store.
    """
    row_tiles = tl.cdiv(M, BM)
    col_tiles = tl.cdiv(N, BN)
    if AHEAD > 0:
        _, column = place(tl.program_id(0), row_tiles, col_tiles, GROUP)
        ask_ahead(w_ptr, tl.minimum(column * BN + tl.arange(0, BN), N - 1), N, K, GATED, BK, AHEAD)
    begin(PDL)
    for tile in tl.range(tl.program_id(0), row_tiles * col_tiles, PROGRAMS, flatten=True):
        m, n = place(tile, row_tiles, col_tiles, GROUP)
        m *= BM
        n *= BN
        if SWAP:
            acc = tl.zeros((BN, BM), dtype=tl.float32)
            acc_up = tl.zeros((BN, BM), dtype=tl.float32)
        else:
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            acc_up = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            x = x_desc.load([m, k])
            w = w_desc.load([n, k])
            if SWAP:
                acc = tl.dot(w, x.T, acc)
                if GATED:
                    acc_up = tl.dot(w_desc.load([N + n, k]), x.T, acc_up)
            else:
                acc = tl.dot(x, w.T, acc)
                if GATED:
                    acc_up = tl.dot(x, w_desc.load([N + n, k]).T, acc_up)
        rn = n + tl.arange(0, BN)
        if BIAS:
            b = tl.load(b_ptr + rn, mask=rn < N, other=0.0)
            acc += b[:, None] if SWAP else b[None, :]
            if GATED:
                b = tl.load(b_ptr + N + rn, mask=rn < N, other=0.0)
                acc_up += b[:, None] if SWAP else b[None, :]
        out = gated(acc, acc_up, o_ptr.dtype.element_ty) if GATED else acc.to(o_ptr.dtype.element_ty)
        if STORE_TMA:
            o_desc.store([m, n], out.T if SWAP else out)
        else:
            rm = m + tl.arange(0, BM)
            if SWAP:
                op = o_ptr + rm[None, :].to(tl.int64) * N + rn[:, None]
                tl.store(op, out, mask=(rm < M)[None, :] & (rn < N)[:, None])
            else:
                op = o_ptr + rm[:, None].to(tl.int64) * N + rn[None, :]
                tl.store(op, out, mask=(rm < M)[:, None] & (rn < N)[None, :])


def tma_can_address(*widths: int) -> bool:
    """Whether TMA can address h16 matrices with rows of these lengths: the stride must be a multiple of 16 bytes."""
    return all(w % 8 == 0 for w in widths)


def fits(tile: Tile, is_gated: bool, shared: int) -> bool:
    """Whether a program with that tile does with that many bytes of shared memory, by an upper estimate."""
    steps = (tile.bn * (2 if is_gated else 1) + tile.bm) * tile.bk * 2 * tile.stages
    result = tile.bn * tile.bm * (2 if tile.wide else 4)
    return (steps + result + 1024 if tile.wide else max(steps, result)) <= shared


def _ahead(tile: Tile, w: Weight, pdl: bool) -> int:
    """Only whole steps can be asked for, and only where a kernel can start before the ones before it have ended."""
    return tile.ahead if pdl and w.k % tile.bk == 0 and tile.ahead * tile.bk <= w.k else 0


def narrow(tile: Tile, x: torch.Tensor, w: Weight, out: torch.Tensor, is_gated: bool, pdl: bool) -> None:
    """x: h16 [M, k]; out: h16 or f32 [M, n], gated: h16 [M, n/2]."""
    m, n = x.shape[0], w.n // 2 if is_gated else w.n
    narrow_kernel[(triton.cdiv(m, tile.bm) * triton.cdiv(n, tile.bn),)](
        x,
        w.data,
        out if w.bias is None else w.bias,
        out,
        m,
        n,
        w.k,
        GATED=is_gated,
        BIAS=w.bias is not None,
        EVEN_N=n % tile.bn == 0,
        EVEN_K=w.k % tile.bk == 0,
        BN=tile.bn,
        BM=tile.bm,
        BK=tile.bk,
        AHEAD=_ahead(tile, w, pdl),
        **options(tile.warps, tile.stages, pdl),
    )


def descriptor(tensor: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    """The TMA descriptor of a matrix for blocks of [rows, cols]."""
    shape = tensor.shape
    return TensorDescriptor(tensor, [shape[0], shape[1]], [shape[1], 1], [rows, cols])


def wide(tile: Tile, x: torch.Tensor, w: Weight, out: torch.Tensor, is_gated: bool, pdl: bool, processors: int) -> None:
    """As `narrow`. processors: of the card. k, and n for h16 results, must be multiples of 8."""
    m, n = x.shape[0], w.n // 2 if is_gated else w.n
    store_tma = out.element_size() == 2 and tma_can_address(n)
    o_desc = descriptor(out, tile.bm, tile.bn) if store_tma else descriptor(x, tile.bm, tile.bk)
    most = processors * tile.per_processor
    programs = min(most, triton.cdiv(m, tile.bm) * triton.cdiv(n, tile.bn))
    wide_kernel[(programs,)](
        descriptor(x, tile.bm, tile.bk),
        descriptor(w.data, tile.bn, tile.bk),
        o_desc,
        w.data,
        out if w.bias is None else w.bias,
        out,
        m,
        n,
        w.k,
        GATED=is_gated,
        BIAS=w.bias is not None,
        STORE_TMA=store_tma,
        SWAP=tile.swap,
        BN=tile.bn,
        BM=tile.bm,
        BK=tile.bk,
        GROUP=tile.group,
        PROGRAMS=most,
        AHEAD=_ahead(tile, w, pdl),
        **options(tile.warps, tile.stages, pdl),
    )
