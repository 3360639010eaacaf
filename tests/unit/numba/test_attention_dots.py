"""Blocks of keys and values as pairs: their layout, what they need, and products that are the chains."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.ieee1 import KEY_BLOCK
from queueproof.kernels.numba import attention_dots as pairwise
from queueproof.kernels.numba.dots import DOTS
from queueproof.kernels.numba.microkernel import PANEL
from queueproof.kernels.numba.pairs import NEVER, need_of
from queueproof.kernels.numba.recorder import address

PAGE, D, ROWS = 32, 64, 29

_keys = numba.njit(lambda table, d, page, out, sizes: pairwise.pack_keys(table, d, page, out, sizes))
_values = numba.njit(lambda table, dp, out, sizes: pairwise.pack_values(table, dp, out, sizes))
if DOTS:
    _products = numba.njit(lambda rows, x, n, w, panels, out, ldo: pairwise.products(rows, x, n, w, panels, out, ldo))


def words(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return high.astype(np.uint32) << np.uint32(16) | low


def cached(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A block as the cache holds it in pages (keys [page, D, PAGE], or values [page, PAGE, D]), its groups, and plainly [KEY_BLOCK, D]."""
    plain = round16_bits(rng.standard_normal((KEY_BLOCK, D)).astype(np.float32), "bfloat16")
    plain[rng.random(plain.shape) < 0.1] = 0
    pages = plain.reshape(-1, PAGE, D)
    cache = np.ascontiguousarray(pages.transpose(0, 2, 1) if kind == "keys" else pages)
    step = 2 * 16 * (1 if kind == "keys" else D)
    groups = [address(cache[p]) + half * step for p in range(len(pages)) for half in range(PAGE // 16)]
    return cache, np.array(groups, np.int64), plain


def test_keys_and_values_in_panels_and_their_needs() -> None:
    rng = np.random.default_rng(0)
    sizes = np.zeros((2, 16), np.uint32)
    cache, groups, plain = cached(rng, "keys")
    out = np.zeros((KEY_BLOCK // PANEL, D // 2, PANEL), np.uint32)
    need = _keys(address(groups), D, PAGE, address(out), address(sizes))
    for p in range(len(out)):
        columns = plain[p * PANEL : (p + 1) * PANEL].T
        assert np.array_equal(out[p], words(columns[0::2], columns[1::2]))
    assert need == need_of(plain)
    cache[0, 3, 5] = 1  # subnormal
    assert _keys(address(groups), D, PAGE, address(out), address(sizes)) == NEVER

    cache, groups, plain = cached(rng, "values")
    out = np.zeros((D // PANEL, KEY_BLOCK // 2, PANEL), np.uint32)
    assert _values(address(groups), D, address(out), address(sizes)) == need_of(plain)
    for p in range(len(out)):
        columns = plain[:, p * PANEL : (p + 1) * PANEL]
        assert np.array_equal(out[p], words(columns[0::2], columns[1::2]))
    cache[1, 7, 63] = 0x7F80  # infinite
    assert _values(address(groups), D, address(out), address(sizes)) == NEVER
    cache[:] = 0
    assert _values(address(groups), D, address(out), address(sizes)) == 0


@pytest.mark.skipif(not DOTS, reason="this CPU has no AVX-512 BF16")
def test_products_are_the_chains_and_another_order_is_not() -> None:
    rng = np.random.default_rng(1)
    x = round16_bits(rng.standard_normal((ROWS, KEY_BLOCK)).astype(np.float32), "bfloat16")
    w = round16_bits(rng.standard_normal((KEY_BLOCK, D)).astype(np.float32), "bfloat16")

    def products(first: int) -> np.ndarray:
        """With keys `first`, `first` + 2, … of the block in the high halves, and the others in the low ones."""
        pairs = np.ascontiguousarray(words(x[:, first::2], x[:, 1 - first :: 2]))
        panels = words(w[first::2], w[1 - first :: 2]).reshape(-1, D // PANEL, PANEL).transpose(1, 0, 2)
        panels, out = np.ascontiguousarray(panels), np.full((ROWS, D), np.nan, np.float32)
        _products(ROWS, address(pairs), KEY_BLOCK // 2, address(panels), D // PANEL, address(out), D)
        return out

    want = np.zeros((ROWS, D), np.float64)
    xf, wf = widen(x, "bfloat16").astype(np.float64), widen(w, "bfloat16").astype(np.float64)
    for k in range(KEY_BLOCK):  # a product of bf16 is exact in f64, and so is its sum with an f32 of this size
        want = (xf[:, k : k + 1] * wf[k] + want).astype(np.float32).astype(np.float64)
    assert same_bits(products(0), want.astype(np.float32))
    assert not same_bits(products(1), want.astype(np.float32))  # the neighbour first
