"""Section 5 without attention: norm, rotary positions and the gated activation."""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.oracle.functions import rsqrt, silu
from queueproof.arithmetic.oracle.numbers import F32, Dtype, round16
from queueproof.arithmetic.oracle.sums import row_sum


@np.errstate(all="ignore")
def norm(h: F32, weight: F32, eps: float) -> F32:
    """(h * rsqrt(mean of squares + eps)) * weight over the last axis, f32, not yet rounded to 16 bits."""
    mean = row_sum(h * h) / np.float32(h.shape[-1])
    r = rsqrt(mean + np.float32(eps))
    return (h * r[..., None]) * weight


def rms_norm(h: F32, weight: F32, eps: float, dtype: Dtype) -> F32:
    return round16(norm(h, weight, eps), dtype)


@np.errstate(all="ignore")
def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Rotates f32 [T, heads, D] by cos and sin [T, D / 2]: element i is paired with i + D/2."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


@np.errstate(all="ignore")
def silu_mul(gate_up: F32, dtype: Dtype) -> F32:
    """round16(silu(g) * u) of [T, 2F] = (g, u)."""
    half = gate_up.shape[-1] // 2
    return round16(silu(gate_up[..., :half]) * gate_up[..., half:], dtype)
