"""The matrix product equals the oracle bit for bit, at every size where the code takes another path."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import layers
from queueproof.arithmetic.oracle.sums import matmul
from queueproof.kernels.numba.linear import FEW_ROWS, ROWS_BLOCK, ROWS_TASK, scratch_f32
from queueproof.kernels.numba.microkernel import MAX_ROWS, PANEL
from queueproof.kernels.numba.packed import PackedMatrix, pack
from queueproof.kernels.numba.program import GATED, Op, StepWord
from queueproof.kernels.numba.recorder import address
from tests.support.instructions import THREADS, poison, run

DTYPES = ("bfloat16", "float16")


def product(x: np.ndarray, w: PackedMatrix, threads: int) -> np.ndarray:
    return products(x, w, threads, gated=False)[0]


def products(x: np.ndarray, w: PackedMatrix, threads: int, gated: bool) -> tuple[np.ndarray, np.ndarray]:
    """The product, and what it leaves where a gated one goes; NaN where nothing is written."""
    x = np.ascontiguousarray(x, np.float32)
    out, after = poison(len(x), w.n), poison(len(x), w.n // 2)
    bias = 0 if w.bias is None else address(w.bias)
    step = {StepWord.ROWS: len(x), StepWord.HALF: int(w.dtype == "float16")}
    words = [address(x), w.k, address(w.data), w.n, address(out), bias, w.kind, w.panel_bytes, address(w.needs)]
    words += [0] * (GATED - 2 - len(words)) + [address(after) if gated else 0]
    run(Op.LINEAR, threads, *words, step=step, scratch=scratch_f32(w.k, w.kind, len(x)))
    return out, after


def matrix(rng: np.random.Generator, n: int, k: int, dtype: str, scale: float = 1.0) -> np.ndarray:
    return round16_bits((rng.standard_normal((n, k)) * scale).astype(np.float32), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 63, 64, 65, 72, 200, 576])
def test_every_k_and_every_small_m(k: int, dtype: str) -> None:
    rng = np.random.default_rng(k)
    n = 2 * PANEL + 5
    w = matrix(rng, n, k, dtype)
    packed = pack(n, k, [w], dtype, None)
    for m in [*range(1, 2 * MAX_ROWS + 2), ROWS_BLOCK, ROWS_BLOCK + 1]:
        x = widen(matrix(rng, m, k, dtype), dtype)
        want = matmul(x, widen(w, dtype))
        for threads in THREADS[: 1 if m > 3 else 3]:
            assert same_bits(product(x, packed, threads), want), (m, threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_m_to_300_and_around_512(dtype: str) -> None:
    """A row's bits do not depend on how many rows there are: each M gives the first M rows of the largest."""
    rng = np.random.default_rng(1)
    n, k = PANEL + 3, 100
    w = matrix(rng, n, k, dtype)
    packed = pack(n, k, [w], dtype, None)
    x = widen(matrix(rng, 513, k, dtype), dtype)
    want = matmul(x, widen(w, dtype))
    for m in [*range(1, 301), 511, 512, 513, ROWS_TASK - 1, ROWS_TASK, ROWS_TASK + 1]:
        assert same_bits(product(x[:m], packed, THREADS[m % 3]), want[:m]), m


@pytest.mark.parametrize("n", [1, PANEL - 1, PANEL, PANEL + 1, 4 * PANEL, 4 * PANEL + 1, 9 * PANEL + 2])
def test_every_n_with_bias(n: int) -> None:
    rng = np.random.default_rng(n)
    w, bias = matrix(rng, n, 96, "bfloat16"), rng.standard_normal(n).astype(np.float32)
    bias[0] = -0.0
    packed = pack(n, 96, [w[:1], w[1:]], "bfloat16", bias)
    for m in (1, 2, 5, 24):
        x = widen(matrix(rng, m, 96, "bfloat16"), "bfloat16")
        for threads in THREADS:
            assert same_bits(product(x, packed, threads), matmul(x, widen(w, "bfloat16"), bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["any bits", "huge", "normal"])
def test_a_product_of_many_rows_gates_itself(kind: str, dtype: str) -> None:
    rng, k = np.random.default_rng(3), 100
    for m in (FEW_ROWS + 1, ROWS_BLOCK, ROWS_BLOCK + 1, ROWS_TASK + 1, 2 * ROWS_TASK + ROWS_BLOCK + 1):
        for panels in (1, 3):
            n = 2 * panels * PANEL
            a, w = (matrix(rng, r, k, dtype, k**-0.5) if kind == "normal" else adversarial(rng, (r, k), kind, dtype) for r in (m, n))
            bias, x = rng.standard_normal(n).astype(np.float32), widen(a, dtype)
            with np.errstate(all="ignore"):
                want = layers.silu_mul(matmul(x, widen(w, dtype), bias), dtype)
            for threads in THREADS:
                plain, gated = products(x, pack(n, k, [w], dtype, bias), threads, gated=True)
                assert same_bits(gated, want), (m, panels, threads)
                assert np.isnan(plain).all()


def test_a_product_of_few_rows_leaves_the_gate_to_others() -> None:
    w = matrix(np.random.default_rng(4), 2 * PANEL, 64, "bfloat16")
    x = widen(matrix(np.random.default_rng(5), FEW_ROWS, 64, "bfloat16"), "bfloat16")
    plain, gated = products(x, pack(2 * PANEL, 64, [w], "bfloat16", None), 2, gated=True)
    assert same_bits(plain, matmul(x, widen(w, "bfloat16"))) and np.isnan(gated).all()


def adversarial(rng: np.random.Generator, shape: tuple[int, int], kind: str, dtype: str) -> np.ndarray:
    if kind == "any bits":  # every pattern of 16 bits: NaN, infinities, subnormals, both zeros
        return rng.integers(0, 1 << 16, shape).astype(np.uint16)
    if kind == "cancel":  # pairs that cancel to almost nothing after large sums
        x = rng.standard_normal(shape).astype(np.float32) * 1000
        x[:, 1::2] = -x[:, : x.shape[1] // 2 * 2 : 2][:, : x[:, 1::2].shape[1]]
        return round16_bits(x + rng.standard_normal(shape).astype(np.float32) * np.float32(1e-3), dtype)
    if kind == "subnormal":
        magnitude = rng.integers(0, 1 << 7, shape).astype(np.uint16)
        return magnitude | (rng.integers(0, 2, shape).astype(np.uint16) << np.uint16(15))
    if kind == "tiny":  # products below the smallest f32: only a fused multiply-add rounds them as defined
        x = rng.standard_normal(shape).astype(np.float32) * np.float32(2.0**-70 if dtype == "bfloat16" else 2.0**-10)
        return round16_bits(x, dtype)
    if kind == "zeros":
        return rng.choice(np.array([0x0000, 0x8000], np.uint16), shape)
    assert kind == "huge"
    x = rng.standard_normal(shape).astype(np.float32) * np.float32(2.0**64 if dtype == "bfloat16" else 30000)
    return round16_bits(x, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["any bits", "cancel", "subnormal", "tiny", "zeros", "huge"])
def test_adversarial_values(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    for m, n, k in ((1, PANEL, 24), (2, PANEL, 24), (3, 5, 17), (8, PANEL + 1, 70), (13, 2 * PANEL, 129)):
        w = adversarial(rng, (n, k), kind, dtype)
        x = widen(adversarial(rng, (m, k), kind, dtype), dtype)
        packed = pack(n, k, [w], dtype, None)
        with np.errstate(all="ignore"):
            want = matmul(x, widen(w, dtype))
        for threads in THREADS:
            assert same_bits(product(x, packed, threads), want)


def test_model_shapes() -> None:
    """The layers of SmolLM2-135M, a slice of rows of each."""
    rng = np.random.default_rng(3)
    for n, k in ((960, 576), (576, 576), (3072, 576), (576, 1536)):
        w = matrix(rng, n, k, "bfloat16", k**-0.5)
        packed = pack(n, k, [w], "bfloat16", None)
        x = widen(matrix(rng, 9, k, "bfloat16"), "bfloat16")
        want = matmul(x, widen(w, "bfloat16"))
        for m in (1, 2, 9):
            assert same_bits(product(x[:m], packed, 2), want[:m])


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_of_rows_pack_the_same(dtype: str) -> None:
    rng = np.random.default_rng(2)
    w = matrix(rng, 3 * PANEL + 7, 20, dtype)
    whole = pack(len(w), 20, [w], dtype, None).data
    for size in (1, 3, PANEL - 1, PANEL, PANEL + 5):
        parts = [w[i : i + size] for i in range(0, len(w), size)]
        assert np.array_equal(pack(len(w), 20, parts, dtype, None).data, whole)
    for bad in ([w[:-1]], [w, w[:1]], [w[:, :-1]]):
        with pytest.raises(ValueError, match="matrix"):
            pack(len(w), 20, bad, dtype, None)


def test_another_order_of_additions_is_noticed() -> None:
    """Negative control: NumPy's BLAS, and a plain chain without segments, give other bits on the same data."""
    rng = np.random.default_rng(4)
    w, x = matrix(rng, 64, 576, "bfloat16"), matrix(rng, 24, 576, "bfloat16")
    xf, wf = widen(x, "bfloat16"), widen(w, "bfloat16")
    ours = product(xf, pack(64, 576, [w], "bfloat16", None), 2)
    assert not same_bits(xf @ wf.T, ours)
    flat = np.zeros((24, 64), np.float32)
    for i in range(576):
        flat += xf[:, i : i + 1] * wf[:, i]
    assert not same_bits(flat, ours)
