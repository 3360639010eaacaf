"""Section 5, attention: an online softmax over blocks of 64 keys, restarted every 512 and merged in order.

Queries and heads never meet in a sum, so they are carried side by side; keys are walked one block after another.
A query takes a block only if it may see one of its keys: elsewhere its state is left as it was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle.functions import exp
from queueproof.arithmetic.oracle.numbers import F32, I32, Dtype, fma, maximum, round16
from queueproof.arithmetic.oracle.sums import chain, halving

KEY_BLOCK = 64
KEY_SPLIT = 512

Mask = NDArray[np.bool_]


class State(NamedTuple):
    """Of each query and head: the running maximum [T, heads], denominator [T, heads], numerator [T, heads, D]."""

    m: F32
    l: F32  # noqa: E741  the definition's name
    acc: F32


def attention(q: F32, k: F32, v: F32, positions: I32, window: int | None, dtype: Dtype) -> F32:
    """[T, heads, D], 16-bit values.

    q: [T, heads, D], queries at `positions` [T]. k, v: [L, kv_heads, D], the keys of positions 0 … L-1, with
    L > max(positions). All hold 16-bit values. window: how many keys a query sees at most, its own included.
    """
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    keys = np.arange(k.shape[0])
    first = np.zeros_like(positions) if window is None else np.maximum(0, positions - window + 1)
    allowed = (keys >= first[:, None]) & (keys <= positions[:, None])

    total = _fresh(q)
    started = np.zeros(q.shape[0], np.bool_)
    for start in range(0, len(keys), KEY_SPLIT):
        here = slice(start, start + KEY_SPLIT)
        part = _split(q, k[here], v[here], allowed[:, here], dtype)
        sees = _any_key(allowed[:, here])
        total = _choose(sees & started, _merge(total, part), _choose(sees & ~started, part, total))
        started |= sees
    with np.errstate(all="ignore"):
        return round16(total.acc / total.l[..., None] + np.float32(0), dtype)


def _fresh(q: F32) -> State:
    rows = q.shape[:2]
    return State(np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32), np.zeros(q.shape, np.float32))


def _any_key(allowed: Mask) -> Mask:
    """Per query, whether it may see one of the keys."""
    return np.asarray(allowed.any(axis=1))


def _choose(queries: Mask, yes: State, no: State) -> State:
    """Per query, one state or the other."""
    rows = queries[:, None]
    return State(np.where(rows, yes.m, no.m), np.where(rows, yes.l, no.l), np.where(rows[..., None], yes.acc, no.acc))


def _split(q: F32, k: F32, v: F32, allowed: Mask, dtype: Dtype) -> State:
    """The state after the (at most 512) keys of one split."""
    state = _fresh(q)
    for start in range(0, k.shape[0], KEY_BLOCK):
        here = slice(start, start + KEY_BLOCK)
        after = _block(state, q, k[here], v[here], allowed[:, here], dtype)
        state = _choose(_any_key(allowed[:, here]), after, state)
    return state


@np.errstate(all="ignore")
def _block(state: State, q: F32, k: F32, v: F32, allowed: Mask, dtype: Dtype) -> State:
    """The state after one more block of (at most 64) keys, for queries that see one of them."""
    keys, head_dim = k.shape[0], q.shape[2]
    scale = np.float32(1.0 / np.sqrt(np.float64(head_dim)))
    q_by_d = q.transpose(2, 0, 1)[:, :, :, None]  # [D, T, heads, 1]
    k_by_d = k.transpose(2, 1, 0)[:, None, :, :]  # [D, 1, heads, keys]
    s = chain(q_by_d, k_by_d) * scale  # [T, heads, keys]

    m = state.m
    for j in range(keys):
        m = np.where(allowed[:, j, None], maximum(m, s[..., j]), m)
    a = exp(state.m - m)

    p = np.zeros((*m.shape, KEY_BLOCK), np.float32)
    p[..., :keys] = np.where(allowed[:, None, :], round16(exp(s - m[..., None]), dtype), np.float32(0))
    block_out = np.zeros(q.shape, np.float32)
    for j in range(keys):  # a key that is not allowed takes no part: 0 * infinity would be a NaN
        block_out = np.where(allowed[:, j, None, None], fma(p[..., j, None], v[j], block_out), block_out)
    return State(m, state.l * a + halving(p), state.acc * a[..., None] + block_out)


@np.errstate(all="ignore")
def _merge(total: State, part: State) -> State:
    m = maximum(total.m, part.m)
    a, b = exp(total.m - m), exp(part.m - m)
    return State(m, total.l * a + part.l * b, total.acc * a[..., None] + part.acc * b[..., None])
