"""The vendor baseline computes the same model as the oracle, to the accuracy of 16-bit activations, and no better.

It is also the negative control of the invariance tests: what `ieee/1` must keep, this backend is seen to change.
"""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.bits import Dtype, round16_bits
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import numbers, sampling
from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.contract.errors import EngineError
from queueproof.kernels.registry import backend
from queueproof.kernels.vendor.backend import VendorBackend
from queueproof.kernels.vendor.ops import VendorOps
from queueproof.kernels.vendor.rounding import rounder
from queueproof.kernels.vendor.rows import VendorRows, gumbel_noise
from tests.support.tiny import Sequence, TinyConfig, build, limits, step

CONFIGS = [
    TinyConfig(),
    TinyConfig(seed=1, dtype="float16", bias=True),
    TinyConfig(seed=2, qk_norm=True, tied=False),
    TinyConfig(seed=3, window=20, heads=2, kv_heads=2),
]
NAMES = ["plain", "bias-f16", "qk-norm-untied", "window"]


def run(any_backend: object, config: TinyConfig, lengths: list[int], chunk: int | None = None) -> list[np.ndarray]:
    """Logits [n, V] of sequences of these lengths, side by side: in one step, or at most `chunk` tokens of each."""
    rng = np.random.default_rng(11)
    free = rng.permutation(96).tolist()
    sequences = []
    for n in lengths:
        need = -(-n // 16)
        sequences.append(Sequence(rng.integers(0, 97, n).tolist(), [free.pop() for _ in range(need)]))
    executor = any_backend.executor(build(any_backend, config), limits(), threads=1)  # type: ignore[attr-defined]
    out: list[list[np.ndarray]] = [[] for _ in sequences]
    while any(s.done < len(s.ids) for s in sequences):
        active = [s for s in sequences if s.done < len(s.ids)]
        batch = step([(s, min(chunk or len(s.ids), len(s.ids) - s.done)) for s in active], 16)
        executor.forward(batch)
        logits = executor.logits(np.arange(len(batch.token_ids), dtype=np.int32))
        for row, s in enumerate(active):
            out[sequences.index(s)].append(logits[batch.query_start[row] : batch.query_start[row + 1]].copy())
    executor.close()
    return [np.concatenate(parts) for parts in out]


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()))


@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_agrees_with_the_oracle(config: TinyConfig, chunk: int | None) -> None:
    lengths = [70, 1, 33, 17, 48]
    bound = 0.02 if config.dtype == "bfloat16" else 0.003  # a few units of 2^-8 or 2^-11
    expected = run(OracleBackend(), config, lengths)
    for got, exact in zip(run(VendorBackend(), config, lengths, chunk), expected, strict=True):
        assert got.dtype == np.float32 and got.shape == exact.shape
        assert relative_error(got, exact) < bound


def test_a_row_of_a_product_changes_with_the_rows_beside_it() -> None:
    """The negative control. Should it fail, NumPy's BLAS on this machine has become batch-invariant: say so, loudly."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1024, 2048), np.float32) / np.float32(45)
    matrix = VendorBackend().packer("bfloat16").matrix(1024, 2048, [round16_bits(values, "bfloat16")])
    x = numbers.round16(rng.standard_normal((24, 2048), np.float32), "bfloat16")
    ops = VendorOps(build(VendorBackend(), TinyConfig()), limits())
    together = ops.linear(x, matrix)
    alone = np.concatenate([ops.linear(x[i : i + 1], matrix) for i in range(24)])
    assert not same_bits(together, alone)
    np.testing.assert_allclose(together, alone, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_equals_the_definition(dtype: Dtype) -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint32)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        assert same_bits(rounder(dtype)(x.copy()), numbers.round16(x, dtype))
        specials = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0], np.float32)
        assert same_bits(rounder(dtype)(specials.copy()), specials)


def test_noise_is_that_of_the_definition() -> None:
    for seed, position in ((0, 0), (2**64 - 1, 2**40 + 5), (1234567, 77)):
        exact = sampling.gumbel(sampling.noise_words(1003, seed, position))
        np.testing.assert_allclose(gumbel_noise(1003, seed, position), exact, rtol=1e-5, atol=1e-6)


def test_rows_agree_with_the_oracle() -> None:
    rng = np.random.default_rng(6)
    rows = VendorRows()
    logits = np.round(rng.standard_normal((5, 400)) * 6).astype(np.float32) / 4  # with many ties
    best, maximum, logz = rows.stats(logits)
    exact = sampling.stats(logits)
    assert same_bits(best, exact[0]) and same_bits(maximum, exact[1])
    np.testing.assert_allclose(logz, exact[2], rtol=1e-6)
    for k in (1, 3, 50, 400):
        assert same_bits(rows.topk(logits, k), sampling.topk(logits, k))
    nan = logits.copy()
    nan[2, 5] = np.nan
    assert rows.stats(nan)[0][2] == -1
    assert rows.sample(nan[2], 1.0, 0, 1.0, 0.0, 1, 1) == -1


@pytest.mark.parametrize(
    "options", [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1), (0.9, 20, 0.9, 0.05)]
)
def test_samples_like_the_oracle(options: tuple[float, int, float, float]) -> None:
    rng = np.random.default_rng(8)
    logits = (rng.standard_normal((60, 200)) * 2).astype(np.float32)
    got = [VendorRows().sample(row, *options, seed=i, position=i * 3) for i, row in enumerate(logits)]
    exact = [sampling.sample(row, *options, seed=i, position=i * 3) for i, row in enumerate(logits)]
    assert got == exact, "rounding may part them at a near tie; no such tie is among these seeds"


def test_the_registry_and_the_end_of_an_executor() -> None:
    vendor = backend("vendor")
    assert isinstance(vendor, VendorBackend)
    model = build(vendor, TinyConfig())
    assert vendor.kv_bytes_per_token(model.kv_shape) == 2 * 2 * 2 * 16 * 4
    vendor.warm_up()
    executor = vendor.executor(model, limits(), threads=1)
    with pytest.raises(EngineError, match="before the first forward"):
        executor.logits(np.zeros(1, np.int32))
    executor.close()
    executor.close()
    with pytest.raises(EngineError, match="closed"):
        executor.forward(step([(Sequence([1], [0]), 1)], 16))
    with pytest.raises(ValueError, match="1 rows, the matrix 2"):
        vendor.packer("bfloat16").matrix(2, 4, [np.zeros((1, 4), np.uint16)])
