"""What section 1 leaves to this arithmetic: the fused multiply-add of any f32 values, and `exp2` where there is no card."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from queueproof.arithmetic.oracle.numbers import F32

Exp2 = Callable[[F32], F32]


@np.errstate(all="ignore")
def fma(x: F32, y: F32, z: F32) -> F32:
    """fma(x, y, z) of f32 values with one rounding.

    The f64 product is exact. The f64 sum is rounded to odd (the error of the nearest sum, by Knuth's two-sum, says on which
    side the exact one lies), which keeps enough for the rounding to f32 to be the only one (Boldo and Melquiond, 2008).
    """
    product = np.asarray(x, np.float64) * np.asarray(y, np.float64)
    addend = np.asarray(z, np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = np.isfinite(total) & (error != 0) & ((total.view(np.int64) & 1) == 0)
    odd = np.where(inexact, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)


@np.errstate(all="ignore")
def exp2(x: F32) -> F32:
    """NumPy's, in f32. A card has its own, so that the whole arithmetic is compared with a card's exp2 in this place."""
    values: F32 = np.exp2(np.ascontiguousarray(x, np.float32))
    return values
