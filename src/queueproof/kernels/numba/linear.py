"""x · wᵀ with the matmul tree: panels of PANEL columns, 8 segments of K, register tiles from `microkernel`.

Packed weights: bf16 as [panels, pairs of k, PANEL] words, f16 as [panels, K, PANEL] halves. Each segment has its own pairs:
where it is of odd length, the last one is half empty. The last panel is padded with zeros. Panels of `quantised` become bf16
in a thread's scratch. Each is read once a step.

Where the CPU has a dot instruction for bf16 (`dots`), a thread first makes its rows of x pairs too; panels and rows
with which it could give other bits than the chain go the slower way (`pairs`).
"""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.ieee1 import SEGMENTS
from queueproof.kernels.numba import dots, quantised
from queueproof.kernels.numba import elementwise as ew
from queueproof.kernels.numba import microkernel as mk
from queueproof.kernels.numba.dots import DOTS
from queueproof.kernels.numba.ir import atomic_add, carray, prefetch, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.memory import LINE
from queueproof.kernels.numba.microkernel import MAX_ROWS, PAIR_BYTES, PANEL, ROW_BYTES, SIZES, add_segments, tile_rows
from queueproof.kernels.numba.pairs import make_pairs, pair_count, segment_pairs
from queueproof.kernels.ops import QUANT_BLOCK

ROWS_BLOCK = 4 * MAX_ROWS  # rows whose segment sums wait in a thread's scratch
ROWS_TASK = 4 * ROWS_BLOCK
FEW_ROWS = 2 * MAX_ROWS  # up to so many, reading the weights takes longer than computing
# Places in a thread's scratch, in f32: segment sums; of a gated product the gate's columns and those of up; a row of a panel.
_GATE = SEGMENTS * ROWS_BLOCK * PANEL
_UP = _GATE + ROWS_TASK * PANEL
_SPARE = _UP + ROWS_BLOCK * PANEL
SCRATCH_F32 = _SPARE + PANEL

_bf16, _f16 = mk.make(SIZES, "pair_bf16"), mk.make(SIZES, "plain_f16")
if DOTS:
    _dots = dots.make(SIZES)


@inner
def _dot_segments(pairs, rows, k, w, part, s, end):
    """`_segments` with the rows of x as pairs."""
    count = np.int64(segment_pairs(k))
    ldx, ldo = np.int64(SEGMENTS * count), np.int64(PANEL)
    while s < end:
        xs, ws = np.int64(pairs + 4 * s * count), np.int64(w + s * count * PAIR_BYTES)
        ps = np.int64(part + 4 * s * rows * PANEL)
        r, tiles = 0, (rows + MAX_ROWS - 1) // MAX_ROWS
        while r < rows:
            here = tile_rows(rows - r, tiles)
            _dots(here, np.int64(xs + 4 * r * ldx), ldx, ws, np.int64(ps + 4 * r * PANEL), ldo, count)
            r += here
            tiles = max(1, tiles - 1)
        s += 1


@inner
def _segments(half, pairs, x, rows, k, w, part, s, end):
    """Segment sums s to end of `rows` <= ROWS_BLOCK rows of x and one panel, into part [8, rows, PANEL].

    pairs: address of the same rows as pairs, where the panel may be read so, or 0.
    """
    if DOTS and pairs != 0:  # a loop of its own, for the compiler's sake: with the other tiles in it, it is a tenth slower
        _dot_segments(pairs, rows, k, w, part, s, end)
        return
    seg = (k + SEGMENTS - 1) // SEGMENTS
    bytes_seg = seg * ROW_BYTES if half else segment_pairs(k) * PAIR_BYTES
    ldx, ldo = np.int64(k), np.int64(PANEL)
    while s < end:
        k0 = min(k, s * seg)
        n = np.int64(min(k, k0 + seg) - k0)
        ps = np.int64(part + 4 * s * rows * PANEL)
        if n <= 0:
            empty = carray(void_ptr(ps), rows * PANEL, np.float32)
            for i in range(rows * PANEL):
                empty[i] = np.float32(0)
        else:
            r, ws = 0, np.int64(w + s * bytes_seg)
            tiles = (rows + MAX_ROWS - 1) // MAX_ROWS
            while r < rows:
                here = tile_rows(rows - r, tiles)
                xs, to = np.int64(x + 4 * (r * k + k0)), np.int64(ps + 4 * r * PANEL)
                if half == 0:
                    _bf16(here, xs, ldx, ws, to, ldo, n)
                else:
                    _f16(here, xs, ldx, ws, to, ldo, n)
                r += here
                tiles = max(1, tiles - 1)
        s += 1


@inner
def _add_up(part, rows, spare, out, n, n0, bias):
    """Adds the segments of one panel up, into columns from n0 on of `rows` rows of out [:, n]. spare: PANEL f32."""
    width = min(PANEL, n - n0)
    lds = np.int64(rows * PANEL)
    for r in range(rows):
        sums = np.int64(part + 4 * r * PANEL)
        to = np.int64(out + 4 * (r * n + n0))
        if width == PANEL:
            add_segments(sums, lds, to, np.int64(bias + 4 * n0), np.int64(bias))
        else:
            add_segments(sums, lds, spare, np.int64(bias + 4 * n0), np.int64(bias))
            row = carray(void_ptr(to), width, np.float32)
            whole = carray(void_ptr(spare), width, np.float32)
            for j in range(width):
                row[j] = whole[j]


@inner
def _as_halves(kind, panel, k0, k1, scratch):
    """Makes the rows from k0 to k1 of a quantised panel 16-bit, in this thread's scratch; returns where row 0 would be."""
    halves, first = np.int64(scratch + 4 * SCRATCH_F32), k0 // QUANT_BLOCK
    last = (k1 + QUANT_BLOCK - 1) // QUANT_BLOCK
    if last > first:
        begin = np.int64(panel + quantised.panel_bytes(kind, first * QUANT_BLOCK))
        quantised.expand(np.int64(kind), begin, halves, np.int64(last - first))
    return np.int64(halves - first * QUANT_BLOCK * ROW_BYTES)


@inner
def own_panels(panels, nt):
    """Panels that each thread takes without asking where there are few rows: thread t those from t * own_panels on."""
    return 3 * panels // (4 * nt)


@inner
def _few_rows(tid, nt, counter, scratch, half, x, m, k, w, n, out, bias, kind, bytes_each, needs):
    """Bound by memory: each thread reads one long piece of the weights, and what is left is handed out panel by panel."""
    panels = (n + PANEL - 1) // PANEL
    own = own_panels(panels, nt)
    spare, seg = np.int64(scratch + 4 * _SPARE), (k + SEGMENTS - 1) // SEGMENTS
    need, words, least = carray(void_ptr(needs), panels, np.int32), _pairs_at(scratch, k, kind), np.int64(-1)
    if DOTS and half == 0:
        least = make_pairs(x, m, k, words)
    p, end = tid * own, (tid + 1) * own
    while True:
        if p == end:
            p = nt * own + atomic_add(counter, np.int64(1))
            if p >= panels:
                return
            end = p + 1
        panel = np.int64(w + p * bytes_each)
        pairs = words if least >= need[p] else np.int64(0)
        if kind == 0:
            _segments(half, pairs, x, m, k, panel, scratch, 0, SEGMENTS)
        else:
            for s in range(0, SEGMENTS, 4):  # so many 16-bit weights that the nearest cache still holds them when they are read
                k0, k1 = min(k, s * seg), min(k, (s + 4) * seg)
                halves = _as_halves(kind, panel, k0, k1, scratch)
                _segments(half, pairs, x, m, k, halves, scratch, s, s + 4)
        _add_up(scratch, m, spare, out, n, p * PANEL, bias)
        p += 1


@inner
def _gated(half, gate, up, rows, spare, out, n):
    """round16(silu(gate) * up) of `rows` rows of a panel, by way of `spare`, into rows of out [:, n]."""
    ew.gate(half, gate, up, rows * PANEL, spare)
    done = carray(void_ptr(spare), rows * PANEL, np.float32)
    for r in range(rows):
        row = carray(void_ptr(np.int64(out + 4 * r * n)), PANEL, np.float32)
        for j in range(PANEL):
            row[j] = done[r * PANEL + j]


@inner
def _many_rows(nt, counter, scratch, half, x, m, k, w, n, out, bias, kind, bytes_each, needs, gated):
    """Bound by operations: a panel stays in the nearest cache while all rows of a task go by.

    A task of a gated product is a panel of the gate, and then that of up for the same columns.
    """
    sides = 2 if gated != 0 else 1
    panels = (n + PANEL - 1) // PANEL // sides
    groups = (m + ROWS_TASK - 1) // ROWS_TASK
    gate, up, spare = np.int64(scratch + 4 * _GATE), np.int64(scratch + 4 * _UP), np.int64(scratch + 4 * _SPARE)
    need, words = carray(void_ptr(needs), sides * panels, np.int32), _pairs_at(scratch, k, kind)
    least, made = np.int64(-1), -1
    row_bytes = 4 * pair_count(k)
    while True:
        task = atomic_add(counter, np.int64(1))
        if task >= groups * panels:
            return
        m0 = (task // panels) * ROWS_TASK
        m1 = min(m, m0 + ROWS_TASK)
        if DOTS and half == 0 and made != m0:
            least, made = make_pairs(np.int64(x + 4 * m0 * k), m1 - m0, k, words), m0
        for side in range(sides):
            p = side * panels + task % panels
            wp, offsets = np.int64(w + p * bytes_each), np.int64(bias + 4 * p * PANEL if bias != 0 else 0)
            if kind != 0:
                wp = _as_halves(kind, wp, 0, k, scratch)
            for b0 in range(m0, m1, ROWS_BLOCK):
                rows = min(ROWS_BLOCK, m1 - b0)
                pairs = np.int64(words + (b0 - m0) * row_bytes) if least >= need[p] else np.int64(0)
                _segments(half, pairs, np.int64(x + 4 * b0 * k), rows, k, wp, scratch, 0, SEGMENTS)
                begun = np.int64(gate + 4 * (b0 - m0) * PANEL)
                if sides == 1:
                    _add_up(scratch, rows, spare, np.int64(out + 4 * b0 * n), n, p * PANEL, bias)
                elif side == 0:
                    _add_up(scratch, rows, spare, begun, PANEL, 0, offsets)
                else:
                    _add_up(scratch, rows, spare, up, PANEL, 0, offsets)
                    to = np.int64(gated + 4 * (b0 * (n // 2) + (p - panels) * PANEL))
                    _gated(half, begun, up, rows, scratch, to, n // 2)


def scratch_f32(k: int, kind: int, rows: int) -> int:
    """f32 of scratch per thread for steps of up to so many rows: segment sums, a 16-bit panel for a quantised kind, and pairs of x."""
    return SCRATCH_F32 + (k * PANEL // 2 if kind else 0) + (pair_count(k) * min(rows, max(FEW_ROWS, ROWS_TASK)) if DOTS else 0)


@inner
def _pairs_at(scratch, k, kind):
    return np.int64(scratch + 4 * SCRATCH_F32 + (k * ROW_BYTES if kind != 0 else 0))


@inner
def gates_itself(m, gated):
    """Whether `linear` of m rows leaves the gated product, and nothing in `out`."""
    return gated != 0 and m > FEW_ROWS


@inner
def linear(tid, nt, counter, scratch, half, x, m, k, w, n, out, bias, kind, bytes_each, needs, gated):
    """out[m, n] = x[m, k] · w[n, k]ᵀ (+ bias); all addresses; takes tasks from the atomic counter until none is left.

    half: 0 for bf16 weights, 1 for f16. kind: 0 for 16-bit weights, or the code of a quantised kind, whose values are bf16. bytes_each: of a panel.
    x, out, bias: f32, row-major; bias 0 for none. needs: i32 per panel (`pairs.need_of`). scratch: `scratch_f32`.
    gated: where round16(silu(g) * u) goes where `gates_itself`, f32 [m, n / 2], with g and u the halves of a row, each of whole
    panels; else 0.
    Tree: 8 segments of ceil(k / 8), fma chains, balanced (docs/arithmetic.md section 2).
    """
    if m <= FEW_ROWS:
        _few_rows(tid, nt, counter, scratch, half, x, m, k, w, n, out, bias, kind, bytes_each, needs)
    else:
        _many_rows(nt, counter, scratch, half, x, m, k, w, n, out, bias, kind, bytes_each, needs, gated)


@inner
def ask_for(tid, nt, w, bytes_each, n, first, size):
    """Asks for `size` bytes, from byte `first` on, of what `_few_rows` will read in thread tid before anything else."""
    own = own_panels((n + PANEL - 1) // PANEL, nt) * bytes_each
    start = np.int64(w + tid * own)
    for at in range(min(first, own), min(first + size, own), LINE):
        prefetch(np.int64(start + at))
