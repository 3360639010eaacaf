"""Kernels take the numbers of a step for places in memory, so none may be out of range, whoever calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from queueproof.kernels.ops import I32, Limits, StepBatch


def check_step(batch: StepBatch, limits: Limits, vocab_size: int) -> None:
    """Raises ValueError for a step that an executor of these limits cannot run."""
    t, seqs = batch.token_ids.size, batch.query_start.size - 1
    if not (0 < t <= limits.max_tokens and 0 < seqs <= limits.max_seqs and batch.block_tables.shape[0] == seqs):
        raise ValueError(f"a step of {t} tokens in {seqs} sequences is outside {limits}")
    starts, positions = batch.query_start, batch.positions
    if starts[0] != 0 or starts[-1] != t or np.any(starts[1:] <= starts[:-1]):
        raise ValueError(f"query_start {starts.tolist()} does not cut {t} tokens into sequences")
    follows = np.diff(positions) == 1
    follows[starts[1:-1] - 1] = True  # another sequence begins
    if not follows.all():
        raise ValueError(f"positions {positions.tolist()} do not ascend by one within each sequence")
    keys = batch.block_tables.shape[1] * limits.block_size
    if (last := int(positions[starts[1:] - 1].max())) >= keys:
        raise ValueError(f"a query at position {last} with blocks for {keys} keys")
    for name, values, end in (
        ("token id", batch.token_ids, vocab_size),
        ("position", positions, limits.max_model_len),
        ("slot", batch.slots, limits.num_blocks * limits.block_size),
        ("block", batch.block_tables, limits.num_blocks),
    ):
        check_range(name, values, end)


def check_rows(rows: I32, limits: Limits, tokens: int) -> None:
    """Raises ValueError unless logits of these rows of a step of `tokens` tokens may be asked for."""
    if not 0 < rows.size <= limits.max_logit_rows:
        raise ValueError(f"{rows.size} logits rows asked for; room for {limits.max_logit_rows}")
    check_range("row", rows, tokens)


def check_range(name: str, values: NDArray[np.signedinteger[Any]], end: int) -> None:
    """Raises ValueError unless all are from 0 to end - 1."""
    unsigned = values.view(f"u{values.itemsize}")  # a negative number is then a huge one
    if unsigned.size and unsigned.max() >= end:
        raise ValueError(f"a {name} is outside 0 to {end - 1}: {values[unsigned >= end].flat[0]}")
