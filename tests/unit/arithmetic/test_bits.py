"""round16 against the list of all 16-bit values and the midpoints between them, for the fast and the oracle's version."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from queueproof.arithmetic import bits
from queueproof.arithmetic.ieee1 import NAN_BF16, NAN_F16
from queueproof.arithmetic.oracle import numbers
from queueproof.contract.errors import InvalidParameter

Dtype = Literal["bfloat16", "float16"]
DTYPES: tuple[Dtype, Dtype] = ("bfloat16", "float16")
INFINITY = {"bfloat16": 0x7F80, "float16": 0x7C00}
NAN = {"bfloat16": NAN_BF16, "float16": NAN_F16}
NEXT_POWER = {"bfloat16": 2.0**128, "float16": 2.0**16}  # what the first pattern past the largest finite would be


def value_of(pattern: int, dtype: Dtype) -> float:
    """The value a finite, positive pattern stands for, from its fields."""
    mantissa_bits, bias = (7, 127) if dtype == "bfloat16" else (10, 15)
    exponent, mantissa = pattern >> mantissa_bits, pattern & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return (mantissa + (1 << mantissa_bits)) * 2.0 ** (exponent - bias - mantissa_bits)


def both(x: np.ndarray, dtype: Dtype) -> np.ndarray:
    """round16_bits(x), after a check that the oracle says the same."""
    got = bits.round16_bits(x, dtype)
    oracle = numbers.round16(x, dtype)
    np.testing.assert_array_equal(numbers.widen(got, dtype).view(np.uint32), oracle.view(np.uint32))
    return got


@pytest.mark.parametrize("dtype", DTYPES)
def test_widen_is_exact_for_every_pattern(dtype: Dtype) -> None:
    patterns = np.arange(INFINITY[dtype], dtype=np.uint16)
    expected = np.array([value_of(int(p), dtype) for p in patterns])
    for widen in (bits.widen, numbers.widen):
        np.testing.assert_array_equal(widen(patterns, dtype).astype(np.float64), expected)
        negative = widen(patterns | np.uint16(0x8000), dtype)
        np.testing.assert_array_equal(negative.view(np.uint32), (-expected.astype(np.float32)).view(np.uint32))
        assert widen(np.array([INFINITY[dtype]], np.uint16), dtype)[0] == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_every_value_and_every_tie(dtype: Dtype, sign: float) -> None:
    patterns = np.arange(INFINITY[dtype], dtype=np.uint32)
    values = np.array([value_of(int(p), dtype) for p in patterns])
    upper = np.append(values[1:], NEXT_POWER[dtype])
    sign_bit = np.uint16(0x8000 if sign < 0 else 0)

    def check(x: np.ndarray, expected: np.ndarray) -> None:
        x = (sign * x).astype(np.float32)
        np.testing.assert_array_equal(both(x, dtype), expected.astype(np.uint16) | sign_bit)

    check(values, patterns)
    ties = ((values + upper) / 2).astype(np.float32)
    assert np.array_equal(ties.astype(np.float64), (values + upper) / 2), "midpoints are exact in f32"
    check(ties, patterns + (patterns & 1))  # to the even neighbour; past the largest finite value: infinity
    check(np.nextafter(ties, np.float32(0)), patterns)
    check(np.nextafter(ties, np.float32(np.inf)), patterns + 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_specials(dtype: Dtype) -> None:
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FBFFFFF], np.uint32).view(np.float32)
    assert set(both(nans, dtype).tolist()) == {NAN[dtype]}
    inf = np.array([np.inf, -np.inf], np.float32)
    assert both(inf, dtype).tolist() == [INFINITY[dtype], INFINITY[dtype] | 0x8000]
    tiny = np.array([1e-45, -1e-45, 0.0, -0.0], np.float32)
    assert both(tiny, dtype).tolist() == [0, 0x8000, 0, 0x8000]
    assert bits.round16(np.float32(1.0), dtype) == 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_and_random_bits(dtype: Dtype) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    again = bits.round16_bits(bits.widen(every, dtype), dtype)
    is_nan = (every & 0x7FFF) > INFINITY[dtype]
    np.testing.assert_array_equal(again, np.where(is_nan, np.uint16(NAN[dtype]), every))
    both(np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32).view(np.float32), dtype)


def test_shapes_and_unknown_dtype() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert bits.round16_bits(x.T, "bfloat16").shape == (4, 3)
    np.testing.assert_array_equal(bits.round16(x.T, "float16"), x.T)
    with pytest.raises(InvalidParameter, match="'float8'.*bfloat16"):
        bits.round16_bits(x, "float8")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="'int8'"):
        bits.widen(np.zeros(1, np.uint16), "int8")  # type: ignore[arg-type]
