"""`ieee/1` on the CPU: weights packed for the register tiles, steps recorded once and run by a thread team."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.ieee1 import KEY_SPLIT
from queueproof.contract.errors import InvalidParameter
from queueproof.kernels import host
from queueproof.kernels.host import HostRows
from queueproof.kernels.numba import jit
from queueproof.kernels.numba import rows as row_kernels
from queueproof.kernels.numba.attention import TASK_FIELDS, TILE_ROWS, padded
from queueproof.kernels.numba.memory import aligned
from queueproof.kernels.numba.packed import PackedMatrix, pack, pack_blocks
from queueproof.kernels.numba.program import Op, StepWord
from queueproof.kernels.numba.quantised import KINDS
from queueproof.kernels.numba.recorder import Recorder, Rope, address
from queueproof.kernels.numba.team import Team
from queueproof.kernels.ops import (
    F32,
    I32,
    U8,
    U16,
    Defaults,
    Dtype,
    ForwardModel,
    KVShape,
    Limits,
    Quantised,
    StepBatch,
)
from queueproof.kernels.step_check import check_rows, check_step

PARTIAL_SLOTS = 128  # states of split tasks that one step may hold


class NumbaPacker:
    def __init__(self, dtype: Dtype) -> None:
        self.dtype = dtype
        # its registers widen to bf16 only
        self.kept: frozenset[Quantised] = frozenset(KINDS if dtype == "bfloat16" else ())

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> PackedMatrix:
        return pack(n, k, row_slices, self.dtype, bias)

    def blocks(
        self, n: int, k: int, kind: Quantised, row_slices: Iterable[U8], bias: F32 | None = None
    ) -> PackedMatrix:
        return pack_blocks(n, k, kind, row_slices, bias)

    def vector(self, values: F32) -> F32:
        return np.ascontiguousarray(values, np.float32)

    def rope(self, cos: F32, sin: F32) -> Rope:
        return Rope(cos, sin)


class NumbaRows(HostRows):
    """`RowOps` on a team of threads."""

    def __init__(self, threads: int) -> None:
        self._team = Team.of(threads)
        self._step = np.zeros(int(StepWord.COUNT), np.int64)
        self._code = aligned(32, np.int64)

    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        logits = np.ascontiguousarray(logits, np.float32)
        rows, n = logits.shape
        arg, top, logz = np.empty(rows, np.int32), np.empty(rows, np.float32), np.empty(rows, np.float32)
        self._team.reserve(n + 64)
        self._step[StepWord.ROWS] = rows
        self._code[:7] = (int(Op.STATS), StepWord.ROWS, address(logits), n, address(arg), address(top), address(logz))
        self._team.run(address(self._code), 1, address(self._step))
        return arg, top, logz

    def topk(self, logits: F32, k: int) -> I32:
        if not 1 <= k <= logits.shape[1]:
            raise ValueError(f"{k} of {logits.shape[1]} ids asked for")
        return row_kernels.topk(np.ascontiguousarray(logits, np.float32), k)

    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        return int(
            row_kernels.sample(
                np.ascontiguousarray(row, np.float32),
                np.float32(temperature),
                top_k,
                np.float32(top_p),
                np.float32(min_p),
                np.uint64(seed),
                np.int64(position),
            )
        )


class NumbaExecutor:
    def __init__(self, model: ForwardModel, limits: Limits, threads: int) -> None:
        if limits.block_size % 16:
            raise InvalidParameter("block_size", limits.block_size, "a multiple of 16 keys")
        kv = model.kv_shape
        self.limits = limits
        self._team = Team.of(threads)
        ops = Recorder(limits, kv)
        self._ops = ops
        self._logits = model.head(ops, model.trunk(ops))
        self._trunk, self._head = ops.finish()
        self._team.reserve(ops.scratch_f32)
        self._group = TILE_ROWS  # queries of a tile; set below from the heads of the attention instructions
        attention = self._trunk[self._trunk[:, 0] == int(Op.ATTENTION)]
        for words in attention:
            self._group = min(self._group, TILE_ROWS // (int(words[4]) // int(words[5])))
        slots = PARTIAL_SLOTS * kv.kv_heads * TILE_ROWS * (2 + padded(kv.head_dim)) if len(attention) else 1
        self._partial = aligned(slots, np.float32)
        self._step = np.zeros(int(StepWord.COUNT), np.int64)
        self._step[StepWord.HALF] = int(model.dtype == "float16")
        self._step[StepWord.PARTIAL] = address(self._partial)
        self._tasks = np.zeros((limits.max_tokens + limits.max_seqs + PARTIAL_SLOTS, TASK_FIELDS), np.int32)
        self._step[StepWord.TASKS] = address(self._tasks)
        self._inputs: tuple[NDArray[np.generic], ...] = ()

    def forward(self, batch: StepBatch) -> None:
        check_step(batch, self.limits, self._ops.vocab_size)
        inputs = (
            np.ascontiguousarray(batch.token_ids, np.int32),
            np.ascontiguousarray(batch.positions, np.int32),
            np.ascontiguousarray(batch.slots, np.int64),
            np.ascontiguousarray(batch.query_start, np.int32),
            np.ascontiguousarray(batch.block_tables, np.int32),
        )
        n_tasks, parts = self._plan(inputs[1], inputs[3])
        self._inputs = inputs
        s = self._step
        s[StepWord.ROWS] = batch.token_ids.size
        first = int(StepWord.TOKEN_IDS)
        s[first : first + 5] = [address(a) for a in inputs]
        s[StepWord.TABLE_WIDTH] = inputs[4].shape[1]
        s[StepWord.N_TASKS], s[StepWord.PARTS] = n_tasks, parts
        self._team.run(address(self._trunk), len(self._trunk), address(s))

    def _plan(self, positions: I32, query_start: I32) -> tuple[int, int]:
        """Cuts the step's attention into tasks (see `attention`); returns how many, and how many leave states to be combined."""
        n, slot, tasks, per_tile = 0, 0, self._tasks, self._group
        starts = query_start.tolist()
        firsts = positions[query_start[:-1]].tolist()
        for seq, first in enumerate(firsts):
            queries = starts[seq + 1] - starts[seq]
            splits = (first + queries - 1) // KEY_SPLIT + 1
            if splits > 1 and queries <= per_tile and slot + splits <= PARTIAL_SLOTS:
                for i in range(splits):
                    tasks[n] = (seq, 0, queries, i, i + 1, slot + i, splits - 1 if i == 0 else -1)
                    n += 1
                slot += splits
                continue
            for q0 in range(0, queries, per_tile):
                q1 = min(queries, q0 + per_tile)
                tasks[n] = (seq, q0, q1, 0, (first + q1 - 1) // KEY_SPLIT + 1, -1, -1)
                n += 1
        return n, slot

    def logits(self, rows: I32) -> F32:
        check_rows(rows, self.limits, int(self._step[StepWord.ROWS]))
        index = np.ascontiguousarray(rows, np.int32)
        self._step[StepWord.LOGIT_ROWS] = rows.size
        self._step[StepWord.ROW_INDEX] = address(index)
        self._team.run(address(self._head), len(self._head), address(self._step))
        return self._logits.array[: rows.size]

    def close(self) -> None:
        """Nothing to stop: the team belongs to the process, buffers go with the last reference."""


class NumbaBackend:
    arithmetic = "ieee/1"
    device = "cpu"
    family = "any"
    asynchronous = False

    def defaults(self) -> Defaults:
        return host.defaults()

    def packer(self, dtype: Dtype) -> NumbaPacker:
        return NumbaPacker(dtype)

    def rows(self, threads: int) -> NumbaRows:
        return NumbaRows(threads)

    def kv_bytes_per_token(self, shape: KVShape) -> int:
        return 2 * shape.layers * shape.kv_heads * (shape.head_dim + padded(shape.head_dim))

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> NumbaExecutor:
        return NumbaExecutor(model, limits, threads)

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        if progress:
            progress(jit.state())
        jit.drop_old_code()
        rows = self.rows(1)
        logits = np.zeros((1, 64), np.float32)
        rows.stats(logits)
        rows.topk(logits, 1)
        rows.sample(logits[0], 1.0, 0, 0.9, 0.0, 0, 0)
