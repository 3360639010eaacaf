"""The oracle as a backend: the model files run on it as they run on kernels, step by step, slowly.

It has the methods of the kernel door (Backend, Packer, Ops, Executor, RowOps) without importing it, and ignores
no argument that could matter: a thread count is accepted because no bit of the arithmetic depends on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from queueproof.arithmetic.oracle import layers
from queueproof.arithmetic.oracle.attention import attention
from queueproof.arithmetic.oracle.numbers import F32, I32, U16, Dtype, round16, widen
from queueproof.arithmetic.oracle.rows import OracleRows
from queueproof.arithmetic.oracle.sums import matmul


class Step(Protocol):
    """What is read of a step; the door's StepBatch."""

    token_ids: I32
    positions: I32
    slots: NDArray[np.int64]
    query_start: I32
    block_tables: I32


@dataclass(frozen=True, slots=True)
class Matrix:
    weight: F32  # [N, K], 16-bit values, columns contiguous: sums walk over K
    bias: F32 | None

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes)


@dataclass(frozen=True, slots=True)
class Rope:
    cos: F32
    sin: F32


class OraclePacker:
    def __init__(self, dtype: Dtype) -> None:
        self._dtype = dtype

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> Matrix:
        weight = np.empty((n, k), np.float32, order="F")
        row = 0
        for rows in row_slices:
            weight[row : row + len(rows)] = widen(rows, self._dtype)
            row += len(rows)
        if row != n:
            raise ValueError(f"the slices have {row} rows, the matrix {n}")
        return Matrix(weight, None if bias is None else bias.copy())

    def vector(self, values: F32) -> F32:
        return values.copy()

    def rope(self, cos: F32, sin: F32) -> Rope:
        return Rope(cos, sin)


class OracleOps:
    """The operations of one executor. The cache holds f32 copies of 16-bit values, one row per slot.

    norm, linear and attend are those of one arithmetic; another one overrides them.
    """

    def __init__(self, model: Any, limits: Any) -> None:
        shape, slots = model.kv_shape, limits.num_blocks * limits.block_size
        self._dtype: Dtype = model.dtype
        self._kv_heads, self._head_dim, self._block_size = shape.kv_heads, shape.head_dim, limits.block_size
        # NaN: a slot that is read before it was written shows in every result.
        self._keys = np.full((shape.layers, slots, shape.kv_heads, shape.head_dim), np.nan, np.float32)
        self._values = self._keys.copy()
        self.step: Step | None = None
        self.logit_rows: I32 | None = None

    def _now(self) -> Step:
        if self.step is None:
            raise ValueError("an operation outside a step")
        return self.step

    def embed(self, table: Matrix) -> F32:
        return table.weight[self._now().token_ids]

    @np.errstate(all="ignore")
    def add(self, h: F32, delta: F32) -> F32:
        h += delta
        return h

    def rms_norm(self, h: F32, weight: F32, eps: float, delta: F32 | None = None) -> F32:
        if delta is not None:
            self.add(h, delta)
        return round16(self.norm(h, weight, eps), self._dtype)

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        return layers.norm(x, weight, eps)

    def linear(self, x: F32, w: Matrix) -> F32:
        return matmul(x, w.weight, w.bias)

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
        step = self._now()
        by_head = qkv.reshape(len(qkv), -1, self._head_dim)
        q, k, v = np.split(by_head, [heads, heads + self._kv_heads], axis=1)
        if q_norm is not None:
            q = self.norm(q, q_norm, eps)
        if k_norm is not None:
            k = self.norm(k, k_norm, eps)
        cos, sin = rope.cos[step.positions], rope.sin[step.positions]
        self._keys[layer, step.slots] = round16(layers.rope(k, cos, sin), self._dtype)
        self._values[layer, step.slots] = round16(v, self._dtype)
        return round16(layers.rope(q, cos, sin), self._dtype).reshape(len(qkv), -1)

    def attention(self, q: F32, layer: int, heads: int, window: int | None = None) -> F32:
        step = self._now()
        q = q.reshape(len(q), heads, self._head_dim)
        out = np.empty_like(q)
        for s in range(len(step.query_start) - 1):
            tokens = slice(step.query_start[s], step.query_start[s + 1])
            positions = step.positions[tokens]
            if not positions.size:
                continue
            places = np.arange(positions[-1] + 1)
            blocks = step.block_tables[s, places // self._block_size].astype(np.int64)
            slots = blocks * self._block_size + places % self._block_size
            k, v = self._keys[layer, slots], self._values[layer, slots]
            out[tokens] = self.attend(q[tokens], k, v, positions, window)
        return out.reshape(len(q), -1)

    def attend(self, q: F32, k: F32, v: F32, positions: I32, window: int | None) -> F32:
        return attention(q, k, v, positions, window, self._dtype)

    def gated_linear(self, x: F32, w: Matrix) -> F32:
        return layers.silu_mul(self.linear(x, w), self._dtype)

    def take_logit_rows(self, h: F32) -> F32:
        if self.logit_rows is None:
            raise ValueError("take_logit_rows outside of Executor.logits")
        return h[self.logit_rows]


class OracleExecutor:
    def __init__(self, model: Any, limits: Any, ops: OracleOps) -> None:
        self.limits = limits
        self._model = model
        self._ops = ops
        self._hidden: F32 | None = None

    def forward(self, batch: Step) -> None:
        self._ops.step = batch
        self._hidden = self._model.trunk(self._ops)

    def logits(self, rows: I32) -> F32:
        if self._hidden is None:
            raise ValueError("logits before the first forward")
        self._ops.logit_rows = rows
        out: F32 = self._model.head(self._ops, self._hidden)
        self._ops.logit_rows = None
        return out

    def close(self) -> None:
        """Nothing to free: no threads, no buffers outside NumPy."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The fields of the door's Defaults. Modest: the oracle is for small models."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_memory: int = 256 << 20
    prefill_tokens_beside_decode: int | None = None


class OracleBackend:
    arithmetic = "ieee/1"
    device = "cpu"
    family = "any"
    asynchronous = False

    def defaults(self) -> Defaults:
        return Defaults()

    def packer(self, dtype: Dtype) -> OraclePacker:
        return OraclePacker(dtype)

    def rows(self, threads: int) -> OracleRows:
        return OracleRows()

    def kv_bytes_per_token(self, shape: Any) -> int:
        return int(2 * shape.layers * shape.kv_heads * shape.head_dim * np.dtype(np.float32).itemsize)

    def executor(self, model: Any, limits: Any, threads: int) -> OracleExecutor:
        return OracleExecutor(model, limits, OracleOps(model, limits))

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        """Nothing to compile."""
