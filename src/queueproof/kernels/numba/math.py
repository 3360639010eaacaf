"""exp, log, silu, round16 and the halving tree of `ieee/1` for scalars; LLVM vectorises the loops around them."""

from __future__ import annotations

import numpy as np

from queueproof.arithmetic import ieee1 as A
from queueproof.kernels.numba.ir import bits_of, f16_bits_of, f16_to_f32, float_of
from queueproof.kernels.numba.jit import inner

f32, i32 = np.float32, np.int32
LOG2E, MAGIC, LN2_HI, LN2_LO = f32(A.LOG2E), f32(A.MAGIC), f32(A.LN2_HI), f32(A.LN2_LO)
EXP_MIN, EXP_MAX = f32(A.EXP_MIN), f32(A.EXP_MAX)
E0, E1, E2, E3, E4 = f32(A.E0), f32(A.E1), f32(A.E2), f32(A.E3), f32(A.E4)
G0, G1, G2 = f32(A.G0), f32(A.G1), f32(A.G2)
MAGIC_BITS = i32(np.float32(A.MAGIC).view(np.int32))
ONE, TWO, HALF = f32(1), f32(2), f32(0.5)
SHIFT_UP, SMALLEST = f32(2.0**25), f32(2.0**-126)
LOG_BIAS = i32(A.ONE_BITS - A.SQRT_HALF_BITS)
SQRT_HALF_BITS, MANTISSA = i32(A.SQRT_HALF_BITS), i32(0x007FFFFF)
INF, NAN = f32(np.inf), f32(np.nan)
I1, I16, I23, I127 = i32(1), i32(16), i32(23), i32(127)
ROUND_HALF, HIGH_HALF, ABS = i32(0x7FFF), i32(-65536), i32(0x7FFFFFFF)
INF_BITS, NAN_BF16, NAN_F16 = i32(0x7F800000), i32(A.NAN_BF16), i32(A.NAN_F16)


@inner
def exp(x):
    """docs/arithmetic.md section 3: two scalings by powers of two, so that subnormal results round once."""
    x = EXP_MIN if x < EXP_MIN else x
    x = EXP_MAX if x > EXP_MAX else x
    t = x * LOG2E + MAGIC
    nf = t - MAGIC
    n = bits_of(t) - MAGIC_BITS
    r = (x - nf * LN2_HI) - nf * LN2_LO
    q = (((E4 * r + E3) * r + E2) * r + E1) * r + E0
    y = ((r * r) * q + r) + ONE
    n1 = n >> I1
    n2 = n - n1
    return (y * float_of((n1 + I127) << I23)) * float_of((n2 + I127) << I23)


@inner
def log(x):
    small = x < SMALLEST
    v = x * SHIFT_UP if small else x
    i = bits_of(v) + LOG_BIAS
    k = (i >> I23) - I127 - (i32(25) if small else i32(0))
    f = float_of((i & MANTISSA) + SQRT_HALF_BITS) - ONE
    s = f / (TWO + f)
    z = s * s
    r = z * (G0 + z * (G1 + z * G2))
    h = (HALF * f) * f
    kf = f32(k)
    y = (((s * (h + r) + kf * LN2_LO) - h) + f) + kf * LN2_HI
    y = x if x == INF else y
    y = -INF if x == f32(0) else y
    y = NAN if (x < f32(0) or x != x) else y
    return y


@inner
def silu(x):
    return x / (ONE + exp(-x))


@inner
def bf16_bits(x):
    """round16 to bfloat16; the bits in the low half of an i32."""
    u = bits_of(x)
    rounded = ((u + ROUND_HALF + ((u >> I16) & I1)) >> I16) & i32(0xFFFF)
    return NAN_BF16 if (u & ABS) > INF_BITS else rounded


@inner
def bf16(x):
    """round16 to bfloat16, as f32."""
    u = bits_of(x)
    rounded = (u + ROUND_HALF + ((u >> I16) & I1)) & HIGH_HALF
    return float_of((NAN_BF16 << I16) if (u & ABS) > INF_BITS else rounded)


@inner
def f16_bits(x):
    """round16 to binary16; the bits in the low half of an i32."""
    return NAN_F16 if (bits_of(x) & ABS) > INF_BITS else f16_bits_of(x)


@inner
def f16(x):
    """round16 to binary16, as f32."""
    return f16_to_f32(np.uint16(f16_bits(x)))


@inner
def halve(t, n):
    """The halving tree over t[0:n], n a power of two; destroys t."""
    while n > 1:
        n //= 2
        for i in range(n):
            t[i] = t[i] + t[i + n]
    return t[0]
