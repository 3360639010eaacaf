"""16-bit numbers as their bits: the conversions every part of a model shares (docs/arithmetic.md, section 1)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.ieee1 import NAN_BF16, NAN_F16
from queueproof.contract.errors import InvalidParameter

Dtype = Literal["bfloat16", "float16"]
F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]


def round16_bits(x: F32, dtype: Dtype) -> U16:
    """u16 bits of f32 values of any shape, rounded to nearest even.

    Overflow goes to infinity, subnormals are kept, every NaN becomes 0x7fc0 (bfloat16) or 0x7e00 (float16).
    Raises InvalidParameter for another dtype.
    """
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "bfloat16":
        bits = x.view(np.uint32)
        # Half of the last kept place, less one where that place is even: a tie then carries into odd values only.
        rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
            np.uint16
        )
        nan = NAN_BF16
    elif dtype == "float16":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = x.astype(np.float16).view(np.uint16)
        nan = NAN_F16
    else:
        raise _unknown(dtype)
    is_nan = np.isnan(x)
    if is_nan.any():
        rounded = np.where(is_nan, np.uint16(nan), rounded)
    return rounded


def widen(bits: U16, dtype: Dtype) -> F32:
    """The f32 values, exact, that u16 bits of any shape stand for. Raises InvalidParameter for another dtype."""
    bits = np.ascontiguousarray(bits, np.uint16)
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "float16":
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return bits.view(np.float16).astype(np.float32)
    raise _unknown(dtype)


def round16(x: F32, dtype: Dtype) -> F32:
    """f32 values rounded to the 16-bit type and widened again: `round16` of the definition."""
    return widen(round16_bits(x, dtype), dtype)


def _unknown(dtype: object) -> InvalidParameter:
    return InvalidParameter("dtype", dtype, "'bfloat16' and 'float16' are; convert the weights to one of them")
