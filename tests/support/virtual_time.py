"""An event loop whose clock is virtual: where it would wait for a timer, the clock jumps to it. Nothing ever sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_REAL_WAIT = 5.0  # seconds for sockets or threads when no timer is set; then it is a deadlock


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing. skipped: the sum of all waits that were asked for."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(_REAL_WAIT)
            if not ready:
                raise RuntimeError("deadlock: every task waits, and no timer is set")
            return ready
        self.skipped += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """time() begins at 0 and goes on only by the waits that are skipped."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.skipped


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
