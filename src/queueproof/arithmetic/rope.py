"""Rotary tables of `ieee/1` (docs/arithmetic.md, section 4): f64 on the host, no libm.

Every step is an IEEE f64 `+ - *` that NumPy applies element by element, so each machine builds the same table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from queueproof.contract.errors import InvalidParameter

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

MAX_ANGLE: Final = 2.0**20
TWO_PI: Final = 6.283185307179586
TWO_OVER_PI: Final = float.fromhex("0x1.45f306dc9c883p-1")
ROUND_MAGIC: Final = 1.5 * 2.0**52  # adding it rounds to an integer and leaves that integer in the low bits

# pi/2 in three parts (fdlibm e_rem_pio2.c: pio2_1, pio2_2, pio2_2t). The first two have 33 bits, so for n < 2^20
# the products n*P1 and n*P2 are exact.
P1: Final = float.fromhex("0x1.921fb544p+0")
P2: Final = float.fromhex("0x1.0b4611a6p-34")
P3: Final = float.fromhex("0x1.3198a2e037073p-69")

# fdlibm k_sin.c and k_cos.c: minimax polynomials on [-pi/4, pi/4]
SIN_COEFFS: Final = tuple(
    float.fromhex(c)
    for c in (
        "-0x1.5555555555549p-3",
        "0x1.111111110f8a6p-7",
        "-0x1.a01a019c161d5p-13",
        "0x1.71de357b1fe7dp-19",
        "-0x1.ae5e68a2b9cebp-26",
        "0x1.5d93a5acfd57cp-33",
    )
)
COS_COEFFS: Final = tuple(
    float.fromhex(c)
    for c in (
        "0x1.555555555554cp-5",
        "-0x1.6c16c16c15177p-10",
        "0x1.a01a019cb1590p-16",
        "-0x1.27e4f809c52adp-22",
        "0x1.1ee9ebdb4b1c4p-29",
        "-0x1.8fae9be8838d4p-37",
    )
)

_CHUNK_ANGLES = 1 << 15  # angles worked on at once: the temporaries then stay in the cache


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a model stretches its rotary frequencies.

    `linear` uses `factor` alone. `llama3` (Llama 3.1 and later) keeps short wavelengths, divides long ones by `factor`
    and blends between `original_max_position / high_freq_factor` and `original_max_position / low_freq_factor`.
    Raises InvalidParameter for another kind or for values that the formula cannot take.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_max_position: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise InvalidParameter("rope scaling", self.kind, "'linear' and 'llama3' are")
        _need_positive("rope scaling factor", self.factor)
        if self.kind == "llama3":
            _need_positive("low_freq_factor", self.low_freq_factor)
            _need_positive("high_freq_factor", self.high_freq_factor)
            _need_positive("original_max_position", self.original_max_position)
            if self.high_freq_factor <= self.low_freq_factor:
                raise InvalidParameter(
                    "high_freq_factor", self.high_freq_factor, f"must be above low_freq_factor={self.low_freq_factor!r}"
                )


def _need_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidParameter(name, value, "must be a finite number above 0")


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> F64:
    """f64 [head_dim / 2]: exp(-(2i/d) ln theta) from 60-digit decimals, then scaled in f64."""
    decimals = Context(prec=60)
    log_theta = decimals.ln(Decimal(theta))
    exponents = (decimals.divide(Decimal(-2 * i), Decimal(head_dim)) for i in range(head_dim // 2))
    frequencies = [float(decimals.exp(decimals.multiply(e, log_theta))) for e in exponents]
    if scaling is not None:
        frequencies = [_scaled(f, scaling) for f in frequencies]
    return np.array(frequencies, np.float64)


def _scaled(f: float, scaling: RopeScaling) -> float:
    if scaling.kind == "linear":
        return f / scaling.factor
    low, high, old = scaling.low_freq_factor, scaling.high_freq_factor, float(scaling.original_max_position)
    wavelength = TWO_PI / f
    if wavelength > old / low:
        return f / scaling.factor
    if wavelength < old / high:
        return f
    s = (old / wavelength - low) / (high - low)
    return (1.0 - s) * (f / scaling.factor) + s * f


def sin_cos(angle: F64) -> tuple[F64, F64]:
    """(sin, cos) of f64 angles in [0, 2^20), any shape, within about one f64 ulp. The caller checks the range."""
    t = angle * TWO_OVER_PI + ROUND_MAGIC
    quarter = t.view(np.int64) & 3
    n = t - ROUND_MAGIC
    r = ((angle - n * P1) - n * P2) - n * P3
    z = r * r
    sin = r + (z * r) * _horner(z, SIN_COEFFS)
    cos = 1.0 - (0.5 * z - z * (z * _horner(z, COS_COEFFS)))
    odd = (quarter & 1).astype(bool)
    sin_out, cos_out = np.where(odd, cos, sin), np.where(odd, sin, cos)
    np.negative(sin_out, out=sin_out, where=quarter >= 2)
    np.negative(cos_out, out=cos_out, where=(quarter == 1) | (quarter == 2))
    return sin_out, cos_out


def _horner(z: F64, coeffs: tuple[float, ...]) -> F64:
    """coeffs[0] + z*(coeffs[1] + z*(...)), each product and sum rounded."""
    acc = z * coeffs[-1]
    for c in coeffs[-2:0:-1]:
        acc += c
        acc *= z
    acc += coeffs[0]
    return acc


def rope_table(head_dim: int, theta: float, max_len: int, scaling: RopeScaling | None = None) -> tuple[F32, F32]:
    """(cos, sin), f32 [max_len, head_dim / 2] each, of position * inverse frequency.

    theta: the base of the frequencies (`rope_theta`). max_len: positions 0 … max_len - 1.
    Raises InvalidParameter for an odd head_dim, a theta that is not above 0, or an angle of 2^20 and more.
    """
    if head_dim <= 0 or head_dim % 2:
        raise InvalidParameter(
            "head_dim", head_dim, "rotary embeddings pair its halves, so it must be even and above 0"
        )
    _need_positive("rope theta", theta)
    if max_len < 1:
        raise InvalidParameter("max_len", max_len, "must be at least 1")
    frequencies = inverse_frequencies(head_dim, theta, scaling)
    top = float(frequencies.max())
    if not (max_len - 1) * top < MAX_ANGLE:
        raise InvalidParameter(
            "max_len", max_len, f"the largest angle must stay below 2^20, so at most {math.ceil(MAX_ANGLE / top)} here"
        )
    cos = np.empty((max_len, head_dim // 2), np.float32)
    sin = np.empty_like(cos)
    rows = max(1, _CHUNK_ANGLES // frequencies.size)
    for start in range(0, max_len, rows):
        stop = min(start + rows, max_len)
        s, c = sin_cos(np.arange(start, stop, dtype=np.float64)[:, None] * frequencies)
        sin[start:stop], cos[start:stop] = s, c
    return cos, sin
