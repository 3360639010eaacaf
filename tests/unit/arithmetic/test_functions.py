"""exp, log, silu and rsqrt of the oracle: largest error, special values, and agreement with mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from queueproof.arithmetic.oracle.functions import exp, log, rsqrt, silu

RNG = np.random.default_rng(20)
PER_BINADE = 1 << 13

# What docs/arithmetic.md states. It was found over every f32 in the binades where the error is largest.
EXP_ULP, LOG_ULP, SILU_ULP = 0.98, 0.84, 2.45


def binades(low: int, high: int) -> np.ndarray:
    """f32 values of every binade 2^low … 2^high: both ends and random mantissas."""
    exponents = np.arange(low, high + 1)[:, None]
    mantissas = RNG.integers(0, 1 << 23, (len(exponents), PER_BINADE))
    mantissas[:, :3] = 0, 1, (1 << 23) - 1
    return np.ldexp(1.0 + mantissas / 2.0**23, exponents).astype(np.float32).ravel()


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units of the last place of an f32 of that size (f64 `exact`)."""
    last_place = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
    return np.abs(got.astype(np.float64) - exact) / last_place


def test_exp_error() -> None:
    x = np.concatenate([binades(-30, 6), -binades(-30, 6)])
    x = x[(x > -87.3) & (x < 88.72)]  # where the result is a normal number
    assert ulps(exp(x), np.exp(x.astype(np.float64))).max() < EXP_ULP


def test_exp_of_subnormal_results() -> None:
    x = np.linspace(-104, -87.3, 1 << 16, dtype=np.float32)
    assert ulps(exp(x), np.exp(x.astype(np.float64))).max() < 1


def test_log_error() -> None:
    x = np.concatenate([binades(-126, 127), np.float32(1) + RNG.uniform(-0.3, 0.5, 1 << 18).astype(np.float32)])
    x = x[x != 1]
    assert ulps(log(x), np.log(x.astype(np.float64))).max() < LOG_ULP
    subnormal = np.arange(1, 1 << 23, 997, dtype=np.uint32).view(np.float32)
    assert ulps(log(subnormal), np.log(subnormal.astype(np.float64))).max() < LOG_ULP


def test_silu_error() -> None:
    x = np.concatenate([binades(-30, 6), -binades(-30, 6)])
    x = x[x > -88.0]
    wide = x.astype(np.float64)
    assert ulps(silu(x), wide / (1 + np.exp(-wide))).max() < SILU_ULP
    below = np.linspace(-200, -88, 1 << 14, dtype=np.float32)
    wide = below.astype(np.float64)
    assert np.abs(silu(below) - wide / (1 + np.exp(-wide))).max() < 3e-37


def test_against_mpmath() -> None:
    for value in (-100.5, -87.0, -1.0, -1e-7, 1e-7, 0.5, 1.0, 10.25, 88.5):
        x = np.float32(value)
        assert ulps(exp(x), np.float64(float(mpmath.exp(float(x))))) < 1
    for value in (1e-40, 1.2e-38, 0.5, 0.70710677, 0.7071068, 0.99999994, 1.0000001, 1.5, 3e38):
        x = np.float32(value)
        assert ulps(log(x), np.float64(float(mpmath.log(float(x))))) < 1


def as_bits(x: np.ndarray) -> list[str]:
    return ["nan" if np.isnan(v) else v.tobytes()[::-1].hex() for v in np.atleast_1d(x)]


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (exp, -np.inf, 0.0),
        (exp, -104.0, 0.0),
        (exp, -1e30, 0.0),
        (exp, np.inf, np.inf),
        (exp, 88.73, np.inf),
        (exp, 0.0, 1.0),
        (exp, -0.0, 1.0),
        (exp, np.nan, np.nan),
        (log, 0.0, -np.inf),
        (log, -0.0, -np.inf),
        (log, -1.0, np.nan),
        (log, -np.inf, np.nan),
        (log, -1e-45, np.nan),
        (log, np.inf, np.inf),
        (log, np.nan, np.nan),
        (log, 1.0, 0.0),
        (rsqrt, 0.0, np.inf),
        (rsqrt, -0.0, -np.inf),
        (rsqrt, -1.0, np.nan),
        (rsqrt, np.inf, 0.0),
        (rsqrt, 4.0, 0.5),
        (silu, 0.0, 0.0),
        (silu, -0.0, -0.0),
        (silu, -1000.0, -0.0),
        (silu, -np.inf, np.nan),
        (silu, np.inf, np.inf),
        (silu, np.nan, np.nan),
    ],
)
def test_special_values(function, x, expected) -> None:  # type: ignore[no-untyped-def]
    assert as_bits(function(np.float32(x))) == as_bits(np.float32(expected))


def test_exp_never_falls_on_a_fine_grid() -> None:
    # min-p and top-p rely on e being ordered like z.
    x = np.linspace(-2, 0, 1 << 20, dtype=np.float32)
    assert (np.diff(exp(x)) >= 0).all()
