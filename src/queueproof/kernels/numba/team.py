"""Threads that run one kernel together: they spin between steps for a moment, then sleep.

Python threads enter machine code that holds no GIL, so a step costs no thread start and an operation only a barrier.
Work is handed out by atomic counters; which thread takes which part cannot be seen in the result. numba's own threading
layers are not used: the portable one aborts the process when two threads enter it.
"""

from __future__ import annotations

import queue
import threading
from functools import cache

import numpy as np

from queueproof.kernels.numba.ir import atomic_add, atomic_load, atomic_store, relax, yield_thread
from queueproof.kernels.numba.jit import inner

# words of the shared state, a cache line (8 words) apart
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


class Team:
    """`threads` workers, the caller among them. One program at a time; callers queue for it.

    Use `Team.of(threads)`: teams live as long as the process and are shared.
    """

    def __init__(self, threads: int) -> None:
        from queueproof.kernels.numba.program import work  # the loop that knows the instructions

        self.threads = threads
        self.lock = threading.Lock()
        self._work = work  # (tid, threads, state, generation seen, spins before it gives up) -> programs run
        self._memory = np.zeros(WORDS + 8, np.int64)
        self._state = self._memory[(-self._memory.ctypes.data // 8) % 8 :][:WORDS]  # on a cache line
        self.address = int(self._state.ctypes.data)
        self._barriers = 0
        self._scratch: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
        self._scratch_addresses = np.zeros(threads, np.int64)
        self._state[SCRATCH] = self._scratch_addresses.ctypes.data  # read anew in each run: `reserve` may move them
        self.reserve(1)
        self._tokens: list[queue.SimpleQueue[None]] = [queue.SimpleQueue() for _ in range(threads - 1)]
        for tid in range(1, threads):
            threading.Thread(target=self._loop, args=(tid,), name=f"queueproof-{tid}", daemon=True).start()

    @staticmethod
    @cache
    def of(threads: int) -> Team:
        return Team(threads)

    def reserve(self, n_f32: int) -> None:
        """Gives each thread at least n_f32 floats of scratch, on cache lines of their own."""
        with self.lock:
            if self._scratch and self._scratch[0].size >= n_f32 + 32:
                return
            self._scratch = [np.zeros(n_f32 + 32, np.float32) for _ in range(self.threads)]
            for i, s in enumerate(self._scratch):
                self._scratch_addresses[i] = -(-s.ctypes.data // 64) * 64

    def run(self, program: int, length: int, step: int) -> None:
        """Runs a program of `length` instructions at address `program` on all threads; returns when it is done."""
        with self.lock:
            s = self._state
            s[BASE], s[PROGRAM], s[LENGTH], s[STEP] = self._barriers, program, length, step
            self._barriers += length
            for tokens in self._tokens:
                tokens.put(None)
            self._work(0, self.threads, self.address, int(s[GENERATION]), 1)

    def _loop(self, tid: int) -> None:
        tokens, seen, owed = self._tokens[tid - 1], 0, 0
        while True:
            # `owed`: a token was taken for a run that has not been seen yet, so it is about to be published
            ran = self._work(tid, self.threads, self.address, seen, 0 if owed else SPINS_BEFORE_SLEEP)
            seen += ran
            for _ in range(ran - owed):
                tokens.get()
            tokens.get()
            owed = 1
