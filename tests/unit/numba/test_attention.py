"""Paged attention equals the oracle bit for bit: lengths around blocks and splits, pages, tiles, split tasks, windows."""

from __future__ import annotations

import numpy as np
import pytest

from queueproof.arithmetic.bits import round16
from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.ieee1 import KEY_BLOCK, KEY_SPLIT
from queueproof.arithmetic.oracle.attention import attention as oracle
from tests.support.instructions import THREADS, attention

DTYPES = ("bfloat16", "float16")


class Case:
    """Sequences in a shuffled pool; the last `queries[s]` positions of sequence s are asked for."""

    def __init__(self, seed: int, lengths: list[int], queries: list[int], heads: int, kv_heads: int, d: int, page: int,
                 dtype: str, kind: str = "normal") -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.lengths, self.queries, self.page, self.dtype = lengths, queries, page, dtype
        width = max(-(-n // page) for n in lengths)
        blocks = sum(-(-n // page) for n in lengths) + 2
        order = iter(rng.permutation(blocks))
        self.tables = np.full((len(lengths), width), -1, np.int32)
        slots = blocks * page
        # what no sequence wrote is NaN: reading it shows
        self.k, self.v = (np.full((slots, kv_heads, d), np.nan, np.float32) for _ in range(2))
        self.slot_of = []
        for s, n in enumerate(lengths):
            for j in range(-(-n // page)):
                self.tables[s, j] = next(order)
            p = np.arange(n)
            slot = self.tables[s, p // page].astype(np.int64) * page + p % page
            self.slot_of.append(slot)
            self.k[slot] = self._values(rng, (n, kv_heads, d), kind)
            self.v[slot] = self._values(rng, (n, kv_heads, d), kind)
        self.q = self._values(rng, (sum(queries), heads, d), kind)
        self.positions = np.concatenate([np.arange(n - m, n) for n, m in zip(lengths, queries, strict=True)])
        self.starts = np.concatenate([[0], np.cumsum(queries)])

    def _values(self, rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
        x = rng.standard_normal(shape).astype(np.float32)
        if kind == "sharp":  # scores far apart: most weights underflow
            x *= np.float32(30)
        if kind == "zeros":
            x = rng.choice(np.array([0.0, -0.0], np.float32), shape)
        if kind == "infinite":
            x[rng.random(shape) < 0.01] = np.inf
            x[rng.random(shape) < 0.01] = np.nan
        if kind == "tiny":
            x *= np.float32(2.0**-75 if self.dtype == "bfloat16" else 2.0**-12)
        return round16(x, self.dtype)

    def want(self, window: int | None) -> np.ndarray:
        out = np.empty_like(self.q)
        with np.errstate(all="ignore"):
            for s, slot in enumerate(self.slot_of):
                part = slice(self.starts[s], self.starts[s + 1])
                out[part] = oracle(self.q[part], self.k[slot], self.v[slot], self.positions[part], window, self.dtype)
        return out

    def tasks(self, tile: int, split: bool) -> list[tuple[int, ...]]:
        rows, slot = [], 0
        for s, (n, m) in enumerate(zip(self.lengths, self.queries, strict=True)):
            splits = -(-n // KEY_SPLIT)
            if split and m <= tile:
                rows += [(s, 0, m, i, i + 1, slot + i, splits - 1 if i == 0 else -1) for i in range(splits)]
                slot += splits
            else:
                for q0 in range(0, m, tile):
                    q1 = min(m, q0 + tile)
                    rows.append((s, q0, q1, 0, -(-(n - m + q1) // KEY_SPLIT), -1, -1))
        return rows

    def got(self, window: int | None, threads: int, tile: int, split: bool) -> np.ndarray:
        half = int(self.dtype == "float16")
        return attention(self.q, self.k, self.v, self.positions, self.starts, self.tables, self.page, window, half,
                         threads, self.tasks(tile, split))  # fmt: skip


EDGES = [1, 2, 15, 16, 17, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, 2 * KEY_BLOCK, KEY_SPLIT - 1, KEY_SPLIT, KEY_SPLIT + 1,
         2 * KEY_SPLIT - 1, 2 * KEY_SPLIT, 2 * KEY_SPLIT + 1]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [16, 48, 64, 128])
def test_decode_at_every_edge(page: int, dtype: str) -> None:
    case = Case(0, EDGES, [1] * len(EDGES), 4, 2, 16, page, dtype)
    want = case.want(None)
    for threads in THREADS:
        for split in (False, True):
            assert same_bits(case.got(None, threads, 8, split), want), (threads, split)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 2, 16), (3, 1, 24), (9, 3, 64), (2, 2, 40), (7, 1, 16)])
def test_prefill_and_mixtures(heads: int, kv_heads: int, d: int, dtype: str) -> None:
    lengths, queries = [1, 65, 130, 700, 530], [1, 65, 1, 3, 40]
    case = Case(1, lengths, queries, heads, kv_heads, d, 16, dtype)
    want = case.want(None)
    for tile in (1, 5, 48 // (heads // kv_heads)):
        for split in (False, True):
            assert same_bits(case.got(None, 2, tile, split), want), (tile, split)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 63, 64, 65, 200, 511, 512, 513, 5000])
def test_sliding_window(window: int) -> None:
    case = Case(2, [1, 64, 66, 600, 1100], [1, 1, 66, 30, 2], 4, 2, 16, 32, "bfloat16")
    want = case.want(window)
    for tile, split in ((1, False), (24, False), (24, True)):
        assert same_bits(case.got(window, 2, tile, split), want), (tile, split)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["sharp", "zeros", "infinite", "tiny"])
def test_adversarial_values(kind: str, dtype: str) -> None:
    case = Case(3, [3, 64, 100, 600], [3, 2, 1, 70], 4, 2, 32, 16, dtype, kind)
    want = case.want(None)
    for tile, split in ((1, True), (24, True), (24, False)):
        assert same_bits(case.got(None, 2, tile, split), want), (tile, split)


def test_a_later_key_cannot_reach_an_earlier_query() -> None:
    """An infinite value at the last position, in the same tile and block: earlier rows keep their bits."""
    case = Case(4, [50], [50], 2, 1, 16, 16, "bfloat16")
    before = case.got(None, 1, 24, False)
    case.v[case.slot_of[0][-1]] = np.inf
    case.k[case.slot_of[0][-1]] = np.nan
    after = case.got(None, 1, 24, False)
    assert same_bits(before[:-1], after[:-1])
    assert not same_bits(before[-1], after[-1])


def test_plain_softmax_is_noticed() -> None:
    """Negative control: the textbook formula in f32 over the whole row gives other bits."""
    case = Case(5, [600], [20], 4, 2, 16, 16, "bfloat16")
    k, v = (np.repeat(x[case.slot_of[0]], 2, axis=1) for x in (case.k, case.v))
    s = np.einsum("qhd,khd->qhk", case.q, k) / np.float32(4)
    s = np.where(np.arange(600) > case.positions[:, None, None], -np.inf, s)
    p = np.exp(s - s.max(-1, keepdims=True))
    plain = round16(np.einsum("qhk,khd->qhd", p / p.sum(-1, keepdims=True), v).astype(np.float32), "bfloat16")
    ours = case.got(None, 2, 24, False)
    assert np.allclose(plain, ours, atol=0.02)
    assert not same_bits(plain, ours)
