"""Attention derived again: one query, one head, one scalar at a time."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueproof.arithmetic.diff import same_bits
from queueproof.arithmetic.oracle.attention import attention
from queueproof.arithmetic.oracle.functions import exp
from queueproof.arithmetic.oracle.numbers import fma, round16

Dtype = Literal["bfloat16", "float16"]
ZERO = np.float32(0)


@np.errstate(all="ignore")
def one_query(q: np.ndarray, k: np.ndarray, v: np.ndarray, p: int, window: int | None, dtype: Dtype) -> np.ndarray:
    """o [D] of q [D] at position p over k, v [L, D], as section 5 tells it."""
    d_size = len(q)
    first = 0 if window is None else max(0, p - window + 1)
    scale = np.float32(1 / np.sqrt(np.float64(d_size)))
    total = None
    for split in range(first // 512, p // 512 + 1):
        m, l, acc = np.float32(-np.inf), ZERO, [ZERO] * d_size  # noqa: E741
        for block in range(split * 8, split * 8 + 8):
            js = [j for j in range(block * 64, block * 64 + 64) if first <= j <= p]
            if not js:
                continue
            s = {}
            for j in js:
                score = ZERO
                for d in range(d_size):
                    score = fma(q[d], k[j, d], score)
                s[j] = score * scale
            m_new = m
            for j in js:
                m_new = s[j] if s[j] > m_new else m_new
            a = exp(m - m_new)
            weights = [
                round16(exp(s[j] - m_new), dtype) if j in s else ZERO for j in range(block * 64, block * 64 + 64)
            ]
            n, tree = 64, weights
            while n > 1:
                n //= 2
                tree = [tree[i] + tree[i + n] for i in range(n)]
            l = l * a + tree[0]  # noqa: E741
            for d in range(d_size):
                out = ZERO
                for j in js:
                    out = fma(weights[j - block * 64], v[j, d], out)
                acc[d] = acc[d] * a + out
            m = m_new
        if total is None:
            total = m, l, acc
        else:
            big_m, big_l, big_a = total
            m_new = m if m > big_m else big_m
            a, b = exp(big_m - m_new), exp(m - m_new)
            total = m_new, big_l * a + l * b, [x * a + y * b for x, y in zip(big_a, acc, strict=True)]
    assert total is not None
    return np.array([round16(x / total[1] + ZERO, dtype) for x in total[2]], np.float32)


def draw(seed: int, length: int, heads: int, kv_heads: int, d: int, dtype: Dtype) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    shapes = (length, heads, d), (length, kv_heads, d), (length, kv_heads, d)
    return tuple(round16(rng.standard_normal(s, dtype=np.float32) * np.float32(2), dtype) for s in shapes)


@pytest.mark.parametrize(
    ("position", "window", "dtype"),
    [
        (0, None, "bfloat16"),
        (62, None, "bfloat16"),
        (63, None, "float16"),
        (64, None, "bfloat16"),
        (130, 1, "bfloat16"),
        (130, 64, "float16"),
        (130, 65, "bfloat16"),
        (512, 1, "bfloat16"),
        (600, None, "bfloat16"),
        (600, 100, "bfloat16"),
        (600, 88, "bfloat16"),
        (600, 89, "bfloat16"),
    ],
)
def test_equals_the_scalar_version(position: int, window: int | None, dtype: Dtype) -> None:
    q, k, v = draw(position, position + 1, 4, 2, 2, dtype)
    positions = np.array([position], np.int32)
    got = attention(q[-1:], k, v, positions, window, dtype)[0]
    for head in range(4):
        assert same_bits(got[head], one_query(q[-1, head], k[:, head // 2], v[:, head // 2], position, window, dtype))


def test_is_softmax_attention() -> None:
    q, k, v = draw(3, 700, 1, 1, 16, "float16")
    got = attention(q[-1:], k, v, np.array([699], np.int32), None, "float16")[0, 0]
    scores = k[:, 0].astype(np.float64) @ q[-1, 0] / 4
    weights = np.exp(scores - scores.max())
    np.testing.assert_allclose(got, weights @ v[:, 0] / weights.sum(), atol=4e-3)


@pytest.mark.parametrize(
    "case", ["inf key", "nan key", "inf value", "zeros", "minus zeros", "huge scores", "lost scores"]
)
def test_special_values(case: str) -> None:
    q, k, v = (x.copy() for x in draw(9, 70, 1, 1, 2, "bfloat16"))
    if case == "inf key":
        k[3] = np.inf
    elif case == "nan key":
        k[66] = np.nan
    elif case == "inf value":
        v[10] = -np.inf
    elif case == "zeros":
        q[:], k[:] = 0, 0
    elif case == "minus zeros":
        v[:] = -0.0
    elif case == "huge scores":
        k *= np.float32(2.0**100)
    else:  # every score -inf: exp(-inf - -inf) is a NaN, and stays one
        q[:], k[:] = 1, -np.inf
    positions = np.arange(70, dtype=np.int32)
    got = attention(q, k, v, positions, None, "bfloat16")
    for p in (0, 3, 9, 10, 63, 64, 65, 66, 69):
        assert same_bits(got[p, 0], one_query(q[p, 0], k[:, 0], v[:, 0], p, None, "bfloat16")), p
    if case == "minus zeros":
        assert not np.signbit(got).any()


def test_keys_that_a_query_may_not_see_do_not_exist() -> None:
    q, k, v = draw(4, 140, 2, 1, 4, "bfloat16")
    position = np.array([100], np.int32)
    expected = attention(q[100:101], k, v, position, 50, "bfloat16")
    for poison in (np.nan, np.inf):
        for hidden in (slice(0, 51), slice(101, None)):
            k2, v2 = k.copy(), v.copy()
            k2[hidden], v2[hidden] = poison, poison
            assert same_bits(expected, attention(q[100:101], k2, v2, position, 50, "bfloat16"))


@given(
    st.integers(1, 200),
    st.lists(st.integers(1, 40), max_size=8),
    st.one_of(st.none(), st.integers(1, 150)),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=25)
def test_any_chunks_give_the_same_bits(length: int, chunks: list[int], window: int | None, seed: int) -> None:
    q, k, v = draw(seed, length, 2, 1, 4, "bfloat16")
    positions = np.arange(length, dtype=np.int32)
    whole = attention(q, k, v, positions, window, "bfloat16")
    start = 0
    for size in [*chunks, length]:
        stop = min(start + size, length)
        if start < stop:  # keys past the chunk do not exist yet
            part = attention(q[start:stop], k[:stop], v[:stop], positions[start:stop], window, "bfloat16")
            assert same_bits(part, whole[start:stop])
        start = stop
