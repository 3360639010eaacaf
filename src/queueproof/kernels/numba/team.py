"""Threads that run one kernel together: they spin between steps for a moment, then sleep.

Python threads enter machine code that holds no GIL, so a step costs no thread start and an operation only a barrier.
Work is handed out by atomic counters; which thread takes which part cannot be seen in the result. numba's own threading
layers are not used: the portable one aborts the process when two threads enter it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from weakref import WeakSet

import numpy as np

from queueproof.contract.errors import EngineError
from queueproof.kernels.numba.ir import atomic_add, atomic_load, atomic_store, relax, yield_thread
from queueproof.kernels.numba.jit import inner

# Words of the shared state, a cache line (8 words) apart. BASE: barriers that were passed in earlier runs.
GENERATION, ARRIVED, BASE, PROGRAM, LENGTH, STEP, SCRATCH, WORDS = 0, 8, 16, 17, 18, 19, 20, 24
SPINS_BEFORE_YIELD = 2_000
SPINS_BEFORE_SLEEP = 60_000  # about 2 ms: longer than the pause between two steps


@inner
def barrier(state, target):
    """Waits until `target` arrivals have been counted since the team began."""
    atomic_add(state + 8 * ARRIVED, np.int64(1))
    spins = 0
    while atomic_load(state + 8 * ARRIVED) < target:
        relax()
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_thread()


@inner
def wait_generation(state, seen, limit):
    """Spins until the generation differs from `seen`; False after `limit` spins (0: no limit)."""
    spins = 0
    while atomic_load(state + 8 * GENERATION) == seen:
        relax()
        spins += 1
        if limit > 0 and spins > limit:
            return False
        if limit == 0 and spins > SPINS_BEFORE_YIELD:
            yield_thread()
    return True


@inner
def publish(state, generation):
    atomic_store(state + 8 * GENERATION, generation)


class _Crew:
    """The helpers of a team, with the state they share with its caller. One that was interrupted is not used again."""

    def __init__(self, helpers: int, work: Callable[[int, int, int, int, int], int], scratch: int) -> None:
        self._size, self._work = helpers + 1, work  # work: see `program.work`
        self._memory = np.zeros(WORDS + 8, np.int64)
        self._state = self._memory[(-self._memory.ctypes.data // 8) % 8 :][:WORDS]  # on a cache line
        self._address = int(self._state.ctypes.data)
        self._state[SCRATCH] = scratch
        self._wanted = 0  # runs that have been published, or are about to be
        self._dismissed = False
        # One for each: a helper that clears another's event could put it to sleep with a run to do.
        self._awake = [threading.Event() for _ in range(helpers)]
        try:
            for tid in range(1, helpers + 1):
                threading.Thread(target=self._help, args=(tid,), name=f"queueproof-{tid}", daemon=True).start()
        except BaseException:
            self.dismiss()
            raise

    def run(self, program: int, length: int, step: int) -> None:
        s, seen = self._state, self._wanted
        s[PROGRAM], s[LENGTH], s[STEP] = program, length, step
        self._wanted += 1
        self._wake()
        self._work(0, self._size, self._address, seen, 1)

    def dismiss(self) -> None:
        """Ends the helpers, also those that wait for a run that was interrupted before it was published."""
        self._dismissed = True
        if self._state[GENERATION] < self._wanted:
            self._state[LENGTH] = 0
            self._state[GENERATION] = self._wanted
        self._wake()

    def _wake(self) -> None:
        for event in self._awake:
            event.set()

    def _help(self, tid: int) -> None:
        seen, awake = 0, self._awake[tid - 1]
        while not self._dismissed:
            soon = self._wanted > seen
            seen += self._work(tid, self._size, self._address, seen, 0 if soon else SPINS_BEFORE_SLEEP)
            awake.clear()
            # After `clear`: who asks for a run counts it first and then sets the event.
            if self._wanted == seen and not self._dismissed:
                awake.wait()


class Team:
    """`threads` workers, the caller among them. One program at a time; callers queue for it.

    Use `Team.of(threads)`: teams live as long as the process and are shared. A forked child has none of its parent's
    threads; there, helpers are started anew.
    """

    def __init__(self, threads: int) -> None:
        from queueproof.kernels.numba.program import work  # the loop that knows the instructions

        self.threads = threads
        self._work = work
        self._scratch: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._scratch_addresses = np.zeros(threads, np.int64)  # read anew in each run: `reserve` may move them
        self._without_threads()
        self.reserve(1)
        _TEAMS.add(self)

    @staticmethod
    @cache
    def of(threads: int) -> Team:
        return Team(threads)

    def _without_threads(self) -> None:
        self.lock = threading.Lock()
        self._crew: _Crew | None = None

    def reserve(self, n_f32: int) -> None:
        """Gives each thread at least n_f32 floats of scratch, on cache lines of their own."""
        with self.lock:
            if self._scratch and self._scratch[0].size >= n_f32 + 32:
                return
            self._scratch = [np.zeros(n_f32 + 32, np.float32) for _ in range(self.threads)]
            for i, s in enumerate(self._scratch):
                self._scratch_addresses[i] = -(-s.ctypes.data // 64) * 64

    def run(self, program: int, length: int, step: int) -> None:
        """Runs a program of `length` instructions at address `program` on all threads; returns when it is done.

        Raises EngineError where the system gives no more threads.
        """
        with self.lock:
            crew, self._crew = self._crew, None  # and back once the run is over: Ctrl-C may come anywhere in between
            if crew is None:
                crew = self._gather()
            try:
                crew.run(program, length, step)
            except BaseException:
                crew.dismiss()
                raise
            self._crew = crew

    def _gather(self) -> _Crew:
        try:
            return _Crew(self.threads - 1, self._work, self._scratch_addresses.ctypes.data)
        except RuntimeError as error:
            raise EngineError(f"{self.threads} threads could not be started ({error}); ask for fewer threads") from error


_TEAMS: WeakSet[Team] = WeakSet()


def _after_fork() -> None:
    for team in _TEAMS:
        team._without_threads()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
