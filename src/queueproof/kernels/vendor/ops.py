"""A forward pass in eager NumPy: BLAS products, softmax over whole rows, every result rounded to 16 bits.

Rounding follows PyTorch's half-precision models: each operation computes in f32 and stores 16 bits, the residual
stream included. The order of additions is left to NumPy and the BLAS, which choose it by the shape of the call; so a
token's bits depend on how many others are computed with it. Class: best-effort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queueproof.kernels.ops import F32, I32, I64, ForwardModel, Limits, StepBatch
from queueproof.kernels.vendor.rounding import rounder


@dataclass(frozen=True, slots=True)
class Matrix:
    columns: F32  # [K, N], the transposed weight: the layout that the BLAS multiplies fastest by few rows
    bias: F32 | None

    @property
    def nbytes(self) -> int:
        return int(self.columns.nbytes)


@dataclass(frozen=True, slots=True)
class Rope:
    cos: F32  # [max_len, D / 2]
    sin: F32


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that attend together: S of them, each with `count` tokens in the step."""

    tokens: I64  # [S * count], rows of the step
    count: int
    positions: I32  # [S, count]
    blocks: I64  # [S, B]; shorter sequences repeat their first block, and the mask hides it
    length: int  # keys of the longest


class VendorOps:
    """The operations of one executor, with its cache: f32 copies of 16-bit keys and values, in blocks."""

    def __init__(self, model: ForwardModel, limits: Limits) -> None:
        shape = model.kv_shape
        self._round = rounder(model.dtype)
        self._kv_heads, self._head_dim, self._block_size = shape.kv_heads, shape.head_dim, limits.block_size
        slots = limits.num_blocks * limits.block_size
        self._keys = np.zeros((shape.layers, slots, shape.kv_heads, shape.head_dim), np.float32)
        self._values = np.zeros_like(self._keys)
        self._scale = np.float32(shape.head_dim**-0.5)
        self._logit_rows: I32 | None = None

    def begin(self, batch: StepBatch) -> None:
        self._batch = batch
        self._masks: dict[tuple[int, int | None], NDArray[np.bool_] | None] = {}
        self._groups = self._grouped(batch)

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

    def _group(self, batch: StepBatch, sequences: I64) -> _Group:
        start = batch.query_start[sequences].astype(np.int64)
        count = int(batch.query_start[sequences[0] + 1] - start[0])
        tokens = (start[:, None] + np.arange(count)).ravel()
        positions = batch.positions[tokens].reshape(-1, count)
        lengths = positions[:, -1] + 1
        in_use = -(-lengths // self._block_size)
        width = np.arange(in_use.max())
        tables = batch.block_tables[sequences][:, : len(width)].astype(np.int64)
        blocks = np.where(width < in_use[:, None], tables, tables[:, :1])
        return _Group(tokens, count, positions, blocks, int(lengths.max()))

    def ask_for(self, rows: I32) -> None:
        self._logit_rows = rows

    def embed(self, table: Matrix) -> F32:
        return np.ascontiguousarray(table.columns[:, self._batch.token_ids].T)

    def add(self, h: F32, delta: F32) -> F32:
        h += delta
        return self._round(h)

    def rms_norm(self, h: F32, weight: F32, eps: float, delta: F32 | None = None) -> F32:
        if delta is not None:
            self.add(h, delta)
        return self._norm(h, weight, eps)

    def _norm(self, x: F32, weight: F32, eps: float) -> F32:
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
        y = self._round(x * scale)
        y *= weight
        return self._round(y)

    def linear(self, x: F32, w: Matrix) -> F32:
        y = x @ w.columns
        if w.bias is not None:
            y += w.bias
        return self._round(y)

    def rope_and_cache(
        self,
        qkv: F32,
        rope: Rope,
        layer: int,
        heads: int,
        q_norm: F32 | None = None,
        k_norm: F32 | None = None,
        eps: float = 0.0,
    ) -> F32:
        by_head = qkv.reshape(len(qkv), -1, self._head_dim)
        q, k, v = np.split(by_head, [heads, heads + self._kv_heads], axis=1)
        if q_norm is not None:
            q = self._norm(q, q_norm, eps)
        if k_norm is not None:
            k = self._norm(k, k_norm, eps)
        positions, slots = self._batch.positions, self._batch.slots
        cos, sin = rope.cos[positions][:, None, :], rope.sin[positions][:, None, :]
        self._keys[layer, slots] = self._rotate(k, cos, sin)
        self._values[layer, slots] = v
        return self._rotate(q, cos, sin).reshape(len(qkv), -1)

    def _rotate(self, x: F32, cos: F32, sin: F32) -> F32:
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        out = np.empty(x.shape, np.float32)
        out[..., :half] = a * cos - b * sin
        out[..., half:] = b * cos + a * sin
        return self._round(out)

    def attention(self, q: F32, layer: int, heads: int, window: int | None = None) -> F32:
        d, kv_heads = self._head_dim, self._kv_heads
        per_kv = heads // kv_heads
        out = np.empty((len(q), kv_heads, per_kv, d), np.float32)
        by_head = q.reshape(out.shape)
        for index, group in enumerate(self._groups):
            sequences, count = len(group.blocks), group.count
            k, v = self._gather(self._keys[layer], group), self._gather(self._values[layer], group)
            # Rows of one key/value head: its query heads, each with all tokens of the sequence.
            queries = by_head[group.tokens].reshape(sequences, count, kv_heads, per_kv, d).transpose(0, 2, 3, 1, 4)
            scores = queries.reshape(sequences, kv_heads, -1, d) @ k.transpose(0, 2, 3, 1)
            scores *= self._scale
            mask = self._mask(index, group, window)
            if mask is not None:
                by_token = scores.reshape(sequences, kv_heads, per_kv, count, -1)
                np.copyto(by_token, -np.inf, where=mask[:, None, None])
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            mixed = (self._round(scores) @ v.transpose(0, 2, 1, 3)).reshape(sequences, kv_heads, per_kv, count, d)
            out[group.tokens] = mixed.transpose(0, 3, 1, 2, 4).reshape(-1, kv_heads, per_kv, d)
        return self._round(out).reshape(len(q), -1)

    def _gather(self, pool: F32, group: _Group) -> F32:
        """[S, length, kv_heads, D]."""
        blocks = pool.reshape(-1, self._block_size, self._kv_heads, self._head_dim)
        rows = blocks[group.blocks].reshape(len(group.blocks), -1, self._kv_heads, self._head_dim)
        return rows[:, : group.length]

    def _mask(self, index: int, group: _Group, window: int | None) -> NDArray[np.bool_] | None:
        """[S, count, length]: the keys a token may not see; None where all see all. The same in every layer."""
        key = (index, window)
        if key not in self._masks:
            keys, positions = np.arange(group.length), group.positions[:, :, None]
            hidden = keys > positions
            if window is not None:
                hidden |= keys <= positions - window
            self._masks[key] = hidden if hidden.any() else None
        return self._masks[key]

    def gated_linear(self, x: F32, w: Matrix) -> F32:
        gate_up = self.linear(x, w)
        half = gate_up.shape[-1] // 2
        gate, up = gate_up[:, :half], gate_up[:, half:]
        y = np.negative(gate)
        np.exp(y, out=y)
        y += 1
        np.divide(gate, y, out=y)
        self._round(y)
        y *= up
        return self._round(y)

    def take_logit_rows(self, h: F32) -> F32:
        if self._logit_rows is None:
            raise RuntimeError("take_logit_rows outside of Executor.logits")
        return h[self._logit_rows]
