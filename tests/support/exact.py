"""f32 arithmetic by exact fractions: one rounding, done with integers. Finite values only."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

MAX_FINITE = Fraction(float(np.finfo(np.float32).max))


def round_f32(value: Fraction) -> np.float32:
    """Nearest f32 of an exact value, ties to even, overflow to infinity. An exact zero comes back as +0."""
    if value == 0:
        return np.float32(0)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    last_place = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(magnitude / last_place) * last_place  # Python rounds ties of a Fraction to even
    if rounded > MAX_FINITE:
        return np.float32(math.copysign(math.inf, value))
    return np.float32(math.copysign(float(rounded), value))


def fma(x: np.float32, w: np.float32, acc: np.float32) -> np.float32:
    exact = Fraction(float(x)) * Fraction(float(w)) + Fraction(float(acc))
    return round_f32(exact)
