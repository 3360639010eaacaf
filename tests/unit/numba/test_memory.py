"""Memory for weights: zero, on cache lines, and nobody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from queueproof.kernels.numba.memory import Arena


def test_parts_are_zero_aligned_and_apart() -> None:
    arena = Arena()
    parts = [arena.zeros(n) for n in (1, 31, 32, 33, 1000, 1 << 20, 5)]
    for i, part in enumerate(parts):
        assert part.dtype == np.uint16 and part.ctypes.data % 64 == 0 and not part.any()
        part[:] = i + 1
    assert [set(part.tolist()) for part in parts] == [{i + 1} for i in range(len(parts))]


def test_small_parts_lie_near_each_other_and_large_ones_alone() -> None:
    arena = Arena()
    first, large, second = arena.zeros(32), arena.zeros(20 << 20), arena.zeros(32)
    assert second.ctypes.data - first.ctypes.data == 64
    assert large.size == 20 << 20 and large.ctypes.data % (2 << 20) == 0


def test_a_full_piece_is_followed_by_another() -> None:
    arena = Arena()
    parts = [arena.zeros(10 << 20) for _ in range(5)]  # 20 MiB each, of pieces of 64
    for i, part in enumerate(parts):
        part[0] = part[-1] = i + 1
    assert [int(part[0]) for part in parts] == [int(part[-1]) for part in parts] == [1, 2, 3, 4, 5]


def test_threads_get_parts_of_their_own() -> None:
    arena = Arena()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda i: arena.zeros(i % 97 + 1), range(2000)))
    places = sorted((part.ctypes.data, part.nbytes) for part in parts)
    assert all(at + size <= after for (at, size), (after, _) in zip(places, places[1:], strict=False))
