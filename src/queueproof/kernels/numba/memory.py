"""Memory for weights, near each other and in huge pages where the system has them.

A matrix of a megabyte would otherwise lie on 300 pages of its own, and a step that reads all weights would wait for their
addresses as well. NumPy asks the system for huge pages for what is as large as a piece here.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes of a cache line
_PIECE = 64 << 20
_HUGE = 2 << 20


def aligned(n: int, dtype: type[np.generic], boundary: int = LINE) -> NDArray[np.generic]:
    """n zeros on a boundary of so many bytes."""
    size = np.dtype(dtype).itemsize
    raw = np.zeros(n * size + boundary, np.uint8)
    start = -raw.ctypes.data % boundary
    return raw[start : start + n * size].view(dtype)


class Arena:
    """Hands out parts of large pieces. A piece lives as long as any part of it, or until it is full and all are gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._piece: NDArray[np.generic] = np.zeros(0, np.uint8)

    def zeros(self, n: int) -> NDArray[np.uint16]:
        """u16 [n] on a cache line, zero."""
        size = -(-2 * n // LINE) * LINE
        if size > _PIECE // 2:
            return aligned(n, np.uint16, _HUGE)  # type: ignore[return-value]
        with self._lock:
            if size > self._piece.size:
                self._piece = aligned(_PIECE, np.uint8, _HUGE)
            part, self._piece = self._piece[: 2 * n], self._piece[size:]
        return part.view(np.uint16)
