"""Draws of whole batches on the host against the oracle's, row by row: ids, bits of log-probabilities, ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle.rows import OracleRows
from queueproof.kernels.numba.backend import NumbaRows
from queueproof.kernels.ops import F32, DrawBatch, Edits
from queueproof.kernels.vendor.rows import VendorRows
from tests.support.masks import masks_of


def logits_of(rng: np.random.Generator, rows: int, n: int) -> F32:
    x = (rng.standard_normal((rows, n)) * 4).astype(np.float32)
    x[:, :: max(1, n // 5)] = np.round(x[:, :: max(1, n // 5)])  # ties
    if rows > 2:
        x[1, n // 2] = np.nan
        x[2, 0] = -np.inf
    return x


def edits_of(rng: np.random.Generator, rows: int, n: int) -> Edits:
    """Some pairs in some rows, in any order; row 0 has none."""
    pairs = [(r, i) for r in range(1, rows) if r % 3 for i in rng.permutation(n)[: min(n, 9)].tolist()]
    pairs = [pairs[i] for i in rng.permutation(len(pairs))]
    number, ids = (np.array(column, np.int32) for column in zip(*pairs, strict=True))

    def values(*choices: float) -> F32:
        return rng.choice(np.array(choices, np.float32), ids.size)

    banned = rng.random(ids.size) < 0.2
    return Edits(number, ids, values(0, 2.5, -100), values(1, 1.3, 0.5), values(0, 0.6, -1), values(0, 0.7), banned)


def batch_of(rng: np.random.Generator, rows: int, n: int, top: int | None, edits: Edits | None) -> DrawBatch:
    return DrawBatch(
        tokens=np.where(rng.random(rows) < 0.3, rng.integers(0, n, rows), -1).astype(np.int32),
        temperature=rng.choice(np.array([0, 0, 0.7, 1.5], np.float32), rows),
        top_k=rng.choice(np.array([0, 1, 5], np.int32), rows),
        top_p=rng.choice(np.array([1, 0.9, 0.2], np.float32), rows),
        min_p=rng.choice(np.array([0, 0.05], np.float32), rows),
        seed=rng.integers(0, 1 << 64, rows, np.uint64),
        position=rng.integers(0, 1 << 33, rows),
        top=top,
        edits=edits,
    )


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize(("rows", "n", "top"), [(1, 1, None), (3, 65, 0), (7, 300, 3), (9, 50, 50), (12, 97, None)])
def test_the_kernels_draw_as_the_oracle_does(rows: int, n: int, top: int | None, edited: bool) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = logits_of(rng, rows, n)
        batch = batch_of(rng, rows, n, top, edits_of(rng, rows, n) if edited and rows > 1 else None)
        batch.masks = masks_of(rng, rows, n) if edited or seed % 2 else None
        original = x.copy()
        want, got = OracleRows().draw(x, batch), NumbaRows(2).draw(x, batch).result()
        assert same_bits(x, original)
        assert got.tokens.dtype == np.int32 and np.array_equal(got.tokens, want.tokens)
        known = want.tokens >= 0  # of a row without a token nothing else is promised
        assert same_bits(got.logprobs[known], want.logprobs[known]) and same_bits(got.lse[known], want.lse[known])
        if top is None:
            assert got.ranks is got.top_ids is got.top_logprobs is None
            continue
        reports: Any = ((got.ranks, want.ranks), (got.top_ids, want.top_ids), (got.top_logprobs, want.top_logprobs))
        for mine, other in reports:
            assert mine.dtype == other.dtype and mine.shape == other.shape
            assert np.array_equal(mine[known], other[known])


def test_a_row_with_a_nan_has_no_token_to_draw_or_score() -> None:
    x = logits_of(np.random.default_rng(0), 3, 50)
    for score in (-1, 7):
        batch = batch_of(np.random.default_rng(1), 3, 50, 2, None)
        batch.tokens[:] = score
        for rows in (NumbaRows(1), VendorRows(), OracleRows()):
            assert (rows.draw(x, batch).result().tokens < 0).tolist() == [False, True, False]


def test_the_vendor_draws_the_same_up_to_its_own_rounding() -> None:
    rng = np.random.default_rng(2)
    x = logits_of(rng, 7, 300)
    batch = batch_of(rng, 7, 300, 4, edits_of(rng, 7, 300))
    want, got = OracleRows().draw(x, batch), VendorRows().draw(x, batch).result()
    known = want.tokens >= 0
    assert np.array_equal(got.tokens, want.tokens) and np.array_equal(got.top_ids[known], want.top_ids[known])  # type: ignore[index]
    assert np.allclose(got.logprobs[known], want.logprobs[known], atol=1e-5)


def test_host_gives_a_copy() -> None:
    x = np.ones((2, 3), np.float32)
    for rows in (NumbaRows(1), OracleRows()):
        copy = rows.host(x)
        copy[:] = 0
        assert x.all() and copy.shape == x.shape
