"""The mma chain against the same sentences in Python integers, and the properties that schedules rest on."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.arithmetic.bits import Dtype, round16_bits, widen
from queueproof.arithmetic.oracle.tensorcore import mma
from queueproof.arithmetic.tensorcore1 import FAMILIES, Family
from tests.support import exact

DTYPES = ("bfloat16", "float16")
FAMILY_NAMES = sorted(FAMILIES)


def parts(value: float, lowest: int) -> tuple[Fraction, int]:
    """(significand, exponent) of a number that is not 0: value = significand * 2^exponent, 1 <= |significand| < 2 if normal."""
    exponent = max(math.frexp(value)[1] - 1, lowest)
    return Fraction(value) / Fraction(2) ** exponent, exponent


def cut(value: Fraction, last_place: Fraction) -> Fraction:
    return math.trunc(value / last_place) * last_place


def slow_step(acc: np.float32, x: np.ndarray, w: np.ndarray, bits: int, lowest: int) -> np.float32:
    terms = [parts(float(acc), -126)] if acc else [(Fraction(0), -126)]
    for a, b in zip(x, w, strict=True):
        if a and b:
            (s, e), (t, f) = parts(float(a), lowest), parts(float(b), lowest)
            terms.append((s * t, e + f))
    largest = max(e for _, e in terms)
    total = sum(cut(s * Fraction(2) ** e, Fraction(2) ** (largest - bits)) for s, e in terms)
    if total == 0:
        return np.float32(0)
    _, exponent = parts_of(total)
    total = cut(total, Fraction(2) ** max(exponent - 23, -149))
    if abs(total) > exact.MAX_FINITE:
        return np.float32(math.copysign(math.inf, total))
    return np.float32(float(total))


def parts_of(value: Fraction) -> tuple[Fraction, int]:
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    return value / Fraction(2) ** exponent, exponent


def slow_chain(x: np.ndarray, w: np.ndarray, family: Family, dtype: Dtype, acc: np.float32) -> np.float32:
    lowest = -126 if dtype == "bfloat16" else -14
    x, w = (np.pad(v, (0, -len(v) % 16)) for v in (x, w))
    for k in range(0, len(x), family.step):
        acc = slow_step(acc, x[k : k + family.step], w[k : k + family.step], family.fraction_bits, lowest)
    return acc


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Dtype, spread: int) -> np.ndarray:
    """16-bit values whose exponents differ by up to `spread`, zeros and subnormals among them."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    x[rng.random(shape) < 0.1] = 0
    return widen(round16_bits(x.astype(np.float32), dtype), dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(np.asarray(a, np.float32).view(np.int32), np.asarray(b, np.float32).view(np.int32))


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 8, 16, 24, 40]), spread=st.sampled_from([0, 3, 12, 60]))
def test_equals_the_definition_in_fractions(name: str, dtype: Dtype, seed: int, k: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = numbers(rng, (3, k), dtype, spread), numbers(rng, (2, k), dtype, spread)
    acc = (rng.standard_normal((3, 2)) * 2.0 ** rng.integers(-2 * spread, 2 * spread + 1, (3, 2))).astype(np.float32)
    got = mma.chain(x, w, FAMILIES[name], dtype, acc)
    finite = np.isfinite(x).all(1)[:, None] & np.isfinite(w).all(1)
    for m, n in zip(*np.nonzero(finite), strict=True):
        assert same(got[m, n], slow_chain(x[m], w[n], FAMILIES[name], dtype, acc[m, n]))


def test_families_differ() -> None:
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (16, 64), "bfloat16", 3), numbers(rng, (16, 64), "bfloat16", 3)
    one, other = (mma.chain(x, w, FAMILIES[name], "bfloat16") for name in ("sm80", "sm90"))
    assert not same(one, other)
    np.testing.assert_allclose(one, x.astype(np.float64) @ w.astype(np.float64).T, rtol=1e-4, atol=1e-4)
    for name in ("sm86", "sm89"):
        assert same(mma.chain(x, w, FAMILIES[name], "bfloat16"), one)


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_batches_and_pauses_change_nothing(name: str, dtype: Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    family = FAMILIES[name]
    x, w = numbers(rng, (37, 80), dtype, 3), numbers(rng, (21, 80), dtype, 3)
    whole = mma.chain(x, w, family, dtype)
    assert same(mma.chain(x[5:9], w[3:17], family, dtype), whole[5:9, 3:17])
    assert same(mma.chain(w, x, family, dtype), whole.T)
    assert same(mma.chain(np.stack([x[:5], x[5:10]]), w, family, dtype), whole[:10].reshape(2, 5, 21))
    acc = mma.chain(x[:, :48], w[:, :48], family, dtype)
    assert same(mma.chain(x[:, 48:], w[:, 48:], family, dtype, acc), whole)
    monkeypatch.setattr(mma, "TILE", 64)
    assert same(mma.chain(x, w, family, dtype), whole)


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_of_zeros_leaves_the_accumulator(name: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(2)
    acc = (rng.standard_normal((4, 64)) * 2.0 ** rng.integers(-140, 120, (4, 64))).astype(np.float32)
    acc[0, :3] = [2.0**-149, -(2.0**-149), 0.0]
    zeros, any_values = np.zeros((4, 16), np.float32), numbers(rng, (64, 16), dtype, 10)
    assert same(mma.chain(zeros, any_values, FAMILIES[name], dtype, acc), acc)
    assert same(mma.chain(-zeros, any_values, FAMILIES[name], dtype, acc), acc)
    assert same(
        mma.chain(zeros, any_values, FAMILIES[name], dtype, -zeros[:, :1] + np.zeros(64, np.float32)), np.zeros((4, 64))
    )


def test_bits_below_the_last_place_are_cut_not_rounded() -> None:
    one = np.zeros((1, 16), np.float32)
    one[0, :3] = 1
    small = np.zeros((1, 16), np.float32)
    small[0, :3] = [1, 2.0**-12, 2.0**-12]
    x = small.copy()
    x[0, 1:3] *= np.float32(1 / 16) * np.float32(2.0**-9)  # products of 2^-37: below 25 fraction bits of 1
    assert mma.chain(x, small, FAMILIES["sm90"], "bfloat16")[0, 0] == 1
    # 2^-24 + 2^-24 are kept to the end by 25 and by 24 bits, 2^-25 + 2^-25 by 25 only
    half = np.float32(2.0**-24)
    pair = np.array([[1, half, half] + [0] * 13], np.float32)
    quarter = np.array([[1, half / 2, half / 2, half / 2, half / 2] + [0] * 11], np.float32)
    ones = np.ones((1, 16), np.float32)
    for name in ("sm80", "sm90"):
        assert mma.chain(pair, ones, FAMILIES[name], "bfloat16")[0, 0] == np.float32(1 + 2.0**-23)
    assert mma.chain(quarter, ones, FAMILIES["sm90"], "bfloat16")[0, 0] == np.float32(1 + 2.0**-23)
    assert mma.chain(quarter, ones, FAMILIES["sm80"], "bfloat16")[0, 0] == 1


def test_infinities_nans_and_overflow() -> None:
    ones = np.ones((1, 16), np.float32)

    def of(*values: float, acc: float = 0.0) -> float:
        x = np.zeros((1, 16), np.float32)
        x[0, : len(values)] = values
        return float(mma.chain(x, ones, FAMILIES["sm90"], "bfloat16", np.full((1, 1), acc, np.float32))[0, 0])

    largest = float.fromhex("0x1.fep127")
    assert of(math.inf, 1) == math.inf and of(-math.inf, acc=5) == -math.inf and of(1, acc=math.inf) == math.inf
    assert math.isnan(of(math.inf, -math.inf)) and math.isnan(of(math.nan)) and math.isnan(of(-math.inf, acc=math.inf))
    assert of(largest, largest) == math.inf and of(-largest, -largest) == -math.inf
    assert of(largest, largest, -largest) == largest
    assert math.isnan(float(mma.chain(ones * 0, ones * np.float32(np.inf), FAMILIES["sm90"], "bfloat16")[0, 0]))


def test_a_chain_needs_factors() -> None:
    with pytest.raises(ValueError, match="no factors"):
        mma.chain(np.zeros((1, 0), np.float32), np.zeros((1, 0), np.float32), FAMILIES["sm90"], "bfloat16")
