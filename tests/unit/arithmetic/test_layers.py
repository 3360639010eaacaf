"""Norm, rotation and gate of the oracle against a scalar restatement and against f64."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.oracle import layers, numbers
from queueproof.arithmetic.oracle.functions import silu
from queueproof.arithmetic.oracle.sums import row_sum

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("width", [3, 64, 576])
def test_norm(width: int) -> None:
    h = RNG.standard_normal((4, width), dtype=np.float32)
    weight = RNG.standard_normal(width, dtype=np.float32)
    got = layers.norm(h, weight, 1e-5)
    for t in range(4):
        square_sum = row_sum((h[t] * h[t])[None])[0]
        root = np.sqrt(square_sum / np.float32(width) + np.float32(1e-5))
        r = np.float32(1) / root
        for i in range(width):
            assert got[t, i] == (h[t, i] * r) * weight[i]
    wide = h.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got, exact, rtol=1e-6)
    rounded = layers.rms_norm(h, weight, 1e-5, "float16")
    np.testing.assert_array_equal(rounded, numbers.round16(got, "float16"))


def test_norm_of_zeros_and_infinity() -> None:
    ones = np.ones(4, np.float32)
    assert layers.norm(np.zeros((1, 4), np.float32), ones, 1e-6).tolist() == [[0, 0, 0, 0]]
    out = layers.norm(np.array([[np.inf, 1, 0, -1]], np.float32), ones, 1e-6)[0]
    assert np.isnan(out[0]) and out[1] == 0 and out[2] == 0 and np.signbit(out[3])


def test_rope_rotates_pairs_of_halves() -> None:
    x = RNG.standard_normal((3, 2, 6), dtype=np.float32)
    angle = RNG.uniform(0, 6, (3, 3))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    got = layers.rope(x, cos, sin)
    for t in range(3):
        for head in range(2):
            for i in range(3):
                a, b = x[t, head, i], x[t, head, i + 3]
                assert got[t, head, i] == a * cos[t, i] - b * sin[t, i]
                assert got[t, head, i + 3] == b * cos[t, i] + a * sin[t, i]


def test_silu_mul() -> None:
    gate_up = RNG.standard_normal((3, 10), dtype=np.float32) * np.float32(4)
    got = layers.silu_mul(gate_up, "bfloat16")
    for t in range(3):
        for i in range(5):
            product = silu(gate_up[t, i]) * gate_up[t, i + 5]
            assert got[t, i] == numbers.round16(product, "bfloat16")
