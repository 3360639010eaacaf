"""Rotary tables against mpmath at 60 digits, at angles where the reduction is hardest."""

from __future__ import annotations

import time

import mpmath
import numpy as np
import pytest

from queueproof.arithmetic.rope import RopeScaling, inverse_frequencies, rope_table, sin_cos
from queueproof.contract.errors import InvalidParameter

LLAMA3 = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)


@pytest.fixture(autouse=True)
def sixty_digits():  # type: ignore[no-untyped-def]
    with mpmath.workdps(60):
        yield


def hard_angles() -> np.ndarray:
    """Integers near multiples of pi/2, their neighbours, the edges of each quarter, and large ones."""
    near = [0, 1, 11, 22, 33, 44, 333, 355, 710, 103993, 104348, 208341, 312689, 521030, 833719, 2**20 - 1]
    halves = np.arange(1, 600, 7) * (np.pi / 4)
    far = np.arange(600_000, 667_000, 997) * (np.pi / 2)
    points = np.concatenate([np.array(near, np.float64), halves, far])
    points = np.concatenate([points, np.nextafter(points, 2.0**20), np.nextafter(points, 0.0)])
    return points[points < 2.0**20]


def test_sin_cos_within_one_f64_ulp() -> None:
    angles = hard_angles()
    sin, cos = sin_cos(angles)
    for angle, s, c in zip(angles, sin, cos, strict=True):
        for got, exact in ((s, mpmath.sin(float(angle))), (c, mpmath.cos(float(angle)))):
            # Near a zero of the function the third part of pi/2 leaves an absolute error of about 2^20 * 2^-122.
            tolerance = float(np.spacing(abs(float(exact)))) + 2.0**-100
            assert abs(mpmath.mpf(float(got)) - exact) <= tolerance, float(angle).hex()


def test_table_is_the_rounded_truth() -> None:
    cos, sin = rope_table(8, 10000.0, 40)
    assert cos.dtype == sin.dtype == np.float32 and cos.shape == sin.shape == (40, 4)
    for position in range(40):
        for i in range(4):
            frequency = float(mpmath.mpf(10000) ** (mpmath.mpf(-2 * i) / 8))
            angle = position * frequency
            assert cos[position, i] == np.float32(float(mpmath.cos(angle)))
            assert sin[position, i] == np.float32(float(mpmath.sin(angle)))


@pytest.mark.parametrize(("dim", "theta"), [(64, 1e5), (128, 5e5), (80, 10000.0), (2, 1e6)])
def test_frequencies_are_correctly_rounded(dim: int, theta: float) -> None:
    got = inverse_frequencies(dim, theta, None)
    exact = [float(mpmath.mpf(theta) ** (mpmath.mpf(-2 * i) / dim)) for i in range(dim // 2)]
    assert got.tolist() == exact
    assert got[0] == 1.0


def test_linear_scaling() -> None:
    plain = inverse_frequencies(64, 1e4, None)
    np.testing.assert_array_equal(inverse_frequencies(64, 1e4, RopeScaling("linear", 4.0)), plain / 4.0)


def test_llama3_scaling_has_its_three_ranges() -> None:
    plain, scaled = inverse_frequencies(64, 5e5, None), inverse_frequencies(64, 5e5, LLAMA3)
    wavelength = 2 * np.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192
    between = ~short & ~long
    assert short.any() and long.any() and between.any()
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_array_equal(scaled[long], plain[long] / 32)
    s = (8192 / wavelength[between] - 1) / 3
    np.testing.assert_array_equal(scaled[between], (1 - s) * (plain[between] / 32) + s * plain[between])


def test_a_longer_table_starts_with_the_shorter_one() -> None:
    short, long = rope_table(64, 1e5, 100, LLAMA3), rope_table(64, 1e5, 5000, LLAMA3)
    for a, b in zip(short, long, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b[:100].view(np.uint32))


def test_it_is_fast() -> None:
    best = min(_seconds() for _ in range(5))
    assert best < 0.1


def _seconds() -> float:
    start = time.perf_counter()
    rope_table(64, 1e5, 8192)
    return time.perf_counter() - start


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rope_table(63, 1e4, 8), "head_dim=63"),
        (lambda: rope_table(0, 1e4, 8), "head_dim=0"),
        (lambda: rope_table(64, 0.0, 8), "theta=0.0"),
        (lambda: rope_table(64, float("nan"), 8), "theta=nan"),
        (lambda: rope_table(64, 1e4, 0), "max_len=0"),
        (lambda: rope_table(64, 1e4, 2**20 + 1), "max_len=1048577.*at most 1048576"),
        (lambda: RopeScaling("yarn", 2.0), "'yarn'.*'linear' and 'llama3'"),  # type: ignore[arg-type]
        (lambda: RopeScaling("linear", -1.0), "factor=-1.0"),
        (lambda: RopeScaling("llama3", 8.0), "low_freq_factor=0.0"),
        (lambda: RopeScaling("llama3", 8.0, 4.0, 1.0, 8192), "high_freq_factor=1.0.*above low_freq_factor"),
        (lambda: RopeScaling("llama3", 8.0, 1.0, 4.0, 0), "original_max_position=0"),
    ],
)
def test_errors(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidParameter, match=message):
        call()


def test_the_last_possible_position() -> None:
    cos, _ = rope_table(2, 1e4, 2**20)
    assert cos.shape == (2**20, 1)
