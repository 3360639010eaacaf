"""Section 2: the trees of additions."""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.oracle.numbers import F32, fma

SEGMENTS = 8
BLOCK = 4096
LANES = 64


def chain(x: F32, w: F32) -> F32:
    """acc = fma(x[k], w[k], acc) for k ascending from +0. The summed axis is the first; the others broadcast."""
    acc = np.zeros(np.broadcast_shapes(x.shape[1:], w.shape[1:]), np.float32)
    for x_k, w_k in zip(x, w, strict=True):
        acc = fma(x_k, w_k, acc)
    return acc


@np.errstate(all="ignore")
def matmul(x: F32, w: F32, bias: F32 | None = None) -> F32:
    """f32 [M, N] of x [M, K] and w [N, K], 16-bit values: eight chains over K, added in pairs; then the bias."""
    k = x.shape[1]
    segment = -(-k // SEGMENTS)
    p = []
    for s in range(SEGMENTS):
        here = slice(min(k, s * segment), min(k, (s + 1) * segment))
        p.append(chain(x.T[here, :, None], w.T[here, None, :]))
    result = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
    return result if bias is None else result + bias


@np.errstate(all="ignore")
def halving(t: F32) -> F32:
    """Sum over the last axis, whose length is a power of two: t[i] + t[i + n/2] until one is left."""
    while t.shape[-1] > 1:
        half = t.shape[-1] // 2
        t = t[..., :half] + t[..., half:]
    return t[..., 0]


@np.errstate(all="ignore")
def row_sum(v: F32) -> F32:
    """Sum over the last axis of f32 values: blocks of 4096, in each 64 lanes that are summed by halving."""
    sums = []
    for start in range(0, v.shape[-1], BLOCK):
        block = v[..., start : start + BLOCK]
        lanes = np.zeros((*v.shape[:-1], LANES), np.float32)
        for first in range(0, block.shape[-1], LANES):
            part = block[..., first : first + LANES]
            lanes[..., : part.shape[-1]] += part
        sums.append(halving(lanes))
    return sums[0] if len(sums) == 1 else row_sum(np.stack(sums, axis=-1))
