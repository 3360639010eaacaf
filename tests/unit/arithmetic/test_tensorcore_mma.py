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
