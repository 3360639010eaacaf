"""Runs single instructions of the CPU kernels on arrays of a test's choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from queueproof.kernels.numba.attention import TASK_FIELDS, TILE_ROWS, padded, scratch_f32
from queueproof.kernels.numba.linear import SCRATCH_F32
from queueproof.kernels.numba.memory import aligned
from queueproof.kernels.numba.program import ROW, Op, StepWord
from queueproof.kernels.numba.recorder import address
from queueproof.kernels.numba.team import Team

THREADS = (1, 2, 4)


def poison(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """f32 output memory full of NaN: an element that is not written shows."""
    return np.full(shape, np.nan, np.float32)


def bits(x: float) -> int:
    return int(np.float32(x).view(np.int32))


def run(op: Op, threads: int, *words: int, step: Mapping[StepWord, int] | None = None, scratch: int = 0) -> None:
    """One instruction of `words` (from the third word on) over step[ROWS] rows."""
    code = aligned(ROW, np.int64)
    code[: 2 + len(words)] = [int(op), int(StepWord.ROWS), *words]
    state = np.zeros(int(StepWord.COUNT), np.int64)
    for word, value in (step or {}).items():
        state[word] = value
    team = Team.of(threads)
    team.reserve(max(SCRATCH_F32, scratch))
    with np.errstate(all="ignore"):
        team.run(address(code), 1, address(state))


def attention(q, k, v, positions, query_start, tables, page, window, half, threads, tasks):  # type: ignore[no-untyped-def]
    """f32 [T, heads, D] of q [T, heads, D] over a paged cache k, v (f32 values [slots, kv_heads, D], 16-bit), and `tasks`."""
    from queueproof.arithmetic.bits import round16_bits

    t, heads, d = q.shape
    slots, kv_heads, _ = k.shape
    dtype = "float16" if half else "bfloat16"
    dp, blocks = padded(d), slots // page
    k16, v16 = round16_bits(k, dtype), round16_bits(v, dtype)
    keys = np.ascontiguousarray(k16.reshape(blocks, page, kv_heads, d).transpose(0, 2, 3, 1))
    values = np.zeros((blocks, kv_heads, page, dp), np.uint16)
    values[..., :d] = v16.reshape(blocks, page, kv_heads, d).transpose(0, 2, 1, 3)
    out = poison(t, heads, d)
    task_rows = np.array(tasks, np.int32).reshape(-1, TASK_FIELDS)
    partial = poison((1 + max(0, task_rows[:, 5].max())) * kv_heads * TILE_ROWS * (2 + dp))
    q, positions = np.ascontiguousarray(q), np.ascontiguousarray(positions, np.int32)
    query_start, tables = np.array(query_start, np.int32), np.ascontiguousarray(tables, np.int32)
    step = {
        StepWord.ROWS: t,
        StepWord.HALF: half,
        StepWord.POSITIONS: address(positions),
        StepWord.QUERY_START: address(query_start),
        StepWord.TABLES: address(tables),
        StepWord.TABLE_WIDTH: tables.shape[1],
        StepWord.TASKS: address(task_rows),
        StepWord.N_TASKS: len(task_rows),
        StepWord.PARTIAL: address(partial),
    }
    words = (address(q), address(out), heads, kv_heads, d, page, window or 0, bits(1 / np.sqrt(d)), address(keys), address(values))  # fmt: skip
    for op in (Op.ATTENTION, Op.COMBINE):
        run(op, threads, *words, step=step, scratch=scratch_f32(d))
    return out
