"""The trees derived again: explicit nested sums, each rounding done with fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.arithmetic.oracle import numbers
from queueproof.arithmetic.oracle.sums import chain, halving, matmul, row_sum
from tests.support import exact

Dtype = Literal["bfloat16", "float16"]
LARGEST = {"bfloat16": 0x7F7F, "float16": 0x7BFF}


def h16(rng: np.random.Generator, dtype: Dtype, *shape: int) -> np.ndarray:
    return numbers.round16(rng.standard_normal(shape, dtype=np.float32), dtype)


def add(a: np.float32, b: np.float32) -> np.float32:
    return exact.round_f32(Fraction(float(a)) + Fraction(float(b)))


def value(pattern: int, dtype: Dtype) -> np.float32:
    return numbers.widen(np.array([pattern], np.uint16), dtype)[0]


@given(
    st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.sampled_from(["bfloat16", "float16"])
)
@settings(deadline=None, max_examples=1500)
def test_fma_is_one_rounding(a: int, b: int, c: int, dtype: Dtype) -> None:
    x, w = value(a & 0x8000 | a % (LARGEST[dtype] + 1), dtype), value(b & 0x8000 | b % (LARGEST[dtype] + 1), dtype)
    acc = np.array([c], np.uint32).view(np.float32)[0]
    if not np.isfinite(acc):
        acc = np.float32(0)
    assert numbers.fma(x, w, acc) == exact.fma(x, w, acc)


def test_fma_where_f32_products_underflow() -> None:
    # Small bfloat16 factors around the end of the f32 range, against accumulators around it and ties between them.
    rng = np.random.default_rng(1)
    exponents = rng.integers(-90, -40, (2, 4000))
    factors = np.ldexp(1 + rng.integers(0, 128, (2, 4000)) / 128.0, exponents).astype(np.float32)
    factors *= rng.choice(np.array([-1, 1], np.float32), (2, 4000))
    acc = np.ldexp(rng.integers(-9, 10, 4000).astype(np.float64), rng.integers(-149, -120, 4000)).astype(np.float32)
    got = numbers.fma(factors[0], factors[1], acc)
    in_f32 = 0
    for x, w, a, g in zip(factors[0], factors[1], acc, got, strict=True):
        assert g == exact.fma(x, w, a), (x, w, a)
        in_f32 += exact.round_f32(Fraction(float(x)) * Fraction(float(w))) + a != g
    assert in_f32 > 0, "no case in which a product rounded to f32 first would have been wrong"


def test_fma_keeps_the_sign_of_an_underflow() -> None:
    tiny = np.float32(2.0**-100)
    assert np.signbit(numbers.fma(-tiny, tiny, np.float32(0)))
    assert not np.signbit(numbers.fma(tiny, tiny, np.float32(-0.0)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 15, 16, 17, 23, 64, 65])
def test_matmul_tree(k: int, dtype: Dtype) -> None:
    rng = np.random.default_rng(k)
    x, w, bias = h16(rng, dtype, 3, k), h16(rng, dtype, 2, k), rng.standard_normal(2, dtype=np.float32)
    got, with_bias = matmul(x, w), matmul(x, w, bias)
    per_segment = (k + 7) // 8
    for i in range(3):
        for j in range(2):
            p = [np.float32(0)] * 8
            for index in range(k):  # each k belongs to segment k // per_segment
                s = index // per_segment
                p[s] = exact.fma(x[i, index], w[j, index], p[s])
            left = add(add(p[0], p[1]), add(p[2], p[3]))
            right = add(add(p[4], p[5]), add(p[6], p[7]))
            assert got[i, j] == add(left, right)
            assert with_bias[i, j] == add(got[i, j], bias[j])


def test_matmul_of_cancelling_and_special_values() -> None:
    big = np.float32(2.0**120)
    x = np.array([[big, 1, -big, 1]], np.float32)
    # K = 4: one value a segment, so 1 is lost in (big + 1) and in (-big + 1).
    assert matmul(x, np.ones((1, 4), np.float32))[0, 0] == 0
    # K = 32: four values a segment; the chain big, 1, -big, 1 keeps the last 1.
    assert matmul(np.pad(x, ((0, 0), (0, 28))), np.ones((1, 32), np.float32))[0, 0] == 1
    inf = np.array([[np.inf, 0, 0, 1]], np.float32)
    assert matmul(inf, np.ones((1, 4), np.float32))[0, 0] == np.inf
    assert np.isnan(matmul(inf, np.zeros((1, 4), np.float32))[0, 0])
    assert np.isnan(matmul(inf, np.array([[1, 1, 1, -np.inf]], np.float32))[0, 0])


def test_an_empty_chain_is_plus_zero() -> None:
    empty = chain(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32))
    assert empty.tolist() == [0.0, 0.0] and not np.signbit(empty).any()


def test_halving_tree() -> None:
    t = np.random.default_rng(2).standard_normal(8, dtype=np.float32)
    a = [add(t[i], t[i + 4]) for i in range(4)]
    b = [add(a[0], a[2]), add(a[1], a[3])]
    assert halving(t) == add(b[0], b[1])
    assert halving(t[:1]) == t[0]


def by_hand(v: np.ndarray) -> np.float32:
    """row_sum with a loop over single values: value i belongs to block i // 4096 and lane i % 64."""
    sums = []
    for start in range(0, len(v), 4096):
        lanes = [np.float32(0)] * 64
        for i, value in enumerate(v[start : start + 4096]):
            lanes[i % 64] = lanes[i % 64] + value
        n = 64
        while n > 1:
            n //= 2
            lanes = [lanes[i] + lanes[i + n] for i in range(n)]
        sums.append(lanes[0])
    return sums[0] if len(sums) == 1 else by_hand(np.array(sums))


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 576, 4095, 4096, 4097, 8192, 9000])
def test_row_sum(n: int) -> None:
    v = np.random.default_rng(n).standard_normal((2, n), dtype=np.float32) * np.float32(1e3)
    got = row_sum(v)
    assert [g.tobytes() for g in got] == [by_hand(row).tobytes() for row in v]


def test_row_sum_of_more_than_4096_blocks_sums_its_sums_in_blocks() -> None:
    n = 4096 * 4096 + 1  # 4097 blocks
    v = np.zeros(n, np.float32)
    v[0], v[4096], v[-1] = 1, 2.0**24, 1
    # In one block the sums of blocks 0 and 4096 would share lane 0 and make 2; apart, 2^24 swallows both.
    assert row_sum(v) == 2.0**24
    v[-1] = 2
    assert row_sum(v) == 2.0**24 + 2


def test_row_sum_signs_and_specials() -> None:
    assert not np.signbit(row_sum(np.full((1, 3), -0.0, np.float32)))[0], "lanes start at +0"
    assert np.isnan(row_sum(np.array([np.inf, -np.inf], np.float32)))
