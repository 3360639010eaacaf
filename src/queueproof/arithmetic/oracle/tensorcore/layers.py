"""Section 3 without attention: what differs from `ieee/1`, which is the norm and the matrix product."""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.oracle.functions import rsqrt
from queueproof.arithmetic.oracle.numbers import F32, I32, Dtype, bits, from_bits, round16
from queueproof.arithmetic.oracle.tensorcore import mma
from queueproof.arithmetic.oracle.tensorcore.sums import isum
from queueproof.arithmetic.tensorcore1 import Family


@np.errstate(all="ignore")
def norm(x: F32, weight: F32, eps: float) -> F32:
    """(x * rsqrt(mean of squares + eps)) * weight over the last axis, f32, not yet rounded to 16 bits."""
    largest = np.fmax.reduce(np.abs(x), axis=-1)
    e = np.maximum((bits(largest) >> 23) - 127, -126)
    down = -e // 2
    u = (x * _pow2(down)[..., None]) * _pow2(-e - down)[..., None]
    p, q = _pow2(e // 2), _pow2(e - e // 2)
    mean = ((((isum(u * u) / np.float32(x.shape[-1])) * p) * p) * q) * q
    r = rsqrt(mean + np.float32(eps))
    return (x * r[..., None]) * weight


def _pow2(k: I32) -> F32:
    return from_bits((k + 127) << 23)


@np.errstate(all="ignore")
def logits(x: F32, w: F32, bias: F32 | None, family: Family, dtype: Dtype) -> F32:
    """f32 [M, N] of x [M, K] and w [N, K], 16-bit values: the head."""
    product = mma.chain(x, w, family, dtype)
    return product if bias is None else product + bias


def linear(x: F32, w: F32, bias: F32 | None, family: Family, dtype: Dtype) -> F32:
    """The same rounded to 16 bits: every other matrix."""
    return round16(logits(x, w, bias, family, dtype), dtype)
