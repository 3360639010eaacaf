"""Paged causal attention: blocks of 64 keys, splits of 512, an online softmax in each (docs/arithmetic.md section 5).

One kernel for prefill, decode and mixtures. A task is a tile of queries of one sequence over a range of splits; for each
head group it walks the blocks. Long contexts of few queries are cut into one task a split, whose states a second pass
merges in ascending order: the same additions as one task that walks them all.
"""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.ieee1 import KEY_BLOCK, KEY_SPLIT
from queueproof.kernels.numba import microkernel as mk
from queueproof.kernels.numba.elementwise import f32_at, round16
from queueproof.kernels.numba.ir import atomic_add, carray, float_of, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.math import bf16, exp, f16, halve
from queueproof.kernels.numba.microkernel import LANES

COLUMNS = 16  # keys of a score tile, and columns of a value tile; pool blocks are multiples of it
TILE_ROWS = 48  # (query, head) pairs of a task's tile
TASK_FIELDS = 7  # sequence, first query, last query + 1, first split, last split + 1, partial slot or -1, queries of the sequence
NEG_INF, ZERO = np.float32(-np.inf), np.float32(0)

TILE = (1, 2, 3, 4, 5, 6)

_V = COLUMNS // LANES
_scores_bf16 = mk.make(TILE, 1, "plain_bf16", _V)
_scores_f16 = mk.make(TILE, 1, "plain_f16", _V)
_values_bf16 = mk.make(TILE, 1, "plain_bf16", _V, resume=True)
_values_f16 = mk.make(TILE, 1, "plain_f16", _V, resume=True)


def padded(head_dim: int) -> int:
    """Columns of a value row in the cache."""
    return -(-head_dim // COLUMNS) * COLUMNS


def scratch_f32(head_dim: int) -> int:
    """f32 of scratch per thread: q, scores, m, den, alpha, acc, block sums, and over splits m, den, acc and whether begun."""
    dp = padded(head_dim)
    return TILE_ROWS * (head_dim + KEY_BLOCK + 6 + 3 * dp)


@inner
def _scores(half, rows, x, d, w, ldw, out):
    """out[rows, 16 of KEY_BLOCK] = chain over d."""
    r, z, ldo, tiles = 0, np.int64(0), np.int64(KEY_BLOCK), (rows + TILE[-1] - 1) // TILE[-1]
    while r < rows:
        n = (rows - r + tiles - 1) // tiles
        tiles -= 1
        a, o = np.int64(x + 4 * r * d), np.int64(out + 4 * r * KEY_BLOCK)
        if half == 0:
            _scores_bf16(n, a, d, w, ldw, o, ldo, d, z)
        else:
            _scores_f16(n, a, d, w, ldw, o, ldo, d, z)
        r += n


@inner
def _values(half, rows, p, n_keys, v, dp, out):
    """out[rows, dp] goes on with the chain over n_keys consecutive keys of one pool block."""
    z, lda = np.int64(0), np.int64(KEY_BLOCK)
    for c in range(0, dp, COLUMNS):
        r, tiles = 0, (rows + TILE[-1] - 1) // TILE[-1]
        w = np.int64(v + 2 * c)
        while r < rows:
            n = (rows - r + tiles - 1) // tiles
            tiles -= 1
            a, o = np.int64(p + 4 * r * KEY_BLOCK), np.int64(out + 4 * (r * dp + c))
            if half == 0:
                _values_bf16(n, a, lda, w, dp, o, dp, n_keys, z)
            else:
                _values_f16(n, a, lda, w, dp, o, dp, n_keys, z)
            r += n


@inner
def _softmax_row(half, s, lo, hi, scale, m, den, alpha, r, t):
    """Scores of one row's block to weights in place; updates m[r] and den[r], leaves the factor for acc in alpha[r]."""
    top = m[r]
    for j in range(KEY_BLOCK):  # what is outside is set to zero below
        s[j] = s[j] * scale
    for lane in range(COLUMNS):
        t[lane] = NEG_INF
    for c in range(0, KEY_BLOCK, COLUMNS):  # a maximum is the same in any order, but for the sign of a zero: exp has none
        for lane in range(COLUMNS):
            v = s[c + lane] if c + lane >= lo and c + lane < hi else NEG_INF
            t[lane] = v if v > t[lane] else t[lane]
    for lane in range(COLUMNS):
        top = t[lane] if t[lane] > top else top
    a = exp(m[r] - top)
    if half == 0:
        for j in range(KEY_BLOCK):
            s[j] = bf16(exp(s[j] - top))
    else:
        for j in range(KEY_BLOCK):
            s[j] = f16(exp(s[j] - top))
    for j in range(lo):
        s[j] = ZERO
    for j in range(hi, KEY_BLOCK):
        s[j] = ZERO
    for j in range(KEY_BLOCK // 2):
        t[j] = s[j] + s[j + KEY_BLOCK // 2]
    den[r] = den[r] * a + halve(t, KEY_BLOCK // 2)
    alpha[r] = a
    m[r] = top


@inner
def _block(half, r0, rows, lo, hi, key0, q, d, s, m, den, alpha, acc, bo, dp, scale, k_head, v_head, head_step_k, head_step_v,
           page, table):  # fmt: skip
    """Keys [key0 + lo, key0 + hi) of one block for rows [r0, r0 + rows), all of which may see exactly these keys.

    k_head, v_head: address of this head in pool block 0; head_step_*: bytes from one pool block to the next.
    """
    q0, s0, bo0 = q + 4 * r0 * d, s + 4 * r0 * KEY_BLOCK, bo + 4 * r0 * dp
    for g in range((lo // COLUMNS) * COLUMNS, hi, COLUMNS):
        key = key0 + g
        block, offset = np.int64(table[key // page]), key % page
        _scores(half, rows, q0, np.int64(d), np.int64(k_head + block * head_step_k + 2 * offset), np.int64(page),
                np.int64(s0 + 4 * g))  # fmt: skip
    tree = f32_at(bo, KEY_BLOCK)  # bo is not in use yet
    for r in range(r0, r0 + rows):
        _softmax_row(half, f32_at(s + 4 * r * KEY_BLOCK, KEY_BLOCK), lo, hi, scale, m, den, alpha, r, tree)
    sums = f32_at(bo0, rows * dp)
    for j in range(rows * dp):
        sums[j] = ZERO
    j = lo
    while j < hi:
        key = key0 + j
        block, offset = np.int64(table[key // page]), key % page
        n = min(hi - j, page - offset)
        _values(half, rows, s0 + 4 * j, np.int64(n), np.int64(v_head + block * head_step_v + 2 * offset * dp), np.int64(dp), bo0)
        j += n
    for r in range(r0, r0 + rows):
        a, ar, br = alpha[r], f32_at(acc + 4 * r * dp, dp), f32_at(bo + 4 * r * dp, dp)
        for j in range(dp):
            ar[j] = ar[j] * a + br[j]


@inner
def _merge(m_a, l_a, acc_a, m_b, l_b, acc_b, r, dp):
    """Row r of state b into state a (a is the earlier one)."""
    top = m_b[r] if m_b[r] > m_a[r] else m_a[r]
    fa, fb = exp(m_a[r] - top), exp(m_b[r] - top)
    l_a[r] = l_a[r] * fa + l_b[r] * fb
    m_a[r] = top
    for j in range(r * dp, (r + 1) * dp):
        acc_a[j] = acc_a[j] * fa + acc_b[j] * fb


@inner
def _finish(half, den, acc, r, dp, out, d):
    for j in range(d):
        out[j] = round16(acc[r * dp + j] / den[r] + ZERO, half)


@inner
def attention(counter, half, scratch, q, out, heads, kv_heads, d, page, window, scale_bits, k_cache, v_cache,
              positions, query_start, tables, table_width, tasks, n_tasks, partial):  # fmt: skip
    """Runs tasks until the counter passes n_tasks * kv_heads; window 0 for none.

    q, out: f32 [T, heads * d]. partial: per slot and key head TILE_ROWS * (2 + dp) f32 for the states of split tasks.
    """
    group, dp = heads // kv_heads, (d + COLUMNS - 1) // COLUMNS * COLUMNS
    scale = float_of(np.int32(scale_bits))
    task = carray(void_ptr(tasks), n_tasks * TASK_FIELDS, np.int32)
    starts = carray(void_ptr(query_start), 1 << 20, np.int32)
    at_position = carray(void_ptr(positions), 1 << 30, np.int32)
    head_step_k, head_step_v = np.int64(2 * kv_heads * d * page), np.int64(2 * kv_heads * page * dp)
    qs = scratch
    s = qs + 4 * TILE_ROWS * d
    ms = s + 4 * TILE_ROWS * KEY_BLOCK
    accs = ms + 4 * TILE_ROWS * 6
    bo = accs + 4 * TILE_ROWS * dp
    run_accs = bo + 4 * TILE_ROWS * dp
    m, den, alpha = f32_at(ms, TILE_ROWS), f32_at(ms + 4 * TILE_ROWS, TILE_ROWS), f32_at(ms + 8 * TILE_ROWS, TILE_ROWS)
    run_m, run_l = f32_at(ms + 12 * TILE_ROWS, TILE_ROWS), f32_at(ms + 16 * TILE_ROWS, TILE_ROWS)
    started = f32_at(ms + 20 * TILE_ROWS, TILE_ROWS)  # 0 or 1
    acc, run_acc = f32_at(accs, TILE_ROWS * dp), f32_at(run_accs, TILE_ROWS * dp)
    while True:
        t = atomic_add(counter, np.int64(1))
        if t >= n_tasks * kv_heads:
            return
        kh = t % kv_heads
        f = (t // kv_heads) * TASK_FIELDS
        seq, q0, q1, split0, split1, slot = task[f], task[f + 1], task[f + 2], task[f + 3], task[f + 4], task[f + 5]
        table = carray(void_ptr(np.int64(tables + 4 * seq * table_width)), table_width, np.int32)
        first_token = starts[seq] + q0
        pos0 = at_position[first_token]  # the tile's first query; the others follow it
        n_q = q1 - q0
        rows = n_q * group
        k_head, v_head = np.int64(k_cache + 2 * kh * d * page), np.int64(v_cache + 2 * kh * page * dp)
        for i in range(n_q):
            x = f32_at(q + 4 * ((first_token + i) * heads + kh * group) * d, group * d)
            y = f32_at(qs + 4 * i * group * d, group * d)
            for j in range(group * d):
                y[j] = x[j]
        for r in range(rows):
            run_l[r] = ZERO  # no split yet
            run_m[r] = NEG_INF
            started[r] = ZERO
        for split in range(split0, split1):
            for r in range(rows):
                m[r], den[r] = NEG_INF, ZERO
            for j in range(rows * dp):
                acc[j] = ZERO
            for key0 in range(split * KEY_SPLIT, min((split + 1) * KEY_SPLIT, pos0 + n_q), KEY_BLOCK):
                newest_first = 0 if window == 0 else max(0, pos0 + n_q - window)
                if key0 + KEY_BLOCK <= pos0 + 1 and key0 >= newest_first:  # every query sees the whole block
                    _block(half, 0, rows, 0, KEY_BLOCK, key0, qs, d, s, m, den, alpha, accs, bo, dp, scale, k_head, v_head,
                           head_step_k, head_step_v, page, table)  # fmt: skip
                else:
                    for i in range(n_q):
                        p = pos0 + i
                        lo = 0 if window == 0 else max(0, p - window + 1 - key0)
                        hi = min(KEY_BLOCK, p + 1 - key0)
                        if lo < hi:
                            _block(half, i * group, group, lo, hi, key0, qs, d, s, m, den, alpha, accs, bo, dp, scale,
                                   k_head, v_head, head_step_k, head_step_v, page, table)  # fmt: skip
            for r in range(rows):
                p = pos0 + r // group
                lowest = 0 if window == 0 else max(0, p - window + 1)
                if p < split * KEY_SPLIT or lowest >= (split + 1) * KEY_SPLIT:
                    continue  # this split holds no allowed key
                if started[r] > ZERO:
                    _merge(run_m, run_l, run_acc, m, den, acc, r, dp)
                else:
                    started[r] = np.float32(1)
                    run_m[r], run_l[r] = m[r], den[r]
                    for j in range(r * dp, (r + 1) * dp):
                        run_acc[j] = acc[j]
        if slot < 0:
            for r in range(rows):
                o = ((first_token + r // group) * heads + kh * group + r % group) * d
                _finish(half, run_l, run_acc, r, dp, f32_at(out + 4 * o, d), d)
        else:
            state = partial + 4 * (slot * kv_heads + kh) * TILE_ROWS * (2 + dp)
            pm, pl = f32_at(state, TILE_ROWS), f32_at(state + 4 * TILE_ROWS, TILE_ROWS)
            pa = f32_at(state + 8 * TILE_ROWS, TILE_ROWS * dp)
            for r in range(rows):
                pm[r], pl[r] = run_m[r], run_l[r]
            for j in range(rows * dp):
                pa[j] = run_acc[j]


@inner
def combine(counter, half, scratch, out, heads, kv_heads, d, query_start, tasks, n_tasks, partial, positions,
            window):  # fmt: skip
    """Merges the states of split tasks: a task with split0 == its sequence's first split leads the slots that follow it."""
    group, dp = heads // kv_heads, (d + COLUMNS - 1) // COLUMNS * COLUMNS
    task = carray(void_ptr(tasks), n_tasks * TASK_FIELDS, np.int32)
    starts = carray(void_ptr(query_start), 1 << 20, np.int32)
    at_position = carray(void_ptr(positions), 1 << 30, np.int32)
    size = 4 * TILE_ROWS * (2 + dp)
    while True:
        t = atomic_add(counter, np.int64(1))
        if t >= n_tasks * kv_heads:
            return
        kh, f = t % kv_heads, (t // kv_heads) * TASK_FIELDS
        followers = task[f + 6]
        if followers < 0:
            continue
        seq, q0, q1, split0, slot = task[f], task[f + 1], task[f + 2], task[f + 3], task[f + 5]
        first_token = starts[seq] + q0
        pos0 = at_position[first_token]
        for r in range((q1 - q0) * group):
            p = pos0 + r // group
            lowest = 0 if window == 0 else max(0, p - window + 1)
            started = False
            m, den, acc = f32_at(scratch, TILE_ROWS), f32_at(scratch + 4 * TILE_ROWS, TILE_ROWS), f32_at(scratch + 8 * TILE_ROWS, TILE_ROWS * dp)
            for i in range(followers + 1):
                split = split0 + i
                if p < split * KEY_SPLIT or lowest >= (split + 1) * KEY_SPLIT:
                    continue
                state = partial + ((slot + i) * kv_heads + kh) * size
                pm, pl = f32_at(state, TILE_ROWS), f32_at(state + 4 * TILE_ROWS, TILE_ROWS)
                pa = f32_at(state + 8 * TILE_ROWS, TILE_ROWS * dp)
                if started:
                    _merge(m, den, acc, pm, pl, pa, r, dp)
                else:
                    started = True
                    m[r], den[r] = pm[r], pl[r]
                    for j in range(r * dp, (r + 1) * dp):
                        acc[j] = pa[j]
            o = ((first_token + r // group) * heads + kh * group + r % group) * d
            _finish(half, den, acc, r, dp, f32_at(out + 4 * o, d), d)
