"""Row operations equal the oracle bit for bit on random and adversarial rows."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.bits import round16_bits, widen
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import layers
from queueproof.arithmetic.oracle.numbers import round16
from queueproof.arithmetic.rope import rope_table
from queueproof.kernels.numba.packed import pack
from queueproof.kernels.numba.program import Op, StepWord
from queueproof.kernels.numba.recorder import address
from tests.support.instructions import THREADS, bits, poison, run

DTYPES = ("bfloat16", "float16")


def rows(rng: np.random.Generator, m: int, n: int, kind: str) -> np.ndarray:
    if kind == "any bits":
        return rng.integers(0, 1 << 32, (m, n), dtype=np.uint32).view(np.float32)
    x = rng.standard_normal((m, n)).astype(np.float32)
    scale = {"normal": 1.0, "subnormal": 2.0**-140, "tiny": 2.0**-75, "huge": 2.0**70}[kind]
    x *= np.float32(scale)
    x[:, 0] = -0.0
    return x


KINDS = ("normal", "any bits", "subnormal", "tiny", "huge")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rms_norm_with_and_without_residual(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 63, 64, 65, 576, 4095, 4096, 4097, 8192, 8200):
        for m in (1, 3):
            weight = (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
            h0, delta = rows(rng, m, n, kind), rows(rng, m, n, kind)
            for threads in THREADS:
                for d in (None, delta):
                    h, out = h0.copy(), poison(m, n)
                    words = (address(h), 0 if d is None else address(d), address(weight), bits(1e-5), n, address(out), address(h))
                    step = {StepWord.ROWS: m, StepWord.HALF: int(dtype == "float16")}
                    run(Op.RMS_NORM, threads, *words, step=step, scratch=2 * n + 64)
                    with np.errstate(all="ignore"):
                        want_h = h0 if d is None else h0 + d
                        want = layers.rms_norm(want_h, weight, 1e-5, dtype)
                    assert same_bits(h, want_h)
                    assert same_bits(out, want), (n, m, threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_silu_mul(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for m, n in ((1, 1), (1, 1536), (5, 72), (33, 17)):
        x = rows(rng, m, 2 * n, kind)
        with np.errstate(all="ignore"):
            want = layers.silu_mul(x, dtype)
        for threads in THREADS:
            out = poison(m, n)
            step = {StepWord.ROWS: m, StepWord.HALF: int(dtype == "float16")}
            run(Op.SILU_MUL, threads, address(x), n, address(out), step=step)
            assert same_bits(out, want)


def test_add_and_take_rows() -> None:
    rng = np.random.default_rng(2)
    a, b = rows(rng, 7, 33, "any bits"), rows(rng, 7, 33, "any bits")
    index = np.array([6, 0, 0, 3], np.int32)
    for threads in THREADS:
        h = a.copy()
        run(Op.ADD, threads, address(h), address(b), 33, step={StepWord.ROWS: 7})
        with np.errstate(all="ignore"):
            assert same_bits(h, a + b)
        out = poison(4, 33)
        step = {StepWord.ROWS: 4, StepWord.ROW_INDEX: address(index)}
        run(Op.TAKE_ROWS, threads, address(a), 33, address(out), step=step)
        assert same_bits(out, a[index])


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_reads_every_column_of_a_panel(dtype: str) -> None:
    rng = np.random.default_rng(3)
    table = rng.integers(0, 1 << 16, (70, 24)).astype(np.uint16)
    packed = pack(70, 24, [table], dtype, None)
    ids = rng.permutation(70).astype(np.int32)
    for threads in THREADS:
        out = poison(70, 24)
        step = {StepWord.ROWS: 70, StepWord.HALF: int(dtype == "float16"), StepWord.TOKEN_IDS: address(ids)}
        run(Op.EMBED, threads, address(packed.data), 24, address(out), step=step)
        assert same_bits(out, widen(table, dtype)[ids])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "d", "normed"), [(4, 2, 16, True), (3, 3, 24, False), (9, 3, 64, True)])
def test_rope_and_cache(kind: str, dtype: str, heads: int, kv_heads: int, d: int, normed: bool) -> None:
    rng = np.random.default_rng(4)
    m, page, blocks = 6, 16, 5
    dp = -(-d // 16) * 16
    qkv = rows(rng, m, (heads + 2 * kv_heads) * d, kind)
    cos, sin = rope_table(d, 1e4, 4096, None)
    positions = np.array([0, 1, 4095, 77, 300, 5], np.int32)
    slots = rng.permutation(blocks * page)[:m].astype(np.int64)
    norms = [(1 + 0.1 * rng.standard_normal(d)).astype(np.float32) for _ in range(2)]
    for threads in THREADS:
        keys, values = (
            np.zeros((blocks, kv_heads, d, page), np.uint16),
            np.zeros((blocks, kv_heads, page, dp), np.uint16),
        )
        out = poison(m, heads, d)
        words = (address(qkv), heads, kv_heads, d, dp, page, address(cos), address(sin),
                 *(address(n) if normed else 0 for n in norms), bits(1e-6), address(keys), address(values), address(out))  # fmt: skip
        step = {StepWord.ROWS: m, StepWord.HALF: int(dtype == "float16"), StepWord.POSITIONS: address(positions),
                StepWord.SLOTS: address(slots)}  # fmt: skip
        run(Op.ROPE_AND_CACHE, threads, *words, step=step, scratch=64 + 2 * d)
        with np.errstate(all="ignore"):
            q, k, v = np.split(qkv.reshape(m, -1, d), [heads, heads + kv_heads], axis=1)
            if normed:
                q, k = layers.norm(q, norms[0], 1e-6), layers.norm(k, norms[1], 1e-6)
            q = round16(layers.rope(q, cos[positions], sin[positions]), dtype)
            k = round16(layers.rope(k, cos[positions], sin[positions]), dtype)
        assert same_bits(out, q)
        block, offset = slots // page, slots % page
        assert same_bits(widen(keys[block, :, :, offset], dtype), k)
        assert np.array_equal(values[block, :, offset, :d], round16_bits(v, dtype))
        assert np.count_nonzero(keys) <= k.size  # nothing else was touched
        assert not values[..., d:].any()
