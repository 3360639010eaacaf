"""A forward pass in PyTorch as everyone runs it: F.linear, scaled_dot_product_attention, F.rms_norm, all in 16 bits.

Which kernel the libraries take, and with it the order of additions, depends on the shape of each call; so a token's bits
depend on how many others are computed with it. Class: best-effort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from queueproof.kernels.ops import I32, ForwardModel, Limits, StepBatch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Matrix:
    data: torch.Tensor  # h16 [N, K]
    bias: torch.Tensor | None  # h16 [N]

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


@dataclass(frozen=True, slots=True)
class Rope:
    cos: torch.Tensor  # f32 [max_len, D / 2]
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that attend together: S of them, each with `count` tokens in the step."""

    tokens: torch.Tensor  # i64 [S * count], rows of the step
    count: int
    positions: torch.Tensor  # i64 [S, count]
    blocks: torch.Tensor  # i64 [S, B]; shorter sequences repeat their first block, and the mask hides it
    length: int  # keys of the longest
    ragged: bool  # not all of one length
    fresh: bool  # one sequence, all of its keys in this step


class CudaVendorOps:
    """The operations of one executor, with its cache: 16-bit keys and values [num_blocks, block_size, kv_heads, D]."""

    def __init__(self, model: ForwardModel, limits: Limits, device: torch.device) -> None:
        shape = model.kv_shape
        self._device = device
        self._kv_heads, self._head_dim, self._block_size = shape.kv_heads, shape.head_dim, limits.block_size
        size = (shape.layers, limits.num_blocks, limits.block_size, shape.kv_heads, shape.head_dim)
        self._keys = torch.zeros(size, dtype=DTYPES[model.dtype], device=device)
        self._values = torch.zeros_like(self._keys)
        self._logit_rows: torch.Tensor | None = None

    def begin(self, batch: StepBatch) -> None:
        self._token_ids = self._on_device(batch.token_ids)
        self._positions = self._on_device(batch.positions)
        self._slots = self._on_device(batch.slots)
        self._groups = self._grouped(batch)
        self._masks: dict[tuple[int, int | None], torch.Tensor | None] = {}

    def ask_for(self, rows: I32) -> None:
        self._logit_rows = self._on_device(rows)

    def _on_device(self, numbers: np.ndarray) -> torch.Tensor:
        """A copy: the arrays of a step may change while it is under way."""
        return torch.from_numpy(numbers.astype(np.int64)).to(self._device)

    def _grouped(self, batch: StepBatch) -> list[_Group]:
        """One group for each prefill; sequences with one token share a group with those of similar length."""
        members: dict[tuple[int, int], list[int]] = {}
        ends = batch.query_start[1:]
        for s in np.flatnonzero(ends > batch.query_start[:-1]):
            count = int(ends[s] - batch.query_start[s])
            blocks = int(batch.positions[ends[s] - 1]) // self._block_size + 1
            key = (-1, blocks.bit_length()) if count == 1 else (int(s), count)
            members.setdefault(key, []).append(int(s))
        return [self._group(batch, np.array(sequences)) for sequences in members.values()]

    def _group(self, batch: StepBatch, sequences: np.ndarray) -> _Group:
        start = batch.query_start[sequences].astype(np.int64)
        count = int(batch.query_start[sequences[0] + 1] - start[0])
        tokens = (start[:, None] + np.arange(count)).ravel()
        positions = batch.positions[tokens].reshape(-1, count)
        lengths = positions[:, -1] + 1
        in_use = -(-lengths // self._block_size)
        width = np.arange(in_use.max())
        tables = batch.block_tables[sequences][:, : len(width)]
        blocks = np.where(width < in_use[:, None], tables, tables[:, :1])
        return _Group(
            self._on_device(tokens),
            count,
            self._on_device(positions),
            self._on_device(blocks),
            int(lengths.max()),
            ragged=bool((lengths != lengths[0]).any()),
            fresh=len(sequences) == 1 and count == lengths[0],
        )

    def embed(self, table: Matrix) -> torch.Tensor:
        return table.data[self._token_ids]

    def add(self, h: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return h.add_(delta)

    def rms_norm(
        self, h: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None
    ) -> torch.Tensor:
        if delta is not None:
            h.add_(delta)
        return F.rms_norm(h, h.shape[-1:], weight, eps)

    def linear(self, x: torch.Tensor, w: Matrix) -> torch.Tensor:
        return F.linear(x, w.data, w.bias)

    def gated_linear(self, x: torch.Tensor, w: Matrix) -> torch.Tensor:
        gate, up = F.linear(x, w.data, w.bias).chunk(2, dim=-1)
        return F.silu(gate) * up

    def rope_and_cache(
        self,
        qkv: torch.Tensor,
        rope: Rope,
        layer: int,
        heads: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> torch.Tensor:
        d = self._head_dim
        q, k, v = qkv.view(len(qkv), -1, d).split([heads, self._kv_heads, self._kv_heads], dim=1)
        if q_norm is not None:
            q = F.rms_norm(q, (d,), q_norm, eps)
        if k_norm is not None:
            k = F.rms_norm(k, (d,), k_norm, eps)
        cos, sin = rope.cos[self._positions][:, None, :], rope.sin[self._positions][:, None, :]
        self._keys[layer].view(-1, self._kv_heads, d)[self._slots] = _rotate(k, cos, sin)
        self._values[layer].view(-1, self._kv_heads, d)[self._slots] = v
        return _rotate(q, cos, sin).view(len(qkv), -1)

    def attention(self, q: torch.Tensor, layer: int, heads: int, window: int | None = None) -> torch.Tensor:
        d = self._head_dim
        by_head = q.view(-1, heads, d)
        out = torch.empty_like(by_head)
        for index, group in enumerate(self._groups):
            sequences = len(group.blocks)
            queries = by_head[group.tokens].view(sequences, group.count, heads, d).transpose(1, 2)
            k, v = self._gather(self._keys[layer], group, heads), self._gather(self._values[layer], group, heads)
            mask = self._mask(index, group, window)
            causal = mask is None and group.count > 1
            mixed = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, is_causal=causal)
            out[group.tokens] = mixed.transpose(1, 2).reshape(-1, heads, d)
        return out.view(q.shape)

    def _gather(self, pool: torch.Tensor, group: _Group, heads: int) -> torch.Tensor:
        """[S, heads, length, D]: each key/value head once for every query head that reads it."""
        rows = pool[group.blocks].flatten(1, 2)[:, : group.length]
        return rows.transpose(1, 2).repeat_interleave(heads // self._kv_heads, dim=1)

    def _mask(self, index: int, group: _Group, window: int | None) -> torch.Tensor | None:
        """[S, 1, count, length]: the keys a token may see; None for all of them, or for the causal ones of a fresh
        prefill. The same in every layer."""
        cut = window is not None and window < group.length
        if not cut and (group.fresh or (group.count == 1 and not group.ragged)):
            return None
        if (index, window) not in self._masks:
            keys, positions = torch.arange(group.length, device=self._device), group.positions[:, None, :, None]
            seen = keys <= positions
            if cut:
                assert window is not None
                seen &= keys > positions - window
            self._masks[index, window] = seen
        return self._masks[index, window]

    def take_logit_rows(self, h: torch.Tensor) -> torch.Tensor:
        if self._logit_rows is None:
            raise RuntimeError("take_logit_rows outside of Executor.logits")
        return h[self._logit_rows]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
