"""Section 2, integer sum: a sum over a row that has no order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle.numbers import F32
from queueproof.arithmetic.tensorcore1 import FIXED_ONE

I64 = NDArray[np.int64]


@np.errstate(all="ignore")
def quantised(v: F32) -> I64:
    """v * 2^40 toward zero. The product is exact; of infinities, NaNs and values from 2^23 on: any number."""
    return (np.asarray(v, np.float32) * np.float32(FIXED_ONE)).astype(np.int64)


def value(total: I64) -> F32:
    """The f32 value of a sum of quantised values, to nearest even."""
    result: F32 = np.asarray(total, np.int64).astype(np.float32) * np.float32(1 / FIXED_ONE)
    return result


def isum(v: F32) -> F32:
    """Sum over the last axis of n values with n * max |v| < 2^22."""
    return value(quantised(v).sum(axis=-1))
