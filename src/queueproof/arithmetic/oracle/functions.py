"""Section 3: exp, log, rsqrt and silu of f32 values. Every operator here is one IEEE f32 operation."""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic.oracle.numbers import F32, I32, bits, from_bits


def _constant(hexadecimal: str) -> np.float32:
    return np.float32(float.fromhex(hexadecimal))


LOG2E = _constant("0x1.715476p+0")
MAGIC = np.float32(12582912.0)
MAGIC_BITS = np.int32(MAGIC.view(np.int32))
LN2_HI = _constant("0x1.62e4p-1")
LN2_LO = _constant("0x1.7f7d1cp-20")
E0, E1, E2, E3, E4 = map(
    _constant, ("0x1.fffffcp-2", "0x1.555492p-3", "0x1.5558f2p-5", "0x1.1239e2p-7", "0x1.6a2442p-10")
)
G0, G1, G2 = map(_constant, ("0x1.55557ap-1", "0x1.995ee6p-2", "0x1.31dfdap-2"))
HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)


@np.errstate(all="ignore")
def exp(x: F32) -> F32:
    x = np.asarray(x, np.float32)
    x = np.where(x < np.float32(-104), np.float32(-104), x)
    x = np.where(x > np.float32(89), np.float32(89), x)
    t = x * LOG2E + MAGIC
    nf = t - MAGIC
    n = bits(t) - MAGIC_BITS
    r = (x - nf * LN2_HI) - nf * LN2_LO
    q = (((E4 * r + E3) * r + E2) * r + E1) * r + E0
    y = ((r * r) * q + r) + ONE
    n1 = n >> 1
    n2 = n - n1
    scaled: F32 = (y * _pow2(n1)) * _pow2(n2)
    return scaled


def _pow2(k: I32) -> F32:
    return from_bits((k + np.int32(127)) << np.int32(23))


@np.errstate(all="ignore")
def log(x: F32) -> F32:
    x = np.asarray(x, np.float32)
    small = x < np.float32(2.0**-126)
    scaled = np.where(small, x * np.float32(2.0**25), x)
    e0 = np.where(small, np.int32(-25), np.int32(0))
    i = bits(scaled) + np.int32(0x3F800000 - 0x3F3504F3)
    k = (i >> 23) - np.int32(127) + e0
    m = from_bits((i & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3))
    f = m - ONE
    s = f / (TWO + f)
    z = s * s
    r = z * (G0 + z * (G1 + z * G2))
    h = (HALF * f) * f
    kf = k.astype(np.float32)
    result: F32 = (((s * (h + r) + kf * LN2_LO) - h) + f) + kf * LN2_HI
    result = np.where(x == np.inf, x, result)
    result = np.where((x < 0) | np.isnan(x), np.float32(np.nan), result)
    return np.where(x == 0, np.float32(-np.inf), result)


@np.errstate(all="ignore")
def rsqrt(x: F32) -> F32:
    result: F32 = np.divide(ONE, np.sqrt(x))
    return result


@np.errstate(all="ignore")
def silu(x: F32) -> F32:
    return x / (ONE + exp(-x))
