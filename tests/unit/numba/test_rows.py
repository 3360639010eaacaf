"""Log-sum-exp, ranks and the sampler equal the oracle; functions are checked over all binades."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle import functions, sampling
from queueproof.arithmetic.oracle.numbers import round16
from queueproof.kernels.numba import math
from queueproof.kernels.numba.backend import NumbaRows
from tests.support.instructions import THREADS


@numba.njit(fastmath=False)
def _map(x, which):  # type: ignore[no-untyped-def]
    out = np.empty_like(x)
    for i in range(x.size):
        if which == 0:
            out[i] = math.exp(x[i])
        elif which == 1:
            out[i] = math.log(x[i])
        elif which == 2:
            out[i] = math.silu(x[i])
        elif which == 3:
            out[i] = math.bf16(x[i])
        else:
            out[i] = math.f16(x[i])
    return out


def test_functions_on_every_257th_pattern() -> None:
    x = np.arange(0, 1 << 32, 257, dtype=np.uint32).view(np.float32)
    for part in np.array_split(x, 16):
        with np.errstate(all="ignore"):
            assert same_bits(_map(part, 0), functions.exp(part))
            assert same_bits(_map(part, 1), functions.log(part))
            assert same_bits(_map(part, 2), functions.silu(part))
            assert same_bits(_map(part, 3), round16(part, "bfloat16"))
            assert same_bits(_map(part, 4), round16(part, "float16"))


def logits(rng: np.random.Generator, rows: int, n: int, kind: str) -> np.ndarray:
    x = (rng.standard_normal((rows, n)) * 5).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    if kind == "zeros":
        x = rng.choice(np.array([0.0, -0.0, -1.0], np.float32), (rows, n))
    if kind == "infinite":
        x[:, ::7] = -np.inf
        x[0, n // 2] = np.inf
    if kind == "nan":
        x[rows // 2, n // 3] = np.nan
    if kind == "huge":
        x *= np.float32(1e30)
    return x


KINDS = ("normal", "ties", "zeros", "infinite", "nan", "huge")


@pytest.mark.parametrize("kind", KINDS)
def test_stats(kind: str) -> None:
    rng = np.random.default_rng(0)
    for rows, n in ((1, 1), (3, 63), (2, 64), (1, 65), (5, 4095), (2, 4097), (7, 49152)):
        x = logits(rng, rows, n, kind)
        with np.errstate(all="ignore"):
            arg, top, logz = sampling.stats(x)
        finite = arg >= 0  # of a row without a token nothing else is promised
        for threads in THREADS:
            a, m, z = NumbaRows(threads).stats(x)
            assert np.array_equal(a, arg)
            assert same_bits(m[finite], top[finite])
            assert same_bits(z[finite], logz[finite])


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "infinite", "huge"])
def test_topk(kind: str) -> None:
    rng = np.random.default_rng(1)
    x = logits(rng, 3, 1000, kind)
    for k in (1, 2, 20, 256, 257, 1000):
        assert np.array_equal(NumbaRows(1).topk(x, k), sampling.topk(x, k)), k


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "infinite", "nan"])
def test_sample(kind: str) -> None:
    rng = np.random.default_rng(2)
    rows = NumbaRows(1)
    seen = set()
    for trial in range(150):
        n = int(rng.choice([1, 2, 50, 1000]))
        x = logits(rng, 1, n, kind)[0]
        t = float(rng.choice([0.1, 0.7, 1.0, 1.7, 5.0]))
        top_k = int(rng.choice([0, 0, 1, 5, n, 300]))
        top_p, min_p = float(rng.choice([1.0, 1.0, 0.9, 0.5, 0.01])), float(rng.choice([0.0, 0.0, 0.05, 0.9, 1.0]))
        seed, position = int(rng.integers(0, 1 << 64, dtype=np.uint64)), int(rng.integers(0, 1 << 20))
        with np.errstate(all="ignore"):
            want = sampling.sample(x, t, top_k, top_p, min_p, seed, position)
        assert rows.sample(x, t, top_k, top_p, min_p, seed, position) == want, (trial, n, t, top_k, top_p, min_p)
        seen.add(want)
    assert len(seen) > 1 or kind == "nan"


def test_sampling_follows_the_probabilities() -> None:
    """Chi-square-like check: 20,000 draws of 5 tokens lie within 5 standard deviations of softmax."""
    x = np.log(np.array([0.5, 0.25, 0.125, 0.1, 0.025], np.float32))
    rows = NumbaRows(1)
    draws = np.bincount([rows.sample(x, 1.0, 0, 1.0, 0.0, 9, i) for i in range(20_000)], minlength=5) / 20_000
    p = np.exp(x)
    assert np.all(np.abs(draws - p) < 5 * np.sqrt(p * (1 - p) / 20_000))
