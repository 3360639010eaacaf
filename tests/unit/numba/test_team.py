"""The thread team: many short programs, callers from several threads, sleeping and waking."""

from __future__ import annotations

import threading
import time

import numpy as np

from queueproof.arithmetic.diff import same_bits
from queueproof.kernels.numba.backend import NumbaRows
from queueproof.kernels.numba.program import Op, StepWord
from queueproof.kernels.numba.recorder import address
from tests.support.instructions import run


def test_many_programs_with_pauses() -> None:
    """Runs that follow at once find spinning threads; after a pause they find sleeping ones."""
    h, one = np.zeros((64, 32), np.float32), np.ones((64, 32), np.float32)
    for i in range(400):
        run(Op.ADD, (2, 3, 4)[i % 3], address(h), address(one), 32, step={StepWord.ROWS: 64})
        if i % 40 == 0:
            time.sleep(0.02)
    assert same_bits(h, np.full((64, 32), 400, np.float32))


def test_two_callers_share_a_team() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 5000)).astype(np.float32)
    want = NumbaRows(1).stats(x)
    failures: list[int] = []

    def caller(n: int) -> None:
        rows = NumbaRows(2)
        for _ in range(100):
            got = rows.stats(x)
            if not all(same_bits(np.float32(a), np.float32(b)) for a, b in zip(got, want, strict=True)):
                failures.append(n)

    callers = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join(60)
    assert not any(c.is_alive() for c in callers)
    assert not failures
