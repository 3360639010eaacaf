"""Where the dot instruction is used, and that it gives the bits of the chain there.

What only a CPU with AVX-512 BF16 can run is marked; the rule itself is checked everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numba
import numpy as np
import pytest

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.ieee1 import SEGMENTS
from queueproof.arithmetic.oracle.sums import matmul
from queueproof.kernels.numba.dots import DOTS
from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.packed import pack
from queueproof.kernels.numba.pairs import NEVER, as_pairs, make_pairs, need_of, pair_count
from queueproof.kernels.numba.recorder import address
from tests.unit.numba.test_linear import product

SMALLEST = Fraction(1, 2**126)
HALF = np.uint16(0x8000)
needs_dots = pytest.mark.skipif(not DOTS, reason="this CPU has no AVX-512 BF16")

_make = numba.njit(lambda x, rows, k, out: make_pairs(x, rows, k, out))


def made(x: np.ndarray) -> tuple[int, np.ndarray]:
    x = np.ascontiguousarray(x, np.float32)
    out = np.full((len(x), pair_count(x.shape[1])), 0xDEADBEEF, np.uint32)
    return int(_make(address(x), *x.shape, address(out))), out


@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 15, 16, 17, 70, 72, 100, 576])
def test_pairs_of_x_and_of_weights_are_laid_out_alike(k: int) -> None:
    bits = np.random.default_rng(k).integers(0x80, 0x7F80, (5, k)).astype(np.uint16)
    least, words = made(widen(bits, "bfloat16"))
    assert np.array_equal(words, as_pairs(bits))
    assert least == bits.min() >> 7
    seg = -(-k // SEGMENTS)
    halves = np.stack([words >> 16, words & 0xFFFF], axis=2).reshape(5, SEGMENTS, -1)
    for s in range(SEGMENTS):
        there = bits[:, s * seg : (s + 1) * seg]
        assert np.array_equal(halves[:, s, : there.shape[1]], there)
        assert not halves[:, s, there.shape[1] :].any()


def test_what_x_must_not_have() -> None:
    x = widen(np.array([[0x3F80, 0x0000, 0x8000, 0xC000]], np.uint16), "bfloat16")
    assert made(x)[0] == 127  # zeros of both signs do not count
    assert made(np.zeros((2, 9)))[0] == 255
    assert made(widen(np.array([[1, 0x3F80]], np.uint16), "bfloat16"))[0] == 0  # subnormal
    for bad in (np.inf, -np.inf, np.nan, np.float32(1) + np.float32(2**-20)):
        for place in range(4):
            y = x.copy()
            y[0, place] = bad
            assert made(y)[0] == -1


def test_need_is_the_smallest_exponent_without_a_sum_that_is_lost() -> None:
    """Against the definition in whole numbers: every product is a multiple of one of 2^-126 or more."""
    for exponent in range(1, 255):
        w = np.array([0, exponent << 7 | 0x7F, HALF | 254 << 7], np.uint16)
        step_w = Fraction(2) ** (exponent - 127 - 7)
        steps = [step_w * Fraction(2) ** (e - 127 - 7) for e in range(1, 255)]
        want = next((e for e, step in enumerate(steps, 1) if step >= SMALLEST), NEVER)
        assert need_of(w) == want or (want == NEVER and need_of(w) > 254)
    assert need_of(np.array([0, HALF], np.uint16)) == 0
    for bad in (0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0):
        assert need_of(np.array([0x3F80, bad], np.uint16)) == NEVER


def of_exponent(rng: np.random.Generator, shape: tuple[int, int], exponent: int) -> np.ndarray:
    """bf16 of any sign and fraction, exponents from `exponent` to 3 more, some zeros."""
    bits = rng.integers(0, 1 << 7, shape) | (exponent + rng.integers(0, 4, shape)) << 7 | rng.integers(0, 2, shape) << 15
    return np.where(rng.random(shape) < 0.1, 0, bits).astype(np.uint16)


@pytest.mark.parametrize("k", [16, 70, 129, 576])
@pytest.mark.parametrize("m", [1, 2, 3, 7, 13, 60])
def test_bits_on_both_sides_of_the_need(m: int, k: int) -> None:
    rng = np.random.default_rng(m * k)
    n = 2 * PANEL + 3
    for exponent_w in (20, 60):
        w = of_exponent(rng, (n, k), exponent_w)
        packed = pack(n, k, [w], "bfloat16", None)
        need = int(packed.needs.max())
        for exponent_x in (need - 12, need - 1, need, need + 1):
            x = widen(of_exponent(rng, (m, k), exponent_x), "bfloat16")
            with np.errstate(all="ignore"):
                want = matmul(x, widen(w, "bfloat16"))
            assert same_bits(product(x, packed, 2), want), (exponent_w, exponent_x)


@needs_dots
@pytest.mark.parametrize("m", [1, 2, 5, 12, 30])
def test_it_is_used_and_its_zeros_show_where_nothing_is_asked(m: int) -> None:
    """Witness and negative control: without its need, a panel of tiny weights gives what the instruction gives, not the chain."""
    rng = np.random.default_rng(m)
    n, k = PANEL, 64
    w = of_exponent(rng, (n, k), 40)
    packed = pack(n, k, [w], "bfloat16", None)
    x = widen(of_exponent(rng, (m, k), int(packed.needs.max()) - 20), "bfloat16")
    want = matmul(x, widen(w, "bfloat16"))
    assert same_bits(product(x, packed, 1), want)
    careless = replace(packed, needs=np.zeros_like(packed.needs))
    assert not same_bits(product(x, careless, 1), want)


@needs_dots
def test_one_panel_that_needs_more_leaves_the_others_as_they_are() -> None:
    rng = np.random.default_rng(9)
    n, k = 4 * PANEL, 96
    w = round16_bits(rng.standard_normal((n, k)).astype(np.float32), "bfloat16")
    w[PANEL + 2, 5] = 3  # subnormal
    packed = pack(n, k, [w], "bfloat16", None)
    assert packed.needs[1] == NEVER
    assert np.all(np.delete(packed.needs, 1) < 127)
    for m in (1, 24, 50):
        x = widen(round16_bits(rng.standard_normal((m, k)).astype(np.float32), "bfloat16"), "bfloat16")
        assert same_bits(product(x, packed, 2), matmul(x, widen(w, "bfloat16")))
