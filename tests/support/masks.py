"""Masks of draws, at random."""

from __future__ import annotations

import numpy as np

from queueproof.kernels.ops import Masks


def masks_of(rng: np.random.Generator, rows: int, n: int) -> Masks:
    """Of some rows, in any order; bits past the vocabulary are set, too."""
    chosen = rng.permutation(rows)[: max(1, rows // 2)].astype(np.int32)
    allowed = rng.integers(0, 1 << 32, (chosen.size, -(-n // 32)), dtype=np.uint32)
    allowed &= rng.integers(0, 1 << 32, allowed.shape, dtype=np.uint32)
    allowed[:, 0] |= 1
    return Masks(chosen, allowed)
