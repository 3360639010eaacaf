"""PyTorch's kernels compute the same model as the oracle, to 16-bit accuracy. On a card if there is one, else on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from queueproof.arithmetic.oracle.backend import OracleBackend
from queueproof.contract.errors import EngineError
from queueproof.kernels.ops import DrawBatch, Edits, Masks
from tests.support.tiny import Sequence, TinyConfig, build, limits, step

torch = pytest.importorskip("torch", reason="torch is not installed")

from queueproof.kernels.vendor.cuda import CudaVendorBackend  # noqa: E402
from queueproof.kernels.vendor.cuda_rows import CudaVendorRows  # noqa: E402
from queueproof.kernels.vendor.rows import VendorRows  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIGS = [
    TinyConfig(),
    TinyConfig(seed=1, dtype="float16", bias=True),
    TinyConfig(seed=2, qk_norm=True, tied=False),
    TinyConfig(seed=3, window=20, heads=2, kv_heads=2),
]
NAMES = ["plain", "bias-f16", "qk-norm-untied", "window"]


def run(backend: Any, config: TinyConfig, lengths: list[int], chunk: int | None = None) -> list[np.ndarray]:
    """Logits [n, V] of sequences of these lengths, side by side: in one step, or at most `chunk` tokens of each."""
    rng = np.random.default_rng(11)
    free = rng.permutation(96).tolist()
    sequences = [Sequence(rng.integers(0, 97, n).tolist(), [free.pop() for _ in range(-(-n // 16))]) for n in lengths]
    executor, rows = backend.executor(build(backend, config), limits(), threads=1), backend.rows(1)
    out: list[list[np.ndarray]] = [[] for _ in sequences]
    while any(s.done < len(s.ids) for s in sequences):
        active = [s for s in sequences if s.done < len(s.ids)]
        batch = step([(s, min(chunk or len(s.ids), len(s.ids) - s.done)) for s in active], 16)
        executor.forward(batch)
        logits = rows.host(executor.logits(np.arange(len(batch.token_ids), dtype=np.int32)))
        for row, s in enumerate(active):
            out[sequences.index(s)].append(logits[batch.query_start[row] : batch.query_start[row + 1]].copy())
    executor.close()
    return [np.concatenate(parts) for parts in out]


@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_agrees_with_the_oracle(config: TinyConfig, chunk: int | None) -> None:
    lengths = [70, 1, 33, 17, 48]
    bound = 0.02 if config.dtype == "bfloat16" else 0.003  # a few units of 2^-8 or 2^-11
    expected = run(OracleBackend(), config, lengths)
    for got, exact in zip(run(CudaVendorBackend(DEVICE), config, lengths, chunk), expected, strict=True):
        assert got.dtype == np.float32 and got.shape == exact.shape
        assert np.sqrt(((got - exact) ** 2).mean() / (exact**2).mean()) < bound


def draws(n: int, **changes: Any) -> DrawBatch:
    values: dict[str, Any] = {
        "tokens": np.full(n, -1, np.int32),
        "temperature": np.zeros(n, np.float32),
        "top_k": np.zeros(n, np.int32),
        "top_p": np.ones(n, np.float32),
        "min_p": np.zeros(n, np.float32),
        "seed": np.arange(n, dtype=np.uint64),
        "position": np.arange(n, dtype=np.int64),
    }
    return DrawBatch(**(values | changes))


EDITS = Edits(*(np.array([v]) for v in (1, 5)), *(np.array([v], np.float32) for v in (9, 1, 0, 0)), np.array([False]))  # fmt: skip
MASKS = Masks(np.array([3, 1], np.int32), np.array([[8, 0, 1, 0], [1 << 31, 5, 0, 1]], np.uint32))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top": 3},
        {"tokens": np.array([3, -1, 7, 96], np.int32), "top": 0},
        {"temperature": np.array([0, 0.7, 1, 0], np.float32), "top_k": np.full(4, 20, np.int32), "top": 2},
        {"temperature": np.ones(4, np.float32), "tokens": np.array([-1, 5, -1, -1], np.int32)},
        {"edits": EDITS},
        {"masks": MASKS, "temperature": np.array([0, 0.7, 1, 0], np.float32), "top_k": np.full(4, 20, np.int32)},
        {"edits": EDITS, "masks": MASKS, "top": 1},
    ],
    ids=["greedy", "top", "scored", "top-k", "sampled", "edited", "masked", "edited and masked"],
)
def test_draws_like_numpy(changes: dict[str, Any]) -> None:
    logits = np.round(np.random.default_rng(5).standard_normal((4, 97)) * 4).astype(np.float32) / 4  # with ties
    batch = draws(4, **changes)
    got = CudaVendorRows().draw(torch.from_numpy(logits).to(DEVICE), batch).result()
    exact = VendorRows().draw(logits, batch).result()
    assert got.tokens.tolist() == exact.tokens.tolist()
    np.testing.assert_allclose(got.logprobs, exact.logprobs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.lse, exact.lse, rtol=1e-6)
    if batch.top is None:
        assert got.ranks is None and got.top_ids is None and got.top_logprobs is None
    else:
        assert got.ranks is not None and got.top_logprobs is not None
        assert exact.ranks is not None and exact.top_logprobs is not None
        assert got.ranks.tolist() == exact.ranks.tolist()
        np.testing.assert_allclose(got.top_logprobs, exact.top_logprobs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1), (0.9, 20, 0.9, 0.05)]
)
def test_samples_like_numpy(options: tuple[float, int, float, float]) -> None:
    logits = (np.random.default_rng(8).standard_normal((60, 203)) * 2).astype(np.float32)
    names, kinds = ("temperature", "top_k", "top_p", "min_p"), (np.float32, np.int32, np.float32, np.float32)
    filters = {n: np.full(60, v, k) for n, v, k in zip(names, options, kinds, strict=True)}
    seeds = np.arange(60, dtype=np.uint64) * np.uint64(2**58 + 12345)
    batch = draws(60, seed=seeds, position=np.arange(60, dtype=np.int64) * 2**31, **filters)
    got = CudaVendorRows().draw(torch.from_numpy(logits).to(DEVICE), batch).result()
    # Rounding may part them at a near tie; no such tie is among these seeds.
    assert got.tokens.tolist() == VendorRows().draw(logits, batch).result().tokens.tolist()
    assert len(set(got.tokens.tolist())) > 10


def test_a_nan_has_no_token() -> None:
    logits = torch.zeros((2, 8), device=DEVICE)
    logits[1, 3] = float("nan")
    assert CudaVendorRows().draw(logits, draws(2)).result().tokens.tolist() == [0, -1]


def test_the_end_of_an_executor() -> None:
    vendor = CudaVendorBackend(DEVICE)
    model = build(vendor, TinyConfig())
    assert vendor.kv_bytes_per_token(model.kv_shape) == 2 * 2 * 2 * 16 * 2
    assert vendor.defaults().kv_cache_memory > 0
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
