"""Turns the sequences of a step into the arrays of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np

from queueproof.engine.request import Sequence
from queueproof.kernels.ops import F32, I32, Backend, Executor, ForwardModel, Limits, StepBatch


class Runner:
    """Owns the executor and the buffers of a step, which are allocated once."""

    def __init__(self, backend: Backend, model: ForwardModel, limits: Limits, threads: int) -> None:
        self.limits = limits
        self._executor: Executor = backend.executor(model, limits, threads)
        self._token_ids = np.zeros(limits.max_tokens, np.int32)
        self._positions = np.zeros(limits.max_tokens, np.int32)
        self._slots = np.zeros(limits.max_tokens, np.int64)
        self._query_start = np.zeros(limits.max_seqs + 1, np.int32)
        self._tables = np.zeros((limits.max_seqs, limits.max_blocks_per_seq), np.int32)
        # The list that each row of _tables was filled from, and how far: held blocks only ever grow in place.
        self._row_blocks: list[list[int]] = [[] for _ in range(limits.max_seqs)]
        self._row_filled = [0] * limits.max_seqs
        self._counting = np.arange(limits.max_model_len, dtype=np.int32)

    def forward(self, step: Several[Sequence]) -> list[int]:
        """Computes what is scheduled. Returns the first token row of each sequence."""
        size, at, starts = self.limits.block_size, 0, []
        token_ids, positions, slots, tables = self._token_ids, self._positions, self._slots, self._tables
        for row, sequence in enumerate(step):
            starts.append(at)
            first, n, blocks = sequence.computed, sequence.scheduled, sequence.blocks
            table = tables[row]
            self._fill(row, table, blocks)
            if n == 1:
                token_ids[at] = sequence.tokens[first]
                positions[at] = first
                slots[at] = blocks[first // size] * size + first % size
            else:
                end = at + n
                where = self._counting[first : first + n]
                token_ids[at:end] = sequence.tokens[first : first + n]
                positions[at:end] = where
                here = slots[at:end]
                here[:] = table[where // size]
                here *= size
                here += where % size
            at += n
        seqs = len(step)
        self._query_start[:seqs] = starts
        self._query_start[seqs] = at
        self._executor.forward(
            StepBatch(token_ids[:at], positions[:at], slots[:at], self._query_start[: seqs + 1], tables[:seqs])
        )
        return starts

    def _fill(self, row: int, table: I32, blocks: list[int]) -> None:
        filled = self._row_filled[row] if self._row_blocks[row] is blocks else 0
        if filled < len(blocks):
            table[filled : len(blocks)] = blocks[filled:]
            self._row_filled[row] = len(blocks)
        self._row_blocks[row] = blocks

    def logits(self, rows: I32) -> F32:
        """f32 [R, V] of token rows of the last `forward`, at most limits.max_logit_rows; valid until the next call."""
        return self._executor.logits(rows)

    def close(self) -> None:
        self._executor.close()
