"""Section 4: the two sums of section 6 of `ieee/1` that are sums of integers here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle import sampling
from queueproof.arithmetic.oracle.functions import exp, log
from queueproof.arithmetic.oracle.numbers import F32, I32
from queueproof.arithmetic.oracle.sampling import Kept
from queueproof.arithmetic.oracle.tensorcore.sums import quantised, value


@np.errstate(all="ignore")
def stats(logits: F32) -> tuple[I32, F32, F32]:
    """argmax i32 [R] (-1 for a row with a NaN), max f32 [R], logz f32 [R] of logits [R, V]."""
    m = sampling.row_max(logits)
    logz = log(value(quantised(exp(logits - m[:, None])).sum(axis=-1)))
    logz[np.isinf(m)] = np.nan
    first = np.array([-1 if np.isnan(row).any() else sampling.ranks(row)[0] for row in logits], np.int32)
    return first, m, logz


def nucleus(e: F32, kept: Kept, order: NDArray[np.int64], top_p: float) -> Kept:
    """Of the ids [V] that are kept, in rank order, those of the shortest prefix with top_p of the mass; at least one."""
    q = quantised(e)
    enough = np.float64(np.float32(top_p)) * np.float64(q[kept].sum())
    inside = np.zeros_like(kept)
    running = 0
    for i in order[kept[order]]:
        inside[i] = True
        running += int(q[i])
        if np.float64(running) >= enough:
            break
    return inside


def sample(row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int) -> int:
    """One token of f32 [V] logits, as `sample` of `ieee/1` but for the nucleus."""
    return sampling.sample(row, temperature, top_k, top_p, min_p, seed, position, nucleus)
