"""The numbers of a step on their way to the card: written into pinned memory, copied in stream order.

Kernels read them at fixed addresses, so a captured graph runs any step of its number of rows. The host writes a step
while the card may still be copying the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from queueproof.kernels.ops import Limits, StepBatch
from queueproof.kernels.triton.attention_plan import DECODE_FIELDS, PREFILL_FIELDS, Plan
from queueproof.kernels.triton.device import Pinned

META = 16  # i32 words in front: see the names below
TABLE_WIDTH, DECODE_ITEMS, PREFILL_ITEMS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Numbers:
    """A step's numbers on the card.

    meta: i32 [META]. token_ids, drawn, positions: i32 [rows]; slots: i64 [rows]; past the step's tokens they name dummies
    (token 0, position 0, slot -1). tables: i32, rows of meta[TABLE_WIDTH] blocks. decode_items, prefill_items: work items of
    attention (attention_plan.py), as many as meta says.
    """

    meta: torch.Tensor
    slots: torch.Tensor
    token_ids: torch.Tensor
    drawn: torch.Tensor
    positions: torch.Tensor
    tables: torch.Tensor
    decode_items: torch.Tensor
    prefill_items: torch.Tensor


class StepInput:
    """rows, decode_items, prefill_items: the most that a step may have.

    What has an entry for each row is packed by the number of rows, so that a small step is one small copy.
    """

    def __init__(self, limits: Limits, rows: int, decode_items: int, prefill_items: int, device: torch.device) -> None:
        front = META + 5 * _wide(rows)
        sizes = (
            limits.max_seqs * limits.max_blocks_per_seq,
            decode_items * DECODE_FIELDS,
            prefill_items * PREFILL_FIELDS,
        )
        starts = [-(-front // 64) * 64]  # 256 bytes
        for size in sizes:
            starts.append(starts[-1] + -(-size // 64) * 64)
        self._card = torch.zeros(starts.pop(), dtype=torch.int32, device=device)
        self._pinned = [Pinned(device) for _ in range(3)]  # the host may write a step while the one before is copied
        self._turn = 0
        self._behind = list(zip(("tables", "decode_items", "prefill_items"), starts, sizes, strict=True))
        self._numbers: dict[int, Numbers] = {}

    def numbers(self, rows: int) -> Numbers:
        """Where a step of that many rows (padding included) finds its numbers: always the same addresses."""
        if rows not in self._numbers:
            card = self._card
            behind = {name: card[start : start + size] for name, start, size in self._behind}
            width = _wide(rows)
            slots, *each = card[META : META + 5 * width].split([2 * width, width, width, width])
            each = [part[:rows] for part in each]
            self._numbers[rows] = Numbers(card[:META], slots.view(torch.int64)[:rows], *each, **behind)
        return self._numbers[rows]

    def send(self, batch: StepBatch, rows: int, plan: Plan) -> None:
        """Enqueues the copies of one step. rows: padding included. Raises ValueError for more than there is room for."""
        self._turn = (self._turn + 1) % len(self._pinned)
        pinned, t = self._pinned[self._turn], batch.token_ids.size
        pinned.ready(self._card.numel())
        words = pinned.words.numpy()
        words[TABLE_WIDTH] = batch.block_tables.shape[1]
        words[DECODE_ITEMS], words[PREFILL_ITEMS] = len(plan.decode_items), len(plan.prefill_items)
        width = _wide(rows)
        slots = words[META : META + 2 * width].view(np.int64)
        slots[:t] = batch.slots
        slots[t:] = -1
        each = words[META + 2 * width : META + 5 * width].reshape(3, width)
        each[0, :t] = batch.token_ids
        each[1, :t] = -1 if batch.drawn is None else batch.drawn
        each[2, :t] = batch.positions
        each[:, t:] = ((0,), (-1,), (0,))
        pieces = [(0, META + 5 * width)]
        values = (batch.block_tables, plan.decode_items, plan.prefill_items)
        for (name, start, size), value in zip(self._behind, values, strict=True):
            if value.size > size:
                raise ValueError(f"{value.size} words of {name} in a step; there is room for {size}")
            if value.size:
                words[start : start + value.size] = value.reshape(-1)
                pieces.append((start, start + value.size))
        for first, end in pieces:
            self._card[first:end].copy_(pinned.words[first:end], non_blocking=True)
        pinned.copied()

    def clear(self) -> None:
        """A step of zeros, without work items: it writes a key to slot 0, so only before a sequence owns that."""
        self._card.zero_()


def _wide(rows: int) -> int:
    """Words for a number per row, so that each kind starts at a multiple of 16 bytes: one build of a kernel fits all."""
    return -(-rows // 4) * 4
