"""Section 1: f32, the 16-bit type, the fused multiply-add and the maximum.

A 16-bit value is kept as the f32 that equals it, so the same operators work on both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["bfloat16", "float16"]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U16 = NDArray[np.uint16]

# significant bits, log2 of the smallest subnormal, largest finite value
_FORMATS = {"bfloat16": (8, -133, float.fromhex("0x1.fep127")), "float16": (11, -24, 65504.0)}


def bits(x: F32) -> I32:
    return np.asarray(x, np.float32).view(np.int32)


def from_bits(i: I32) -> F32:
    return np.asarray(i, np.int32).view(np.float32)


@np.errstate(all="ignore")
def round16(x: F32, dtype: Dtype) -> F32:
    """Nearest 16-bit value, ties to even, by scaling the last kept place to 1 (exact in f64) and rounding to an integer.

    Overflow gives infinity; every NaN becomes the positive quiet one with an empty payload.
    """
    significant, lowest, largest = _FORMATS[dtype]
    wide = np.asarray(x, np.float64)
    exponent = np.frexp(wide)[1]  # wide = m * 2^exponent with 1/2 <= |m| < 1
    last_place = np.maximum(exponent - significant, lowest)
    rounded = np.ldexp(np.rint(np.ldexp(wide, -last_place)), last_place)
    rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, wide), rounded)
    return np.where(np.isnan(wide), np.float32(np.nan), rounded.astype(np.float32))


def widen(u: U16, dtype: Dtype) -> F32:
    """The f32 values of stored 16-bit patterns."""
    if dtype == "float16":
        return u.view(np.float16).astype(np.float32)
    return (u.astype(np.uint32) << np.uint32(16)).view(np.float32)


@np.errstate(all="ignore")
def fma(x: F32, w: F32, acc: F32) -> F32:
    """fma(x, w, acc) for factors that are 16-bit values: one rounding, by way of f64.

    The f64 product is exact: at most 22 significant bits, and no smaller than 2^-266, far above the f64 subnormals
    (in f32 a product of bfloat16 values may underflow, so it could not be taken there). The f64 sum may be inexact,
    yet rounding it again to f32 gives what one rounding gives. Inexact means more than 53 bits from the first bit of
    the larger operand to the last of the smaller; as neither is longer than 24 bits, the smaller is below 2^-28 of
    the larger. The larger is then an f32 value (acc always; a product unless it overflows, or has bits below 2^-149,
    but that one is below 2^-133 and an acc that much smaller is 0), and both ways end at it.
    """
    return (x.astype(np.float64) * w.astype(np.float64) + acc.astype(np.float64)).astype(np.float32)


def maximum(a: F32, b: F32) -> F32:
    """`b if b > a else a`: a NaN in b is passed over, and of two zeros the first stays."""
    return np.where(b > a, b, a)
