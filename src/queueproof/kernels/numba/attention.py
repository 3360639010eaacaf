"""Paged causal attention: blocks of 64 keys, splits of 512, an online softmax in each (docs/arithmetic.md section 5).

One kernel for prefill, decode and mixtures. A task is a tile of queries of one sequence over a range of splits; for each
head group it walks the blocks. Long contexts of few queries are cut into one task a split, whose states a second pass
merges in ascending order: the same additions as one task that walks them all.
"""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.ieee1 import KEY_BLOCK, KEY_SPLIT
from queueproof.kernels.numba import attention_dots as pairwise
from queueproof.kernels.numba import attention_tiles as tiles
from queueproof.kernels.numba.attention_softmax import softmax, visible
from queueproof.kernels.numba.attention_tiles import COLUMNS, GROUPS, MAX_ROWS, NARROW, WIDE
from queueproof.kernels.numba.dots import DOTS
from queueproof.kernels.numba.elementwise import f32_at, round16
from queueproof.kernels.numba.ir import atomic_add, carray, float_of, void_ptr
from queueproof.kernels.numba.jit import inner
from queueproof.kernels.numba.math import exp
from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.pairs import make_pairs

TILE_ROWS = 48  # (query, head) pairs of a task's tile
TASK_FIELDS = 7  # sequence, first query, last query + 1, first split, last split + 1, partial slot or -1, queries of the sequence
NEG_INF, ZERO = np.float32(-np.inf), np.float32(0)

_scores_bf16, _scores_bf16_wide = tiles.scores(False, NARROW), tiles.scores(False, WIDE)
_scores_f16, _scores_f16_wide = tiles.scores(True, NARROW), tiles.scores(True, WIDE)
_values_bf16, _values_bf16_wide = tiles.values(False, NARROW), tiles.values(False, WIDE)
_values_f16, _values_f16_wide = tiles.values(True, NARROW), tiles.values(True, WIDE)
_TOGETHER = WIDE // COLUMNS  # groups of keys in a wide tile of scores


def padded(head_dim: int) -> int:
    """Columns of a value row in the cache."""
    return -(-head_dim // COLUMNS) * COLUMNS


def scratch_f32(head_dim: int) -> int:
    """f32 of scratch per thread: where groups of keys and values are, q, scores, m, den, alpha, acc, block sums, and over
    splits m, den, acc and whether begun; then what `attention_dots` takes."""
    dp = padded(head_dim)
    own = 8 * GROUPS + 2 * COLUMNS + TILE_ROWS * (head_dim + KEY_BLOCK + 6 + 3 * dp)
    return own + pairwise.scratch_words(head_dim, dp, TILE_ROWS)


@inner
def _scores(half, rows, x, d, table, following, first, end, page, out):
    """out[rows, KEY_BLOCK] = chain over d for the groups of keys from first to end - 1, and perhaps for others."""
    tile, g = (rows + MAX_ROWS - 1) // MAX_ROWS, first
    while g < end:
        wide = end - g > 1
        g -= g % _TOGETHER if wide else 0
        r, left = 0, tile
        where = np.int64(table + 8 * g)
        while r < rows:
            n = (rows - r + left - 1) // left
            left -= 1
            words = (np.int64(n), np.int64(x + 4 * r * d), np.int64(d), where, np.int64(page),
                     np.int64(out + 4 * (r * KEY_BLOCK + g * COLUMNS)), np.int64(following + 8 * g))  # fmt: skip
            if half == 0:
                if wide:
                    _scores_bf16_wide(words)
                else:
                    _scores_bf16(words)
            elif wide:
                _scores_f16_wide(words)
            else:
                _scores_f16(words)
            r += n
        g += _TOGETHER if wide else 1


@inner
def _values(half, rows, p, table, following, first, end, dp, out):
    """out[rows, dp] goes on with the chain over the keys of a block from first to end - 1."""
    tile, c = (rows + MAX_ROWS - 1) // MAX_ROWS, 0
    while c < dp:
        wide = c + WIDE <= dp
        r, left = 0, tile
        while r < rows:
            n = (rows - r + left - 1) // left
            left -= 1
            words = (np.int64(n), np.int64(p + 4 * r * KEY_BLOCK), np.int64(table), np.int64(first), np.int64(end), np.int64(c),
                     np.int64(dp), np.int64(out + 4 * r * dp), np.int64(following))  # fmt: skip
            if half == 0:
                if wide:
                    _values_bf16_wide(words)
                else:
                    _values_bf16(words)
            elif wide:
                _values_f16_wide(words)
            else:
                _values_f16(words)
            r += n
        c += WIDE if wide else NARROW


@inner
def _block(half, i0, i1, group, pos0, window, key0, q, d, s, m, den, alpha, acc, bo, dp, scale, keys, values, page,
           least, pairs, sizes):  # fmt: skip
    """One block for the queries from i0 to i1 - 1 of a tile, of `group` rows each, which all see some key of it.

    keys, values: addresses of the tables of its groups. least: the smallest exponent of q (see `make_pairs`), whose pairs
    are at `pairs`, then room for those of keys, weights and values; -1 where dots are not for this tile.
    """
    lo, hi = visible(pos0 + i0, key0, window)[0], visible(pos0 + i1 - 1, key0, window)[1]  # what any of them sees
    r0, rows = i0 * group, (i1 - i0) * group
    s0, bo0 = s + 4 * r0 * KEY_BLOCK, bo + 4 * r0 * dp
    first, end = lo // COLUMNS, (hi + COLUMNS - 1) // COLUMNS
    key_pairs = pairs + 4 * TILE_ROWS * (d // 2)
    if DOTS and least >= 0 and least >= pairwise.pack_keys(keys, d, page, key_pairs, sizes):
        pairwise.products(rows, pairs + 4 * r0 * (d // 2), d // 2, key_pairs, KEY_BLOCK // PANEL, s0, KEY_BLOCK)
    else:
        _scores(half, rows, q + 4 * r0 * d, d, keys, keys + 16 * GROUPS, first, end, page, s0)
    softmax(half, i0, i1, group, pos0, window, key0, s, scale, m, den, alpha)
    if not (DOTS and least >= 0 and _dot_values(rows, s0, values, dp, bo0, key_pairs + 4 * KEY_BLOCK * (d // 2), sizes)):
        _chain_values(half, i0, i1, group, pos0, window, key0, s, lo, hi, values, dp, bo)
    for r in range(r0, r0 + rows):
        a, ar, br = alpha[r], f32_at(acc + 4 * r * dp, dp), f32_at(bo + 4 * r * dp, dp)
        for j in range(dp):
            ar[j] = ar[j] * a + br[j]


@inner
def _dot_values(rows, s, values, dp, out, pairs, sizes):
    """out[rows, dp] = weights s[rows, KEY_BLOCK] times the block's values, or False where that would not be the chain."""
    least = make_pairs(s, rows, KEY_BLOCK, pairs)
    value_pairs = pairs + 4 * TILE_ROWS * (KEY_BLOCK // 2)
    if least < 0 or least < pairwise.pack_values(values, dp, value_pairs, sizes):
        return False
    pairwise.products(rows, pairs, KEY_BLOCK // 2, value_pairs, dp // PANEL, out, dp)
    return True


@inner
def _chain_values(half, i0, i1, group, pos0, window, key0, s, lo, hi, values, dp, bo):
    """bo[rows, dp] = chain over the keys that each row sees, from lo to hi - 1 at most."""
    r0, rows, first, end = i0 * group, (i1 - i0) * group, lo // COLUMNS, (hi + COLUMNS - 1) // COLUMNS
    s0, bo0 = s + 4 * r0 * KEY_BLOCK, bo + 4 * r0 * dp
    sums = f32_at(bo0, rows * dp)
    for j in range(rows * dp):
        sums[j] = ZERO
    if visible(pos0 + i0, key0, window)[1] == hi and visible(pos0 + i1 - 1, key0, window)[0] == lo:
        _values(half, rows, s0, values, values + 16 * GROUPS, lo, hi, dp, bo0)
    else:
        for g in range(first, end):  # ascending for every row; those that see the whole group in one go
            k0, k1 = g * COLUMNS, (g + 1) * COLUMNS
            f0 = max(i0, key0 + k1 - 1 - pos0)
            f1 = i1 if window == 0 else min(i1, key0 + k0 + window - pos0)
            if f0 < f1:
                r = f0 * group
                _values(half, (f1 - f0) * group, s + 4 * r * KEY_BLOCK, values, values + 16 * GROUPS, k0, k1, dp, bo + 4 * r * dp)
            for i in range(i0, i1):
                a, b = visible(pos0 + i, key0, window)
                a, b = max(a, k0), min(b, k1)
                if a < b and (i < f0 or i >= f1):
                    r = i * group
                    _values(half, group, s + 4 * r * KEY_BLOCK, values, values + 16 * GROUPS, a, b, dp, bo + 4 * r * dp)


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
def _locate(keys, values, table, page, key0, oldest, newest, k_head, v_head, head_step_k, head_step_v, dp):
    """Where the groups of the block at key0 are, of one head, to the tables at keys and values; those that nobody sees, before
    `oldest` or after `newest`, get a place that can be read: a tile may go over them."""
    k, v = carray(void_ptr(np.int64(keys)), GROUPS, np.int64), carray(void_ptr(np.int64(values)), GROUPS, np.int64)
    for g in range(GROUPS):
        key = key0 + COLUMNS * max(oldest, min(g, newest))
        block, offset = np.int64(table[key // page]), key % page
        k[g] = k_head + block * head_step_k + 2 * offset
        v[g] = v_head + block * head_step_v + 2 * offset * dp


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
    keys, values = scratch, scratch + 8 * GROUPS
    next_keys, next_values = keys + 16 * GROUPS, values + 16 * GROUPS
    sizes = scratch + 32 * GROUPS
    qs = sizes + 8 * COLUMNS
    s = qs + 4 * TILE_ROWS * d
    ms = s + 4 * TILE_ROWS * KEY_BLOCK
    accs = ms + 4 * TILE_ROWS * 6
    bo = accs + 4 * TILE_ROWS * dp
    run_accs = bo + 4 * TILE_ROWS * dp
    m, den, alpha = f32_at(ms, TILE_ROWS), f32_at(ms + 4 * TILE_ROWS, TILE_ROWS), f32_at(ms + 8 * TILE_ROWS, TILE_ROWS)
    run_m, run_l = f32_at(ms + 12 * TILE_ROWS, TILE_ROWS), f32_at(ms + 16 * TILE_ROWS, TILE_ROWS)
    started = f32_at(ms + 20 * TILE_ROWS, TILE_ROWS)  # 0 or 1
    acc, run_acc = f32_at(accs, TILE_ROWS * dp), f32_at(run_accs, TILE_ROWS * dp)
    pairs = run_accs + 4 * TILE_ROWS * dp
    dots_apply = half == 0 and pairwise.applies(d, dp)
    total, following = n_tasks * kv_heads, atomic_add(counter, np.int64(1))
    while following < total:
        t, following = following, atomic_add(counter, np.int64(1))
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
        least = np.int64(-1)
        if dots_apply and rows >= pairwise.MANY_ROWS:
            least = make_pairs(qs, rows, d, pairs)
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
                i0 = max(0, key0 - pos0)
                i1 = n_q if window == 0 else min(n_q, key0 + KEY_BLOCK - 1 + window - pos0)
                if i0 >= i1:
                    continue
                oldest = visible(pos0 + i0, key0, window)[0] // COLUMNS
                newest = (visible(pos0 + i1 - 1, key0, window)[1] - 1) // COLUMNS
                _locate(keys, values, table, page, key0, oldest, newest, k_head, v_head, head_step_k, head_step_v, dp)
                next0 = key0 + KEY_BLOCK
                if next0 < min(split1 * KEY_SPLIT, pos0 + n_q):
                    _locate(next_keys, next_values, table, page, next0, 0, (min(KEY_BLOCK, pos0 + n_q - next0) - 1) // COLUMNS,
                            k_head, v_head, head_step_k, head_step_v, dp)  # fmt: skip
                elif following < total:
                    after, head = following // kv_heads * TASK_FIELDS, following % kv_heads
                    other, start = task[after], task[after + 3] * KEY_SPLIT
                    end = at_position[starts[other] + task[after + 1]] + 1
                    _locate(next_keys, next_values, carray(void_ptr(np.int64(tables + 4 * other * table_width)), table_width, np.int32),
                            page, start, 0, (min(KEY_BLOCK, end - start) - 1) // COLUMNS, np.int64(k_cache + 2 * head * d * page),
                            np.int64(v_cache + 2 * head * page * dp), head_step_k, head_step_v, dp)  # fmt: skip
                else:
                    _locate(next_keys, next_values, table, page, key0, oldest, newest, k_head, v_head, head_step_k, head_step_v, dp)
                _block(half, i0, i1, group, pos0, window, key0, qs, d, s, m, den, alpha, accs, bo, dp, scale, keys, values, page,
                       least, pairs, sizes)  # fmt: skip
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
