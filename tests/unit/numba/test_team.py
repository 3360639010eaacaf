"""The thread team: many short programs, callers from several threads, sleeping and waking."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from queueproof.arithmetic.diff import same_bits
from queueproof.contract.errors import EngineError
from queueproof.kernels.numba.backend import NumbaRows
from queueproof.kernels.numba.program import Op, StepWord
from queueproof.kernels.numba.recorder import address
from queueproof.kernels.numba.team import Team
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


def in_time(what: Any) -> None:
    """Runs `what` in a thread, because machine code that waits for ever cannot be interrupted."""
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
def test_goes_on_after_an_interrupted_run(threads: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come before the run was published (while kernels compile, say) and after it."""
    team = Team(threads)
    monkeypatch.setattr(Team, "of", staticmethod(lambda _: team))
    rows, x = NumbaRows(threads), np.ones((4, 100), np.float32)
    real, interrupts = team._work, [True]

    def work(tid: int, *rest: int) -> int:
        interrupt = tid == 0 and interrupts and interrupts.pop()
        ran = 0 if interrupt and not after else real(tid, *rest)
        if interrupt:
            raise KeyboardInterrupt
        return ran

    team._work = work

    def runs() -> None:
        with pytest.raises(KeyboardInterrupt):
            rows.stats(x)
        for _ in range(20):
            assert rows.stats(x)[0].tolist() == [0] * 4

    in_time(runs)
    assert not interrupts


FORK = """
import os
import numpy as np
from queueproof.kernels.numba.backend import NumbaRows

rows, x = NumbaRows(2), np.arange(600, dtype=np.float32).reshape(2, 300)
want = [a.tobytes() for a in rows.stats(x)]
child = os.fork()
if child == 0:
    os._exit(0 if [a.tobytes() for a in rows.stats(x)] == want else 1)
assert os.waitpid(child, 0)[1] == 0
assert [a.tobytes() for a in rows.stats(x)] == want
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], timeout=120, check=False).returncode == 0


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    team, start, left = Team(4), threading.Thread.start, [1, 1]

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(EngineError, match="4 threads"):
            team.run(0, 0, 0)
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before, "those that had started go home"
    in_time(lambda: team.run(0, 0, 0))
