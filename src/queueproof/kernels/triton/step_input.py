"""The numbers of a step on their way to the card: written into pinned memory, copied in stream order.

Kernels read them at fixed addresses, so a captured graph runs any step of its number of rows. The host writes a step
while the card may still be copying the one before: there are several stagings, and each is free once its copy is done.
"""

from __future__ import annotations

import numpy as np
import torch

from queueproof.kernels.ops import I32, Limits, StepBatch
from queueproof.kernels.triton.attention_plan import DECODE_FIELDS, PREFILL_FIELDS, Plan

STAGINGS = 3
META = 16  # i32 words in front: see the names below
TABLE_WIDTH, DECODE_ITEMS, PREFILL_ITEMS = 0, 1, 2


class StepInput:
    """Device buffers of a step's numbers.

    meta: i32 [META]. token_ids, drawn, positions: i32 [rows]; slots: i64 [rows]; past the step's tokens they name dummies
    (token 0, position 0, slot -1). tables: i32, rows of meta[TABLE_WIDTH] blocks. decode_items, prefill_items: work items of
    attention (attention_plan.py), as many as meta says.
    """

    def __init__(self, limits: Limits, rows: int, decode_items: int, prefill_items: int, device: torch.device) -> None:
        self.limits = limits
        words = {
            "slots": 2 * rows,
            "meta": META,
            "token_ids": rows,
            "drawn": rows,
            "positions": rows,
            "tables": limits.max_seqs * limits.max_blocks_per_seq,
            "decode_items": decode_items * DECODE_FIELDS,
            "prefill_items": prefill_items * PREFILL_FIELDS,
        }
        starts, at = {}, 0
        for name, size in words.items():
            starts[name] = at
            at += -(-size // 64) * 64  # 256 bytes
        self._starts, self._rows = starts, rows
        pinned = device.type == "cuda"
        self._on_card = torch.zeros(at, dtype=torch.int32, device=device)
        self._stagings = [torch.zeros(at, dtype=torch.int32, pin_memory=pinned) for _ in range(STAGINGS)]
        self._copied = [torch.cuda.Event() if pinned else None for _ in range(STAGINGS)]
        self._turn = 0

        def part(name: str) -> torch.Tensor:
            return self._on_card[starts[name] : starts[name] + words[name]]

        self.meta, self.token_ids, self.drawn = part("meta"), part("token_ids"), part("drawn")
        self.positions, self.slots = part("positions"), part("slots").view(torch.int64)
        self.tables, self.decode_items, self.prefill_items = part("tables"), part("decode_items"), part("prefill_items")
        self._capacity = words

    def send(self, batch: StepBatch, rows: int, plan: Plan) -> None:
        """Enqueues the copies of one step. rows: its padded row count."""
        self._turn = (self._turn + 1) % STAGINGS
        event, staging = self._copied[self._turn], self._stagings[self._turn]
        if event is not None:
            event.synchronize()
        words, starts, t = staging.numpy(), self._starts, batch.token_ids.size

        def fill(name: str, values: I32, padding: int) -> None:
            at = starts[name]
            words[at : at + t] = values
            words[at + t : at + rows] = padding

        fill("token_ids", batch.token_ids, 0)
        fill("positions", batch.positions, 0)
        if batch.drawn is None:
            words[starts["drawn"] : starts["drawn"] + rows] = -1
        else:
            fill("drawn", batch.drawn, -1)
        slots = words[starts["slots"] : starts["slots"] + 2 * rows].view(np.int64)
        slots[:t] = batch.slots
        slots[t:] = -1
        tables = batch.block_tables
        used = [(0, starts["positions"] + rows)]
        for name, values in (("tables", tables), ("decode_items", plan.decode_items), ("prefill_items", plan.prefill_items)):
            if values.size > self._capacity[name]:
                raise ValueError(f"{values.size} words of {name} in one step; there is room for {self._capacity[name]}")
            if values.size:
                at = starts[name]
                words[at : at + values.size] = values.reshape(-1)
                used.append((at, at + values.size))
        meta = words[starts["meta"] : starts["meta"] + META]
        meta[TABLE_WIDTH] = tables.shape[1]
        meta[DECODE_ITEMS], meta[PREFILL_ITEMS] = len(plan.decode_items), len(plan.prefill_items)
        for first, end in used:
            self._on_card[first:end].copy_(staging[first:end], non_blocking=True)
        if event is not None:
            event.record()
