"""The numbers of a step on their way to the card: written into pinned memory, copied in stream order.

Kernels read them at fixed addresses, so a captured graph runs any step of its number of rows. The host writes a step
while the card may still be copying the one before: there are several stagings, and each is free once its copy is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from queueproof.kernels.ops import I32, Limits, StepBatch
from queueproof.kernels.triton.attention_plan import DECODE_FIELDS, PREFILL_FIELDS, Plan

STAGINGS = 3
META = 16  # i32 words in front: see the names below
TABLE_WIDTH, DECODE_ITEMS, PREFILL_ITEMS = 0, 1, 2


class Staging:
    """i32 words on the card, and the pinned memory that they are written in."""

    def __init__(self, words: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.card = torch.zeros(words, dtype=torch.int32, device=device)
        self._host = [torch.zeros(words, dtype=torch.int32, pin_memory=pinned) for _ in range(STAGINGS)]
        self._copied = [torch.cuda.Event() if pinned else None for _ in range(STAGINGS)]
        self._turn = 0

    def next(self) -> I32:
        """i32 [words] to write into, once no copy reads it any more."""
        self._turn = (self._turn + 1) % STAGINGS
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
        words: I32 = self._host[self._turn].numpy()
        return words

    def send(self, pieces: list[tuple[int, int]]) -> None:
        """Enqueues copies of [first, end) of what `next` gave."""
        host, event = self._host[self._turn], self._copied[self._turn]
        for first, end in pieces:
            self.card[first:end].copy_(host[first:end], non_blocking=True)
        if event is not None:
            event.record()


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
        sizes = (limits.max_seqs * limits.max_blocks_per_seq, decode_items * DECODE_FIELDS, prefill_items * PREFILL_FIELDS)
        starts = [-(-front // 64) * 64]  # 256 bytes
        for size in sizes:
            starts.append(starts[-1] + -(-size // 64) * 64)
        self._staging = Staging(starts.pop(), device)
        self._behind = list(zip(("tables", "decode_items", "prefill_items"), starts, sizes, strict=True))
        self._numbers: dict[int, Numbers] = {}

    def numbers(self, rows: int) -> Numbers:
        """Where a step of that many rows (padding included) finds its numbers: always the same addresses."""
        if rows not in self._numbers:
            card = self._staging.card
            behind = {name: card[start : start + size] for name, start, size in self._behind}
            width = _wide(rows)
            slots, *each = card[META : META + 5 * width].split([2 * width, width, width, width])
            each = [part[:rows] for part in each]
            self._numbers[rows] = Numbers(card[:META], slots.view(torch.int64)[:rows], *each, **behind)
        return self._numbers[rows]

    def send(self, batch: StepBatch, rows: int, plan: Plan) -> None:
        """Enqueues the copies of one step. rows: padding included. Raises ValueError for more than there is room for."""
        words, t = self._staging.next(), batch.token_ids.size
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
        self._staging.send(pieces)


def _wide(rows: int) -> int:
    """Words for a number per row, so that each kind starts at a multiple of 16 bytes: one build of a kernel fits all."""
    return -(-rows // 4) * 4
