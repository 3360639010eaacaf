"""From a row of logits to numbers and a token (docs/arithmetic.md section 6)."""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.ieee1 import ROW_LANES
from queueproof.kernels.numba.elementwise import f32_at, row_sum
from queueproof.kernels.numba.ir import atomic_add, carray, void_ptr
from queueproof.kernels.numba.jit import inner, kernel
from queueproof.kernels.numba.math import exp, log

ZERO, ONE, HALF, NEG_INF = np.float32(0), np.float32(1), np.float32(0.5), np.float32(-np.inf)
ULP23 = np.float32(2.0**-23)
# -log(-log(u)) at the largest u is 16.6355; a token further than this below the best score cannot win
GUMBEL_MAX = np.float32(16.75)
SHORT_LIST = 256  # ranks found by selection before a full sort is worth it


@inner
def top(x, n, lanes):
    """(index of rank 0, or -1 where x holds a NaN). The first of equal values wins."""
    for lane in range(ROW_LANES):
        lanes[lane] = NEG_INF
    bad = 0
    i = 0
    while i + ROW_LANES <= n:
        for lane in range(ROW_LANES):
            v = x[i + lane]
            lanes[lane] = v if v > lanes[lane] else lanes[lane]
        for lane in range(ROW_LANES):
            v = x[i + lane]
            bad += 1 if v != v else 0
        i += ROW_LANES
    best = NEG_INF
    for lane in range(ROW_LANES):
        best = lanes[lane] if lanes[lane] > best else best
    while i < n:
        best = x[i] if x[i] > best else best
        bad += 1 if x[i] != x[i] else 0
        i += 1
    if bad > 0:
        return -1
    for j in range(n):
        if x[j] == best:
            return j
    return 0


@inner
def stats(counter, scratch, logits, rows, n, arg, maximum, logz):
    """Per row: argmax (-1: NaN), max, log(row_sum(exp(x - max))). scratch: ROW_LANES + n f32."""
    a, m, z = carray(void_ptr(arg), rows, np.int32), f32_at(maximum, rows), f32_at(logz, rows)
    lanes, work = f32_at(scratch, ROW_LANES), f32_at(scratch + 4 * ROW_LANES, n)
    while True:
        r = atomic_add(counter, np.int64(1))
        if r >= rows:
            return
        x = f32_at(logits + 4 * r * n, n)
        best = top(x, n, lanes)
        a[r] = best
        m[r] = x[max(best, 0)]
        big = m[r]
        for i in range(n):
            work[i] = exp(x[i] - big)
        z[r] = log(row_sum(work, n, lanes))


@inner
def _ranks(x, n, k, ids):
    """ids[0:k] = the first k ranks (larger value, then smaller id) by insertion into a short sorted list."""
    count = 0
    for i in range(n):
        v = x[i]
        if count == k and not (v > x[ids[k - 1]]):
            continue
        j = count if count < k else k - 1
        while j > 0 and v > x[ids[j - 1]]:
            ids[j] = ids[j - 1]
            j -= 1
        ids[j] = i
        if count < k:
            count += 1


@inner
def ranks(x, n, k):
    """i32 [k]: ids of the first k ranks of x[0:n], which holds no NaN."""
    ids = np.empty(k, np.int32)
    if k <= SHORT_LIST:
        _ranks(x, n, k, ids)
    else:
        order = np.argsort(-x[:n], kind="mergesort")  # stable: equal values stay in order of id
        for i in range(k):
            ids[i] = order[i]
    return ids


@kernel
def topk(logits, k):
    """i32 [R, k]; a NaN counts as −∞ here (such a row ends its request before anyone reads its ranks)."""
    rows, n = logits.shape
    out = np.empty((rows, k), np.int32)
    x = np.empty(n, np.float32)
    for r in range(rows):
        for i in range(n):
            x[i] = logits[r, i] if logits[r, i] == logits[r, i] else NEG_INF
        out[r] = ranks(x, n, k)
    return out


@inner
def philox(block, position, seed, out):
    """Philox4x32-10 of counter (block, position low, position high, 0) under the 64-bit key `seed`; u32 [4] into out."""
    mask = np.uint64(0xFFFFFFFF)
    m0, m1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    w0, w1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
    shift = np.uint64(32)
    c0, c1, c2, c3 = np.uint64(block), np.uint64(position) & mask, np.uint64(position) >> shift, np.uint64(0)
    k0, k1 = np.uint64(seed) & mask, np.uint64(seed) >> shift
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & mask, (p0 >> shift) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    out[0], out[1], out[2], out[3] = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@inner
def gumbel(word):
    u = (np.float32(np.int32(word >> np.uint32(9))) + HALF) * ULP23
    return -log(-log(u))


@kernel
def sample(row, temperature, top_k, top_p, min_p, seed, position):
    """One token of logits f32 [V]; -1 where they hold a NaN. See RowOps.sample; temperature, top_p, min_p are f32."""
    n = row.shape[0]
    lanes = np.empty(ROW_LANES, np.float32)
    z = np.empty(n, np.float32)
    for i in range(n):
        z[i] = row[i] / temperature
    best = top(z, n, lanes)
    if best < 0:
        return -1
    big = z[best]
    keep = np.ones(n, np.bool_)
    e = np.empty(0, np.float32)
    if min_p > ZERO or top_p < ONE:
        e = np.empty(n, np.float32)
        for i in range(n):
            e[i] = exp(z[i] - big)
    if min_p > ZERO:
        for i in range(n):
            keep[i] = e[i] >= min_p
        keep[best] = True
    if 0 < top_k < n:
        first = ranks(z, n, top_k)
        chosen = np.zeros(n, np.bool_)
        for i in range(top_k):
            chosen[first[i]] = keep[first[i]]
        keep = chosen
    if top_p < ONE:
        work = np.empty(n, np.float32)
        left = 0
        for i in range(n):
            work[i] = e[i] if keep[i] else ZERO
            left += 1 if keep[i] else 0
            z[i] = z[i] if keep[i] else NEG_INF  # so that ranks of z are ranks of those kept
        mass = top_p * row_sum(work, n, lanes)
        k = min(n, SHORT_LIST)
        while True:
            first = ranks(z, n, k)
            total, used = ZERO, 0
            while used < min(k, left):
                total = total + e[first[used]]
                used += 1
                if total >= mass:
                    break
            if total >= mass or k >= left:
                break
            k = n
        chosen = np.zeros(n, np.bool_)
        for i in range(max(used, 1)):
            chosen[first[i]] = True
        keep = chosen
    words = np.empty(4, np.uint32)
    philox(best >> 2, position, seed, words)
    winner, score = best, NEG_INF
    if keep[best]:
        score = big + gumbel(words[best & 3])
    at = -1
    for i in range(n):
        if not keep[i] or z[i] + GUMBEL_MAX < score:
            continue
        if (i >> 2) != at:
            at = i >> 2
            philox(at, position, seed, words)
        g = z[i] + gumbel(words[i & 3])
        if g > score or (g == score and i < winner):
            winner, score = i, g
    return winner
