"""The harness: what a kernel computes in the interpreter is what the oracle says, bit for bit. Compiled, the card agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.oracle.tensorcore import mma
from queueproof.arithmetic.oracle.tensorcore.numbers import fma
from queueproof.arithmetic.oracle.tensorcore.sums import isum, quantised
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


@triton.jit
def fma_kernel(x, y, z, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)), mask=i < n)


def test_fma_rounds_once(device: str) -> None:
    x, y = values(2048, 1), values(2048, 2)[::-1].copy()
    with np.errstate(all="ignore"):
        z = (-(x * y) * np.float32(1 + 2.0**-20)).astype(np.float32)
    z[::3] = values(2048, 3)[::3]
    out = torch.empty(2048, device=device)
    fma_kernel[(1,)](*(on(device, v) for v in (x, y, z)), out, 2048, BLOCK=2048)
    equal(out, fma(x, y, z))


@triton.jit
def round_kernel(x, out, back, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    rounded = tl.load(x + i).to(out.dtype.element_ty)
    tl.store(out + i, rounded, mask=i < n)
    tl.store(back + i, tl.load(out + i).to(tl.float32), mask=i < n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_round_to_nearest_even(device: str, dtype: str) -> None:
    x = values(4096)
    ties = widen(np.arange(0x3F00, 0x3F80, dtype=np.uint16), "bfloat16")
    x[100:228], x[300:428] = ties * np.float32(1 + 2.0**-8), ties * np.float32(1 + 2.0**-11)
    out, back = torch.empty(4096, dtype=DTYPES[dtype], device=device), torch.empty(4096, device=device)
    round_kernel[(1,)](on(device, x), out, back, 4096, BLOCK=4096)
    bits = round16_bits(x, dtype)
    np.testing.assert_array_equal(out.cpu().view(torch.int16).numpy().view(np.uint16), bits)
    equal(back, widen(bits, dtype))


@triton.jit
def elementwise_kernel(x, y, quotient, root, sum, difference, product, larger, power, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(quotient + i, tl.div_rn(a, b))
    tl.store(root + i, tl.sqrt_rn(tl.abs(a)))
    tl.store(sum + i, a + b)
    tl.store(difference + i, a * b - a)
    tl.store(product + i, a * b * 0.1)
    tl.store(larger + i, tl.maximum(a, b))
    tl.store(power + i, tl.exp2(a))


def test_elementwise_operations_are_those_of_f32(device: str, exp2: Exp2) -> None:
    x, y = values(2048, 4), values(2048, 5)[::-1].copy()
    x[20], y[30] = np.nan, np.nan
    x[1024:] = np.linspace(-150, 130, 1024, dtype=np.float32)
    out = [torch.empty(2048, device=device) for _ in range(7)]
    elementwise_kernel[(1,)](on(device, x), on(device, y), *out, BLOCK=2048, enable_fp_fusion=False)
    with np.errstate(all="ignore"):
        want = [x / y, np.sqrt(np.abs(x)), x + y, x * y - x, x * y * np.float32(0.1), np.fmax(x, y), exp2(x)]
    for got, expected in zip(out, want, strict=True):
        equal(got, expected)


@triton.jit
def sum_kernel(v, sums, total, best, rows, N: tl.constexpr, R: tl.constexpr):
    r, n = tl.arange(0, R), tl.arange(0, N)
    x = tl.load(v + r[:, None] * N + n[None, :])
    q = tl.sum((x * 1099511627776.0).to(tl.int64), axis=1)
    tl.store(sums + r, q.to(tl.float32) * 9.094947017729282e-13)
    tl.atomic_add(total + r % 2, q, sem="relaxed")
    tl.store(best + r, tl.max(x, axis=1))


def test_integer_sums_maxima_and_atomics(device: str) -> None:
    v = (np.random.default_rng(6).standard_normal((16, 256)) * 100).astype(np.float32)
    v[0, :4] = [-0.0, 2.0**-41, -(2.0**-41), 2.0**-149]
    v[3, 5] = np.nan if device == "cpu" else 0
    sums, best = torch.empty(16, device=device), torch.empty(16, device=device)
    total = torch.zeros(2, dtype=torch.int64, device=device)
    sum_kernel[(3,)](on(device, v), sums, total, best, 16, N=256, R=16)
    finite = np.arange(16) != 3
    equal(sums[torch.from_numpy(finite)], isum(v[finite]))
    equal(best, np.fmax.reduce(v, axis=1))
    assert total[0].item() == 3 * int(quantised(v[::2]).sum())
    assert (FIXED_ONE, 1 / FIXED_ONE) == (1099511627776.0, 9.094947017729282e-13)


@triton.jit
def scan_kernel(x, running, counts, packed, last, R: tl.constexpr):
    i = tl.arange(0, R)
    v = tl.load(x + i)
    tl.store(running + i, tl.cumsum(v))
    tl.store(counts + tl.arange(0, 16), tl.histogram(v & 15, 16, mask=v >= 0))
    key = (v.to(tl.int64) << 32) | (R - i).to(tl.int64)
    tl.store(packed, tl.max(key))
    tl.store(packed + 1, tl.min(key))
    if tl.atomic_add(last, 1, sem="acq_rel", scope="gpu") == 2:
        tl.store(last + 1, tl.load(last + 2) + tl.program_id(0) * 0 + 7)


def test_scans_histograms_and_the_last_program(device: str) -> None:
    x = np.random.default_rng(7).integers(-50, 1000, 128).astype(np.int32)
    running, counts = (
        torch.zeros(128, dtype=torch.int32, device=device),
        torch.zeros(16, dtype=torch.int32, device=device),
    )
    packed, last = (
        torch.zeros(2, dtype=torch.int64, device=device),
        torch.tensor([0, 0, 1], dtype=torch.int32, device=device),
    )
    scan_kernel[(3,)](on(device, x), running, counts, packed, last, R=128)
    equal(running, np.cumsum(x, dtype=np.int32))
    equal(counts, np.bincount(x[x >= 0] & 15, minlength=16).astype(np.int32))
    key = (x.astype(np.int64) << 32) | (128 - np.arange(128))
    equal(packed, np.array([key.max(), key.min()]))
    assert last.tolist() == [3, 8, 1]


@triton.jit
def copy_kernel(x, out, rows, B: tl.constexpr):
    for row in range(tl.program_id(0) * B, rows, tl.num_programs(0) * B):
        out.store([row, 0], x.load([row, 0]))


def test_descriptors_fill_with_zeros_and_store_inside_alone(device: str) -> None:
    x = half(device, np.arange(1, 40 * 24 + 1, dtype=np.uint16).reshape(40, 24), "bfloat16")
    out = torch.full((48, 32), -1, dtype=torch.bfloat16, device=device)
    descriptors = [TensorDescriptor.from_tensor(t, [16, 32]) for t in (x, out)]
    copy_kernel[(2,)](*descriptors, 40, B=16)
    want = torch.zeros(48, 32, dtype=torch.bfloat16, device=device)
    want[:40, :24] = x
    equal(out.view(torch.int16), want.cpu().view(torch.int16).numpy())


@triton.jit
def scalars_kernel(out, a, b, flag, count):
    total = a * b
    for _ in range(count):
        total += a
    if flag:
        total = -total
    tl.store(out, total)


def test_scalar_arguments_are_f32(device: str) -> None:
    out = torch.empty(1, device=device)
    scalars_kernel[(1,)](out, 0.1, 0.7, True, 3, enable_fp_fusion=False)
    a, total = np.float32(0.1), np.float32(0.1) * np.float32(0.7)
    for _ in range(3):
        total = total + a
    equal(out, np.array([-total], np.float32))


@triton.jit
def outside_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i), mask=i < n)


@interpreted
def test_memory_outside_of_the_arguments_is_an_error(device: str) -> None:
    x, out = torch.zeros(60), torch.zeros(64)
    with pytest.raises(IndexError, match="reads outside"):
        outside_kernel[(1,)](x, out, 64, BLOCK=64)
    with pytest.raises(IndexError, match="writes outside"):
        outside_kernel[(1,)](out, x, 64, BLOCK=64)
    outside_kernel[(1,)](out, x, 60, BLOCK=64)


@triton.jit
def undefined_sum_kernel(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x, tl.sum(tl.load(x + i), axis=0))


@triton.jit
def undefined_product_kernel(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) * tl.load(x + i))


@interpreted
def test_what_has_no_defined_rounding_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="sums of integers"):
        undefined_sum_kernel[(1,)](torch.zeros(16), BLOCK=16)
    with pytest.raises(NotImplementedError, match="bfloat16"):
        undefined_product_kernel[(1,)](torch.zeros(16, dtype=torch.bfloat16), BLOCK=16)


@interpreted
def test_exp2_of_an_element_does_not_depend_on_its_neighbours(exp2: Exp2) -> None:
    x = np.linspace(-140, 20, 997, dtype=np.float32)
    whole = exp2(x)
    np.testing.assert_array_equal(whole, [exp2(x[i : i + 1])[0] for i in range(x.size)])
    np.testing.assert_array_equal(whole[3::7], exp2(x[3::7]))
