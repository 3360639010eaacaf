"""The harness: what a kernel computes in the interpreter is what the oracle says, bit for bit. Compiled, the card agrees."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.oracle.tensorcore import mma
from queueproof.arithmetic.oracle.tensorcore.numbers import fma
from queueproof.arithmetic.tensorcore1 import FAMILIES, FIXED_ONE
from tests.support.triton_cpu import DEVICE, FAMILY, Exp2

interpreted = pytest.mark.skipif(DEVICE != "cpu", reason="of the interpreter alone")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0**-126, 2.0**-127, 2.0**-149, 3.0e38, np.inf, -np.inf, 65504.0, 65520.0, 2.0**-25]


def values(n: int, seed: int = 0) -> np.ndarray:
    """f32 of all magnitudes, special ones first."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * 2.0 ** rng.integers(-120, 120, n)).astype(np.float32)
    x[: len(SPECIAL)] = SPECIAL
    return x


def on(device: str, x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device)


def half(device: str, bits: np.ndarray, dtype: str) -> torch.Tensor:
    return on(device, bits.view(np.int16)).view(DTYPES[dtype])


def equal(got: torch.Tensor, want: np.ndarray) -> None:
    """The same bits; NaNs count as equal."""
    result = got.cpu().numpy()
    assert result.dtype == want.dtype and result.shape == want.shape
    np.testing.assert_array_equal(result, want)
    if want.dtype.kind == "f":
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(want[number]))


@triton.jit
def dot_kernel(x, w, out, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(x + m[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        b = tl.load(w + n[None, :] * K + k[:, None], mask=k[:, None] < K, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(out + m[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [16, 72, 128])
@pytest.mark.parametrize("block", [16, 64])
def test_dot_is_the_chain(device: str, dtype: str, k: int, block: int) -> None:
    rng = np.random.default_rng(k)
    x, w = (round16_bits(rng.standard_normal((n, k)).astype(np.float32), dtype) for n in (16, 32))
    out = torch.empty(16, 32, device=device)
    dot_kernel[(1,)](half(device, x, dtype), half(device, w, dtype), out, k, M=16, N=32, BK=block)
    equal(out, mma.chain(widen(x, dtype), widen(w, dtype), FAMILIES[FAMILY], dtype))
