"""Section 3, attention: an online softmax over blocks of 64 keys, restarted every 512 and merged in order.

Queries and heads never meet in a sum, so those that share keys are the rows of one matrix product; keys are walked one
block after another. A query takes a block only if it may see one of its keys: elsewhere its state is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle.numbers import F32, I32, Dtype, maximum, round16
from queueproof.arithmetic.oracle.tensorcore import mma
from queueproof.arithmetic.oracle.tensorcore.numbers import Exp2, fma
from queueproof.arithmetic.oracle.tensorcore.sums import isum
from queueproof.arithmetic.tensorcore1 import KEY_BLOCK, KEY_SPLIT, LOG2E, Family

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Unit:
    """What the arithmetic of a card and a model is made of."""

    family: Family
    dtype: Dtype
    exp2: Exp2


@dataclass(slots=True)
class State:
    """Of each key/value head and row: maximum [kv_heads, R], denominator [kv_heads, R, lanes], numerator [kv_heads, R, D]."""

    m: F32
    l: F32  # noqa: E741  the definition's name
    acc: F32

    @staticmethod
    def fresh(kv_heads: int, rows: int, lanes: int, head_dim: int) -> State:
        m = np.full((kv_heads, rows), -np.inf, np.float32)
        return State(m, np.zeros((*m.shape, lanes), np.float32), np.zeros((*m.shape, head_dim), np.float32))

    def take(self, rows: Mask) -> State:
        return State(self.m[:, rows], self.l[:, rows], self.acc[:, rows])

    def put(self, rows: Mask, other: State) -> None:
        self.m[:, rows], self.l[:, rows], self.acc[:, rows] = other.m, other.l, other.acc


def attention(q: F32, k: F32, v: F32, positions: I32, window: int | None, unit: Unit) -> F32:
    """[T, heads, D], 16-bit values.

    q: [T, heads, D], queries at `positions` [T]. k, v: [L, kv_heads, D], the keys of positions 0 … L-1, with
    L > max(positions). All hold 16-bit values. window: how many keys a query sees at most, its own included.
    """
    tokens, heads, head_dim = q.shape
    length, kv_heads, _ = k.shape
    group = heads // kv_heads
    # Rows of a key/value head: its group of heads, for each token.
    rows = q.reshape(tokens, kv_heads, group, head_dim).swapaxes(0, 1).reshape(kv_heads, tokens * group, head_dim)
    keys = np.arange(-(-length // KEY_BLOCK) * KEY_BLOCK)
    first = np.zeros_like(positions) if window is None else np.maximum(0, positions - window + 1)
    allowed = (keys >= first[:, None]) & (keys <= positions[:, None])
    seen = _any_key(allowed.T)[:length, None, None]
    padding = ((0, len(keys) - length), (0, 0), (0, 0))
    k, v = (np.pad(np.where(seen, x, np.float32(0)), padding).swapaxes(0, 1) for x in (k, v))
    allowed = np.repeat(allowed, group, axis=0)

    total = State.fresh(kv_heads, tokens * group, 1, head_dim)
    for start in range(0, len(keys), KEY_SPLIT):
        here = slice(start, start + KEY_SPLIT)
        sees = _any_key(allowed[:, here])
        if sees.any():
            part = _split(rows[:, sees], k[:, here], v[:, here], allowed[sees, here], unit)
            total.put(sees, _merge(total.take(sees), part, unit))
    with np.errstate(all="ignore"):
        out = round16(total.acc / total.l + np.float32(0), unit.dtype)
    return out.reshape(kv_heads, tokens, group, head_dim).swapaxes(0, 1).reshape(tokens, heads, head_dim)


def _any_key(allowed: Mask) -> Mask:
    """Per row, whether one of the columns is set."""
    return np.asarray(allowed.any(axis=1))


def _split(q: F32, k: F32, v: F32, allowed: Mask, unit: Unit) -> State:
    """The state after the (at most 512) keys of one split, its lanes summed."""
    kv_heads, rows, head_dim = q.shape
    state = State.fresh(kv_heads, rows, KEY_BLOCK, head_dim)
    for start in range(0, k.shape[1], KEY_BLOCK):
        here = slice(start, start + KEY_BLOCK)
        sees = _any_key(allowed[:, here])
        if sees.any():
            before = state.take(sees)
            state.put(sees, _block(before, q[:, sees], k[:, here], v[:, here], allowed[sees, here], unit))
    state.l = isum(state.l)[..., None]
    return state


@np.errstate(all="ignore")
def _block(state: State, q: F32, k: F32, v: F32, allowed: Mask, unit: Unit) -> State:
    """The state after one more block of 64 keys, for rows that see one of them."""
    scale = np.float32(LOG2E / np.sqrt(np.float64(q.shape[-1])))
    t = mma.chain(q, k, unit.family, unit.dtype) * scale
    t = np.where(allowed, t, np.float32(-np.inf))
    m = maximum(state.m, np.fmax.reduce(t, axis=-1))
    base = _finite(m)
    a = unit.exp2(state.m - base)
    p = round16(unit.exp2(t - base[..., None]), unit.dtype)
    p = np.where(allowed, p, np.float32(0))
    acc = mma.chain(p, v.swapaxes(1, 2), unit.family, unit.dtype, state.acc * a[..., None])
    return State(m, fma(state.l, a[..., None], p), acc)


@np.errstate(all="ignore")
def _merge(total: State, part: State, unit: Unit) -> State:
    m = maximum(total.m, part.m)
    base = _finite(m)
    a, b = unit.exp2(total.m - base)[..., None], unit.exp2(part.m - base)[..., None]
    return State(m, fma(total.l, a, part.l * b), fma(total.acc, a, part.acc * b))


def _finite(m: F32) -> F32:
    """m, or 0 in the place of −∞, so that a difference with it is no NaN."""
    return np.where(m == -np.inf, np.float32(0), m)
