"""Section 2, mma chain: a matrix product as the matrix units of a family add it up.

Terms are whole numbers of the last place that is kept, held in f64: products of 16-bit values are exact there (22 bits),
cutting is `trunc`, and a sum of 17 terms below 2^27 is exact. Powers of two scale without rounding, subnormals included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle.numbers import F32, Dtype, bits
from queueproof.arithmetic.tensorcore1 import MMA_K, Family

F64 = NDArray[np.float64]
I16 = NDArray[np.int16]

LOWEST = {"bfloat16": -126, "float16": -14}  # exponents of the smallest normal values
NO_EXPONENT = np.int16(-10000)  # of a zero: a product with it never is the largest
TILE = 1 << 15  # products worked on at once, so that they stay in the processor's cache


def chain(x: F32, w: F32, family: Family, dtype: Dtype, acc: F32 | None = None) -> F32:
    """f32 [..., M, N]: acc (+0 without one), then x [..., M, K] times w [..., N, K] added to it. x and w hold 16-bit values.

    Infinities and NaNs end as they do in any sum; a result beyond f32 is an infinity.
    """
    k = x.shape[-1]
    if not k:
        raise ValueError("a chain over no factors")
    batch = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    m, n = x.shape[-2], w.shape[-2]
    padding = [(0, 0), (0, 0), (0, -k % MMA_K)]
    xs = np.pad(np.broadcast_to(x, (*batch, m, k)).reshape(-1, m, k), padding)
    ws = np.pad(np.broadcast_to(w, (*batch, n, k)).reshape(-1, n, k), padding)
    out = np.zeros((len(xs), m, n), np.float32)
    if acc is not None:
        out[...] = np.broadcast_to(acc, (*batch, m, n)).reshape(-1, m, n)
    rows = max(1, TILE // (family.step * n))
    for i, (x_i, w_i) in enumerate(zip(xs, ws, strict=True)):
        for start in range(0, m, rows):
            here = slice(start, start + rows)
            _walk(out[i, here], x_i[here].T, w_i.T, family, dtype)
    return out.reshape(*batch, m, n)


@np.errstate(all="ignore")
def _walk(acc: F32, x: F32, w: F32, family: Family, dtype: Dtype) -> None:
    """Adds x [K, M] times w [K, N] to acc [M, N], step after step."""
    e_x, e_w = _exponents(x, dtype)[:, :, None], _exponents(w, dtype)[:, None, :]
    wide_x, wide_w = x.astype(np.float64)[:, :, None], w.astype(np.float64)[:, None, :]
    products = np.empty((family.step, *acc.shape))
    exponents = np.empty(products.shape, np.int16)
    for k in range(0, len(x), family.step):
        here = slice(k, k + family.step)
        np.multiply(wide_x[here], wide_w[here], out=products)
        np.add(e_x[here], e_w[here], out=exponents)
        acc[...] = _step(acc, products, exponents.max(axis=0), family.fraction_bits)


def _exponents(x: F32, dtype: Dtype) -> I16:
    """Of 16-bit values: of subnormals the smallest normal's, since nothing shifts them into place first."""
    field = ((bits(x) >> 23) & 255).astype(np.int16) - np.int16(127)
    return np.where(x == 0, NO_EXPONENT, np.maximum(field, np.int16(LOWEST[dtype])))


def _step(acc: F32, products: F64, e: I16, fraction_bits: int) -> F32:
    """One addition of all terms: acc [M, N] and products [step, M, N], exact, with e [M, N] the largest of their exponents.

    The products' memory is used.
    """
    acc_exponent = np.maximum((bits(acc) >> 23) & 255, 1) - 127  # at least -126: a zero is a subnormal here
    last_place = np.maximum(e, acc_exponent).astype(np.int64) - fraction_bits
    terms = np.multiply(products, _pow2(-last_place), out=products)
    np.trunc(terms, out=terms)
    total = terms.sum(axis=0) + np.trunc(acc * _pow2(-last_place))
    return _cut(total * _pow2(last_place))


def _pow2(k: NDArray[np.int64]) -> F64:
    return ((k + 1023) << 52).view(np.float64)


def _cut(exact: F64) -> F32:
    """f64 to f32 toward zero, a zero becoming +0. The values are exact; beyond f32 is infinity."""
    normal = (exact.view(np.int64) & ~np.int64((1 << 29) - 1)).view(np.float64)
    subnormal = np.trunc(exact * 2.0**149) * 2.0**-149
    cut: F32 = (np.where(np.abs(exact) < 2.0**-126, subnormal, normal) + 0.0).astype(np.float32)
    return cut
