"""The only door between models, the engine and the kernels.

A backend implements one arithmetic on one device. Models are written once over `Ops`; a backend may run
them eagerly at every step (`vendor`, the oracle), or call them once and keep what they recorded (`numba`).

Shapes: T tokens of one step, S sequences, R rows that need logits, H hidden size, V vocabulary, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Dtype = Literal["bfloat16", "float16"]
Quantised = Literal["Q8_0", "Q4_0", "Q4_1"]  # types of GGUF that a packer may keep as they are
QUANT_SCALES: dict[Quantised, int] = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2}  # f16 numbers at the beginning of a block
QUANT_BLOCK = 32  # values along k with one scale, in each of them
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

Matrix = Any  # a packed h16 weight matrix, opaque outside its backend but for `nbytes`, what a step reads of it
Vector = Any  # an f32 vector of weights
RopeTable = Any  # cos and sin, f32 [max_len, D / 2] each
Act = Any  # an activation of the running step: one row per token (or per logits row)
Logits = Any  # f32 [R, V] where the backend keeps them; RowOps.host copies them out


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
    drawn: i32 [T] or None. Not -1: the token is the one that this row of the last `RowOps.draw` from this executor's logits
    gave, and may still be under way; its entry of token_ids is unread. Where that row had no token, as its logits held a
    NaN, any will do: nobody reads what follows from it. Only for a backend that is `asynchronous`.
    """

    token_ids: I32
    positions: I32
    slots: I64
    query_start: I32
    block_tables: I32
    drawn: I32 | None = None


@dataclass(slots=True)
class Edits:
    """Changes to single logits before a token is drawn (docs/arithmetic.md, section 6). All arrays are [E].

    rows, ids: i32, each pair at most once. In this order: x + bias; x / repetition where x > 0, else x * repetition;
    x - frequency (penalty times count, f32); x - presence; −∞ where banned. 0, 1, 0, 0 and False change nothing.
    """

    rows: I32
    ids: I32
    bias: F32
    repetition: F32
    frequency: F32
    presence: F32
    banned: NDArray[np.bool_]


@dataclass(slots=True)
class Masks:
    """Which tokens may be drawn at all; for many bans in a row, where `Edits` would name each.

    rows: i32 [M], each at most once. allowed: u32 [M, ceil(V / 32)], bit id % 32 of word id // 32; at least one id of a row
    is allowed. After the edits of a row, the logits of all others become −∞.
    """

    rows: I32
    allowed: U32


@dataclass(slots=True)
class DrawBatch:
    """What to do with each of R rows of logits. All arrays are [R].

    tokens: i32, a token to score, or -1 to draw one. temperature: f32, 0 takes the best token. top_k: i32, 0 off.
    top_p: f32, 1 off. min_p: f32, 0 off. seed: u64. position: i64, the index in its sequence of the token to be drawn.
    top: report the rank of the token and this many best tokens; None: neither. edits and masks change what is
    drawn, not what is reported.
    """

    tokens: I32
    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    seed: U64
    position: I64
    top: int | None = None
    edits: Edits | None = None
    masks: Masks | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Arrays on the host. tokens: i32 [R], drawn or scored; -1 for a row whose logits hold a NaN.

    logprobs, lse: f32 [R], of the token and of the row, of the logits before edits. ranks: i32 [R], from 1; top_ids:
    i32 [R, top]; top_logprobs: f32 [R, top], best first; None where DrawBatch.top is.
    """

    tokens: I32
    logprobs: F32
    lse: F32
    ranks: I32 | None = None
    top_ids: I32 | None = None
    top_logprobs: F32 | None = None


class Packer(Protocol):
    """Turns weights into what the kernels read. Called once per weight at load."""

    def matrix(self, n: int, k: int, row_slices: Iterable[U16], bias: F32 | None = None) -> Matrix:
        """A [n, k] matrix given as consecutive slices of rows, h16 bits as u16 [rows, k]. Slices may be freed after use."""
        ...

    def vector(self, values: F32) -> Vector: ...

    def rope(self, cos: F32, sin: F32) -> RopeTable: ...


@runtime_checkable
class BlockPacker(Packer, Protocol):
    """A packer that keeps quantised matrices as they are in memory; the kernels compute with the h16 values of `matrix`."""

    kept: frozenset[Quantised]

    def blocks(self, n: int, k: int, kind: Quantised, row_slices: Iterable[U8], bias: F32 | None = None) -> Matrix:
        """A [n, k] matrix of a kind in `kept`: rows as GGUF stores them, u8 [rows, bytes of a row], finite scales."""
        ...


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

    def gated_linear(self, x: Act, w: Matrix) -> Act:
        """round16(silu(g) * u), [T, F], with (g, u) = linear(x, w); w has the F rows of the gate, then those of up."""
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
        """Runs the trunk: fills the cache and keeps the residual stream for `logits`.

        The arrays of the batch may be reused as soon as this returns. An asynchronous backend works in the order of the
        calls, so that a block may be given to another sequence while a step that uses it is under way.
        """
        ...

    def logits(self, rows: I32) -> Logits:
        """Logits of token rows of the last `forward`; R <= max_logit_rows; valid until the next call."""
        ...

    def close(self) -> None:
        """Frees buffers and threads; waits for what is under way. Safe to call twice."""
        ...


class Draw(Protocol):
    """A draw that may still be under way."""

    def result(self) -> Drawn:
        """Waits for it. May be called once, or never, and before the draw after the next one is begun."""
        ...


class RowOps(Protocol):
    """From logits to tokens (docs/arithmetic.md section 6)."""

    def draw(self, logits: Logits, batch: DrawBatch) -> Draw:
        """Draws or scores a token for each row. The arrays of the batch may be reused as soon as this returns."""
        ...

    def host(self, logits: Logits) -> F32:
        """f32 [R, V]: a copy on the host. Waits for the executor."""
        ...


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sizes of an engine that fit a device; see EngineConfig. kv_cache_memory: bytes, what may be taken now.

    prefill_tokens_beside_decode: None, as many as a step has room for.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_memory: int
    prefill_tokens_beside_decode: int | None = None


class Backend(Protocol):
    """One arithmetic on one device."""

    arithmetic: str
    device: str
    family: str  # machines on which an arithmetic without `device` gives the same bits; "any": they all do
    asynchronous: bool  # whether `RowOps.draw` returns before its tokens are known and `StepBatch.drawn` may name them

    def defaults(self) -> Defaults:
        """Asked for after the weights are in their place."""
        ...

    def packer(self, dtype: Dtype) -> Packer: ...

    def rows(self, threads: int) -> RowOps: ...

    def kv_bytes_per_token(self, shape: KVShape) -> int: ...

    def executor(self, model: ForwardModel, limits: Limits, threads: int) -> Executor: ...

    def warm_up(self, progress: Callable[[str], None] | None = None) -> None:
        """Compiles or loads every kernel; may take a minute the first time."""
        ...
