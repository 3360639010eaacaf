"""From logits to tokens with NumPy's own exp, log and sums. The noise is that of docs/arithmetic.md, section 6."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queueproof.kernels.host import HostRows
from queueproof.kernels.ops import F32, I32

_MASK = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def _philox(counters: NDArray[np.uint64], seed: int, position: int) -> NDArray[np.uint64]:
    """Philox4x32-10 words [n, 4] of the counters (counter, position low, position high, 0) under key `seed`."""
    c0, c1 = counters, np.full_like(counters, position & 0xFFFFFFFF)
    c2, c3 = np.full_like(counters, position >> 32), np.zeros_like(counters)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (product1 >> _32) ^ c1 ^ np.uint64(k0), product1 & _MASK
        c2, c3 = (product0 >> _32) ^ c3 ^ np.uint64(k1), product0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def gumbel_noise(vocab_size: int, seed: int, position: int) -> F32:
    """f32 [V] of Gumbel noise for the token at `position`."""
    words = _philox(np.arange(-(-vocab_size // 4), dtype=np.uint64), seed, position).ravel()[:vocab_size]
    u = ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return -np.log(-np.log(u))


def first_ranks(row: F32, k: int) -> NDArray[np.int64]:
    """Ids of the k largest values, ties by id."""
    k = min(k, row.size)
    threshold = np.partition(row, row.size - k)[row.size - k]
    candidates = np.flatnonzero(row >= threshold)
    return candidates[np.argsort(-row[candidates], kind="stable")[:k]]


class VendorRows(HostRows):
    @np.errstate(all="ignore")
    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        maximum = logits.max(axis=1)
        logz = np.log(np.exp(logits - maximum[:, None]).sum(axis=1))
        best = np.where(np.isnan(maximum), -1, logits.argmax(axis=1))
        return best.astype(np.int32), maximum, logz

    def topk(self, logits: F32, k: int) -> I32:
        rows = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        return np.stack([first_ranks(row, k) for row in rows]).astype(np.int32)

    @np.errstate(all="ignore")
    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        z = row / np.float32(temperature)
        best = int(z.argmax())
        if np.isnan(z[best]):
            return -1
        kept = np.ones(z.size, np.bool_)
        e = np.exp(z - z[best])
        if min_p > 0:
            kept &= e >= min_p
        if 0 < top_k < z.size:
            chosen = np.zeros_like(kept)
            chosen[first_ranks(z, top_k)] = True
            kept &= chosen
        kept[best] = True
        if top_p < 1:
            ids = np.flatnonzero(kept)
            ids = ids[np.argsort(-z[ids], kind="stable")]
            running = np.cumsum(e[ids])
            beyond = ids[int(np.searchsorted(running, top_p * running[-1])) + 1 :]
            kept[beyond] = False
        scores = np.where(kept, z + gumbel_noise(z.size, seed, position), np.float32(-np.inf))
        return int(scores.argmax())
