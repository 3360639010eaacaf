"""Launches of the attention kernels, their schedules and their scratch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton

from queueproof.arithmetic.tensorcore1 import KEY_BLOCK, KEY_SPLIT, LOG2E
from queueproof.kernels.ops import KVShape, Limits, StepBatch
from queueproof.kernels.triton import attention_plan
from queueproof.kernels.triton.attention_kernels import decode_kernel, prefill_kernel
from queueproof.kernels.triton.attention_plan import DECODE_TOKENS, Plan
from queueproof.kernels.triton.card import Card
from queueproof.kernels.triton.launch import options
from queueproof.kernels.triton.step_input import DECODE_ITEMS, PREFILL_ITEMS, TABLE_WIDTH, Numbers

MMA_ROWS = 16  # of the matrix unit at least
SCRATCH_BYTES = 128 << 20  # what does not fit is prefilled
NO_WINDOW = 1 << 30
TOGETHER = 8  # splits that a merge fetches at once
AHEAD_BYTES = 24 << 20  # about half of the L2 of a card with programmatic launches


@dataclass(frozen=True, slots=True)
class Schedule:
    """No field can move a bit. rows: of a prefill tile, tokens times heads of the group. programs: per processor."""

    warps: int
    stages: int
    programs: int
    rows: int = 0


def decode_schedule(head_dim: int) -> Schedule:
    return Schedule(warps=4, stages=4, programs=4) if head_dim <= 128 else Schedule(warps=4, stages=2, programs=1)


def prefill_schedule(head_dim: int, family: str) -> Schedule:
    """family: of matrix units. All fit into the shared memory of their cards."""
    if family == "sm90":
        return Schedule(8, 3, 1, 128) if head_dim <= 128 else Schedule(8, 2, 1, 64)
    return Schedule(8, 2, 1, 64) if head_dim <= 128 else Schedule(4, 2, 1, 32)


def score_scale(head_dim: int) -> float:
    """c of the definition: an f32 value."""
    return float(np.float32(LOG2E / np.sqrt(np.float64(head_dim))))


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """Of decode items whose row has several splits. arrived is zero between launches.

    stats: f32 [items, kv_heads, 2, G], acc: f32 [items, kv_heads, G, D], arrived: i32 [items, kv_heads].
    """

    stats: torch.Tensor
    acc: torch.Tensor
    arrived: torch.Tensor

    @staticmethod
    def of(items: int, kv_heads: int, group: int, head_dim: int, device: torch.device) -> Scratch:
        return Scratch(
            torch.empty((items, kv_heads, 2, group), dtype=torch.float32, device=device),
            torch.empty((items, kv_heads, group, head_dim), dtype=torch.float32, device=device),
            torch.zeros((items, kv_heads), dtype=torch.int32, device=device),
        )


def decode(
    schedule: Schedule,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    numbers: Numbers,
    scratch: Scratch,
    window: int | None,
    programs: int,
    pdl: bool,
) -> None:
    """Attention of the rows that `numbers.decode_items` names.

    q, out: h16 [R, heads * D]. keys, values: h16 [num_blocks, kv_heads, block_size, D]. programs: any number from 1.
    """
    _, kv_heads, block_size, head_dim = keys.shape
    group = q.shape[1] // (kv_heads * head_dim)
    padded = triton.next_power_of_2(group)
    ahead = pdl and head_dim % 8 == 0  # pieces of 16 bytes
    decode_kernel[(programs,)](
        q,
        keys,
        values,
        out,
        numbers.decode_items,
        numbers.tables,
        numbers.meta,
        scratch.stats,
        scratch.acc,
        scratch.arrived,
        score_scale(head_dim),
        NO_WINDOW if window is None else window,
        WIDTH_AT=TABLE_WIDTH,
        COUNT_AT=DECODE_ITEMS,
        KV_HEADS=kv_heads,
        G=group,
        GP=max(MMA_ROWS, padded),
        GM=padded,
        D=head_dim,
        DP=max(MMA_ROWS, triton.next_power_of_2(head_dim)),
        BLOCK=block_size,
        PIECES=pieces(block_size),
        PAIRS=q.is_cuda,
        TOGETHER=TOGETHER,
        AHEAD=AHEAD_BYTES // (KEY_SPLIT * 4 * head_dim) if ahead else 0,
        **options(schedule.warps, schedule.stages, pdl),
    )


def prefill(
    schedule: Schedule,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    numbers: Numbers,
    window: int | None,
    programs: int,
    pdl: bool,
) -> None:
    """As `decode`, of the rows that `numbers.prefill_items` names."""
    _, kv_heads, block_size, head_dim = keys.shape
    group = q.shape[1] // (kv_heads * head_dim)
    prefill_kernel[(programs,)](
        q,
        keys,
        values,
        out,
        numbers.prefill_items,
        numbers.tables,
        numbers.meta,
        score_scale(head_dim),
        NO_WINDOW if window is None else window,
        WIDTH_AT=TABLE_WIDTH,
        COUNT_AT=PREFILL_ITEMS,
        KV_HEADS=kv_heads,
        G=group,
        R=tile_rows(schedule, group),
        D=head_dim,
        DP=max(MMA_ROWS, triton.next_power_of_2(head_dim)),
        BLOCK=block_size,
        PIECES=pieces(block_size),
        PAIRS=q.is_cuda,
        **options(schedule.warps, schedule.stages, pdl),
    )


def pieces(block_size: int) -> int:
    """Key blocks in a pool block; 0 where they are no whole pieces of it."""
    return 0 if block_size % KEY_BLOCK else block_size // KEY_BLOCK


def tile_rows(schedule: Schedule, group: int) -> int:
    """Rows of a prefill tile: those of the schedule, or more where one token has more."""
    return max(schedule.rows, triton.next_power_of_2(group))


class Attention:
    """Attention of one model on one card. Plans and launches; one step at a time."""

    def __init__(self, shape: KVShape, heads: int, limits: Limits, card: Card) -> None:
        """heads: of the queries."""
        group = heads // shape.kv_heads
        self._card = card
        self._decode, self._prefill = decode_schedule(shape.head_dim), prefill_schedule(shape.head_dim, card.family)
        self.tile = tile_rows(self._prefill, group) // group
        splits = -(-limits.max_model_len // KEY_SPLIT)
        fit = SCRATCH_BYTES // (heads * (shape.head_dim + 2) * 4)
        decode_items = max(1, min(fit, min(limits.max_tokens, limits.max_seqs * DECODE_TOKENS) * splits))
        self._scratch = Scratch.of(decode_items, shape.kv_heads, group, shape.head_dim, card.device)
        self.most_items = (decode_items, limits.max_tokens)
        """Decode and prefill items of a step at most."""

    def plan(self, batch: StepBatch) -> Plan:
        return attention_plan.plan(batch.positions, batch.query_start, self.tile, self.most_items[0])

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        numbers: Numbers,
        window: int | None,
        decode_only: bool,
    ) -> None:
        """As `decode` and `prefill`. decode_only: the step has no prefill items. Rows without an item are not written."""
        processors, pdl = self._card.processors, self._card.pdl
        programs = processors * self._decode.programs
        decode(self._decode, q, keys, values, out, numbers, self._scratch, window, programs, pdl)
        if not decode_only:
            programs = processors * self._prefill.programs
            prefill(self._prefill, q, keys, values, out, numbers, window, programs, pdl)
