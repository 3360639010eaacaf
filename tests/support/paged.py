"""Paged attention of one step for tests: random sequences in a pool whose unwritten slots hold NaNs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from queueproof.arithmetic.bits import Dtype, round16_bits, widen
from queueproof.kernels.ops import F32, I32, U16
from queueproof.kernels.triton import attention as gpu
from queueproof.kernels.triton.attention_plan import Plan, plan
from queueproof.kernels.triton.step_input import DECODE_ITEMS, META, PREFILL_ITEMS, TABLE_WIDTH, Numbers

TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16}
NAN16 = 0x7FFF  # of both types
UNWRITTEN = 0x1234


@dataclass(frozen=True, slots=True)
class Model:
    heads: int
    kv_heads: int
    head_dim: int
    dtype: Dtype = "bfloat16"

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Sequence:
    """16-bit patterns of all of its positions. q: [L, heads, D]; k, v: [L, kv_heads, D]."""

    q: U16
    k: U16
    v: U16

    @staticmethod
    def random(model: Model, length: int, seed: int) -> Sequence:
        rng = np.random.default_rng(seed)

        def draw(heads: int, spread: float) -> U16:
            x = rng.standard_normal((length, heads, model.head_dim)) * spread
            return round16_bits(x.astype(np.float32), model.dtype)

        return Sequence(draw(model.heads, 2.0), draw(model.kv_heads, 1.0), draw(model.kv_heads, 1.0))

    def wide(self, dtype: Dtype) -> tuple[F32, F32, F32]:
        return widen(self.q, dtype), widen(self.k, dtype), widen(self.v, dtype)


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, end) of a sequence in a step."""

    sequence: Sequence
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that must not move a bit, and the window, which does."""

    block_size: int = 64
    window: int | None = None
    decode_tokens: int = 8
    most_decode_items: int = 1 << 20
    decode: gpu.Schedule = gpu.Schedule(warps=4, stages=3, programs=1)
    prefill: gpu.Schedule = gpu.Schedule(warps=4, stages=3, programs=1, rows=16)
    programs: int = 3
    planned_window: bool = True
    dummies: int = 2


class Step:
    """A pool and the numbers of one step on a device."""

    def __init__(self, model: Model, pieces: list[Piece], settings: Settings, device: str, seed: int = 0) -> None:
        self.model, self.settings, self._device = model, settings, device
        rng = np.random.default_rng(seed)
        size = settings.block_size
        counts = [-(-piece.end // size) for piece in pieces]
        order = rng.permutation(sum(counts) + 3).astype(np.int32)
        # Entries past a sequence's length name no block of the pool.
        tables = np.full((len(pieces), max(counts) + 1), np.iinfo(np.int32).max, np.int32)
        pool: tuple[U16, U16] = (
            np.full((len(order), model.kv_heads, size, model.head_dim), NAN16, np.uint16),
            np.full((len(order), model.kv_heads, size, model.head_dim), NAN16, np.uint16),
        )
        for i, (piece, count) in enumerate(zip(pieces, counts, strict=True)):
            tables[i, :count], order = order[:count], order[count:]
            at = np.arange(piece.end)
            for cache, written in zip(pool, (piece.sequence.k, piece.sequence.v), strict=True):
                cache[tables[i, at // size], :, at % size] = written[: piece.end]
        lengths = [piece.end - piece.start for piece in pieces]
        self.positions: I32 = np.concatenate([np.arange(p.start, p.end, dtype=np.int32) for p in pieces])
        self.query_start: I32 = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        rows = int(self.query_start[-1]) + settings.dummies
        q = np.full((rows, model.heads, model.head_dim), NAN16, np.uint16)
        q[: rows - settings.dummies] = np.concatenate([p.sequence.q[p.start : p.end] for p in pieces])
        self.keys, self.values, self.q = self._half(pool[0]), self._half(pool[1]), self._half(q.reshape(rows, -1))
        self._tables = tables
        self.plan = self.planned()
        self.scratch: gpu.Scratch  # what the last run left

    def planned(self) -> Plan:
        s = self.settings
        tile = gpu.tile_rows(s.prefill, self.model.group) // self.model.group
        window = s.window if s.planned_window else None
        return plan(self.positions, self.query_start, tile, s.most_decode_items, window, s.decode_tokens)

    def run(self, only: str | None = None) -> NDArray[np.uint16]:
        """Patterns [rows, heads, D] of the answer; rows without an item stay UNWRITTEN. only: "decode" or "prefill"."""
        s, model = self.settings, self.model
        out = self._half(np.full(tuple(self.q.shape), UNWRITTEN, np.uint16))
        meta = np.zeros(META, np.int32)
        meta[TABLE_WIDTH] = self._tables.shape[1]
        meta[DECODE_ITEMS], meta[PREFILL_ITEMS] = len(self.plan.decode_items), len(self.plan.prefill_items)
        none = torch.empty(0, dtype=torch.int32, device=self._device)
        numbers = Numbers(
            self._ints(meta), none, none, none, none,
            self._ints(self._tables), self._ints(self.plan.decode_items), self._ints(self.plan.prefill_items),
        )  # fmt: skip
        items = max(1, len(self.plan.decode_items))
        place = torch.device(self._device)
        scratch = self.scratch = gpu.Scratch.of(items, model.kv_heads, model.group, model.head_dim, place)
        scratch.stats.fill_(torch.nan)
        scratch.acc.fill_(torch.nan)
        pdl = self._device == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
        here = (self.q, self.keys, self.values, out, numbers)
        for _ in range(2 if self._device == "cuda" else 1):  # again with the counters that the first run left
            if only != "prefill":
                gpu.decode(s.decode, *here, scratch, s.window, s.programs, pdl)
            if only != "decode":
                gpu.prefill(s.prefill, *here, s.window, s.programs, pdl)
        assert not scratch.arrived.any()
        bits: NDArray[np.uint16] = out.view(torch.int16).cpu().numpy().view(np.uint16)
        return bits.reshape(-1, model.heads, model.head_dim)

    def _half(self, bits: U16) -> torch.Tensor:
        return torch.from_numpy(bits.view(np.int16)).to(self._device).view(TORCH[self.model.dtype])

    def _ints(self, values: I32) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values.reshape(-1))).to(self._device)
