"""Rounding of activations to the model's 16-bit type, fast and in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from queueproof.kernels.ops import F32, Dtype

_ONE, _PLACES = np.uint32(1), np.uint32(16)
_HALF, _KEPT = np.uint32(0x7FFF), np.uint32(0xFFFF0000)


def _round_bf16(x: F32) -> F32:
    # The NaNs that arithmetic makes have no low payload bits, so the addition cannot carry them into a number.
    bits = x.view(np.uint32)
    odd = bits >> _PLACES
    odd &= _ONE
    odd += _HALF
    bits += odd
    bits &= _KEPT
    return x


def _round_f16(x: F32) -> F32:
    x[...] = x.astype(np.float16)
    return x


def rounder(dtype: Dtype) -> Callable[[F32], F32]:
    """A function that rounds a contiguous f32 array to nearest even in place and returns it."""
    return _round_bf16 if dtype == "bfloat16" else _round_f16
