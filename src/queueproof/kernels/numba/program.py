"""A forward pass as a list of instructions, and the loop that runs it.

The model's code is called once, with a recorder in place of arrays (`recorder.py`); what it asks for becomes rows of
integers: an operation, addresses, sizes. A step then is one call into machine code, without Python in between. The
numbers of tokens and rows, and the addresses of the step's inputs, are looked up in the step's own array.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from queueproof.kernels.numba import attention as att
from queueproof.kernels.numba import elementwise as ew
from queueproof.kernels.numba.ir import carray, void_ptr
from queueproof.kernels.numba.jit import inner, kernel
from queueproof.kernels.numba.linear import FEW_ROWS, ask_for, gates_itself, linear
from queueproof.kernels.numba.rows import stats
from queueproof.kernels.numba.team import (
    BASE,
    LENGTH,
    PROGRAM,
    SCRATCH,
    SPINS_BEFORE_SLEEP,
    STEP,
    WORDS,
    barrier,
    publish,
    wait_generation,
)

# Words of an instruction: the operation, the place of its number of rows, up to 16 arguments, what a product may gate
# itself, what a thread may have for itself, the next weights, and on a cache line of its own the task counter.
ROW = 32
GATED = 18  # of a LINEAR that may gate its result itself: where to; of the SILU_MUL after it: the same
OWN = 19  # f32 into a thread's scratch where its own result lies, or the product's input; 0: there is none
NEXT_WEIGHTS = 20  # of the next LINEAR: address, bytes of a panel, n, and how many bytes were asked for before
COUNTER = 24
OWN_ROWS = 1  # up to so many rows, a norm or gate costs less than a barrier: each thread has a result of its own
AHEAD = 48 * 1024  # bytes that a thread asks for after each instruction: half a core's cache in the two or three between


class Op(IntEnum):
    EMBED = 0
    ADD = 1
    RMS_NORM = 2
    LINEAR = 3
    ROPE_AND_CACHE = 4
    ATTENTION = 5
    COMBINE = 6
    SILU_MUL = 7
    TAKE_ROWS = 8
    STATS = 9


class StepWord(IntEnum):
    """Words of a step's array. ROWS + 0 is the number of tokens, ROWS + 1 that of logits rows."""

    ROWS = 0
    LOGIT_ROWS = 1
    HALF = 2
    TOKEN_IDS = 3
    POSITIONS = 4
    SLOTS = 5
    QUERY_START = 6
    TABLES = 7
    TABLE_WIDTH = 8
    TASKS = 9
    N_TASKS = 10
    PARTIAL = 11
    ROW_INDEX = 12
    PARTS = 13  # states in PARTIAL
    COUNT = 16


_EMBED, _ADD, _NORM, _LINEAR, _ROPE = (int(o) for o in list(Op)[:5])
_ATTENTION, _COMBINE, _SILU, _TAKE, _STATS = (int(o) for o in list(Op)[5:])
_HALF, _IDS, _POS, _SLOTS = int(StepWord.HALF), int(StepWord.TOKEN_IDS), int(StepWord.POSITIONS), int(StepWord.SLOTS)
_QS, _TABLES, _TW = int(StepWord.QUERY_START), int(StepWord.TABLES), int(StepWord.TABLE_WIDTH)
_TASKS, _NT, _PART, _INDEX = int(StepWord.TASKS), int(StepWord.N_TASKS), int(StepWord.PARTIAL), int(StepWord.ROW_INDEX)
_PARTS, _STEP_WORDS = int(StepWord.PARTS), int(StepWord.COUNT)


@inner
def is_own(a, rows):
    """Whether each thread has a result, or an input, of its own."""
    return a[OWN] != 0 and rows <= OWN_ROWS


@inner
def _own(tid, scratch, a, rows, shared):
    """Where it lies. Thread 0 has it where all have it otherwise: whoever reads it after the next barrier finds it there."""
    return np.int64(scratch + 4 * a[OWN]) if tid != 0 and is_own(a, rows) else np.int64(shared)


@inner
def execute(tid, nt, scratch, a, counter, s):
    """One instruction: a = its words, counter = address of its task counter, s = the step's words."""
    op, half = a[0], s[_HALF]
    rows = s[a[1]]  # of the tokens or of the logits rows
    if op == _LINEAR:
        x = _own(tid, scratch, a, rows, a[2])
        linear(tid, nt, counter, scratch, half, x, rows, a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[GATED])
    elif op == _NORM:
        if is_own(a, rows):
            out, total = _own(tid, scratch, a, rows, a[7]), a[8] if tid == 0 else np.int64(0)
            ew.rms_norm(0, 1, half, scratch, a[2], a[3], a[4], a[5], rows, a[6], out, total)
        else:
            ew.rms_norm(tid, nt, half, scratch, a[2], a[3], a[4], a[5], rows, a[6], a[7], a[8])
    elif op == _ATTENTION:
        att.attention(counter, half, scratch, a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
                      s[_POS], s[_QS], s[_TABLES], s[_TW], s[_TASKS], s[_NT], s[_PART])  # fmt: skip
    elif op == _COMBINE:
        att.combine(counter, half, scratch, a[3], a[4], a[5], a[6], s[_QS], s[_TASKS], s[_NT], s[_PART], s[_POS], a[8])
    elif op == _ROPE:
        ew.rope_and_cache(tid, nt, half, scratch, a[2], rows, a[3], a[4], a[5], a[6], a[7], s[_POS], s[_SLOTS],
                          a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15])  # fmt: skip
    elif op == _SILU:
        if is_own(a, rows):
            ew.silu_mul(0, 1, half, a[2], rows, a[3], _own(tid, scratch, a, rows, a[4]))
        else:
            ew.silu_mul(tid, nt, half, a[2], rows, a[3], a[4])
    elif op == _ADD:
        ew.add(tid, nt, a[2], a[3], rows * a[4])
    elif op == _EMBED:
        ew.embed(tid, nt, half, a[2], a[3], s[_IDS], rows, a[4], a[5])
    elif op == _TAKE:
        ew.take_rows(tid, nt, a[2], s[_INDEX], rows, a[3], a[4])
    elif op == _STATS:
        stats(counter, scratch, a[2], rows, a[3], a[4], a[5], a[6])


@inner
def is_idle(a, rows, s):
    """Whether there is nothing to do: no states to combine, or gated already."""
    return (a[0] == _COMBINE and s[_PARTS] == 0) or (a[0] == _SILU and gates_itself(rows, a[GATED]))


@inner
def ask_ahead(tid, nt, a, size):
    """Asks for `size` bytes of the next weights."""
    if a[NEXT_WEIGHTS] != 0 and size != 0:
        ask_for(tid, nt, a[NEXT_WEIGHTS], a[NEXT_WEIGHTS + 1], a[NEXT_WEIGHTS + 2], a[NEXT_WEIGHTS + 3], size)


@kernel
def work(tid, nt, state, seen, limit):
    """Thread `tid` of a team: 0 publishes and runs one program; the others run what is published until it stays quiet.

    Returns the number of programs run.
    """
    w = carray(void_ptr(state), WORDS, np.int64)
    ran = 0
    while True:
        if tid == 0:
            code = carray(void_ptr(w[PROGRAM]), w[LENGTH] * ROW, np.int64)
            for pc in range(w[LENGTH]):
                code[pc * ROW + COUNTER] = 0
            publish(state, np.int64(seen + 1))
        elif not wait_generation(state, np.int64(seen + ran), np.int64(limit if ran == 0 else SPINS_BEFORE_SLEEP)):
            return ran
        program, length, passed = w[PROGRAM], w[LENGTH], w[BASE]
        scratch = carray(void_ptr(w[SCRATCH]), nt, np.int64)[tid]
        step = carray(void_ptr(w[STEP]), _STEP_WORDS, np.int64)
        for pc in range(length):
            at = np.int64(program + 8 * ROW * pc)
            words = carray(void_ptr(at), ROW, np.int64)
            rows = step[words[1]]
            # The last instruction has a barrier in any case: after it, the step's words may change.
            if is_idle(words, rows, step) and pc + 1 < length:
                continue
            ahead = AHEAD if rows <= FEW_ROWS else 0
            own = words[0] != _LINEAR and is_own(words, rows)
            if own:
                ask_ahead(tid, nt, words, ahead)
            execute(tid, nt, scratch, words, np.int64(at + 8 * COUNTER), step)
            if own:
                continue
            ask_ahead(tid, nt, words, ahead)  # while the others are not done, memory is idle
            passed += 1
            barrier(state, np.int64(passed * nt))
        ran += 1
        if tid == 0:
            w[BASE] = passed
            return ran
