"""Turns the sequences of a step into the arrays of one forward pass."""

from __future__ import annotations

import numpy as np

from queueproof.engine.request import Sequence
from queueproof.kernels.ops import Backend, Executor, ForwardModel, Limits, Logits, StepBatch


class Runner:
    """Owns the executor, and the block tables of running sequences, by `Sequence.row`."""

    def __init__(self, backend: Backend, model: ForwardModel, limits: Limits, threads: int) -> None:
        self.limits = limits
        self._executor: Executor = backend.executor(model, limits, threads)
        self._tables = np.zeros((limits.max_seqs, limits.max_blocks_per_seq), np.int32)
        # The list that each row of _tables was filled from, and how far: held blocks only ever grow in place.
        self._row_blocks: list[list[int]] = [[] for _ in range(limits.max_seqs)]
        self._row_filled = [0] * limits.max_seqs

    def forward(self, step: list[Sequence]) -> list[int]:
        """Begins to compute what is scheduled. Returns the first token row of each sequence, and the number of rows."""
        size = self.limits.block_size
        rows = np.array([sequence.row for sequence in step])
        firsts = np.array([sequence.computed for sequence in step], np.int32)
        query_start = np.zeros(len(step) + 1, np.int32)
        np.cumsum([sequence.scheduled for sequence in step], out=query_start[1:])
        starts, total = query_start[:-1], int(query_start[-1])
        if total == len(step):
            positions, owners = firsts, rows
        else:
            which = np.repeat(np.arange(len(step)), np.diff(query_start))
            positions = np.arange(total, dtype=np.int32) + (firsts - starts)[which]
            owners = rows[which]
        width = self._fill(step)
        slots = self._tables[owners, positions // size].astype(np.int64) * size + positions % size
        token_ids = np.empty(total, np.int32)
        token_ids[starts] = [sequence.last_token for sequence in step]
        at: list[int] = query_start.tolist()
        for sequence, start in zip(step, at, strict=False):
            n, first = sequence.scheduled, sequence.computed
            if n > 1 or first + 1 < sequence.length:  # else it is the last token
                token_ids[start : start + n] = sequence.tokens[first : first + n]
        draw_rows = [sequence.draw_row for sequence in step]
        drawn = None
        if max(draw_rows) >= 0:
            # A sequence whose last token is under way computes that one alone.
            drawn = np.full(total, -1, np.int32)
            drawn[starts] = draw_rows
        tables = self._tables[rows, :width]
        self._executor.forward(StepBatch(token_ids, positions, slots, query_start, tables, drawn))
        return at

    def _fill(self, step: list[Sequence]) -> int:
        """Brings the tables of the step's sequences up to date. Returns the blocks of the longest."""
        row_blocks, row_filled, width = self._row_blocks, self._row_filled, 0
        for sequence in step:
            row, blocks = sequence.row, sequence.blocks
            held = len(blocks)
            if row_blocks[row] is not blocks:
                row_blocks[row], row_filled[row] = blocks, 0
            filled = row_filled[row]
            if filled < held:
                self._tables[row, filled:held] = blocks[filled:]
                row_filled[row] = held
            if held > width:
                width = held
        return width

    def logits(self, rows: list[int]) -> Logits:
        """Logits of token rows of the last `forward`, at most limits.max_logit_rows; valid until the next call."""
        return self._executor.logits(np.array(rows, np.int32))

    def close(self) -> None:
        self._executor.close()
