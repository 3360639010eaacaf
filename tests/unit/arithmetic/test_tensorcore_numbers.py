"""fma of any f32 values and sums of integers, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.arithmetic.oracle.tensorcore.numbers import exp2, fma
from queueproof.arithmetic.oracle.tensorcore.sums import isum, quantised, value
from tests.support import exact

finite = st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32)


@settings(max_examples=300, deadline=None)
@given(finite, finite, finite)
def test_fma_rounds_once(x: np.float32, y: np.float32, z: np.float32) -> None:
    got = fma(np.array([x]), np.array([y]), np.array([z]))[0]
    want = exact.fma(x, y, z)
    assert got == want and (want != 0 or got == 0)


@settings(max_examples=300, deadline=None)
@given(st.integers(2**23, 2**24 - 1), st.integers(2**23, 2**24 - 1), st.integers(-60, 60), st.integers(-3, 3))
def test_fma_rounds_once_near_ties(a: int, b: int, shift: int, off: int) -> None:
    """z is close to half a unit of the product's last place, where two roundings go wrong."""
    x, y = np.float32(a), np.float32(b)
    z = np.float32(math.ldexp(1 + off * 2.0**-23, shift))
    for sign in (1, -1):
        assert fma(np.array([x]), np.array([y]), np.array([sign * z]))[0] == exact.fma(x, y, sign * z)


def test_fma_of_infinities_nans_and_zeros() -> None:
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    x, y, z = (
        np.array(v, np.float32)
        for v in zip((inf, 1, 1), (inf, 0, 1), (0, 1, inf), (nan, 1, 1), (3e38, 3e38, -inf), strict=True)
    )
    np.testing.assert_array_equal(fma(x, y, z), [inf, nan, inf, nan, -inf])
    zero = fma(np.array([-0.0, 1.0], np.float32), np.array([1.0, 1.0], np.float32), np.array([-0.0, -1.0], np.float32))
    assert np.signbit(zero).tolist() == [True, False]


values = st.lists(st.floats(-1000, 1000, width=32).map(np.float32), min_size=1, max_size=40)


@given(values, st.randoms())
def test_isum_is_the_cut_values_summed_exactly_in_any_order(v: list[np.float32], random: object) -> None:
    want = sum(math.trunc(Fraction(float(x)) * 2**40) for x in v)
    assert isum(np.array(v)) == exact.round_f32(Fraction(want, 2**40))
    shuffled = v.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert isum(np.array(shuffled)) == isum(np.array(v))
    halves = quantised(np.array(v[::2])).sum() + quantised(np.array(v[1::2])).sum()
    assert value(halves) == isum(np.array(v))


def test_quantised_cuts_toward_zero() -> None:
    v = np.array(
        [2.0**-40, 1.5 * 2.0**-40, -1.5 * 2.0**-40, 2.0**-41, -(2.0**-41), 2.0**-149, -0.0, 2.0**21], np.float32
    )
    assert quantised(v).tolist() == [1, 1, -1, 0, 0, 0, 0, 2**61]


def test_exp2_is_exact_where_the_arithmetic_needs_it() -> None:
    """A block that a query does not see changes nothing: exp2(0) is 1 and exp2(−∞) is +0."""
    got = exp2(np.array([0.0, -0.0, -np.inf, -1.0, -126.0], np.float32))
    assert got.tolist() == [1, 1, 0, 0.5, 2.0**-126] and not np.signbit(got).any()
