"""exp, log, silu and rsqrt of docs/arithmetic.md section 3, integer sums and the random numbers, for blocks of any shape.

Built with `enable_fp_fusion=False`: `*` and `+` round separately. Where `tl.fma` stands for a product and a sum, the
product is exact, so that both give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from queueproof.arithmetic import ieee1 as A

LOG2E, MAGIC = tl.constexpr(A.LOG2E), tl.constexpr(A.MAGIC)
LN2_HI, LN2_LO = tl.constexpr(A.LN2_HI), tl.constexpr(A.LN2_LO)
MINUS_LN2_HI = tl.constexpr(-A.LN2_HI)
EXP_MIN, EXP_MAX = tl.constexpr(A.EXP_MIN), tl.constexpr(A.EXP_MAX)
E0, E1, E2, E3, E4 = (tl.constexpr(e) for e in (A.E0, A.E1, A.E2, A.E3, A.E4))
G0, G1, G2 = (tl.constexpr(g) for g in (A.G0, A.G1, A.G2))
MAGIC_BITS = tl.constexpr(0x4B400000)
LOG_BIAS = tl.constexpr(A.ONE_BITS - A.SQRT_HALF_BITS)
SQRT_HALF_BITS = tl.constexpr(A.SQRT_HALF_BITS)
MANTISSA = tl.constexpr(0x007FFFFF)
SMALLEST, SHIFT_UP = tl.constexpr(2.0**-126), tl.constexpr(2.0**25)
INF = tl.constexpr(float("inf"))
UP40, DOWN40, DOWN23 = tl.constexpr(2.0**40), tl.constexpr(2.0**-40), tl.constexpr(2.0**-23)


@triton.jit
def pow2(k):
    """2^k in f32 of i32 k in [-126, 127]."""
    return ((k + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _exp_parts(x):
    """(y, n) with exp(x) = y * 2^n, y in (0.7, 1.42); x within EXP_MIN … EXP_MAX, or a NaN."""
    t = x * LOG2E + MAGIC
    nf = t - MAGIC
    n = t.to(tl.int32, bitcast=True) - MAGIC_BITS
    # nf * LN2_HI is exact: LN2_HI has 15 bits and nf 8
    r = tl.fma(nf, MINUS_LN2_HI, x) - nf * LN2_LO
    q = (((E4 * r + E3) * r + E2) * r + E1) * r + E0
    return ((r * r) * q + r) + 1.0, n


@triton.jit
def exp(x):
    x = tl.where(x < EXP_MIN, EXP_MIN, x)
    x = tl.where(x > EXP_MAX, EXP_MAX, x)
    y, n = _exp_parts(x)
    n1 = n >> 1
    return (y * pow2(n1)) * pow2(n - n1)


@triton.jit
def quantised_exp(x):
    """i64: exp(x) * 2^40 toward zero, of f32 x <= 0 (or −∞). Of a NaN: any number."""
    x = tl.where(x < -30.0, -30.0, x)  # below, the result is 0 as well
    y, n = _exp_parts(x)
    return (y * pow2(n + 40)).to(tl.int64)


@triton.jit
def silu(x):
    """x / (1 + exp(-x))."""
    a = -x
    a = tl.where(a < -32.0, -32.0, a)  # 1 + exp(a) is 1 from here down
    a = tl.where(a > EXP_MAX, EXP_MAX, a)
    y, n = _exp_parts(a)
    # exp(a) is twice y * 2^(n - 1): normal, or infinite in the addition
    return tl.div_rn(x, tl.fma(y * pow2(n - 1), 2.0, 1.0))


@triton.jit
def rsqrt(x):
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@triton.jit
def _log_normal(x, e0):
    """log(x * 2^e0) of positive, normal, finite x."""
    i = x.to(tl.int32, bitcast=True) + LOG_BIAS
    kf = ((i >> 23) - 127 + e0).to(tl.float32)
    f = ((i & MANTISSA) + SQRT_HALF_BITS).to(tl.float32, bitcast=True) - 1.0
    s = tl.div_rn(f, 2.0 + f)
    z = s * s
    r = z * (G0 + z * (G1 + z * G2))
    h = (0.5 * f) * f
    # kf * LN2_HI is exact: 8 and 15 bits
    return tl.fma(kf, LN2_HI, ((s * (h + r) + kf * LN2_LO) - h) + f)


@triton.jit
def log(x):
    small = x < SMALLEST
    y = _log_normal(tl.where(small, x * SHIFT_UP, x), tl.where(small, -25, 0))
    y = tl.where(x == INF, x, y)
    y = tl.where((x < 0) | (x != x), float("nan"), y)
    return tl.where(x == 0, -INF, y)


@triton.jit
def quantised(x):
    """i64: x * 2^40 toward zero. What the sums over a row add."""
    return (x * UP40).to(tl.int64)


@triton.jit
def sum_value(total):
    """f32 value of an i64 sum of quantised values."""
    return total.to(tl.float32) * DOWN40


@triton.jit
def philox(c0, c1, c2, k0, k1):
    """Four u32 words: Philox4x32-10 of u32 counters (c0, c1, c2, 0) under the key (k0, k1)."""
    c3 = c0 & 0
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def gumbel(word):
    """-log(-log(u)) of u32 words, u = ((word >> 9) + 1/2) * 2^-23; between -2.82 and 16.64."""
    u = ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * DOWN23
    return -_log_normal(-_log_normal(u, 0), 0)
