"""The only door between models, the engine and the kernels.

A backend implements one arithmetic on one device. Models are written once over `Ops`; a backend may run
them eagerly at every step (`vendor`, the oracle), or call them once and keep what they recorded (`numba`).

Shapes: T tokens of one step, S sequences, R rows that need logits, H hidden size, V vocabulary, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["bfloat16", "float16"]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]

Matrix = Any  # a packed h16 weight matrix, opaque outside its backend
Vector = Any  # an f32 vector of weights
RopeTable = Any  # cos and sin, f32 [max_len, D / 2] each
Act = Any  # an activation of the running step: one row per token (or per logits row)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an executor must have room for. All are counts, at least 1."""

    max_tokens: int
    max_seqs: int
    max_logit_rows: int
    num_blocks: int
    block_size: int  # keys in one block of the pool: a multiple of 16
    max_model_len: int

    @property
    def max_blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, slots=True)
class KVShape:
    layers: int
    kv_heads: int
    head_dim: int


@dataclass(slots=True)
class StepBatch:
    """One forward pass over a ragged batch. Tokens of a sequence are consecutive, their positions ascending.

    token_ids, positions: i32 [T]. slots: i64 [T], where the token's key goes: block * block_size + offset.
    query_start: i32 [S + 1], sequence s owns tokens [query_start[s], query_start[s + 1]).
    block_tables: i32 [S, B], the pool blocks of each sequence in order; entries past its length are unread.
    """

    token_ids: I32
    positions: I32
    slots: I64
    query_start: I32
    block_tables: I32


class Packer(Protocol):
    """Turns weights into what the kernels read. Called once per weight at load."""

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> Matrix:
        """A [n, k] matrix given as consecutive slices of rows, h16 bits as u16 [rows, k]. Slices may be freed after use."""
        ...

    def vector(self, values: F32) -> Vector: ...

    def rope(self, cos: F32, sin: F32) -> RopeTable: ...


class Ops(Protocol):
    """The operations of a forward pass, as docs/arithmetic.md section 5 defines them for `ieee/1`.

    `h` is the residual stream (f32). Results that feed a matmul are rounded to h16. A result may be used
    until its Python name is dropped; nothing may be kept across steps.
    """

    def embed(self, table: Matrix) -> Act:
        """f32 [T, H]: rows of the table for the step's token ids."""
        ...

    def add(self, h: Act, delta: Act) -> Act:
        """h + delta, in place; returns h."""
        ...

    def rms_norm(self, h: Act, weight: Vector, eps: float, delta: Act | None = None) -> Act:
        """h += delta (in place) if given, then round16(norm(h) * weight)."""
        ...

    def linear(self, x: Act, w: Matrix) -> Act:
        """f32 [rows, N] = x · wᵀ (+ bias)."""
        ...

    def rope_and_cache(
        self,
        qkv: Act,
        rope: RopeTable,
        layer: int,
        heads: int,
        q_norm: Vector | None = None,
        k_norm: Vector | None = None,
        eps: float = 0.0,
    ) -> Act:
        """Splits qkv [T, (heads + 2 kv_heads) D], norms and rotates q and k, writes k and v to the cache of `layer`; returns q."""
        ...

    def attention(self, q: Act, layer: int, heads: int, window: int | None = None) -> Act:
        """[T, heads * D] over the cache of `layer`, causal, at most the last `window` keys."""
        ...

    def silu_mul(self, gate_up: Act) -> Act:
        """round16(silu(g) * u) with gate_up [T, 2F] = (g, u)."""
        ...

    def take_logit_rows(self, h: Act) -> Act:
        """[R, H]: the rows asked for in `Executor.logits`. Only valid in `ForwardModel.head`."""
        ...


class ForwardModel(Protocol):
    """What an executor runs."""

    dtype: Dtype
    vocab_size: int
    kv_shape: KVShape

    def trunk(self, ops: Ops) -> Act:
        """The residual stream after the last layer, [T, H]."""
        ...

    def head(self, ops: Ops, h: Act) -> Act:
        """Logits [R, V] of the rows that `take_logit_rows` names."""
        ...


class Executor(Protocol):
    """A model with its KV cache and buffers, ready to run steps. Not thread-safe."""

    limits: Limits

    def forward(self, batch: StepBatch) -> None:
        """Runs the trunk: fills the cache and keeps the residual stream for `logits`."""
        ...

    def logits(self, rows: I32) -> F32:
        """f32 [R, V] of token rows of the last `forward`; R <= max_logit_rows; valid until the next call."""
        ...

    def close(self) -> None:
        """Frees buffers and threads. Safe to call twice."""
        ...


class RowOps(Protocol):
    """From logits to tokens (docs/arithmetic.md section 6)."""

    def stats(self, logits: F32) -> tuple[I32, F32, F32]:
        """argmax i32 [R] (-1 for a row with a NaN), max f32 [R], logz f32 [R]."""
        ...

    def topk(self, logits: F32, k: int) -> I32:
        """i32 [R, k]: ids of the first k ranks."""
        ...

    def sample(
        self, row: F32, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
    ) -> int:
        """One token of f32 [V] logits; temperature > 0; top_k 0, top_p 1 and min_p 0 switch a filter off. -1: NaN."""
        ...


class Backend(Protocol):
    """One arithmetic on one device."""

    arithmetic: str
    device: str

    def packer(self, dtype: Dtype) -> Packer: ...

    def rows(self, threads: int) -> RowOps: ...

    def kv_bytes_per_token(self, shape: KVShape) -> int: ...

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> Executor: ...

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        """Compiles or loads every kernel; may take a minute the first time."""
        ...
