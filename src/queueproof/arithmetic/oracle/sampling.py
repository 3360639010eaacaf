"""Section 6: from a row of logits to log-probabilities, ranks and a drawn token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle.functions import exp, log
from queueproof.arithmetic.oracle.numbers import F32, I32, maximum
from queueproof.arithmetic.oracle.sums import row_sum

U32 = NDArray[np.uint32]
Kept = NDArray[np.bool_]
Nucleus = Callable[[F32, Kept, NDArray[np.int64], float], Kept]


def row_max(x: F32) -> F32:
    """Running maximum over the last axis from -inf; NaNs are passed over."""
    m = np.full(x.shape[:-1], -np.inf, np.float32)
    for column in np.moveaxis(x, -1, 0):
        m = maximum(m, column)
    return m


@np.errstate(all="ignore")
def stats(logits: F32) -> tuple[I32, F32, F32]:
    """argmax i32 [R] (-1 for a row with a NaN), max f32 [R], logz f32 [R] of logits [R, V]."""
    m = row_max(logits)
    logz = log(row_sum(exp(logits - m[:, None])))
    first = np.array([-1 if np.isnan(row).any() else ranks(row)[0] for row in logits], np.int32)
    return first, m, logz


@np.errstate(all="ignore")
def logprobs(logits: F32) -> F32:
    """(logit - m) - logz, [R, V]."""
    _, m, logz = stats(logits)
    return (logits - m[:, None]) - logz[:, None]


def ranks(row: F32) -> NDArray[np.int64]:
    """Ids of f32 [V], best first: larger logit, then smaller id. NaNs come last."""
    return np.argsort(-row, kind="stable")


def topk(logits: F32, k: int) -> I32:
    """i32 [R, k]: the ids of the first k ranks of each row."""
    return np.stack([ranks(row)[:k] for row in logits]).astype(np.int32)


def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return c0, c1, c2, c3


def noise_words(vocab_size: int, seed: int, position: int) -> U32:
    """u32 [V]: the random word of every id, for the token at `position` of the whole sequence."""
    key = (seed % (1 << 32), seed >> 32)
    low, high = position % (1 << 32), position >> 32
    words: list[int] = []
    for group in range(-(-vocab_size // 4)):
        words.extend(philox4x32_10((group, low, high, 0), key))
    return np.array(words[:vocab_size], np.uint32)


def gumbel(words: U32) -> F32:
    u = ((words >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return -log(-log(u))


def nucleus(e: F32, kept: Kept, order: NDArray[np.int64], top_p: float) -> Kept:
    """Of the ids [V] that are kept, in rank order, those of the shortest prefix with top_p of the mass; at least one."""
    enough = np.float32(top_p) * row_sum(np.where(kept, e, np.float32(0)))
    inside = np.zeros_like(kept)
    running = np.float32(0)
    for i in order[kept[order]]:
        inside[i] = True
        running = running + e[i]
        if running >= enough:
            break
    return inside


@np.errstate(all="ignore")
def sample(
    row: F32,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
    nucleus: Nucleus = nucleus,
) -> int:
    """One token of f32 [V] logits; temperature > 0; top_k 0, top_p 1 and min_p 0 switch a filter off. -1: a NaN.

    seed in [0, 2^64). Ranks are those of z = row / temperature: values that the division makes equal are tied.
    nucleus: the filter of top_p, which is another arithmetic's own.
    """
    z = row / np.float32(temperature)
    if np.isnan(z).any():
        return -1
    e = exp(z - row_max(z))
    order = ranks(z)
    kept = np.ones(row.size, np.bool_)
    if min_p > 0:
        kept &= e >= np.float32(min_p)
    if top_k > 0:
        kept[order[top_k:]] = False
    kept[order[0]] = True
    if top_p < 1:
        kept = nucleus(e, kept, order, top_p)
    z = z + gumbel(noise_words(row.size, seed, position))
    ids = np.flatnonzero(kept)
    return int(ids[np.argmax(z[ids])])
